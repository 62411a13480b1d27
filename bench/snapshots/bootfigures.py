"""What boots from snapshots tell: bytes over those that differ, times over each other's. Pure.

The limit of bytes is what differs between a snapshot's cache image and its server's image's, in
blocks of 4 KiB. Times are compared within one run, with one link, only.
"""

import random
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bench.snapshots import figures
from bench.snapshots.guestwrites import BLOCK, PIECES
from bootcache import workingset
from bootcache.workingset import Extent

WHAT = 'boot from a snapshot'
# Its host has the cache image of the server's image, as it came or expanded, and gets what differs;
# or has nothing, and gets the cache image, while servers read from it or before; or gets all of it.
MADE, MADE_EXPANDED = 'made of its parent\'s', 'made of its parent\'s, expanded'
ARRIVES, FETCHED, STOCK = 'arrives', 'fetched', 'stock'
WAYS = MADE, MADE_EXPANDED, ARRIVES, FETCHED, STOCK
# Of a deployment that is resumed elsewhere.
RESUMED = MADE, ARRIVES, STOCK
TARGET = 1.1


def written(extents: Sequence[Extent], virtual_bytes: int, within: int, changed: int,
            seed: int) -> list[Extent]:
    """Return what a server has written: some of what its image's boots read, and elsewhere.

    :param extents: what these read, in whole blocks.
    :param virtual_bytes: size of the disk.
    :param within: bytes of the extents to write.
    :param changed: bytes to write in all, the former included.
    """
    source = random.Random(seed)
    read = {block for extent in extents
            for block in range(extent.offset // BLOCK, extent.end // BLOCK)}
    starts = sorted(read)
    if within > len(read) * BLOCK:
        raise ValueError(f'boots read {len(read) * BLOCK} bytes, and not {within}')
    inside = set[int]()
    while (left := within // BLOCK - len(inside)) > 0:
        begin, length = source.choice(starts), source.choice(PIECES) // BLOCK
        inside.update(_run(begin, min(length, left), read))
    blocks = set(inside)
    while (left := changed // BLOCK - len(blocks)) > 0:
        length = min(source.choice(PIECES) // BLOCK, left)
        begin = source.randrange(virtual_bytes // BLOCK - length)
        blocks.update(block for block in range(begin, begin + length) if block not in read)
    return workingset.align([Extent(block * BLOCK, BLOCK) for block in sorted(blocks)], BLOCK,
                            virtual_bytes)


def _run(begin: int, length: int, read: set[int]) -> list[int]:
    """Return the blocks from one on, as far as all of them are read."""
    found: list[int] = []
    while len(found) < length and begin + len(found) in read:
        found.append(begin + len(found))
    return found


def differing(wrote: Sequence[Extent], extents: Sequence[Extent], cluster_bytes: int,
              virtual_bytes: int) -> int:
    """Return the bytes of a cache image that were written: it has whole clusters.

    :param extents: what boots read, of which it is built.
    """
    held = workingset.align(extents, cluster_bytes, virtual_bytes)
    return workingset.total_bytes(wrote) - workingset.uncovered(wrote, held)


def line(way: str, link: int, *, chains: Sequence[float], booted: Sequence[float], sent: int,
         sent_until_booted: int, sizes: Sequence[Mapping[str, int]],
         building: Sequence[Mapping[str, float]], load: float) -> dict[str, Any]:
    """Return one run of the report: servers that boot at the same time, each from a snapshot.

    :param way: one of WAYS.
    :param link: of each link, bits a second.
    :param chains: seconds from when each server is asked for until its disk can be read.
    :param booted: until each has booted.
    :param sent: bytes, with headers, that the storage node sent, until all has come that comes.
    :param sent_until_booted: of these, until the servers had booted.
    :param sizes: of each snapshot in bytes: ``differing``, ``changed`` of all of the disk, ``data``
        that the cache image holds, ``cache`` of its file, ``difference`` of that, ``image`` of the
        snapshot. The run has their sums.
    :param building: seconds on the storage node of each: ``cache``, and ``difference`` besides.
    :param load: of this machine, when the run ended.
    """
    return {'what': WHAT, 'servers': len(sizes), 'way': way, 'link_mbit': round(link / 1e6),
            'seconds_to_chain': round(max(chains), 3), 'seconds_to_booted': round(max(booted), 3),
            'median_seconds_to_booted': round(statistics.median(booted), 3),
            'network_bytes': sent, 'network_until_booted_bytes': sent_until_booted,
            **{f'{name}_bytes': sum(one[name] for one in sizes) for name in sizes[0]},
            **{f'{name}_build_seconds': round(sum(one[name] for one in building), 2)
               for name in building[0]},
            'load': round(load, 1)}


def medians(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one line for all repeats of a run, with medians."""
    return figures.medians(runs, ('servers', 'differing_bytes', 'link_mbit', 'way'))


def ratios(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return each way's medians over what differs, and over those of other ways in the same run."""
    lines = {(one['servers'], one['differing_bytes'], one['link_mbit'], one['way']): one
             for one in medians(runs)}
    found = []
    for (servers, size, link, way), one in lines.items():
        told = {'what': WHAT, 'servers': servers, 'way': way, 'differing_bytes': size,
                'link_mbit': link,
                'network_over_differing': one['network_bytes'] / one['differing_bytes']}
        for other in (ARRIVES, FETCHED, STOCK):
            beside = lines.get((servers, size, link, other))
            if beside is not None and other != way:
                told |= {f'{short}_over_{other}': one[long] / beside[long] for short, long in (
                    ('network', 'network_bytes'), ('chain', 'seconds_to_chain'),
                    ('booted', 'seconds_to_booted'))}
        found.append(figures.rounded(told))
    return found


def judged(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the target of bytes, and whether it is met; what stock moves is told only."""
    found = []
    for one in ratios(runs):
        if one['way'] in (MADE, MADE_EXPANDED, STOCK):
            found.append(figures.target(
                f'{WHAT}, {one["servers"]} servers, {one["differing_bytes"]} bytes'
                f' differ, {one["link_mbit"]} Mbit/s, {one["way"]}: network_over_differing',
                None if one['way'] == STOCK else TARGET, one['network_over_differing']))
    return found


def table(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the medians as lines of text."""
    found = [f'{WHAT + ", way":32} {"servers":>7} {"Mbit/s":>6} {"differs":>9} {"moved":>11}'
             f' {"cache image":>11} {"snapshot":>11} {"chain, s":>9} {"booted, s":>9}']
    for one in medians(runs):
        columns = ' '.join(f'{one[name]:{width}.0f}' for name, width in (
            ('differing_bytes', 9), ('network_bytes', 11), ('cache_bytes', 11),
            ('image_bytes', 11)))
        found.append(f'{one["way"]:32} {one["servers"]:7} {one["link_mbit"]:6.0f} {columns}'
                     f' {one["seconds_to_chain"]:9.2f} {one["seconds_to_booted"]:9.2f}')
    return found
