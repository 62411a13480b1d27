"""Growing stores of a gateway that does not answer in its time, or is gone.

Stores are stand-ins; tests/functional/test_growingstore.py has real ones.
"""

import queue
import threading
import types

import pytest

from bootcache import exception
from nova_bootcache.gateway.growingstore import GrowingStore, StoreKeeper


class Store:
    """Stands for a growing store whose gateway answers to the third look."""

    def __init__(self, error):
        self.image_id, self.grows = 'image', True
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


def test_a_store_whose_gateway_is_busy_goes_on_being_watched(keeper, lost):
    """It grows, and nobody else would keep its limit."""
    store = Store(exception.StorageDaemonBusy('later'))
    keeper.add(store)
    assert store.enough.wait(30)
    assert keeper.stores() == [store] and lost.empty() and store.grows


def test_a_store_whose_gateway_is_gone_is_lost(keeper, lost):
    store = Store(exception.StorageDaemonError('gone'))
    keeper.add(store)
    assert lost.get(timeout=30) is store
    assert keeper.stores() == [] and not store.grows and store.looks == 1


def test_a_store_that_is_being_changed_is_looked_at_later(tmp_path):
    """A change waits for storage that hangs, and other stores have limits as well."""
    store = GrowingStore(types.SimpleNamespace(daemon=None), 'image', 1 << 30,
                         str(tmp_path / 'store'), 1 << 30)
    store.grows, kept = True, []
    store._keep_limit = kept.append
    looked = []
    with store._lock:
        thread = threading.Thread(target=lambda: looked.append(store.look(1.0)), daemon=True)
        thread.start()
        thread.join(30)
    assert looked == [True] and kept == []
    assert store.look(2.0) is True and kept == [0]
