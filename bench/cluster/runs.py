"""One run of the simulation, and its figures."""

import collections
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import simpy

from bench.cluster.calibration import Measured
from bench.cluster.hosts import Cluster
from bench.cluster.policies import Policy
from bench.cluster.scheduling import memory_of_choices
from bench.cluster.workload import Load
from bench.cluster.world import Boot, World

# Of a run and the boots that are counted.
Figures = Callable[[World, Sequence[Boot]], dict[str, Any]]

# Of the boots in a run; before that the cluster is emptier than it will be.
WARM_UP = 0.2
_USED = 0.5
_LIFE = 4 * 3600.0
_SERVERS = 24  # of the mean flavor, on a full host


def load(hosts: int, images: int, boots: int, skew: float = 1.0, storm_size: int = 0,
         storm_share: float = 0.3) -> Load:
    """Return a load that half fills the cluster: 24 servers of the mean flavor fill a host."""
    return Load(boots, images, skew, _LIFE, hosts * _SERVERS * _USED / _LIFE, storm_share,
                storm_size or max(20, min(200, hosts // 10)))


def run(cluster: Cluster, policy: Policy, measured: Measured, seed: int = 1,
        warm_up: float = WARM_UP, figures: Figures | None = None) -> dict[str, Any]:
    """Run one policy; its figures.

    ``hit_rate`` is the share of boots whose data was whole on the host when the server asked, full
    base or cache image, for all policies alike: who waits for what is arriving is no hit;
    ``boot_delay_*`` what boots took beyond the guest's own time, in seconds, and
    ``cold_delay_median_s`` the same of those that were none; ``waited`` the share of all boots that
    waited while other hosts gave their cache image, and ``waited_in_vain`` of those that had to
    read from the storage node then; ``storage_bytes``
    what the storage node sent for boots, ``settled_bytes`` for settling, and ``storage_disk_bytes``
    what its disks read for both; ``bases_per_host`` the full bases at the end; ``spread`` the hosts
    of a storm for each of its servers, and
    ``load_deviation`` the standard deviation of the servers on hosts over their mean.

    :param warm_up: the share of the boots that is not counted: the first ones.
    :param figures: gives more figures.
    """
    began, used = time.monotonic(), time.process_time()
    environment = simpy.Environment()
    with memory_of_choices(lambda: environment.now):
        world = World(environment, cluster, policy, measured, seed)
        world.run()
    seconds, used = time.monotonic() - began, time.process_time() - used
    counted = world.boots[int(len(world.boots) * warm_up):]
    delays = numpy.array([boot.delay for boot in counted])
    cold = [boot.delay for boot in counted if not boot.hit]
    waits = world.waits
    servers = collections.Counter(boot.host for boot in world.boots)
    counts = numpy.array([servers[host.number] for host in world.hosts])
    return {
        'policy': policy.name, 'multiplier': policy.multiplier, 'hosts': cluster.hosts,
        'images': cluster.load.images, 'boots': len(world.boots), 'counted': len(counted),
        'refused': world.refused, 'skew': cluster.load.skew, 'candidates': cluster.candidates,
        'disk_quota': cluster.disk_quota, 'memory_quota': cluster.memory_quota,
        'storage_memory_quota': cluster.node.memory_quota * cluster.node.count,
        'storage_disk_quota': cluster.node.disk_quota * cluster.node.count,
        'base_age_s': cluster.base_age, 'settle': cluster.settle,
        'settle_rate': cluster.settle_rate, 'guest_seconds': cluster.guest_seconds,
        'new_images': cluster.new_images, 'exchange': cluster.exchange,
        'storage_link': cluster.node.link, 'seed': seed,
        'seconds_to_run': round(seconds, 2), 'cpu_seconds': round(used, 2),
        'simulated_seconds': round(environment.now, 1),
        'hit_rate': round(sum(boot.hit for boot in counted) / max(1, len(counted)), 4),
        'boot_delay_median_s': round(float(numpy.median(delays)), 3),
        'boot_delay_p99_s': round(float(numpy.quantile(delays, 0.99)), 3),
        'boot_delay_mean_s': round(float(delays.mean()), 3),
        'boot_delay_most_s': round(float(delays.max()), 3),
        'cold_delay_median_s': round(float(numpy.median(cold)), 3) if cold else 0.0,
        'waited': round(len(waits) / max(1, len(world.boots)), 4),
        'waited_in_vain': round(sum(in_vain for _seconds, in_vain in waits)
                                / max(1, len(world.boots)), 4),
        'storage_bytes': round(world.storage.bytes),
        'storage_disk_bytes': round(world.storage.disk_bytes),
        'settled_bytes': round(world.storage.settled_bytes),
        'bases_per_host': round(sum(len(host.bases) for host in world.hosts) / cluster.hosts, 2),
        'spread': _spread(counted),
        'load_deviation': round(float(counts.std() / max(counts.mean(), 1e-9)), 4),
        **(figures(world, counted) if figures is not None else {})}


def _spread(boots: list[Any]) -> float:
    storms = collections.defaultdict(list)
    for boot in boots:
        if boot.storm >= 0:
            storms[boot.storm].append(boot.host)
    shares = [len(set(hosts)) / len(hosts) for hosts in storms.values()]
    return round(float(numpy.mean(shares)), 4) if shares else 1.0
