"""SC13 figures 8 to 10 and table 2: what a quota costs, by cluster size; one host."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.replay import figures, peers, sums, trace
from bench.replay.cluster import cluster
from bench.replay.setting import (
    BOTH,
    GIGABIT,
    Journal,
    Point,
    Setting,
    extents_of,
    measure,
    recorded,
)
from bootcache import workingset
from bootcache.cachelayout import Compression

NAME = 'quota'
TITLE = 'Quota and cluster size (SC13, figures 8 to 10 and table 2)'
# A quota bounds a cache image as if nothing was compressed.
_WARM = {Compression.NONE: ('bootcache warm',),
         Compression.ZSTD: ('bootcache zstd warm', 'bootcache zstd expanded')}
REFERENCE = 'on demand'
QUICK = Setting(False, GIGABIT, 0.125, 1, ('small',), compression=BOTH)
FULL = Setting(True, 100_000_000, 1.0, 3, ('small', 'debian'), compression=BOTH)
# Quotas as parts of what the boot reads; more than 1 leaves room for the tables.
_PARTS = {False: (0.5, 1.5), True: (0.1, 0.25, 0.5, 0.75, 1.0, 1.5)}
_CLUSTERS = {False: (512, 65536), True: (512, 4096, 65536)}
# QEMU 7.2 opens no smaller ones faster than it must, and the product does not use them.
_OUR_CLUSTERS = {False: (65536,), True: (4096, 65536)}


def run(setting: Setting, directory: Path) -> None:
    """Measure, and leave the journal in the report's directory."""
    images = [recorded(name) for name in setting.images]
    journal = Journal(directory, NAME, setting.to_json([traces[1] for _path, traces in images]))
    with cluster(1, setting.rate, dilation=setting.dilation) as made:
        points = []
        for path, (profile, played) in images:
            size = played.header.virtual_bytes
            unique = workingset.total_bytes(trace.read_extents(played.boot, 512, size))
            plain = made.add_image(path, 'qcow2', size)
            points.append(Point(peers.OnDemand(), plain, played, 1, {'unique_bytes': unique}))
            for part in _PARTS[setting.full]:
                quota = int(unique * part)
                more = {'part': part, 'quota': quota, 'unique_bytes': unique}
                points += [
                    Point(peers.Sc13(cluster_bytes, quota), plain, played, 1,
                          {**more, 'cluster_bytes': cluster_bytes})
                    for cluster_bytes in _CLUSTERS[setting.full]]
                for cluster_bytes, way in itertools.product(
                        _OUR_CLUSTERS[setting.full], (peers.Ours(), peers.OursCompressed())):
                    if way.compression not in setting.compression:
                        continue
                    ours = made.add_image(path, 'qcow2', size, extents_of(profile), quota,
                                          cluster_bytes, compression=way.compression)
                    points.append(Point(way, ours, played, 1, {
                        **more, 'cluster_bytes': cluster_bytes,
                        'cache_bytes': ours.answer['cache_image']['bytes']}))
        measure(made, points, setting, journal)


def rows(head: dict[str, Any], runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the report's rows: boot times over the on-demand boot's of the same round. Pure."""
    return sums.rows(head, runs, NAME, ('image', 'label', 'hosts', 'cluster_bytes', 'part'),
                     lambda one: one['label'] == REFERENCE, 'one host; part: quota over what the'
                     ' boot reads')


def targets(head: dict[str, Any], runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Judge this row's targets. Pure."""
    warm = {label for labels in _WARM.values() for label in labels}
    whole = [one for one in runs if one['label'] in warm and one['part'] > 1]
    found = [sums.target(head, 'bytes of the base read by warm boots with room for all', 0,
                         sum(one['traffic'].get('base', {}).get('bytes', 0) for one in whole))]
    for cluster_bytes, (kind, labels) in itertools.product(
            sorted({one['cluster_bytes'] for one in whole}), _WARM.items()):
        over = [one['cache_bytes'] / one['unique_bytes'] for one in whole
                if one['cluster_bytes'] == cluster_bytes and one['label'] in labels]
        if over:
            found.append(sums.target(
                head, f'cache image over unique bytes, {cluster_bytes}-byte clusters'
                + (' (table 2)' if kind is Compression.NONE else f', {kind}'), None,
                round(max(over), 4)))
    return found + sums.compressed(
        head, runs, lambda one: (one['image'], one.get('cluster_bytes'), one.get('part')),
        lambda one: f'{one["part"]} of what the boot reads, {one["cluster_bytes"]}-byte clusters')


def _cost(row: dict[str, Any], base: dict[str, Any], kind: str) -> tuple[float, float]:
    """Return what a boot costs, and the spread of that."""
    if kind == 'time':
        return row['ratio'], row['spread']
    return (row['base_bytes'] + row['cache_bytes']) / base['base_bytes'], 0.0


def draw(head: dict[str, Any], rows: list[dict[str, Any]],
         directory: Path) -> list[tuple[str, str]]:
    """Boot time and bytes over the quota, one figure each an image; names and captions."""
    made = []
    for image in sorted({row['image'] for row in rows}):
        mine = [row for row in rows if row['image'] == image]
        base = next(row for row in mine if row['peer'] == 'on demand')
        for kind, up in (('time', 'boot time / on demand'),
                         ('bytes', 'bytes from the storage node / on demand')):
            figure, axes = figures.canvas(f'What a quota costs, one host ({image})',
                                   'quota / what the boot reads', up)
            for peer in figures.order(row['peer'] for row in mine if row.get('part')):
                sizes = sorted({row['cluster_bytes'] for row in mine if row['peer'] == peer})
                for number, size in enumerate(sizes):
                    points = [(row['part'], *_cost(row, base, kind)) for row in mine
                              if row['peer'] == peer and row['cluster_bytes'] == size]
                    colour, marker, dashes = figures.style(peer)
                    xs, ys, spreads = zip(*sorted(points), strict=True)
                    axes.errorbar(xs, ys, [spread / 2 for spread in spreads], color=colour,
                                  marker=marker, linestyle=dashes, alpha=1 - 0.3 * number,
                                  capsize=2, label=f'{peer}, clusters of {size} bytes')
            axes.axhline(1, color='#3b5b92', linewidth=0.8)
            figure.legend(fontsize=7, loc='outside right upper')
            name = f'quota-{image}-{kind}.svg'
            figures.save(figure, directory / name)
            made.append((name, 'Lower is better; 1 is the boot that reads all over the network.'))
    return made
