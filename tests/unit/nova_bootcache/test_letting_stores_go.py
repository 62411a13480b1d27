"""Growing stores that are let go of, and disks that are changed before they are opened."""

import contextlib
import dataclasses
import os
import threading

import pytest
from fakes_letting_go import IMAGE, MIB, OTHER, SERVER, fill, make_disk, opened, place
from fakes_letting_go import decides as decides  # the fixture
from fakes_letting_go import host as host  # the fixture

from bootcache import exception, qemuimg, tier
from bootcache.manifest import CacheInfo
from bootcache.tier import Medium
from nova_bootcache.asking import client
from nova_bootcache.asking.placement import Offer
from nova_bootcache.cache.cachefiles import CacheEntry
from nova_bootcache.novadriver.imagebackend import BootCacheQcow2


class Store:
    """Stands for a growing store."""

    def __init__(self, image_id, path):
        self.name, self.path, self.grows, self.closed = image_id, path, True, False
        self.limit, self.spoilt, self.is_away = 3 * MIB, False, False

    def look(self, now):
        return self.grows

    def is_there(self):
        return True

    def stop_growing(self):
        self.grows = False

    def close(self):
        if self.is_away:
            raise exception.StorageNodeAway('away')
        self.closed = True
        os.unlink(self.path)


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
    host.drop_useless_stores()
    assert host.room.room_for(OTHER, MIB) is Medium.DISK
    assert host.room.room_for(OTHER, 2 * MIB) is None
    with pytest.raises(exception.BootcacheError, match='compute_disk_quota'):
        fill(host, 2 * MIB)
    assert os.path.exists(store.path) and not store.closed


def test_a_store_that_a_busy_gateway_does_not_give_up_goes_on_being_watched(host, store,
                                                                            monkeypatch):
    """It grows, and nobody else would keep its limit."""
    def busy():
        raise exception.StorageDaemonBusy('later')

    with monkeypatch.context() as patched:
        patched.setattr(store, 'close', busy)
        with pytest.raises(exception.StorageDaemonBusy):
            host.below.drop_store(IMAGE)
    assert host.below.stores.get(IMAGE) is store
    host.below.drop_store(IMAGE)
    assert store.closed and host.below.stores.get(IMAGE) is None


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
    store.is_away = away
    place(host)
    path = f'{host.cache.path(IMAGE)}.json'
    entry = CacheEntry.load(path)
    dataclasses.replace(entry, cache_image=_info()).save(path)
    monkeypatch.setattr(host.needs, 'is_booting', lambda image_id: True)
    host.drop_useless_stores()
    assert not store.closed, 'its boot is watched'
    monkeypatch.setattr(host.needs, 'is_booting', lambda image_id: False)
    host.drop_useless_stores()
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
    with host.needs.operating(tmp_path.name):
        disk.cache(None, 'name', 5, image_id=IMAGE)
        assert host.needs.is_in_making(IMAGE) and host.below.stop_serving(IMAGE) is False
    with opened(path):
        assert not host.needs.is_in_making(IMAGE)


# Stores that cannot tell of boots any more.

@pytest.mark.parametrize('is_away', [True, False])
def test_a_spoilt_store_stays_while_the_storage_node_is_away(host, tmp_path, monkeypatch, is_away):
    """What it has is all that servers can read then."""
    place(host)
    (tmp_path / 'store').touch()
    store = Store(IMAGE, str(tmp_path / 'store'))
    store.spoilt, store.is_away = True, is_away
    host.below.stores.add(store)
    monkeypatch.setattr(host.room, 'room_for_store', lambda image_id, size: None)
    with contextlib.ExitStack() as until_watched:
        found = host.chains._stores.get(IMAGE, MIB, True, until_watched)
    assert (found is store, store.closed) == ((True, False) if is_away else (False, True))


# Stores of boots that are about to be watched.

class Warm:
    """Stands for a storage service that has the cache image, and wants to know of boots."""

    def send(self, message):
        return {'action': 'cache', 'virtual_bytes': MIB, 'server': ['10.0.0.1', 10810],
                'base_export': f'base-{message.image_id}', 'cache_export': 'c', 'image_hash': '',
                'cache_image': dataclasses.asdict(_info()),
                'watch': {'quota': MIB, 'linger': 1, 'silence': 1, 'timeout': 1, 'marker': ''}}


@pytest.fixture
def boots(host, decides, monkeypatch):
    """A host with a whole cache image, whose boots are watched; gives these."""
    place(host)
    path = f'{host.cache.path(IMAGE)}.json'
    dataclasses.replace(CacheEntry.load(path), cache_image=_info()).save(path)
    host.storage._client = Warm()

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
        host.drop_useless_stores(), open(path, 'x').close()))
    assert host.chains.make_overlay(SERVER, 'server-1', None, str(tmp_path / 'disk'), MIB,
                                    False) is True
    (store,) = boots
    assert not store.closed and host.below.stores.get(IMAGE) is store
    # Nobody watches here: it goes at once, also while its server's disk is still to be opened.
    assert host.needs.is_in_making(IMAGE) and not host.needs.is_booting(IMAGE)
    host.drop_useless_stores()
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
            host.chains._stores.get(image, MIB, True, until_watched)

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
            found.append(host.chains._stores.get(IMAGE, MIB, True, until_watched))

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
