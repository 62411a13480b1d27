"""Tries faults at every step: see doc/source/faults.rst.

usage: python -m bench.faults [--quick|--full|--cloud] [--report DIRECTORY] [NAME ...]
"""

import argparse
import collections
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.faults import (
    apart,
    cloudplan,
    incloud,
    lanes,
    nodeplan,
    nodes,
    plan,
    report,
    soak,
    soakreport,
    upgrade,
    versions,
    wayplan,
    ways,
    waystage,
)
from bench.faults.cloudplan import CloudRow
from bench.faults.kinds import LONG_SECONDS
from bench.faults.plan import Row
from bench.faults.report import Outcome


def parser() -> argparse.ArgumentParser:
    """Return what reads the command line."""
    made = argparse.ArgumentParser(
        prog='tools/faults.sh', description='Faults at every step of images\' and servers\' lives.')
    made.add_argument('names', nargs='*', metavar='NAME', help='a step, a part of steps\' names,'
                      ' or a fault; with a step and a fault, that one alone')
    size = made.add_mutually_exclusive_group()
    size.add_argument('--quick', action='store_true', help='a minute or two: one fault after the'
                      ' other, each step\'s kill among them; this is the default')
    size.add_argument('--full', action='store_true', help='every fault at every step, each by'
                      f' itself, {plan.FULL_REPEATS} times; without a NAME also all of --cloud')
    size.add_argument('--long', action='store_true', help='faults that last longer than all limits'
                      f' of the product: {" and ".join(f"{one:.0f} s" for one in LONG_SECONDS)}')
    size.add_argument('--cloud', action='store_true', help='in a real cloud: faults at moments of'
                      ' servers\' lives, which NAME names then')
    made.add_argument('--ways', action='store_true', help='ways to a base that fail, while guests'
                      ' read and servers start; NAME is one of these or a way then. --quick: ten'
                      ' minutes')
    made.add_argument('--nodes', action='store_true', help='storage nodes that fail, while guests'
                      ' read from three of them; NAME is one of these cases then. --quick: each of'
                      ' one node, ten minutes')
    made.add_argument('--galera', action='store_true', help='with --nodes: each storage node has a'
                      ' node of a Galera cluster as its database')
    made.add_argument('--repeats', type=int, help='how often each is run; not in a cloud')
    made.add_argument('--beside', type=int, default=3, help='how many are run beside each other:'
                      ' they mostly wait')
    made.add_argument('--seconds', type=float, help='after which no more are begun; --resume goes'
                      ' on then')
    made.add_argument('--resume', action='store_true', help='leave out those that the report has')
    made.add_argument('--report', type=Path, default=Path('faults-report'), help='directory')
    made.add_argument('--list', action='store_true', help='tell what would be run')
    made.add_argument('--soak', nargs='?', type=int, const=500, metavar='N', help='instead:'
                      ' register, boot and delete N images (500), and see that nothing grows')
    made.add_argument('--upgrade', nargs='*', metavar='COMMIT', help='instead: replace the parts'
                      ' of an earlier version, and back, while servers boot; the last two'
                      ' releases, if none is named')
    return made


def planned(options: argparse.Namespace) -> tuple[list[Row], list[CloudRow]]:
    """Return what is asked for: here, and in a cloud.

    :raises ValueError: if there is no such name; it tells which there are.
    """
    whole = options.full and not options.names
    in_cloud = cloudplan.chosen(options.names) if options.cloud or whole else []
    if options.cloud:
        return [], in_cloud
    if options.long:
        return plan.chosen(plan.long(), options.names), []
    wanted = plan.chosen(plan.rows(), options.names) if options.names or options.full \
        else plan.quick()
    if whole:
        # A part of it has some of each; the same in each run, so that another one goes on.
        random.Random(0).shuffle(wanted)
    return wanted * (options.repeats or (plan.FULL_REPEATS if whole else 1)), in_cloud


def left_of(rows: Sequence[Row | CloudRow], outcomes: Sequence[Outcome]) -> list[int]:
    """Return the numbers of the rows that have not been run. Pure."""
    done = collections.Counter((one.step, one.fault, one.life) for one in outcomes)
    found = []
    for number, row in enumerate(rows):
        key = (row.moment.value, row.fault.name, 'cloud') if isinstance(row, CloudRow) \
            else (row.step, row.fault, row.life.value)
        if done[key]:
            done[key] -= 1
        else:
            found.append(number)
    return found


def tell(wanted: Sequence[Row], in_cloud: Sequence[CloudRow]) -> None:
    """Tell what would be run."""
    for row in wanted:
        print(f'{row.step:20} {row.fault:20} {row.life.value}')
        if len(row.strikes) > 1:
            for strike in row.strikes:
                print(f'    {strike.step:20} {strike.fault.name}')
    for one in in_cloud:
        print(f'{one.moment.value:20} {one.fault.name:20} cloud')


def cloud_outcomes(rows: Sequence[CloudRow], seconds: float | None) -> Iterator[Outcome]:
    """Run what is run in a cloud; after some seconds no more is begun."""
    began = time.monotonic()
    for outcome in incloud.run(rows):
        yield outcome
        if seconds is not None and time.monotonic() > began + seconds:
            return


def run(options: argparse.Namespace, seconds: float | None, cloud: bool, go_on: bool) -> int:
    """Run one of the two parts, and write the report; 0 if all is zero that has to be.

    :param seconds: after which no more are begun; None for all.
    :param cloud: whether it is the part that is run in a cloud.
    :param go_on: whether what the report has is left out.
    """
    wanted, in_cloud = planned(options)
    outcomes = report.noted(options.report) if go_on else []
    if not go_on:
        (options.report / report.JOURNAL).unlink(missing_ok=True)
    began = time.monotonic()
    try:
        left = left_of(in_cloud if cloud else wanted, outcomes)
        for outcome in cloud_outcomes([in_cloud[number] for number in left], seconds) if cloud \
                else lanes.run([(number, wanted[number]) for number in left], options.beside,
                               options.report, seconds):
            outcomes.append(outcome)
            report.note(options.report, outcome)
            print(report.line(outcome), flush=True)
    finally:
        took = time.monotonic() - began
        sums = report.write(options.report, outcomes, cpus=os.cpu_count(), beside=options.beside,
                            seconds=round(took, 1), planned=len(wanted) + len(in_cloud),
                            steps=len({strike.step for row in wanted for strike in row.strikes}))
    print(', '.join(f'{value} {name.replace("_", " ")}' for name, value in sums.items()),
          f'of {len(wanted) + len(in_cloud)} planned ({took:.0f} s);'
          f' {options.report}/report.json')
    is_enough = seconds is not None or not left_of(in_cloud if cloud else wanted, outcomes)
    return 0 if report.holds(sums) and is_enough else 1


def _soak(rounds: int, directory: Path) -> int:
    soaked = soak.run(rounds, directory)
    soakreport.add(directory, 'soak', soaked.to_json())
    print(*soaked.table(), sep='\n')
    return 0 if soaked.holds() else 1


def _upgrade(commits: list[str], directory: Path) -> int:
    try:
        commits = commits or versions.defaults()
    except versions.NoSuchVersion as error:
        print(f'tools/faults.sh: {error}; name a commit', file=sys.stderr)
        return 2
    outcomes: list[Outcome] = []
    try:
        for outcome in upgrade.run(commits, directory):
            outcomes.append(outcome)
            print(report.line(outcome), flush=True)
    finally:
        soakreport.add(directory, 'upgrade', upgrade.to_json(commits, outcomes))
    return 0 if report.holds(report.summary(outcomes)) else 1


def _ways(options: argparse.Namespace) -> int:
    wanted, began = wayplan.chosen(options.names, options.quick), time.monotonic()
    outcomes: list[Outcome] = []
    try:
        for outcome in lanes.run(list(enumerate(wanted)), options.beside, options.report,
                                 play=ways.run, sizes=waystage.FILE_SYSTEMS):
            outcomes.append(outcome)
            print(report.line(outcome), wayplan.line(outcome), sep='\n    ', flush=True)
    finally:
        sums = report.write(options.report, outcomes, 'ways.json', cpus=os.cpu_count(),
                            beside=options.beside, seconds=round(time.monotonic() - began, 1),
                            planned=sum(len(cases) for _way, cases in wanted))
    # What became of the images is one more of each way.
    return 0 if report.holds(sums) and len(outcomes) == sum(
        len(cases) + 1 for _way, cases in wanted) else 1


def _nodes(options: argparse.Namespace) -> int:
    wanted, began = nodeplan.chosen(options.names, options.quick), time.monotonic()
    outcomes: list[Outcome] = []
    try:
        for outcome in nodes.run(wanted, options.report, options.galera):
            outcomes.append(outcome)
            print(report.line(outcome), nodeplan.line(outcome), sep='\n    ', flush=True)
    finally:
        sums = report.write(options.report, outcomes, 'nodes.json', cpus=os.cpu_count(),
                            nodes=nodeplan.NODES, database='Galera' if options.galera
                            else 'MariaDB', seconds=round(time.monotonic() - began, 1),
                            planned=len(wanted) + 1)
    # The deletion of all images is one more.
    return 0 if report.holds(sums) and len(outcomes) == len(wanted) + 1 else 1


def main(words: list[str]) -> int:
    """Run what is asked for: here in namespaces of its own, then in a cloud."""
    is_inside = apart.is_inside(words)
    reader = parser()
    options = reader.parse_args(words)
    try:
        of_ways = wayplan.chosen(options.names, options.quick) if options.ways else []
        of_nodes = nodeplan.chosen(options.names, options.quick) if options.nodes else []
        wanted, in_cloud = ([], []) if options.ways or options.nodes else planned(options)
    except ValueError as error:
        reader.error(str(error))
    if options.list:
        for way, cases in of_ways:
            for case in cases:
                print(f'{case.name:20} {way}')
        for turn in of_nodes:
            print(f'{turn.name:20} {turn.who}')
        tell(wanted, in_cloud)
        return 0
    # So that what was made is removed also when this is terminated.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    if options.ways or options.nodes or options.soak or options.upgrade is not None:
        if not is_inside and not os.geteuid():
            return apart.run('bench.faults', words)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if options.ways:
        return _ways(options)
    if options.nodes:
        return _nodes(options)
    if options.soak:
        return _soak(options.soak, options.report)
    if options.upgrade is not None:
        return _upgrade(options.upgrade, options.report)
    # Without root the network says what is missing.
    if is_inside or (wanted and os.geteuid()):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return run(options, options.seconds, False, options.resume)
    began, status = time.monotonic(), 0
    if wanted:
        status = apart.run('bench.faults', words)
        if status not in (0, 1):
            # Somebody has ended it.
            return status
    seconds = None if options.seconds is None \
        else max(0.0, options.seconds - (time.monotonic() - began))
    noted = report.noted(options.report) if wanted or options.resume else []
    if seconds != 0 and left_of(in_cloud, noted):
        status = max(status, run(options, seconds, True, bool(noted)))
    return status


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
