"""QEMU's pid files: QEMU holds a lock of its file for as long as it lives.

The lock tells of a daemon in whatever container, and whose process it is here. What the file says
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


def holder(path: str) -> int | None:
    """Return the process id of the daemon that lives, ELSEWHERE in another PID namespace.

    :returns: None if none does.
    """
    try:
        with open(path, 'rb') as stream:
            answer = fcntl.fcntl(stream, fcntl.F_GETLK,
                                 _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except OSError:
        return None
    kind, _whence, _start, _length, pid = _FLOCK.unpack(answer)
    return None if kind == fcntl.F_UNLCK else int(pid)


def end(path: str, grace: float) -> None:
    """End the daemon of a pid file, if it lives in this PID namespace, and wait for its end.

    The process itself is waited for: it removes its pid file before it has ended, and holds its
    port and its files for that long.

    :param grace: seconds between SIGTERM and SIGKILL.
    """
    pid = holder(path)
    if not pid:
        return
    with contextlib.suppress(ProcessLookupError):
        process = os.pidfd_open(pid)
        try:
            # It may have ended before, and another process have its number.
            if holder(path) == pid:
                for signum, seconds in (signal.SIGTERM, grace), (signal.SIGKILL, _KILLED_SECONDS):
                    signal.pidfd_send_signal(process, signum)
                    if select.select([process], [], [], seconds)[0]:
                        return
        finally:
            os.close(process)
