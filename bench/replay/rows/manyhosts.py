"""SC13 figures 2 and 11: servers of one image on 1 to 64 hosts at the same time."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.replay import figures, peers, sums
from bench.replay.cluster import cluster
from bench.replay.setting import (
    BOTH,
    Journal,
    Point,
    Setting,
    extents_of,
    measure,
    recorded,
)

NAME = 'many-hosts'
TITLE = 'One image on many hosts (SC13, figures 2 and 11)'
WARM, COLD = 'bootcache warm', 'bootcache cold'
# As they are fetched, and what becomes of them.
ZSTD_COLD, ZSTD_WARM, EXPANDED = (
    'bootcache zstd cold', 'bootcache zstd warm', 'bootcache zstd expanded')
_OURS = {WARM, COLD, ZSTD_COLD, ZSTD_WARM, EXPANDED, 'bootcache first'}
REFERENCE = 'local raw'
# Both stand for guests of some seconds on links of 1 Gbit/s. All hosts share this machine's CPUs: a
# boot costs them half a second whatever its think times, so many hosts need a slower world.
QUICK = Setting(False, 800_000_000, 0.1875, 2, ('small',), (1, 4), (1,), BOTH)
FULL = Setting(True, 100_000_000, 6.0, 3, ('small',), (1, 2, 4, 8, 16, 32, 64), (1, 4, 16), BOTH)
_COMMON = 'all hosts at the same time; mean of the hosts\' boot times'


def run(setting: Setting, directory: Path) -> None:
    """Measure, and leave the journal in the report's directory."""
    images = [recorded(name) for name in setting.images]
    journal = Journal(directory, NAME, setting.to_json([traces[1] for _path, traces in images]))
    with cluster(max(setting.hosts), setting.rate, dilation=setting.dilation) as made:
        points = []
        for path, (profile, played) in images:
            images_by = {kind: made.add_image(path, 'qcow2', played.header.virtual_bytes,
                                              extents_of(profile), compression=kind)
                         for kind in setting.compression}
            for hosts in setting.hosts:
                ways: list[peers.Peer] = [peers.LocalRaw(), peers.OnDemand(), peers.Sc13()]
                ways += [way for way in (peers.Ours(), peers.OursCompressed())
                         if way.compression in images_by]
                if setting.full:
                    ways.append(peers.OursFirst())
                if hosts in setting.copies:
                    ways.append(peers.FullCopy())
                points += [Point(way, images_by.get(way.compression) or next(iter(
                    images_by.values())), played, hosts) for way in ways]
        measure(made, points, setting, journal)


def rows(head: dict[str, Any], runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the report's rows: boot times over that of one host with a full local base. Pure."""
    return sums.rows(head, runs, NAME, ('image', 'label', 'hosts'),
                     lambda one: one['label'] == REFERENCE and one['hosts'] == 1, _COMMON)


def targets(head: dict[str, Any], runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Judge this row's targets. Pure."""
    most = max(one['hosts'] for one in runs)
    base = sum(one['traffic'].get('base', {}).get('bytes', 0) for one in runs
               if one['label'] in (WARM, ZSTD_WARM, EXPANDED))
    digests = {(one['image'], digest) for one in runs for digest in one['digests'] if digest}
    images = {one['image'] for one in runs}
    labels = {one['label'] for one in runs}
    found = [_alone(head, runs, most, WARM if WARM in labels else EXPANDED)]
    for warm in (WARM, EXPANDED):
        if warm in labels:
            found += [_beside(
                head, f'{"warm" if warm == WARM else warm} over full local raw, {where}', 1.02,
                runs, (warm, REFERENCE), hosts)
                for hosts, where in ((1, 'one host'), (most, f'{most} hosts'))]
    found += [
        sums.target(head, 'bytes of the base read by warm boots', 0, base),
        sums.target(head, 'contents that boots of one image have read', 1,
                    len(digests) / len(images))]
    for cold, warm in ((COLD, WARM), (ZSTD_COLD, EXPANDED)):
        if {cold, warm} <= labels:
            # What it costs one host to fetch the cache image while its server boots.
            found.append(_beside(head, f'{cold} over {warm}, one host', 1.10, runs,
                                 (cold, warm), 1))
    others = sorted(labels - {REFERENCE} - _OURS)
    for ours in (WARM, EXPANDED, COLD, ZSTD_COLD):
        for other in others if ours in labels else ():
            if other == 'SC13 warm' and ours in (COLD, ZSTD_COLD):
                continue
            found.append(sums.never_slower(head, runs, ours, other))
    return found + sums.compressed(head, runs, lambda one: (one['image'], one['hosts']),
                                   lambda one: f'{one["hosts"]} hosts')


def _beside(head: dict[str, Any], name: str, bound: float, runs: Sequence[dict[str, Any]],
            labels: tuple[str, str], hosts: int) -> dict[str, Any]:
    """Judge one way over another on some hosts; if that is missed, tell where the time goes."""
    found = sums.ratio_target(
        head, name, bound, runs,
        *(lambda one, label=label: (one['label'], one['hosts']) == (label, hosts)
          for label in labels))
    if not found['met']:
        found['reason'] += sums.profiles(runs, labels, hosts)
    return found


def _alone(head: dict[str, Any], runs: Sequence[dict[str, Any]], most: int,
           warm: str) -> dict[str, Any]:
    """Judge whether many warm hosts boot as fast as one; beside them, those that share nothing."""
    def times(label: str) -> dict[str, Any]:
        return sums.ratio_target(head, f'warm on {most} hosts over warm on one', 1.02, runs,
                                 lambda one: one['label'] == label and one['hosts'] == most,
                                 lambda one: one['label'] == label and one['hosts'] == 1)

    def busy(hosts: int) -> float:
        return statistics.median(one['machine_busy'] for one in runs
                                 if one['label'] == warm and one['hosts'] == hosts)

    found = times(warm)
    found['reason'] += (
        f'; {REFERENCE}, whose hosts share nothing but this machine: {times(REFERENCE)["value"]};'
        f' its {head["cpus"]} CPUs were {busy(1):.0%} busy with one warm host, and {busy(most):.0%}'
        f' with {most}')
    return found


def draw(head: dict[str, Any], rows: list[dict[str, Any]],
         directory: Path) -> list[tuple[str, str]]:
    """Boot time over the number of hosts, one figure an image; names and captions."""
    made = []
    for image in sorted({row['image'] for row in rows}):
        figure, axes = figures.canvas(
            f'Boot time when many hosts start servers of one image ({image})',
            'hosts that start a server at the same time', 'boot time / that of a full local base')
        axes.set_xscale('log', base=2)
        figures.logarithmic(axes)
        mine = [row for row in rows if row['image'] == image]
        for peer in figures.order(row["peer"] for row in mine):
            points = [(row['hosts'], row['ratio'], row['spread']) for row in mine
                      if row['peer'] == peer]
            if points:
                figures.line(axes, peer, points)
        counts = sorted({row['hosts'] for row in mine})
        axes.set_xticks(counts, [str(count) for count in counts])
        figure.legend(fontsize=7, loc='outside right upper')
        figures.save(figure, directory / f'many-hosts-{image}.svg')
        made.append((f'many-hosts-{image}.svg', 'Lower is better. Bars: spread over the rounds.'))
    return made
