"""Growing stores of a gateway that does not answer in its time, or is gone.

Stores are stand-ins; tests/functional/test_growingstore.py has real ones.
"""

import queue
import threading

import pytest

from bootcache import exception
from nova_bootcache.gateway.growingstore import StoreKeeper


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
