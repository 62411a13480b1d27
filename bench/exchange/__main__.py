"""``tools/bench.sh exchange``: a cache image to many hosts at once, by exchange and by copies."""

import argparse
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.exchange import figures
from bench.exchange.place import Outcome, Place, place

TOP = Path(__file__).resolve().parents[2]
MEBI = 1 << 20
# Of full bases: as many as the product has unless an operator says otherwise.
_SLOTS = 4
# For which a fault waits for its moment.
_MOST_SECONDS = 20


@dataclasses.dataclass(frozen=True)
class _Setting:
    """What is given to how many hosts.

    :ivar link: bits a second; all hosts share this machine's CPUs, so that many have slower links.
    :ivar size: of the file, in bytes.
    :ivar quick_link: likewise, of a quick run, as quick_size.
    """

    what: str
    hosts: int
    link: int
    size: int
    quick_link: int
    quick_size: int


_SETTINGS = (
    _Setting(figures.CACHE_IMAGE, 8, 100_000_000, 32 * MEBI, 25_000_000, 16 * MEBI),
    _Setting(figures.CACHE_IMAGE, 32, 25_000_000, 32 * MEBI, 10_000_000, 8 * MEBI),
    # One of 2 GB has as many pieces as one of 128 MiB; memory for 17 of it is not here.
    _Setting(figures.FULL_BASE, 16, 25_000_000, 128 * MEBI, 25_000_000, 32 * MEBI))


def main() -> int:
    """Measure, and write the report."""
    parser = argparse.ArgumentParser(prog='tools/bench.sh exchange',
                                     description=(__doc__ or '').splitlines()[0])
    parser.add_argument('--quick', action='store_true', help='smaller files on slower links, once')
    parser.add_argument('--repeats', type=int, default=0, help='how often (default: 3, quick: 1)')
    parser.add_argument('--link', type=int, metavar='MBIT', default=0,
                        help='of each link, Mbit/s (default: 100 for 8 hosts, 25 for others; quick:'
                             ' 25, and 10 for 32)')
    parser.add_argument('--hosts', type=int, default=0,
                        help='only the file that goes to so many (default: all)')
    parser.add_argument('--mebibytes', type=int, default=0, help='of the file, instead')
    parser.add_argument('--without-copies', action='store_true',
                        help='by exchange only, which takes a small part of the time')
    parser.add_argument('--directory', default='/dev/shm',
                        help='of all files (default: %(default)s, where no disk is waited for)')
    parser.add_argument('--report', default=str(TOP / 'bench-report'), help='folder of the report')
    options = parser.parse_args()
    runs: list[dict[str, Any]] = []
    load = os.getloadavg()[0]
    for wanted in _SETTINGS:
        if options.hosts not in (0, wanted.hosts):
            continue
        link = options.link * 1_000_000 or (wanted.quick_link if options.quick else wanted.link)
        scratch = Path(tempfile.mkdtemp(prefix='bcr-exchange-', dir=options.directory))
        try:
            with place(wanted.hosts, link, scratch,
                       options.mebibytes * MEBI or (
                           wanted.quick_size if options.quick else wanted.size)) as made:
                for _repeat in range(options.repeats or (1 if options.quick else 3)):
                    runs += measure(made, wanted.what, wanted.hosts, link,
                                    not options.without_copies)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    targets = figures.judged(runs)
    folder = Path(options.report)
    folder.mkdir(parents=True, exist_ok=True)
    commit = subprocess.run(['git', '-C', str(TOP), 'describe', '--always', '--dirty'], text=True,
                            capture_output=True, check=False).stdout.strip()
    (folder / 'exchange.json').write_text(json.dumps(
        {'commit': commit, 'cpus': os.cpu_count(), 'load_before': round(load, 1),
         'load_after': round(os.getloadavg()[0], 1), 'runs': runs, 'targets': targets}, indent=1))
    for target in targets:
        print(f'{"met    " if target["met"] else "NOT MET"} {target["what"]}: {target["value"]}'
              f' (at most {target["target"]})')
    return 0


def measure(made: Place, file: str, hosts: int, link: int,
            copies: bool = True) -> list[dict[str, Any]]:
    """Measure both ways, and what goes wrong with one; one copy alone is the limit of all.

    :param copies: whether hosts copy a cache image as well.
    """
    numbers = range(2, hosts + 2)
    made.stop_exchanges()
    alone = made.copied([2])[0].seconds
    runs = []

    def note(what: str, way: str, get: Callable[[], list[Outcome]]) -> None:
        before = made.sent()
        outcomes = get()
        sent = made.sent() - before
        good = [one.seconds for one in outcomes if not one.fault]
        for one in outcomes:
            if one.fault:
                print(f'host {one.host}: {one.fault}', file=sys.stderr)
        runs.append(figures.line(what, hosts, way, link, made.size, good, sent, alone,
                                 len(outcomes) - len(good)))
        print(runs[-1], file=sys.stderr, flush=True)
        made.stop_exchanges()

    made.stop_exchanges()
    if file == figures.CACHE_IMAGE and copies:
        note(file, 'copy', lambda: made.copied(numbers))
    made.start_exchanges(range(1, hosts + 2))
    note(file, 'exchange', lambda: made.exchanged(
        numbers, slots=_SLOTS if file == figures.FULL_BASE else 0))
    if hosts == _SETTINGS[0].hosts:
        made.start_exchanges(range(1, hosts + 2), slow=3)
        note('a slow host', 'exchange', lambda: made.exchanged(numbers))
        made.start_exchanges(range(1, hosts + 2))
        note('a host dies half-way', 'exchange', lambda: made.exchanged(
            numbers, lambda: _when(made, 0.5, lambda: made.kill(3))))
        made.start_exchanges(range(1, hosts + 2))
        note('the storage node dies after 1.1 copies', 'exchange', lambda: made.exchanged(
            numbers, lambda: _when(made, 1.1, lambda: made.kill(1))))
        made.start_exchanges([number for number in range(1, hosts + 2) if number != 3])
        note('a host lies', 'exchange', lambda: made.exchanged(numbers, liar=3))
        made.start_exchanges(range(1, hosts + 2), stranger=3)
        note('a host is a stranger', 'exchange', lambda: made.exchanged(numbers))
    return runs


def _when(made: Place, copies: float, do: Callable[[], None]) -> None:
    """Do something when so many copies have left the storage node's exchange, if they ever do."""
    deadline = time.monotonic() + _MOST_SECONDS
    while made.given() < copies * made.size:
        if time.monotonic() > deadline:
            return
        time.sleep(0.02)
    do()


if __name__ == '__main__':
    sys.exit(main())
