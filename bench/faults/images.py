"""The images of a stage: made-up content, and what a boot of it does."""

import hashlib
import json
import random
import shutil
import subprocess
import uuid
from pathlib import Path
from typing import Any

from bench.faults.plan import Life
from bench.replay import trace
from bench.replay.trace import Request

MIB = 1 << 20
_SIZE = 24 * MIB
_PIECE = 65536
_BLOCK = 4096
MARKER = 'the guest has booted'


class Image:
    """One image's content, which any number of images have.

    :ivar raw: path of its bytes.
    :ivar size: of the disk.

    :param directory: where its files are made.
    :param seed: each gives another content.
    """

    def __init__(self, directory: Path, seed: int = 0):
        self.size = _SIZE
        self.raw, self._stored = directory / 'raw', directory / 'stored'
        with open(self.raw, 'wb') as stream:
            source = random.Random(seed)
            # It becomes smaller by compression, and no two blocks are the same.
            for _block in range((_SIZE - 4 * MIB) // _BLOCK):
                stream.write(source.randbytes(_BLOCK - 1024).ljust(_BLOCK, b'\0'))
            stream.truncate(_SIZE - MIB)
            stream.seek(_SIZE - MIB)
            stream.write(source.randbytes(MIB))
        subprocess.run(['qemu-img', 'convert', '-f', 'raw', '-O', 'qcow2', str(self.raw),
                        str(self._stored)], check=True)

    def register(self, glance: Path, life: Life) -> str:
        """Put an image of it into Glance, and return its id; raw in a life with Ceph."""
        image_id = str(uuid.uuid4())
        is_raw = life is Life.CEPH
        stored = self.raw if is_raw else self._stored
        shutil.copyfile(stored, glance / image_id)
        (glance / f'{image_id}.reads').write_text(json.dumps(
            [[one.offset, one.length] for one in boot(life) if one.op == trace.READ
             and not _is_missed(one)]))
        facts: dict[str, Any] = {
            'id': image_id, 'status': 'active', 'disk_format': 'raw' if is_raw else 'qcow2',
            'container_format': 'bare', 'size': stored.stat().st_size, 'os_hash_algo': 'sha512',
            'os_hash_value': hashlib.sha512(stored.read_bytes()).hexdigest(), 'min_ram': 0,
            'min_disk': 0, 'visibility': 'private', 'owner': 'tenant',
            'name': f'image-{image_id[:8]}', 'bootcache_boot_marker': MARKER}
        # As it is in Glance from now on.
        (glance / f'{image_id}.json').write_text(json.dumps(facts))
        return image_id


def _is_missed(one: Request) -> bool:
    """Tell whether a read is none of those that were recorded: it comes from the base."""
    return one.offset >= 16 * MIB


def boot(life: Life) -> list[Request]:
    """Return what a guest does as it boots; the same each time."""
    source = random.Random(life.value)
    pieces = 150 if life in (Life.ARRIVE, Life.EXCHANGE) else 32
    places = source.sample(range(16 * MIB // _PIECE), pieces)
    requests: list[Request] = []

    def add(op: str, offset: int, length: int) -> None:
        requests.append(Request(op, offset, length, len(requests) - 1, 0.0, 0.0))

    for number, place in enumerate(places):
        add(trace.READ, place * _PIECE, _PIECE)
        if number % 5 == 0:
            # Beyond what is recorded, zeros at times.
            add(trace.READ, 16 * MIB + source.randrange(8 * MIB // 4096 - 2) * 4096, 8192)
        if number % 7 == 0:
            # Less than what the overlay keeps apart: the rest of it is read from below.
            add(trace.WRITE, source.randrange(_SIZE // 512 - 8) * 512, 1536)
        if number % 11 == 0:
            add(trace.WRITE, source.randrange(_SIZE // 4096 - 4) * 4096, 16384)
            add(trace.FLUSH, 0, 0)
        if number % 13 == 0:
            # What was written is read.
            last = next(one for one in reversed(requests) if one.op == trace.WRITE)
            add(trace.READ, last.offset, last.length)
    return requests
