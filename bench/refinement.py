"""What repeated boots make of a working set: versions, and what another boot misses with each.

The first boot is recorded to an early marker only; later ones to the login prompt. Each is given to
bootcache/refinement.py as a host's report would be, each of another server on another host; one
more boot, which is never reported, is what the misses are counted of. Once the first boot counts as
cut short, as of a server that was deleted, which the next one completes; and once as a whole boot
of another kind, as on other hardware, which grows by what two boots confirm.
Bytes are exact. Run by ``tools/bench.sh refinement``.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.clusters import record
from bootcache import cacheimage, refinement, workingset
from bootcache.cacheimage import Base
from bootcache.refinement import Boot
from bootcache.workingset import Extent
from glance_bootcache import inspection

CLUSTER = 65536
GRANULARITY = 4096
QUOTA = 512 << 20
EARLY = 'Welcome to|Reached target .*sysinit'


def measure(base: Base, have: Sequence[Extent], judge: Sequence[Extent]) -> dict[str, int]:
    """Build a cache image, and count what a boot misses with it."""
    with tempfile.TemporaryDirectory() as directory:
        built = cacheimage.build(base, have, str(Path(directory, 'cache.qcow2')), quota=QUOTA,
                                 cluster_bytes=CLUSTER, backing_uri=None)
    held = workingset.align(have, CLUSTER, base.virtual_bytes)
    return {'working_set_bytes': workingset.total_bytes(have), 'cache_bytes': built.bytes,
            'missed_bytes': workingset.uncovered(judge, held)}


def learned(base: Base, early: Sequence[Extent], recorded_to: str,
            reported: Sequence[Sequence[Extent]],
            judge: Sequence[Extent]) -> list[dict[str, int]]:
    """Report boots one after another; versions, sizes and misses after each.

    :param recorded_to: what ended the first boot.
    """
    have = early
    earlier: list[Boot] = []
    rows = [{'boot': 0, 'version': 1, **measure(base, have, judge)}]
    for number, seen in enumerate(reported, 1):
        boot = Boot(f'server-{number}', f'host-{number}', number, number + 0.5, 'marker',
                    tuple(seen))
        lesson = refinement.learn(
            have, recorded_to, boot, earlier, only_host=False, quota=QUOTA, cluster_bytes=CLUSTER,
            granularity=GRANULARITY, virtual_bytes=base.virtual_bytes)
        version = rows[-1]['version'] + (lesson.extents is not None)
        if lesson.extents is not None:
            have, recorded_to, earlier = lesson.extents, 'marker', []
        elif lesson.unconfirmed is not None:
            earlier.append(lesson.unconfirmed)
        rows.append({'boot': number, 'version': version, **measure(base, have, judge)})
    return rows


def main() -> int:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('image', type=Path)
    parser.add_argument('--boots', type=int, default=3, help='whole boots that are reported')
    parser.add_argument('--report', type=Path, default=Path('bench-report/refinement.json'))
    options = parser.parse_args()
    inspected = inspection.inspect(str(options.image), 'qcow2')
    base = Base(str(options.image.absolute()), 'qcow2', inspected.virtual_bytes)
    early, = record(options.image, 1, '--marker', EARLY)
    *reported, judge = record(options.image, options.boots + 1)
    document = {'cluster_bytes': CLUSTER, 'quota': QUOTA, 'early_marker': EARLY,
                'judge_bytes': workingset.total_bytes(judge),
                **{f'rows_{recorded_to}': learned(base, early, recorded_to, reported, judge)
                   for recorded_to in ('shutdown', 'marker')}}
    options.report.parent.mkdir(parents=True, exist_ok=True)
    options.report.write_text(json.dumps(document, indent=1) + '\n')
    print(json.dumps(document, indent=1))
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
