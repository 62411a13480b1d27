"""The simulation: its arithmetic by hand, its scheduler against Nova's, its code the product's."""

import random

import numpy
import pytest
import simpy
from nova import objects
from nova.scheduler import host_manager, weights
from nova.scheduler.weights.cpu import CPUWeigher
from nova.scheduler.weights.disk import DiskWeigher
from nova.scheduler.weights.image_props import ImagePropertiesWeigher
from nova.scheduler.weights.io_ops import IoOpsWeigher
from nova.scheduler.weights.ram import RAMWeigher

from bootcache import tier
from nova_bootcache import placement, warmth
from nova_bootcache.scheduler import hosts as scheduler_hosts
from nova_bootcache.scheduler.weights import BootCacheWeigher
from tests.bench.cluster import calibration, policies, runs, scheduling, sweeps, workload
from tests.bench.cluster.calibration import Measured
from tests.bench.cluster.links import FairLink
from tests.bench.cluster.policies import POLICIES, Policy
from tests.bench.cluster.storage import Node
from tests.bench.cluster.world import Cluster, World

objects.register_all()
MEASURED = Measured(overlay_seconds=0.5, hash_rate=1e9, convert_rate=1e8)
CACHE = Policy('cache', cache=True)


def cluster(hosts=4, images=3, boots=60, **more):
    return Cluster(hosts, runs.load(hosts, images, boots, storm_size=4), **more)


# Links.

def transfers(capacity, each, plan):
    """Return when transfers end that begin at times with sizes."""
    env = simpy.Environment()
    link, ends = FairLink(env, capacity, each), {}

    def one(number, at, size):
        yield env.timeout(at)
        yield link.transfer(size)
        ends[number] = env.now

    for number, (at, size) in enumerate(plan):
        env.process(one(number, at, size))
    env.run()
    return [pytest.approx(ends[number]) for number in range(len(plan))]


def test_one_transfer_is_bounded_by_its_own_end():
    assert transfers(100, 10, [(0, 50)]) == [5]


def test_transfers_share():
    # Alone for 1 s, shared until the second has its 25, then the rest alone.
    assert transfers(10, 10, [(0, 60), (1, 25)]) == [8.5, 6]


def test_many_share_equally():
    assert transfers(100, 100, [(0, 10)] * 50) == [5] * 50


def test_a_link_counts_its_bytes():
    env = simpy.Environment()
    link = FairLink(env, 1, 1)
    link.transfer(3)
    link.transfer(4)
    env.run()
    assert link.bytes == 7


# The scheduler.

def states(count, source):
    found = []
    for number in range(count):
        state = host_manager.HostState(f'h{number}', f'h{number}', 'cell')
        state.free_ram_mb, state.free_disk_mb = source.randrange(1000), source.randrange(1000)
        state.vcpus_total, state.vcpus_used = 64, source.randrange(64)
        state.cpu_allocation_ratio, state.num_io_ops = 1.0, source.choice([0, 0, 1, 2])
        found.append(state)
    return found


@pytest.mark.parametrize('seed', range(20))
def test_novas_weighers_are_computed_as_nova_does(seed):
    found = states(5, random.Random(seed))
    ours = scheduling.stock_weights(
        numpy.array([[state.free_ram_mb for state in found],
                     [state.vcpus_total - state.vcpus_used for state in found],
                     [state.free_disk_mb for state in found]], dtype=float),
        numpy.array([state.num_io_ops for state in found], dtype=float))
    weighed = weights.HostWeightHandler().get_weighed_objects(
        [RAMWeigher(), CPUWeigher(), DiskWeigher(), IoOpsWeigher()], found, None)
    assert {one.obj.host: pytest.approx(one.weight) for one in weighed} \
        == {state.host: weight for state, weight in zip(found, ours, strict=True)}


def test_weights_without_a_minimum_are_stretched_as_nova_does():
    assert ImagePropertiesWeigher.minval is None and ImagePropertiesWeigher.maxval is None
    from nova.weights import normalize
    for values in ([3, 1, 2], [0, 0, 0], [5, 5, 5], [0, 7, 7]):
        assert list(scheduling.stretched(numpy.array(values))) == pytest.approx(
            list(normalize(values)))


def test_a_server_follows_the_cache_image_by_the_products_weigher():
    with scheduling.memory_of_choices(lambda: 0.0):
        made = scheduling.Scheduler(3, scheduling.Hardware(), 5.0, 0.0, 1000, ['a-b'], 1)
        key = warmth.image_key('a-b')
        made.publish(2, warmth.encode([warmth.Holding(key, warmth.Level.DISK, 1.0)]))
        assert isinstance(made._weigher, BootCacheWeigher)
        assert made.choose(0, workload.FLAVORS[0]) == 2
        assert scheduler_hosts.HOSTS.chosen(key) == {('host-2', 'host-2')}


def test_a_full_cluster_refuses():
    made = scheduling.Scheduler(1, scheduling.Hardware(4, 1 << 20, 1 << 20), 0.0, 0.0, 1000,
                                ['a'], 1)
    flavor = workload.Flavor(4, 1, 1)
    assert made.choose(0, flavor) == 0 and made.choose(0, flavor) is None
    made.release(0, 0, flavor)
    assert made.choose(0, flavor) == 0


# Boots.

def test_the_first_boot_by_hand():
    """One host, one image, a 10 Gbit/s link, a disk of 500 MB/s: each second is accounted for."""
    made = runs.run(Cluster(1, workload.Load(1, 1, 1.0, 100.0, 1.0, 0.0, 1)), CACHE, MEASURED)
    size = int(calibration.CACHE_BYTES.value)
    assert made['boots'] == 1 and made['hit_rate'] == 0
    assert made['storage_bytes'] == size
    assert made['boot_delay_median_s'] == pytest.approx(size / 500e6 + size / 1e9 + 0.5, abs=1e-3)
    stock = runs.run(Cluster(1, workload.Load(1, 1, 1.0, 100.0, 1.0, 0.0, 1)), POLICIES[0],
                     MEASURED)
    whole = calibration.IMAGE_BYTES.value
    assert stock['boot_delay_median_s'] == pytest.approx(whole / 500e6 + whole / 1e8 + 0.5,
                                                         abs=1e-3)


def test_servers_of_one_host_and_image_fetch_once():
    load = workload.Load(8, 1, 1.0, 1e6, 1000.0, 1.0, 8)
    made = runs.run(Cluster(1, load, settle=False), CACHE, MEASURED)
    assert made['boots'] == 8 and made['storage_bytes'] == int(calibration.CACHE_BYTES.value)


@pytest.mark.parametrize('policy', POLICIES, ids=lambda policy: policy.name)
def test_bytes_are_those_of_the_misses(policy):
    made = runs.run(cluster(settle=False), policy, MEASURED)
    size = int(calibration.CACHE_BYTES.value) if policy.cache \
        else calibration.IMAGE_BYTES.value if policy.whole else calibration.BOOT_BYTES.value
    assert made['storage_bytes'] % size == pytest.approx(0, abs=1)
    assert 0 < made['storage_bytes'] <= size * made['boots']


def test_a_seed_decides_everything_but_the_seconds():
    first, second, other = (runs.run(cluster(), policies.weigher(1.0), MEASURED, seed)
                            for seed in (1, 1, 2))
    for made in (first, second, other):
        del made['seconds_to_run'], made['seed']
    assert first == second != other


def test_all_policies_are_asked_the_same():
    load = cluster().load
    assert list(workload.requests(load, 3)) == list(workload.requests(load, 3))
    assert sum(len(request.lives) for request in workload.requests(load, 3)) == load.boots


# The product's code.

def test_placement_is_the_products(monkeypatch):
    plans = []
    stock = placement.plan

    def plan(host, storage):
        plans.append(stock(host, storage))
        return plans[-1]

    monkeypatch.setattr(placement, 'plan', plan)
    made = runs.run(cluster(settle=False), CACHE, MEASURED)
    assert len(plans) == made['boots']
    hits = sum(placement.Step.USE_LOCAL in plan for plan in plans)
    assert hits and any(placement.Step.FETCH_TO_DISK in plan for plan in plans)


def test_eviction_is_the_products(monkeypatch):
    evicted = []
    stock = tier.make_room

    def make_room(items, limits, incoming=0):
        room = stock(items, limits, incoming)
        evicted.extend(room.evict)
        return room

    monkeypatch.setattr(tier, 'make_room', make_room)
    one = int(calibration.CACHE_BYTES.value)
    run = cluster(hosts=2, images=6, boots=200, settle=False, disk_quota=2 * one + 1000,
                  node=Node(memory_quota=0))
    env = simpy.Environment()
    with scheduling.memory_of_choices(lambda: env.now):
        world = World(env, run, CACHE, MEASURED, 1)
        world.run()
    assert evicted
    for host in world.hosts:
        for each in host.tiers.values():
            assert sum(size for size, _used in each.held.values()) <= each.limits.quota


def test_what_is_published_is_what_hosts_hold():
    env = simpy.Environment()
    with scheduling.memory_of_choices(lambda: env.now):
        world = World(env, cluster(settle=True), policies.weigher(1.0), MEASURED, 1)
        world.run()
        env.run(until=env.now + 200)
    for host, state in zip(world.hosts, world.scheduler.states, strict=True):
        entry = warmth.decode(state.stats[warmth.STATS_KEY])
        for image, key in enumerate(world._keys):
            held = host.medium(image) is not None or image in host.bases
            assert (entry.level(key) is not warmth.Level.COLD) == held


def test_both_scales_answer_every_question():
    for scale in (sweeps.QUICK, sweeps.FULL):
        found = list(sweeps.plan(scale))
        assert {run.sweep for run in found} >= {
            'policies', 'multiplier', 'skew', 'compute disk', 'compute memory', 'storage memory',
            'candidates', 'settling'}
        assert {run.policy.name for run in found if run.sweep == 'policies'} \
            == {policy.name for policy in POLICIES}
    assert (10_000, 1000, 100_000) in sweeps.FULL.sizes
