"""What tools/matrix.sh starts in a root of another Debian ends with it, mounts and all."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from functional_tools import command_lines, processes_of, until

TOP = Path(__file__).resolve().parents[2]
# As matrix.sh does it; the name of the shell is that of a script beside setup.sh.
SCRIPT = '. tools/setup.sh; . tools/matrix/debian.sh; contained sh -ec "$1" sh "$2"'
# A mount, a process of its own session, and one in the foreground; all name the directory.
INSIDE = ('mount -t tmpfs inside "$1/mounted"; touch "$1/mounted/seen";'
          ' setsid tail -f "$1/mounted/seen" & until [ -e "$1/end" ]; do sleep 0.1; done; exit 3')


@pytest.fixture
def started(directory):
    """A part that runs, and its directory."""
    os.mkdir(f'{directory}/mounted')
    # Where the tests run in a shell's background SIGINT is ignored, and bash keeps what it finds.
    process = subprocess.Popen(
        ['env', '--default-signal=INT', 'bash', '-c', SCRIPT, 'tools/matrix', INSIDE, directory],
        cwd=TOP, start_new_session=True,
        env={**os.environ, 'BOOTCACHE_HOME': f'{directory}/home'}, stdin=subprocess.DEVNULL)
    # The last that is started. Before it bash waits for programs in the foreground, and a signal is
    # as good as none if such a one ends well.
    last = ['tail', '-f', f'{directory}/mounted/seen']
    until(lambda: last in command_lines().values())
    yield process, directory
    if process.poll() is None:
        process.kill()
        process.wait()


def nothing_is_left(directory):
    until(lambda: not processes_of(directory))
    return directory not in Path('/proc/self/mounts').read_text() \
        and not os.listdir(f'{directory}/mounted')


@pytest.mark.parametrize('signum', [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_row_that_is_killed_leaves_nothing(started, signum):
    process, directory = started
    os.kill(process.pid, signum)
    assert process.wait(timeout=60) != 0
    assert nothing_is_left(directory)


def test_a_row_that_fails_leaves_nothing_and_tells_its_status(started):
    process, directory = started
    Path(directory, 'end').touch()
    assert process.wait(timeout=60) == 3
    assert nothing_is_left(directory)
