"""Which runs are made: the policies, and what changes with each of the operator's choices."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from nova import objects

from bench.cluster import calibration, policies, runs
from bench.cluster.calibration import Measured
from bench.cluster.hosts import Cluster
from bench.cluster.policies import POLICIES, Policy
from bench.cluster.storage import nodes_for
from bench.cluster.workload import Load

_GIB = 1 << 30
MULTIPLIERS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0)
SKEWS = (0.5, 0.75, 1.0, 1.25, 1.5)
DISK_QUOTAS = (0.13, 0.25, 0.5, 1, 2, 5, 10)
MEMORY_QUOTAS = (0, 0.13, 0.25, 0.5, 1, 2)
STORAGE_QUOTAS = (0, 1, 4, 16, 64)
# Shares of what the cache images of all images take, in percent.
STORAGE_DISK_SHARES = (5, 10, 25, 50, 75, 100, 125)
SETTLE_RATES = (0, 5, 10, 25, 50)
# Hours; the last one is longer than the run.
BASE_AGES = (1, 6, 24, 240)
# As fast as papers have it with a fast disk, and as slow as this machine's TCG.
GUEST_SECONDS = (1, 2, 5, 10, 20, 40)
CANDIDATES = (10, 50, 100, 250, 500)
# Bytes a second of each link where one image is booted on all hosts at once.
STORM_LINKS = (0.25e9 / 8, 1e9 / 8, 10e9 / 8)
# In many parts, as what little time is left between two of them counts in a long line of hosts.
_STORM_PARTS = 512
# The sweeps of hosts that exchange, and of the same ones that copy.
EXCHANGED, STORM = 'exchanged', 'exchanged storm'


@dataclasses.dataclass(frozen=True)
class Scale:
    """How large a set of runs is.

    :ivar sizes: hosts, images and boots of the comparisons of policies.
    :ivar hosts: of the sweeps; likewise images and boots.
    :ivar settling: hosts, images and boots of the runs with and without settling.
    :ivar ageing: hosts, images and boots of the runs of days, in which unused bases go.
    :ivar exchanged: hosts, images and boots of the runs in which hosts exchange.
    :ivar storms: hosts that boot one image at once.
    """

    sizes: tuple[tuple[int, int, int], ...]
    hosts: int
    images: int
    boots: int
    settling: tuple[int, int, int]
    ageing: tuple[int, int, int]
    exchanged: tuple[tuple[int, int, int], ...]
    storms: tuple[int, ...]


QUICK = Scale(((100, 100, 3000),), 100, 100, 2500, (100, 100, 2500), (10, 100, 1500),
              ((100, 100, 2500),), (8, 64))
FULL = Scale(((100, 100, 5000), (1000, 1000, 20_000), (10_000, 1000, 100_000)), 500, 500, 10_000,
             (1000, 1000, 20_000), (50, 500, 18_000), ((100, 100, 5000), (1000, 1000, 20_000)),
             (8, 64, 200))


@dataclasses.dataclass(frozen=True)
class Run:
    """One run.

    :ivar sweep: what it belongs to.
    :ivar value: what is varied in it, in the sweep's own unit.
    :ivar warm_up: the share of its boots that is not counted: the first ones.
    :ivar figures: gives more figures of the run.
    """

    sweep: str
    value: float
    cluster: Cluster
    policy: Policy
    warm_up: float = runs.WARM_UP
    figures: runs.Figures | None = None


def plan(scale: Scale) -> Iterator[Run]:
    """Yield all runs."""
    default = policies.weigher(1.0)
    for hosts, images, boots in scale.sizes:
        cluster = Cluster(hosts, runs.load(hosts, images, boots), node=nodes_for(hosts))
        for policy in POLICIES:
            # The largest size is for the two ends of what is compared, and takes minutes for each.
            if hosts < 5000 or policy.name in ('stock', 'cache', 'cache, weigher'):
                yield Run('policies', hosts, cluster, policy)
    load = runs.load(scale.hosts, scale.images, scale.boots)
    base = Cluster(scale.hosts, load, node=nodes_for(scale.hosts))
    # Without settling, as full bases of settled servers would hide what a quota does.
    bare = dataclasses.replace(base, settle=False)
    for multiplier in MULTIPLIERS:
        yield Run('multiplier', multiplier, base, policies.weigher(multiplier))
    for skew in SKEWS:
        yield Run('skew', skew, dataclasses.replace(
            base, load=dataclasses.replace(load, skew=skew)), default)
        yield Run('skew, no weigher', skew, dataclasses.replace(
            base, load=dataclasses.replace(load, skew=skew)), Policy('cache', cache=True))
    for quota in DISK_QUOTAS:
        yield Run('compute disk', quota, dataclasses.replace(
            bare, disk_quota=int(quota * _GIB)), default)
        yield Run('compute disk, no weigher', quota, dataclasses.replace(
            bare, disk_quota=int(quota * _GIB)), Policy('cache', cache=True))
    for quota in MEMORY_QUOTAS:
        # Compute disk is small, so that memory counts.
        yield Run('compute memory', quota, dataclasses.replace(
            bare, disk_quota=_GIB // 4, memory_quota=int(quota * _GIB)), default)
    for quota in STORAGE_QUOTAS:
        # With settling, as what it reads takes the page cache, which helps without a memory tier.
        yield Run('storage memory', quota, dataclasses.replace(
            base, disk_quota=_GIB, node=dataclasses.replace(
                base.node, memory_quota=int(quota * _GIB))), default)
    for share in STORAGE_DISK_SHARES:
        # At 100 all of them are below the high watermark.
        quota = int(share / 100 * load.images * calibration.CACHE_BYTES.value / 0.95) + 1
        few = dataclasses.replace(bare, disk_quota=_GIB, node=dataclasses.replace(
            base.node, disk_quota=quota))
        yield Run('storage disk', share, few, default)
        yield Run('storage disk, no weigher', share, few, Policy('cache', cache=True))
    for candidates in CANDIDATES:
        yield Run('candidates', candidates, dataclasses.replace(base, candidates=candidates),
                  default)
    for seconds in GUEST_SECONDS:
        yield Run('guest', seconds, dataclasses.replace(base, guest_seconds=float(seconds)),
                  default)
    for share in (0, 100):
        yield Run('new images', share, dataclasses.replace(base, new_images=share > 0), default)
    hosts, images, boots = scale.ageing
    for hours in BASE_AGES:
        for policy in POLICIES:
            if policy.name in ('stock', 'cache', 'cache, weigher'):
                yield Run(f'ageing, {policy.name}', hours, Cluster(
                    hosts, runs.load(hosts, images, boots), base_age=hours * 3600.0), policy)
    hosts, images, boots = scale.settling
    base = Cluster(hosts, runs.load(hosts, images, boots), node=nodes_for(hosts))
    for rate in SETTLE_RATES:
        yield Run('settling', rate, dataclasses.replace(
            base, settle=rate > 0, settle_rate=rate * (1 << 20)), default)
    yield from plan_exchanged(scale)


def plan_exchanged(scale: Scale) -> Iterator[Run]:
    """Yield the runs of hosts that give cache images to each other, and of the same ones that copy.

    Without settling: full bases that come from other hosts are not modelled.
    """
    cache = next(policy for policy in POLICIES if policy.cache)
    for exchange in (False, True):
        for hosts, images, boots in scale.exchanged:
            for policy in POLICIES:
                if policy.name in ('cache', 'cache, weigher'):
                    yield Run(EXCHANGED, hosts, Cluster(
                        hosts, runs.load(hosts, images, boots), node=nodes_for(hosts),
                        settle=False, exchange=exchange), policy)
        for link in STORM_LINKS:
            for hosts in scale.storms:
                # All of them at once, one on each host, which has nothing.
                load = Load(hosts, 1, 1.0, 1e6, 1.0, 1.0, hosts)
                yield Run(STORM, hosts, Cluster(
                    hosts, load, node=dataclasses.replace(nodes_for(hosts), link=link),
                    host_link=link, settle=False, exchange=exchange,
                    exchange_parts=_STORM_PARTS), cache, warm_up=0.0)


def one(task: tuple[Run, Measured, int]) -> dict[str, Any]:
    """Make one run, in a process of its own; its figures."""
    run, measured, seed = task
    objects.register_all()
    return {'sweep': run.sweep, 'value': run.value,
            **runs.run(run.cluster, run.policy, measured, seed, run.warm_up, run.figures)}
