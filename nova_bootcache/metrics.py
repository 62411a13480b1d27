"""What nova-compute counts for Prometheus: what only a compute host sees. Nothing by server or
image."""

import enum
from contextlib import AbstractContextManager

from prometheus_client import CollectorRegistry, Counter, Histogram

from bootcache.http.metrics import SampledMetrics, TimedOutcome, timed
from bootcache.tier import Medium

_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class BytesFrom(enum.StrEnum):
    """Where the bytes of cache images come from that servers boot from."""

    STORAGE_NODE = 'storage_node'
    PEERS = 'peers'
    LOCAL = 'local'  # they were here when a server came, or are another cache image's


class BootWay(enum.StrEnum):
    """From what a server's root disk is made."""

    CACHE_IMAGE = 'cache_image'
    ARRIVING = 'arriving'
    EMPTY = 'empty_cache_image'
    PROFILE = 'profile_boot'
    STOCK = 'stock'


class BootPhase(enum.StrEnum):
    """Phases of a boot beside the steps of its plan, which have the names of PlanStep."""

    ASK = 'ask'      # the storage service
    GUEST = 'guest'  # from the making of the disk to the boot's end, where that is watched


class HostMetrics:
    """One compute host's metrics.

    :ivar registry: all of them, for Prometheus's client.
    :ivar sampled: those that are read when Prometheus asks.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.sampled = SampledMetrics()
        self.registry.register(self.sampled)
        self._phase_seconds = Histogram(
            'bootcache_boot_phase_seconds', 'Seconds of a phase of a server\'s boot.',
            ['phase', 'outcome'], buckets=_SECONDS, registry=self.registry)
        self._fetch_seconds = Histogram(
            'bootcache_fetch_seconds', 'Seconds in which a cache image came to this host, was'
            ' verified and placed.', ['outcome'], buckets=_SECONDS, registry=self.registry)
        for outcome in TimedOutcome:
            # Else the first failures, which make it, are no increase to Prometheus.
            self._fetch_seconds.labels(outcome.value)
        self._boots = Counter(
            'bootcache_boots', 'Root disks that were made, by what they stand on.', ['way'],
            registry=self.registry)
        self._bytes = Counter(
            'bootcache_cache_image_bytes', 'Bytes of cache images that servers boot from, by where'
            ' they came from.', ['source'], registry=self.registry)
        self._evictions = Counter(
            'bootcache_evictions', 'Cache images and copy-on-read overlays that were evicted, by'
            ' tier.', ['tier'], registry=self.registry)

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Observe how long a phase of a boot takes, and how it ends.

        :param name: a BootPhase, or a PlanStep's name in small letters.
        """
        return timed(self._phase_seconds, name)

    def observe_guest(self, seconds: float) -> None:
        """Observe the boot of a guest that was watched to its end."""
        self._phase_seconds.labels(BootPhase.GUEST.value, TimedOutcome.DONE.value).observe(seconds)

    def fetch(self) -> AbstractContextManager[None]:
        """Observe how long a fetch takes, and how it ends."""
        return timed(self._fetch_seconds)

    def count_boot(self, way: BootWay) -> None:
        """Count a root disk that was made."""
        self._boots.labels(way.value).inc()

    def count_bytes(self, source: BytesFrom, count: int) -> None:
        """Count bytes of a cache image that a server boots from."""
        self._bytes.labels(source.value).inc(max(0, count))

    def count_eviction(self, medium: Medium) -> None:
        """Count what was evicted from a tier."""
        self._evictions.labels(tier(medium)).inc()


def tier(medium: Medium) -> str:
    """Return the name of a compute host's tier, as labels have it."""
    return f'compute_{medium.value}'
