"""Nicolae & Rafique, figures 2 and 3: hosts read the same 512 MB of one image at the same time.

Nobody has booted the image here: each host fetches all of it from the storage node, once for all of
its servers. What it is worth that hosts give to each other is in the row of exchanged.py.
"""

import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.replay import figures, sums
from bench.replay.cluster import Cluster, cluster
from bench.replay.host import Image
from bench.replay.rows import reading
from bench.replay.rows.reading import ON_DEMAND, OURS, Reading
from bench.replay.setting import Journal, Setting

NAME = 'many-readers'
TITLE = 'Many hosts read one image (Nicolae & Rafique, figures 2 and 3)'
PAPER_BYTES = 512_000_000
_IMAGE = 'noise'
# All hosts share this machine's CPUs, which at 1 Gbit/s would be what is measured.
QUICK = Setting(False, 500_000_000, 1.0, 2, (_IMAGE,), (1, 4, 16))
FULL = Setting(True, 500_000_000, 1.0, 3, (_IMAGE,), (1, 2, 4, 8, 16, 64))
# What each server reads.
_BYTES = {False: 8 << 20, True: 32 << 20}
# With how many hosts several servers are on each, and with how many the orders differ: on demand
# the former take minutes with more, and tell no more.
_CROWDED = {False: (1, 4), True: (1, 2, 4, 8)}
_SHUFFLED = {False: (4,), True: (1, 2, 4, 8, 16)}
_GO_SECONDS = 0.3


def points(full: bool, hosts: Sequence[int]) -> Iterator[Reading]:
    """Give what is measured in a round. Pure."""
    for count in hosts:
        for servers, shuffled, wanted in ((1, False, True), (4, False, count in _CROWDED[full]),
                                          (1, True, count in _SHUFFLED[full])):
            for way in (ON_DEMAND, OURS) if wanted else ():
                yield Reading(way, count, servers, shuffled, _BYTES[full])


def run(setting: Setting, directory: Path) -> None:
    """Measure, and leave the journal in the report's directory."""
    length = _BYTES[setting.full]
    journal = Journal(directory, NAME, {**setting.to_json([]), 'length': length,
                                        'paper_bytes': PAPER_BYTES})
    scratch = Path(tempfile.mkdtemp(prefix='bcr-noise-', dir='/tmp'))
    try:
        digest = reading.make_image(scratch / 'image', length)
        with cluster(max(setting.hosts), setting.rate, dilation=setting.dilation) as made:
            image = made.add_image(scratch / 'image', 'raw', length)
            every = list(points(setting.full, setting.hosts))
            for repeat in range(setting.repeats):
                for point in every if repeat % 2 == 0 else reversed(every):
                    line = measure(made, [image], point, digest if repeat == 0 else None)
                    told = (f'{line["label"]:16} {point.hosts:3} hosts, {point.servers} servers'
                            f' each: {line["average"] / 1e6:7.1f} MB/s, base'
                            f' {line["traffic"].get("base", {}).get("bytes", 0) / 1e6:.1f} MB')
                    journal.keep({**line, 'repeat': repeat, 'image': _IMAGE}, told)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def measure(made: Cluster, images: Sequence[Image], point: Reading,
            digest: int | None) -> dict[str, Any]:
    """Read once; the journal's line.

    :param images: what each host knows of the image, in turn.
    :param digest: of what has to be read, None if that is not looked at this time.
    :raises ReadError: if a server read something else.
    """
    try:
        made.everywhere(point.hosts, reading.prepare, images, point)
        made.traffic(point.hosts)
        go = time.monotonic() + _GO_SECONDS
        found = made.everywhere(point.hosts, reading.read, images, point,
                                digest is not None, go)
        traffic = made.traffic(point.hosts)
    finally:
        made.reset(point.hosts)
    if digest is not None and {one for host in found for one in host['digests']} != {digest}:
        raise reading.ReadError(f'{point}: a server read something else than the image')
    speeds = [point.length / seconds for host in found for seconds in host['seconds']]
    cpu = {name: round(statistics.mean(host[name] for host in found), 4)
           for name in ('reader_cpu_seconds', 'chain_cpu_seconds', 'gateway_cpu_seconds')}
    return {'label': point.way, 'hosts': point.hosts, 'servers': point.servers,
            'shuffled': point.shuffled, 'length': point.length, 'verified': digest is not None,
            'fastest': round(max(speeds)), 'average': round(statistics.mean(speeds)),
            'slowest': round(min(speeds)), 'each': [round(one) for one in speeds],
            # Of a server with the average throughput.
            'seconds': round(point.length / statistics.mean(speeds), 4), **cpu,
            'traffic': {kind: {'requests': one.requests, 'bytes': one.bytes}
                        for kind, one in traffic.items()}}


def _is_reference(one: dict[str, Any]) -> bool:
    return (one['label'], one['hosts'], one['servers'], one['shuffled']) == (ON_DEMAND, 1, 1, False)


def rows(head: dict[str, Any], runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the report's rows: throughput over that of one host on demand, of the round. Pure."""
    below = {one['repeat']: one['average'] for one in runs if _is_reference(one)}
    keys = 'label', 'hosts', 'servers', 'shuffled'
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for one in runs:
        if one['repeat'] in below:
            groups.setdefault(tuple(one[key] for key in keys), []).append(one)
    found = []
    for (label, hosts, servers, shuffled), those in groups.items():
        def ratio(name: str, those: list[dict[str, Any]] = those) -> tuple[float, float]:
            return sums.median_spread([one[name] / below[one['repeat']] for one in those])

        def middle(kind: str, name: str, those: list[dict[str, Any]] = those) -> float:
            return statistics.median(one['traffic'].get(kind, {}).get(name, 0) for one in those)

        average, spread = ratio('average')
        found.append({
            'row': NAME, 'peer': label, 'hosts': hosts, 'servers': servers, 'images': 1,
            'order': 'each its own' if shuffled else 'the same', 'ratio': average,
            'spread': spread, 'fastest': ratio('fastest')[0], 'slowest': ratio('slowest')[0],
            'length': those[0]['length'], 'base_bytes': middle('base', 'bytes'),
            'base_requests': middle('base', 'requests'), 'cache_bytes': middle('cache', 'bytes'),
            'bytes_per_second': statistics.median(one['average'] for one in those),
            **{name: round(statistics.median(one[name] for one in those), 3)
               for name in ('reader_cpu_seconds', 'chain_cpu_seconds', 'gateway_cpu_seconds')},
            'note': 'ratio: average throughput of the servers over that of one server on one host,'
            ' on demand; hosts do not exchange anything', 'run': head['run']})
    return found


def _points(runs: Sequence[dict[str, Any]], which: str) -> Iterator[tuple[int, float, float]]:
    """Give for each number of hosts: it, the time of ours over on demand, and the noise of that.

    The noise is the largest spread between rounds: of the ratio, or of either way by itself.

    :param which: of the servers: average or slowest.
    """
    for hosts in sorted({one['hosts'] for one in runs}):
        times = {way: {one['repeat']: one['length'] / one[which] for one in runs
                       if (one['label'], one['hosts']) == (way, hosts)}
                 for way in (OURS, ON_DEMAND)}
        pairs = [(times[OURS][repeat], times[ON_DEMAND][repeat]) for repeat in times[OURS]
                 if repeat in times[ON_DEMAND]]
        if pairs:
            value, noise = sums.median_spread([ours / other for ours, other in pairs])
            yield hosts, value, max(noise, *((max(both) - min(both)) / statistics.median(both)
                                             for both in zip(*pairs, strict=True)))


def _never_slower(head: dict[str, Any], runs: Sequence[dict[str, Any]], which: str,
                  text: str) -> dict[str, Any]:
    """Return the target that bootcache is nowhere slower than on demand, beyond the noise. Pure."""
    hosts, value, noise = max(_points(runs, which), key=lambda point: point[1] - point[2])
    rounds = len({one['repeat'] for one in runs})
    bound = round(1 + max(noise, sums.LEAST_NOISE), 4)
    reason = f'at {hosts} hosts, noise {noise:.4f} over {rounds} rounds'
    if value > bound:
        for label in (OURS, ON_DEMAND):
            those = [one for one in runs if (one['label'], one['hosts']) == (label, hosts)]
            seconds = statistics.median(one['length'] / one[which] for one in those)
            cpu = statistics.median(one['gateway_cpu_seconds'] for one in those)
            reason += f'; {label}: {seconds:.3f} s, of a gateway\'s CPU {cpu:.3f} s'
    return sums.target(head, f'time of bootcache over on demand at worst, {which} server, {text}',
                       bound, value, reason)


def targets(head: dict[str, Any], runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Judge this row's targets. Pure."""
    found = []
    for servers, shuffled, text in ((1, False, 'one a host, in one order'),
                                    (1, True, 'one a host, each host in its own order'),
                                    (4, False, 'four a host')):
        those = [one for one in runs if (one['servers'], one['shuffled']) == (servers, shuffled)]
        for which in ('average', 'slowest'):
            if any(_points(those, which)):
                found.append(_never_slower(head, those, which, text))
    found.append(sums.target(
        head, 'bytes of the base over those of one server a host, bootcache', 1.0,
        round(max(one['traffic']['base']['bytes'] / (one['hosts'] * one['length'])
                  for one in runs if one['label'] == OURS), 4),
        'at worst; the servers of a host share what they read'))
    return found


def intro(head: dict[str, Any]) -> str:
    """Say under which conditions it was measured. Pure."""
    setting = head['setting']
    return (f'Links of {setting["rate"] / 1e6:.0f} Mbit/s; each server reads'
            f' {setting["length"] / 1e6:.0f} MB of noise ({setting["paper_bytes"] / 1e6:.0f} in the'
            ' paper) from its disk, in requests of 1 MiB, two under way. Throughputs are over that'
            ' of one server on one host, on demand, in the same round. Nobody has booted the image'
            ' before. With one server a host bootcache can at best be as fast as on demand here;'
            ' the row of hosts that exchange has what they gain by that.')


def table(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Return the table's columns and lines. Pure."""
    return (['way', 'hosts', 'servers a host', 'order', 'fastest', 'average', 'slowest', 'spread',
             'average, MB/s', 'base, MB', 'CPU s of reader, chain, gateway'],
            [[figures.name_of(row['peer']), row['hosts'], row['servers'], row['order'],
              row['fastest'], row['ratio'], row['slowest'], row['spread'],
              f'{row["bytes_per_second"] / 1e6:.1f}', f'{row["base_bytes"] / 1e6:.1f}',
              ', '.join(f'{row[f"{who}_cpu_seconds"]:.2f}' for who in ('reader', 'chain',
                                                                       'gateway'))]
             for row in rows])


def draw(head: dict[str, Any], rows: list[dict[str, Any]],
         directory: Path) -> list[tuple[str, str]]:
    """Throughput over the number of hosts, for each order, and the bytes; names and captions."""
    megabytes = head['setting']['length'] / 1e6
    made = []
    for order, text, name in (('the same', 'all in one order', 'many-readers-order.svg'),
                              ('each its own', 'each host in its own order',
                               'many-readers-shuffled.svg')):
        mine = [row for row in rows if row['order'] == order]
        if len({row['hosts'] for row in mine}) < 2:
            continue
        figure, axes = figures.canvas(
            f'Throughput while all servers read {megabytes:.0f} MB, {text}',
            'hosts that read at the same time', 'throughput of a server /\none host on demand')
        _lines(axes, mine, ('ratio', 'slowest', 'fastest'))
        _finish(figure, axes, mine, directory / name)
        made.append((name, 'Higher is better. Lines: average of the servers; areas: from the'
                     ' slowest to the fastest.'))
    mine = [row for row in rows if row['order'] == 'the same']
    figure, axes = figures.canvas(
        f'What the storage node sends while all servers read the same {megabytes:.0f} MB',
        'hosts that read at the same time', 'MB from the storage node')
    _lines(axes, [{**row, 'sent': row['base_bytes'] / 1e6} for row in mine], ('sent',) * 3)
    _finish(figure, axes, mine, directory / 'many-readers-bytes.svg')
    made.append(('many-readers-bytes.svg', 'Lower is better. Bytes of the base that crossed the'
                 ' storage node\'s link, counted there.'))
    return made


def _lines(axes: Any, rows: list[dict[str, Any]], names: tuple[str, str, str]) -> None:
    """Draw a line for each way and number of servers, and an area around it."""
    for way in (ON_DEMAND, OURS):
        for servers in sorted({row['servers'] for row in rows}):
            mine = sorted((row for row in rows if (row['peer'], row['servers']) == (way, servers)),
                          key=lambda row: row['hosts'])
            if not mine:
                continue
            colour, marker, _dashes = figures.style(way)
            xs = [row['hosts'] for row in mine]
            middle, low, high = ([row[name] for row in mine] for name in names)
            # Lines that lie upon each other stay to be told apart.
            axes.plot(xs, middle, color=colour, marker=marker, markersize=6 if way == OURS else 10,
                      fillstyle='full' if way == OURS else 'none',
                      linestyle='-' if servers == 1 else '--',
                      label=f'{figures.name_of(way)},\n{servers} on each host')
            axes.fill_between(xs, low, high, color=colour, alpha=0.15, linewidth=0)


def _finish(figure: Any, axes: Any, rows: list[dict[str, Any]], path: Path) -> None:
    axes.set_xscale('log', base=2)
    figures.logarithmic(axes)
    counts = sorted({row['hosts'] for row in rows})
    axes.set_xticks(counts, [str(count) for count in counts])
    figure.legend(fontsize=7, handlelength=4, loc='outside right upper')
    figures.save(figure, path)
