"""Putting a file into a directory of Glance's file store, as glance-api itself would have it."""

import contextlib
import errno
import os
import stat

from bootcache import exception, savefile

# In a store's directory, for what is not an image yet; Glance looks at names that it knows only.
WORK = '.bootcache'
_READABLE = stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH


def work_directory(store_directory: str) -> str:
    """Return the directory for what becomes an image of a store, on the same file system.

    :raises OSError: if it cannot be made.
    """
    path = os.path.join(store_directory, WORK)
    os.makedirs(path, mode=0o700, exist_ok=True)
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, 'it is not a directory of this service\'s own', path)
    return path


def hand_over(path: str, store_directory: str) -> None:
    """Give a file the owner, group and mode by which glance-api can read it.

    :raises OSError: if that cannot be done: the service's user needs the
        group of the directory, or has to be the same as glance-api's.
    """
    directory, file = os.stat(store_directory), os.stat(path)
    mode = stat.S_IRUSR | stat.S_IWUSR
    if file.st_uid != directory.st_uid:
        try:
            os.chown(path, directory.st_uid, directory.st_gid)
        except PermissionError:
            if file.st_gid != directory.st_gid:
                os.chown(path, -1, directory.st_gid)
            mode |= stat.S_IRGRP
    os.chmod(path, mode | (directory.st_mode & _READABLE & ~stat.S_IROTH))


def trim(path: str) -> None:
    """Give back what the file system has set aside for a file to grow into, and make it durable.

    XFS sets aside as much again as a file has, and keeps that for minutes.

    :raises OSError: if that cannot be done.
    """
    os.truncate(path, os.stat(path).st_size)
    savefile.fsync_file(path)


def place(path: str, target: str) -> None:
    """Give a file its name in the store, durably; nothing that has that name already is replaced.

    :raises FileExistsError: if there is a file of that name.
    :raises OSError: if it cannot be done.
    """
    # Not a rename: that would put an end to another image.
    os.link(path, target, follow_symlinks=False)
    os.unlink(path)
    for directory in (target, path):
        savefile.fsync_directory(os.path.dirname(directory))


def named(path: str) -> str:
    """Return by what a file is known again: another one may have its inode as soon as it is gone.
    """
    return ':'.join(map(str, savefile.identity(os.lstat(path))))


def is_there(target: str, file: str) -> bool:
    """Tell whether what has a name in the store is the file that was put there."""
    try:
        return named(target) == file
    except FileNotFoundError:
        return False


def remove(target: str, file: str) -> bool:
    """Remove a file from the store, if it is still the one that was put there.

    :returns: whether it was.
    :raises OSError: if it cannot be removed.
    """
    if not is_there(target, file):
        return False
    with contextlib.suppress(FileNotFoundError):
        os.unlink(target)
    savefile.fsync_directory(os.path.dirname(target))
    return True


def check_free(directory: str, needed: int) -> None:
    """Check that a file system has so many bytes to give, and a little more.

    :raises StorageNodeFull: if it has not.
    :raises OSError: if it cannot be asked.
    """
    status = os.statvfs(directory)
    free = status.f_bavail * status.f_frsize
    # What is left for others: a fiftieth of it.
    if free - needed < status.f_blocks * status.f_frsize // 50:
        raise exception.StorageNodeFull(f'{directory} has {free} bytes left, and {needed} may be'
                                        ' needed beside a fiftieth of it all; make room there')
