"""Building and verifying cache images.

A cache image is a qcow2 that holds the working set's data in first-read order (SC13 section 3.1,
YOLO's boot image in the same file), with a backing pointer to the base as hosts reach it. The data
moves within a private storage daemon: NBD CACHE requests, one an extent, have it copied on read.

Where the base is known to read as zeros the cache image says so too, as far as the tables that it
has anyway reach. That costs no byte, and NBD servers answer reads of such areas from the block
status, so that no recorder sees them.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from oslo_log import log as logging

from bootcache import cachelayout, exception, qemuimg, savefile, scratch, steps, workingset
from bootcache.cachelayout import Compression
from bootcache.storagedaemon import StorageDaemon, UnixListener
from bootcache.workingset import Extent

LOG = logging.getLogger(__name__)

# Changes whenever `verify` begins to look at something new; files verified under an older rule are
# verified again before their next use.
VERIFY_RULES = 1
# libnbd and QEMU take up to 32 MiB a request; less keeps a build interruptible.
_REQUEST_BYTES = 8 << 20
# Zero areas that are marked at most; further ones are asked from the base.
_MAX_ZERO_AREAS = 100_000


@dataclasses.dataclass(frozen=True)
class Base:
    """The base as this machine reads it.

    :ivar path: of the image file; what messages call it, if it is none of this machine.
    :ivar image_format: qcow2 or raw; never probed.
    :ivar virtual_bytes: size of the base.
    :ivar protocol: block node, without its name, of an image file that is none of this machine.
    """

    path: str
    image_format: str
    virtual_bytes: int
    protocol: Mapping[str, object] | None = None

    def nodes(self, name: str) -> list[dict[str, object]]:
        """Return read-only block nodes for it, the base itself, called ``name``, last."""
        if len(name) > 30:
            raise ValueError(f'node name {name} is too long')
        file_node = {**(self.protocol or {'driver': 'file', 'filename': self.path}),
                     'node-name': f'{name}f', 'read-only': True}
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


def build(base: Base, extents: Sequence[Extent], target: str, *, quota: int, cluster_bytes: int,
          backing_uri: str | None, backing_format: str = 'raw',
          compression: Compression = Compression.NONE) -> CacheImage:
    """Build a cache image; ``target`` appears whole and verified, or not at all.

    :param extents: the working set, in first-read order, of any granularity.
    :param quota: bytes that the file may have.
    :param cluster_bytes: a power of two from 4096 to 65536.
    :param backing_uri: goes into the header as the base's place; None leaves no pointer.
    :param backing_format: of what is there.
    :param compression: of the clusters.
    :raises BuildFailed: if the file does not come out right.
    :raises BootcacheError: if the base cannot be opened.
    """
    aligned = workingset.align(extents, cluster_bytes, base.virtual_bytes)
    kept = cachelayout.fit(aligned, quota, cluster_bytes, base.virtual_bytes)
    if not kept:
        raise exception.BuildFailed(
            f'a quota of {quota} bytes leaves no room for a single cluster of {cluster_bytes};'
            ' raise bootcache_quota, or opt the image out with bootcache_mode=off')
    partial = f'{target}.partial'
    try:
        sha256 = _make(base, kept, partial, quota, cluster_bytes, backing_uri, backing_format,
                       compression)
        os.chmod(partial, 0o644)
        steps.reached('build: filled')
        savefile.commit(partial, target)
    finally:
        if os.path.exists(partial):
            os.unlink(partial)
    return CacheImage(target, os.path.getsize(target), workingset.total_bytes(kept), sha256,
                      base.virtual_bytes, cluster_bytes, tuple(kept))


def _make(base: Base, extents: Sequence[Extent], partial: str, quota: int, cluster_bytes: int,
          backing_uri: str | None, backing_format: str, compression: Compression) -> str:
    """Make the file, look at all of it, and return its sha256."""
    if compression is Compression.NONE:
        qemuimg.create_standalone(partial, base.virtual_bytes, cluster_bytes)
    else:
        # The filter that compresses takes nothing but whole clusters, also at the end.
        qemuimg.create_standalone(partial, _whole(base.virtual_bytes, cluster_bytes),
                                  cluster_bytes, compression=compression.value)
    with scratch.daemon() as daemon:
        _fill(daemon, base, partial, extents, cluster_bytes, compression)
        if compression is not Compression.NONE and base.virtual_bytes % cluster_bytes:
            qemuimg.shrink(partial, base.virtual_bytes)
        steps.reached('build: read')
        _compare(daemon, partial, extents)
    if backing_uri is not None:
        qemuimg.set_backing_pointer(partial, backing_uri, backing_format)
    pad(partial)
    qemuimg.check(partial)
    if os.path.getsize(partial) > quota:
        raise exception.BuildFailed(
            f'the cache image of {os.path.getsize(partial)} bytes is over its quota of {quota}')
    return savefile.file_digest(partial)


def _whole(size: int, cluster_bytes: int) -> int:
    return -(-size // cluster_bytes) * cluster_bytes


def _connect(daemon: StorageDaemon, export: str, status: bool = False) -> Any:
    """Return libnbd's handle of an export of a private daemon.

    :param status: whether it is asked for the status of blocks.
    """
    import nbd  # Debian's python3-libnbd; only who builds needs it
    assert isinstance(daemon.listener, UnixListener)
    handle = nbd.NBD()
    handle.set_export_name(export)
    if status:
        handle.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
    handle.connect_unix(daemon.listener.path)
    return handle


def opened(daemon: StorageDaemon, name: str, path: str) -> Any:
    """Return libnbd's handle of a qcow2 alone, read-only, which a private daemon opens.

    :param name: of its node and its export.
    """
    daemon.add_nodes(*Base(path, 'qcow2', 0).nodes(name))
    daemon.add_export(name, name)
    return _connect(daemon, name)


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

    for index in cachelayout.reaches(extents, reach):
        position, end = max(position, index * reach), min((index + 1) * reach, virtual_bytes)
        while position < end and len(zeros) < _MAX_ZERO_AREAS:
            handle.block_status(min(1 << 30, end - position), position, note)
    return [Extent(zero.offset, min(zero.length, virtual_bytes - zero.offset)) for zero in zeros
            if zero.offset < virtual_bytes]


def _fill(daemon: StorageDaemon, base: Base, path: str, extents: Sequence[Extent],
          cluster_bytes: int, compression: Compression) -> None:
    # A CACHE request copies by itself what it reads. Below a copy-on-read filter the same is
    # written twice, which QEMU refuses for a cluster that is compressed. The other filter has all
    # that is written through it compressed, and wants whole clusters.
    filling = 'copy-on-read' if compression is Compression.NONE else 'compress'
    # QEMU compresses the clusters of a request beside each other, and stores first what is done
    # first. One at a time: the same working set makes the same bytes, which hosts have already.
    unit, most = (1, _REQUEST_BYTES) if compression is Compression.NONE \
        else (cluster_bytes, cluster_bytes)
    daemon.add_nodes(
        *base.nodes('base'),
        {'driver': 'file', 'node-name': 'cachef', 'filename': path},
        {'driver': 'qcow2', 'node-name': 'cache', 'file': 'cachef', 'backing': 'base',
         'read-only': False, 'l2-cache-size': 32 << 20},
        {'driver': filling, 'node-name': 'fill', 'file': 'cache'})
    # Writable, as a CACHE request to a read-only export aborts QEMU 7.2's daemon. Nothing writes.
    daemon.add_export('fill', 'fill', writable=True)
    daemon.add_export('base', 'base')
    handle = _connect(daemon, 'fill')
    original = _connect(daemon, 'base', status=True)
    try:
        for offset, length in workingset.pieces(extents, most):
            handle.cache(_whole(length, unit), offset)
        status = _zero_status(original, extents, cluster_bytes * (cluster_bytes // 8),
                              base.virtual_bytes)
        for area in cachelayout.zero_areas(status, extents, cluster_bytes, base.virtual_bytes):
            handle.zero(_whole(area.length, unit), area.offset)
        handle.flush()
    finally:
        handle.shutdown()
        original.shutdown()
    daemon.remove_export('fill', disconnect=True)
    daemon.remove_nodes('fill', 'cache', 'cachef')


def _compare(daemon: StorageDaemon, path: str, extents: Sequence[Extent]) -> None:
    """Read every extent from the cache image alone and from the base; they must be equal."""
    built, original = opened(daemon, 'done', path), _connect(daemon, 'base')
    try:
        for offset, length in workingset.pieces(extents, _REQUEST_BYTES):
            if built.pread(length, offset) != original.pread(length, offset):
                raise exception.BuildFailed(
                    f'the cache image differs from the base in {length} bytes at {offset}')
    finally:
        built.shutdown()
        original.shutdown()


def pad(path: str) -> None:
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
