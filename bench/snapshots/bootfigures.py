"""What boots from a snapshot tell: bytes over those that differ, times over each other's. Pure.

The limit of bytes is what differs between a snapshot's cache image and its server's image's, in
blocks of 4 KiB. Times are compared within one run, with one link, only.
"""

import random
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


def line(way: str, link: int, *, chain: float, booted: float, sent: int, sent_until_booted: int,
         sizes: Mapping[str, int], building: Mapping[str, float], load: float) -> dict[str, Any]:
    """Return one run of the report.

    :param way: one of WAYS.
    :param link: of each link, bits a second.
    :param chain: seconds from when a server is asked for until its disk can be read.
    :param booted: until it has booted.
    :param sent: bytes, with headers, that the storage node sent, until all has come that comes.
    :param sent_until_booted: of these, until the server had booted.
    :param sizes: in bytes: ``differing``, ``changed`` of all of the disk, ``data`` that the cache
        image holds, ``cache`` of its file, ``difference`` of that, ``image`` of the snapshot.
    :param building: seconds on the storage node: ``cache``, and ``difference`` besides.
    :param load: of this machine, when the run ended.
    """
    return {'what': WHAT, 'way': way, 'link_mbit': round(link / 1e6),
            'seconds_to_chain': round(chain, 3), 'seconds_to_booted': round(booted, 3),
            'network_bytes': sent, 'network_until_booted_bytes': sent_until_booted,
            **{f'{name}_bytes': size for name, size in sizes.items()},
            **{f'{name}_build_seconds': round(took, 2) for name, took in building.items()},
            'load': round(load, 1)}


def medians(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one line for all repeats of a run, with medians."""
    return figures.medians(runs, ('differing_bytes', 'link_mbit', 'way'))


def ratios(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return each way's medians over what differs, and over those of other ways in the same run."""
    lines = {(one['differing_bytes'], one['link_mbit'], one['way']): one for one in medians(runs)}
    found = []
    for (size, link, way), one in lines.items():
        told = {'what': WHAT, 'way': way, 'differing_bytes': size, 'link_mbit': link,
                'network_over_differing': one['network_bytes'] / one['differing_bytes']}
        for other in (ARRIVES, FETCHED, STOCK):
            beside = lines.get((size, link, other))
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
                f'{WHAT}, {one["differing_bytes"]} bytes differ, {one["link_mbit"]} Mbit/s,'
                f' {one["way"]}: network_over_differing', None if one['way'] == STOCK else TARGET,
                one['network_over_differing']))
    return found


def table(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the medians as lines of text."""
    found = [f'{WHAT + ", way":32} {"Mbit/s":>6} {"differs":>9} {"moved":>11} {"cache image":>11}'
             f' {"snapshot":>11} {"chain, s":>9} {"booted, s":>9}']
    for one in medians(runs):
        columns = ' '.join(f'{one[name]:{width}.0f}' for name, width in (
            ('differing_bytes', 9), ('network_bytes', 11), ('cache_bytes', 11),
            ('image_bytes', 11)))
        found.append(f'{one["way"]:32} {one["link_mbit"]:6.0f} {columns}'
                     f' {one["seconds_to_chain"]:9.2f} {one["seconds_to_booted"]:9.2f}')
    return found
