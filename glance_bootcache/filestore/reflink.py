"""Files that share extents, on file systems that can do that: XFS and btrfs.

The calls are those of Linux's ioctl_ficlone(2) and ioctl_fideduperange(2).
"""

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Iterator

# linux/fs.h; Python has the first one since 3.12.
_FICLONE = 0x40049409
_FIDEDUPERANGE = 0xC0189436
_FSGETXATTR, _FSSETXATTR = 0x801c581f, 0x401c5820
# struct fsxattr, and FS_XFLAG_COWEXTSIZE.
_ATTRIBUTES = struct.Struct('=5I8x')
_COW_HINT = 0x10000
_HEAD = struct.Struct('=QQHHI')
_PLACE = struct.Struct('=qQQiI')
_DIFFERS = 1
# That a file system cannot do it, or not between these two files.
_CANNOT = (errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.ETXTBSY)
# What the kernel reads of both files and compares at once, with both locked: what is asked for
# first, and what is not divided any more.
_PIECE = 4 << 20
_SMALLEST = 64 << 10


def clone(source: str, target: str) -> bool:
    """Make a file that has all of another one's extents, and no data of its own.

    :param target: must not exist; for its owner alone.
    :returns: False if the file system cannot do that; there is no such file then.
    :raises OSError: if one of them cannot be opened.
    """
    with open(source, 'rb') as there:
        fd = os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            fcntl.ioctl(fd, _FICLONE, there.fileno())
            _take_no_more(fd)
            return True
        except OSError as error:
            os.unlink(target)
            if error.errno in _CANNOT:
                return False
            raise
        finally:
            os.close(fd)


def _take_no_more(fd: int) -> None:
    """Have XFS set aside no more than what is written: by default 128 KiB for a piece of 4 KiB."""
    attributes = bytearray(_ATTRIBUTES.size)
    # Another file system's files, or none of the caller's own, stay as they are.
    with contextlib.suppress(OSError):
        block = os.fstatvfs(fd).f_bsize
        fcntl.ioctl(fd, _FSGETXATTR, attributes)
        flags, extent, extents, project, _cow = _ATTRIBUTES.unpack(attributes)
        fcntl.ioctl(fd, _FSSETXATTR, _ATTRIBUTES.pack(flags | _COW_HINT, extent, extents, project,
                                                      block))


def share(source: str, target: str, begin: int = 0) -> Iterator[tuple[int, int]]:
    """Have two files share what they have in the same places; the kernel compares before it does.

    Neither file's content changes. What was shared when the caller stops stays shared.

    :param target: gets the other one's extents; the caller owns it, or may write to it.
    :param begin: offset of the first byte that is looked at.
    :returns: one by one, of pieces of at most 4 MiB: up to where both have been looked at, and how
        many bytes of the piece are in the same place of both, and once on the medium from now on.
    :raises OSError: if one of them cannot be opened or read; with an errno that ``is_unable``
        knows, if the file system cannot do that between these two.
    """
    with open(source, 'rb') as one, open(_opened(target), 'rb') as other:
        sizes = [os.fstat(file.fileno()).st_size for file in (one, other)]
        size = min(sizes)
        if sizes[0] != sizes[1]:
            # A block's part can be shared only where both files end.
            size -= size % os.fstatvfs(one.fileno()).f_bsize
        left = [(place, min(_PIECE, size - place)) for place in range(begin, size, _PIECE)][::-1]
        while left:
            place, length = left.pop()
            done = _share(one.fileno(), other.fileno(), place, length)
            if 0 < done < length:
                left.append((place + done, length - done))
            elif not done and length > _SMALLEST:
                half = max(_SMALLEST, length // 2 // _SMALLEST * _SMALLEST)
                left += [(place + half, length - half), (place, half)]
                continue
            yield place + (done or length), done


def is_unable(error: OSError) -> bool:
    """Tell whether an error says that a file system cannot share extents of two files."""
    return error.errno in _CANNOT


def _opened(path: str) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except PermissionError:
        # Enough for a file of the caller's own.
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _share(source: int, target: int, begin: int, length: int) -> int:
    """Return how many bytes are shared; 0 if there is a difference."""
    request = bytearray(_HEAD.pack(begin, length, 1, 0, 0) + _PLACE.pack(target, begin, 0, 0, 0))
    fcntl.ioctl(source, _FIDEDUPERANGE, request)
    _fd, _offset, done, status, _reserved = _PLACE.unpack_from(request, _HEAD.size)
    if status == _DIFFERS:
        return 0
    if status < 0:
        raise OSError(-status, os.strerror(-status))
    return int(done)
