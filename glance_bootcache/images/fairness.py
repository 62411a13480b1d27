"""Whose boots count, of those that teach nothing or wait for others that confirm them. Pure.

An image may be everybody's, and what a server reads is its owner's to choose. So one owner has at
most half of what there is room for: nobody ends an image's refinement for others, or has what
others' boots read forgotten.
"""

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from bootcache.refinement import Boot

# Boots that are remembered of an image until another one confirms what they read, and their
# extents. An extent takes 150 bytes, a boot some kilobytes.
MOST_UNCONFIRMED = 8
MOST_EXTENTS = 50_000

# How many boots of each owner; that of servers whose hosts do not tell it is empty.
Counts = Mapping[str, int]


def most_of(owner: str, places: int) -> int:
    """Return how many of some places an owner may have; one that is not known may be anybody."""
    return -(-places // 2) if owner else places


def counted(counts: Counts, owner: str) -> Counts:
    """Return counts with one more boot of an owner."""
    return {**counts, owner: counts.get(owner, 0) + 1}


def may_count(counts: Counts, owner: str, enough: int) -> bool:
    """Tell whether another boot of an owner is looked at.

    :param counts: of those that were in vain.
    :param enough: how many of these there may be.
    """
    return sum(min(count, most_of(who, enough)) for who, count in counts.items()) < enough \
        and counts.get(owner, 0) < most_of(owner, enough)


def extents(boots: Iterable[Boot]) -> int:
    """Return how many extents boots have, and 1: so that the number of images is bounded, too."""
    return 1 + sum(len(boot.extents) for boot in boots)


def remembered(boots: Sequence[Boot]) -> tuple[Boot, ...]:
    """Return the boots of an image that are remembered: the last ones, within the bounds.

    :param boots: in the order in which they were reported.
    """
    kept: list[Boot] = []
    of_owner: collections.Counter[str] = collections.Counter()
    for boot in reversed(boots):
        if len(kept) < MOST_UNCONFIRMED \
                and of_owner[boot.owner] < most_of(boot.owner, MOST_UNCONFIRMED):
            of_owner[boot.owner] += 1
            # Of one that read more, what it read first: another boot may confirm that.
            kept.insert(0, dataclasses.replace(boot, extents=boot.extents[:MOST_EXTENTS - 1]))
    while extents(kept) > MOST_EXTENTS:
        sizes: collections.Counter[str] = collections.Counter()
        for boot in kept:
            sizes[boot.owner] += len(boot.extents)
        # The oldest one of whoever has most.
        kept.remove(next(boot for boot in kept if boot.owner == sizes.most_common(1)[0][0]))
    return tuple(kept)
