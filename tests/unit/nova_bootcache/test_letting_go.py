"""When a host may let go of what is below its servers' disks: chains in the making, and stores.

The gateway is a stand-in; tests/functional/test_compute_host.py and test_cold_boots.py have a real
one. A disk is opened here as QEMU opens it: with its image lock.
"""

import contextlib
import dataclasses
import fcntl
import os
import struct
import threading

import oslo_messaging as messaging
import pytest
from fakes_clock import Clock
from oslo_config import cfg

from bootcache import exception, qemuimg, tier
from bootcache.manifest import CacheInfo
from bootcache.tier import Medium
from nova_bootcache import conf as nova_conf
from nova_bootcache import storagenode
from nova_bootcache.asking import client, placement
from nova_bootcache.asking.placement import Offer, Server
from nova_bootcache.cache.cacheentry import CacheEntry
from nova_bootcache.chains.computehost import ComputeHost
from nova_bootcache.gateway import hostneeds
from nova_bootcache.novadriver.imagebackend import BootCacheQcow2
from nova_bootcache.storagenode import Remote

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
OTHER = '00000000-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
MIB = 1 << 20


class Store:
    """Stands for a growing store."""

    def __init__(self, image_id, path):
        self.image_id, self.path, self.grows, self.closed = image_id, path, True, False
        self.limit, self.spoilt = 3 * MIB, False

    def look(self, now):
        return self.grows

    def is_there(self):
        return True

    def stop_growing(self):
        self.grows = False

    def close(self):
        self.closed = True
        os.unlink(self.path)


@pytest.fixture
def host(tmp_path, monkeypatch):
    conf = cfg.ConfigOpts()
    conf([], project='nova', default_config_files=[], default_config_dirs=[])
    nova_conf.register_opts(conf)
    for name, value in {'gateway_run_dir': str(tmp_path / 'run'), 'compute_disk_quota': '4MiB',
                        'gateway_socket': str(tmp_path / 'run' / 's'), 'store_quota': '3MiB',
                        'high_watermark': 100}.items():
        conf.set_override(name, value, 'bootcache')
    host = ComputeHost(conf, str(tmp_path / 'cache'))
    host.cache.prepare()
    host.removed = []
    monkeypatch.setattr(host.gateway, 'start', lambda: False)
    monkeypatch.setattr(host.gateway, 'remove_base',
                        lambda image_id: not host.removed.append(image_id))
    monkeypatch.setattr(storagenode, 'check_reachable', lambda remote: None)
    host.clock = Clock()
    monkeypatch.setattr(hostneeds, 'time', host.clock)
    yield host
    host.stop()


def place(host, image=IMAGE, size=MIB):
    """Put a cache image into the cache, unused for long."""
    path = host.cache.path(image)
    with open(path, 'wb') as stream:
        stream.truncate(size)
    entry = CacheEntry(Remote(image, '10.0.0.1', 10810, f'base-{image}'), None, 'ab', size)
    entry.save(f'{path}.json')
    os.utime(f'{path}.json', (1, 1))


def make_disk(host, path, image=IMAGE):
    with host.needs.making(image, str(path)):
        path.write_bytes(b'overlay')


@contextlib.contextmanager
def opened(path):
    """A process has a disk open: it holds QEMU's image lock of it."""
    with open(path, 'rb') as stream:
        fcntl.fcntl(stream, fcntl.F_OFD_SETLK,
                    struct.pack('hhqqi', fcntl.F_RDLCK, os.SEEK_SET, 100, 1, 0))
        yield


# Chains in the making.

def fill(host, size):
    """Make room for a file."""
    with host.room.for_fetch('new', Medium.DISK, size):
        pass


def evict(host):
    """Want all of the tier's room; tell what is left."""
    with contextlib.suppress(exception.BootcacheError):
        fill(host, 4 * MIB)
    return {image for image in (entry.remote.image_id for entry in host.cache.entries())
            if os.path.exists(host.cache.path(image))}


def test_a_chain_whose_disk_nobody_has_opened_yet_is_kept(host, tmp_path):
    for image in (IMAGE, OTHER):
        place(host, image)
    make_disk(host, tmp_path / 'disk')
    assert host.needs.is_in_making(IMAGE) and not host.needs.is_in_making(OTHER)
    assert host.below.stop_serving(IMAGE) is False and host.removed == []
    assert host.below.stop_serving(OTHER) is True and host.removed == [OTHER]
    fill(host, 3 * MIB)
    assert os.path.exists(host.cache.path(IMAGE)) and not os.path.exists(host.cache.path(OTHER))
    assert host.removed == [OTHER, OTHER], 'what is evicted leaves the gateway'
    host.room.remove_unused([], 0)
    assert host.cache.known(IMAGE) is not None


def test_it_is_kept_while_it_is_being_made(host, tmp_path):
    place(host)
    with host.needs.making(IMAGE, str(tmp_path / 'disk')):
        # Fetching and making the disk may take longer than any patience with Nova.
        assert host.needs.is_in_making(IMAGE) and host.below.stop_serving(IMAGE) is False
        assert evict(host) == {IMAGE}
        (tmp_path / 'disk').touch()
        assert host.needs.is_in_making(IMAGE)


def test_it_is_a_server_s_own_once_its_disk_is_open(host, tmp_path):
    place(host)
    make_disk(host, tmp_path / 'disk')
    with opened(tmp_path / 'disk'):
        assert not host.needs.is_in_making(IMAGE)
    assert not host.needs.is_in_making(IMAGE), 'it was opened'
    assert host.below.stop_serving(IMAGE) is True and evict(host) == set()


@pytest.mark.parametrize('end', ['written', 'deleted', 'late'])
def test_it_is_nobodys_any_more(host, tmp_path, end):
    place(host)
    make_disk(host, tmp_path / 'disk')
    host.clock.now += hostneeds._OPENED_SECONDS
    assert host.needs.is_in_making(IMAGE)
    if end == 'written':
        # The server was started, and stopped, between two looks.
        os.utime(tmp_path / 'disk', (1, 1))
    elif end == 'deleted':
        (tmp_path / 'disk').unlink()
    else:
        host.clock.now += 1
    assert not host.needs.is_in_making(IMAGE) and host.needs._in_making == {}
    assert host.below.stop_serving(IMAGE) is True and evict(host) == set()


@pytest.mark.parametrize('end', [lambda host: host.room.remove_unused([], 0), evict],
                         ids=['unused', 'evicted'])
def test_nobody_begins_a_chain_on_a_cache_image_that_is_being_removed(host, tmp_path, monkeypatch,
                                                                      end):
    place(host)
    begun, found = threading.Event(), []

    def begin():
        with host.needs.making(IMAGE, str(tmp_path / 'disk')):
            found.append(os.path.exists(host.cache.path(IMAGE)))
            begun.set()
            (tmp_path / 'disk').touch()

    server, remove = threading.Thread(target=begin), host.cache.remove_file

    def remove_slowly(image_id):
        server.start()
        begun.wait(0.5)
        remove(image_id)

    monkeypatch.setattr(host.cache, 'remove_file', remove_slowly)
    end(host)
    server.join(10)
    assert found == [False], 'it begins when the file is gone, and goes another way'


def test_what_a_server_came_for_meanwhile_is_not_evicted(host, tmp_path, monkeypatch):
    place(host)
    make_room = tier.make_room

    def choose(*arguments):
        room = make_room(*arguments)
        monkeypatch.setattr(tier, 'make_room', make_room)
        server = threading.Thread(target=make_disk, args=(host, tmp_path / 'disk'))
        server.start()
        server.join()
        return room

    monkeypatch.setattr(tier, 'make_room', choose)
    assert evict(host) == {IMAGE} and os.path.exists(host.cache.path(IMAGE))


def test_a_chain_that_was_not_made_keeps_nothing(host, tmp_path):
    place(host)
    with pytest.raises(RuntimeError), host.needs.making(IMAGE, str(tmp_path / 'disk')):
        raise RuntimeError('no room')
    assert not host.needs.is_in_making(IMAGE) and host.below.stop_serving(IMAGE) is True


SERVER = Server(IMAGE, 'disk', '', False, False, False)


class Away:
    """Stands for a storage service that nobody reaches."""

    def plan_boot(self, *_arguments):
        raise messaging.MessagingTimeout('nobody')


@pytest.fixture
def decides(host, monkeypatch):
    """Calls something between the decision and what is done by it; the gateway has the base."""
    host.storage._api = Away()
    known = host.cache.known
    monkeypatch.setattr(host.cache, 'entry', known)
    monkeypatch.setattr(host.gateway, 'ensure_base', lambda remote: 'base-x')
    monkeypatch.setattr(qemuimg, 'create_overlay',
                        lambda path, size, backing, *_a, **_n: open(path, 'x').close())
    plan = placement.plan

    def call_in_between(what):
        def decide(*arguments):
            found = plan(*arguments)
            what()
            return found

        monkeypatch.setattr(placement, 'plan', decide)

    return call_in_between


def test_what_a_server_is_decided_to_boot_from_is_not_evicted_before_it_is_made(
        host, tmp_path, decides, caplog):
    place(host)
    left = []
    decides(lambda: left.append((evict(host), host.below.stop_serving(IMAGE))))
    assert host.chains.make_overlay(SERVER, 'server-1', None, str(tmp_path / 'disk'), MIB,
                                    False) is True
    assert left == [({IMAGE}, False)] and host.removed == []
    assert os.path.exists(host.cache.path(IMAGE)) and (tmp_path / 'disk').exists()
    assert host.needs.is_in_making(IMAGE), 'nobody has opened it yet'


def test_a_server_that_is_decided_to_go_stock_keeps_nothing(host, tmp_path, decides):
    decides(lambda: None)
    assert host.chains.make_overlay(SERVER, 'server-1', None, str(tmp_path / 'disk'), MIB,
                                    False) is False
    assert not host.needs.is_in_making(IMAGE) and host.needs._in_making == {}


def test_a_chain_that_is_mended_while_it_is_looked_at_is_kept(host, tmp_path, monkeypatch):
    """The server was started and stopped long ago, and is started again just now."""
    place(host)
    make_disk(host, tmp_path / 'disk')
    was_opened = hostneeds._was_opened
    with contextlib.ExitStack() as stack:
        def look(path, made_at):
            monkeypatch.setattr(hostneeds, '_was_opened', was_opened)
            stack.enter_context(host.needs.making(IMAGE, path))
            return True

        monkeypatch.setattr(hostneeds, '_was_opened', look)
        host.needs.is_in_making(OTHER)
        assert host.needs.is_in_making(IMAGE)


def test_two_servers_of_one_image(host, tmp_path):
    place(host)
    make_disk(host, tmp_path / 'one')
    make_disk(host, tmp_path / 'two')
    with opened(tmp_path / 'one'):
        assert host.needs.is_in_making(IMAGE), 'the other one is still to be started'
        with opened(tmp_path / 'two'):
            assert not host.needs.is_in_making(IMAGE)


def test_a_disk_from_another_host_is_kept_until_the_server_starts(host, tmp_path, monkeypatch):
    place(host)
    (tmp_path / 'disk').write_bytes(b'overlay')
    entry = host.cache.known(IMAGE)
    monkeypatch.setattr(host.cache, 'entry', lambda image_id: entry)
    monkeypatch.setattr(host.gateway, 'ensure_base', lambda remote: None)
    monkeypatch.setattr(qemuimg, 'set_backing_pointer',
                        lambda path, backing, backing_format: os.utime(path, (5, 5)))
    assert host.chains.adopt(IMAGE, str(tmp_path / 'disk')) is True
    assert host.needs.is_in_making(IMAGE)
    with opened(tmp_path / 'disk'):
        assert not host.needs.is_in_making(IMAGE)


def test_a_chain_that_was_mended_is_kept_until_the_server_starts(host, tmp_path, monkeypatch):
    """``keep_chain`` before a start: its disk has long been there."""
    place(host)
    (tmp_path / 'disk').write_bytes(b'overlay')
    os.utime(tmp_path / 'disk', (1, 1))
    entry = host.cache.known(IMAGE)
    monkeypatch.setattr(host.cache, 'entry', lambda image_id: entry)
    monkeypatch.setattr(host.gateway, 'ensure_base', lambda remote: 'base-x')
    host.chains.keep_chain(IMAGE)
    assert not host.needs.is_in_making(IMAGE), 'no disk is about to be opened'
    host.chains.keep_chain(IMAGE, str(tmp_path / 'disk'))
    assert host.needs.is_in_making(IMAGE) and host.below.stop_serving(IMAGE) is False
    with opened(tmp_path / 'disk'):
        assert not host.needs.is_in_making(IMAGE)


def test_the_cache_asks_for_chains_in_the_making(host, tmp_path):
    """What is busy is asked of the host itself, each time."""
    place(host)
    busy = [item.busy for item in host.room._items(Medium.DISK)]
    make_disk(host, tmp_path / 'disk')
    assert busy + [item.busy for item in host.room._items(Medium.DISK)] == [False, True]
    assert not tier.is_open(host.cache.path(IMAGE))


# Room for growing stores.

@pytest.fixture
def store(host):
    """A store that grows, with all of its room reserved."""
    path = host.cache.store_path(IMAGE, Medium.DISK)
    with open(path, 'wb') as stream:
        stream.truncate(MIB)
    os.utime(path, (1, 1))
    store = Store(IMAGE, path)
    host.below.stores.add(store)
    return store


def test_a_store_that_grows_has_all_of_its_room(host, store):
    host.tidy_stores()
    assert host.room.room_for(OTHER, MIB) is Medium.DISK
    assert host.room.room_for(OTHER, 2 * MIB) is None
    with pytest.raises(exception.BootcacheError, match='compute_disk_quota'):
        fill(host, 2 * MIB)
    assert os.path.exists(store.path) and not store.closed


def test_a_store_that_stopped_growing_gives_back_what_it_does_not_need(host, store):
    assert host.room.room_for(OTHER, 2 * MIB) is None
    store.grows = False
    # It counts with what it has, and stays: servers read from it.
    fill(host, 3 * MIB)
    assert os.path.exists(store.path) and not store.closed
    assert host.below.stores.get(IMAGE) is store


def test_a_store_that_stopped_growing_may_be_evicted(host, store):
    store.grows = False
    fill(host, 4 * MIB)
    assert store.closed and not os.path.exists(store.path) and host.below.stores.get(IMAGE) is None


@pytest.mark.parametrize('away', [False, True])
def test_a_store_goes_with_the_whole_cache_image_unless_the_storage_node_is_away(
        host, store, monkeypatch, away):
    def check_reachable(remote):
        if away:
            raise exception.StorageDaemonError('away')

    monkeypatch.setattr(storagenode, 'check_reachable', check_reachable)
    place(host)
    path = f'{host.cache.path(IMAGE)}.json'
    entry = CacheEntry.load(path)
    dataclasses.replace(entry, cache_image=_info()).save(path)
    monkeypatch.setattr(host.needs, 'is_booting', lambda image_id: True)
    host.tidy_stores()
    assert not store.closed, 'its boot is watched'
    monkeypatch.setattr(host.needs, 'is_booting', lambda image_id: False)
    host.tidy_stores()
    assert store.closed is not away
    assert (host.room.room_for(OTHER, 3 * MIB) is None) is away


def _info():
    return CacheInfo('cache', 1000, 900, 3, 'ab', MIB, 65536, MIB, 'nbd:', 1.5, 1)


# A base that does not come in time.

@pytest.mark.parametrize('ready_in, asked', [
    (1000.0, 1), (76.0, 1), (75.0, 2), (30.0, 61), (None, 61)])
def test_a_server_does_not_wait_in_vain(host, monkeypatch, ready_in, asked):
    """A base that takes longer than cold_wait (60 s) sends the server the stock way at once."""
    questions = []

    def ask(*_arguments):
        questions.append(host.clock.now)
        return {'action': 'wait', 'reason': 'the image\'s base is being prepared',
                'ready_in': ready_in and ready_in - (host.clock.now - 5000)}

    host.clock.sleep = lambda seconds: setattr(host.clock, 'now', host.clock.now + seconds)
    monkeypatch.setattr(client, 'time', host.clock)
    monkeypatch.setattr(host.storage, 'ask', ask)
    offered = host.storage.ask_patiently(IMAGE, 'server-1', None)
    assert offered.storage.offer is Offer.WAIT
    assert len(questions) == asked
    assert ('takes' in offered.reason and 'cold_wait, 60 s' in offered.reason) == (asked < 61)


# A disk that is changed before it is opened.

def test_a_disk_that_is_made_larger_is_still_to_be_opened(host, tmp_path, monkeypatch):
    """As with a resize to a larger flavor, by which the file's time becomes another."""
    place(host)
    path = tmp_path / 'disk'
    path.touch()
    disk = object.__new__(BootCacheQcow2.bound_to(host))
    disk.path = str(path)

    def resize(size):
        os.utime(path, (9, 9))
        assert size == 5 and host.needs.is_in_making(IMAGE)

    monkeypatch.setattr(disk, '_keeps_chain', lambda *_arguments: not make_disk(host, path),
                        raising=False)
    monkeypatch.setattr(disk, 'get_disk_size', lambda name: 1, raising=False)
    monkeypatch.setattr(disk, 'resize_image', resize, raising=False)
    disk.cache(None, 'name', 5, image_id=IMAGE)
    assert host.needs.is_in_making(IMAGE) and host.below.stop_serving(IMAGE) is False
    with opened(path):
        assert not host.needs.is_in_making(IMAGE)


def test_a_disk_of_another_kind_is_changed_as_it_is(host, tmp_path):
    (tmp_path / 'disk').touch()
    with host.needs.changing(str(tmp_path / 'disk')):
        pass
    assert host.needs._in_making == {}


# Stores that cannot tell of boots any more.

@pytest.mark.parametrize('is_away', [True, False])
def test_a_spoilt_store_stays_while_the_storage_node_is_away(host, tmp_path, monkeypatch, is_away):
    """What it has is all that servers can read then; and nobody's chain waits for the answer."""
    place(host)
    (tmp_path / 'store').touch()
    store = Store(IMAGE, str(tmp_path / 'store'))
    store.spoilt = True
    host.below.stores.add(store)
    free = []

    def take():
        with host.needs.deciding.of(IMAGE):
            free.append(True)

    def check(remote):
        other = threading.Thread(target=take, daemon=True)
        other.start()
        other.join(60)
        if is_away:
            raise exception.StorageNodeAway('away')

    monkeypatch.setattr(storagenode, 'check_reachable', check)
    monkeypatch.setattr(host.room, 'room_for_store', lambda image_id, size: None)
    with contextlib.ExitStack() as until_watched:
        found = host.chains._stores.get(IMAGE, MIB, until_watched)
    assert free == [True], 'no lock is held over it'
    assert (found is store, store.closed) == ((True, False) if is_away else (False, True))


# Stores of boots that are about to be watched.

class Warm:
    """Stands for a storage service that has the cache image, and wants to know of boots."""

    def plan_boot(self, image_id, host, server_id, profile_token):
        return {'action': 'cache', 'virtual_bytes': MIB, 'server': ['10.0.0.1', 10810],
                'base_export': f'base-{image_id}', 'cache_export': 'c', 'image_hash': '',
                'cache_image': dataclasses.asdict(_info()),
                'watch': {'quota': MIB, 'linger': 1, 'silence': 1, 'timeout': 1, 'marker': ''}}


@pytest.fixture
def boots(host, decides, monkeypatch):
    """A host with a whole cache image, whose boots are watched; gives these."""
    place(host)
    path = f'{host.cache.path(IMAGE)}.json'
    dataclasses.replace(CacheEntry.load(path), cache_image=_info()).save(path)
    host.storage._api = Warm()

    def open_store(image_id, virtual_bytes, medium, limit):
        store = Store(image_id, host.cache.store_path(image_id, medium))
        open(store.path, 'x').close()
        host.below.stores.add(store)
        return store

    watched = []
    monkeypatch.setattr(host.below, 'open_store', open_store)
    monkeypatch.setattr(host.boots, 'watch',
                        lambda server_id, hostname, store, *_: watched.append(store))
    return watched


def test_a_store_stays_between_its_making_and_its_watch(host, tmp_path, monkeypatch, boots):
    """There is a whole cache image, so that it would go else."""
    monkeypatch.setattr(qemuimg, 'create_overlay', lambda path, size, backing, *_a, **_n: (
        host.tidy_stores(), open(path, 'x').close()))
    assert host.chains.make_overlay(SERVER, 'server-1', None, str(tmp_path / 'disk'), MIB,
                                    False) is True
    (store,) = boots
    assert not store.closed and host.below.stores.get(IMAGE) is store
    # Nobody watches here: it goes at once, also while its server's disk is still to be opened.
    assert host.needs.is_in_making(IMAGE) and not host.needs.is_booting(IMAGE)
    host.tidy_stores()
    assert store.closed


def test_a_store_that_somebody_came_for_while_it_was_looked_at_stays(host, monkeypatch, boots):
    store = host.below.open_store(IMAGE, MIB, Medium.DISK, MIB)
    monkeypatch.setattr(storagenode, 'check_reachable',
                        lambda remote: host.needs.begin_boot(IMAGE))
    host.tidy_stores()
    assert not store.closed
    host.needs.end_boot(IMAGE)
    monkeypatch.setattr(storagenode, 'check_reachable', lambda remote: None)
    host.tidy_stores()
    assert store.closed


def test_boots_of_one_image_are_counted(host):
    for _ in range(2):
        host.needs.begin_boot(IMAGE)
    host.needs.end_boot(IMAGE)
    assert host.needs.is_booting(IMAGE) and not host.needs.is_booting(OTHER)
    host.needs.end_boot(IMAGE)
    assert not host.needs.is_booting(IMAGE)


# Images do not wait for each other.

def in_time(work):
    """Do something in a thread of its own; tell whether it comes to its end."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(30)
    return not thread.is_alive()


def test_what_is_let_go_of_holds_up_no_other_image(host, tmp_path):
    for image in (IMAGE, OTHER):
        place(host, image)
    host.needs.note_unsettled([])
    done = []
    with host.needs.deciding.of(IMAGE):
        assert in_time(lambda: make_disk(host, tmp_path / 'other', OTHER))
        assert in_time(lambda: done.append(host.below.stop_serving(OTHER)))
    os.unlink(tmp_path / 'other')
    with host.needs.deciding.of(IMAGE):
        assert in_time(lambda: done.append(host.room.let_go(OTHER)))
    assert done == [False, True] and host.cache.known(OTHER) is None


def test_stores_that_have_to_go_for_each_other_do_not_stand_still(host, decides, monkeypatch):
    """Each image's store has room only where the other one's was: the last to come has it."""
    real_close, both = Store.close, threading.Barrier(2, timeout=30)

    def open_store(image_id, virtual_bytes, medium, limit):
        with host.needs.deciding.of(image_id):
            store = Store(image_id, host.cache.store_path(image_id, medium))
            with open(store.path, 'wb') as stream:
                stream.truncate(limit)
            # Such a one may be evicted.
            store.grows = False
            host.below.stores.add(store)
            return store

    def close(store):
        # Both are at it at this moment.
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait()
        real_close(store)

    monkeypatch.setattr(host.below, 'open_store', open_store)
    monkeypatch.setattr(Store, 'close', close)
    for image in (IMAGE, OTHER):
        place(host, image)
        os.unlink(host.cache.path(image))

    def grow(image):
        with contextlib.ExitStack() as until_watched:
            host.chains._stores.get(image, MIB, until_watched)

    grow(IMAGE)
    threads = [threading.Thread(target=grow, args=(image,), daemon=True)
               for image in (OTHER, IMAGE) * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)


def test_two_servers_of_one_image_make_room_for_one_store(host, monkeypatch, boots):
    """Nothing goes for the second one's, which is the first one's."""
    place(host, OTHER)
    found = []

    def grow():
        with contextlib.ExitStack() as until_watched:
            found.append(host.chains._stores.get(IMAGE, MIB, until_watched))

    reserve, opened = host.room.for_store, []

    @contextlib.contextmanager
    def for_store(*arguments):
        with reserve(*arguments):
            if not opened:
                opened.append(True)
                assert in_time(grow)
            yield

    monkeypatch.setattr(host.room, 'for_store', for_store)
    os.unlink(host.cache.path(IMAGE))
    grow()
    assert len(found) == 2 and found[0] is found[1] is not None
    assert os.path.exists(host.cache.path(OTHER))


def test_a_store_that_somebody_came_for_since_it_was_chosen_is_not_evicted(
        host, monkeypatch, boots):
    """It does not grow any more, so that it may be evicted; and its next boot is to be told."""
    os.unlink(host.cache.path(IMAGE))
    store = host.below.open_store(IMAGE, MIB, Medium.DISK, MIB)
    store.grows = False
    with open(store.path, 'wb') as stream:
        stream.truncate(3 * MIB)
    make_room = tier.make_room

    def choose(*arguments):
        room = make_room(*arguments)
        if room.evict:
            monkeypatch.setattr(tier, 'make_room', make_room)
            host.needs.begin_boot(IMAGE)
        return room

    monkeypatch.setattr(tier, 'make_room', choose)
    with pytest.raises(exception.BootcacheError, match='no room'):
        fill(host, 4 * MIB)
    assert not store.closed and host.below.stores.get(IMAGE) is store
    host.needs.end_boot(IMAGE)
    fill(host, 4 * MIB)
    assert store.closed
