"""Whether other boots make a working set better, and by how much. Pure.

SC13 section 3.2 has one boot decide what is cached. Boots of one image differ a little, and a boot
on other hardware, or further than the first one, reads what the first did not.

What a server reads is its tenant's to choose, and every new version is fetched by every host that
is warm. So one server's boot alone never makes a working set larger: what it read beyond that
counts once another server's boot has read it, too; and a refinement adds a bounded part.
"""

import dataclasses
from collections.abc import Iterable, Sequence

from bootcache import cachelayout, workingset
from bootcache.workingset import Extent

# Every new version is fetched by every host that is warm: it has to be worth that.
_LEAST_GAIN = 0.01
# Boots of one image on one kind of hardware differ by less than a thousandth of what they read, and
# services that come up in another order by some percent. What is more is something else than the
# boot. The least is for images that read little: to the paper's 512 MB it is nothing.
MOST_GAIN = 0.25
LEAST_BOUND = 4 << 20
# What ends a boot at its end. One that was cut short tells too little, and of one that never became
# quiet nobody knows what belongs to it.
WHOLE = frozenset({'marker', 'silence'})
_CUT_SHORT = 'shutdown'
# A growing store that has no room for more, as a disk that is full or one that other servers have
# filled, ends a boot like the quota. By that itself a set comes near to it.
_QUOTA = 'quota'
_LEAST_OF_QUOTA = 0.5
# A kernel alone has megabytes: silence after less is that of a guest which was paused, as on a
# host with too much to do.
_LEAST_BOOT = 1 << 20


@dataclasses.dataclass(frozen=True)
class Boot:
    """One server's boot, as its host reports it.

    :ivar server_id: the server.
    :ivar host: the compute host that it booted on.
    :ivar began: seconds, on any clock.
    :ivar ended: seconds, on the same.
    :ivar ended_by: marker, silence, quota, timeout or shutdown.
    :ivar extents: what it read, in first-read order.
    :ivar owner: the server's project; empty if it is not known.
    """

    server_id: str
    host: str
    began: float
    ended: float
    ended_by: str
    extents: tuple[Extent, ...]
    owner: str = ''


@dataclasses.dataclass(frozen=True)
class Lesson:
    """What a boot teaches about a working set that there is.

    :ivar extents: of a new version; None if it makes none.
    :ivar unconfirmed: what the boot read that no other boot has read yet: to be remembered until
        one does, with whole clusters for its extents; None if there is nothing new.
    """

    extents: list[Extent] | None = None
    unconfirmed: Boot | None = None


def learn(have: Sequence[Extent], recorded_to: str, boot: Boot, earlier: Iterable[Boot], *,
          only_host: bool, quota: int, cluster_bytes: int, granularity: int,
          virtual_bytes: int) -> Lesson:
    """Return what a boot teaches about a working set.

    A set whose own boot was cut short, or was paused, is a part of a boot: the next one that was
    not cut short takes its place as the first one, by itself. So is one that ended by the quota,
    far from it. Any other set grows by what two independent boots read, both to their ends.

    :param have: the working set's extents, in first-read order.
    :param recorded_to: what ended the boot that made the set.
    :param earlier: boots before this one that were remembered, of this version of the set.
    :param only_host: whether the cloud has one compute host.
    :param quota: bytes that the cache image may have.
    :param cluster_bytes: cluster size of cache images.
    :param granularity: bytes to which the working set is rounded.
    :param virtual_bytes: size of the base.
    """
    def refined(extents: Sequence[Extent]) -> list[Extent] | None:
        return refine(have, extents, quota=quota, cluster_bytes=cluster_bytes,
                      granularity=granularity, virtual_bytes=virtual_bytes)

    read = workingset.total_bytes(have)
    is_part = recorded_to == _CUT_SHORT or (recorded_to == 'silence' and read < _LEAST_BOOT) \
        or (recorded_to == _QUOTA and read < _LEAST_OF_QUOTA * quota)
    if is_part and boot.ended_by != _CUT_SHORT:
        return Lesson(refined(boot.extents))
    if boot.ended_by not in WHOLE or refined(boot.extents) is None:
        return Lesson()
    unconfirmed = dataclasses.replace(boot, extents=tuple(
        beyond(have, boot.extents, cluster_bytes, virtual_bytes)))
    agreed = confirmed(unconfirmed, earlier, have, only_host=only_host,
                       cluster_bytes=cluster_bytes, virtual_bytes=virtual_bytes)
    return Lesson(refined(agreed), unconfirmed)


def confirms(one: Boot, other: Boot, only_host: bool) -> bool:
    """Tell whether two boots are independent of each other.

    Servers of one host share a growing store, so what one of them reads may be in the record of
    the other: they have to be on different hosts. In a cloud of one host it is enough that they did
    not boot at the same time; nobody else fetches what comes of it.

    :param only_host: whether the cloud has one compute host.
    """
    if one.server_id == other.server_id:
        return False
    if one.host != other.host:
        return True
    return only_host and (one.began >= other.ended or other.began >= one.ended)


def _clusters(extents: Iterable[Extent], cluster_bytes: int) -> Iterable[int]:
    for extent in extents:
        yield from range(extent.offset // cluster_bytes, (extent.end - 1) // cluster_bytes + 1)


def _select(extents: Iterable[Extent], cluster_bytes: int, virtual_bytes: int,
            clusters: set[int], inside: bool) -> list[Extent]:
    pieces = (Extent(number * cluster_bytes, 1) for number in _clusters(extents, cluster_bytes)
              if (number in clusters) is inside)
    return workingset.align(pieces, cluster_bytes, virtual_bytes)


def most_gain(have: Sequence[Extent]) -> int:
    """Return the bytes that a refinement of a working set may add."""
    return max(LEAST_BOUND, int(MOST_GAIN * workingset.total_bytes(have)))


def beyond(have: Sequence[Extent], seen: Sequence[Extent], cluster_bytes: int,
           virtual_bytes: int) -> list[Extent]:
    """Return the clusters that a boot read and a working set has not, in first-read order.

    At most as many bytes as the working set has, or 4 times a refinement's least bound: what is
    kept of a boot until another one confirms it is bounded, and no boot reads its set once more.

    :param cluster_bytes: of cache images.
    :param virtual_bytes: size of the base.
    """
    known = set(_clusters(have, cluster_bytes))
    fresh = _select(seen, cluster_bytes, virtual_bytes, known, False)
    return workingset.clip(fresh, max(4 * LEAST_BOUND, workingset.total_bytes(have)))


def confirmed(boot: Boot, earlier: Iterable[Boot], have: Sequence[Extent], *, only_host: bool,
              cluster_bytes: int, virtual_bytes: int) -> list[Extent]:
    """Return what a boot adds to a working set, as other boots read it, too: a bounded part.

    :param boot: what it read beyond the working set.
    :param earlier: the same of boots before it.
    :param have: the working set's extents.
    :param only_host: whether the cloud has one compute host.
    :param cluster_bytes: of cache images.
    :param virtual_bytes: size of the base.
    """
    others: set[int] = set()
    for other in earlier:
        if confirms(boot, other, only_host):
            others.update(_clusters(other.extents, cluster_bytes))
    agreed = _select(boot.extents, cluster_bytes, virtual_bytes, others, True)
    whole = most_gain(have) // cluster_bytes * cluster_bytes
    return workingset.clip(agreed, whole)


def refine(have: Sequence[Extent], seen: Sequence[Extent], *, quota: int, cluster_bytes: int,
           granularity: int, virtual_bytes: int) -> list[Extent] | None:
    """Return the union of a working set and what another boot read, if it is worth a new version.

    What is new comes last, so that at its quota a cache image loses nothing of what it had. A new
    version is worth it if the boot that was seen would have missed less from a cache image of it:
    at least a hundredth of what the cache image holds.

    :param have: the working set's extents, in first-read order.
    :param seen: what another boot read, or what it missed.
    :param quota: bytes that the cache image may have.
    :param cluster_bytes: cluster size of cache images.
    :param granularity: bytes to which the working set is rounded.
    :param virtual_bytes: size of the base.
    :returns: None if there is nothing to be gained.
    """
    # The times of another boot say nothing beside those of the first.
    fresh = [Extent(extent.offset, extent.length) for extent in seen]
    union = workingset.align([*have, *fresh], granularity, virtual_bytes)

    def cached(extents: Sequence[Extent]) -> list[Extent]:
        aligned = workingset.align(extents, cluster_bytes, virtual_bytes)
        return cachelayout.fit(aligned, quota, cluster_bytes, virtual_bytes)

    wanted = workingset.align(fresh, cluster_bytes, virtual_bytes)
    before, after = cached(have), cached(union)
    gain = workingset.uncovered(wanted, before) - workingset.uncovered(wanted, after)
    if gain <= 0 or gain < _LEAST_GAIN * workingset.total_bytes(before):
        return None
    return union
