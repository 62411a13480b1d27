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

from bench.cluster import calibration, policies, runs, scheduling, sweeps, workload
from bench.cluster.calibration import Measured
from bench.cluster.hosts import Cluster, Host
from bench.cluster.links import FairLink
from bench.cluster.policies import POLICIES, Policy
from bench.cluster.settling import Settling
from bench.cluster.storage import Node, StorageNode
from bench.cluster.world import Boot, World
from bootcache import tier
from nova_bootcache.asking import placement
from nova_bootcache.published import warmth
from nova_bootcache.scheduler import hostwarmth as scheduler_hosts
from nova_bootcache.scheduler.weights import BootCacheWeigher

objects.register_all()
MEASURED = Measured(overlay_seconds=0.5, hash_rate=1e9, convert_rate=1e8)
CACHE = Policy('cache', cache=True)
STOCK = POLICIES[0]


def cluster(hosts=4, images=3, boots=60, **more):
    return Cluster(hosts, runs.load(hosts, images, boots, storm_size=4), **more)


# Links.

def transfers(capacity, each, plan):
    """Return when transfers end that begin at times with sizes, and bounds if they have one."""
    env = simpy.Environment()
    link, ends = FairLink(env, capacity, each), {}

    def one(number, at, *what):
        yield env.timeout(at)
        yield link.transfer(*what)
        ends[number] = env.now

    for number, what in enumerate(plan):
        env.process(one(number, *what))
    env.run()
    return [pytest.approx(ends[number]) for number in range(len(plan))]


def test_one_transfer_is_bounded_by_its_own_end():
    assert transfers(100, 10, [(0, 50)]) == [5]


def test_transfers_share():
    # Alone for 1 s, shared until the second has its 25, then the rest alone.
    assert transfers(10, 10, [(0, 60), (1, 25)]) == [8.5, 6]


def test_many_share_equally():
    assert transfers(100, 100, [(0, 10)] * 50) == [5] * 50


def test_what_a_paced_one_leaves_is_for_the_others():
    # 2 for the paced one, 4 for each of the others; the last 8 of it alone at its pace.
    assert transfers(10, 10, [(0, 20, 2), (0, 24), (0, 24)]) == [10, 6, 6]
    # A bound above the fair share does not matter.
    assert transfers(10, 10, [(0, 10, 9), (0, 10)]) == [2, 2]


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
    assert made['boot_delay_median_s'] == pytest.approx(
        calibration.ARRIVAL_SECONDS.value + 0.5, abs=1e-3)
    stock = runs.run(Cluster(1, workload.Load(1, 1, 1.0, 100.0, 1.0, 0.0, 1)), POLICIES[0],
                     MEASURED)
    whole = calibration.IMAGE_BYTES.value
    assert stock['boot_delay_median_s'] == pytest.approx(whole / 500e6 + whole / 1e8 + 0.5,
                                                         abs=1e-3)


def test_servers_of_one_host_and_image_fetch_once():
    load = workload.Load(8, 1, 1.0, 1e6, 1000.0, 1.0, 8)
    made = runs.run(Cluster(1, load, settle=False), CACHE, MEASURED)
    assert made['boots'] == 8 and made['storage_bytes'] == int(calibration.CACHE_BYTES.value)


@pytest.mark.parametrize('policy', [STOCK, CACHE], ids=lambda policy: policy.name)
def test_who_waits_for_what_is_arriving_is_no_hit(policy):
    load = workload.Load(9, 1, 1.0, 1e6, 1000.0, 1.0, 8)
    env = simpy.Environment()
    with scheduling.memory_of_choices(lambda: env.now):
        world = World(env, Cluster(1, load, settle=False), policy, MEASURED, 1)
        world.run()
        late = Boot(env.now, 0, 0, -1)
        env.run(until=env.process(world._serve(late, workload.FLAVORS[0], 1.0)))
    assert [boot.hit for boot in world.boots] == [False] * 9 and late.hit


def storage_of(env, caches=True, **more):
    return StorageNode(env, Node(**more), 10e9 / 8, 1e9, caches)


def run_until(env, event):
    env.run(until=event)
    return env.now


def test_what_two_read_is_read_from_the_disk_once_by_any_policy():
    for caches in (True, False):
        env = simpy.Environment()
        made, links = storage_of(env, caches), [FairLink(env, 10e9 / 8, 10e9 / 8)] * 2
        both = made.send(links[0], 500e6, ('base', 1)) & made.send(links[1], 500e6, ('base', 1))
        assert run_until(env, both) == pytest.approx(1.0)
        assert made.disk_bytes == 500e6 and made.bytes == 1e9
        # Later it is in the page cache: the link alone counts.
        later = made.send(links[0], 500e6, ('base', 1))
        assert run_until(env, later) == pytest.approx(1.4)


def test_the_page_cache_is_bounded_and_has_the_memory_tiers_bytes_without_one():
    for caches, kept in ((True, 4), (False, 9)):
        env = simpy.Environment()
        made = storage_of(env, caches, page_cache=4 << 30, memory_quota=5 << 30)
        link = FairLink(env, 1e12, 1e12)
        for image in range(10):
            env.run(until=made.send(link, 1 << 30, ('base', image)))
        for image in range(9, -1, -1):
            before = made.disk_bytes
            env.run(until=made.send(link, 1 << 30, ('base', image)))
            assert (made.disk_bytes == before) == (image >= 10 - kept)


def test_a_hosts_transfers_share_its_link():
    env = simpy.Environment()
    made = storage_of(env, count=10)
    one, other = FairLink(env, 1e9, 1e9), FairLink(env, 1e9, 1e9)
    ends = [made.send(link, 1e9, None) for link in (one, one, other)]
    assert run_until(env, ends[2]) == pytest.approx(1.0)
    assert run_until(env, ends[0] & ends[1]) == pytest.approx(2.0)


def test_what_storage_disk_has_no_room_for_is_cold_and_built_again():
    size = int(calibration.CACHE_BYTES.value)
    env = simpy.Environment()
    made = storage_of(env, disk_quota=26 * size // 10)
    made.register([0, 1, 2])
    assert [made.ask(image) for image in (1, 2)] == [placement.Offer.CACHE] * 2
    assert made.ask(0) is placement.Offer.COLD
    env.run(until=made.built(0))
    assert made.ask(0) is placement.Offer.CACHE
    # One made room for it, not both.
    assert made.ask(2) is placement.Offer.CACHE
    assert made.ask(1) is placement.Offer.COLD


def test_a_host_that_booted_cold_fetches_what_is_built_again():
    size = int(calibration.CACHE_BYTES.value)
    load = workload.Load(1, 1, 1.0, 1e6, 1.0, 0.0, 1)
    env = simpy.Environment()
    with scheduling.memory_of_choices(lambda: env.now):
        world = World(env, Cluster(1, load, settle=False), CACHE, MEASURED, 1)
        world.storage._disk.clear()
        world.run()
        assert world.storage.bytes == pytest.approx(calibration.BOOT_BYTES.value)
        env.run(until=env.now + 60)
    assert world.hosts[0].has(0)
    assert world.storage.bytes == pytest.approx(calibration.BOOT_BYTES.value + size)


# Settling and ageing.

def test_a_base_is_completed_once_for_all_servers_of_the_host():
    load = workload.Load(8, 1, 1.0, 1e6, 1000.0, 1.0, 8)
    env = simpy.Environment()
    with scheduling.memory_of_choices(lambda: env.now):
        world = World(env, Cluster(1, load), CACHE, MEASURED, 1)
        world.run()
        env.run(until=env.now + 150)
    assert world.storage.settled_bytes == calibration.IMAGE_BYTES.value
    host = world.hosts[0]
    assert 0 in host.bases and host.busy[0] == 0 and host.base_users[0] == 8


def test_a_host_completes_one_base_at_a_time_and_only_for_servers():
    env = simpy.Environment()
    made = storage_of(env)
    settling, host = Settling(env, made, 50 << 20), Host(env, 0, Cluster(1, cluster().load))
    host.busy.update([1, 2])
    events = [settling.base(host, image) for image in (1, 2, 3)]
    seconds = calibration.IMAGE_BYTES.value / (50 << 20)
    for number, event in enumerate(events[:2], 1):
        assert run_until(env, event) == pytest.approx(number * 3 * seconds)
    env.run(until=events[2])
    assert set(host.bases) == {1, 2} and not host.settling
    assert made.settled_bytes == 2 * calibration.IMAGE_BYTES.value


def test_bases_and_cache_images_go_when_they_are_old_and_no_server_uses_them():
    env = simpy.Environment()
    host = Host(env, 0, Cluster(1, cluster().load))
    host.bases.update({1: 0.0, 2: 0.0, 3: 90.0})
    host.base_users[2] = 1
    tier_of = next(iter(host.tiers.values()))
    tier_of.held.update({1: (5, 0.0), 2: (5, 0.0), 4: (5, 0.0), 5: (5, 90.0)})
    host.busy[4] = 1
    host.forget_unused(101.0, 100.0)
    assert host.bases == {2: 101.0, 3: 90.0} and set(tier_of.held) == {2, 4, 5}


def test_stock_fetches_again_what_was_aged():
    load = runs.load(4, 20, 600)
    short, endless = (runs.run(Cluster(4, load, base_age=age), STOCK, MEASURED)
                      for age in (3600.0, 1e9))
    assert short['storage_bytes'] > endless['storage_bytes']
    assert short['hit_rate'] < endless['hit_rate']
    assert short['bases_per_host'] < endless['bases_per_host']


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
        del made['seconds_to_run'], made['cpu_seconds'], made['seed']
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
    hits = sum(placement.PlanStep.USE_LOCAL in plan for plan in plans)
    assert hits and any(placement.PlanStep.ARRIVE_ON_DISK in plan for plan in plans)


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
            'storage disk', 'ageing, stock', 'ageing, cache, weigher', 'candidates', 'settling',
            'guest', 'new images'}
        assert {run.policy.name for run in found if run.sweep == 'policies'} \
            == {policy.name for policy in POLICIES}
    assert (10_000, 1000, 100_000) in sweeps.FULL.sizes
