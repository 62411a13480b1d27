"""The simulation driven by arrivals of a real cloud: their files, images' homes, a node's loss."""

import dataclasses
import gzip
import math
import sys

import pytest
import simpy
from nova import objects

from bench.cluster import (
    __main__,
    arrivals,
    arrivalsreport,
    arrivalsweeps,
    calibration,
    runs,
    scheduling,
    workload,
)
from bench.cluster.arrivals import Arrivals, ArrivalsError, Batch
from bench.cluster.calibration import Measured
from bench.cluster.chains import Chains
from bench.cluster.exchanging import Exchange
from bench.cluster.hosts import Cluster, Host
from bench.cluster.links import FairLink
from bench.cluster.nodes import Nodes
from bench.cluster.policies import Policy
from bench.cluster.settling import Settling
from bench.cluster.storage import Node
from bench.cluster.workload import Load
from bench.cluster.world import World
from glance_bootcache.nodes.membership import AWAY_SECONDS

objects.register_all()
MEASURED = Measured(overlay_seconds=0.5, hash_rate=1e9, convert_rate=1e8)
CACHE = Policy('cache', cache=True)
SIZE = int(calibration.CACHE_BYTES.value)
READ = calibration.BOOT_BYTES.value
TRIPS = calibration.BOOT_REQUESTS.value * Node().round_trip
DAY = 86400
FILES = {
    'cloud.test.txt': '300 a,b,|,c,|,\n600 a,|,\n900\n',
    'cloud.test.c1200.txt': '300 U0,U2,|,C1,|,\n600 U1,|,\n900\n',
    'cloud.interval_map.txt': '0 0\n300 1\n600 2\n900 2\n'}


@pytest.fixture
def written(tmp_path):
    """Return the file of arrivals of a directory with all three."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path / 'cloud.test.txt'


# The files.

BATCHES = (Batch(300, ((0.0, 150.0), (450.0, 1050.0))), Batch(300, ((math.inf, math.inf),)),
           Batch(600, ((150.0, 450.0),)))


def test_batches_and_lives_are_read(written):
    assert arrivals.read(written) == arrivals.Trace(300, 1200, BATCHES)


def test_files_may_be_compressed(written):
    for name in ('cloud.test.txt', 'cloud.test.c1200.txt'):
        (written.parent / f'{name}.gz').write_bytes(gzip.compress(FILES[name].encode()))
        (written.parent / name).unlink()
    assert arrivals.read(written.with_name('cloud.test.txt.gz')).batches == BATCHES


@pytest.mark.parametrize('name, text, told', [
    ('cloud.test.txt', None, 'cannot be read'),
    ('cloud.test.txt', 'x a,|,\n', 'line 1 does not begin with seconds'),
    ('cloud.test.txt', '300 a,b,|,c,|,\n700 a,|,\n900\n', 'has other intervals'),
    ('cloud.test.txt', '300 a,|,c,|,\n600 a,|,\n900\n', 'the batches of 300 are others'),
    ('cloud.test.c1200.txt', None, '0 files of lives are beside it'),
    ('cloud.test.c1300.txt', '300 U0,\n', '2 files of lives are beside it'),
    ('cloud.test.c1200.txt', '300 U0,U9,|,C1,|,\n600 U1,|,\n900\n', '"U9" is not'),
    ('cloud.test.c1200.txt', '300 U0,x,|,C1,|,\n600 U1,|,\n900\n', '"x" is not'),
    ('cloud.interval_map.txt', None, 'cannot be read'),
    ('cloud.interval_map.txt', '0 0\n300\n', 'line 2 is not seconds and a bin'),
    ('cloud.interval_map.txt', '0 0\n', 'fewer than two lines')])
def test_errors_name_the_option_and_the_file(written, name, text, told):
    path = written.parent / name
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    with pytest.raises(ArrivalsError, match=f'^--arrivals .*cloud.*{told}'):
        arrivals.read(written)


@pytest.mark.parametrize('text, told', [
    ('300\n600\n', 'no servers'), ('300\n', 'fewer than two intervals'),
    ('600\n300 a,|,\n', 'not in their order')])
def test_files_without_what_is_needed_are_refused(written, text, told):
    written.write_text(text)
    (written.parent / 'cloud.test.c1200.txt').write_text(text.replace('a', 'U0'))
    with pytest.raises(ArrivalsError, match=told):
        arrivals.read(written)


def test_a_file_of_another_kind_is_refused(tmp_path):
    with pytest.raises(ArrivalsError, match='ends neither'):
        arrivals.read(tmp_path / 'cloud.json')
    (tmp_path / 'cloud.txt.gz').write_bytes(b'text')
    with pytest.raises(ArrivalsError, match=r'cloud\.txt\.gz: cannot be read'):
        arrivals.read(tmp_path / 'cloud.txt.gz')


def test_the_command_tells_what_is_wrong(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, 'argv', ['cluster', 'image', '--arrivals', str(tmp_path / 'a.txt')])
    with pytest.raises(SystemExit, match='2'):
        __main__.main()
    assert f'--arrivals {tmp_path}/a.txt: cannot be read' in capsys.readouterr().err


# The window.

def days(count, storm_day=1, storm=8):
    """Return a trace with a batch of two in each hour, and one large batch at noon of a day."""
    found = [Batch(hour * 3600, ((60.0, 60.0),) * 2) for hour in range(24 * count)]
    found.insert(24 * storm_day + 12,
                 Batch(storm_day * DAY + 12 * 3600, ((600.0, 900.0),) * storm))
    return arrivals.Trace(3600, count * DAY, tuple(found))


def window(trace, hosts=arrivals.HOSTS, times=1.0, tmp_path='file'):
    return arrivals.window(trace, tmp_path, 2 * 3600, 3600, hosts, times)


def test_a_window_ends_after_the_largest_batch():
    found = window(days(3))
    assert [(batch.at, len(batch.lives)) for batch in found.batches] == [
        (0, 2), (3600, 2), (7200, 8), (7200, 2)]
    assert found.storm == 2 and found.share == 1.0 and found.seconds == 3 * 3600


def test_more_servers_come_from_the_same_hours_of_other_days():
    found = window(days(3), times=3)
    assert [batch.at for batch in found.batches] == [0] * 3 + [3600] * 3 + [7200] * 4
    assert [len(batch.lives) for batch in found.batches].count(8) == 1
    assert len(found.batches[found.storm].lives) == 8 and found.share == 1.0
    assert window(days(3), times=1.5).share == 0.75


def test_a_smaller_cloud_has_a_share_of_the_batches_and_smaller_ones():
    found = window(days(3), hosts=5, times=1000)
    assert found.share == 0.5 and len(found.batches[found.storm].lives) == 5


def test_a_file_with_too_few_days_is_refused():
    with pytest.raises(ArrivalsError, match=r'--arrivals file: .* on 3 days, and 4 are needed'):
        window(days(3), times=3.5)
    early = arrivals.Trace(3600, DAY, (Batch(0, ((1.0, 1.0),) * 2), Batch(3600, ((1.0, 1.0),))))
    with pytest.raises(ArrivalsError, match='on 0 days, and 1 are needed'):
        window(early)


# The workload.

def load_of(arriving, images=50, skew=0.86):
    return Load(0, images, skew, 0.0, 0.0, 0.0, 1, arriving)


def test_requests_are_the_batches_each_of_one_image():
    found = list(workload.requests(load_of(window(days(3), times=3)), 1))
    assert [request.at for request in found] == sorted(request.at for request in found)
    assert sorted(len(request.lives) for request in found) == [2] * 9 + [8]
    [largest] = [request for request in found if request.is_largest]
    # At the first second of its interval, so that a loss can be told from it.
    assert largest.at == 7200 and all(600 <= life <= 900 for life in largest.lives)
    assert len(set(largest.lives)) == 8
    assert {life for request in found if not request.is_largest for life in request.lives} == {60.0}
    for hour in range(3):
        assert sum(hour * 3600 <= request.at < (hour + 1) * 3600 for request in found) \
            == (4 if hour == 2 else 3)


def test_requests_are_the_same_for_a_seed():
    load = load_of(window(days(4), times=2))
    first, second, other = (list(workload.requests(load, seed)) for seed in (1, 1, 2))
    assert first == second != other


def test_a_share_of_the_batches_comes_and_the_largest_one_always():
    batches = (*[Batch(0, ((1.0, 1.0),))] * 1000, Batch(0, ((1.0, 1.0),) * 9))
    for seed in range(5):
        found = list(workload.requests(load_of(Arrivals(300, 300, batches, 1000, 0.2)), seed))
        assert sum(request.is_largest for request in found) == 1
        assert 150 < len(found) < 250


def test_popular_images_are_asked_for_more_often_the_higher_the_exponent():
    batches = (Batch(0, ((1.0, 1.0),)),) * 2000
    first = [sum(request.image == 0 for request in workload.requests(
        load_of(Arrivals(300, 300, batches, 0, 1.0), skew=skew), 1)) for skew in (0.5, 0.86, 1.5)]
    assert first[0] < first[1] < first[2]
    assert first[1] / 2000 == pytest.approx(workload.popularity(50, 0.86)[0], rel=0.2)


# Homes.

def nodes_of(env, count=2, images=1, **more):
    made = Nodes(env, Node(count=count, **more), 10e9 / 8, MEASURED.hash_rate, True, 0.0, images, 1)
    made.register(range(images))
    return made


def test_each_image_has_one_home_and_is_sent_by_that_alone():
    env = simpy.Environment()
    made, link = nodes_of(env, 4, 200), FairLink(env, 1e12, 1e12)
    homes = [made.number(image) for image in range(200)]
    assert all(30 < homes.count(number) < 70 for number in range(4))
    for image in range(200):
        env.run(until=made.deliver(link, 1e6, image, None))
    assert [one.bytes for one in made.nodes] == [1e6 * homes.count(number) for number in range(4)]
    assert made.bytes == 200e6
    # One link's worth, however many nodes there are.
    began, link = env.now, FairLink(env, 1e12, 1e12)
    env.run(until=made.deliver(link, 10e9, 0, None) & made.deliver(link, 10e9, 0, None))
    assert env.now - began == pytest.approx(20e9 / made.node.link)


def test_a_lost_nodes_images_are_taken_over_when_they_are_asked_for_and_it_is_away():
    env = simpy.Environment()
    made = nodes_of(env, 3, 60)
    lost = made.of(0)
    env.run(until=7)
    made.lose(0)
    assert made.moved == {image for image in range(60) if made.of(image) is lost}
    stays = next(image for image in range(60) if image not in made.moved)
    env.run(until=env.process(made.home(stays)))
    assert env.now == 7
    home = env.run(until=env.process(made.home(0)))
    assert env.now == 7 + AWAY_SECONDS and home is made.of(0) is not lost
    # Nobody asks for these.
    assert all(made.of(image) is lost for image in made.moved - {0})
    taken = {made.number(image) for image in made.moved
             if env.run(until=env.process(made.home(image)))}
    assert taken == {0, 1, 2} - {made.nodes.index(lost)} and env.now == 7 + AWAY_SECONDS


def test_the_only_node_is_not_lost():
    with pytest.raises(ValueError, match='no storage node is left'):
        nodes_of(simpy.Environment(), 1).lose(0)


def test_what_a_lost_node_sends_is_sent_anew_by_the_new_home():
    env = simpy.Environment()
    made, link = nodes_of(env, link=1e6, memory_quota=0), FairLink(env, 1e9, 1e9)
    lost, part = made.of(0), made.deliver(link, 10e6, 0, ('part', 0))
    whole = made.deliver(link, 10e6, 0, ('cache', 0))
    base = made.deliver_base(link, 0, 1e9)
    env.run(until=3)
    made.lose(0)
    assert lost.passed == pytest.approx(3e6)
    env.run(until=part & whole & base)
    assert lost.passed == pytest.approx(3e6)
    # It builds the cache image first; all share its link.
    assert made.of(0).passed == pytest.approx(20e6 + calibration.IMAGE_BYTES.value)
    assert env.now == pytest.approx(23 + (20e6 + calibration.IMAGE_BYTES.value) / 1e6)
    assert made.of(0).built(0).processed


# Boots while a node is lost.

class Cloud:
    """Hosts that make chains by hand, with two nodes of 10 MB/s."""

    def __init__(self, hosts=1, **more):
        self.env = simpy.Environment()
        self.cluster = Cluster(hosts, Load(1, 1, 1.0, 1.0, 1.0, 0.0, 1), homes=True, **more)
        self.nodes = nodes_of(self.env, link=10e6)
        self.chains = Chains(self.env, self.cluster, MEASURED, self.nodes, True)
        self.hosts = [Host(self.env, number, self.cluster) for number in range(hosts)]

    def boot(self, host=0):
        """Make a chain and read it, in a process that returns how long its guest waited."""
        def both():
            reading = yield from self.chains.make(self.hosts[host], 0)
            return (yield from reading)
        return self.env.process(both())

    def lose(self, at):
        self.env.run(until=at)
        self.nodes.lose(0)


def test_a_boot_reads_the_rest_from_the_base_at_the_new_home():
    made = Cloud()
    boot, setup = made.boot(), calibration.ARRIVAL_SECONDS.value
    made.lose(5 + setup)
    come = 50e6
    rest = (READ - come) / 10e6 + TRIPS * (READ - come) / READ
    # The guest has read what has come within its own time; the rest is waited for.
    expected = 5 + AWAY_SECONDS + rest - made.cluster.pace * come
    assert made.env.run(until=boot) == pytest.approx(expected)
    # Its cache image comes from there, too.
    made.env.run(until=made.env.now + 60)
    assert made.hosts[0].has(0) and made.hosts[0].medium(0) is not None


def test_a_boot_that_has_all_it_reads_waits_for_nobody():
    made = Cloud()
    boot = made.boot()
    made.lose(0.2 + READ / 10e6)
    assert boot.processed
    made.env.run(until=made.env.now + AWAY_SECONDS + 60)
    assert made.hosts[0].has(0)


def test_a_server_that_begins_meanwhile_waits_until_the_image_is_taken_over():
    made = Cloud(hosts=2)
    made.lose(1)
    boot = made.boot(1)
    made.env.run(until=boot)
    # The new home has no cache image yet: it reads from the base.
    assert made.env.now == pytest.approx(1 + AWAY_SECONDS + boot.value)
    assert boot.value >= READ / 10e6
    # Then it has.
    made.env.run(until=made.boot(0))
    assert made.hosts[0].medium(0) is not None


def test_what_is_not_the_lost_nodes_goes_on():
    env = simpy.Environment()
    made = nodes_of(env, 2, 40, link=10e6)
    link = FairLink(env, 1e9, 1e9)
    made.lose(0)
    stays = next(image for image in range(40) if image not in made.moved)
    env.run(until=made.deliver(link, 10e6, stays, None))
    assert env.now == pytest.approx(1)


def test_hosts_get_from_each_other_what_a_lost_node_was_giving():
    env = simpy.Environment()
    cluster = Cluster(3, Load(1, 1, 1.0, 1.0, 1.0, 0.0, 1), exchange=True, homes=True)
    nodes = nodes_of(env, link=10e6)
    made, hosts, ends = Exchange(env, cluster, nodes), [], []
    first = Host(env, 0, cluster)
    assert made.ask(first, 0).is_first

    def one(host):
        others = made.ask(host, 0)
        yield from made.bring(host, 0, others, None)
        ends.append(env.now)

    for number in (1, 2):
        hosts.append(Host(env, number, cluster))
        env.process(one(hosts[-1]))
    env.run(until=4)
    nodes.lose(0)
    env.run(until=5)
    made.has_come(first, 0)
    env.run(until=5 + AWAY_SECONDS / 2)
    # Before any node is away.
    assert len(ends) == 2


def test_hosts_wait_for_the_new_home_if_none_of_them_has_it():
    env = simpy.Environment()
    cluster = Cluster(2, Load(1, 1, 1.0, 1.0, 1.0, 0.0, 1), exchange=True, homes=True)
    nodes, ends = nodes_of(env, link=10e6), []
    made = Exchange(env, cluster, nodes)

    def one(host):
        others = made.ask(host, 0)
        yield from made.bring(host, 0, others, None)
        ends.append(env.now)

    hosts = [Host(env, number, cluster) for number in range(2)]
    for host in hosts:
        env.process(one(host))
    env.run(until=1)
    lost = nodes.of(0)
    nodes.lose(0)
    env.run(until=1 + AWAY_SECONDS)
    assert not ends
    env.run(until=200)
    assert len(ends) == 2 and nodes.of(0) is not lost
    # What had come before was not asked for again.
    given = sum(host.giving.bytes for host in hosts)
    assert nodes.of(0).passed + lost.passed + given == pytest.approx(2 * SIZE, abs=SIZE / 20)


# Settling.

def settled(lives, delay):
    """Return the world of servers of one image on one host, long after they have begun."""
    arriving = Arrivals(300, 300, (Batch(0, tuple((life, life) for life in lives)),), 0, 1.0)
    cluster = Cluster(1, load_of(arriving, 1), homes=True, settle_delay=delay)
    env = simpy.Environment()
    with scheduling.memory_of_choices(lambda: env.now):
        world = World(env, cluster, CACHE, MEASURED, 1)
        world.run()
        env.run(until=env.now + 4000)
    return world


COPY = 3 * calibration.IMAGE_BYTES.value / (50 << 20)


def test_no_base_is_copied_for_servers_that_end_before_the_delay():
    assert settled([100, 200], 300).storage.settled_bytes == 0
    assert settled([100, 200], 150).storage.settled_bytes == calibration.IMAGE_BYTES.value


@pytest.mark.parametrize('lives, used', [
    ([65], 0), ([200, 100], 200), ([100, 3000, math.inf], math.inf)])
def test_it_is_noted_how_long_servers_run_on_a_base_that_was_copied(lives, used):
    world = settled(lives, 60)
    [copied] = world.settling.copied
    assert copied.is_over and copied.later == 0
    assert copied.used == (pytest.approx(used - 60 - COPY, abs=0.2) if used else 0)
    assert sum(world.unsettled.values()) == 0


def test_as_many_hosts_get_bases_from_a_node_as_it_has_slots():
    env = simpy.Environment()
    nodes = nodes_of(env, 2, 40, settle_slots=2)
    settling = Settling(env, nodes, 50 << 20)
    home = nodes.number(0)
    other = next(image for image in range(40) if nodes.number(image) != home)
    hosts = [Host(env, number, Cluster(1, load_of(None))) for number in range(5)]
    ends = {}

    def one(number, image):
        hosts[number].busy[image] += 1
        yield settling.base(hosts[number], image)
        ends[number, image] = env.now / (COPY / 3)

    # The last one's server leaves while it waits; other images' nodes have slots of their own.
    for number, image in ((0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (2, other)):
        env.process(one(number, image))
    env.run(until=1)
    hosts[4].busy.clear()
    env.run()
    assert {key: pytest.approx(end) for key, end in ends.items()} == {
        (0, 0): 3, (1, 0): 3, (2, other): 3, (2, 0): 6, (3, 0): 4, (4, 0): 2}
    assert nodes.settled_bytes == 5 * calibration.IMAGE_BYTES.value


def test_servers_that_come_later_are_noted():
    env = simpy.Environment()
    settling, host = Settling(env, nodes_of(env), 50 << 20), Host(env, 0, Cluster(
        1, Load(1, 1, 1.0, 1.0, 1.0, 0.0, 1)))
    # A base that was not copied here.
    settling.comes_later(host, 0)
    host.busy[0] = 1
    env.run(until=settling.base(host, 0))
    settling.comes_later(host, 0)
    settling.moves(host, 0, 5.0)
    settling.moves(host, 0, 3.0)
    [copied] = settling.copied
    assert (copied.used, copied.later) == (5.0, 1)


def test_servers_need_a_node_until_they_have_settled():
    world = settled([1000] * 4, 300)
    counts = {sample.at: sum(sample.unsettled) for sample in world.samples}
    assert counts[60] == counts[300] == 4 and counts[420] == 0


# Runs, and their report.

def test_both_scales_answer_every_question():
    trace = dataclasses.replace(days(9, storm_day=4), interval=300)
    for scale in (arrivalsweeps.QUICK, arrivalsweeps.FULL):
        found = list(arrivalsweeps.plan(trace, 'file', scale))
        assert {run.sweep for run in found} == {
            arrivalsweeps.NODES, arrivalsweeps.LOSS, arrivalsweeps.DELAYS}
        assert all(run.cluster.homes and run.cluster.load.arrivals for run in found)
        nodes = [run for run in found if run.sweep == arrivalsweeps.NODES]
        assert {run.cluster.load.skew for run in nodes} == {0.86, 1.0}
        assert {run.cluster.exchange for run in nodes} == {False, True}
        assert len({run.cluster.load.arrivals.times for run in nodes}) == 2
        # Each run with a loss has one without.
        alike = {(run.value, run.cluster.exchange, run.cluster.settle) for run in nodes}
        for run in found:
            if run.sweep == arrivalsweeps.LOSS:
                assert run.cluster.lost_after is not None and run.cluster.node.count > 1
                assert (run.value, run.cluster.exchange, run.cluster.settle) in alike
    assert arrivalsweeps.FULL.hosts == 10_000


def test_figures_and_tables(tmp_path):
    batches = (*(Batch(at, ((600.0, 900.0),) * 2) for at in range(0, 3000, 300)),
               Batch(3000, ((600.0, 900.0),) * 10))
    arriving = Arrivals(300, 3300, batches, 10, 1.0)
    rows = []
    for sweep, value, exchange, more in (
            (arrivalsweeps.NODES, 2, False, {'settle': False}),
            (arrivalsweeps.NODES, 2, True, {'settle': False}),
            (arrivalsweeps.LOSS, 2, False, {'settle': False, 'lost_after': 0.3}),
            (arrivalsweeps.DELAYS, 60, False, {'settle_delay': 60.0})):
        cluster = Cluster(12, load_of(arriving, 3), node=Node(count=2, link=1e8), homes=True,
                          exchange=exchange, exchange_parts=64, **more)
        rows.append({'sweep': sweep, 'value': value, **runs.run(
            cluster, CACHE, MEASURED, 1, 0.0, arrivalsweeps.figures)})
    copied, exchanged, lost, delay = rows
    assert all(row['storm_servers'] == 10 and row['others'] == 20 for row in rows)
    assert lost['storm_delay_most_s'] > AWAY_SECONDS > 15 > copied['storm_delay_most_s']
    assert lost['moved'] > 0 == copied['moved'] and lost['depended'] > 0
    assert 0 < copied['link_use'] < copied['link_use_busiest'] < copied['link_use_minute'] <= 1
    assert copied['link_use'] == pytest.approx(
        copied['storage_bytes'] / 2e8 / copied['simulated_seconds'], rel=0.1)
    assert exchanged['storage_bytes'] < copied['storage_bytes']
    assert delay['settled_copies'] > 0 == copied['settled_copies']
    assert delay['unsettled'] < copied['unsettled']
    arrivalsreport.write(rows, tmp_path)
    tables = {name: (tmp_path / f'cluster-real-{name}.csv').read_text().splitlines()
              for name in ('nodes', 'loss', 'settle-delay')}
    assert [line.split(',')[:4] for line in tables['nodes'][1:]] == [
        ['copied', '1', '0.86', '2'], ['exchanged', '1', '0.86', '2']]
    assert [line.split(',')[:3] for line in tables['loss'][1:]] == [
        ['copied', '2', 'none'], ['copied', '2', '0.3']]
    hours = (delay['simulated_seconds'] - 60) / 3600
    assert tables['settle-delay'][1].startswith(
        f'60,{delay["settled_bytes"] / 1e9 / hours:.0f},{delay["settled_copies"] / hours:.0f},')
