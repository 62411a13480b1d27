"""Plots and tables of hosts that exchange: files that are pushed to them, and boots."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import pyplot

from bench.cluster import calibration, exchange, report, sweeps
from bench.cluster.exchange import Compared
from bootcache.exchange import patience


def draw(pushes: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw how long it takes until all hosts have a cache image, and what is sent for that."""
    found = [row for row in pushes if row['file'] == 'cache image'
             and row['latency'] == exchange.LATENCY]
    hosts = [row['hosts'] for row in found]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(8, 3))
    for axes, label, shown in (
            (left, 'until the last host has it,\nover one copy to one host', (
                ('copied', [row['copied_time'] for row in found]),
                ('exchanged', [row['time'] for row in found]))),
            (right, 'copies sent by the storage nodes', (
                ('copied', hosts), ('exchanged', [row['storage_copies'] for row in found])))):
        for (name, values), color in zip(shown, ('#c0504d', '#2b6ca3'), strict=True):
            axes.loglog(hosts, values, marker='o', markersize=3, label=name, color=color)
        axes.set_xlabel('hosts')
        axes.set_ylabel(label)
        axes.legend(fontsize=7)
    report.save(figure, path)


def write(pushes: Sequence[dict[str, Any]], compared: Sequence[Compared], directory: Path) -> None:
    """Write plot and tables into a directory."""
    draw(pushes, directory / 'cluster-exchange.svg')
    report.lines(directory / 'cluster-exchange.csv', [
        ['file', 'hosts', 'racks', 'latency, ms', 'time', 'time, copied', 'copies sent',
         'into a rack', 'by one host, at most'],
        *([row['file'], f'{row["hosts"]}', f'{row["racks"]}', f'{1000 * row["latency"]:g}',
           *(f'{row[name]:.2f}' for name in ('time', 'copied_time', 'storage_copies',
                                             'rack_copies', 'most_sent'))] for row in pushes)])
    report.lines(directory / 'cluster-exchanged.csv', [
        ['hosts', 'time, here', 'time, measured', 'copies sent, here', 'copies sent, measured'],
        *([str(one.hosts), *(f'{value:.2f}' for value in (
            one.time, one.measured_time, one.copies, one.measured_copies))] for one in compared)])


_WAYS = {False: 'copied', True: 'exchanged'}
_COLORS = {False: '#c0504d', True: '#2b6ca3'}


def _of(rows: Sequence[dict[str, Any]], sweep: str) -> list[dict[str, Any]]:
    return sorted((row for row in rows if row['sweep'] == sweep),
                  key=lambda row: (row['storage_link'], row['value'], row['policy'],
                                   row['exchange']))


def draw_storms(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw how long the last server of an image waits that all hosts boot at once."""
    found = _of(rows, sweeps.STORM)
    links = sorted({row['storage_link'] for row in found})
    figure, grid = pyplot.subplots(1, len(links), figsize=(8, 3), sharey=True, squeeze=False)
    for axes, link in zip(grid[0], links, strict=True):
        for way, name in _WAYS.items():
            shown = [row for row in found
                     if row['storage_link'] == link and row['exchange'] == way]
            axes.loglog([row['value'] for row in shown],
                        [row['boot_delay_most_s'] for row in shown], marker='o', markersize=3,
                        label=name, color=_COLORS[way])
        axes.axhline(patience.SERVERS_WAIT, color='#999999', linewidth=0.8, linestyle=':')
        axes.set_title(f'links of {8 * link / 1e9:g} Gbit/s', fontsize=9)
        axes.set_xlabel('hosts')
    grid[0][0].set_ylabel('boot delay, s: the slowest')
    grid[0][0].legend(fontsize=7)
    report.save(figure, path)


def write_boots(rows: Sequence[dict[str, Any]], directory: Path) -> None:
    """Write the plot and the tables of boots into a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    draw_storms(rows, directory / 'cluster-exchanged-storm.svg')
    waited = ['waited for others, %', 'in vain, %']
    report.lines(directory / 'cluster-exchanged-storm.csv', [
        ['links, Gbit/s', 'hosts', 'cache image', 'delay, median, s', 'delay, slowest, s',
         'copies sent', *waited],
        *([f'{8 * row["storage_link"] / 1e9:g}', f'{row["value"]:g}', _WAYS[row['exchange']],
           f'{row["boot_delay_median_s"]:.2f}', f'{row["boot_delay_most_s"]:.2f}',
           f'{row["storage_bytes"] / calibration.CACHE_BYTES.value:.2f}', *_waited(row)]
          for row in _of(rows, sweeps.STORM))])
    report.lines(directory / 'cluster-exchanged-boots.csv', [
        ['hosts', 'policy', 'cache images', 'hit rate, %', 'delay, median, s',
         'delay, median, cold, s', 'delay, 99th, s', 'sent, GB', *waited],
        *([f'{row["value"]:g}', row['policy'], _WAYS[row['exchange']],
           f'{100 * row["hit_rate"]:.1f}', f'{row["boot_delay_median_s"]:.2f}',
           f'{row["cold_delay_median_s"]:.2f}', f'{row["boot_delay_p99_s"]:.2f}',
           f'{row["storage_bytes"] / 1e9:.0f}', *_waited(row)]
          for row in _of(rows, sweeps.EXCHANGED))])


def _waited(row: dict[str, Any]) -> list[str]:
    return [f'{100 * row[name]:.1f}' for name in ('waited', 'waited_in_vain')]
