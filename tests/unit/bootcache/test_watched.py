"""Programs that are done soon, and those that are not, with threads and with eventlet."""

import subprocess
import sys

import pytest

CODE = '''
from bootcache import exception, watched

def failure(*arguments):
    try:
        watched.output('it', *arguments)
    except exception.Interrupted as error:
        return str(error)

print(watched.output('it', ['sh', '-c', 'echo out; echo err >&2; exit 3'], 60))
print(watched.output('it', ['sh', '-c', 'kill -TERM $$'], 60)[0])
print(len(watched.output('it', ['head', '-c', '1000000', '/dev/zero'], 60)[1]))
print(failure(['sleep', '600'], 0.1))
print(failure(['/nowhere'], 60))
'''


@pytest.mark.parametrize('first', ['', 'import eventlet; eventlet.monkey_patch()'],
                         ids=['threads', 'eventlet'])
def test_what_a_program_says(first):
    done = subprocess.run([sys.executable, '-W', 'ignore', '-c', first + CODE],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "(3, 'out\\n', 'err\\n')", '-15', '1000000', 'it was not done after 0.1 s',
        "it cannot be run: [Errno 2] No such file or directory: '/nowhere'"]
