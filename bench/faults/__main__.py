"""Tries faults at every step: see doc/source/faults.rst.

usage: python -m bench.faults [--quick|--full|--cloud] [--report DIRECTORY] [NAME ...]
"""

import argparse
import itertools
import os
import signal
import sys
import time
from pathlib import Path

from bench.faults import (
    cloudplan,
    incloud,
    lanes,
    plan,
    report,
    soak,
    soakreport,
    upgrade,
    versions,
)


def main() -> int:
    """Run what is asked for, and write the report; 0 if all is zero that has to be."""
    parser = argparse.ArgumentParser(
        prog='tools/faults.sh', description='Faults at every step of images\' and servers\' lives.')
    parser.add_argument('names', nargs='*', metavar='NAME', help='a step, the part of steps\' names'
                        ' before the colon, or a fault; with a step and a fault, that one alone')
    size = parser.add_mutually_exclusive_group()
    size.add_argument('--quick', action='store_true', help='a minute or two; this is the default')
    size.add_argument('--full', action='store_true', help='every fault at every step; without a'
                      ' NAME also all of --cloud')
    size.add_argument('--cloud', action='store_true', help='in a real cloud: faults at moments of'
                      ' servers\' lives, which NAME names then')
    parser.add_argument('--repeats', type=int, default=1, help='how often each is run')
    parser.add_argument('--beside', type=int, default=3, help='how many are run beside each other:'
                        ' they mostly wait')
    parser.add_argument('--report', type=Path, default=Path('faults-report'), help='directory')
    parser.add_argument('--list', action='store_true', help='tell what would be run')
    parser.add_argument('--soak', nargs='?', type=int, const=500, metavar='N', help='instead:'
                        ' register, boot and delete N images (500), and see that nothing grows')
    parser.add_argument('--upgrade', nargs='*', metavar='COMMIT', help='instead: replace the parts'
                        ' of an earlier version, and back, while servers boot; the last commits'
                        ' before the last two minor versions of the RPC API, if none is named')
    options = parser.parse_args()
    in_cloud, wanted = [], []
    try:
        if options.cloud or (options.full and not options.names):
            in_cloud = cloudplan.chosen(options.names)
        if not options.cloud:
            wanted = plan.chosen(plan.rows(), options.names, quick=not options.full)
    except ValueError as error:
        parser.error(str(error))
    if options.list:
        for row in wanted:
            print(f'{row.step:20} {row.fault.name:20} {row.life.value}')
        for one in in_cloud:
            print(f'{one.moment.value:20} {one.fault.name:20} cloud')
        return 0
    # So that what was made is removed also when this is terminated.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    if options.soak:
        soaked = soak.run(options.soak, options.report)
        soakreport.add(options.report, 'soak', soaked.to_json())
        print(*soaked.table(), sep='\n')
        return 0 if soaked.holds() else 1
    if options.upgrade is not None:
        return _upgrade(options.upgrade, options.report)
    began = time.monotonic()
    outcomes: list[report.Outcome] = []
    try:
        for outcome in itertools.chain(
                lanes.run(wanted * options.repeats, options.beside, options.report),
                incloud.run(options.names) if in_cloud else ()):
            outcomes.append(outcome)
            print(report.line(outcome), flush=True)
    finally:
        sums = report.write(options.report, outcomes, cpus=os.cpu_count(), beside=options.beside,
                            seconds=round(time.monotonic() - began, 1),
                            steps=len({row.step for row in wanted}))
    print(', '.join(f'{value} {name.replace("_", " ")}' for name, value in sums.items()),
          f'({time.monotonic() - began:.0f} s); {options.report}/report.json')
    all_run = len(outcomes) == len(wanted) * options.repeats + len(in_cloud)
    return 0 if report.holds(sums) and all_run else 1


def _upgrade(commits: list[str], directory: Path) -> int:
    try:
        commits = commits or versions.defaults()
    except versions.NoSuchVersion as error:
        print(f'tools/faults.sh: {error}; name a commit', file=sys.stderr)
        return 2
    outcomes: list[report.Outcome] = []
    try:
        for outcome in upgrade.run(commits, directory):
            outcomes.append(outcome)
            print(report.line(outcome), flush=True)
    finally:
        soakreport.add(directory, 'upgrade', upgrade.to_json(commits, outcomes))
    return 0 if report.holds(report.summary(outcomes)) else 1


if __name__ == '__main__':
    raise SystemExit(main())
