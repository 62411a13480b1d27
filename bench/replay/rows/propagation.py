"""Armstrong & Djemame, figures 3 and 4, and the block I/O path: a disk's way to its host.

Propagation is measured in a real cloud (rows/novacloud.py), the block I/O path in a network of
one host (rows/iopath.py).
"""

import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.replay import figures, sums
from bench.replay.cluster import Cluster, cluster
from bench.replay.host import Image
from bench.replay.rows import bigimages, iopath, novacloud
from bench.replay.rows import propagationfigures as pictures
from bench.replay.rows.iopath import (
    AGAIN,
    ARRIVED,
    FIRST,
    INSIDE,
    ON_DEMAND,
    OUTSIDE,
    PATHS,
    RAW,
    READ,
    SEQUENTIAL,
    SETTLED,
    WORKLOADS,
)
from bench.replay.rows.iopath import STOCK as OVERLAY
from bench.replay.rows.novacloud import COLD, PHASES, STOCK
from bench.replay.setting import GIGABIT, Journal, Setting
from bootcache.workingset import Extent

Line = dict[str, Any]
NAME = 'propagation'
TITLE = 'Propagation and the block I/O path (Armstrong & Djemame, figures 3 and 4)'
QUICK = Setting(False, GIGABIT, 1.0, 2, ('noise',))
FULL = Setting(True, GIGABIT, 1.0, 5, ('noise',))
# The disks of the images that are propagated, in the paper 3 to 21 GB, and the rounds of that. In
# quick mode the cloud takes most of the time.
_SIZES = {False: (1 << 30,), True: tuple(size << 30 for size in (3, 9, 15, 21))}
_ROUNDS = {False: 1, True: 2}
# Of a workload that reads: seconds; of one that writes: bytes.
_SECONDS = {False: 0.3, True: 4.0}
_WRITES = {False: 8 << 20, True: 32 << 20}
# Of the free disk space, what is left to others.
_SPARED = 10 << 30
_MOST_NOISE = 0.25


def fitting(sizes: Sequence[int], free: int) -> list[int]:
    """Return the sizes for which there is room on the disk, all at the same time. Pure.

    :param free: bytes.
    """
    found: list[int] = []
    for size in sorted(sizes):
        if bigimages.needed_bytes([*found, size]) + _SPARED <= free:
            found.append(size)
    return found


def run(setting: Setting, directory: Path) -> None:
    """Measure, and leave the journal in the report's directory."""
    full = setting.full
    sizes = fitting(_SIZES[full], shutil.disk_usage('/tmp').free)
    journal = Journal(directory, NAME, {
        **setting.to_json([]), 'sizes': sizes, 'left_out': sorted({*_SIZES[full]} - {*sizes}),
        'propagation_rounds': _ROUNDS[full], 'seconds': _SECONDS[full], 'writes': _WRITES[full]})
    for line in _io_path(setting):
        journal.keep(line, f'{line["label"]:34} {line["workload"]:24} {line["iops"]:9.0f} a second')
    for line in novacloud.measure(_ROUNDS[full], sizes) if sizes else ():
        journal.keep({**line, 'image': 'sparse'},
                     f'{line["label"]:16} {line["virtual_bytes"] >> 20:6} MiB: '
                     + ', '.join(f'{name} {line[name]:.2f} s' for name in PHASES))


def _io_path(setting: Setting) -> Iterator[Line]:
    scratch = Path(tempfile.mkdtemp(prefix='bcr-noise-', dir='/tmp'))
    try:
        iopath.make_image(scratch / 'image')
        with cluster(1, setting.rate, dilation=setting.dilation) as made:
            image = made.add_image(scratch / 'image', 'raw', iopath.IMAGE_BYTES,
                                   [Extent(0, iopath.PART)])
            for repeat in range(setting.repeats):
                for line in _all_paths(made, image, setting.full, repeat % 2 == 1):
                    yield {**line, 'repeat': repeat}
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _all_paths(made: Cluster, image: Image, full: bool, backwards: bool) -> Iterator[Line]:
    try:
        made.everywhere(1, iopath.prepare, image)
        for workload in WORKLOADS:
            for path in reversed(PATHS) if backwards else PATHS:
                made.traffic()
                found = made.everywhere(1, iopath.measure, path, workload, _SECONDS[full],
                                        _WRITES[full])[0]
                base = made.traffic().get('base')
                yield {'part': 'io', 'label': path, 'workload': workload, **found,
                       'base_bytes': base.bytes if base else 0}
    finally:
        made.reset(1)


def _by_repeat(runs: Sequence[Line], chosen: Callable[[Line], bool],
               name: str) -> dict[int, float]:
    return {one['repeat']: one[name] for one in runs if chosen(one)}


def _ratios(above: dict[int, float], below: dict[int, float]) -> list[float]:
    return [value / below[repeat] for repeat, value in above.items() if repeat in below]


def _is(part: str, label: str, what: Any) -> Callable[[Line], bool]:
    """Return whether a line is of a path with a workload, or of a way with a size."""
    key = 'workload' if part == 'io' else 'virtual_bytes'
    return lambda one: (one['part'], one['label'], one.get(key)) == (part, label, what)


def _middle(those: Sequence[Line], name: str) -> float:
    return statistics.median(one.get(name, 0) for one in those)


def rows(head: dict[str, Any], runs: Sequence[Line]) -> list[Line]:
    """Return the report's rows. Pure.

    Of the block I/O path: throughput over the raw disk's; of propagation: time until ACTIVE over
    stock Nova's. Both of the same round.
    """
    found = []
    points = dict.fromkeys((one['part'], one['label'],
                            one.get('workload') or one.get('virtual_bytes')) for one in runs)
    for part, label, what in points:
        those = [one for one in runs if _is(part, label, what)(one)]
        name, reference = ('iops', RAW) if part == 'io' else ('seconds', STOCK)
        ratios = _ratios(_by_repeat(those, lambda _one: True, name),
                         _by_repeat(runs, _is(part, reference, what), name))
        if not ratios:
            continue
        ratio, spread = sums.median_spread(ratios)
        row = {'row': NAME, 'peer': label, 'part': part, 'hosts': 1, 'images': 1, 'ratio': ratio,
               'spread': spread, 'run': head['run']}
        if part == 'io':
            row |= {'workload': what, 'base_bytes': _middle(those, 'base_bytes'),
                    'note': 'ratio: throughput over the raw disk\'s',
                    **{key: _middle(those, key)
                       for key in ('iops', 'bytes_per_second', 'latency_seconds',
                                   'cpu_seconds')}}
        else:
            row |= {'virtual_bytes': what, 'note': 'ratio: time until ACTIVE over stock Nova\'s',
                    'base_bytes': _middle(those, 'base_bytes_active'),
                    'cache_bytes': _middle(those, 'cache_bytes_active'),
                    'copied_bytes': _middle(those, 'image_bytes'),
                    **{key: round(_middle(those, key), 3)
                       for key in ('file_bytes', 'seconds', 'booted_seconds',
                                   'registration_seconds', *PHASES)}}
        found.append(row)
    return found


def _worst(head: dict[str, Any], name: str, pairs: Sequence[tuple[str, dict[int, float],
                                                                  dict[int, float]]],
           why: str = '') -> Line:
    """Return the target that something is nowhere slower than something else, beyond the noise.

    The noise is the largest spread between rounds: of the ratio, or of either by itself; and no
    more than a quarter, as what differs by more cannot be told.

    :param pairs: at each point, its name and the times of both by rounds.
    :param why: what is known of the cause, if it is missed.
    """
    found = []
    for where, ours, other in pairs:
        if ratios := _ratios(ours, other):
            value, spread = sums.median_spread(ratios)
            noise = max(spread, *((max(both.values()) - min(both.values()))
                                  / statistics.median(both.values()) for both in (ours, other)))
            found.append((value, min(noise, _MOST_NOISE), noise, where, len(ratios)))
    if not found:
        return sums.target(head, name, 1.0, float('inf'), 'it was not measured')
    value, counted, noise, where, rounds = max(found, key=lambda one: one[0] - one[1])
    judged = sums.target(head, name, round(1 + counted, 4), value,
                         f'{where}, noise {noise:.4f} over {rounds} rounds')
    if why and not judged['met']:
        judged['reason'] += f'; {why}'
    return judged


_NEAR = ('it was started while the cache image came, and reads through the gateway until it has'
         ' settled')
_FAR = ('each such request crosses the network; a working set is there to have few of them until'
        ' the server has settled')


def _rates(runs: Sequence[Line], label: str, workload: str) -> str:
    """Return what a path did in each round, and its CPU time: what there is to tell it by."""
    those = [one for one in runs if _is('io', label, workload)(one)]
    rates = ', '.join(f'{one["iops"]:.0f}' for one in those)
    return (f'; {label}: {rates} a second in the rounds, CPU'
            f' {_middle(those, "cpu_seconds") * 1e6:.0f} µs each')


def _io_targets(head: dict[str, Any], runs: Sequence[Line]) -> Iterator[Line]:
    reads, writes = ('reads', (READ, SEQUENTIAL)), ('writes', (FIRST, AGAIN))
    for ours, other, why in ((INSIDE, OVERLAY, ''), (SETTLED, OVERLAY, ''),
                             (ARRIVED, OVERLAY, _NEAR), (OUTSIDE, OVERLAY, _FAR),
                             (OUTSIDE, ON_DEMAND, '')):
        for kind, workloads in (reads, writes):
            judged = _worst(head, f'time of {kind}, {ours}, over {other}, at worst', [
                (workload, *({repeat: 1 / value for repeat, value in _by_repeat(
                    runs, _is('io', label, workload), 'iops').items()}
                    for label in (ours, other)))
                for workload in workloads], why if kind == 'reads' else '')
            if not judged['met']:
                judged['reason'] += ''.join(_rates(runs, label, workload) for workload in workloads
                                            if judged['reason'].startswith(f'{workload}, ')
                                            for label in (ours, other))
            yield judged
    for path in (INSIDE, SETTLED, ARRIVED):
        for workload in WORKLOADS:
            ours, other = (_middle([one for one in runs if _is('io', label, workload)(one)],
                                   'cpu_seconds') for label in (path, OVERLAY))
            if other:
                yield sums.target(head, f'CPU of a {workload}, {path}, over {OVERLAY}', None,
                                  round(ours / other, 3), f'{ours * 1e6:.0f} µs a request')
    for path in (INSIDE, ARRIVED, SETTLED):
        yield sums.target(head, f'bytes of the base, {path}', 0,
                          sum(one['base_bytes'] for one in runs if one['label'] == path))


def _propagation_targets(head: dict[str, Any], runs: Sequence[Line]) -> Iterator[Line]:
    sizes = sorted({one['virtual_bytes'] for one in runs})
    for way in novacloud.WAYS[1:]:
        yield _worst(head, f'time until ACTIVE, {way}, over stock Nova, at worst', [
            (f'{size / (1 << 30):g} GiB',
             *(_by_repeat(runs, _is('propagation', label, size), 'seconds')
               for label in (way, STOCK))) for size in sizes])
    for way in dict.fromkeys(one['label'] for one in runs if len(sizes) > 1):
        means = [statistics.median(_by_repeat(runs, _is('propagation', way, size),
                                              'transfer').values()) for size in sizes]
        yield sums.target(head, f'transfer of the largest image over that of the smallest, {way}',
                          None, round(means[-1] / means[0], 2),
                          f'{means[0]:.2f} s to {means[-1]:.2f} s')
    parts = [sum(one[name] for name in ('base_bytes_booted', 'cache_bytes_booted', 'image_bytes'))
             / one['file_bytes'] for one in runs
             if (one['label'], one['virtual_bytes']) == (COLD, sizes[-1])]
    if parts:
        yield sums.target(head, 'bytes to the host until the boot\'s end over the image file,'
                          f' {COLD}, largest image', None, round(max(parts), 4))


def targets(head: dict[str, Any], runs: Sequence[Line]) -> list[Line]:
    """Judge this row's targets. Pure."""
    parts = {part: [one for one in runs if one['part'] == part] for part in ('io', 'propagation')}
    return [*(_io_targets(head, parts['io']) if parts['io'] else ()),
            *(_propagation_targets(head, parts['propagation']) if parts['propagation'] else ())]


def intro(head: dict[str, Any]) -> str:
    """Say under which conditions it was measured. Pure."""
    setting = head['setting']
    sizes = ', '.join(f'{size / (1 << 30):g}' for size in setting['sizes'])
    left = ', '.join(f'{size / (1 << 30):g}' for size in setting['left_out'])
    return (
        f'Propagation: images of {sizes} GiB (3 to 21 GB in the paper'
        + (f'; the disk had no room for {left} GiB' if left else '')
        + ('' if len(setting['sizes']) > 1 else '; more need the full setting')
        + f'), every {bigimages.EVERY}th cluster noise, the rest unallocated;'
        f' {setting["propagation_rounds"]} rounds in a real cloud of one host, each server on a'
        ' host that never had the image. There is no limit on the network, in stock Nova\'s favour.'
        ' Initial: request to the begin of the disk; transfer: until the disk is made; terminal:'
        ' until ACTIVE; as nova-compute logs it.'
        ' Block I/O path: fio over NBD, 4k at depth 16, 1M at depth 4,'
        f' {setting["seconds"]:g} s a read, {setting["writes"] / 1e6:.1f} MB a write, files in'
        f' memory; the network has {setting["rate"] / 1e6:.0f} Mbit/s, where it is used. CPU: that'
        ' of the daemon that stands for QEMU and of the gateway.')


def table(rows: list[Line]) -> tuple[list[str], list[list[Any]]]:
    """Return the table's columns and lines. Pure."""
    def measured(row: Line) -> str:
        if row['part'] == 'io':
            return (f'{row["iops"]:.0f} a second, {row["bytes_per_second"] / 1e6:.1f} MB/s,'
                    f' CPU {row["cpu_seconds"] * 1e6:.0f} µs each')
        return ', '.join(f'{name} {row[name]:.2f} s' for name in PHASES)

    def what(row: Line) -> str:
        return row['workload'] if row['part'] == 'io' else \
            f'{row["virtual_bytes"] / (1 << 30):g} GiB, file {row["file_bytes"] / 1e6:.0f} MB'

    return (['workload or image', 'way', 'ratio', 'spread', 'measured', 'base, MB',
             'cache image, MB', 'image, MB'],
            [[what(row), figures.name_of(row['peer']), row['ratio'], row['spread'], measured(row),
              *(f'{row.get(f"{kind}_bytes", 0) / 1e6:.1f}' for kind in ('base', 'cache',
                                                                        'copied'))]
             for row in rows])


def draw(head: dict[str, Any], rows: list[Line], directory: Path) -> list[tuple[str, str]]:
    """Time over image size, the phases' shares, and the I/O path; names and captions."""
    made = []
    moved = [row for row in rows if row['part'] == 'propagation']
    if moved:
        made.append(pictures.phases(moved, directory))
        if len({row['virtual_bytes'] for row in moved}) > 1:
            made.insert(0, pictures.sizes(moved, directory))
    if any(row['part'] == 'io' for row in rows):
        made.append(pictures.paths([row for row in rows if row['part'] == 'io'], directory))
    return made
