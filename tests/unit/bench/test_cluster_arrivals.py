"""Cache images that the simulation's servers read from as they come; boots that are watched."""

import random

import pytest
import simpy

from bench.cluster import calibration, replayed, scheduling, workload
from bench.cluster.calibration import Measured
from bench.cluster.chains import Chains
from bench.cluster.hosts import Cluster, Host
from bench.cluster.learning import Learning
from bench.cluster.links import FairLink
from bench.cluster.policies import Policy
from bench.cluster.storage import Node, StorageNode
from bench.cluster.world import World
from bootcache.tier import Medium
from nova_bootcache.asking import placement
from nova_bootcache.asking.placement import HeldHere, PlanStep
from nova_bootcache.gateway import arrivingimage
from nova_bootcache.published import warmth
from nova_bootcache.published.warmth import Level

MEASURED = Measured(overlay_seconds=0.5, hash_rate=1e9, convert_rate=1e8)
CACHE = Policy('cache', cache=True)
SIZE = int(calibration.CACHE_BYTES.value)
READ = calibration.BOOT_BYTES.value
SETUP = calibration.ARRIVAL_SECONDS.value
GUEST = Cluster(1, workload.Load(1, 1, 1.0, 1.0, 1.0, 0.0, 1)).guest_seconds


# Reading along.

def behind(plan, readers, pace, capacity=10):
    """Return how far readers are behind, of the first of transfers that begin at times with sizes.

    :param readers: when each begins, and how many bytes it reads.
    """
    env = simpy.Environment()
    link, begun, found = FairLink(env, capacity, capacity, pace), [], {}

    def one(at, size):
        yield env.timeout(at)
        begun.append(link.begin(size))

    def reader(number, at, size):
        yield env.timeout(at)
        found[number] = (yield begun[0].read_along(size)), env.now

    for what in plan:
        env.process(one(*what))
    for number, what in enumerate(readers):
        env.process(reader(number, *what))
    env.run()
    return [(pytest.approx(found[number][0]), pytest.approx(found[number][1]))
            for number in range(len(readers))]


def test_one_who_reads_faster_than_the_link_waits_for_the_rest():
    assert behind([(0, 100)], [(0, 100)], pace=0.05) == [(5, 10)]


def test_one_who_reads_more_slowly_does_not_wait():
    assert behind([(0, 100)], [(0, 100)], pace=0.2) == [(0, 10)]


def test_a_boot_waits_where_it_is_farthest_behind_and_not_at_the_end():
    # Shared from 2 to 10: 60 bytes have come then, and 7.5 s of the boot could have passed.
    shared = [(0, 100), (2, 40)]
    assert behind(shared, [(0, 100)], pace=0.125) == [(2.5, 14)]
    # Who reads the first half only: 6.25 s could have passed when that has come at 8.
    assert behind(shared, [(0, 50)], pace=0.125) == [(1.75, 8)]


def test_one_who_comes_later_has_what_has_come_already():
    shared = [(0, 100), (2, 40)]
    assert behind(shared, [(0, 100), (10, 100), (8, 100), (15, 100)], pace=0.125) \
        == [(2.5, 14), (0, 14), (0, 14), (0, 15)]
    # At 1 there are 10 bytes, and 1.25 s of a boot: at 10 it could be 9 s old.
    assert behind(shared, [(1, 100)], pace=0.125) == [(1.5, 14)]


def test_what_has_come_is_there_however_it_was_rounded():
    source, env = random.Random(1), simpy.Environment()
    link, found = FairLink(env, 1e9 / 7, 1e9 / 9, 1e-8), []

    def one():
        for _transfer in range(200):
            yield env.timeout(source.uniform(0, 3))
            size = source.uniform(1e5, 1e7)
            coming = link.begin(size)
            yield coming.done
            found.append((yield coming.read_along(size)))

    env.process(one())
    env.run()
    assert found == [0.0] * 200


@pytest.mark.parametrize('seed', range(5))
def test_many_readers_are_as_far_behind_as_one_who_looks_all_the_time_finds(seed):
    source, env, pace, step = random.Random(seed), simpy.Environment(), 0.1, 0.05
    link = FairLink(env, 20, 12, pace)
    checked = []

    def transfer():
        yield env.timeout(source.uniform(0, 20))
        size = source.uniform(10, 60)
        coming = link.begin(size, source.choice([3, 100]))
        for _reader in range(3):
            env.process(reader(coming, source.uniform(0, 6), size * source.uniform(0.3, 1)))

    def reader(coming, later, size):
        yield env.timeout(later)
        since, watched, come = env.now, [0.0], coming.read_along(size)

        def watch():
            while not come.triggered:
                link._advance()
                watched.append(env.now - since - pace * (coming._one.got - coming._first))
                yield env.timeout(step)

        env.process(watch())
        checked.append(((yield come), watched))

    for _transfer in range(12):
        env.process(transfer())
    env.run()
    assert len(checked) == 36
    for value, watched in checked:
        assert max(watched) - 1e-6 <= value <= max(watched) + 2 * step
    assert any(value > 0.5 for value, _watched in checked)


def test_what_comes_has_passed_the_slowest_of_its_ways():
    for disk, what, expected in ((20, ('cache', 1), 4.0), (20, None, 0.0), (200, ('cache', 1), 0)):
        env = simpy.Environment()
        node = StorageNode(env, Node(link=100, disk=disk), 100, 1e9, True, pace=0.01)
        arriving = node.arrive(FairLink(env, 100, 100, 0.01), 100, what)
        assert env.run(until=env.process(arriving.read_along(100))) == pytest.approx(
            expected, abs=1e-6)


def test_who_reads_what_the_disk_reads_for_another_one_already_is_less_behind():
    env = simpy.Environment()
    node = StorageNode(env, Node(link=1000, disk=20), 1000, 1e9, True, pace=0.01)

    def boot():
        return env.process(node.arrive(FairLink(env, 1000, 1000, 0.01), 100,
                                       ('cache', 1)).read_along(100))

    first = boot()
    env.run(until=3)
    second = boot()
    assert env.run(until=first & second).todict() == {
        first: pytest.approx(4.0), second: pytest.approx(1.0)}


@pytest.mark.parametrize('way', replayed.MEASURED)
def test_the_model_has_what_the_replay_measured(way):
    found = [one for one in replayed.compare() if one.way == way]
    assert [one.hosts for one in found] == [1, 8, 64]
    for one in found:
        # What reads along is modelled, evenly; what waits for each read is taken to wait for all.
        bound = 0.1 if way == 'on demand' else {1: 0.02, 8: 0.11, 64: 0.07}[one.hosts]
        assert one.model == pytest.approx(one.measured, rel=bound)


# Boots.

def simulated(boots=1, **more):
    """Return a world of one host, and of servers of one image that come at once, after its run."""
    load = workload.Load(boots, 1, 1.0, 1e6, 1000.0, 1.0, boots)
    env = simpy.Environment()
    with scheduling.memory_of_choices(lambda: env.now):
        world = World(env, Cluster(1, load, settle=False, **more), CACHE, MEASURED, 1)
        world.run()
    return world


def chains_of(cluster, registered=(0,)):
    env = simpy.Environment()
    node = StorageNode(env, cluster.node, cluster.host_link, MEASURED.hash_rate, True, cluster.pace)
    node.register(registered)
    return env, Chains(env, cluster, MEASURED, node, True), Host(env, 0, cluster)


def one_host(**more):
    return Cluster(1, workload.Load(1, 1, 1.0, 1.0, 1.0, 0.0, 1), **more)


def plans_of(monkeypatch):
    """Return a list of what placement is asked from now on, and of what it answers."""
    found, stock = [], placement.plan

    def plan(host, storage):
        found.append((host.held, stock(host, storage)))
        return found[-1][1]

    monkeypatch.setattr(placement, 'plan', plan)
    return found


def test_a_boot_by_hand_whose_cache_image_comes_ahead_of_it(monkeypatch):
    plans = plans_of(monkeypatch)
    world = simulated()
    assert PlanStep.ARRIVE_ON_DISK in plans[0][1]
    # The disk reads 500 MB/s, and the guest 26.
    assert world.boots[0].delay == pytest.approx(SETUP + 0.5) and not world.boots[0].hit
    assert world.storage.bytes == SIZE


def test_a_boot_by_hand_on_a_thin_link_waits_for_what_it_reads():
    world = simulated(host_link=10e6)
    # It begins half a second after the cache image does, and what it reads comes first.
    assert world.boots[0].delay == pytest.approx(SETUP + READ / 10e6 - GUEST)
    slow = simulated(host_link=10e6, guest_seconds=60.0)
    assert slow.boots[0].delay == pytest.approx(SETUP + 0.5)


def test_a_boot_that_is_watched_waits_until_all_of_it_is_fetched_and_verified(monkeypatch):
    plans = plans_of(monkeypatch)
    world = simulated(host_link=10e6, new_images=True)
    assert PlanStep.FETCH_TO_DISK in plans[0][1] and PlanStep.WATCH in plans[0][1]
    assert world.boots[0].delay == pytest.approx(SIZE / 10e6 + SIZE / 1e9 + 0.5)


def test_servers_that_come_meanwhile_read_from_the_same(monkeypatch):
    plans = plans_of(monkeypatch)
    world = simulated(5, host_link=10e6)
    assert [held for held, _plan in plans] == [HeldHere.NOTHING] + [HeldHere.ARRIVING] * 4
    assert all(plan == (PlanStep.SERVE_BASE, PlanStep.CHAIN) for _held, plan in plans[1:])
    assert world.storage.bytes == SIZE
    # They need not wait for its nodes, only for its bytes: all end when these have come.
    assert [boot.delay for boot in world.boots] == [pytest.approx(SETUP + READ / 10e6 - GUEST)] * 5


def test_one_who_comes_before_it_has_begun_to_come_waits_for_that():
    env, chains, host = chains_of(one_host())
    env.process(chains.make(host, 0))
    reading = env.run(until=env.process(chains.make(host, 0)))
    assert env.now == 0
    assert env.run(until=env.process(reading)) == pytest.approx(SETUP)


def test_what_comes_counts_with_its_tables_from_its_begin_and_is_published_as_arriving():
    env, chains, host = chains_of(one_host(host_link=10e6))
    made = env.process(chains.make(host, 0))
    env.run(until=made)
    held = host.tiers[Medium.DISK].held
    assert held[0][0] == arrivingimage.room(SIZE) > SIZE
    assert not host.has(0) and 0 in host.arriving
    assert host.tiers[Medium.DISK].plan(host, host.tiers[Medium.DISK].limits.quota).fits is False
    env.run(until=host.arriving[0])
    assert held[0][0] == SIZE and host.has(0) and not host.coming


def test_the_weigher_sees_what_is_on_its_way():
    load = workload.Load(1, 1, 1.0, 1e6, 1000.0, 1.0, 1)
    env = simpy.Environment()
    with scheduling.memory_of_choices(lambda: env.now):
        world = World(env, Cluster(1, load, settle=False, host_link=1e6), CACHE,
                      MEASURED, 1)
        env.process(world._ask())
        env.process(world._publish())
        levels = []
        for _minute in range(4):
            env.run(until=env.now + 61)
            levels.append(warmth.decode(world.scheduler.states[0].stats[warmth.STATS_KEY])
                          .level(world._keys[0]))
    # It comes in 127 s.
    assert levels == [Level.ARRIVING] * 2 + [Level.DISK] * 2


def test_without_room_for_the_tables_it_is_fetched_before_the_server_boots(monkeypatch):
    plans = plans_of(monkeypatch)
    simulated(disk_quota=arrivingimage.room(SIZE) - 1)
    simulated(disk_quota=arrivingimage.room(SIZE))
    assert [PlanStep.FETCH_TO_DISK in plan for _held, plan in plans] == [True, False]
    assert PlanStep.ARRIVE_ON_DISK in plans[1][1]


def test_one_that_is_not_worth_it_is_fetched(monkeypatch):
    plans = plans_of(monkeypatch)
    monkeypatch.setattr(arrivingimage, 'is_worth_it', lambda size: size != SIZE)
    simulated()
    assert PlanStep.FETCH_TO_DISK in plans[0][1]


def test_where_a_growing_store_has_its_place_it_is_fetched(monkeypatch):
    plans = plans_of(monkeypatch)
    env, chains, host = chains_of(one_host())
    host.tiers[Medium.DISK].stores[0] = 1
    env.run(until=env.process(chains.make(host, 0)))
    assert PlanStep.FETCH_TO_DISK in plans[0][1] and host.has(0)


def test_who_comes_while_another_server_fetches_waits_for_that():
    env, chains, host = chains_of(one_host(host_link=10e6, disk_quota=SIZE))
    one = env.process(chains.make(host, 0))
    env.run(until=1)
    other = env.process(chains.make(host, 0))
    env.run(until=one & other)
    assert env.now == pytest.approx(SIZE / 10e6 + SIZE / 1e9) and host.has(0)


# Boots that are watched.

def test_three_hosts_are_asked_at_a_time_and_three_reports_without_anything_new_are_enough():
    env = simpy.Environment()
    learning = Learning(env, True)
    assert [learning.asks(0, host) for host in (1, 2, 3, 4, 1)] == [True, True, True, False, True]
    assert learning.asks(7, 4)
    for host in (1, 2):
        learning.report(0, host)
    assert learning.asks(0, 4)
    learning.report(0, 5)     # It was not asked.
    assert learning.asks(0, 4)
    learning.report(0, 3)
    assert not learning.asks(0, 4) and not learning.asks(0, 3) and learning.asks(7, 4)
    assert not Learning(env, False).asks(0, 1)


def test_a_report_that_never_comes_is_expected_for_a_while():
    env = simpy.Environment()
    learning = Learning(env, True)
    assert [learning.asks(0, host) for host in (1, 2, 3, 4)] == [True] * 3 + [False]
    env.run(until=1501)
    assert learning.asks(0, 4)


def test_a_boot_that_is_watched_has_a_growing_store_until_it_is_over():
    env, chains, host = chains_of(one_host(new_images=True))
    one = host.tiers[Medium.DISK]
    for boots, stored in ((1, True), (2, True), (3, True), (4, False)):
        reading = env.run(until=env.process(chains.make(host, 0)))
        assert (sum(one.stores.values()) == 512 << 20) is stored
        assert env.run(until=env.process(reading)) == 0.0
        env.run(until=env.now + GUEST + 1)
        assert not one.stores and not host.watched[0], boots


def test_the_servers_of_a_host_share_the_store_and_the_last_one_leaves_it():
    env, chains, host = chains_of(one_host(new_images=True))
    readings = []
    for _server in range(2):
        readings.append(env.run(until=env.process(chains.make(host, 0))))
        env.process(readings[-1])
        env.run(until=env.now + GUEST / 2)
    env.run(until=env.now + 0.1)
    assert host.watched[0] == 1 and host.tiers[Medium.DISK].stores == {0: 512 << 20}
    env.run(until=env.now + GUEST / 2)
    assert not host.watched[0] and not host.tiers[Medium.DISK].stores


def test_without_room_for_a_store_no_boot_is_watched(monkeypatch):
    plans = plans_of(monkeypatch)
    simulated(disk_quota=512 << 20, new_images=True)
    assert PlanStep.WATCH in plans.pop()[1]
    world = simulated(disk_quota=(512 << 20) - 1, new_images=True)
    assert PlanStep.ARRIVE_ON_DISK in plans.pop()[1]
    assert not world.hosts[0].tiers[Medium.DISK].stores


def test_one_that_is_watched_waits_for_what_comes_already(monkeypatch):
    plans = plans_of(monkeypatch)
    env, chains, host = chains_of(one_host(host_link=10e6, new_images=True))
    chains._learning._is_on = False
    env.run(until=env.process(chains.make(host, 0)))
    chains._learning._is_on = True
    reading = env.run(until=env.process(chains.make(host, 0)))
    assert plans[1][0] is HeldHere.ARRIVING and PlanStep.WATCH in plans[1][1]
    assert host.has(0) and env.run(until=env.process(reading)) == 0.0
    assert chains._storage.of(0).bytes == SIZE
