"""What is in images and cache images, and what would make them smaller: measured, not built.

Compression in one stream is that of the zstd program at its default level. Chunks are of fixed
size, at multiples of it within the image, and are the same if their sha256 is.
"""

import hashlib
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bootcache import cacheimage, cachelayout, qemuimg, workingset
from bootcache.cacheimage import Base, CacheImage
from bootcache.cachelayout import Compression
from bootcache.workingset import Extent

ZSTD_LEVEL = 3
CHUNKS = 4096, 65536
# No quota.
_QUOTA = 1 << 40
_START = 2 << 20


class ContentsError(Exception):
    """An image's content cannot be told."""


def used_bytes(start: bytes) -> int:
    """Return what files and directories take in a disk's first partition. Pure.

    Tables and journal, which an empty file system has as well, do not count.

    :param start: the disk's first 2 MiB.
    :raises ContentsError: if there is no partition with an ext4 file system.
    """
    if start[510:512] != b'\x55\xaa':
        raise ContentsError('the disk has no partition table of the DOS kind')
    first = struct.unpack_from('<I', start, 446 + 8)[0] * 512 + 1024
    block = start[first:first + 1024]
    if len(block) < 1024 or struct.unpack_from('<H', block, 56)[0] != 0xef53:
        raise ContentsError('the first partition has no ext4 file system')
    blocks, _reserved, free = struct.unpack_from('<III', block, 4)
    blocks += struct.unpack_from('<I', block, 0x150)[0] << 32
    free += struct.unpack_from('<I', block, 0x158)[0] << 32
    overhead = struct.unpack_from('<I', block, 0x248)[0]
    block_bytes = 1024 << struct.unpack_from('<I', block, 24)[0]
    return int(blocks - free - overhead) * block_bytes


def disk_start(image: Path, scratch: Path) -> bytes:
    """Return the first 2 MiB of a qcow2 image's disk."""
    target = scratch / 'start'
    subprocess.run(['qemu-img', 'dd', '-f', 'qcow2', '-O', 'raw', f'bs={_START}', 'count=1',
                    f'if={image}', f'of={target}'], check=True, stdin=subprocess.DEVNULL)
    found = target.read_bytes()
    target.unlink()
    return found


def data_of(entries: Sequence[dict[str, Any]]) -> list[tuple[int, Extent]]:
    """Return where a qcow2 file's data is: place in the file and extent, by place. Pure.

    :param entries: as ``qemu-img map`` gives them.
    """
    return sorted(((one['offset'], Extent(one['start'], one['length'])) for one in entries
                   if one['data'] and not one['zero'] and 'offset' in one),
                  key=lambda found: found[0])


def read_data(cache: Path) -> bytes:
    """Return the data that a cache image without a backing pointer holds, in its own order."""
    pieces = []
    with open(cache, 'rb') as stream:
        for place, extent in data_of(qemuimg.allocation_map(str(cache))):
            stream.seek(place)
            # The last cluster of the file may be short.
            pieces.append(stream.read(extent.length).ljust(extent.length, b'\0'))
    return b''.join(pieces)


def zstd_version() -> str:
    """Return which zstd compresses here, and how.

    :raises ContentsError: if there is none.
    """
    if shutil.which('zstd') is None:
        raise ContentsError('the program zstd is missing; install Debian\'s package zstd')
    told = subprocess.run(['zstd', '-q', '-V'], check=True, text=True, capture_output=True)
    return f'zstd {told.stdout.split()[-1].strip("v,")}, level {ZSTD_LEVEL}, one stream'


def zstd_bytes(data: bytes) -> int:
    """Return how many bytes zstd makes of data in one stream; 0 for none."""
    if not data:
        return 0
    made = subprocess.run(['zstd', '-q', f'-{ZSTD_LEVEL}', '-T1', '-c'], check=True, input=data,
                          capture_output=True)
    return len(made.stdout)


class Store:
    """Chunks of one size that have been seen, each once.

    :param chunk_bytes: bytes of a chunk; the last of an image may be shorter.
    """

    def __init__(self, chunk_bytes: int):
        self.chunk_bytes = chunk_bytes
        self._seen: set[bytes] = set()

    def add(self, data: bytes) -> bytes:
        """Take in data, and return of it what was not there before, in its order."""
        new = []
        for start in range(0, len(data), self.chunk_bytes):
            piece = data[start:start + self.chunk_bytes]
            digest = hashlib.sha256(piece).digest()
            if digest not in self._seen:
                self._seen.add(digest)
                new.append(piece)
        return b''.join(new)


def measure(image: Path, virtual_bytes: int, extents: Sequence[Extent],
            stores: Sequence[Store]) -> dict[str, Any]:
    """Build an image's cache image as the storage service does, and measure it; the file goes.

    :param extents: what a boot reads, in first-read order.
    :param stores: take in its data, after that of the images before it.
    :returns: bytes, by what they are of; ``new``: for each chunk size, of chunks that no earlier
        image's cache image has, ``new_zstd`` these compressed.
    """
    scratch = Path(tempfile.mkdtemp(prefix='bcr-contents-', dir=image.parent))
    try:
        def build(name: str, compression: Compression) -> CacheImage:
            return cacheimage.build(
                Base(str(image), 'qcow2', virtual_bytes), extents, str(scratch / name),
                quota=_QUOTA, cluster_bytes=cachelayout.DEFAULT_CLUSTER_BYTES, backing_uri=None,
                compression=compression)

        plain = build('plain', Compression.NONE)
        built = build('cache', cachelayout.DEFAULT_COMPRESSION)
        data = read_data(scratch / 'plain')
        found: dict[str, Any] = {
            'image_bytes': image.stat().st_size, 'virtual_bytes': virtual_bytes,
            'used_bytes': used_bytes(disk_start(image, scratch)),
            'working_set_bytes': workingset.total_bytes(extents),
            'cache_bytes': built.bytes, 'plain_bytes': plain.bytes, 'data_bytes': len(data),
            'extents': len(extents), 'zstd_bytes': zstd_bytes(data), 'new': {}, 'new_zstd': {}}
        for store in stores:
            new = store.add(data)
            found['new'][str(store.chunk_bytes)] = len(new)
            found['new_zstd'][str(store.chunk_bytes)] = zstd_bytes(new)
        return found
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
