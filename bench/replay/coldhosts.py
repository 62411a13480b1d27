"""Hosts that never saw an image, all at once: stock, on demand and bootcache, for the demo.

usage: python -m bench.replay.coldhosts [--hosts N] [--report DIRECTORY]

The boot is a recorded one of the demo's image, replayed as in the rows of the benchmark. All hosts
share the storage node's link, as those of a cloud do when it starts many servers of one image.
"""

import argparse
import dataclasses
import json
import math
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.replay import check, figures, peers
from bench.replay.cluster import Run, cluster
from bench.replay.setting import GIGABIT, extents_of, recorded
from bench.replay.trace import Trace
from bootcache import cachelayout, workingset
from bootcache.connectors.probe import READ_BYTES
from bootcache.connectors.watch import PERIOD_SECONDS

IMAGE = 'debian'
REPORT, PICTURE = 'cold-hosts.json', 'cold-hosts.png'
# All hosts share this machine's CPUs and disk: a slower world has both suffice. The think times are
# those of a guest that boots four times as fast as one without KVM.
_DILATION, _THINKS = 2.0, 0.25
# Whole images of all hosts are more than this machine's memory has.
_MEDIA = Path('/var/tmp')
_WAYS: tuple[type[peers.Peer], ...] = peers.FullCopy, peers.OnDemand, peers.Ours


@dataclasses.dataclass(frozen=True)
class Bar:
    """What one way of booting took.

    :ivar way: its label in the benchmark.
    :ivar hosts: how many booted at once.
    :ivar first: seconds until the first server had booted, on links of 1 Gbit/s.
    :ivar last: until the last one had.
    :ivar sent: bytes that left the storage node.
    """

    way: str
    hosts: int
    first: float
    last: float
    sent: int


def bar(run: Run, dilation: float) -> Bar:
    """Return a run's figures in the time of the world that it stands for. Pure.

    :param dilation: how many times slower the run was.
    """
    times = [boot.seconds / dilation for boot in run.boots]
    sent = run.copied + sum(one.bytes for one in run.traffic.values())
    return Bar(run.label, len(times), round(min(times), 2), round(max(times), 2), sent)


def beyond(profile: Trace, played: Trace) -> int:
    """Return how many bytes a boot reads that the cache image of another one does not have. Pure.

    :param profile: of which the cache image is built.
    """
    held = workingset.align(extents_of(profile), cachelayout.DEFAULT_CLUSTER_BYTES,
                            profile.header.virtual_bytes)
    return workingset.uncovered(extents_of(played), held)


def measure(hosts: int) -> tuple[list[Bar], int]:
    """Boot once by each way, on hosts that have nothing; then once more by bootcache.

    :returns: what each took, and what ``beyond`` tells of the boot.
    """
    path, (profile, played) = recorded(IMAGE)
    overhead = round(check.calibrate(), 6)
    bars = []
    with cluster(hosts, math.floor(GIGABIT / _DILATION), _MEDIA, dilation=_DILATION) as made:
        image = made.add_image(path, 'qcow2', played.header.virtual_bytes, extents_of(profile),
                               cluster_bytes=cachelayout.DEFAULT_CLUSTER_BYTES)
        for way in _WAYS:
            for run in made.run(way(), [image], [played], hosts, scale=_DILATION * _THINKS,
                                overhead=overhead):
                bars.append(bar(run, _DILATION))
                print(told(bars[-1]), file=sys.stderr, flush=True)
    return bars, beyond(profile, played)


def told(one: Bar) -> str:
    """Return a line for people."""
    return (f'{figures.name_of(one.way):42} {one.hosts:3} hosts  all booted after'
            f' {one.last:6.1f} s, {one.sent / 1e6:8.1f} MB left the storage node')


def broken_promises(bars: Sequence[Bar], missing: int = 0) -> list[str]:
    """Return what does not hold: bytes are exact, seconds are told and not judged. Pure.

    :param missing: bytes that a boot reads and the cache image does not have. Beside them a host's
        watch reads a few of the base, as long as it may be needed.
    """
    by_way = {one.way: one for one in bars}
    stock, cold, warm = (by_way.get(way) for way in (
        'full copy', 'bootcache cold', 'bootcache warm'))
    if stock is None or cold is None or warm is None:
        return [f'there are runs of {", ".join(sorted(by_way)) or "nothing"} only']
    broken = []
    if cold.sent * 2 > stock.sent:
        broken.append(f'cold hosts were sent {cold.sent} bytes, over half of stock\'s {stock.sent}')
    watched = READ_BYTES * (2 + math.ceil(warm.last * _DILATION / PERIOD_SECONDS))
    if warm.sent > warm.hosts * (missing + watched):
        broken.append(f'warm hosts were sent {warm.sent} bytes, lacked {warm.hosts * missing}, and'
                      f' read {warm.hosts * watched} to know that the base can be read')
    return broken


def draw(path: Path, bars: Sequence[Bar]) -> None:
    """Draw until when the last server has booted, a bar each, with what was sent."""
    figure, axes = figures.canvas(
        f'{bars[0].hosts} hosts start a server of one image at the same time',
        'seconds until the last one has booted, links of 1 Gbit/s', '')
    figure.set_size_inches(9, 0.6 * len(bars) + 1.6)
    longest = max(one.last for one in bars)
    for place, one in enumerate(bars):
        axes.barh(place, one.last, color=figures.style(one.way)[0])
        axes.text(one.last + longest / 100, place,
                  f'{one.last:.1f} s, {one.sent / 1e6:,.0f} MB', va='center')
    axes.set_yticks(range(len(bars)), [figures.name_of(one.way) for one in bars])
    axes.invert_yaxis()
    axes.set_axisbelow(True)
    axes.grid(False, axis='y')
    axes.set_xlim(right=1.25 * longest)
    figure.savefig(path, dpi=120)
    figures.close(figure)


def write(directory: Path, bars: Sequence[Bar]) -> None:
    """Write figures and picture into the report's directory."""
    directory.mkdir(parents=True, exist_ok=True)
    document: dict[str, Any] = {
        'image': IMAGE, 'link_mbit': GIGABIT // 1_000_000, 'dilation': _DILATION,
        'think_times': _THINKS, 'ways': [dataclasses.asdict(one) for one in bars]}
    (directory / REPORT).write_text(json.dumps(document, indent=1) + '\n')
    draw(directory / PICTURE, bars)


def main() -> int:
    """Measure, write, and tell what does not hold."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--hosts', type=int, default=8, help='(default: %(default)s)')
    parser.add_argument('--report', type=Path, default=Path('demo-report'), help='directory')
    options = parser.parse_args()
    # So that what was made is removed also when this is terminated.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    bars, missing = measure(options.hosts)
    write(options.report, bars)
    for one in bars:
        print(told(one))
    broken = broken_promises(bars, missing)
    for promise in broken:
        print(f'BROKEN: {promise}', file=sys.stderr)
    return 1 if broken else 0


if __name__ == '__main__':
    raise SystemExit(main())
