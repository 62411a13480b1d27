"""The figures of the report: small SVG files that say by themselves what they show."""

from pathlib import Path
from typing import Any

_STYLES = {
    'bootcache warm': ('#0b6e4f', 'o', '-'), 'bootcache cold': ('#0b6e4f', 's', '--'),
    'bootcache first': ('#6fae8f', 'v', ':'), 'SC13 warm': ('#c75000', 'o', '-'),
    'SC13 cold': ('#c75000', 's', '--'), 'on demand': ('#3b5b92', '^', '-'),
    'full copy': ('#8a1c1c', 'x', '-'), 'local raw': ('#777777', '.', '-')}
_NAMES = {
    'bootcache warm': 'bootcache, host has the cache image',
    'bootcache cold': 'bootcache, host fetches the cache image',
    'bootcache first': 'bootcache, nobody has booted it yet',
    'SC13 warm': 'SC13 as published, warm', 'SC13 cold': 'SC13 as published, cold',
    'on demand': 'qcow2 over NBD, nothing kept', 'full copy': 'stock Nova, whole image copied',
    'local raw': 'full local base'}


def _canvas(title: str, across: str, up: str) -> tuple[Any, Any]:
    import matplotlib
    matplotlib.use('svg')
    # The same data gives the same file, and text stays text.
    matplotlib.rcParams.update({'svg.hashsalt': 'bootcache', 'svg.fonttype': 'none',
                                'font.size': 9})
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(figsize=(8.5, 3.8), layout='constrained')
    axes.set(title=title, xlabel=across, ylabel=up)
    axes.grid(True, alpha=0.3)
    return figure, axes


def _save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot
    figure.savefig(path, metadata={'Date': None})
    pyplot.close(figure)


def _line(axes: Any, peer: str, points: list[tuple[float, float, float]], name: str = '') -> None:
    colour, marker, dashes = _STYLES[peer]
    xs, ys, spreads = zip(*sorted(points), strict=True)
    axes.errorbar(xs, ys, [spread / 2 for spread in spreads], color=colour, marker=marker,
                  linestyle=dashes, capsize=2, label=name or _NAMES[peer])


def row1(head: dict[str, Any], rows: list[dict[str, Any]],
         directory: Path) -> list[tuple[str, str]]:
    """Boot time over the number of hosts, one figure an image; names and captions."""
    made = []
    for image in sorted({row['image'] for row in rows}):
        figure, axes = _canvas(f'Boot time when many hosts start servers of one image ({image})',
                               'hosts that start a server at the same time',
                               'boot time / that of a full local base')
        axes.set_xscale('log', base=2)
        axes.set_yscale('log')
        for which in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            which('{x:g}')
        mine = [row for row in rows if row['image'] == image]
        for peer in _STYLES:
            points = [(row['hosts'], row['ratio'], row['spread']) for row in mine
                      if row['peer'] == peer]
            if points:
                _line(axes, peer, points)
        counts = sorted({row['hosts'] for row in mine})
        axes.set_xticks(counts, [str(count) for count in counts])
        figure.legend(fontsize=7, loc='outside right upper')
        _save(figure, directory / f'row1-{image}.svg')
        made.append((f'row1-{image}.svg', 'Lower is better. Bars: spread over the rounds.'))
    return made


def _cost(row: dict[str, Any], base: dict[str, Any], kind: str) -> tuple[float, float]:
    """Return what a boot costs, and the spread of that."""
    if kind == 'time':
        return row['ratio'], row['spread']
    return (row['base_bytes'] + row['cache_bytes']) / base['base_bytes'], 0.0


def row3(head: dict[str, Any], rows: list[dict[str, Any]],
         directory: Path) -> list[tuple[str, str]]:
    """Boot time and bytes over the quota, one figure each an image; names and captions."""
    made = []
    for image in sorted({row['image'] for row in rows}):
        mine = [row for row in rows if row['image'] == image]
        base = next(row for row in mine if row['peer'] == 'on demand')
        for kind, up in (('time', 'boot time / on demand'),
                         ('bytes', 'bytes from the storage node / on demand')):
            figure, axes = _canvas(f'What a quota costs, one host ({image})',
                                   'quota / what the boot reads', up)
            for peer in ('bootcache warm', 'bootcache cold', 'SC13 warm', 'SC13 cold'):
                sizes = sorted({row['cluster_bytes'] for row in mine if row['peer'] == peer})
                for number, size in enumerate(sizes):
                    points = [(row['part'], *_cost(row, base, kind)) for row in mine
                              if row['peer'] == peer and row['cluster_bytes'] == size]
                    colour, marker, dashes = _STYLES[peer]
                    xs, ys, spreads = zip(*sorted(points), strict=True)
                    axes.errorbar(xs, ys, [spread / 2 for spread in spreads], color=colour,
                                  marker=marker, linestyle=dashes, alpha=1 - 0.3 * number,
                                  capsize=2, label=f'{peer}, clusters of {size} bytes')
            axes.axhline(1, color='#3b5b92', linewidth=0.8)
            figure.legend(fontsize=7, loc='outside right upper')
            name = f'row3-{image}-{kind}.svg'
            _save(figure, directory / name)
            made.append((name, 'Lower is better; 1 is the boot that reads all over the network.'))
    return made
