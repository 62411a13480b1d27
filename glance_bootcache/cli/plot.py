"""Pictures of working sets."""

import sys
from collections.abc import Callable
from typing import Any

from bootcache import exception
from bootcache.workingset import Extent, WorkingSet

# Readable for people with any colour vision, also in grey.
COLOURS = {'cache image': '#0072b2', 'base': '#d55e00', 'overlay': '#999999'}


def read_pattern(path: str, working_set: WorkingSet, *, over: str = 'time', title: str = '',
                 served_by: Callable[[Extent], str] | None = None) -> None:
    """Draw which parts of the base a boot read, and when.

    :param path: of the picture; its suffix gives the format.
    :param over: ``time`` in seconds from the first read, or ``bytes`` read before.
    :param served_by: names what serves an extent, one colour each; None for one colour.
    :raises BootcacheError: if matplotlib is not installed.
    :raises OSError: if the picture cannot be written.
    :raises ValueError: if the suffix is of no known format.
    """
    try:
        import matplotlib
        matplotlib.use('Agg')
        from matplotlib import pyplot
    except ImportError as error:
        raise exception.BootcacheError(
            f'drawing needs matplotlib ({error}); install it for this command:'
            f' {sys.prefix}/bin/pip install matplotlib') from error
    timed = over == 'time' and any(extent.seconds is not None for extent in working_set.extents)
    lines: dict[str, list[Any]] = {}
    read = 0
    for extent in working_set.extents:
        if timed and extent.seconds is None:
            continue
        position = extent.seconds if timed else read / 1e6
        who = served_by(extent) if served_by else 'working set'
        lines.setdefault(who, []).append((position, extent.offset / 1e6, extent.end / 1e6))
        read += extent.length
    figure, axes = pyplot.subplots(figsize=(9, 5), dpi=120)
    for who, bars in lines.items():
        xs, lows, highs = zip(*bars, strict=True)
        colour = COLOURS.get(who, '#0072b2')
        axes.vlines(xs, lows, highs, colors=colour, linewidth=1.2)
        axes.plot(xs, lows, '.', markersize=3, color=colour, label=who)
    axes.set_ylim(0, working_set.virtual_bytes / 1e6)
    axes.set_xlabel('seconds from the first read' if timed else 'MB first read before')
    axes.set_ylabel('offset in the base, MB')
    axes.set_title(title or f'{working_set.bytes / 1e6:.1f} MB in'
                            f' {len(working_set.extents)} extents')
    if served_by:
        axes.legend(loc='upper right')
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
