"""Tables of the runs that arrivals of a real cloud drive."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.cluster import arrivalsweeps, report

_Row = dict[str, Any]
_Columns = Sequence[tuple[str, Callable[[_Row], str]]]


def _way(row: _Row) -> str:
    return next(way for way, (exchange, settle) in arrivalsweeps.WAYS.items()
                if (exchange, settle) == (row['exchange'], row['settle']))


def _percent(key: str) -> Callable[[_Row], str]:
    return lambda row: f'{100 * row[key]:.1f}'


def _seconds(key: str) -> Callable[[_Row], str]:
    return lambda row: f'{row[key]:.2f}'


def _count(key: str) -> Callable[[_Row], str]:
    return lambda row: f'{row[key]:.0f}'


def _an_hour(row: _Row, value: float) -> str:
    """Return a value over the time in which servers could be old enough to settle."""
    return f'{3600 * value / (row["simulated_seconds"] - row["settle_delay"]):.0f}'


_STORM: _Columns = (('storm, median, s', _seconds('storm_delay_median_s')),
                    ('storm, slowest, s', _seconds('storm_delay_most_s')))
_NODES: _Columns = (
    ('bytes', _way), ('arrivals, times', lambda row: f'{row["arrivals_times"]:g}'),
    ('popularity', lambda row: f'{row["skew"]:g}'), ('nodes', _count('nodes')), *_STORM,
    ('others, median, s', _seconds('others_delay_median_s')),
    ('others, 99th, s', _seconds('others_delay_p99_s')),
    ('links, %', _percent('link_use')), ('busiest node, %', _percent('link_use_busiest')),
    ('its busiest minute, %', _percent('link_use_minute')),
    ('servers that need a node, mean', _count('unsettled')))
_LOSS: _Columns = (
    ('bytes', _way), ('nodes', _count('nodes')),
    ('a node is lost after, s', lambda row: f'{row["lost_after"]:g}' if row['moved'] else 'none'),
    *_STORM,
    ('others that waited over 10 s', _count('others_long')),
    ('others, slowest, s', _seconds('others_delay_most_s')))
_DELAYS: _Columns = (
    ('settle_delay, s', _count('settle_delay')),
    ('sent for settling, GB an hour', lambda row: _an_hour(row, row['settled_bytes'] / 1e9)),
    ('bases an hour', lambda row: _an_hour(row, row['settled_copies'])),
    ('of little use, %', _percent('settled_briefly')),
    ('used by later servers, %', _percent('settled_again')),
    ('servers that need a node, before the storm', _count('unsettled_before')))


def write(rows: Sequence[_Row], directory: Path) -> None:
    """Write all tables into a directory."""
    directory.mkdir(parents=True, exist_ok=True)

    def order(row: _Row) -> tuple[Any, ...]:
        return (list(arrivalsweeps.WAYS).index(_way(row)), row['arrivals_times'], row['skew'],
                row['value'], row['lost_after'])

    def table(name: str, found: Sequence[_Row], columns: _Columns) -> None:
        report.lines(directory / f'cluster-real-{name}.csv', [
            [title for title, _text in columns],
            *([text(row) for _title, text in columns] for row in sorted(found, key=order))])

    nodes = [row for row in rows if row['sweep'] == arrivalsweeps.NODES]
    loss = [row for row in rows if row['sweep'] == arrivalsweeps.LOSS]
    table('nodes', nodes, _NODES)
    # Each beside the same run in which no node is lost.
    alike = ('value', 'exchange', 'settle', 'arrivals_times', 'skew')
    table('loss', [*loss, *(row for row in nodes if any(
        all(row[key] == other[key] for key in alike) for other in loss))], _LOSS)
    table('settle-delay', [row for row in rows if row['sweep'] == arrivalsweeps.DELAYS], _DELAYS)
