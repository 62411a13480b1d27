"""A cluster's sizes, and what one of its compute hosts holds."""

import collections
import dataclasses
from typing import Any

import simpy

from bench.cluster import calibration, exchange
from bench.cluster.links import FairLink
from bench.cluster.scheduling import Hardware
from bench.cluster.storage import Node
from bench.cluster.workload import Load
from bootcache import tier
from bootcache.tier import Item, Medium, TierLimits


@dataclasses.dataclass(frozen=True)
class Cluster:
    """What a run is of.

    :ivar hosts: how many.
    :ivar host_link: bytes a second.
    :ivar disk_quota: bytes of compute disk.
    :ivar memory_quota: bytes of compute memory; 0 for none.
    :ivar candidates: Placement's limit, ``[scheduler]max_placement_results``.
    :ivar settle: whether servers settle.
    :ivar settle_delay: seconds that a server runs before it settles, ``[bootcache]settle_delay``.
    :ivar settle_rate: bytes a second, ``[bootcache]settle_bandwidth``.
    :ivar base_age: seconds after which an unused base goes, Nova's
        ``remove_unused_original_minimum_age_seconds``.
    :ivar store_quota: bytes that a growing store may have, ``[bootcache]store_quota``.
    :ivar new_images: whether no boot of any image was reported before the run: the storage service
        asks for reports of the first ones then.
    :ivar exchange: whether hosts give cache images to each other, as those with an
        ``[bootcache]exchange_address`` do.
    :ivar exchange_parts: in which these come, a power of two. The more of them, the nearer to the
        file's pieces, and the longer it takes to compute.
    :ivar guest_seconds: that a guest's boot takes where all its data is on the host.
    :ivar homes: whether each image has one of the storage nodes as its home; else these are taken
        as one that is as many times as large.
    :ivar lost_after: seconds after the largest batch of real arrivals until the home of its image
        is lost; None if no node is lost.
    """

    hosts: int
    load: Load
    hardware: Hardware = dataclasses.field(default_factory=Hardware)
    node: Node = dataclasses.field(default_factory=Node)
    host_link: float = 10e9 / 8
    disk_quota: int = 10 << 30
    memory_quota: int = 0
    candidates: int = 1000
    settle: bool = True
    settle_delay: float = 60.0
    settle_rate: float = 50 << 20
    base_age: float = 86400.0
    store_quota: int = 512 << 20
    new_images: bool = False
    exchange: bool = False
    exchange_parts: int = 128
    guest_seconds: float = calibration.BOOT_SECONDS.value / calibration.KVM_FASTER
    homes: bool = False
    lost_after: float | None = None

    @property
    def pace(self) -> float:
        """Seconds a byte at which a guest reads what is there."""
        return self.guest_seconds / calibration.BOOT_BYTES.value


class Tier:
    """One tier of one host.

    :ivar held: cache images, what comes included: their bytes, and when they were used last.
    :ivar stores: growing stores, by image, and their bytes.
    """

    def __init__(self, quota: int):
        self.limits = TierLimits.from_percent(quota, 95, 85)
        self.held: dict[int, tuple[int, float]] = {}
        self.stores: dict[int, int] = {}

    def plan(self, host: 'Host', size: int) -> tier.Eviction:
        """Ask the product's eviction for room."""
        items = [Item(str(image), held, used,
                      busy=host.busy[image] > 0 or image in host.arriving)
                 for image, (held, used) in self.held.items()]
        items += [Item(f'store:{image}', held, 0.0, busy=True)
                  for image, held in self.stores.items()]
        return tier.make_room(items, self.limits, size)

    def has_beside(self, size: int) -> bool:
        """Tell whether bytes have room beside all that is here, below the high watermark."""
        return sum(held for held, _used in self.held.values()) + sum(self.stores.values()) + size \
            <= self.limits.high

    def take(self, host: 'Host', size: int) -> None:
        """Have room for bytes: what the plan says goes."""
        for victim in self.plan(host, size).evict:
            del self.held[int(victim)]


class Host:
    """One compute host.

    :ivar link: its link, which all that it fetches shares.
    :ivar giving: what it gives to other hosts shares that, and so does what it gets from them
        ``getting``: a core's time.
    :ivar busy: servers that have an image's cache image open, or wait for it.
    :ivar bases: full bases, and when they were used last.
    :ivar base_users: servers on a full base, or that wait for it.
    :ivar arriving: what comes for boots, and the events of its being here, verified.
    :ivar coming: of that, cache images that servers read from as they come, and the events of their
        having begun to.
    :ivar awaited: of that, what servers wait for as other hosts are to give it, and the events of
        its being over: whether in vain.
    :ivar watched: servers whose boots are watched, by image.
    :ivar settling: bases that are to be completed, in their order, and the events of that.
    :ivar dirty: it holds something else than it has published.
    """

    def __init__(self, env: simpy.Environment, number: int, cluster: Cluster):
        self.number = number
        self.link = FairLink(env, cluster.host_link, cluster.host_link, cluster.pace)
        self.giving = FairLink(env, exchange.HOST_RATE, exchange.HOST_RATE)
        self.getting = FairLink(env, exchange.HOST_RATE, exchange.HOST_RATE)
        self.tiers = {Medium.DISK: Tier(cluster.disk_quota)}
        if cluster.memory_quota:
            self.tiers[Medium.MEMORY] = Tier(cluster.memory_quota)
        self.busy: collections.Counter[int] = collections.Counter()
        self.bases: dict[int, float] = {}
        self.base_users: collections.Counter[int] = collections.Counter()
        self.arriving: dict[int, Any] = {}
        self.coming: dict[int, Any] = {}
        self.awaited: dict[int, Any] = {}
        self.watched: collections.Counter[int] = collections.Counter()
        self.settling: dict[int, Any] = {}
        self.dirty = False

    def medium(self, image: int) -> Medium | None:
        """Return the tier that has an image's cache image, or has kept its room."""
        for medium, one in self.tiers.items():
            if image in one.held:
                return medium
        return None

    def has_store(self, image: int) -> bool:
        """Tell whether a growing store of an image is here."""
        return any(image in one.stores for one in self.tiers.values())

    def has(self, image: int) -> bool:
        """Tell whether a boot's data is here, whole: the base, or the cache image."""
        return image in self.bases or (
            self.medium(image) is not None and image not in self.arriving)

    def forget_unused(self, now: float, age: float) -> None:
        """Remove what no server of the host uses and none has for long, as Nova ages bases.

        :param age: seconds since the last use.
        """
        for image in list(self.bases):
            if self.base_users[image]:
                # Nova's image cache manager touches it.
                self.bases[image] = now
            elif now - self.bases[image] > age:
                del self.bases[image]
                self.dirty = True
        for one in self.tiers.values():
            for image, (_size, used) in list(one.held.items()):
                if now - used > age and not self.busy[image] and not self.base_users[image] \
                        and image not in self.arriving:
                    del one.held[image]
                    self.dirty = True
