"""papers/003: mirroring on demand over striped storage; here bases in Ceph, on 1 and on 3 OSDs.

Each OSD is a machine with a link of its own. The tap stands before an exporter of files: what
travels is counted by the machines' network interfaces, for both ways in the same manner.
"""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.replay import peers_ceph, sums
from bench.replay.cephmachines import cephs
from bench.replay.cluster import cluster
from bench.replay.host import Image
from bench.replay.peers import Peer
from bench.replay.setting import Journal, Point, Setting, extents_of, interleaved, recorded

NAME = 'on-ceph'
TITLE = 'Bases on Ceph, on one OSD and on three (papers/003)'
OSDS = 1, 3
QUICK = Setting(False, 100_000_000, 0.5, 1, ('small',), (4,))
FULL = Setting(True, 100_000_000, 3.0, 3, ('small',), (1, 4, 8))
EXPORTER, CEPH = 'by exporter', 'from Ceph'
FIRST, COLD = 'bootcache first, base', 'bootcache, base'


def label(kind: str, way: str) -> str:
    """Return what a point is called, without the number of OSDs."""
    return f'{kind} {way}' + (' cold' if kind == COLD else '')


def run(setting: Setting, directory: Path) -> None:
    """Measure, and leave the journal in the report's directory."""
    path, (profile, played) = recorded(setting.images[0])
    journal = Journal(directory, NAME, setting.to_json([played]))
    with cluster(max(setting.hosts), 0, dilation=setting.dilation, machines=sum(OSDS)) as made, \
            cephs(made.network, OSDS) as stores:
        base = made.add_image(path, 'qcow2', played.header.virtual_bytes, extents_of(profile),
                              compression=setting.compression[0])
        images = {}
        for osds, ceph in stores.items():
            answer = made.node.call('serve_in_ceph', base.image_id, base.answer['raw_path'],
                                    str(ceph.conf))
            images[osds] = Image(base.image_id, {**base.answer, **answer}, 'raw')
        # What was to be there has come without waiting for links.
        made.network.shape(setting.rate)
        points = []
        for hosts in setting.hosts:
            for osds, ceph in stores.items():
                ways: list[Peer] = [
                    peers_ceph.FirstByExporter(), peers_ceph.FirstFromCeph(str(ceph.conf)),
                    peers_ceph.ColdByExporter(), peers_ceph.ColdFromCeph(str(ceph.conf))]
                points += [Point(way, images[osds], played, hosts, {'osds': osds}) for way in ways]
        for repeat, point in interleaved(points, setting.repeats):
            machines = stores[point.more['osds']].machines
            before = [made.network.sent(name) for name in (made.network.storage, *machines)]
            one, = made.run(point.peer, [point.image], [point.trace], point.hosts,
                            scale=setting.scale, overhead=journal.overhead, verify=True)
            after = [made.network.sent(name) for name in (made.network.storage, *machines)]
            storage, *from_osds = (now - then for then, now in zip(before, after, strict=True))
            journal.keep({**one.to_json(), 'repeat': repeat, 'image': setting.images[0],
                          **point.more, 'storage_bytes': storage, 'osd_bytes': from_osds},
                         f'{one.label:40} {point.hosts} hosts {point.more["osds"]} OSDs'
                         f' {one.seconds:7.2f} s  storage node {storage / 1e6:.1f} MB, OSDs'
                         f' {", ".join(f"{count / 1e6:.1f}" for count in from_osds)} MB')


def rows(head: dict[str, Any], runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the report's rows: times over those through the exporter with one OSD. Pure."""
    found = []
    for hosts in sorted({one['hosts'] for one in runs}):
        those = [one for one in runs if one['hosts'] == hosts]
        made = sums.rows(
            head, those, NAME, ('image', 'label', 'hosts', 'osds'),
            lambda one: one['label'] == label(FIRST, EXPORTER) and one['osds'] == 1,
            'all hosts at the same time; mean of their boot times; ratio: over the first boots'
            ' through the exporter with one OSD')
        for row in made:
            mine = [one for one in those if (one['label'], one['osds']) == (row['peer'],
                                                                         row['osds'])]
            row['storage_bytes'] = statistics.median(one['storage_bytes'] for one in mine)
            row['osd_bytes'] = statistics.median(sum(one['osd_bytes']) for one in mine)
            row['most_of_one_osd_bytes'] = statistics.median(
                max(one['osd_bytes']) for one in mine)
            row['machine_busy'] = statistics.median(one['machine_busy'] for one in mine)
        found += made
    return found


def targets(head: dict[str, Any], runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Judge contents; tell what direct reading and three OSDs make of time and bytes. Pure."""
    digests = {digest for one in runs for digest in one['digests'] if digest}
    found = [sums.target(head, 'contents that boots of one image have read', 1, len(digests))]
    most = max(one['hosts'] for one in runs)
    for kind in (FIRST, COLD):
        for osds in OSDS:
            found.append(_told(head, runs, f'{label(kind, CEPH)} over {label(kind, EXPORTER)},'
                               f' {osds} OSDs, {most} hosts', (label(kind, CEPH), osds, most),
                               (label(kind, EXPORTER), osds, most)))
        for way in (EXPORTER, CEPH):
            found.append(_told(head, runs, f'{label(kind, way)}: {OSDS[-1]} OSDs over {OSDS[0]},'
                               f' {most} hosts', (label(kind, way), OSDS[-1], most),
                               (label(kind, way), OSDS[0], most)))
    return found


def _told(head: dict[str, Any], runs: Sequence[dict[str, Any]], name: str,
          chosen: tuple[str, int, int], reference: tuple[str, int, int]) -> dict[str, Any]:
    def is_of(one: dict[str, Any], point: tuple[str, int, int]) -> bool:
        return (one['label'], one['osds'], one['hosts']) == point

    values = sums.ratios(runs, lambda one: is_of(one, chosen), lambda one: is_of(one, reference))
    value, spread = sums.median_spread(values)
    busy = statistics.median(one['machine_busy'] for one in runs if is_of(one, chosen))
    return sums.target(head, name, None, value, f'spread {spread} over {len(values)} rounds; this'
                       f' machine\'s CPUs were {busy:.0%} busy')


def intro(head: dict[str, Any]) -> str:
    """Say under which conditions it was measured, and what that can show. Pure."""
    setting = head['setting']
    return (f'Two Cephs, of one OSD and of three, in the same run; each OSD, the storage node and'
            f' each host has a link of {setting["rate"] / 1e6:.0f} Mbit/s, think times x'
            f' {setting["scale"]:g}: it stands for {setting["stands_for"]}, and all times are'
            f' {setting["dilation"]:g} times longer. *First*: nobody has booted the image, and'
            ' hosts keep what they read (papers/003: mirroring on demand). *Cold*: hosts fetch the'
            ' cache image from the storage node first (chunks prefetched in first-read order). A'
            ' host that reads in Ceph makes its clone within the boot, by commands of Ceph, which'
            ' are not stretched as all else is. One machine shows whose link is filled, and by how'
            ' many bytes: with the exporter all goes by the storage node\'s, in and out, else'
            ' from the OSDs to the hosts. It cannot show more throughput than its'
            f' {head["cpus"]} CPUs have, which OSDs, hosts and guests share; nor what disks of'
            ' OSDs give, as theirs are one file system, and hold the base in memory after the'
            ' first read.')


def table(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Return the table's columns and lines. Pure."""
    return (['peer', 'hosts', 'OSDs', 'ratio', 'spread', 'seconds', 'until the disk is made, s',
             'storage node sent, MB', 'OSDs sent, MB', 'of them the busiest, MB', 'CPUs busy'],
            [[row['peer'], row['hosts'], row['osds'], row['ratio'], row['spread'],
              f'{row["seconds"]:.2f}', f'{row["disk_seconds"]:.2f}',
              *(f'{row[name] / 1e6:.1f}' for name in
                ('storage_bytes', 'osd_bytes', 'most_of_one_osd_bytes')),
              f'{row["machine_busy"]:.0%}'] for row in rows])


def draw(head: dict[str, Any], rows: list[dict[str, Any]],
         directory: Path) -> list[tuple[str, str]]:
    """No figure: the table says it."""
    return []
