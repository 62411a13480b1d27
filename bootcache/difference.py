"""What a snapshot's cache image has that its parent's, its server's image's, has not.

A file of it is a qcow2 with the blocks that differ, and after its end the layout of the
snapshot's cache image. The storage service makes it; a host that has the parent's cache image puts
the two together, by QEMU, in first-read order. It gets an expanded file, with the content by which
:func:`digest` knows the storage service's.
"""

import bisect
import dataclasses
import hashlib
import json
import os
import sys
import zlib
from collections.abc import Callable
from typing import Any

from bootcache import (
    cacheimage,
    exception,
    expansion,
    qemuimg,
    savefile,
    scratch,
    workingset,
)
from bootcache.cacheimage import Base
from bootcache.cachelayout import Compression
from bootcache.clusterplaces import ClusterPlaces
from bootcache.expansion import Layout
from bootcache.manifest import CacheDifference
from bootcache.storagedaemon import StorageDaemon
from bootcache.util import threads
from bootcache.workingset import Extent

VERSION = 1
# A layout's text; one of a million areas has less.
_MOST_LAYOUT_BYTES = 64 << 20
_Areas = tuple[tuple[int, int], ...]


def packed(layout: Layout) -> bytes:
    """Return a layout as it stands in a difference's file. Pure."""
    return zlib.compress(json.dumps({
        'version': VERSION, 'virtual_bytes': layout.virtual_bytes,
        'cluster_bytes': layout.cluster_bytes, 'data': workingset.to_wire(layout.data),
        'zeros': workingset.to_wire(layout.zeros)}, separators=(',', ':')).encode())


def unpacked(packed_layout: bytes) -> Layout:
    """Read a layout. Pure.

    :raises BootcacheError: if it is damaged, or of another version.
    """
    try:
        reader = zlib.decompressobj()
        text = reader.decompress(packed_layout, _MOST_LAYOUT_BYTES)
        if not reader.eof:
            raise ValueError('it is too long, or cut')
        said = json.loads(text)
        if said['version'] != VERSION:
            raise ValueError(f'version {said["version"]} is not {VERSION}')
        size, cluster_bytes = said['virtual_bytes'], said['cluster_bytes']
        data, zeros = (workingset.WorkingSet.from_wire(
            '', '', size, cluster_bytes, said[kind], are_apart=True).extents
            for kind in ('data', 'zeros'))
    except (zlib.error, ValueError, KeyError, TypeError, exception.BootcacheError) as error:
        raise exception.BootcacheError(f'the layout cannot be read: {error!r}') from error
    return Layout(data, zeros, 0, size, cluster_bytes)


def read_layout(path: str, difference: CacheDifference) -> Layout:
    """Read the layout out of a difference's file.

    :param path: of the file, whose sha256 is known.
    :raises BootcacheError: if it is damaged, or of another version.
    :raises OSError: if the file cannot be read.
    """
    with open(path, 'rb') as stream:
        stream.seek(difference.layout_at)
        return unpacked(stream.read(max(0, difference.bytes - difference.layout_at)))


def ranges(layout: Layout) -> _Areas:
    """Return what a cache image has of its own, from begin to end each, ascending. Pure."""
    return tuple(workingset.joined((extent.offset, extent.end)
                                   for extent in (*layout.data, *layout.zeros)))


def covers(areas: _Areas, offset: int, end: int) -> bool:
    """Tell whether all between two places lies in one of some areas, which are ascending. Pure."""
    index = bisect.bisect_right(areas, (offset, float('inf'))) - 1
    return index >= 0 and end <= areas[index][1]


def digest(layout: Layout, read: Callable[[int, int], bytes], most: int) -> str:
    """Return the sha256 of what whoever reads a cache image gets from it, and for which areas.

    That is the same for each file of the same content, however its clusters lie and are stored.

    :param layout: of the cache image.
    :param read: gives the bytes at an offset, a length of them.
    :param most: bytes of a read.
    """
    told = [layout.virtual_bytes, layout.cluster_bytes, ranges(layout),
            ranges(dataclasses.replace(layout, data=()))]
    found = hashlib.sha256(json.dumps(told, separators=(',', ':')).encode())
    ascending = sorted(layout.data, key=lambda extent: extent.offset)
    for offset, length in workingset.pieces(ascending, most):
        found.update(read(offset, length))
    return found.hexdigest()


def put_together(parent: str, path: str, target: str, layout: Layout,
                 check: Callable[[], None], is_awaited: bool = True) -> None:
    """Make a snapshot's cache image of its parent's and a difference; without a backing pointer.

    :param parent: path of the parent's cache image, which servers may read from.
    :param path: of the difference's file.
    :param target: the new file; written over if it is there.
    :param layout: of the snapshot's cache image.
    :param check: called several times a second; what it raises gives it up.
    :param is_awaited: whether a server waits for it.
    :raises BootcacheError: if it cannot be made, for instance of an earlier one of the parent's.
    """
    there = [Extent(begin, end - begin) for each in (parent, path)
             for begin, end in expansion.present(qemuimg.allocation_map(each))]
    if workingset.uncovered(
            (Extent(extent.offset, min(extent.length, layout.virtual_bytes - extent.offset))
             for extent in layout.data), there):
        raise exception.BootcacheError('its parent\'s lacks some of what it is to be made of')
    expansion.copy({**expansion.alone(path), 'backing': expansion.alone(parent)}, target, layout,
                   check, is_awaited)


def verify(target: str, layout: Layout, content: str) -> None:
    """Check that a cache image that was put together is the storage service's to who reads it.

    :param target: its file.
    :param layout: that it is to have.
    :param content: its digest on the storage node.
    :raises BootcacheError: if it is another one.
    :raises OSError: if it cannot be read.
    """
    qemuimg.check(target)
    there = ClusterPlaces(target)
    size = there.cluster_bytes
    if (there.virtual_bytes, size) != (layout.virtual_bytes, layout.cluster_bytes) \
            or there.compressed or expansion.present(qemuimg.allocation_map(target)) \
            != ranges(layout) or any(offset in there.places
                                     for offset, _length in workingset.pieces(layout.zeros, size)):
        raise exception.BootcacheError('what was put together has another layout')

    def read_all() -> str:
        with open(target, 'rb') as stream:
            def read(offset: int, length: int) -> bytes:
                if offset not in there.places:
                    # QEMU has found that it is zeros.
                    return bytes(length)
                stream.seek(there.places[offset])
                return stream.read(length)

            return digest(layout, read, size)

    if threads.run_native(read_all) != content:
        raise exception.BootcacheError('what was put together has another content than on the'
                                       ' storage node')


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
            stream.write(packed(layout))
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
    with scratch.daemon() as daemon:
        new, old = (_opened(daemon, name, path)
                    for name, path in (('child', child), ('parent', parent)))
        size, differing, much = old.get_size(), list[Extent](), 0
        for offset, length in workingset.pieces(layout.data, _READ_BYTES):
            check()
            wanted = new.pread(length, offset)
            had = old.pread(min(length, size - offset), offset) if offset < size else b''
            if wanted == had and covers(within, offset, offset + length):
                continue
            found = [
                Extent(offset + at, end - at) for at, end in _blocks(length)
                if wanted[at:end] != had[at:end]
                or not covers(within, offset + at, offset + end)]
            differing += found
            much += workingset.total_bytes(found)
            if much > most:
                return None

        def read(offset: int, length: int) -> bytes:
            check()
            data: bytes = new.pread(length, offset)
            return data

        return differing, digest(layout, read, _READ_BYTES)


def _blocks(length: int) -> list[tuple[int, int]]:
    return [(at, min(at + BLOCK_BYTES, length)) for at in range(0, length, BLOCK_BYTES)]


def _opened(daemon: StorageDaemon, name: str, path: str) -> Any:
    try:
        return cacheimage.opened(daemon, name, path)
    except Exception as error:
        raise exception.BootcacheError(f'{path} cannot be read: {error}') from error
