"""The figures of the report: small SVG files that say by themselves what they show."""

import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_STYLES: dict[str, tuple[str, str, str]] = {
    'bootcache warm': ('#0b6e4f', 'o', '-'), 'bootcache cold': ('#0b6e4f', 's', '--'),
    'bootcache first': ('#6fae8f', 'v', ':'), 'SC13 warm': ('#c75000', 'o', '-'),
    'SC13 cold': ('#c75000', 's', '--'), 'on demand': ('#3b5b92', '^', '-'),
    'full copy': ('#8a1c1c', 'x', '-'), 'local raw': ('#777777', '.', '-'),
    'bootcache in memory warm': ('#0b6e4f', 'D', '-.'), 'YOLO': ('#7b3fa0', 'P', '-'),
    'one then others': ('#5b9bd5', 'v', '--'),
    'normal boot': ('#3b5b92', '^', '-'),
    'bootcache in storage memory cold': ('#6fae8f', 'D', '-.'),
    'SC13 in storage memory warm': ('#e3a06b', 'D', '-.'),
    'bootcache zstd cold': ('#1f9e9e', 's', '--'), 'bootcache zstd warm': ('#1f9e9e', 'o', '-'),
    'bootcache zstd expanded': ('#1f9e9e', '*', ':'),
    'bootcache zstd in memory warm': ('#1f9e9e', 'D', '-.'),
    'bootcache zstd in storage memory cold': ('#8fd0d0', 'D', '-.')}
_NAMES = {
    'bootcache warm': 'bootcache, host has the cache image',
    'bootcache cold': 'bootcache, host fetches the cache image',
    'bootcache first': 'bootcache, nobody has booted it yet',
    'SC13 warm': 'SC13 as published, warm', 'SC13 cold': 'SC13 as published, cold',
    'on demand': 'qcow2 over NBD, nothing kept', 'full copy': 'stock Nova, whole image copied',
    'local raw': 'full local base',
    'bootcache in memory warm': 'bootcache, cache image in host\'s memory',
    'YOLO': 'YOLO\'s service, preloaded', 'normal boot': 'stock, base on that disk',
    'one then others': 'stock, one server first',
    'bootcache in storage memory cold': 'bootcache, host fetches it\nfrom storage memory',
    'SC13 in storage memory warm': 'SC13 as published,\nin storage memory',
    'bootcache zstd cold': 'bootcache, host fetches it compressed',
    'bootcache zstd warm': 'bootcache, host has it compressed',
    'bootcache zstd expanded': 'bootcache, host has expanded it',
    'bootcache exchange cold': 'bootcache, hosts give it to each other',
    'bootcache exchange warm': 'bootcache, host got it from others',
    'bootcache exchange waited cold': 'bootcache, hosts give it to each other,\nall servers wait to'
    ' the end',
    'bootcache zstd in memory warm': 'bootcache, compressed in host\'s memory',
    'bootcache zstd in storage memory cold': 'bootcache, host fetches it compressed\nfrom storage'
    ' memory'}


def style(peer: str) -> tuple[str, str, str]:
    """Return a way's colour, marker and dashes; the same in every figure."""
    if peer not in _STYLES:
        number = zlib.crc32(peer.encode())
        _STYLES[peer] = f'C{number % 10}', 'd*Pph'[number % 5], '-.'
    return _STYLES[peer]


def order(peers: Iterable[str]) -> list[str]:
    """Return ways of booting in the order of every legend: known ones first."""
    present = set(peers)
    return [peer for peer in _STYLES if peer in present] + sorted(present - set(_STYLES))


def name_of(peer: str) -> str:
    """Return what a figure calls a way of booting."""
    return _NAMES.get(peer, peer)


def canvas(title: str, across: str, up: str) -> tuple[Any, Any]:
    """Return a figure of the report's size, and its axes."""
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


def logarithmic(axes: Any) -> None:
    """Have a figure's upward axis logarithmic, with plain numbers."""
    axes.set_yscale('log')
    for which in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        which('{x:g}')


def save(figure: Any, path: Path) -> None:
    """Write a figure as SVG, and let go of it."""
    figure.savefig(path, metadata={'Date': None})
    close(figure)


def close(figure: Any) -> None:
    """Let go of a figure."""
    from matplotlib import pyplot
    pyplot.close(figure)


def line(axes: Any, peer: str, points: list[tuple[float, float, float]], name: str = '') -> None:
    """Draw a way's points: x, y and the spread, drawn as a bar."""
    colour, marker, dashes = style(peer)
    xs, ys, spreads = zip(*sorted(points), strict=True)
    axes.errorbar(xs, ys, [spread / 2 for spread in spreads], color=colour, marker=marker,
                  linestyle=dashes, capsize=2, label=name or name_of(peer))
