"""The file of a snapshot, and the overlay beside it that a host writes.

The file is copied from the base and made larger; what the overlay has is put into it, and both are
compared. QEMU's tools do it, with explicit formats. The base was accepted for reading only when its
image was registered.
"""

import json
import os
from collections.abc import Callable
from typing import Any

from bootcache import confined, exception, limited, qemuimg, watched
from bootcache.limited import Limits
from glance_bootcache.filestore import placing
from glance_bootcache.filestore.journal import Entry
from glance_bootcache.snapshots.stores import SnapshotUnfit
from glance_bootcache.storage import inspection

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
         lambda: placing.check_free(os.path.dirname(target), 0))


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


def overlay(entry: Entry, virtual_bytes: int) -> dict[str, Any]:
    """Make the overlay that a host writes, on the base; returns its node.

    :param virtual_bytes: of the server's disk.
    :raises BootcacheError: if it cannot be made.
    """
    qemuimg.create_overlay(entry.work + OVERLAY, virtual_bytes, entry.base, entry.image_format,
                           cluster_bytes=_OVERLAY_CLUSTER, subclusters=True, open_backing=False)
    return _overlay_node(entry)


def put_together(entry: Entry, check: Callable[[], None]) -> None:
    """Put what a host wrote into a snapshot's own file, unless that is done.

    :param check: called several times a second; what it raises ends it.
    :raises StorageNodeFull: if it has no room twice, or others are left none meanwhile.
    :raises BootcacheError: if the file does not read as the base with what was written then.
    """
    path, directory = entry.work + OVERLAY, os.path.dirname(entry.work)
    try:
        stored = os.stat(path).st_blocks * 512
    except FileNotFoundError:
        return
    placing.check_free(directory, stored)

    def check_all() -> None:
        check()
        placing.check_free(directory, 0)

    qemuimg.send_own(path, entry.base, entry.image_format, _node(entry.work, entry.image_format),
                     seconds=_GRACE_SECONDS + stored / _RATE, check=check_all)
    limit = inspection.cpu_seconds(os.stat(entry.work).st_size,
                                   qemuimg.info(path, 'qcow2')['virtual-size'])
    # Not by qemuimg.is_same_piece: QEMU 7.2 takes what is below a qcow2 for zeros where it is asked
    # through another node.
    code, detail = watched.run(
        ['qemu-img', 'compare', '-q', 'json:' + json.dumps(_overlay_node(entry)),
         qemuimg.file_node(entry.work, entry.image_format)], _WAITING * limit, check)
    if code:
        raise exception.BootcacheError(
            f'snapshot {entry.image_id} does not read as what was written on {entry.base} (qemu-img'
            f' compare: exit {code} {detail}); look at that file with qemu-img check')
    os.unlink(path)


def _node(path: str, image_format: str) -> dict[str, Any]:
    node: dict[str, Any] = {
        'driver': image_format, 'discard': 'unmap', 'detect-zeroes': 'unmap',
        'file': {'driver': 'file', 'filename': path, 'discard': 'unmap'}}
    if image_format == 'qcow2':
        # Never what a header says.
        node['backing'] = None
    return node


def _overlay_node(entry: Entry) -> dict[str, Any]:
    base = {**_node(entry.base, entry.image_format), 'read-only': True}
    return {**_node(entry.work + OVERLAY, 'qcow2'), 'backing': base}


def _run(what: str, arguments: list[str], seconds: float,
         check: Callable[[], None] = lambda: None) -> None:
    code, detail = watched.run(['qemu-img', what, '-q', *arguments], seconds, check)
    if code:
        raise exception.BootcacheError(f'qemu-img {what} failed (exit {code}): {detail}')
