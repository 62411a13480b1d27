"""What is begun for a server where the process may have no more threads is not left half begun.

The gateway and the growing store are stand-ins.
"""

import contextlib
import threading
import types

import pytest

from bootcache.ending import BootLimits
from bootcache.growingstore import StoreKeeper
from bootcache.manifest import CacheInfo
from bootcache.tier import Medium
from nova_bootcache.asking.client import Offered, Watch
from nova_bootcache.asking.placement import Offer, Storage
from nova_bootcache.gateway.hostneeds import HostNeeds
from nova_bootcache.metrics import HostMetrics
from nova_bootcache.recording.bootwatch import WatchedBoots
from nova_bootcache.storagenode import Remote
from nova_bootcache.tiers.arrivals import Arrivals

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
REMOTE = Remote(IMAGE, '10.0.0.1', 10810, f'base-{IMAGE}')
INFO = CacheInfo('cache', 1000, 900, 3, 'ab', 1 << 30, 65536, 1 << 29, 'nbd://', 1.5, 1)
OFFERED = Offered(Storage(Offer.CACHE), '', REMOTE, 1 << 30, cache_image=INFO, cache_export='x',
                  watch=Watch(BootLimits(1 << 30, 1.0, 1.0, 1.0), ''))


@pytest.fixture(autouse=True)
def no_thread(monkeypatch):
    def refuse(thread):
        raise RuntimeError('can\'t start new thread')

    monkeypatch.setattr(threading.Thread, 'start', refuse)


def test_an_arrival_is_over_and_cleared_up(tmp_path, caplog):
    """Else the image would count as arriving, and never arrive, until nova-compute is restarted."""
    needs, done = HostNeeds(), []
    below = types.SimpleNamespace(begin_arrival=lambda *args: done.append('begun'),
                                  end_arrival=lambda image_id: done.append('ended'),
                                  stores=StoreKeeper())
    files = types.SimpleNamespace(coming_path=lambda image_id, medium: str(tmp_path / 'coming'),
                                  known=lambda image_id: None)
    held = set()
    gateway = types.SimpleNamespace(
        linked_node=lambda name, export: {},
        connections=types.SimpleNamespace(hold=lambda holder, remote: held.add(holder),
                                          let_go=held.discard))

    @contextlib.contextmanager
    def for_arrival(*_arguments):
        done.append('room is kept')
        yield
        done.append('and given back')

    arrivals = Arrivals(files, None, types.SimpleNamespace(for_arrival=for_arrival), below, gateway,
                        needs, HostMetrics())
    assert not arrivals.begin(OFFERED, Medium.DISK), 'it is fetched before the server boots'
    assert done == ['room is kept', 'begun', 'ended', 'and given back']
    assert not needs.is_arriving(IMAGE) and not held
    assert 'can\'t start new thread' in caplog.text


def test_a_boot_that_is_not_watched_needs_nothing():
    """Else the growing store of its image could never go."""
    needs = HostNeeds()
    boots = WatchedBoots(None, needs, lambda: None, lambda: None, HostMetrics())
    store = types.SimpleNamespace(name=IMAGE, mark=lambda: None)
    with pytest.raises(RuntimeError):
        boots.watch('server', 'host-1', store, REMOTE, OFFERED, str)
    assert not needs.is_booting(IMAGE)
    boots.server_goes('server')
