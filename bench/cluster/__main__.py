"""Run the simulation and write its report: ``tools/bench.sh cluster [--quick]``."""

import argparse
import concurrent.futures
import dataclasses
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

from bench.cluster import (
    arrivals,
    arrivalsreport,
    arrivalsweeps,
    calibration,
    exchange,
    exchangereport,
    replayed,
    report,
    runs,
    sweeps,
)
from bench.cluster.arrivals import ArrivalsError
from bench.cluster.scheduling import Hardware
from bench.cluster.storage import Node
from bench.cluster.workload import FLAVORS


def main() -> int:
    """Make all runs and write the report."""
    parser = argparse.ArgumentParser(prog='tools/bench.sh cluster', description=__doc__)
    parser.add_argument('image', type=Path, help='a real qcow2 image, to measure conversion with')
    parser.add_argument('--quick', action='store_true', help='a small cluster: a minute or two')
    parser.add_argument('--workers', type=int, default=os.cpu_count(), help='runs at a time')
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--report', type=Path, default=Path('bench-report/cluster.json'))
    parser.add_argument('--doc', type=Path, help='write plots and tables for the documents here')
    parser.add_argument('--exchanged', action='store_true', help='of the runs, tables and plots'
                        ' only those of servers that wait while other hosts give cache images')
    parser.add_argument('--arrivals', type=Path, metavar='FILE', help='of the runs and tables only'
                        ' those that arrivals of a real cloud drive: a file of them, with those of'
                        ' lives and of bins beside it')
    parser.add_argument('--constants', type=Path, metavar='REPORT', help='take what a machine took'
                        ' from an earlier report: this one is busy with other work')
    options = parser.parse_args()
    try:
        plan = _plan(options)
    except ArrivalsError as error:
        parser.error(str(error))
    if options.constants:
        constants = json.loads(options.constants.read_text())['constants']
    else:
        constants = calibration.describe(calibration.measure(options.image), options.image)
    measured = calibration.taken_from(constants)
    tasks = [(run, measured, options.seed) for run in plan]
    began = time.monotonic()
    rows = []
    # The longest ones first, so that no core waits for one at the end.
    tasks.sort(key=lambda task: -task[0].cluster.load.boots)
    with concurrent.futures.ProcessPoolExecutor(
            options.workers, mp_context=multiprocessing.get_context('spawn')) as workers:
        for number, row in enumerate(workers.map(sweeps.one, tasks), 1):
            rows.append(row)
            print(f'{number:3d}/{len(tasks)} {row["sweep"]} {row["value"]:g}, {row["policy"]}:'
                  f' hit rate {row["hit_rate"]:.3f}, {row["seconds_to_run"]:.0f} s',
                  file=sys.stderr)
        pushes = [] if options.exchanged or options.arrivals else list(workers.map(exchange.push, [
            (push, options.seed) for push in exchange.plan(options.quick)]))
    if options.arrivals:
        return _finish_arrivals(options, constants, rows, time.monotonic() - began)
    compared, exchanged = replayed.compare(), exchange.compare(options.seed)
    document = {
        'constants': constants,
        'assumptions': {
            'hardware': dataclasses.asdict(Hardware()), 'storage_node': dataclasses.asdict(Node()),
            'storage_nodes': 'one for each 1,000 hosts or a part of them',
            'flavors': [dataclasses.asdict(flavor) for flavor in FLAVORS],
            'host_link_bytes_per_second': tasks[0][0].cluster.host_link,
            'guest_seconds': tasks[0][0].cluster.guest_seconds,
            'server_life_mean_s': tasks[0][0].cluster.load.life,
            'storm_share': tasks[0][0].cluster.load.storm_share,
            'exchange_host_bytes_per_second': exchange.HOST_RATE,
            'exchange_rack_hosts': exchange.RACK_HOSTS,
            'counted_from_share_of_boots': runs.WARM_UP},
        'seed': options.seed, 'seconds': round(time.monotonic() - began, 1),
        'replayed': [dataclasses.asdict(one) for one in compared],
        'exchanged': [dataclasses.asdict(one) for one in exchanged],
        'pushes': pushes, 'runs': rows}
    options.report.parent.mkdir(parents=True, exist_ok=True)
    options.report.write_text(json.dumps(document, indent=1) + '\n')
    for directory in filter(None, (options.report.parent, options.doc)):
        if not options.exchanged:
            report.write(rows, compared, directory)
            exchangereport.write(pushes, exchanged, directory)
        exchangereport.write_boots(rows, directory)
    print(f'{options.report}: {len(rows)} runs in {document["seconds"]} s')
    return 0


def _plan(options: argparse.Namespace) -> list[sweeps.Run]:
    if options.arrivals:
        return list(arrivalsweeps.plan(
            arrivals.read(options.arrivals), options.arrivals,
            arrivalsweeps.QUICK if options.quick else arrivalsweeps.FULL))
    plan = sweeps.plan_exchanged if options.exchanged else sweeps.plan
    return list(plan(sweeps.QUICK if options.quick else sweeps.FULL))


def _finish_arrivals(options: argparse.Namespace, constants: dict[str, Any],
                     rows: list[dict[str, Any]], seconds: float) -> int:
    """Write the report of the runs that arrivals of a real cloud drive, and their tables."""
    options.report.parent.mkdir(parents=True, exist_ok=True)
    options.report.write_text(json.dumps({
        'constants': constants, 'arrivals': options.arrivals.name, 'seed': options.seed,
        'seconds': round(seconds, 1), 'runs': rows}, indent=1) + '\n')
    for directory in filter(None, (options.report.parent, options.doc)):
        arrivalsreport.write(rows, directory)
    print(f'{options.report}: {len(rows)} runs in {seconds:.1f} s')
    return 0


if __name__ == '__main__':
    sys.exit(main())
