"""Whether another boot makes a working set better. Pure.

SC13 section 3.2 has one boot decide what is cached. Boots of one image differ a little, and a boot
on other hardware, or further than the first one, reads what the first did not.
"""

from collections.abc import Sequence

from bootcache import cacheimage, workingset
from bootcache.workingset import Extent

# Every new version is fetched by every host that is warm: it has to be worth that.
_LEAST_GAIN = 0.01


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
    union = workingset.union(have, fresh, granularity, virtual_bytes)

    def cached(extents: Sequence[Extent]) -> list[Extent]:
        aligned = workingset.align(extents, cluster_bytes, virtual_bytes)
        return cacheimage.fit(aligned, quota, cluster_bytes, virtual_bytes)

    wanted = workingset.align(fresh, cluster_bytes, virtual_bytes)
    before, after = cached(have), cached(union)
    gain = workingset.uncovered(wanted, before) - workingset.uncovered(wanted, after)
    if gain <= 0 or gain < _LEAST_GAIN * workingset.total_bytes(before):
        return None
    return union
