"""The storage node's exchange hangs: hosts copy, and nobody who boots waits for it."""

import contextlib
import hashlib
import os
import socket
import threading
import types
from concurrent.futures import Future

import pytest

from bootcache import cacheimage, savefile
from bootcache.exchange import client
from bootcache.manifest import CacheInfo, Made, Manifest, Standing
from bootcache.rpc.messages import BootAction, ExchangeBase, ExchangeCache, ExchangeOffer
from glance_bootcache.exchange import offers as offers_module
from glance_bootcache.exchange.offers import ExchangeOffers
from glance_bootcache.storage.tiers import Content
from tools import storedimages

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
DATA = b'cache image'
SHA256 = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def hanging(tmp_path, storage_conf, monkeypatch):
    """An exchange that takes connections and never answers; those that it took."""
    monkeypatch.setattr(client, '_ANSWER_SECONDS', 0.05)
    taken = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path := os.path.relpath(tmp_path / 'x'))
        listener.listen()

        def take():
            with contextlib.suppress(OSError):
                while True:
                    taken.append(listener.accept()[0])

        thread = threading.Thread(target=take)
        thread.start()
        for name, value in {'exchange_address': '127.0.0.1', 'exchange_socket': path}.items():
            storage_conf.set_override(name, value, 'bootcache')
        yield taken
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    for connection in taken:
        connection.close()


@pytest.fixture
def offers(storage_conf, hanging, database):
    store = storedimages.opened(storage_conf, database)
    os.makedirs(store.directory(IMAGE))
    path = store.path(IMAGE, 'cache.qcow2')
    with open(path, 'wb') as stream:
        stream.write(DATA)
    storedimages.put(store, Manifest(IMAGE, Standing.DONE, made=Made(
        virtual_bytes=4096, cache_image=CacheInfo('cache.qcow2', len(DATA), 4096, 1, SHA256, 4096,
                                                  4096, 1 << 20, '', 0.1,
                                                  cacheimage.VERIFY_RULES))))
    # Its own tests have the tiers.
    return ExchangeOffers(storage_conf, store, types.SimpleNamespace(
        check=lambda manifest: Content.RIGHT, path=lambda manifest: path))


def asks(offers, number=0):
    return offers.offer(ExchangeCache(IMAGE, f'host-{number}', SHA256, '127.0.0.1', 10830, ''))


@pytest.mark.parametrize('is_known', [True, False])
def test_it_is_left_alone_when_it_was_silent(offers, hanging, is_known):
    if is_known:
        # It was there, and gave the torrent.
        known = Future()
        known.set_result(b'torrent')
        offers._torrents[SHA256] = known, 0.0
    for number in range(10):
        assert asks(offers, number) is None
    assert len(hanging) == 1


def test_one_that_reads_for_long_is_waited_for_once(offers, monkeypatch):
    waited = []

    class Reading(Future):
        def result(self, timeout=None):
            waited.append(timeout)
            raise TimeoutError

    began = 1000.0
    offers._torrents[SHA256] = Reading(), began
    now = [began]
    monkeypatch.setattr(offers_module, 'time', types.SimpleNamespace(monotonic=lambda: now[0]))
    for later in 0, 1, 3, 100:
        now[0] = began + later
        assert asks(offers) is None
    assert waited == [3, 2, 0, 0]


@pytest.fixture
def asks_for_base(offers):
    """A host asks for the base of the image, which there is."""
    store = offers._store
    path = store.path(IMAGE, 'base')
    with open(path, 'wb') as stream:
        stream.write(DATA)
    storedimages.put(store, store.load(IMAGE).making(base_path=path, base_hash='sha512:00',
                                        stored_bytes=len(DATA)))
    return lambda: offers.offer_base(ExchangeBase(IMAGE, 'host', 'sha512:00', '127.0.0.1', 10830,
                                                  ''), 'host')


def test_no_host_waits_for_a_base_that_it_did_not_read(offers, hanging, asks_for_base):
    """One host has waited for it; others copy at once, and it is not asked again and again."""
    assert asks_for_base() == ExchangeOffer()
    made, _began = offers._torrents['sha512:00']
    assert made.exception(10) is not None
    for _number in range(3):
        assert asks_for_base() is None
    assert len(hanging) == 1


def test_a_base_whose_file_is_another_one_is_not_given(offers, hanging, asks_for_base):
    store = offers._store
    path = store.load(IMAGE).made.base_path
    storedimages.put(store, store.load(IMAGE).making(base_file=savefile.signature(path)))
    assert asks_for_base() == ExchangeOffer()
    os.utime(path, ns=(1, 1))
    assert asks_for_base() is None


def test_full_bases_are_read_a_few_at_a_time(offers, hanging, asks_for_base):
    """A hundred images that settle at once: each is read as a whole before it is given."""
    others = [Future() for _number in range(2)]
    for number, reading in enumerate(others):
        offers._torrents[f'sha512:{number}1'] = reading, 0.0
    assert asks_for_base() == ExchangeOffer()
    assert 'sha512:00' not in offers._torrents and hanging == []
    others[0].set_result(b'torrent')
    assert asks_for_base() == ExchangeOffer()
    assert 'sha512:00' in offers._torrents


def test_a_host_whose_server_waits_is_not_about_to_get_the_cache_image(offers):
    answer = {'cache_image': {'sha256': SHA256}}
    waits = {**answer, 'action': BootAction.WAIT}
    assert offers.tell(waits, 'one') == waits
    assert offers.tell(answer, 'two') == {**answer, 'others': False}
    assert offers.tell(answer, 'one') == {**answer, 'others': True}
