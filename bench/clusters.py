"""Which clusters a cache image is to have: size, building, reading it, what other boots miss.

Records several direct profile boots of one image. From each, a cache image is built with each
cluster size and compression, all of it is read in its own order, and the bytes that the other
boots read beyond it are counted: exact figures but for the seconds, which are medians. Run by
``tools/bench.sh clusters``.
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bootcache import cacheimage, workingset
from bootcache.cacheimage import Base
from bootcache.cachelayout import CLUSTER_SIZES, Compression
from bootcache.workingset import Extent, WorkingSet
from glance_bootcache.storage import inspection

QUOTA = 2 << 30
BUILDS = 5
_REQUEST_BYTES = 512 << 10


def record(image: Path, count: int) -> list[list[Extent]]:
    """Record boots of an image with ``bootcache build``; their extents."""
    boots = []
    for number in range(count):
        with tempfile.TemporaryDirectory() as directory:
            output = Path(directory, 'cache.qcow2')
            subprocess.run([str(Path(sys.executable).with_name('bootcache')), 'build', str(image),
                            '--allow-tcg', '--memory', '512', '--quota', str(QUOTA),
                            '-o', str(output)], check=True, stdin=subprocess.DEVNULL,
                           stdout=subprocess.DEVNULL)
            boots.append(list(WorkingSet.load(f'{output}.working-set.json').extents))
        print(f'boot {number + 1}: {workingset.total_bytes(boots[-1]) / 1e6:.2f} MB',
              file=sys.stderr)
    return boots


def read_seconds(path: str, extents: Sequence[Extent]) -> float:
    """Return the seconds that it takes to read all that a cache image holds, in its own order.

    Out of the page cache, as the file was just built; qemu-io's own start is taken off.
    """
    def seconds(commands: Sequence[str]) -> float:
        began = time.monotonic()
        subprocess.run(['qemu-io', '-r', '-f', 'qcow2', path], check=True, text=True,
                       input='\n'.join([*commands, 'quit', '']), stdout=subprocess.DEVNULL)
        return time.monotonic() - began

    reads = [f'read -q {offset} {min(_REQUEST_BYTES, extent.end - offset)}' for extent in extents
             for offset in range(extent.offset, extent.end, _REQUEST_BYTES)]
    return seconds(reads) - seconds([])


def measure(base: Base, boots: list[list[Extent]], others: list[list[Extent]],
            cluster_bytes: int, compression: Compression) -> dict[str, object]:
    """Build from each boot, and count what the other boots, and ``others``, miss."""
    seconds, read, sizes, ratios = [], [], [], []
    missed = []
    with tempfile.TemporaryDirectory() as directory:
        for extents in boots:
            for _build in range(BUILDS):
                target = Path(directory, 'cache.qcow2')
                target.unlink(missing_ok=True)
                began = time.monotonic()
                built = cacheimage.build(base, extents, str(target), quota=QUOTA,
                                         cluster_bytes=cluster_bytes, backing_uri=None,
                                         compression=compression)
                seconds.append(time.monotonic() - began)
                read.append(read_seconds(str(target), built.extents))
            sizes.append(built.bytes)
            ratios.append(built.bytes / built.data_bytes)
        for first, second in [*itertools.permutations(boots, 2), *itertools.product(boots, others)]:
            held = workingset.align(first, cluster_bytes, base.virtual_bytes)
            missed.append(workingset.uncovered(second, held))
    return {'cluster_bytes': cluster_bytes, 'compression': compression.value,
            'cache_bytes': statistics.median(sizes),
            'bytes_to_data_bytes': round(statistics.median(ratios), 4),
            'build_seconds': round(statistics.median(seconds), 3),
            'build_seconds_spread': round(max(seconds) - min(seconds), 3),
            'read_seconds': round(statistics.median(read), 3),
            'read_seconds_spread': round(max(read) - min(read), 3),
            'missed_bytes_median': statistics.median(missed), 'missed_bytes_max': max(missed)}


def main() -> int:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('image', type=Path)
    parser.add_argument('--boots', type=int, default=3)
    parser.add_argument('--others', type=Path, nargs='*', default=[], metavar='FILE',
                        help='working sets of boots elsewhere, such as the demo\'s')
    parser.add_argument('--report', type=Path, default=Path('bench-report/clusters.json'))
    options = parser.parse_args()
    inspected = inspection.inspect(str(options.image), 'qcow2')
    base = Base(str(options.image.absolute()), 'qcow2', inspected.virtual_bytes)
    boots = record(options.image, options.boots)
    others = [list(WorkingSet.load(str(path)).extents) for path in options.others]
    rows = [measure(base, boots, others, cluster_bytes, compression)
            for compression in Compression for cluster_bytes in CLUSTER_SIZES]
    document = {'boots': len(boots), 'others': len(others), 'virtual_bytes': base.virtual_bytes,
                'working_set_bytes': [workingset.total_bytes(extents) for extents in boots],
                'clusters': rows}
    options.report.parent.mkdir(parents=True, exist_ok=True)
    options.report.write_text(json.dumps(document, indent=1) + '\n')
    print(json.dumps(document, indent=1))
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
