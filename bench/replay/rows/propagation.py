"""Armstrong & Djemame, figures 3 and 4: a disk's way to its host.

Measured in a real cloud (rows/novacloud.py).
"""

import shutil
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.replay import figures, sums
from bench.replay.rows import bigimages, novacloud
from bench.replay.rows import propagationfigures as pictures
from bench.replay.rows.novacloud import COLD, PHASES, STOCK
from bench.replay.setting import GIGABIT, Journal, Setting

Line = dict[str, Any]
NAME = 'propagation'
TITLE = 'Propagation (Armstrong & Djemame, figures 3 and 4)'
# The cloud takes most of the time; its network has no limit, so the rate has no meaning here.
_IMAGE = 'sparse'
QUICK = Setting(False, GIGABIT, 1.0, 1, (_IMAGE,))
FULL = Setting(True, GIGABIT, 1.0, 2, (_IMAGE,))
# The disks of the images that are propagated, in the paper 3 to 21 GB.
_SIZES = {False: (1 << 30,), True: tuple(size << 30 for size in (3, 9, 15, 21))}
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
    wanted = _SIZES[setting.full]
    sizes = fitting(wanted, shutil.disk_usage('/tmp').free)
    journal = Journal(directory, NAME, {
        **setting.to_json([]), 'sizes': sizes, 'left_out': sorted({*wanted} - {*sizes})})
    for line in novacloud.measure(setting.repeats, sizes) if sizes else ():
        journal.keep({**line, 'image': _IMAGE},
                     f'{line["label"]:16} {line["virtual_bytes"] >> 20:6} MiB: '
                     + ', '.join(f'{name} {line[name]:.2f} s' for name in PHASES))


def _at(runs: Sequence[Line], way: str, size: int) -> list[Line]:
    return [one for one in runs if (one['label'], one['virtual_bytes']) == (way, size)]


def _by_repeat(those: Sequence[Line], name: str) -> dict[int, float]:
    return {one['repeat']: one[name] for one in those}


def _ratios(above: dict[int, float], below: dict[int, float]) -> list[float]:
    return [value / below[repeat] for repeat, value in above.items() if repeat in below]


def rows(head: dict[str, Any], runs: Sequence[Line]) -> list[Line]:
    """Return the report's rows: time until ACTIVE over stock Nova's of the same round. Pure."""
    found = []
    for way, size in dict.fromkeys((one['label'], one['virtual_bytes']) for one in runs):
        those = _at(runs, way, size)
        ratios = _ratios(_by_repeat(those, 'seconds'),
                         _by_repeat(_at(runs, STOCK, size), 'seconds'))
        if not ratios:
            continue

        def middle(name: str, those: list[Line] = those) -> float:
            return round(statistics.median(one[name] for one in those), 3)

        ratio, spread = sums.median_spread(ratios)
        found.append({
            'row': NAME, 'peer': way, 'hosts': 1, 'images': 1, 'ratio': ratio, 'spread': spread,
            'virtual_bytes': size, 'note': 'ratio: time until ACTIVE over stock Nova\'s',
            'base_bytes': middle('base_bytes_active'), 'cache_bytes': middle('cache_bytes_active'),
            'copied_bytes': middle('image_bytes'), 'run': head['run'],
            **{name: middle(name) for name in ('file_bytes', 'seconds', 'booted_seconds',
                                               'registration_seconds', *PHASES)}})
    return found


def _never_slower(head: dict[str, Any], runs: Sequence[Line], way: str,
                  sizes: Sequence[int]) -> Line:
    """Return the target that a way is nowhere slower than stock Nova, beyond the noise.

    The noise is the largest spread between rounds: of the ratio, or of either by itself; and no
    more than a quarter, as what differs by more cannot be told.
    """
    name = f'time until ACTIVE, {way}, over stock Nova, at worst'
    found = []
    for size in sizes:
        ours, stock = (_by_repeat(_at(runs, one, size), 'seconds') for one in (way, STOCK))
        if ratios := _ratios(ours, stock):
            value, spread = sums.median_spread(ratios)
            noise = max(spread, *((max(both.values()) - min(both.values()))
                                  / statistics.median(both.values()) for both in (ours, stock)))
            found.append((value, min(noise, _MOST_NOISE), noise, size, len(ratios)))
    if not found:
        return sums.target(head, name, 1.0, float('inf'), 'it was not measured')
    value, counted, noise, size, rounds = max(found, key=lambda one: one[0] - one[1])
    return sums.target(head, name, round(1 + counted, 4), value,
                       f'{size / (1 << 30):g} GiB, noise {noise:.4f} over {rounds} rounds')


def targets(head: dict[str, Any], runs: Sequence[Line]) -> list[Line]:
    """Judge this row's targets. Pure."""
    sizes = sorted({one['virtual_bytes'] for one in runs})
    return [*(_never_slower(head, runs, way, sizes) for way in novacloud.WAYS[1:]),
            *_told(head, runs, sizes)]


def _told(head: dict[str, Any], runs: Sequence[Line], sizes: Sequence[int]) -> Iterator[Line]:
    for way in dict.fromkeys(one['label'] for one in runs if len(sizes) > 1):
        means = [statistics.median(_by_repeat(_at(runs, way, size), 'transfer').values())
                 for size in sizes]
        yield sums.target(head, f'transfer of the largest image over that of the smallest, {way}',
                          None, round(means[-1] / means[0], 2),
                          f'{means[0]:.2f} s to {means[-1]:.2f} s')
    parts = [sum(one[name] for name in ('base_bytes_booted', 'cache_bytes_booted', 'image_bytes'))
             / one['file_bytes'] for one in _at(runs, COLD, sizes[-1])]
    if parts:
        yield sums.target(head, 'bytes to the host until the boot\'s end over the image file,'
                          f' {COLD}, largest image', None, round(max(parts), 4))


def intro(head: dict[str, Any]) -> str:
    """Say under which conditions it was measured. Pure."""
    setting = head['setting']
    sizes = ', '.join(f'{size / (1 << 30):g}' for size in setting['sizes'])
    left = ', '.join(f'{size / (1 << 30):g}' for size in setting['left_out'])
    return (
        f'Images of {sizes} GiB (3 to 21 GB in the paper'
        + (f'; the disk had no room for {left} GiB' if left else '')
        + ('' if len(setting['sizes']) > 1 else '; more need the full setting')
        + f'), every {bigimages.EVERY}th cluster noise, the rest unallocated, in a real cloud of'
        ' one host; each server is on a host that never had the image. There is no limit on the'
        ' network, in stock Nova\'s favour. Initial: request to the begin of the disk; transfer:'
        ' until the disk is made; terminal: until ACTIVE; as nova-compute logs it.')


def table(rows: list[Line]) -> tuple[list[str], list[list[Any]]]:
    """Return the table's columns and lines. Pure."""
    return (['image', 'way', 'ratio', 'spread', 'measured', 'base, MB', 'cache image, MB',
             'image, MB'],
            [[f'{row["virtual_bytes"] / (1 << 30):g} GiB, file {row["file_bytes"] / 1e6:.0f} MB',
              figures.name_of(row['peer']), row['ratio'], row['spread'],
              ', '.join(f'{name} {row[name]:.2f} s' for name in PHASES),
              *(f'{row[f"{kind}_bytes"] / 1e6:.1f}' for kind in ('base', 'cache', 'copied'))]
             for row in rows])


def draw(head: dict[str, Any], rows: list[Line], directory: Path) -> list[tuple[str, str]]:
    """Time over image size, and the phases' shares; names and captions."""
    made = [pictures.phases(rows, directory)] if rows else []
    if len({row['virtual_bytes'] for row in rows}) > 1:
        made.insert(0, pictures.sizes(rows, directory))
    return made
