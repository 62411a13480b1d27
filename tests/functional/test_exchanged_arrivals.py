"""Servers boot when other hosts have given the cache image, apart from what the servers read."""

import contextlib
import os
import threading
from concurrent import futures

import apart
import pytest
from compute_host import boot, compare
from exchange_cloud import SET, Cloud
from exchanging import Swarm
from functional_tools import frozen, read_base, until
from storage_node import IMAGE, MIB, content
from test_arrival import Way, nodes

from bootcache import steps
from bootcache.exchange import patience
from nova_bootcache.asking import client
from nova_bootcache.gateway import arrivingimage, graph

pytestmark = apart.needs_libtorrent

LAST = SET[-1].end - 8192


@pytest.fixture
def cloud(directory, ca, node, storage_conf, hosts, monkeypatch):
    monkeypatch.setattr(arrivingimage, 'WORTH_BYTES', 0)
    swarm = Swarm(directory, ca)
    made = Cloud(swarm, node, storage_conf, client.StorageClient(None))
    yield made
    made.tiers.stop()
    swarm.stop()


@pytest.fixture
def way(cloud, directory):
    """From the exporter to the host."""
    made = Way(directory, cloud.node.conf.export_port, 80_000_000)
    yield made
    made.end()


@pytest.fixture
def host(cloud, hosts, way):
    """A host, with its exchange beside it, that boots."""
    yield (made := booting(cloud, hosts, way))
    assert made.arrivals.wait(IMAGE, 60)


def booting(cloud, hosts, way, **options):
    exchange = cloud.swarm.host()
    made = hosts(exchange_address=exchange.address, exchange_port=exchange.port,
                 exchange_socket=exchange.socket, **options)
    made.service.extra = {'server': ['127.0.0.1', way.port]}
    made.exchange = exchange
    return made


@pytest.fixture
def held():
    """What comes apart does not begin to before ``go`` is set; ``come`` are the steps."""
    class Held:
        go, come = threading.Event(), []

        def hook(self, step):
            self.come.append(step)
            if step == 'arrive: apart':
                assert self.go.wait(60)

    made = Held()
    steps.install(made.hook)
    yield made
    made.go.set()
    steps.install(None)


@pytest.fixture
def patient(monkeypatch):
    """Servers wait for as long as others may give it."""
    monkeypatch.setattr(patience, 'SERVERS_WAIT', 600.0)


@pytest.fixture
def hasty(monkeypatch):
    """Servers wait for next to nothing."""
    monkeypatch.setattr(patience, 'SERVERS_WAIT', 0.1)


@pytest.fixture
def untold(cloud):
    """The storage service is of a version that does not say whether there are others."""
    cloud.service.offers.tell = lambda answer, host: answer


@pytest.fixture
def go(monkeypatch):
    """What comes from the storage node does not begin to before this is set, but what is asked for.
    """
    event, real = threading.Event(), arrivingimage.bring
    monkeypatch.setattr(arrivingimage, 'bring', lambda *what: event.wait(60) and real(*what))
    yield event
    event.set()


def boot_all(host, *paths):
    """Have servers boot at the same time; what is to come of them."""
    pool = futures.ThreadPoolExecutor(len(paths))
    found = [pool.submit(boot, host, path) for path in paths]
    pool.shutdown(wait=False)
    return found


def is_sent_once(way, cloud):
    """Tell whether a cache image was sent once, but for some reads whether it is there."""
    return cloud.info.bytes <= sent(way) < cloud.info.bytes + 64 * 4096


def sent(way):
    """The bytes of the cache image that came from the storage node."""
    return sum(length for _offset, length in way.reads('cache-'))


def has_arrived(host, cloud):
    assert host.arrivals.wait(IMAGE, 60)
    assert host.cache.entry(IMAGE).cache_image == cloud.info
    with open(host.cache.path(IMAGE), 'rb') as here, open(cloud.node.cache_path, 'rb') as there:
        assert here.read() == there.read()
    assert host.gateway.daemon.nodes() == nodes(host, 'g', 'l', 'n')
    assert not any(name.endswith('.partial') for name in os.listdir(host.cache.directory))
    assert not host.room.arriving()


def gives(host):
    """Tell whether a host gives what it has to others."""
    return [entry['is_complete'] and not entry['is_fetched']
            for entry in host.exchange.client.files()['files'].values()] == [True]


def test_servers_wait_while_others_give_it_and_read_nothing_from_the_storage_node(
        cloud, host, way, held, patient, directory):
    others = [cloud.host(), cloud.host()]
    for other in others:
        cloud.fetch(other)
    before, disks = cloud.given(), (f'{directory}/disk', f'{directory}/second')
    waiting, wait = [], host.arrivals.awaited.wait
    host.arrivals.awaited.wait = lambda image_id: waiting.append(image_id) or wait(image_id)
    servers = boot_all(host, *disks)
    until(lambda: 'arrive: apart' in held.come and len(waiting) == 2, 'the exchange')
    assert host.needs.is_arriving(IMAGE) and not any(map(os.path.exists, disks))
    held.go.set()
    assert [server.result(60) for server in servers] == [True, True]
    assert host.cache.entry(IMAGE).cache_image == cloud.info
    has_arrived(host, cloud)
    assert 'arrive: exchanged' in held.come and sent(way) == 0
    assert cloud.given() == before and sum(map(cloud.given, others)) >= cloud.info.bytes
    for disk in disks:
        compare(disk, cloud.node)
    until(lambda: gives(host), 'that it gives')
    told = {one['to']: one['way'] for one in cloud.service.offers.given.describe(IMAGE)}
    assert told['host-1'] == 'exchanged'


def test_where_others_are_gone_the_storage_nodes_exchange_gives_it_soon(
        cloud, host, way, held, patient, directory):
    others = [cloud.host(), cloud.host()]
    for other in others:
        cloud.fetch(other)
    for other in others:
        other.kill()
    held.go.set()
    before = cloud.given()
    assert boot(host, f'{directory}/disk') is True
    has_arrived(host, cloud)
    assert 'arrive: exchanged' in held.come and sent(way) == 0
    assert cloud.given() - before >= cloud.info.bytes


def test_where_nobody_gives_anything_servers_go_on(cloud, host, way, directory, monkeypatch):
    """Those that the host is told of are gone, and so is the storage node's exchange."""
    other = cloud.host()
    cloud.leave_a_part(other, monkeypatch)
    other.kill()
    assert boot(host, f'{directory}/disk') is True
    compare(f'{directory}/disk', cloud.node)
    has_arrived(host, cloud)
    assert sent(way) >= cloud.info.bytes


def test_a_host_that_is_told_of_nobody_does_not_wait_for_an_answer(
        cloud, host, way, patient, directory, monkeypatch):
    """As where there is no exchange: others are asked for while its server boots."""
    offer, answered = cloud.service.offers.offer, threading.Event()
    monkeypatch.setattr(cloud.service.offers, 'offer',
                        lambda *what: answered.wait(60) and offer(*what))
    assert boot(host, f'{directory}/disk') is True
    assert host.needs.is_arriving(IMAGE) and not answered.is_set()
    answered.set()
    has_arrived(host, cloud)
    assert is_sent_once(way, cloud)


def test_where_those_that_were_told_do_not_ask_servers_wait_for_the_answer_only(
        cloud, host, way, held, patient, go, directory):
    cloud.service.offers.tell(cloud.node.answer(), 'another')
    assert boot(host, f'{directory}/disk') is True
    assert host.needs.is_arriving(IMAGE)
    go.set()
    has_arrived(host, cloud)
    assert 'arrive: apart' not in held.come and is_sent_once(way, cloud)


def test_a_server_that_has_waited_long_enough_reads_what_it_asks_for(cloud, host, way, hasty,
                                                                     directory, monkeypatch):
    """Others are slow; they go on later, and it is here then."""
    monkeypatch.setattr(patience, 'GIVE_UP_AFTER', 600.0)
    data, givers = content(cloud.node), [cloud.host(), cloud.host(), cloud.storage]
    for other in givers[:2]:
        cloud.fetch(other)
    with contextlib.ExitStack() as still:
        for giver in givers:
            still.enter_context(frozen(giver.process.pid))
        monkeypatch.setattr(cloud.service.offers, '_give',
                            lambda file, _path: cloud.service.offers._torrents[file][0].result())
        assert boot(host, f'{directory}/disk') is True
        until(lambda: nodes(host, graph.ARRIVING) < host.gateway.daemon.nodes(),
              'that servers read from it')
        assert read_base(host, IMAGE, LAST, 4096) == data[LAST:LAST + 4096]
        # Nor does another one wait now.
        assert boot(host, f'{directory}/second') is True
        assert host.needs.is_arriving(IMAGE) and 0 < sent(way) < MIB
    has_arrived(host, cloud)
    assert sent(way) < MIB
    for disk in ('disk', 'second'):
        compare(f'{directory}/{disk}', cloud.node)


def test_others_give_it_while_a_server_reads_what_it_asks_for(cloud, host, way, held, untold,
                                                              directory):
    data = content(cloud.node)
    for other in (cloud.host(), cloud.host()):
        cloud.fetch(other)
    before = cloud.given()
    assert boot(host, f'{directory}/disk') is True
    until(lambda: 'arrive: apart' in held.come, 'the exchange')
    assert read_base(host, IMAGE, LAST, 4096) == data[LAST:LAST + 4096]
    assert boot(host, f'{directory}/second') is True
    assert host.needs.is_arriving(IMAGE)
    assert 0 < sent(way) < MIB
    held.go.set()
    has_arrived(host, cloud)
    assert 'arrive: exchanged' in held.come and 'arrive: come' not in held.come
    assert sent(way) < MIB
    assert host.exchange.client.files()['got'] >= cloud.info.bytes
    assert cloud.given() == before, 'the storage node sent it to two hosts, and not to this one'
    # What those servers read comes from this host now.
    count = way.pieces('cache-'), way.pieces('base-')
    for extent in SET:
        assert read_base(host, IMAGE, extent.offset, extent.length) == \
            data[extent.offset:extent.end]
    assert (way.pieces('cache-'), way.pieces('base-')) == count
    for disk in ('disk', 'second'):
        compare(f'{directory}/{disk}', cloud.node)
    until(lambda: gives(host), 'that it gives')


def test_what_servers_read_is_nothing_that_others_wrote(cloud, host, held, untold, directory):
    """Of two files the gateway has one open until the other is verified."""
    for other in (cloud.host(), cloud.host()):
        cloud.fetch(other)
    seen = []

    def hook(step):
        if step == 'arrive: exchanged':
            path = host.cache.coming_path(IMAGE, next(iter(host.cache.directories)))
            folder = f'/proc/{host.gateway.daemon.pid()}/fd'
            links = {os.stat(f'{folder}/{name}').st_ino for name in os.listdir(folder)}
            apart = path.replace('.partial', '.exchanged.partial')
            seen.append((os.stat(path).st_ino in links, os.stat(apart).st_ino in links))

    steps.install(hook)
    assert boot(host, f'{directory}/disk') is True
    has_arrived(host, cloud)
    assert seen == [(True, False)]
    compare(f'{directory}/disk', cloud.node)


def test_the_first_host_has_it_read_and_gives_it_afterwards(cloud, host, way, held, directory):
    assert boot(host, f'{directory}/disk') is True
    has_arrived(host, cloud)
    assert 'arrive: apart' not in held.come and is_sent_once(way, cloud)
    until(lambda: gives(host), 'that it gives')
    assert cloud.given() == 0
    # Whoever comes next is told of it.
    other = cloud.host()
    cloud.fetch(other)
    entry, = other.client.files()['files'].values()
    assert host.exchange.address in entry['peers']


def test_what_others_do_not_give_is_copied_and_servers_do_not_wait_for_that(
        cloud, host, way, hasty, directory, monkeypatch):
    """The host before it has a part of it, nobody has the rest, and it does not begin anew."""
    cloud.leave_a_part(cloud.host(), monkeypatch)
    assert boot(host, f'{directory}/disk') is True
    assert host.needs.is_arriving(IMAGE)
    compare(f'{directory}/disk', cloud.node)
    has_arrived(host, cloud)
    got = host.exchange.client.files()['got']
    assert 2 * MIB <= got + MIB <= cloud.info.bytes
    until(lambda: gives(host), 'that it gives')


def test_without_the_exchange_of_this_host_it_is_read_at_once(cloud, host, way, patient, go,
                                                              directory):
    for other in (cloud.host(), cloud.host()):
        cloud.fetch(other)
    host.exchange.kill()
    assert boot(host, f'{directory}/disk') is True
    assert host.needs.is_arriving(IMAGE)
    go.set()
    has_arrived(host, cloud)
    assert is_sent_once(way, cloud)


def test_the_exchange_of_this_host_dies_in_the_midst(cloud, host, way, patient, directory):
    for other in (cloud.host(), cloud.host()):
        cloud.fetch(other)

    def hook(step):
        if step == 'arrive: apart':
            host.exchange.kill()

    steps.install(hook)
    try:
        assert boot(host, f'{directory}/disk') is True
        has_arrived(host, cloud)
    finally:
        steps.install(None)
    assert is_sent_once(way, cloud)


def test_without_room_for_a_second_file_others_are_not_told_of_it(cloud, hosts, way, patient,
                                                                  directory):
    one = cloud.host()
    cloud.fetch(one)
    # Of these 95 % are the high watermark.
    made = booting(cloud, hosts, way, store_quota='1MiB',
                   compute_disk_quota=str(arrivingimage.room(cloud.info.bytes) + 3 * MIB))
    asked = []
    offer = cloud.service.offers.offer
    cloud.service.offers.offer = lambda *what: asked.append(what) or offer(*what)
    assert boot(made, f'{directory}/disk') is True
    has_arrived(made, cloud)
    assert asked == [] and is_sent_once(way, cloud)
    assert made.exchange.client.files()['got'] == 0


def test_a_host_that_ends_in_the_midst_leaves_nothing(cloud, host, hosts, way, held, hasty,
                                                      directory):
    """Files of an earlier process; the next one has it come again."""
    for other in (cloud.host(), cloud.host()):
        cloud.fetch(other)
    assert boot(host, f'{directory}/disk') is True
    until(lambda: 'arrive: apart' in held.come, 'the exchange')
    left = host.cache.exchanged_path(IMAGE, next(iter(host.cache.directories)))
    with open(left, 'wb') as stream:
        stream.write(bytes(MIB))
    again = hosts(**{name: value for name, value in host.exchange.options.items()
                     if name in ('exchange_address', 'exchange_port', 'exchange_socket')})
    again.exchange = host.exchange
    assert not any(name.endswith('.partial') for name in os.listdir(again.cache.directory))
    assert again.gateway.daemon.nodes() == nodes(again, 'g', 'n')
    compare(f'{directory}/disk', cloud.node)
    # In one process the earlier host's thread is still there; what it lands is right.
    held.go.set()
    assert host.arrivals.wait(IMAGE, 60)
