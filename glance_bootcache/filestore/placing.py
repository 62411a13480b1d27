"""Putting a file into a directory of Glance's file store, as glance-api itself would have it.

A snapshot's file is copied from the base and made larger; what the overlay has is put into it, and
both are compared. QEMU's tools do it, with explicit formats. The base was accepted for reading only
when its image was registered.
"""

import errno
import json
import os
import shutil
import stat
from collections.abc import Callable
from typing import Any

from bootcache import confined, exception, limited, qemuimg, savefile, watched
from bootcache.limited import Limits
from glance_bootcache.snapshots.records import Record
from glance_bootcache.snapshots.stores import SnapshotUnfit
from glance_bootcache.storage import inspection

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


def remove(target: str, file: str) -> bool:
    """Remove a file from the store, if it is still the one that was put there.

    :returns: whether it was.
    :raises OSError: if it cannot be removed.
    """
    try:
        if named(target) != file:
            return False
        os.unlink(target)
    except FileNotFoundError:
        return False
    savefile.fsync_directory(os.path.dirname(target))
    return True


def check_free(directory: str, needed: int) -> None:
    """Check that a file system has so many bytes to give, and a little more.

    :raises StorageNodeFull: if it has not.
    :raises OSError: if it cannot be asked.
    """
    total, _used, free = shutil.disk_usage(directory)
    # What is left for others: a fiftieth of it.
    if free - needed < total // 50:
        raise exception.StorageNodeFull(f'{directory} has {free} bytes left, and {needed} may be'
                                        ' needed beside a fiftieth of it all; make room there')


# Added to the name of the snapshot's file.
OVERLAY = '.overlay'
# Its clusters have parts as small as those of servers' disks.
_OVERLAY_CLUSTER = 128 << 10
_RESIZE_SECONDS = 60
# What the slowest disk that is worth it writes of an overlay.
_RATE, _GRACE_SECONDS = 20 << 20, 30
# The CPUs, and the disk, have other work, which goes first.
_WAITING = 10
# Of the look at a base's refcounts, which reads all tables: a disk of 16 TiB has 2 GiB of them.
# Each error is a line.
_CHECK_LIMITS = Limits(cpu_seconds=60, memory_bytes=2 << 30, file_bytes=1 << 20)
_LONGEST_SAID = 200
# Clusters that nothing leads to do no harm.
_FIT = (0, 3)


def copy(source: str, target: str, seconds: float) -> None:
    """Copy a file's bytes, whatever they are, with holes where there are zeros.

    The copy is whole sectors long. If this process ends, the copying ends with it.

    :param seconds: that it may take in all.
    :raises Interrupted: if it is not done in time.
    :raises BootcacheError: if it leaves others no room, or cannot be read or written.
    """
    _run('convert', ['-f', 'raw', '-O', 'raw', source, target], seconds,
         lambda: check_free(os.path.dirname(target), 0))


def grow(path: str, image_format: str, virtual_bytes: int) -> None:
    """Make an image that nobody has open larger; what it gets reads as zeros.

    :param virtual_bytes: its size from now on, at least what it has.
    :raises Interrupted: if it is not done in time.
    :raises BootcacheError: if the file is not of that format or is in use.
    """
    _run('resize', [qemuimg.file_node(path, image_format), str(virtual_bytes)], _RESIZE_SECONDS)


def check_base(path: str, image_format: str) -> None:
    """Check that a copy of a base can be written to: a writer goes by its refcounts.

    :raises SnapshotUnfit: if they are wrong, or it takes too much to look at them.
    :raises Interrupted: if that is not known.
    """
    if image_format != 'qcow2':
        return
    code, said = watched.run(confined.command(path, *limited.command(
        _CHECK_LIMITS, 'qemu-img', 'check', '-q', qemuimg.confined_node(image_format))),
        _WAITING * _CHECK_LIMITS.cpu_seconds, lambda: None)
    if limited.was_interrupted(code):
        raise exception.Interrupted(f'qemu-img check was ended by others (exit {code})')
    if code not in _FIT:
        last = said.rpartition('\n')[2][:_LONGEST_SAID]
        raise SnapshotUnfit('its base cannot be written to without harm: qemu-img check failed'
                            f' (exit {code}): {last}')


def overlay(record: Record, virtual_bytes: int) -> dict[str, Any]:
    """Make the overlay that a host writes, on the base; returns its node.

    :param virtual_bytes: of the server's disk.
    :raises BootcacheError: if it cannot be made.
    """
    qemuimg.create_overlay(record.work + OVERLAY, virtual_bytes, record.base, record.disk_format,
                           cluster_bytes=_OVERLAY_CLUSTER, subclusters=True, open_backing=False)
    return _overlay_node(record)


def put_together(record: Record, check: Callable[[], None]) -> None:
    """Put what a host wrote into a snapshot's own file, and remove the overlay.

    :param check: called several times a second; what it raises ends it.
    :raises StorageNodeFull: if it has no room twice, or others are left none meanwhile.
    :raises BootcacheError: if the file does not read as the base with what was written then.
    :raises OSError: if it cannot be looked at.
    """
    path, directory = record.work + OVERLAY, os.path.dirname(record.work)
    stored = os.stat(path).st_blocks * 512
    check_free(directory, stored)

    def check_all() -> None:
        check()
        check_free(directory, 0)

    made = _node(record.work, record.disk_format)
    qemuimg.send_own(path, record.base, record.disk_format, made,
                     seconds=_GRACE_SECONDS + stored / _RATE, check=check_all)
    limit = inspection.cpu_seconds(os.stat(record.work).st_size,
                                   qemuimg.info(path, 'qcow2')['virtual-size'])
    # Not by qemuimg.is_same_piece: QEMU 7.2 takes what is below a qcow2 for zeros where it is asked
    # through another node.
    code, detail = watched.run(
        ['qemu-img', 'compare', '-q', 'json:' + json.dumps(_overlay_node(record)),
         qemuimg.file_node(record.work, record.disk_format)], _WAITING * limit, check)
    if code:
        raise exception.BootcacheError(
            f'snapshot {record.snapshot_id} does not read as what was written on {record.base}'
            f' (qemu-img compare: exit {code} {detail}); look at that file with qemu-img check')
    os.unlink(path)


def _node(path: str, image_format: str) -> dict[str, Any]:
    node: dict[str, Any] = {
        'driver': image_format, 'discard': 'unmap', 'detect-zeroes': 'unmap',
        'file': {'driver': 'file', 'filename': path, 'discard': 'unmap'}}
    if image_format == 'qcow2':
        # Never what a header says.
        node['backing'] = None
    return node


def _overlay_node(record: Record) -> dict[str, Any]:
    base = {**_node(record.base, record.disk_format), 'read-only': True}
    return {**_node(record.work + OVERLAY, 'qcow2'), 'backing': base}


def _run(what: str, arguments: list[str], seconds: float,
         check: Callable[[], None] = lambda: None) -> None:
    code, detail = watched.run(['qemu-img', what, '-q', *arguments], seconds, check)
    if code:
        raise exception.BootcacheError(f'qemu-img {what} failed (exit {code}): {detail}')
