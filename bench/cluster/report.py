"""Plots and tables of the simulation's runs."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use('svg')
from matplotlib import pyplot

from bench.cluster.replayed import Compared

# The same file for the same figures.
matplotlib.rcParams['svg.hashsalt'] = 'bootcache'
matplotlib.rcParams['svg.fonttype'] = 'none'
matplotlib.rcParams['font.size'] = 9

Rows = Sequence[dict[str, Any]]


def save(figure: Any, path: Path) -> None:
    """Write a figure; the same bytes for the same one."""
    figure.set_layout_engine('constrained')
    figure.savefig(path, metadata={'Date': None})
    pyplot.close(figure)
    # matplotlib leaves blanks at the ends of lines.
    path.write_text('\n'.join(line.rstrip() for line in path.read_text().splitlines()) + '\n')


def _of(rows: Rows, sweep: str) -> list[dict[str, Any]]:
    return sorted((row for row in rows if row['sweep'] == sweep), key=lambda row: row['value'])


def _line(axes: Any, rows: Rows, key: str, label: str, factor: float = 1.0) -> None:
    axes.plot([row['value'] for row in rows], [row[key] * factor for row in rows], marker='o',
              markersize=3, label=label)


def _steps(axes: Any, rows: Rows, key: str, label: str, factor: float) -> None:
    """Draw values at equal distances: quotas grow by factors."""
    axes.plot([f'{row["value"]:g}' for row in rows], [row[key] * factor for row in rows],
              marker='o', markersize=3, label=label)


def policies(rows: Rows, path: Path) -> None:
    """Draw the policies side by side, for the largest cluster that ran all of them."""
    sizes = sorted({row['value'] for row in rows if row['sweep'] == 'policies'})
    full = [size for size in sizes
            if len([row for row in _of(rows, 'policies') if row['value'] == size]) > 3]
    chosen = [row for row in _of(rows, 'policies') if row['value'] == full[-1]]
    names = [row['policy'] for row in chosen]
    figure, grid = pyplot.subplots(1, 4, figsize=(11, 2.8), sharey=True)
    for axes, (title, values) in zip(grid, (
            ('boots with all data\non the host, %', [100 * row['hit_rate'] for row in chosen]),
            ('boot delay, s: median\n(pale: 99th percentile)',
             [row['boot_delay_p99_s'] for row in chosen]),
            ('sent by storage nodes, GB\n(pale: settling)',
             [(row['storage_bytes'] + row['settled_bytes']) / 1e9 for row in chosen]),
            ('hosts of a storm\nfor each server, %', [100 * row['spread'] for row in chosen])),
            strict=True):
        pale = 'delay' in title or 'sent' in title
        axes.barh(names, values, color='#a6c8e8' if pale else '#2b6ca3')
        if 'delay' in title:
            axes.barh(names, [row['boot_delay_median_s'] for row in chosen], color='#2b6ca3')
            axes.set_xscale('log')
        if 'sent' in title:
            axes.barh(names, [row['storage_bytes'] / 1e9 for row in chosen], color='#2b6ca3')
        axes.set_title(title, fontsize=9)
        axes.invert_yaxis()
    grid[0].invert_yaxis()
    figure.suptitle(f'{chosen[0]["hosts"]} hosts, {chosen[0]["images"]} images,'
                    f' {chosen[0]["boots"]} boots', fontsize=9)
    save(figure, path)


def multiplier(rows: Rows, path: Path) -> None:
    """Draw what the multiplier gains, and what it costs."""
    found = _of(rows, 'multiplier')
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(8, 3))
    _line(left, found, 'hit_rate', 'boots with all data on the host, %', 100)
    _line(left, found, 'spread', 'hosts of a storm for each server, %', 100)
    _line(left, found, 'load_deviation', 'deviation of servers on hosts, % of mean', 100)
    left.axvline(1.0, color='#999999', linewidth=0.8, linestyle=':')
    _line(right, found, 'boot_delay_mean_s', 'boot delay, mean, s')
    _line(right, found, 'boot_delay_p99_s', 'boot delay, 99th percentile, s')
    for axes in (left, right):
        axes.set_xlabel('bootcache_weight_multiplier')
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=7)
    save(figure, path)


def quotas(rows: Rows, path: Path) -> None:
    """Draw hit rate and delay against the tiers' quotas."""
    figure, grid = pyplot.subplots(2, 2, figsize=(9, 5.8))
    for axes, (name, unit) in zip(grid.flat, (
            ('compute disk', 'GiB'), ('compute memory', 'GiB'), ('storage memory', 'GiB a node'),
            ('storage disk', '% of all cache images')), strict=True):
        found = _of(rows, name)
        _steps(axes, found, 'hit_rate', 'boots with all data on the host, %', 100)
        other = _of(rows, f'{name}, no weigher')
        if other:
            _steps(axes, other, 'hit_rate', 'the same, without weigher', 100)
        twin = axes.twinx()
        slowest = [row['boot_delay_p99_s'] for row in found]
        twin.plot([f'{row["value"]:g}' for row in found], slowest, color='#c0504d', marker='s',
                  markersize=3)
        twin.set_ylabel('boot delay, 99th percentile, s', color='#c0504d')
        twin.set_ylim(0, 1.15 * max(slowest))
        axes.set_ylim(0, 105)
        axes.set_xlabel(f'{name}, {unit}')
    # Beyond the axes: lines go through all of their area.
    figure.legend(*grid.flat[0].get_legend_handles_labels(), fontsize=8, ncols=2,
                  loc='outside upper center')
    save(figure, path)


def popularity(rows: Rows, path: Path) -> None:
    """Draw hit rates against popularity's skew, and against Placement's limit."""
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(8, 3))
    _line(left, _of(rows, 'skew'), 'hit_rate', 'with weigher', 100)
    _line(left, _of(rows, 'skew, no weigher'), 'hit_rate', 'without', 100)
    left.set_xlabel("exponent of Zipf's law: the higher, the more boots of few images")
    left.set_ylabel('boots with all data on the host, %')
    found = _of(rows, 'candidates')
    _line(right, found, 'hit_rate', 'with weigher', 100)
    right.set_xlabel(f'candidates that Placement gives, of {found[0]["hosts"]} hosts')
    for axes in (left, right):
        axes.set_ylim(0, 105)
        axes.legend(fontsize=7)
    save(figure, path)


def ageing(rows: Rows, path: Path) -> None:
    """Draw what comes of the age at which unused bases and cache images go."""
    figure, grid = pyplot.subplots(1, 3, figsize=(11, 3))
    for axes, (key, factor, label) in zip(grid, (
            ('hit_rate', 100, 'boots with all data on the host, %'),
            ('storage_bytes', 1e-9, 'sent for boots, GB'),
            ('bases_per_host', 1, 'full bases on a host at the end')), strict=True):
        for policy in AGEING:
            _steps(axes, _of(rows, f'ageing, {policy}'), key, policy, factor)
        axes.set_xlabel('hours after which what is unused goes')
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
    grid[0].legend(fontsize=7)
    save(figure, path)


AGEING = ('stock', 'cache', 'cache, weigher')
PLOTS = {'policies': policies, 'multiplier': multiplier, 'quotas': quotas, 'popularity': popularity,
         'ageing': ageing}
_COLUMNS = (('hit rate, %', 'hit_rate', 100, 1), ('delay, median, s', 'boot_delay_median_s', 1, 2),
            ('delay, 99th, s', 'boot_delay_p99_s', 1, 2),
            ('sent for boots, GB', 'storage_bytes', 1e-9, 0),
            ('sent for settling, GB', 'settled_bytes', 1e-9, 0),
            ('hosts of a storm for each server, %', 'spread', 100, 0),
            ('deviation of load, %', 'load_deviation', 100, 0),
            ('bases on a host at the end', 'bases_per_host', 1, 1))


def table(rows: Rows, sweep: str, first: str, path: Path) -> None:
    """Write a sweep as a table for the documents."""
    named = sweep in ('policies', 'ageing')
    found = _of(rows, sweep) if sweep != 'ageing' else sorted(
        (row for row in rows if row['sweep'].startswith('ageing')),
        key=lambda row: (row['value'], row['policy']))
    lines(path, [[*([first, 'policy'] if named else [first]), *(name for name, *_rest in _COLUMNS)],
                 *([f'{row["value"]:g}', *([row['policy']] if named else []),
                    *(f'{row[key] * factor:.{digits}f}'
                      for _name, key, factor, digits in _COLUMNS)] for row in found)])


TABLES = {'policies': 'hosts', 'multiplier': 'multiplier', 'compute disk': 'compute disk, GiB',
          'compute memory': 'compute memory, GiB', 'storage memory': 'storage memory, GiB a node',
          'storage disk': 'storage disk, % of all cache images', 'candidates': 'candidates',
          'settling': 'settle_bandwidth, MiB/s', 'ageing': 'age, hours',
          'guest': 'a guest\'s own boot, s', 'new images': 'new images, %'}


def replay_table(compared: Sequence[Compared], path: Path) -> None:
    """Write the model beside what was measured."""
    lines(path, [['boots', 'hosts', 'here', 'measured'],
                 *([one.way, str(one.hosts), f'{one.model:.2f}', f'{one.measured:.2f}']
                   for one in compared)])


def lines(path: Path, rows: Sequence[Sequence[str]]) -> None:
    """Write a table."""
    with open(path, 'w', newline='') as stream:
        csv.writer(stream, lineterminator='\n').writerows(rows)


def write(rows: Rows, compared: Sequence[Compared], directory: Path) -> None:
    """Write all plots and tables into a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, draw in PLOTS.items():
        draw(rows, directory / f'cluster-{name}.svg')
    for sweep, first in TABLES.items():
        table(rows, sweep, first, directory / f'cluster-{sweep.replace(" ", "-")}.csv')
    replay_table(compared, directory / 'cluster-replayed.csv')
