"""The picture of doc/source/exchange.rst: from whom hosts of two racks get pieces of one file.

usage: python -m bench.exchange.picture FILE.svg

Who is told of whom is asked of the storage service's own order, not drawn by hand.
"""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from bench.replay import figures
from glance_bootcache.exchange import offers
from glance_bootcache.exchange.offers import Member, Peer

_STORAGE: Peer = '192.0.2.1', 10811
_RACKS = 'A', 'B'
_HOSTS = 10
_COLOURS = {'storage': '#d95f02', 'rack': '#1b6ca8', 'between': '#7a7a7a'}
_LABELS = {'storage': 'from the storage node', 'rack': 'within a rack', 'between': 'between racks'}


@dataclasses.dataclass(frozen=True)
class Arrow:
    """Pieces that one gives to another.

    :ivar giver: the number of a host; 0 for the storage node.
    :ivar taker: likewise.
    :ivar kind: storage, rack or between.
    """

    giver: int
    taker: int
    kind: str


def arrows(racks: Sequence[str]) -> list[Arrow]:
    """Return who gives to whom, where hosts ask at the same time. Pure.

    :param racks: of the hosts, in the order in which they ask.
    """
    before: list[Member] = []
    found = []
    for taker, rack in enumerate(racks, 1):
        for address, _port in offers.predecessors(before, rack, _STORAGE):
            giver = 0 if address == _STORAGE[0] else int(address.rpartition('.')[2])
            kind = 'storage' if not giver else 'rack' if racks[giver - 1] == rack else 'between'
            found.append(Arrow(giver, taker, kind))
        before.append(Member(f'host-{taker}', (f'10.0.0.{taker}', 10811), rack, 1e9))
    return found


def draw(path: Path) -> None:
    """Draw it, as an SVG."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

    racks = [_RACKS[number % 2] for number in range(_HOSTS)]
    places = {0: (0.0, 0.0)}
    for number in range(1, _HOSTS + 1):
        places[number] = 1.9 + 1.55 * ((number - 1) // 2), 1.15 if number % 2 else -1.15
    figure, axes = figures.canvas(
        'Pieces of one file, for which ten hosts ask at once: the numbers are their order', '', '')
    figure.set_size_inches(9.0, 4.6)
    for row, y in zip(_RACKS, (1.15, -1.15), strict=True):
        axes.add_patch(FancyBboxPatch((1.2, y - 0.62), 7.7, 1.24, boxstyle='round,pad=0.06',
                                      facecolor='#f4f4f4', edgecolor='#cccccc'))
        axes.text(8.66, y, f'rack\n{row}', ha='center', va='center', fontsize=9, color='#555555')
    for arrow in arrows(racks):
        (from_x, from_y), (to_x, to_y) = places[arrow.giver], places[arrow.taker]
        # One that passes over a neighbour bends around it, away from the other rack.
        skips = arrow.kind == 'rack' and arrow.taker - arrow.giver > 2
        bend = (-0.42 if from_y > 0 else 0.42) if skips else 0.0
        axes.add_patch(FancyArrowPatch(
            (from_x, from_y), (to_x, to_y), arrowstyle='-|>', mutation_scale=13, linewidth=1.6,
            color=_COLOURS[arrow.kind], connectionstyle=f'arc3,rad={bend}',
            shrinkA=19 if arrow.giver else 27, shrinkB=19, zorder=2))
    for number, (x, y) in places.items():
        axes.scatter([x], [y], s=1700 if not number else 720, zorder=3, linewidths=1.4,
                     color='#fde7d5' if not number else '#ffffff',
                     edgecolors=_COLOURS['storage'] if not number else _COLOURS['rack'])
        axes.text(x, y, 'storage\nnode' if not number else str(number), ha='center', va='center',
                  fontsize=8 if not number else 11, zorder=4)
    axes.legend([Line2D([], [], color=_COLOURS[kind], linewidth=2) for kind in _LABELS],
                list(_LABELS.values()), loc='lower center', ncols=3, frameon=False, fontsize=9,
                bbox_to_anchor=(0.5, -0.09))
    axes.set_xlim(-0.7, 9.2)
    axes.set_ylim(-2.15, 2.05)
    axes.set_axis_off()
    axes.grid(False)
    figures.save(figure, path)


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('path', type=Path)
    draw(parser.parse_args().path)
