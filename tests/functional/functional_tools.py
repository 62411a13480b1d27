"""Small helpers of the functional tests."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import nbd

from bootcache import exception, listening, naming
from bootcache.connectors import supervisor
from tools.ports import free_port as free_port

PATIENCE = 240


def until(condition, what='the condition', patience=PATIENCE):
    """Wait until something is so, and return what the condition gave."""
    deadline = time.monotonic() + patience
    while not (value := condition()):
        assert time.monotonic() < deadline, f'{what} did not come about'
        time.sleep(0.01)
    return value


def reached(host, image_id):
    """Wait until servers that run can read an image's base."""
    def is_reached():
        with contextlib.suppress(exception.BootcacheError):
            host.chains.reach_base(image_id)
            return True

    until(is_reached, f'a way to the base of {image_id}')


def supervise(directory):
    """Start a supervisor of connectors, and return its process; one serves by then."""
    with open(os.path.join(directory, 'supervisor.log'), 'ab') as log:
        process = subprocess.Popen(
            [sys.executable, '-W', 'ignore', '-c',
             f'import sys; from {supervisor.__name__} import main; sys.exit(main())', directory],
            stdin=subprocess.DEVNULL, stderr=log)
    until(lambda: listening.is_served(supervisor.socket_path(directory)), 'the supervisor')
    return process


def command_lines():
    """Return the processes' ids with their command lines, as lists of words."""
    found = {}
    for name in os.listdir('/proc'):
        with contextlib.suppress(OSError, ValueError):
            with open(f'/proc/{int(name)}/cmdline', 'rb') as stream:
                found[int(name)] = stream.read().decode(errors='replace').split('\0')[:-1]
    return found


def commands_below():
    """Return the same of those that this process has started: others may run the same tests."""
    return {pid: words for pid, words in command_lines().items() if _is_below(pid)}


def _is_below(pid):
    while pid not in (0, os.getpid()):
        try:
            with open(f'/proc/{pid}/stat') as stream:
                pid = int(stream.read().rpartition(')')[2].split()[1])
        except OSError:
            return False
    return pid != 0


def processes_of(directory):
    """Return the ids of the processes that have a directory in their command line."""
    return [pid for pid, words in command_lines().items()
            if pid != os.getpid() and any(f'{directory}/' in word for word in words)]


@contextlib.contextmanager
def frozen(pid):
    """A process is stopped, until the end of the block or its own."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def read_base(host, image, offset, length):
    """Read an image's base as a server's QEMU does, through a host's gateway."""
    handle = nbd.NBD()
    handle.connect_uri(naming.nbd_unix_uri(host.gateway.socket_path, f'base-{image}'))
    try:
        return handle.pread(length, offset)
    finally:
        handle.shutdown()


def qemu_version():
    """Return the number of this machine's QEMU, the first of it."""
    return int(qemu_img('--version').split('version ')[1].partition('.')[0])


def qemu_img(*arguments):
    """Run qemu-img and return what it prints."""
    return subprocess.run(['qemu-img', *map(str, arguments)], check=True, capture_output=True,
                          text=True, stdin=subprocess.DEVNULL).stdout
