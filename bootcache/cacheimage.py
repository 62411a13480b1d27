"""Building and verifying cache images.

A cache image is a qcow2 that holds the working set's data in first-read order (SC13 section 3.1,
YOLO's boot image in the same file), with a backing pointer to the base as hosts reach it. The data
moves within a private storage daemon: NBD CACHE requests to a copy-on-read export, one an extent.

Where the base is known to read as zeros the cache image says so too, as far as the tables that it
has anyway reach. That costs no byte, and NBD servers answer reads of such areas from the block
status, so that no recorder sees them.
"""

import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any

from oslo_log import log as logging

from bootcache import exception, qemuimg, savefile, scratch, steps, workingset
from bootcache.storagedaemon import StorageDaemon, UnixListener
from bootcache.workingset import Extent

LOG = logging.getLogger(__name__)

# Changes whenever `verify` begins to look at something new; files verified under an older rule are
# verified again before their next use.
VERIFY_RULES = 1
# libnbd and QEMU take up to 32 MiB a request; less keeps a build interruptible.
_REQUEST_BYTES = 8 << 20
_HEADER_CLUSTERS = 8
# Of the directories in which private daemons work.
_SCRATCH, _DAEMON = 'bootcache-build-', 'build'
# Zero areas that are marked at most; further ones are asked from the base.
_MAX_ZERO_AREAS = 100_000


@dataclasses.dataclass(frozen=True)
class Base:
    """The base as files on this machine.

    :ivar path: of the image file.
    :ivar image_format: qcow2 or raw; never probed.
    :ivar virtual_bytes: size of the base.
    """

    path: str
    image_format: str
    virtual_bytes: int

    def nodes(self, name: str) -> list[dict[str, object]]:
        """Return read-only block nodes for it, the base itself, called ``name``, last."""
        if len(name) > 30:
            raise ValueError(f'node name {name} is too long')
        file_node = {'driver': 'file', 'node-name': f'{name}f', 'filename': self.path,
                     'read-only': True}
        node: dict[str, object] = {'driver': self.image_format, 'node-name': name,
                                   'read-only': True, 'file': f'{name}f'}
        if self.image_format == 'qcow2':
            node['backing'] = None
        return [file_node, node]


@dataclasses.dataclass(frozen=True)
class CacheImage:
    """What was built.

    :ivar path: of the file.
    :ivar bytes: the file's size.
    :ivar data_bytes: bytes of the base that it holds.
    :ivar sha256: of the file.
    :ivar virtual_bytes: size of the base.
    :ivar cluster_bytes: cluster size.
    :ivar extents: the extents it holds, aligned to clusters, in first-read order.
    """

    path: str
    bytes: int
    data_bytes: int
    sha256: str
    virtual_bytes: int
    cluster_bytes: int
    extents: tuple[Extent, ...]


def _reaches(extents: Sequence[Extent], reach: int) -> list[int]:
    """Return the L2 tables that extents need, as multiples of a table's reach, ascending."""
    return sorted({index for extent in extents
                   for index in range(extent.offset // reach, (extent.end - 1) // reach + 1)})


def metadata_bytes(extents: Sequence[Extent], cluster_bytes: int, virtual_bytes: int) -> int:
    """Return an upper bound of what qcow2 tables take for these extents, in bytes. Pure.

    One L2 table of a cluster for each ``cluster_bytes² / 8`` bytes of the base that are touched,
    the L1 table, refcounts (16 bits a cluster) and the header.
    """
    reach = cluster_bytes * (cluster_bytes // 8)
    tables = len(_reaches(extents, reach))
    l1 = -(-(-(-virtual_bytes // reach) * 8) // cluster_bytes)
    data = -(-workingset.total_bytes(extents) // cluster_bytes)
    refcounts = -(-(data + tables + l1) * 2 // cluster_bytes) + 1
    return (tables + l1 + refcounts + _HEADER_CLUSTERS) * cluster_bytes


def zero_areas(status: Sequence[Extent], extents: Sequence[Extent], cluster_bytes: int,
               virtual_bytes: int) -> list[Extent]:
    """Return the base's zero areas that cost nothing to mark: whole clusters below tables in use.

    Pure.

    :param status: areas of the base that read as zeros, ascending.
    :param extents: what the cache image holds.
    """
    reach = cluster_bytes * (cluster_bytes // 8)
    touched = set(_reaches(extents, reach))
    areas: list[Extent] = []
    for area in status:
        start = -(-area.offset // cluster_bytes) * cluster_bytes
        # The last cluster of the base may be short and still is a whole one.
        end = area.end if area.end == virtual_bytes else area.end // cluster_bytes * cluster_bytes
        while start < end:
            stop = min(end, (start // reach + 1) * reach)
            if start // reach in touched:
                areas.append(Extent(start, stop - start))
            start = stop
    return areas


def fit(extents: Sequence[Extent], quota: int, cluster_bytes: int,
        virtual_bytes: int) -> list[Extent]:
    """Return the first extents whose cache image fits a quota, file and tables together. Pure.

    :param extents: aligned to ``cluster_bytes``, in first-read order.
    :param quota: bytes.
    """
    def first(clusters: int) -> list[Extent]:
        # The base's end may lie within a cluster, whose place in the order may be any.
        whole = [dataclasses.replace(extent, length=-(-extent.length // cluster_bytes)
                                     * cluster_bytes) for extent in extents]
        return [dataclasses.replace(extent, length=min(extent.length,
                                                       virtual_bytes - extent.offset))
                for extent in workingset.clip(whole, clusters * cluster_bytes)]

    def size(clusters: int) -> int:
        return clusters * cluster_bytes + metadata_bytes(first(clusters), cluster_bytes,
                                                         virtual_bytes)

    # The size grows with the number of clusters: the largest number that fits is looked for.
    fits = 0
    most = min(quota // cluster_bytes,
               sum(-(-extent.length // cluster_bytes) for extent in extents))
    while fits < most:
        middle = (fits + most + 1) // 2
        fits, most = (middle, most) if size(middle) <= quota else (fits, middle - 1)
    return first(fits)


def build(base: Base, extents: Sequence[Extent], target: str, *, quota: int, cluster_bytes: int,
          backing_uri: str | None, backing_format: str = 'raw') -> CacheImage:
    """Build a cache image; ``target`` appears whole and verified, or not at all.

    :param extents: the working set, in first-read order, of any granularity.
    :param quota: bytes that the file may have.
    :param cluster_bytes: 4096 or 65536, say.
    :param backing_uri: goes into the header as the base's place; None leaves no pointer.
    :param backing_format: of what is there.
    :raises BuildFailed: if the file does not come out right.
    :raises BootcacheError: if the base cannot be opened.
    """
    aligned = workingset.align(extents, cluster_bytes, base.virtual_bytes)
    kept = fit(aligned, quota, cluster_bytes, base.virtual_bytes)
    if not kept:
        raise exception.BuildFailed(
            f'a quota of {quota} bytes leaves no room for a single cluster of {cluster_bytes};'
            ' raise bootcache_quota, or opt the image out with bootcache_mode=off')
    partial = f'{target}.partial'
    try:
        with scratch.directory(_SCRATCH) as directory:
            sha256 = _make(base, kept, partial, directory, quota, cluster_bytes, backing_uri,
                           backing_format)
        os.chmod(partial, 0o644)
        steps.reached('build: filled')
        savefile.commit(partial, target)
    finally:
        if os.path.exists(partial):
            os.unlink(partial)
    return CacheImage(target, os.path.getsize(target), workingset.total_bytes(kept), sha256,
                      base.virtual_bytes, cluster_bytes, tuple(kept))


def end_left_over() -> None:
    """End what builds left whose process was killed: a directory and a private daemon each."""
    scratch.end_left_over(_SCRATCH, _DAEMON)


def _make(base: Base, extents: Sequence[Extent], partial: str, directory: str, quota: int,
          cluster_bytes: int, backing_uri: str | None, backing_format: str) -> str:
    """Make the file, look at all of it, and return its sha256."""
    daemon = scratch.daemon(directory, _DAEMON)
    try:
        qemuimg.create_standalone(partial, base.virtual_bytes, cluster_bytes)
        daemon.ensure_running()
        _fill(daemon, base, partial, extents, cluster_bytes)
        steps.reached('build: read')
        _compare(daemon, base, partial, extents, os.path.join(directory, 'nbd'))
    finally:
        daemon.stop()
    if backing_uri is not None:
        qemuimg.set_backing_pointer(partial, backing_uri, backing_format)
    _pad(partial)
    qemuimg.check(partial)
    if os.path.getsize(partial) > quota:
        raise exception.BuildFailed(
            f'the cache image of {os.path.getsize(partial)} bytes is over its quota of {quota}')
    return savefile.file_digest(partial)


def _connect(socket_path: str, export: str, status: bool = False) -> Any:
    import nbd  # Debian's python3-libnbd; only who builds needs it
    handle = nbd.NBD()
    handle.set_export_name(export)
    if status:
        handle.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
    handle.connect_unix(socket_path)
    return handle


def _zero_status(handle: Any, extents: Sequence[Extent], reach: int,
                 virtual_bytes: int) -> list[Extent]:
    """Ask a base for its zero areas, where ``extents`` have tables; a hostile one has many."""
    import nbd
    zeros: list[Extent] = []
    position = 0

    def note(_context: str, offset: int, entries: list[int], _error: int) -> None:
        nonlocal position
        for length, flags in zip(entries[::2], entries[1::2], strict=True):
            if flags & nbd.STATE_ZERO:
                if zeros and zeros[-1].end == offset:
                    zeros[-1] = Extent(zeros[-1].offset, zeros[-1].length + length)
                else:
                    zeros.append(Extent(offset, length))
            offset += length
        position = offset

    for index in _reaches(extents, reach):
        position, end = max(position, index * reach), min((index + 1) * reach, virtual_bytes)
        while position < end and len(zeros) < _MAX_ZERO_AREAS:
            handle.block_status(min(1 << 30, end - position), position, note)
    return [Extent(zero.offset, min(zero.length, virtual_bytes - zero.offset)) for zero in zeros
            if zero.offset < virtual_bytes]


def _requests(extents: Sequence[Extent]) -> Iterator[tuple[int, int]]:
    for extent in extents:
        for offset in range(extent.offset, extent.end, _REQUEST_BYTES):
            yield offset, min(_REQUEST_BYTES, extent.end - offset)


def _fill(daemon: StorageDaemon, base: Base, path: str, extents: Sequence[Extent],
          cluster_bytes: int) -> None:
    assert isinstance(daemon.listener, UnixListener)
    daemon.add_nodes(
        *base.nodes('base'),
        {'driver': 'file', 'node-name': 'cachef', 'filename': path},
        {'driver': 'qcow2', 'node-name': 'cache', 'file': 'cachef', 'backing': 'base',
         'read-only': False, 'l2-cache-size': 32 << 20},
        {'driver': 'copy-on-read', 'node-name': 'fill', 'file': 'cache'})
    # Writable, as a CACHE request to a read-only export aborts QEMU 7.2's daemon. Nothing writes.
    daemon.add_export('fill', 'fill', writable=True)
    daemon.add_export('base', 'base')
    handle = _connect(daemon.listener.path, 'fill')
    original = _connect(daemon.listener.path, 'base', status=True)
    try:
        for offset, length in _requests(extents):
            handle.cache(length, offset)
        status = _zero_status(original, extents, cluster_bytes * (cluster_bytes // 8),
                              base.virtual_bytes)
        for area in zero_areas(status, extents, cluster_bytes, base.virtual_bytes):
            handle.zero(area.length, area.offset)
        handle.flush()
    finally:
        handle.shutdown()
        original.shutdown()
    daemon.remove_export('fill', disconnect=True)
    daemon.remove_nodes('fill', 'cache', 'cachef')


def _compare(daemon: StorageDaemon, base: Base, path: str, extents: Sequence[Extent],
             socket_path: str) -> None:
    """Read every extent from the cache image alone and from the base; they must be equal."""
    daemon.add_nodes({'driver': 'file', 'node-name': 'donef', 'filename': path, 'read-only': True},
                     {'driver': 'qcow2', 'node-name': 'done', 'file': 'donef', 'backing': None,
                      'read-only': True})
    daemon.add_export('done', 'done')
    built, original = _connect(socket_path, 'done'), _connect(socket_path, 'base')
    try:
        for offset, length in _requests(extents):
            if built.pread(length, offset) != original.pread(length, offset):
                raise exception.BuildFailed(
                    f'the cache image differs from the base in {length} bytes at {offset}')
    finally:
        built.shutdown()
        original.shutdown()
    daemon.remove_export('done', disconnect=True)
    daemon.remove_export('base', disconnect=True)


def _pad(path: str) -> None:
    """Round the file's length up to a sector, so that its bytes can travel as a block device."""
    size = os.path.getsize(path)
    os.truncate(path, -(-size // 512) * 512)


def verify(path: str, sha256: str, size: int) -> None:
    """Check that a cache image's file is the one that was built.

    :raises InvalidManifest: if it is missing, or of another size or content.
    """
    try:
        actual_size = os.path.getsize(path)
        actual = savefile.file_digest(path) if actual_size == size else None
    except OSError as error:
        raise exception.InvalidManifest(f'cache image {path}: {error}') from error
    if actual_size != size:
        raise exception.InvalidManifest(f'cache image {path} has {actual_size} bytes, not {size}')
    if actual != sha256:
        raise exception.InvalidManifest(f'cache image {path} has sha256 {actual}, not {sha256}')
