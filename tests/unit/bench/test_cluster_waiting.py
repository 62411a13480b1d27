"""Servers of the simulation that wait while other hosts give their cache image."""

import json
from pathlib import Path

import numpy
import pytest
import simpy
from nova import objects

from bench.cluster import calibration, exchange, exchangereport, exchanging, runs, sweeps, workload
from bench.cluster.bringing import SIZE
from bench.cluster.calibration import Measured
from bench.cluster.chains import Chains
from bench.cluster.exchange import Swarm
from bench.cluster.exchanging import Exchange, OnDemand
from bench.cluster.hosts import Cluster, Host
from bench.cluster.policies import Policy
from bench.cluster.storage import Node, StorageNode
from bootcache import conf as bootcache_conf
from bootcache.exchange import limits, patience
from bootcache.tier import Medium
from nova_bootcache.asking import placement
from nova_bootcache.asking.placement import HeldHere, PlanStep
from nova_bootcache.gateway import arrivingimage

objects.register_all()
MEASURED = Measured(overlay_seconds=0.5, hash_rate=1e9, convert_rate=1e8)
CACHE = Policy('cache', cache=True)
SETUP = calibration.ARRIVAL_SECONDS.value
READ = calibration.BOOT_BYTES.value
HASHED = SIZE / MEASURED.hash_rate
ONE = SIZE / exchange.HOST_RATE     # One transfer, by exchange.


class Cloud:
    """Hosts that have nothing, and make chains for servers by hand.

    :ivar plans: what placement was asked, and what it answered.
    """

    def __init__(self, monkeypatch, hosts=4, exchange=True, **more):
        node = Node(**{name: more.pop(name) for name in ('link',) if name in more})
        self.cluster = Cluster(hosts, workload.Load(1, 1, 1.0, 1.0, 1.0, 0.0, 1), node=node,
                               exchange=exchange, **more)
        self.env = simpy.Environment()
        self.storage = StorageNode(self.env, node, self.cluster.host_link, MEASURED.hash_rate,
                                   True, self.cluster.pace)
        self.storage.register((0,))
        self.chains = Chains(self.env, self.cluster, MEASURED, self.storage, True)
        self.hosts = [Host(self.env, number, self.cluster) for number in range(hosts)]
        self.plans = []
        stock = placement.plan

        def plan(host, storage):
            self.plans.append((host.held, stock(host, storage)))
            return self.plans[-1][1]

        monkeypatch.setattr(placement, 'plan', plan)

    def make(self, number):
        """Begin a server on a host; the process of its chain, whose value is what it reads."""
        return self.env.process(self.chains.make(self.hosts[number], 0))

    def made(self, number):
        """Make a server's chain; how long that took, and how far its guest is behind then."""
        began = self.env.now
        reading = self.env.run(until=self.make(number))
        took = self.env.now - began
        return took, self.env.run(until=self.env.process(reading))

    def settle(self):
        """Have all that comes be here."""
        self.env.run(until=self.env.now + 60)

    @property
    def copies(self):
        return self.storage.bytes / SIZE


@pytest.fixture
def cloud(monkeypatch):
    return lambda **more: Cloud(monkeypatch, **more)


def test_servers_of_the_first_host_read_at_once_and_those_of_the_second_one_wait(cloud):
    made = cloud()
    first, second = made.make(0), made.make(1)
    made.env.run(until=first)
    assert made.env.now == pytest.approx(SETUP) and not second.triggered
    made.env.run(until=second)
    assert [PlanStep.AWAIT in plan for _held, plan in made.plans] == [False, True]
    assert all(PlanStep.ARRIVE_ON_DISK in plan for _held, plan in made.plans)
    # It has all of it then: the disk reads it before it is given, and a core takes its time.
    assert made.env.now == pytest.approx(SIZE / made.storage.node.disk + ONE + HASHED, rel=1e-2)
    assert made.hosts[1].has(0) and not made.hosts[1].awaited
    assert made.env.run(until=made.env.process(second.value)) == 0.0
    [(seconds, in_vain)] = made.chains.exchange.waits
    assert seconds == pytest.approx(made.env.now - SETUP) and not in_vain


def test_whoever_has_it_gives_it_and_the_storage_node_no_more(cloud):
    made = cloud()
    made.made(0)
    made.settle()
    assert made.copies == pytest.approx(1)
    for number in (1, 2, 3):
        # Nobody gets it just now: its server reads what it asks for until it is here.
        assert made.made(number) == (pytest.approx(SETUP), pytest.approx(0, abs=0.2))
        made.settle()
        assert made.hosts[number].has(0) and PlanStep.AWAIT not in made.plans[-1][1]
    assert 1 < made.copies < 1 + 3 * (ONE + HASHED) / made.cluster.pace / SIZE
    assert made.hosts[0].giving.bytes > SIZE


def test_where_nobody_exchanges_nobody_waits(cloud):
    made = cloud(exchange=False)
    for number in range(3):
        assert made.made(number)[0] == pytest.approx(SETUP)
    assert not any(PlanStep.AWAIT in plan for _held, plan in made.plans)
    made.settle()
    assert made.copies == pytest.approx(3) and not made.chains.exchange.waits


def test_for_how_long_servers_wait_is_the_products(cloud, monkeypatch):
    # A transfer takes 12.7 s, and for the second one more, as it shares the link.
    for seconds in (patience.SERVERS_WAIT, 2.0):
        monkeypatch.setattr(patience, 'SERVERS_WAIT', seconds)
        made = cloud(link=10e6, host_link=10e6)
        made.make(0)
        made.env.run(until=made.make(1))
        assert made.env.now == pytest.approx(seconds)
        # It is counted from when the first one began to wait.
        assert made.chains.exchange.waits == [(pytest.approx(seconds - SETUP), True)]


def test_who_waited_in_vain_reads_what_it_asks_for_until_all_of_it_is_here(cloud):
    made = cloud(link=10e6, host_link=10e6)
    made.make(0)
    reading = made.env.run(until=made.make(1))
    began = made.env.now
    behind = made.env.run(until=made.env.process(reading))
    assert began + behind < made.env.now and behind > 5
    made.settle()
    assert made.hosts[1].has(0)
    # What others give goes on to come: one copy arrives, and all of another is given by somebody.
    read = made.copies + made.hosts[0].giving.bytes / SIZE - 2
    assert 0.1 < read < READ / SIZE
    assert made.made(1) == (0, 0.0)


def test_reads_end_when_it_is_here(cloud):
    made = cloud(link=10e6, host_link=10e6)
    done = made.env.event()
    reading = made.env.process(OnDemand(
        made.env, made.storage, made.hosts[0], done, None).read_along(READ))
    made.env.run(until=2)
    done.succeed()
    part = READ / exchanging.READS / 10e6
    assert 2 <= made.env.run(until=reading) < 2 + 2 * part
    whole = made.env.process(OnDemand(
        made.env, made.storage, made.hosts[0], made.env.event(), None).read_along(READ))
    assert made.env.run(until=whole) == pytest.approx(
        READ / 10e6 + calibration.BOOT_REQUESTS.value * made.storage.node.round_trip)


def test_who_comes_meanwhile_waits_for_the_same_and_not_for_longer(cloud):
    made = cloud(link=10e6, host_link=10e6)
    made.make(0)
    early = made.make(1)
    made.env.run(until=3)
    late = made.make(1)
    made.env.run(until=early & late)
    assert made.env.now == pytest.approx(patience.SERVERS_WAIT)
    assert made.plans[2] == (HeldHere.ARRIVING,
                             (PlanStep.SERVE_BASE, PlanStep.AWAIT, PlanStep.CHAIN))
    # From then on nobody waits.
    assert made.env.run(until=made.make(1)) and made.env.now == pytest.approx(patience.SERVERS_WAIT)


def test_without_room_for_two_files_it_comes_from_the_storage_node_alone(cloud):
    room = (arrivingimage.room(SIZE) + SIZE) * 100 // 95
    for quota, exchanges in ((room + 1000, True), (room - 1000, False)):
        made = cloud(disk_quota=quota)
        made.made(0)
        made.settle()
        made.made(1)
        made.settle()
        assert (made.hosts[0].giving.bytes > 0) is exchanges
        assert made.copies < 1.5 if exchanges else made.copies == pytest.approx(2)
        # What came apart, and the tables, are gone.
        assert made.hosts[1].tiers[Medium.DISK].held[0][0] == SIZE


def test_what_comes_apart_counts_beside_what_servers_would_read(cloud):
    made = cloud()
    made.make(0)
    made.make(1)
    made.env.run(until=1)
    assert made.hosts[1].tiers[Medium.DISK].held[0][0] == arrivingimage.room(SIZE) + SIZE


def test_who_was_told_of_nobody_that_gives_it_reads_at_once(cloud):
    """A host that has it long since boots another server just now, and gives it no longer."""
    made = cloud()
    made.made(0)
    made.settle()
    made.env.run(until=made.env.now + exchanging._linger())
    assert made.made(0) == (0, 0.0)
    took, behind = made.made(1)
    assert PlanStep.AWAIT in made.plans[-1][1] and (took, behind) == (pytest.approx(SETUP), 0.0)
    made.settle()
    assert made.copies == pytest.approx(2)


def test_after_a_while_nobody_has_been_told(cloud):
    made = cloud()
    made.made(0)
    made.env.run(until=patience.SERVERS_WAIT + 1)
    made.made(1)
    assert PlanStep.AWAIT not in made.plans[-1][1]


def test_the_while_is_the_options():
    [option] = [opt for opt in bootcache_conf.opts if opt.name == 'exchange_linger']
    assert exchanging._linger() == option.default > 0


def test_a_boot_that_is_watched_waits_until_others_have_given_all_of_it(cloud):
    made = cloud(link=10e6, host_link=10e6, new_images=True)
    made.make(0)
    made.env.run(until=made.make(1))
    assert PlanStep.FETCH_TO_DISK in made.plans[1][1] and not made.chains.exchange.waits
    assert made.env.now > SIZE / 10e6 and made.hosts[1].has(0)
    assert made.copies == pytest.approx(1, abs=0.5)


# The model.

def at_once(hosts, parts):
    """Return when hosts have a cache image that they ask for at once, over one transfer; copies."""
    env = simpy.Environment()
    cluster = Cluster(hosts, workload.Load(1, 1, 1.0, 1.0, 1.0, 0.0, 1), exchange=True,
                      exchange_parts=parts)
    storage = StorageNode(env, cluster.node, cluster.host_link, 1e9, True)
    made, ends = Exchange(env, cluster, storage), []

    def one(host):
        others = made.ask(host, 0)
        yield from made.bring(host, 0, others, None)
        made.has_come(host, 0)
        ends.append(env.now / ONE)

    for number in numpy.random.default_rng(1).permutation(hosts):
        env.process(one(Host(env, int(number), cluster)))
    env.run()
    return ends, storage.bytes / SIZE


@pytest.mark.parametrize('hosts, parts, beyond', [
    (8, 128, 0.2), (40, 128, 0.2), (100, 128, 1 / 3), (100, 512, 0.15)])
def test_parts_take_about_as_long_as_pieces(hosts, parts, beyond):
    ends, copies = at_once(hosts, parts)
    assert len(ends) == hosts
    chance, size = numpy.random.default_rng(1), limits.piece_bytes(SIZE)
    swarm = Swarm(chance.permutation(numpy.arange(hosts) // exchange.RACK_HOSTS),
                  -(-SIZE // size), round(exchange.LATENCY * exchange.HOST_RATE / size), 10, chance)
    assert max(ends) == pytest.approx(exchange.spread(swarm) / -(-SIZE // size), rel=beyond)
    assert 1 <= copies <= 2


def test_who_is_told_of_another_one_gives_to_it_as_well(cloud):
    made, brought = cloud(), []
    exchanged = made.chains.exchange
    for host in made.hosts[:2]:
        others = exchanged.ask(host, 0)
        brought.append(made.env.process(exchanged.bring(host, 0, others, None)))
    made.env.run(until=made.env.all_of(brought))
    # The storage node gives to both, and each what the other one lacks.
    assert all(host.giving.bytes > SIZE / 4 for host in made.hosts[:2])
    assert made.copies == pytest.approx(
        2 - sum(host.giving.bytes for host in made.hosts[:2]) / SIZE)


def test_storms_are_near_what_was_measured():
    """doc/source/exchange.rst, "Figures": 64 cold hosts, copies."""
    run = next(run for run in sweeps.plan_exchanged(sweeps.FULL) if run.sweep == sweeps.STORM
               and run.value == 64 and run.cluster.exchange and run.cluster.host_link == 1e9 / 8)
    made = runs.run(run.cluster, run.policy, MEASURED, warm_up=run.warm_up)
    assert made['counted'] == made['boots'] == 64 and made['waited'] == round(63 / 64, 4)
    assert made['storage_bytes'] / SIZE == pytest.approx(2.02, rel=0.1)


# The report.

def test_each_run_of_hosts_that_exchange_has_one_that_copies():
    for scale in (sweeps.QUICK, sweeps.FULL):
        found = list(sweeps.plan_exchanged(scale))
        assert {run.sweep for run in found} == {sweeps.EXCHANGED, sweeps.STORM}
        ways = [{(run.sweep, run.value, run.policy.name, run.cluster.host_link) for run in found
                 if run.cluster.exchange is way} for way in (False, True)]
        assert ways[0] == ways[1] and len(found) == len(ways[0]) + len(ways[1])
        assert {run.sweep for run in sweeps.plan(scale)} > {sweeps.EXCHANGED, sweeps.STORM}


def test_tables_and_plot_of_boots(tmp_path):
    found = [run for run in sweeps.plan_exchanged(sweeps.QUICK)
             if run.value == 8 or (run.sweep == sweeps.EXCHANGED and run.policy.name == 'cache')]
    rows = [{'sweep': run.sweep, 'value': run.value,
             **runs.run(run.cluster if run.value == 8 else Cluster(
                 4, runs.load(4, 3, 60, storm_size=4), exchange=run.cluster.exchange, settle=False),
                 run.policy, MEASURED, warm_up=run.warm_up)} for run in found]
    exchangereport.write_boots(rows, tmp_path)
    storms = (tmp_path / 'cluster-exchanged-storm.csv').read_text().splitlines()
    assert [line.split(',')[:3] for line in storms[1:]] == [
        [link, '8', way] for link in ('0.25', '1', '10') for way in ('copied', 'exchanged')]
    assert storms[1].split(',')[5:] == ['8.00', '0.0', '0.0']
    assert storms[2].split(',')[6:] == ['87.5', '87.5']
    assert storms[4].split(',')[6:] == ['87.5', '0.0']
    boots = (tmp_path / 'cluster-exchanged-boots.csv').read_text().splitlines()
    assert [line.split(',')[:3] for line in boots[1:]] == [
        ['100', 'cache', way] for way in ('copied', 'exchanged')]
    assert 'links of 1 Gbit/s' in (tmp_path / 'cluster-exchanged-storm.svg').read_text()


def test_what_a_machine_took_can_be_taken_from_a_report():
    described = calibration.describe(MEASURED, Path('debian.qcow2'))
    assert calibration.taken_from(json.loads(json.dumps(described))) == MEASURED
