"""A program that is run under watch: it may be given up at any time, and ends with this process."""

import os
import select
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence

from bootcache import exception

# Of what a program says, its end is kept.
_SAID_BYTES = 4096
# The idle class of the disk's scheduler, where it has classes.
_BEHIND_ALL = (('ionice', '-t', '-c', '3'), ('nice', '-n', '19'))


def behind_all(command: Sequence[str]) -> list[str]:
    """Return a command that runs the same one when nobody else wants the CPU or the disk."""
    return [word for how in _BEHIND_ALL if shutil.which(how[0]) is not None for word in how] \
        + list(command)


def output(what: str, command: Sequence[str], seconds: float) -> tuple[int, str, str]:
    """Run a program that is done soon.

    :param what: it is called in errors.
    :param seconds: that it may take.
    :returns: its exit code, negative for a signal, its output, and what it said of errors.
    :raises Interrupted: if it is not done in time, or cannot be run.
    """
    began = time.monotonic()
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
    except OSError as error:
        raise exception.Interrupted(f'{what} cannot be run: {error}') from error
    # Under eventlet a limit of subprocess's own raises what nobody can catch by its class.
    limit = threading.Timer(seconds, process.kill)
    with process:
        try:
            limit.start()
            out, said = (each.decode(errors='replace') for each in process.communicate())
        finally:
            limit.cancel()
            process.kill()
    if process.returncode == -signal.SIGKILL and time.monotonic() - began >= seconds:
        raise exception.Interrupted(f'{what} was not done after {seconds:g} s')
    return process.returncode, out, said


def run(command: Sequence[str], seconds: float, check: Callable[[], None],
        script: str = '') -> tuple[int, str]:
    """Run a program; if this process ends, it ends as well.

    :param seconds: that it may take in all.
    :param check: called several times a second; what it raises ends the program.
    :param script: what it reads from its standard input.
    :returns: its exit code, negative for a signal, and the end of what it said.
    :raises Interrupted: if it is not done in time, or cannot be run.
    """
    name = next(word for word in command if word.startswith('qemu-'))
    if shutil.which('setpriv') is not None:
        # A killed nova-compute must not leave it behind, writing into a file that nobody wants.
        # One that was killed before its child has asked for that sends no signal any more.
        command = ['setpriv', '--pdeathsig', 'KILL', 'sh', '-c',
                   '[ "$PPID" = "$0" ] || exit 126; exec "$@"', str(os.getpid()), *command]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as told:
        told.write(script.encode())
        told.seek(0)
        try:
            process = subprocess.Popen(command, env={**os.environ, 'LC_ALL': 'C'},
                                       stdin=told if script else subprocess.DEVNULL,
                                       stdout=output, stderr=output)
        except OSError as error:
            raise exception.Interrupted(f'{name} cannot be run: {error}') from error
        # Readable when the process ends: a boot may wait for that, and Popen.wait() looks in steps.
        ended = os.pidfd_open(process.pid)
        try:
            deadline = time.monotonic() + seconds
            while process.poll() is None:
                check()
                if time.monotonic() > deadline:
                    raise exception.Interrupted(f'{name} was not done after {seconds:.0f} s')
                select.select([ended], [], [], 0.1)
        finally:
            os.close(ended)
            process.kill()
            process.wait()
        output.seek(max(0, output.seek(0, os.SEEK_END) - _SAID_BYTES))
        return process.returncode, output.read().decode(errors='replace').strip()
