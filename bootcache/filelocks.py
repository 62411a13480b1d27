"""Locks that QEMU holds of files: of an image that it has open, of its pid file while it lives.

A lock tells of a process in whatever container, and which one it is here. What a pid file says
tells nothing: it is a number of the daemon's own PID namespace, and another process may have it.
"""

import contextlib
import fcntl
import os
import select
import signal
import struct

# Of a daemon whose process has no number here.
ELSEWHERE = 0
_KILLED_SECONDS = 30
# struct flock of 64-bit Linux: type, whence, start, length, pid.
_FLOCK = struct.Struct('@hhlli4x')


def lock_holder(fd: int, start: int = 0, length: int = 0) -> int | None:
    """Return the process id of who holds any lock of a place in a file; None if nobody does.

    :param length: in bytes; 0 is all that follows.
    :returns: ELSEWHERE of a process in another PID namespace, -1 of one that locks by descriptor.
    """
    # Also a shared lock is in the way of an exclusive one.
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
    kind, *_place, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else int(pid)


def daemon_pid(path: str) -> int | None:
    """Return the process id of the daemon of a pid file: see ``lock_holder``.

    :returns: None if it does not live.
    """
    try:
        with open(path, 'rb') as stream:
            return lock_holder(stream.fileno())
    except OSError:
        return None


def end_daemon(path: str, grace: float) -> None:
    """End the daemon of a pid file, if it lives in this PID namespace, and wait for its end.

    The process itself is waited for: it removes its pid file before it has ended, and holds its
    port and its files for that long.

    :param grace: seconds between SIGTERM and SIGKILL.
    """
    pid = daemon_pid(path)
    if not pid:
        return
    with contextlib.suppress(ProcessLookupError):
        process = os.pidfd_open(pid)
        try:
            # It may have ended before, and another process have its number.
            if daemon_pid(path) == pid:
                for signum, seconds in (signal.SIGTERM, grace), (signal.SIGKILL, _KILLED_SECONDS):
                    signal.pidfd_send_signal(process, signum)
                    if select.select([process], [], [], seconds)[0]:
                        return
        finally:
            os.close(process)
