"""YOLO figures 10 and 11: 1 to 16 servers on one host, of one image and of an image each."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.replay import figures
from bench.replay.rows import yolo, yolosums
from bench.replay.rows.yolo import FAST, SLOW, Point
from bench.replay.setting import BOTH, GIGABIT, Setting
from bootcache.cachelayout import Compression

NAME = 'many-servers'
TITLE = 'Many servers on one host (YOLO, figures 10 and 11)'
# Think times of guests under KVM, who boot in a second or two: those that were recorded ran under
# TCG. All servers share this machine's CPUs; where there are many the world is slowed down.
QUICK = Setting(False, GIGABIT, 0.15, 1, ('small',), (1, 4), compression=BOTH)
FULL = Setting(True, GIGABIT // 3, 0.45, 2, ('small',), (1, 4, 16), compression=BOTH)
# How much faster than a normal boot YOLO was at most (section V.B.3).
_FACTOR = 13
_TITLES = {False: 'one image', True: 'an image each'}


def points(full: bool, counts: Sequence[int],
           compression: Sequence[Compression] = BOTH) -> Iterator[Point]:
    """Give what is measured in a round: on the slow disk, then on the fast one. Pure.

    The fast disk has but its ends, as nothing is slow there, and only in full.
    """
    ends = {(max(counts), True), (1, False)}
    media = (SLOW, FAST) if full else (SLOW,)
    for medium, distinct, count in itertools.product(media, (False, True), counts):
        if count == 1 and distinct:
            continue
        if medium == FAST and (count, distinct) not in ends:
            continue
        labels = [yolo.NORMAL, yolo.YOLO, *yolo.ours(compression)]
        if not full and not distinct:
            labels = [label for label in labels if label not in (yolo.COLD, yolo.ZSTD_COLD)]
        if not distinct and count > 1:
            labels.insert(1, yolo.ONE_THEN_OTHERS)
        for label in labels:
            yield Point(label, medium, count, distinct)


def run(setting: Setting, directory: Path) -> None:
    """Measure, and leave the journal in the report's directory."""
    yolo.run(NAME, setting, directory, list(points(
        setting.full, setting.hosts, setting.compression)), max(setting.hosts))


def rows(head: dict[str, Any], runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the report's rows: the last server's boot over one normal boot's time. Pure."""
    return yolosums.rows(head, runs, 'one host; the time until the last server has booted')


def targets(head: dict[str, Any], runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Judge this row's targets. Pure."""
    worst = max((one for one in runs if one['label'] == yolo.NORMAL),
                key=lambda one: one['seconds'])
    where = f'{worst["servers"]} servers, {_TITLES[worst["distinct"]]}, {worst["medium"]}'
    return yolosums.targets(head, runs, worst, where, _FACTOR)


def draw(head: dict[str, Any], rows: list[dict[str, Any]],
         directory: Path) -> list[tuple[str, str]]:
    """Boot time over the number of servers, a figure for each disk and sharing."""
    made = []
    for medium, distinct in itertools.product((SLOW, FAST), (False, True)):
        mine = [row for row in rows if row['medium'] == medium
                and (row['distinct'] == distinct or row['servers'] == 1)]
        counts = sorted({row['servers'] for row in mine})
        if len(counts) < 2:
            continue
        figure, axes = figures.canvas(
            f'Servers of {_TITLES[distinct]} that boot at once on one host, {medium}',
            'servers', 'boot time / think time of the guest\'s CPU')
        axes.set_xscale('log', base=2)
        figures.logarithmic(axes)
        yolosums.lines(axes, head, mine, 'servers')
        axes.set_xticks(counts, [str(count) for count in counts])
        figure.legend(fontsize=7, loc='outside right upper')
        name = f'many-servers-{medium.split()[0]}-{"distinct" if distinct else "same"}.svg'
        figures.save(figure, directory / name)
        made.append((name, f'{medium.capitalize()}, {_TITLES[distinct]}. Lower is better; no guest'
                     ' boots below 1. Bars: spread over the rounds.'))
    return made


intro = yolosums.intro
table = yolosums.table
