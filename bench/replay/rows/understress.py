"""YOLO figures 12 and 13: one server boots while the host's disk or memory is under stress."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.replay import figures
from bench.replay.rows import yolo, yolosums
from bench.replay.rows.yolo import DISK_STRESS, MEMORY_STRESS, SLOW, Point
from bench.replay.setting import BOTH, GIGABIT, Setting
from bootcache.cachelayout import Compression

NAME = 'under-stress'
TITLE = 'One server on a host under stress (YOLO, figures 12 and 13)'
# As in manyservers: think times of guests under KVM.
QUICK = Setting(False, GIGABIT, 0.15, 1, ('small',), compression=BOTH)
FULL = Setting(True, GIGABIT // 2, 0.3, 3, ('small',), compression=BOTH)
# Requests that fio always has under way, and MiB of memory that stress-ng leaves.
_JOBS = {False: (4,), True: (1, 4, 15)}
_LEFT = {False: (48,), True: (128, 64, 48)}
# How much faster than a normal boot YOLO was (section V.C.1).
_FACTOR = 5
# Of ways that share a colour with another one.
_HATCHES = {yolo.MEMORY: '//', yolo.COLD: '..', yolo.ZSTD_MEMORY: '//', yolo.ZSTD_COLD: '..',
            yolo.EXPANDED: 'xx'}


def points(full: bool, compression: Sequence[Compression] = BOTH) -> Iterator[Point]:
    """Give what is measured in a round: all ways, under more and more stress. Pure."""
    levels = [('', 0), *((DISK_STRESS, jobs) for jobs in _JOBS[full]),
              *((MEMORY_STRESS, left) for left in _LEFT[full])]
    for stress, level in levels:
        for label in (yolo.NORMAL, yolo.YOLO, *yolo.ours(compression)):
            # What is fetched is written to the very disk that is under stress: it takes long.
            if label in (yolo.COLD, yolo.ZSTD_COLD) and stress and not full:
                continue
            yield Point(label, SLOW, 1, False, stress, level)


def run(setting: Setting, directory: Path) -> None:
    """Measure, and leave the journal in the report's directory."""
    yolo.run(NAME, setting, directory, list(points(
        setting.full, setting.compression)), 1, stressed=True)


def rows(head: dict[str, Any], runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the report's rows: boot times over a normal boot's without stress. Pure."""
    return yolosums.rows(head, runs, 'one server on one host; level: requests that fio has under'
                         ' way, or MiB of memory that stress-ng leaves')


def targets(head: dict[str, Any], runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Judge this row's targets. Pure."""
    worst = max((one for one in runs if one['label'] == yolo.NORMAL),
                key=lambda one: one['seconds'])
    where = f'{worst["stress"] or "no stress"} x{worst["level"]}'
    return yolosums.targets(head, runs, worst, where, _FACTOR)


def draw(head: dict[str, Any], rows: list[dict[str, Any]],
         directory: Path) -> list[tuple[str, str]]:
    """Boot time under each stress, as bars beside each other; names and captions."""
    think = head['setting']['think_seconds']
    made = []
    for stress, name, across in (
            (DISK_STRESS, 'disk', 'requests that fio has always under way on the host\'s disk'),
            (MEMORY_STRESS, 'memory', 'MiB of memory that stress-ng leaves to the host')):
        mine = [row for row in rows if row['stress'] in ('', stress)]
        levels = sorted({row['level'] for row in mine if row['stress']},
                        reverse=stress == MEMORY_STRESS)
        if not levels:
            continue
        figure, axes = figures.canvas(f'One server boots on a host whose {name} is under stress',
                                      across, 'boot time / think time of the guest\'s CPU')
        peers = figures.order(row['peer'] for row in mine)
        width = 0.8 / len(peers)
        for number, peer in enumerate(peers):
            # Not all were measured under all stress.
            chosen = [row for row in mine if row['peer'] == peer]
            axes.bar([(0, *levels).index(row['level']) + (number + 0.5) * width - 0.4
                      for row in chosen],
                     [row['seconds'] / think for row in chosen], width,
                     yerr=[row['spread'] / row['ratio'] * row['seconds'] / think / 2
                           for row in chosen],
                     capsize=2, color=figures.style(peer)[0], label=figures.name_of(peer),
                     alpha=0.55 if peer in _HATCHES else 1, hatch=_HATCHES.get(peer))
        axes.set_xticks(range(len(levels) + 1), ['no stress', *map(str, levels)])
        axes.axhline(1, color='black', linewidth=0.8, linestyle=':')
        figure.legend(fontsize=7, loc='outside right upper')
        figures.save(figure, directory / f'under-stress-{name}.svg')
        made.append((f'under-stress-{name}.svg', 'Lower is better; no guest boots below 1. Bars:'
                     ' spread over the rounds.'))
    return made


intro = yolosums.intro
table = yolosums.table
