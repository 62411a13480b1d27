"""The plot and the tables of files that are pushed to many hosts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import pyplot

from bench.cluster import exchange, report
from bench.cluster.exchange import Compared


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
