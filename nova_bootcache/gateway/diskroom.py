"""Space of a file system that a file has for itself, whoever fills the rest."""

import contextlib
import ctypes
import errno
import os
import shutil

_FALLOC_FL_KEEP_SIZE = 1
_FALLOC_FL_PUNCH_HOLE = 2
_ZEROS = 1 << 20
# A page of a tmpfs may be so large, and a file's last one be its own.
_LARGEST_PAGE = 2 << 20
# What a file system answers that cannot promise space, as NFS before 4.2 cannot.
_UNABLE = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


def hold(path: str, size: int) -> bool:
    """Give a file the blocks of its first bytes: to write there cannot fail for want of space.

    Its length and content stay as they are. It takes a millisecond, in a tmpfs 0.3 s a GiB.

    :param size: bytes.
    :returns: False if the file system cannot do that.
    :raises OSError: if it has no room, or the file is gone.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        return _allocate(fd, path, _FALLOC_FL_KEEP_SIZE, 0, size)
    finally:
        os.close(fd)


def clear(path: str, offset: int, length: int) -> None:
    """Have a place in a file be zeros, without blocks where the file system can do that.

    :param offset: in bytes, as is the length; what is beyond the file's end is left out.
    :raises OSError: if the file cannot be written.
    """
    with open(path, 'r+b') as stream:
        end = min(offset + length, os.fstat(stream.fileno()).st_size)
        if end <= offset or _allocate(stream.fileno(), path,
                                      _FALLOC_FL_KEEP_SIZE | _FALLOC_FL_PUNCH_HOLE, offset,
                                      end - offset):
            return
        stream.seek(offset)
        for begin in range(offset, end, _ZEROS):
            stream.write(bytes(min(_ZEROS, end - begin)))


def _allocate(fd: int, path: str, mode: int, offset: int, length: int) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate64(ctypes.c_int(fd), ctypes.c_int(mode), ctypes.c_int64(offset),
                        ctypes.c_int64(length)) == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNABLE:
        return False
    raise OSError(code, os.strerror(code), path)


def has_ahead(path: str) -> bool:
    """Tell whether a file has space beyond its end that it was given by ``hold``.

    :returns: False also if it is gone.
    """
    with contextlib.suppress(FileNotFoundError):
        status = os.stat(path)
        return status.st_blocks * 512 >= status.st_size + _LARGEST_PAGE
    return False


def give_back(path: str) -> None:
    """Give back a file's space beyond its end; length, content and time of it stay as they are.

    Nobody may write to it meanwhile: what makes it longer would be lost.

    :raises OSError: if the file is gone.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        # To the length that it has: file systems free what is beyond it.
        os.ftruncate(fd, status.st_size)
        os.utime(fd, ns=(status.st_atime_ns, status.st_mtime_ns))
    finally:
        os.close(fd)


def free(path: str) -> int:
    """Return the bytes that are free on the file system of a file.

    :raises OSError: if its directory is gone.
    """
    return shutil.disk_usage(os.path.dirname(path)).free
