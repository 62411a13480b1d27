"""What is done to files and file systems of a stage."""

import errno
import os
from pathlib import Path

_FILL_TRIES = 20


def fill(path: Path, free: int) -> None:
    """Take all of a file system but so many bytes; others, who write there, may take some first.

    :raises OSError: if they do so each time.
    """
    with open(path, 'wb') as stream:
        for left in reversed(range(_FILL_TRIES)):
            status = os.statvfs(path)
            taken = status.f_bavail * status.f_frsize - free
            if taken <= 0:
                return
            try:
                os.posix_fallocate(stream.fileno(), 0, taken)
                return
            except OSError as error:
                if error.errno != errno.ENOSPC or not left:
                    raise
                # Some file systems keep what they gave until then.
                stream.truncate(0)


def flip(path: Path) -> None:
    """Have a byte in the midst of a file be another one."""
    with open(path, 'r+b') as stream:
        # In the midst, where data is.
        stream.seek(path.stat().st_size // 2)
        byte = stream.read(1)
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte[0] ^ 255]))
