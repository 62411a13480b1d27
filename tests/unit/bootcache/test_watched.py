"""Programs that are done soon, and those that are not, with threads and with eventlet."""

import os
import select
import shutil
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


def test_a_program_whose_process_was_killed_as_it_began_does_not_run(tmp_path):
    """The signal at the end of the process is asked for after that end: nobody sends it."""
    (tmp_path / 'setpriv').write_text(
        f'#!/bin/sh\necho $$ > {tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid\n'
        f'while [ ! -e {tmp_path}/go ]; do sleep 0.05; done\n'
        f'exec {shutil.which("setpriv")} "$@"\n')
    (tmp_path / 'qemu-it').write_text(f'#!/bin/sh\ntouch {tmp_path}/ran\n')
    for name in ('setpriv', 'qemu-it'):
        (tmp_path / name).chmod(0o755)
    with subprocess.Popen(
            [sys.executable, '-W', 'ignore', '-c', 'from bootcache import watched\n'
             'watched.run(["qemu-it"], 60, lambda: None)'],
            env={**os.environ, 'PATH': f'{tmp_path}:{os.environ["PATH"]}'}) as process:
        try:
            while not (tmp_path / 'pid').exists():
                assert process.poll() is None
                select.select([], [], [], 0.05)
        finally:
            process.kill()
    ended = os.pidfd_open(int((tmp_path / 'pid').read_text()))
    (tmp_path / 'go').touch()
    try:
        assert select.select([ended], [], [], 60)[0], 'it goes on'
    finally:
        os.close(ended)
    assert not (tmp_path / 'ran').exists()
