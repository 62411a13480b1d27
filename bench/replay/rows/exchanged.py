"""One image on many hosts at once that give to each other: boots, and Nicolae & Rafique, figure 3.

Where nobody has booted the image, each host fills a growing store from the storage node. What hosts
could gain by giving these to each other while they fill (papers/004) is bounded here: no server can
boot sooner than one that has the storage node to itself. Beside it stands what is done instead: the
first host records, a cache image is built, and the others get that from each other.
"""

import shutil
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.replay import exchanging, figures, peers, sums
from bench.replay.cluster import Cluster, Run, cluster
from bench.replay.exchanging import OursExchanged, OursWaited
from bench.replay.rows import manyreaders, reading
from bench.replay.rows.reading import COLD, EXCHANGED, ON_DEMAND, WAITED, Reading
from bench.replay.setting import Journal, Setting, extents_of, recorded
from bench.replay.trace import Trace
from bootcache.cachelayout import Compression
from bootcache.workingset import Extent

NAME = 'exchanged'
TITLE = 'Hosts that give one image to each other (Nicolae & Rafique, figure 3)'
FIRST, WARM = 'bootcache first', 'bootcache warm'
# All hosts share this machine's CPUs: slow links, as in the row of many hosts.
QUICK = Setting(False, 100_000_000, 1.5, 1, ('small',), (8,))
FULL = Setting(True, 100_000_000, 6.0, 3, ('small',), (8, 32, 64))
_BYTES = 8 << 20
# Hosts that read at the same time: the paper's figure 3.
_READERS = 1, 8, 32
# In which a cache image is built of what one boot has read, on the storage node.
BUILD_SECONDS = 1.0
TARGET_COLD, TARGET_READERS, FEWEST_READERS = 1.3, 4.0, 32


def run(setting: Setting, directory: Path) -> None:
    """Measure, and leave the journal in the report's directory."""
    path, (profile, played) = recorded(setting.images[0])
    journal = Journal(directory, NAME, {**setting.to_json([played]), 'length': _BYTES})
    scratch = Path(tempfile.mkdtemp(prefix='bcr-exchanged-', dir='/tmp'))
    try:
        digest = reading.make_image(scratch / 'image', _BYTES)
        with cluster(max(setting.hosts), setting.rate, dilation=setting.dilation) as made:
            image = made.add_image(path, 'qcow2', played.header.virtual_bytes,
                                   extents_of(profile), raw_copy=False)
            noise = made.add_image(scratch / 'image', 'raw', _BYTES, [Extent(0, _BYTES)],
                                   raw_copy=False, compression=Compression.NONE)
            for repeat in range(setting.repeats):
                for hosts in (1, *setting.hosts):
                    _boots(made, image, played, hosts, setting, journal, repeat)
                for hosts in _READERS:
                    if hosts <= max(setting.hosts):
                        _readings(made, noise, hosts, digest, journal, repeat)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _boots(made: Cluster, image: Any, played: Trace, hosts: int, setting: Setting,
           journal: Journal, repeat: int) -> None:
    ways: list[tuple[peers.Peer, Sequence[Any]]] = [(peers.OursFirst(), [image])]
    if hosts > 1:
        ways += [(peers.Ours(), [image]),
                 (OursExchanged(), exchanging.offered(made, image, hosts)),
                 (OursWaited(), exchanging.offered(made, image, hosts))]
    for way, images in ways:
        before = [made.network.sent(made.network.storage)]

        def keep(one: Run, before: list[int] = before) -> None:
            before.append(made.network.sent(made.network.storage))
            journal.add(one, repeat=repeat, image=played.header.image, file_bytes=int(
                image.answer['cache_image']['bytes']), storage_bytes=before[-1] - before[-2])

        made.run(way, images, [played], hosts, scale=setting.scale, overhead=journal.overhead,
                 verify=repeat == 0, seen=keep)


def _readings(made: Cluster, noise: Any, hosts: int, digest: int, journal: Journal,
              repeat: int) -> None:
    for way in (ON_DEMAND, COLD, EXCHANGED, WAITED):
        images = exchanging.offered(made, noise, hosts) if way in (EXCHANGED, WAITED) else [noise]
        before = made.network.sent(made.network.storage)
        line = manyreaders.measure(made, images, Reading(way, hosts, 1, False, _BYTES),
                                   digest if repeat == 0 else None)
        sent = made.network.sent(made.network.storage) - before
        # Readers have no disk of which the time is told, as boots have.
        none = dict.fromkeys(('copied_bytes', 'host_bytes', 'disk_seconds'), 0)
        journal.keep({**line, **none, 'player_cpu_seconds': line['reader_cpu_seconds'],
                      'label': f'read, {way}', 'repeat': repeat, 'image': 'noise',
                      'storage_bytes': sent, 'file_bytes': _BYTES},
                     f'{way:22} {hosts:3} hosts read: {line["average"] / 1e6:7.2f} MB/s,'
                     f' {sent / _BYTES:.1f} copies sent')


def _chosen(label: str, hosts: int) -> Callable[[dict[str, Any]], bool]:
    return lambda one: (one['label'], one['hosts']) == (label, hosts)


def rows(head: dict[str, Any], runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the report's rows: time over that of one host that has the links to itself. Pure.

    Of boots that is one of an image that nobody has booted, of readings one on demand.
    """
    found = []
    for reads, reference, note in (
            (False, _chosen(FIRST, 1), 'boot time over that of one host, which is the first'),
            (True, _chosen(f'read, {ON_DEMAND}', 1), 'reading time over that of one host')):
        those = [one for one in runs if one['label'].startswith('read, ') == reads]
        for row in sums.rows(head, those, NAME, ('image', 'label', 'hosts'), reference, note):
            mine = [one for one in those if one['label'] == row['peer']
                    and one['hosts'] == row['hosts']]
            found.append({**row, 'copies': round(sums.median_spread(
                [one['storage_bytes'] / one['file_bytes'] for one in mine])[0], 2),
                'load': sums.median_spread([one['load'] for one in mine])[0]})
    return found


def targets(head: dict[str, Any], runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Judge this row's targets. Pure."""
    most = max(one['hosts'] for one in runs if not one['label'].startswith('read, '))
    found = [sums.ratio_target(head, f'{label} over warm, {most} hosts', wanted, runs,
                               _chosen(label, most), _chosen(WARM, most))
             for label, wanted in ((EXCHANGED, TARGET_COLD), (WAITED, None), (COLD, None),
                                   (FIRST, None))]
    found[0]['reason'] += '; ' + '; '.join(
        f'{label}: {_profile(runs, label, most)}' for label in (WARM, EXCHANGED, WAITED))
    readers = max(one['hosts'] for one in runs if one['label'].startswith('read, '))
    # What it would be if all servers waited for what hosts give to each other, to its end.
    for way in EXCHANGED, WAITED:
        found.append(sums.ratio_target(
            head, f'reading, {way} over on demand, {readers} hosts', 1 / TARGET_READERS
            if readers >= FEWEST_READERS and way == EXCHANGED else None, runs,
            _chosen(f'read, {way}', readers),
            _chosen(f'read, {ON_DEMAND}', readers)))
    found.append(_growing_stores(head, runs, most))
    return found


def _profile(runs: Sequence[dict[str, Any]], label: str, hosts: int) -> str:
    """Tell where a way's seconds go, and what the storage node sent meanwhile. Pure."""
    mine = [one for one in runs if _chosen(label, hosts)(one)]
    sent, copied = (statistics.median(of(one) / one['file_bytes'] for one in mine) for of in (
        lambda one: one['storage_bytes'],
        lambda one: one['traffic'].get('cache', {}).get('bytes', 0)))
    busy = statistics.median(one['machine_busy'] for one in mine)
    return (f'{sums.profile(mine)}; CPUs {busy:.0%} busy; of {sent:.1f} copies {copied:.1f} not by'
            ' exchange')


def _growing_stores(head: dict[str, Any], runs: Sequence[dict[str, Any]],
                    hosts: int) -> dict[str, Any]:
    """Tell what growing stores that exchange could gain at most over what is done. Pure."""
    dilation = head['setting']['dilation']

    def middle(label: str, count: int) -> float:
        return sums.median_spread([one['seconds'] for one in runs
                                   if _chosen(label, count)(one)])[0]

    alone, storm = middle(FIRST, 1), middle(FIRST, hosts)
    instead = alone + BUILD_SECONDS * dilation + middle(EXCHANGED, hosts)
    return sums.target(
        head, f'first host, then the others by exchange, over all {hosts} at once from the storage'
        ' node', None, round(instead / storm, 4),
        f'one alone {alone:.2f} s, no exchange of growing stores is faster than that; all at once'
        f' {storm:.2f} s; the first, {BUILD_SECONDS * dilation:.0f} s of building, and the others'
        f' {instead:.2f} s')


def intro(head: dict[str, Any]) -> str:
    """Say under which conditions it was measured. Pure."""
    setting = head['setting']
    return (f'Links of {setting["rate"] / 1e6:.0f} Mbit/s. Boots are over that of one host that'
            ' boots an image nobody has booted, readings over that of one host on demand; readers'
            f' read {setting["length"] / 1e6:.0f} MB of noise from one end to the other. Copies are'
            ' all bytes that left the storage node, over those of the cache image. Each host knows'
            ' from the start from whom it gets pieces, in the order in which hosts would have'
            ' asked. Where all wait is no way of the product: it has those of the first host read'
            ' from the storage node at once, and others after some seconds. Load is how many'
            ' processes wanted the CPUs.')


def table(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Return the table's columns and lines. Pure."""
    return (['way', 'hosts', 'time', 'spread', 'seconds', 'copies sent by the storage node',
             'load'],
            [[figures.name_of(row['peer']).replace('\n', ' '), row['hosts'], row['ratio'],
              row['spread'], row['seconds'], row['copies'], row['load']] for row in rows])


def draw(head: dict[str, Any], rows: list[dict[str, Any]],
         directory: Path) -> list[tuple[str, str]]:
    """Boot time and reading time over the number of hosts; names and captions."""
    made = []
    for reads, name, title in ((False, 'exchanged-boots.svg', 'Boot time'),
                               (True, 'exchanged-readers.svg', 'Time to read the same part')):
        mine = [row for row in rows if row['peer'].startswith('read, ') == reads]
        if len({row['hosts'] for row in mine}) < 2:
            continue
        figure, axes = figures.canvas(f'{title} when many hosts begin at the same time',
                                      'hosts that begin at the same time', 'time / that of one')
        axes.set_xscale('log', base=2)
        figures.logarithmic(axes)
        for peer in figures.order({row['peer'] for row in mine}):
            figures.line(axes, peer, [(row['hosts'], row['ratio'], row['spread'])
                                      for row in mine if row['peer'] == peer])
        counts = sorted({row['hosts'] for row in mine})
        axes.set_xticks(counts, [str(count) for count in counts])
        figure.legend(fontsize=7, loc='outside right upper')
        figures.save(figure, directory / name)
        made.append((name, 'Lower is better. Bars: spread over the rounds.'))
    return made
