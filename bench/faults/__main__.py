"""Tries faults at every step: see doc/source/faults.rst.

usage: python -m bench.faults [--quick|--full] [--report DIRECTORY] [NAME ...]
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

from bench.faults import lanes, plan, report


def main() -> int:
    """Run what is asked for, and write the report; 0 if all is zero that has to be."""
    parser = argparse.ArgumentParser(
        prog='tools/faults.sh', description='Faults at every step of images\' and servers\' lives.')
    parser.add_argument('names', nargs='*', metavar='NAME', help='a step, the part of steps\' names'
                        ' before the colon, or a fault; with a step and a fault, that one alone')
    size = parser.add_mutually_exclusive_group()
    size.add_argument('--quick', action='store_true', help='a minute or two; this is the default')
    size.add_argument('--full', action='store_true', help='every fault at every step')
    parser.add_argument('--repeats', type=int, default=1, help='how often each is run')
    parser.add_argument('--beside', type=int, default=3, help='how many are run beside each other:'
                        ' they mostly wait')
    parser.add_argument('--report', type=Path, default=Path('faults-report'), help='directory')
    parser.add_argument('--list', action='store_true', help='tell what would be run')
    options = parser.parse_args()
    try:
        wanted = plan.chosen(plan.rows(), options.names, quick=not options.full)
    except ValueError as error:
        parser.error(str(error))
    if options.list:
        for row in wanted:
            print(f'{row.step:20} {row.fault.name:16} {row.life.value}')
        return 0
    # So that what was made is removed also when this is terminated.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    began = time.monotonic()
    outcomes: list[report.Outcome] = []
    try:
        for outcome in lanes.run(wanted * options.repeats, options.beside, options.report):
            outcomes.append(outcome)
            print(report.line(outcome), flush=True)
    finally:
        sums = report.write(options.report, outcomes, cpus=os.cpu_count(), beside=options.beside,
                            seconds=round(time.monotonic() - began, 1),
                            steps=len({row.step for row in wanted}))
    print(', '.join(f'{value} {name.replace("_", " ")}' for name, value in sums.items()),
          f'({time.monotonic() - began:.0f} s); {options.report}/report.json')
    return 0 if report.holds(sums) and len(outcomes) == len(wanted) * options.repeats else 1


if __name__ == '__main__':
    raise SystemExit(main())
