"""What changed on a host since it was planned to have a cache image arrive for a server.

The gateway is a stand-in that begins no arrival; tests/functional has a real one.
"""

import dataclasses
import os
import threading
import time
import types

import pytest
from fakes_letting_go import IMAGE, MIB, OTHER, fill, opened, place
from fakes_letting_go import host as host  # the fixture

from bootcache import exception
from bootcache.exchange import patience
from bootcache.manifest import CacheInfo
from bootcache.tier import Medium
from nova_bootcache.asking.client import Offered
from nova_bootcache.asking.placement import Offer, Storage
from nova_bootcache.cache.cachefiles import CacheEntry
from nova_bootcache.storagenode import Remote


def offered(sha256='ab'):
    info = CacheInfo('cache', MIB, MIB, 1, sha256, MIB, 65536, MIB, 'nbd://', 1.0, 1)
    return Offered(Storage(Offer.CACHE), '', Remote(IMAGE, '10.0.0.1', 10810, f'base-{IMAGE}'), MIB,
                   cache_image=info, cache_export='x')


@pytest.fixture
def begun(host, monkeypatch):
    """Images whose arrival was begun in the gateway; each is over before anything came."""
    begun = []

    def begin(image_id, *_arguments):
        assert host.needs.is_arriving(image_id)
        begun.append(image_id)
        raise exception.StorageDaemonError('over')

    monkeypatch.setattr(host.below, 'begin_arrival', begin)
    return begun


def test_nothing_arrives_where_a_store_was_opened(host, begun):
    """They have the same place in the gateway."""
    host.below.stores.add(types.SimpleNamespace(name=IMAGE, grows=True, look=lambda now: True,
                                                stop_growing=lambda: None))
    assert host.arrivals.begin(offered(), Medium.DISK) is False, 'it is fetched'
    assert begun == [] and not host.needs.is_arriving(IMAGE)
    host.below.stores.remove(IMAGE)
    host.arrivals.begin(offered(), Medium.DISK)
    assert begun == [IMAGE]


def test_nor_what_is_here_by_now(host, begun):
    place(host)
    path = f'{host.cache.path(IMAGE)}.json'
    dataclasses.replace(CacheEntry.load(path), cache_image=offered().cache_image).save(path)
    assert host.arrivals.begin(offered(), Medium.DISK) is True, 'there is nothing to fetch'
    assert begun == [] and not host.needs.is_arriving(IMAGE)
    host.arrivals.begin(offered('cd'), Medium.DISK)
    assert begun == [IMAGE], 'another one arrives'
    os.unlink(host.cache.path(IMAGE))
    host.arrivals.begin(offered(), Medium.DISK)
    assert begun == [IMAGE] * 2, 'so does one whose file is gone'


def test_what_has_to_go_for_it_goes_before_its_file_takes_the_room(host, monkeypatch):
    """Its file is as large as it is going to be from the first moment on."""
    place(host, OTHER, 3 * MIB)
    found = []

    def begin(*_arguments):
        found.append((os.path.exists(host.cache.path(OTHER)), host.room.arriving()))
        raise exception.StorageDaemonError('over')

    monkeypatch.setattr(host.below, 'begin_arrival', begin)
    with opened(host.cache.path(OTHER)):
        assert host.arrivals.begin(offered(), Medium.DISK) is False
    assert found == [], 'there is no room, and none is taken'
    assert not host.needs.is_arriving(IMAGE) and host.room.arriving() == []
    host.arrivals.begin(offered(), Medium.DISK)
    assert found == [(False, [IMAGE])]
    assert host.room.arriving() == [] and not host.needs.is_arriving(IMAGE), 'it did not begin'


def test_servers_wait_until_it_is_over_and_not_where_it_did_not_begin(host, begun, monkeypatch):
    waited = []
    monkeypatch.setattr(patience, 'servers_wait',
                        lambda *_times: waited.append(host.needs.is_arriving(IMAGE)) or 60)
    # One that nobody gives, and that could not be read on its way, is awaited no longer.
    assert host.arrivals.begin(offered(), Medium.DISK, is_awaited=True) is True
    assert host.arrivals.wait(IMAGE, 60) and begun == [IMAGE]
    host.arrivals.awaited.wait(IMAGE)
    assert waited == []
    go = threading.Event()
    monkeypatch.setattr(host.below, 'begin_arrival', lambda *_arguments: None)
    monkeypatch.setattr(host.below, 'end_arrival', lambda _image_id: None)

    def receive(*_arguments):
        assert go.wait(60)
        raise exception.BootcacheError('it did not come')

    monkeypatch.setattr(host.arrivals, '_receive', receive)
    host.arrivals.begin(offered(), Medium.DISK, is_awaited=True)
    servers = [threading.Thread(target=host.arrivals.awaited.wait, args=(IMAGE,))
               for _number in range(2)]
    for server in servers:
        server.start()
    while len(waited) < 2:
        time.sleep(0.001)
    assert waited == [True, True] and all(server.is_alive() for server in servers)
    host.arrivals.awaited.wait(OTHER)
    go.set()
    for server in servers:
        server.join(60)
        assert not server.is_alive()
    assert host.arrivals.wait(IMAGE, 60)
    host.arrivals.awaited.wait(IMAGE)
    assert len(waited) == 2


def test_servers_go_on_when_they_have_waited_for_as_long_as_they_may(host, monkeypatch, caplog):
    monkeypatch.setattr(patience, 'SERVERS_WAIT', 0.0)
    caplog.set_level('INFO')
    host.arrivals.awaited.begin(IMAGE)
    host.arrivals.awaited.wait(IMAGE)
    assert 'reads from the storage node meanwhile' in caplog.text


def test_the_room_is_kept_until_it_has_come(host, monkeypatch):
    come = threading.Event()

    def receive(*_arguments):
        assert come.wait(60)
        raise exception.BootcacheError('it did not come')

    monkeypatch.setattr(host.below, 'begin_arrival', lambda *_arguments: None)
    monkeypatch.setattr(host.below, 'end_arrival', lambda _image_id: None)
    monkeypatch.setattr(host.arrivals, '_receive', receive)
    assert host.arrivals.begin(offered(), Medium.DISK) is True
    assert host.room.arriving() == [IMAGE]
    with pytest.raises(exception.BootcacheError, match='no room'):
        fill(host, 3 * MIB)
    come.set()
    assert host.arrivals.wait(IMAGE, 60)
    fill(host, 3 * MIB)
