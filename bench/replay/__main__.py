"""Replays recorded boots through the real block path, and reports: see doc/source/measurements.rst.

usage: python -m bench.replay [--quick|--full] [--report DIRECTORY] [many-hosts ...] [check]
"""

import argparse
import dataclasses
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.replay import check, report, rows, setting
from bootcache.cachelayout import Compression


def run_check(images: tuple[str, ...], full: bool, directory: Path) -> None:
    """Compare replays with the real guests that they were recorded of.

    :param full: all that were recorded, not only the one that the rows play.
    """
    overhead = check.calibrate()
    found = []
    for name in images:
        path, traces = setting.recorded(name)
        for number, one in enumerate(traces):
            if not full and one is not traces[-1]:
                continue
            agreement = check.check(path, 'qcow2', one, overhead)
            found.append({'image': name, 'boot': number, 'player_overhead': round(overhead, 6),
                          'load': setting.load(), **agreement.to_json()})
            print(f'check of {name}, boot {number}: {agreement}')
    directory.mkdir(parents=True, exist_ok=True)
    (directory / report.CHECK).write_text(json.dumps(found, indent=1) + '\n')


def chosen(parts: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return the names of what is asked for: all, if nothing is. Pure.

    :param parts: names; of rows also row1, row2 and so on, by their places in the report.
    :param known: the rows' names, in the report's order.
    :raises ValueError: if there is no such part; it names them.
    """
    places = {f'row{number}': name for number, name in enumerate(known, 1)}
    found = [places.get(part, part) for part in parts] or ['check', *known]
    if unknown := set(found) - {'check', *known}:
        raise ValueError(f'{", ".join(sorted(unknown))}: not one of check, {", ".join(known)}')
    return found


def main() -> int:
    """Measure what is asked for, and write the report."""
    known = {part.NAME: part for part in rows.modules()}
    parser = argparse.ArgumentParser(
        prog='tools/bench.sh', formatter_class=argparse.RawDescriptionHelpFormatter,
        description='Recorded boots, replayed through the real block path, side by side.',
        epilog='parts:\n  check         whether a replay is the real boot\n' + '\n'.join(
            f'  {name:12}  {part.TITLE}' for name, part in known.items()))
    parser.add_argument('parts', nargs='*', metavar='part',
                        help='one of those below; without any, all. Rows also by their'
                        ' place in the report, as row1')
    size = parser.add_mutually_exclusive_group()
    size.add_argument('--quick', action='store_true', help='a few minutes; this is the default')
    size.add_argument('--full', action='store_true', help='all points, for hours')
    parser.add_argument('--report', type=Path, default=Path('bench-report'), help='directory')
    parser.add_argument('--scale', type=float, help='factor of the guests\' think times')
    parser.add_argument('--rate', type=int, help='of each link, bits a second')
    parser.add_argument('--repeats', type=int)
    parser.add_argument('--hosts', type=int, nargs='+', help='how many boot at once')
    parser.add_argument('--image', action='append', help='as tools/images/make.sh calls it')
    parser.add_argument('--compression', nargs='+', type=Compression, choices=list(Compression),
                        help='how cache images are stored: both where a row compares them, else'
                        ' as the product does by default')
    parser.add_argument('--doc', type=Path, help='put page and figures there; parts that were not'
                        ' measured stay as they are there')
    parser.add_argument('--only-report', action='store_true', help='of what was measured before')
    options = parser.parse_args()
    try:
        wanted = chosen(options.parts, list(known))
    except ValueError as error:
        parser.error(str(error))
    # So that what was made is removed also when this is terminated.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    changes = {name: value for name, value in {
        'scale': options.scale, 'rate': options.rate, 'repeats': options.repeats,
        'hosts': tuple(options.hosts) if options.hosts else None,
        'compression': tuple(dict.fromkeys(options.compression)) if options.compression else None,
        'images': tuple(options.image) if options.image else None}.items() if value is not None}
    for name in () if options.only_report else wanted:
        if name == 'check':
            run_check(changes.get('images') or ('small',), options.full, options.report)
            continue
        part = known[name]
        part.run(dataclasses.replace(part.FULL if options.full else part.QUICK, **changes),
                 options.report)
    document = report.assemble(options.report, list(known.values()))
    for one in document['targets']:
        verdict = 'told  ' if one['target'] is None else 'met   ' if one['met'] else 'MISSED'
        print(f'{verdict} {one["row"]} {one["name"]}: {one["value"]} ({one["reason"]})')
    if options.doc:
        report.publish(options.report, options.doc, [part.TITLE for part in known.values()])
    print(f'{options.report}/report.json and {report.PAGE}')
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
