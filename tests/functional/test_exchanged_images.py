"""Cache images come to hosts from each other: a storage node, three hosts, and what fails."""

import os
import shutil
import tempfile
from concurrent import futures

import apart
import pytest
from compute_host import Service, fetched
from exchange_cloud import Cloud
from exchanging import Swarm
from functional_tools import frozen, until
from storage_node import IMAGE, MIB

from bootcache import exception, qemuimg
from bootcache.manifest import CacheInfo, Standing
from bootcache.reasons import Cause, Reason
from bootcache.rpc.messages import ExchangeCache
from glance_bootcache.exchange.offers import ExchangeOffers
from tools import storedimages

pytestmark = apart.needs_libtorrent



@pytest.fixture
def cloud(directory, ca, node, storage_conf, monkeypatch):
    service = Service(node)
    monkeypatch.setattr('nova_bootcache.asking.client.StorageClient', lambda conf: service)
    swarm = Swarm(directory, ca)
    made = Cloud(swarm, node, storage_conf, service)
    yield made
    made.tiers.stop()
    swarm.stop()


def test_the_third_host_gets_it_from_the_others(cloud):
    one, two, three = (cloud.host() for _number in range(3))
    cloud.fetch(one)
    assert cloud.given() >= cloud.info.bytes
    cloud.fetch(two)
    cloud.node.kill()
    cloud.fetch(three)
    held, = three.client.files()['files'].values()
    assert set(held['peers']) <= {one.address, two.address} and held['got'] >= cloud.info.bytes
    assert cloud.given(one) + cloud.given(two) >= cloud.info.bytes


def test_hosts_give_on_what_came_from_others_while_the_storage_node_is_away(cloud):
    one, two, three = (cloud.host() for _number in range(3))
    cloud.fetch(one)
    cloud.fetch(two)
    cloud.storage.kill()
    cloud.node.kill()
    # The service knows the torrent; its own exchange is gone, so nobody is told.
    with pytest.raises(exception.BootcacheError):
        cloud.fetch(three)


def test_without_an_exchange_on_the_storage_node_it_is_copied(cloud):
    cloud.storage.kill()
    one = cloud.host()
    cloud.fetch(one)
    assert one.client.files()['got'] == 0


def test_without_an_exchange_on_the_host_it_is_copied(cloud):
    one = cloud.host()
    one.kill()
    cloud.fetch(one)
    assert cloud.given() == 0


def test_a_host_that_takes_no_part_copies(cloud):
    one = cloud.host(exchange_address=None)
    cloud.fetch(one)
    assert cloud.given() == 0 and one.client.files()['got'] == 0


def test_what_others_do_not_give_is_copied_and_not_more(cloud, monkeypatch):
    """The first host has a part of it, and nobody has the rest."""
    one, two = cloud.host(), cloud.host()
    cloud.leave_a_part(one, monkeypatch)
    cloud.fetch(two)
    assert 2 * MIB <= two.client.files()['got'] + MIB <= cloud.info.bytes


def test_many_pieces_that_nobody_gives_are_copied_in_few_steps(cloud, monkeypatch):
    """The first host has every other piece: a process for each of them would take longer."""
    one, two, copied = cloud.host(), cloud.host(), []
    answer = cloud.service.offers.offer(ExchangeCache(IMAGE, 'host-2', cloud.info.sha256,
        one.address, one.port, ''))
    torrent, piece = answer.torrent, 65536
    with open(cloud.node.cache_path, 'rb') as whole, open(one.file, 'wb') as part:
        for offset in range(0, cloud.info.bytes, 2 * piece):
            for stream in whole, part:
                stream.seek(offset)
            part.write(whole.read(piece))
    one.client.fetch(torrent, one.file, [])
    cloud.storage.kill()
    monkeypatch.setattr(cloud.service.offers, '_give', lambda *_arguments: torrent)
    copy_piece = qemuimg.copy_piece
    monkeypatch.setattr(qemuimg, 'copy_piece', lambda *arguments, **named: copied.append(
        copy_piece(*arguments, **named)))
    cloud.fetch(two)
    assert 1 < len(copied) < 10 and two.client.files()['got'] > MIB


def test_where_the_storage_node_does_not_answer_the_rest_is_not_waited_for(cloud, monkeypatch):
    one = cloud.host()
    answer = cloud.service.offers.offer(ExchangeCache(IMAGE, 'host', cloud.info.sha256,
        '127.0.7.99', 1, ''))
    monkeypatch.setattr(cloud.service.offers, '_give',
                        lambda *_arguments: answer.torrent)
    cloud.storage.kill()
    with frozen(cloud.node.exporter.common._daemon.pid()), pytest.raises(exception.BootcacheError):
        cloud.fetch(one)


def test_for_all_that_ask_at_once_the_file_is_read_once(cloud, monkeypatch):
    offers, read = cloud.service.offers, []
    describe = offers._client.describe
    monkeypatch.setattr(offers._client, 'describe', lambda path: read.append(1) or describe(path))

    def ask(number):
        return offers.offer(ExchangeCache(IMAGE, f'host-{number}', cloud.info.sha256,
                                          f'127.0.7.{number}', 1, ''))

    with futures.ThreadPoolExecutor(8) as pool:
        told = list(pool.map(ask, range(20, 28)))
    assert len(read) == 1 and len({one.torrent for one in told}) == 1


def test_what_could_not_be_read_is_read_again(cloud, monkeypatch):
    offers = cloud.service.offers
    with monkeypatch.context() as patch:
        patch.setattr(offers._client, '_path', '/nowhere')
        assert offers.offer(ExchangeCache(IMAGE, 'host', cloud.info.sha256, '127.0.7.20', 1,
                                          '')) is None
    assert offers.offer(ExchangeCache(IMAGE, 'host', cloud.info.sha256, '127.0.7.20', 1,
                                      '')) is not None


def test_of_a_ca_that_was_replaced_no_torrent_is_given_out(cloud, other_ca, torrents):
    """Else hosts that have the new certificates would meet nobody, and those of the old be let in.
    """
    def offered():
        answer = cloud.service.offers.offer(ExchangeCache(IMAGE, 'host', cloud.info.sha256,
            '127.0.7.20', 1, ''))
        return answer and torrents.authority(answer.torrent)

    folder = cloud.storage.options['tls_directory']
    before = offered()
    shutil.copytree(other_ca.issue('host-1'), folder, dirs_exist_ok=True)
    assert offered() is None and cloud.storage.client.files()['files'] == {}
    now = offered()
    with open(f'{folder}/ca-cert.pem') as stream:
        assert now == stream.read() != before


def test_where_the_storage_node_gives_for_no_time_nobody_waits_for_it(cloud, storage_conf):
    storage_conf.set_override('exchange_linger', 0, 'bootcache')
    cloud.service.offers = ExchangeOffers(storage_conf, cloud.store, cloud.tiers)
    cloud.fetch(cloud.host())
    assert cloud.service.offers.given.describe(IMAGE) == []


def test_it_comes_at_the_rate_that_is_asked_for(cloud):
    cloud.fetch(cloud.host(), rate=2 * MIB)
    assert cloud.given() >= cloud.info.bytes


def test_what_is_not_given_out_is_not_exchanged_either(cloud):
    def offered():
        return cloud.service.offers.offer(ExchangeCache(IMAGE, 'host', cloud.info.sha256,
            '127.0.7.9', 1, ''))

    assert offered() is not None
    assert cloud.service.offers.offer(ExchangeCache(IMAGE, 'host', '0' * 64, '127.0.7.9', 1,
        '')) is None
    storedimages.put(cloud.store, cloud.node.manifest.standing_at(
        Standing.SKIPPED, Cause(Reason.REFUSED, 'it is private now')))
    assert offered() is None


@pytest.fixture
def accounted():
    """Returns what counts the bytes in memory file systems that are a process's from now on."""
    made = f'/sys/fs/cgroup/memory/bootcache-test-{os.getpid()}'
    if not os.path.isdir(os.path.dirname(made)):
        made = f'/sys/fs/cgroup/bootcache-test-{os.getpid()}'
    try:
        os.mkdir(made)
    except OSError as error:
        pytest.skip(f'no control group can be made: {error}')

    def count(pid):
        with open(f'{made}/cgroup.procs', 'w') as stream:
            stream.write(str(pid))
        return lambda: read_shmem(made)

    yield count
    # Of a host, which has ended by then.
    until(lambda: not open_text(f'{made}/cgroup.procs'), 'the end of its process')
    os.rmdir(made)


def open_text(path):
    with open(path) as stream:
        return stream.read()


def read_shmem(group):
    if not os.path.exists(f'{group}/memory.stat'):
        pytest.skip('control groups do not count memory here')
    return int(dict(map(str.split, open_text(f'{group}/memory.stat').splitlines()))['shmem'])


def test_what_comes_into_memory_is_not_the_exchanges(accounted, cloud):
    """Its unit allows 512 MiB, and it would be killed for a memory tier's cache images."""
    with tempfile.TemporaryDirectory(dir='/dev/shm') as memory:
        one = cloud.host(memory)
        shmem = accounted(one.process.pid)
        before = shmem()
        cloud.fetch(one)
        assert one.client.files()['got'] >= cloud.info.bytes
        assert shmem() - before < MIB


def test_a_file_that_is_rewritten_for_this_host_is_not_given_on(cloud):
    """Its header names another socket: it is not what others have."""
    one = cloud.host()
    one.fetches._gateway_socket = '/run/else/gateway.sock'
    answer = cloud.node.answer()
    fetched(one.fetches, cloud.node.remote(), CacheInfo(**answer['cache_image']),
            answer['cache_export'])
    assert one.client.files()['files'] == {} and one.client.files()['got'] >= cloud.info.bytes
    # Nor where others were told of this host before.
    one.fetches.give(one.fetches.ask_others(IMAGE, cloud.info), IMAGE)
    assert one.client.files()['files'] == {}
