"""Growing stores of a gateway that does not answer in its time, or is gone.

Stores are stand-ins; tests/functional/test_growingstore.py has real ones.
"""

import contextlib
import errno
import queue
import threading
import types

import pytest

from bootcache import exception
from bootcache.growingstore import StoreKeeper
from bootcache.tier import Medium
from nova_bootcache.gateway.below import Below
from nova_bootcache.gateway.hostneeds import HostNeeds
from nova_bootcache.gateway.sharedstore import SharedStore


class Store:
    """Stands for a growing store whose gateway answers to the third look."""

    def __init__(self, error):
        self.name, self.grows = 'image', True
        self.error, self.looks, self.enough = error, 0, threading.Event()

    def look(self, now):
        self.looks += 1
        if self.looks < 3:
            raise self.error
        self.enough.set()
        return self.grows

    def stop_growing(self):
        self.grows = False


@pytest.fixture
def lost():
    """Stores that were lost, as they are told."""
    return queue.Queue()


@pytest.fixture
def keeper(lost):
    keeper = StoreKeeper(lambda store, error: lost.put(store))
    yield keeper
    keeper.stop()


@pytest.mark.parametrize('error', [exception.StorageDaemonBusy('later'),
                                   exception.StorageNodeAway('no answer')], ids=repr)
def test_a_store_that_cannot_be_changed_now_goes_on_being_watched(keeper, lost, error):
    """It grows, and nobody else would keep its limit."""
    store = Store(error)
    keeper.add(store)
    assert store.enough.wait(30)
    assert keeper.stores() == [store] and lost.empty() and store.grows


def test_a_store_whose_gateway_is_gone_is_lost(keeper, lost):
    store = Store(exception.StorageDaemonError('gone'))
    keeper.add(store)
    assert lost.get(timeout=30) is store
    assert keeper.stores() == [] and not store.grows and store.looks == 1


def test_one_that_has_taken_the_place_of_a_lost_one_is_watched(keeper, lost):
    """The gateway was restarted, and a server began to boot, while the look was under way."""
    another = Store(exception.StorageDaemonBusy('later'))

    class Replaced(Store):
        def look(self, now):
            keeper.add(another)
            raise self.error

    store = Replaced(exception.StorageDaemonError('gone'))
    keeper.add(store)
    assert lost.get(timeout=30) is store and not store.grows
    assert another.enough.wait(30), 'it is looked at'
    assert keeper.stores() == [another]


def test_a_store_that_cannot_be_cleared_up_keeps_no_other_from_being_watched(lost):
    """Its file is on a medium that cannot be written any more, say."""
    def failed(store, error):
        lost.put(store)
        raise OSError(errno.EROFS, 'read-only')

    keeper = StoreKeeper(failed)
    keeper.add(Store(exception.StorageDaemonError('gone')))
    assert lost.get(timeout=30)
    # Also in the look that comes after that.
    for name in ('second', 'third'):
        other = Store(exception.StorageDaemonBusy('later'))
        other.name = name
        keeper.add(other)
        assert other.enough.wait(30)
    keeper.stop()


def refuse(thread):
    raise RuntimeError('can\'t start new thread')


def test_a_thread_that_could_not_be_started_is_started_with_the_next_store(keeper, monkeypatch):
    store = Store(exception.StorageDaemonBusy('later'))
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, 'start', refuse)
        with pytest.raises(RuntimeError):
            keeper.add(store)
    assert keeper.stores() == [], 'nobody looks at it'
    keeper.add(store)
    assert store.enough.wait(30)


def test_a_store_that_nobody_can_watch_is_closed_again(monkeypatch, tmp_path):
    """It would grow without a limit."""
    done = []
    for name in ('open', 'close'):
        monkeypatch.setattr(SharedStore, name, lambda store, name=name: done.append(name))
    monkeypatch.setattr(threading.Thread, 'start', refuse)
    files = types.SimpleNamespace(store_path=lambda image_id, medium: str(tmp_path / 'store'))
    gateway = types.SimpleNamespace(daemon=None, change=lambda *args, **wishes: None)
    below = Below(gateway, files, HostNeeds())
    with pytest.raises(exception.BootcacheError, match='cannot be watched'):
        below.open_store('image', 1 << 30, Medium.DISK, 1 << 30)
    assert done == ['open', 'close'] and below.stores.get('image') is None


def test_a_store_that_is_being_changed_is_looked_at_later(tmp_path):
    """A change waits for storage that hangs, and other stores have limits as well."""
    store = SharedStore(types.SimpleNamespace(daemon=None), 'image', 1 << 30,
                         str(tmp_path / 'store'), 1 << 30)
    store.grows, kept = True, []
    store._keep_limit = lambda size, now: kept.append(size)
    looked = []
    with store._lock:
        thread = threading.Thread(target=lambda: looked.append(store.look(1.0)), daemon=True)
        thread.start()
        thread.join(30)
    assert looked == [True] and kept == []
    assert store.look(2.0) is True and kept == [0]


def test_a_store_that_is_full_is_not_tried_at_each_look_while_its_base_is_away(tmp_path,
                                                                             monkeypatch):
    (tmp_path / 'store').write_bytes(b'x')
    store = SharedStore(types.SimpleNamespace(daemon=None), 'image', 1 << 30,
                        str(tmp_path / 'store'), 1)
    store.grows, tried = True, []

    def stop():
        tried.append(True)
        if len(tried) < 3:
            raise exception.StorageNodeAway('no answer')
        store.grows = False

    monkeypatch.setattr(store, 'stop_growing', stop)
    for second in range(1, 20):
        with contextlib.suppress(exception.StorageNodeAway):
            store.look(second / 8)
    assert len(tried) == 3 and not store.grows and store.is_full
