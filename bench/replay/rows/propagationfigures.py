"""What propagation draws: time over image size, and the phases' shares."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.replay import figures
from bench.replay.rows import bigimages, novacloud

Row = dict[str, Any]
_COLOURS = {novacloud.STOCK: '#8a1c1c', novacloud.FIRST: '#6fae8f', novacloud.COLD: '#0b6e4f'}
_NAMES = {novacloud.STOCK: 'stock Nova',
          novacloud.FIRST: 'bootcache, nobody has booted it yet',
          novacloud.COLD: 'bootcache, host fetches the cache image'}
_PHASES = {'initial': ('initial overhead: API, scheduler', '#c9d3e0'),
           'transfer': ('transfer: until the disk is made', '#3b5b92'),
           'terminal': ('terminal overhead: until ACTIVE', '#8f9bb0')}


def gibibytes(size: int) -> str:
    """Return a size as a figure has it. Pure."""
    return f'{size / (1 << 30):g}'


def _ways(rows: Sequence[Row]) -> list[str]:
    present = {row['peer'] for row in rows}
    return [way for way in novacloud.WAYS if way in present]


def sizes(rows: Sequence[Row], directory: Path) -> tuple[str, str]:
    """Draw the time until ACTIVE over the image's size; name and caption."""
    figure, axes = figures.canvas('From the request to ACTIVE, on a host without the image',
                                  'size of the image\'s disk, GiB;'
                                  f' 1/{bigimages.EVERY} of it is data',
                                  'seconds')
    for way in _ways(rows):
        mine = sorted((row for row in rows if row['peer'] == way),
                      key=lambda row: row['virtual_bytes'])
        axes.plot([row['virtual_bytes'] / (1 << 30) for row in mine],
                  [row['seconds'] for row in mine], color=_COLOURS[way], marker='o',
                  label=_NAMES[way])
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    figure.legend(fontsize=7, loc='outside right upper')
    figures.save(figure, directory / 'propagation-sizes.svg')
    return 'propagation-sizes.svg', (
        'Lower is better. Medians of the rounds; seconds of this machine, whose network has no'
        ' limit.')


def phases(rows: Sequence[Row], directory: Path) -> tuple[str, str]:
    """Draw what the time goes into, a bar each way and size; name and caption."""
    figure, axes = figures.canvas('What the time until ACTIVE goes into', 'seconds', '')
    bars = sorted(((row['virtual_bytes'], novacloud.WAYS.index(row['peer']), row)
                   for row in rows), key=lambda bar: bar[:2])
    labels = [f'{gibibytes(size)} GiB, {_NAMES[row["peer"]]}' for size, _way, row in bars]
    left = [0.0] * len(bars)
    for phase, (text, colour) in _PHASES.items():
        widths = [bar[2][phase] for bar in bars]
        axes.barh(range(len(bars)), widths, left=left, color=colour, label=text)
        left = [begin + width for begin, width in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(bars)), labels, fontsize=7)
    axes.invert_yaxis()
    axes.grid(False, axis='y')
    figure.legend(fontsize=7, loc='outside lower center', ncols=3)
    figures.save(figure, directory / 'propagation-phases.svg')
    return 'propagation-phases.svg', 'Phases as nova-compute logs them; medians of the rounds.'
