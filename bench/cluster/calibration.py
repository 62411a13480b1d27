"""The constants of the simulation: what they are, and where each was measured.

Those that this machine can tell in seconds are measured at each run; sizes are those of one real
Debian image, by the runs named. What describes an imagined cluster is an assumption, and called so.
"""

import dataclasses
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from bootcache import qemuimg, savefile

_REPEATS = 5
_HASHED_BYTES = 128 << 20


@dataclasses.dataclass(frozen=True)
class Constant:
    """A number, its unit and where it is from."""

    value: float
    unit: str
    source: str


# Its cache image was not compressed: what is sent of a compressed one is 0.45 times as much, what a
# host has of it once it is expanded the same.
_DEMO = 'tools/demo.sh --repeat 2 in November 2026, with [bootcache]compression = none'
# A real Debian 12 with systemd and cloud-init.
IMAGE_BYTES = Constant(675.0e6, 'bytes', f'{_DEMO}: to host, stock, first')
VIRTUAL_BYTES = Constant(2517e6, 'bytes', f'{_DEMO}: virtual size')
CACHE_BYTES = Constant(1933 * 65536, 'bytes', f'{_DEMO}: to host, bootcache, first; 126.69 MB, in'
                       ' whole clusters of 64 KiB')
BOOT_BYTES = Constant(106.84e6, 'bytes', f'{_DEMO}: read by the guest, stock, first')
BOOT_REQUESTS = Constant(2983, 'requests', 'one boot of it without a cache: requests to the base')
BOOT_SECONDS = Constant(41.3, 'seconds', f'{_DEMO}: ACTIVE to login, bootcache, again, mean of two;'
                        ' the guest\'s CPU is TCG\'s')
ARRIVAL_SECONDS = Constant(0.116, 'seconds', 'tools/bench.sh alternatives of 2026-11-21: until'
                           ' the disk was made, bootcache cold less bootcache warm')
# Guests of a real cloud run with KVM: an assumption, which most rows of doc/source/report make.
KVM_FASTER = 10


@dataclasses.dataclass(frozen=True)
class Measured:
    """What this machine took.

    :ivar overlay_seconds: to make a server's overlay on a cache image.
    :ivar hash_rate: bytes a second at which a cache image is verified.
    :ivar convert_rate: stored bytes a second at which an image is converted to raw, as Nova does.
    """

    overlay_seconds: float
    hash_rate: float
    convert_rate: float


def _median(action: Any, repeats: int = _REPEATS) -> float:
    found = []
    for _ in range(repeats):
        began = time.monotonic()
        action()
        found.append(time.monotonic() - began)
    return statistics.median(found)


def measure(image: Path) -> Measured:
    """Measure on this machine; some seconds.

    :param image: a real qcow2 image, for its conversion.
    """
    with tempfile.TemporaryDirectory() as directory:
        base, overlay = Path(directory, 'base'), Path(directory, 'overlay')
        qemuimg.create_standalone(str(base), 1 << 30, 65536)
        make = _median(lambda: qemuimg.create_overlay(
            str(overlay), 1 << 30, str(base), 'qcow2', cluster_bytes=128 << 10, subclusters=True))
        data = Path(directory, 'data')
        data.write_bytes(bytes(_HASHED_BYTES))
        digest = _median(lambda: savefile.file_digest(str(data)))
        raw = Path(directory, 'raw')
        node = {'driver': 'qcow2', 'file': {'driver': 'file', 'filename': str(image)}}
        convert = _median(lambda: qemuimg.copy_paced(
            node, str(raw), length=image.stat().st_size, rate=0, seconds=600,
            check=lambda: None), 3)
    return Measured(make, _HASHED_BYTES / digest, image.stat().st_size / convert)


def taken_from(constants: dict[str, dict[str, Any]]) -> Measured:
    """Return what was measured for an earlier report.

    :param constants: that report's, see :func:`describe`.
    """
    return Measured(*(constants[field.name]['value'] for field in dataclasses.fields(Measured)))


def describe(measured: Measured, image: Path) -> dict[str, dict[str, Any]]:
    """Return all constants for the report, by name."""
    here = f'this run, medians of {_REPEATS} on this machine'
    constants = {
        'image_bytes': IMAGE_BYTES, 'virtual_bytes': VIRTUAL_BYTES, 'cache_bytes': CACHE_BYTES,
        'boot_bytes': BOOT_BYTES, 'boot_requests': BOOT_REQUESTS,
        'boot_seconds': BOOT_SECONDS, 'arrival_seconds': ARRIVAL_SECONDS,
        'overlay_seconds': Constant(round(measured.overlay_seconds, 4), 'seconds',
                                    f'{here}: qemu-img create'),
        'hash_rate': Constant(round(measured.hash_rate), 'bytes a second',
                              f'{here}: sha256 of a file'),
        'convert_rate': Constant(
            round(measured.convert_rate), 'stored bytes a second',
            f'this run, median of 3 on this machine: qemu-img convert of {image.name}')}
    return {name: dataclasses.asdict(constant) for name, constant in constants.items()}
