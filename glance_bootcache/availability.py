"""What of an image is served while Glance gives it out, and when its deletion is believed. Pure."""

import dataclasses

from bootcache.manifest import Availability, Manifest, Standing

# At most so many deletions a day that Glance did not notify, or a tenth of all images.
_LEAST_BUDGET = 5


@dataclasses.dataclass(frozen=True)
class Served:
    """What of an image is served.

    What else the page tells of follows: boots are recorded, and cache images built, where hosts are
    given them; servers that run from the base and are not settled read it in any case.

    :ivar cache_image: hosts are given its cache image.
    :ivar base_to_settle: all of the base, to hosts that settle such servers.
    :ivar hosts_keep: hosts keep a cache image that no server needs.
    """

    cache_image: bool
    base_to_settle: bool
    hosts_keep: bool


# The page about it: operations.rst, "On an image".
_SERVED = {
    Availability.ACTIVE: Served(True, True, True),
    Availability.HIDDEN: Served(True, True, True),
    Availability.MEMBER_REMOVED: Served(True, True, False),
    Availability.DEACTIVATED: Served(False, False, False),
    Availability.OFF: Served(False, False, False),
    Availability.MISSING: Served(False, True, True),
    Availability.DELETION_NOTIFIED: Served(False, True, True),
    Availability.DELETED: Served(False, True, False),
}


def served(availability: Availability) -> Served:
    """Return what of an image is served."""
    return _SERVED[availability]


def is_to_go(generation: int, manifest: Manifest | None, *, ordered: bool) -> bool:
    """Tell whether a host is to let go of a cache image as soon as no server of its needs it.

    :param generation: that the host was told when it placed it, or used it last.
    :param manifest: the image's; nothing follows where there is none, or one that cannot be read.
    :param ordered: it is to go from that host.
    """
    return ordered or (manifest is not None and (
        manifest.standing is Standing.SKIPPED or generation < manifest.wished.generation
        or not served(manifest.wished.availability).hosts_keep))


def shows_others(listed: int, others: int) -> bool:
    """Return whether a listing of Glance is of the Glance that has the other known images.

    Not that of another region, nor an answer of something that stands before Glance.

    :param listed: how many of the other known images it shows.
    :param others: how many there are.
    """
    return listed >= 1 and 2 * listed >= others


def budget(images: int) -> int:
    """Return how many deletions are believed in a day that Glance did not notify.

    :param images: how many images are known.
    """
    return max(_LEAST_BUDGET, images // 10)
