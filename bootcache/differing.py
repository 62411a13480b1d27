"""Making differences, see difference.py, on the storage node: what differs, and its file.

The cache image of a snapshot and that of its parent are compared block by block, as QEMU reads
them: whatever anybody says of the two, a block counts as the same if its bytes are.
"""

import os
import sys
from collections.abc import Callable
from typing import Any

from bootcache import (
    cacheimage,
    difference,
    exception,
    expansion,
    qemuimg,
    savefile,
    scratch,
    workingset,
)
from bootcache.cacheimage import Base
from bootcache.cachelayout import Compression
from bootcache.difference import CacheDifference
from bootcache.expansion import Layout
from bootcache.storagedaemon import StorageDaemon
from bootcache.workingset import Extent

# As cache images' builds; ``cacheimage.end_left_over`` ends what is left over.
_SCRATCH, _DAEMON = 'bootcache-build-', 'build'
_READ_BYTES = 2 << 20
# As guests write. A cluster of a cache image is larger, and most of it may be as it was.
BLOCK_BYTES = 4096
# A host that gets more than this part of a cache image may as well get all of it.
_WORTH = 0.5
# Servers wait while it is made, and each block is a request: bytes that may differ, of what size.
_MOST_DIFFERING, _MOST_BYTES = 32 << 20, 128 << 20
# Of a disk that a qcow2 with clusters of 4 KiB can have: QEMU's bound of its table.
_MOST_VIRTUAL_BYTES = 4 << 40


def make(base: Base, child: str, parent: str, target: str, *, parent_id: str, parent_hash: str,
         compression: Compression, check: Callable[[], None]
         ) -> CacheDifference | None:
    """Make the difference of two cache images; ``target`` appears whole, or not at all.

    :param base: of the snapshot.
    :param child: path of the snapshot's cache image.
    :param parent: path of its parent's.
    :param parent_id: the parent.
    :param parent_hash: of the parent's content.
    :param compression: of what differs.
    :param check: called between pieces; what it raises gives it up.
    :returns: what is to be noted of it; None if it would not be worth it.
    :raises BootcacheError: if one of the files cannot be read, or the difference not be made.
    :raises OSError: if it cannot be written.
    """
    layout = expansion.layout(child)
    if not 0 < workingset.total_bytes(layout.data) <= _MOST_BYTES \
            or layout.virtual_bytes > _MOST_VIRTUAL_BYTES:
        return None
    found = _compared(child, parent, layout, check)
    if found is None:
        return None
    extents, content = found
    # Without any there would be no file.
    built = cacheimage.build(
        base, extents or (Extent(layout.data[0].offset, 1),), target, quota=sys.maxsize,
        cluster_bytes=BLOCK_BYTES, backing_uri=None, compression=compression)
    try:
        with open(target, 'ab') as stream:
            stream.write(difference.packed(layout))
        cacheimage.pad(target)
        size = os.path.getsize(target)
        if size > _WORTH * os.path.getsize(child):
            # What differs compresses less well.
            os.unlink(target)
            return None
        savefile.fsync_file(target)
        return CacheDifference(parent_id, parent_hash, size, savefile.file_digest(target),
                               built.bytes, workingset.total_bytes(extents), content)
    except BaseException:
        os.unlink(target)
        raise


def _compared(child: str, parent: str, layout: Layout, check: Callable[[], None]
              ) -> tuple[list[Extent], str] | None:
    """Return what differs, in the layout's order, and the digest of all; None if that is much."""
    most = min(_WORTH * workingset.total_bytes(layout.data), _MOST_DIFFERING)
    within = expansion.present(qemuimg.allocation_map(parent))
    with scratch.directory(_SCRATCH) as directory:
        daemon = scratch.daemon(directory, _DAEMON)
        try:
            daemon.ensure_running()
            new, old = (_opened(daemon, name, path, f'{directory}/nbd')
                        for name, path in (('child', child), ('parent', parent)))
            size, differing, much = old.get_size(), list[Extent](), 0
            for offset, length in workingset.pieces(layout.data, _READ_BYTES):
                check()
                wanted = new.pread(length, offset)
                had = old.pread(min(length, size - offset), offset) if offset < size else b''
                if wanted == had and difference.covers(within, offset, offset + length):
                    continue
                found = [
                    Extent(offset + at, end - at) for at, end in _blocks(length)
                    if wanted[at:end] != had[at:end]
                    or not difference.covers(within, offset + at, offset + end)]
                differing += found
                much += workingset.total_bytes(found)
                if much > most:
                    return None

            def read(offset: int, length: int) -> bytes:
                check()
                data: bytes = new.pread(length, offset)
                return data

            return differing, difference.digest(layout, read, _READ_BYTES)
        finally:
            daemon.stop()


def _blocks(length: int) -> list[tuple[int, int]]:
    return [(at, min(at + BLOCK_BYTES, length)) for at in range(0, length, BLOCK_BYTES)]


def _opened(daemon: StorageDaemon, name: str, path: str, socket_path: str) -> Any:
    # The file alone, read-only, of a format that is not probed.
    daemon.add_nodes(*Base(path, 'qcow2', 0).nodes(name))
    daemon.add_export(name, name)
    try:
        return cacheimage.connect(socket_path, name)
    except Exception as error:
        raise exception.BootcacheError(f'{path} cannot be read: {error}') from error
