"""What placement has to know of this host, for one image."""

from oslo_log import log as logging

from bootcache.tier import Medium
from nova_bootcache.asking.offer import Offered
from nova_bootcache.asking.placement import HeldHere, Host, TierRoom, Trust
from nova_bootcache.cache.cacheentry import CacheEntry
from nova_bootcache.chains.parts import Parts

LOG = logging.getLogger(__name__)


class HostFacts:
    """Looks what there is, and what there is room for.

    :param parts: of the host.
    :param store_limit: bytes that a growing store may have.
    """

    def __init__(self, parts: Parts, store_limit: int):
        self._parts = parts
        self._store_limit = store_limit

    def of(self, image_id: str, entry: CacheEntry | None, offered: Offered,
           is_arriving: bool = False) -> Host:
        """Return them for one image.

        :param entry: of the cache image that is here, None if there is none.
        :param is_arriving: whether one is on its way, which servers read from.
        """
        parts, info = self._parts, offered.cache_image
        has_store = parts.below.stores.get(image_id) is not None
        rooms = {Medium.MEMORY: TierRoom.NONE, Medium.DISK: TierRoom.NONE}
        # What is made here comes by itself: nothing arrives, and servers wait for seconds.
        here = parts.fetches.room_here(offered)
        local = [medium for medium in rooms
                 if here is not None and parts.room.has_room(medium, image_id, here)]
        for medium in local:
            rooms[medium] = TierRoom.FILE
        for medium in () if local else rooms:
            if info is not None and parts.room.has_room(medium, image_id, info.bytes):
                # A store that servers read through is in the same place.
                rooms[medium] = TierRoom.ARRIVAL if not has_store and offered.is_verified \
                    and parts.arrivals.is_worth_it(offered, medium) else TierRoom.FILE
        held = _held(entry, offered, is_arriving)
        if held is HeldHere.OLDER and info is not None and set(rooms.values()) == {TierRoom.NONE}:
            LOG.info('image %s: its newer cache image of %d bytes has no room beside the older one,'
                     ' which is used; raise [bootcache]compute_disk_quota', image_id, info.bytes)
        return Host(
            held, rooms[Medium.MEMORY], rooms[Medium.DISK],
            has_store or parts.room.room_for_store(image_id, self._store_limit) is not None,
            Trust.FULL if info is None else parts.fetches.trust(image_id, info),
            info is not None and parts.fetches.asks_others(info))


def _held(entry: CacheEntry | None, offered: Offered, is_arriving: bool) -> HeldHere:
    info = offered.cache_image
    if is_arriving:
        return HeldHere.ARRIVING
    if entry is None:
        return HeldHere.NOTHING
    if entry.cache_image is None:
        return HeldHere.EMPTY
    if info is None or entry.cache_image.sha256 == info.sha256 \
            or entry.cache_image.has_data_of(info):
        return HeldHere.CURRENT
    return HeldHere.OLDER
