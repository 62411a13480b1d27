"""Warming a host; cache and storage service are stand-ins, tests/functional has real ones."""

import oslo_messaging as messaging
import pytest
from neighbours import Neighbour

from bootcache import exception
from bootcache.manifest import CacheInfo
from bootcache.rpc.messages import PromoteImage, ReportWarm
from bootcache.tier import Medium
from nova_bootcache.asking.client import HostsClient
from nova_bootcache.asking.placement import HeldHere, TierRoom, Trust
from nova_bootcache.asking.placement import Host as Facts
from nova_bootcache.cache.cachefiles import CacheEntry, CacheFiles
from nova_bootcache.chains.chains import Chains
from nova_bootcache.chains.hostwarmer import HostWarmer
from nova_bootcache.chains.serving import Serving
from nova_bootcache.storagenode import Remote
from nova_bootcache.tiers.fetches import Fetches

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
INFO = CacheInfo('cache', 1000, 900, 3, 'ab', 1 << 30, 65536, 1 << 29, 'nbd://', 1.5, 1)
OFFER = {'action': 'cache', 'virtual_bytes': 1 << 30, 'server': ['10.0.0.1', 10810],
         'base_export': f'base-{IMAGE}', 'cache_export': 'cache-x', 'cache_image': vars(INFO),
         'medium': 'disk', 'has_memory': True, 'generation': 4}
COLD = {key: value for key, value in {**OFFER, 'action': 'cold'}.items() if 'cache_' not in key}
BOTH = TierRoom.FILE, TierRoom.ARRIVAL


class Host:
    """Stands for a compute host, its cache, and the storage service."""

    def __init__(self):
        self.storage = Neighbour(self, HostsClient)
        self.cache, self.chains = Neighbour(self, CacheFiles), Neighbour(self, Chains)
        self.fetches, self.serving = Neighbour(self, Fetches), Neighbour(self, Serving)
        self.hostname, self.is_on, self.answer = 'host-1', True, OFFER
        self.held, self.rooms, self.trust = HeldHere.NOTHING, BOTH, Trust.FULL
        self.fetched, self.told, self.promoted, self.updated, self.touched = [], [], [], [], 0
        self.fails, self.deaf = [], False

    def ask(self, image_id, server_id):
        assert (image_id, server_id) == (IMAGE, ''), 'no server boots'
        return self.answer

    def entry(self, image_id):
        remote = Remote(IMAGE, '10.0.0.1', 10810, 'base')
        return None if self.held is HeldHere.NOTHING else CacheEntry(remote, INFO, 'ab', 1 << 30)

    def facts(self, image_id, entry, offered):
        return Facts(self.held, *self.rooms, True, self.trust)

    def fetch_offered(self, offered, medium, rate=0):
        if self.fails:
            raise self.fails.pop()
        self.fetched.append((offered.cache_image, medium, rate))

    def update(self, entry, remote, pinned, generation):
        self.updated.append(generation)

    def touch(self, image_id):
        self.touched += 1

    def send(self, message):
        if isinstance(message, PromoteImage):
            self.promoted.append(message.image_id)
            return
        if self.deaf:
            raise messaging.MessageDeliveryFailure('no bus')
        self.told.append(message)


@pytest.fixture
def host():
    return Host()


def stock():
    """Stand for stock Nova's way, which fetches the whole image."""
    return True


def not_stock():
    pytest.fail('the whole image is fetched')


def test_a_cold_host_is_warmed(host):
    assert HostWarmer(host, 7).cache_image(IMAGE, False, not_stock) is True
    assert host.fetched == [(INFO, Medium.MEMORY, 7)] and host.promoted == [IMAGE]
    assert host.told == [ReportWarm(IMAGE, 'host-1', 'cached', '')]


def test_the_disk_is_taken_where_the_memory_has_no_room(host):
    host.rooms = (TierRoom.NONE, TierRoom.ARRIVAL)
    assert HostWarmer(host, 0).cache_image(IMAGE, False, not_stock) is True
    assert [medium for _info, medium, _rate in host.fetched] == [Medium.DISK]


def test_a_warm_host_is_left_as_it_is(host):
    host.held = HeldHere.CURRENT
    assert HostWarmer(host, 0).cache_image(IMAGE, False, not_stock) is False
    assert (host.fetched, host.touched, host.updated) == ([], 1, [4])
    assert host.told == [ReportWarm(IMAGE, 'host-1', 'existing', '')]


def test_a_warm_host_is_warm_while_the_storage_service_is_away(host):
    host.held, host.answer = HeldHere.CURRENT, None
    assert HostWarmer(host, 0).cache_image(IMAGE, False, not_stock) is False
    assert host.updated == []


@pytest.mark.parametrize('held', [HeldHere.OLDER, HeldHere.EMPTY])
def test_what_is_not_the_offered_one_is_replaced(host, held):
    host.held = held
    assert HostWarmer(host, 0).cache_image(IMAGE, False, not_stock) is True


def test_a_host_with_the_full_base_is_warm_the_stock_way(host):
    assert HostWarmer(host, 0).cache_image(IMAGE, True, lambda: False) is False
    assert host.told == [ReportWarm(IMAGE, 'host-1', 'existing', '')] and host.fetched == []


def test_an_image_that_is_not_served_is_cached_the_stock_way(host):
    host.answer = {'action': 'stock', 'reason': 'bootcache_mode=off'}
    assert HostWarmer(host, 0).cache_image(IMAGE, False, stock) is True
    assert host.told == [ReportWarm(IMAGE, 'host-1', 'cached', '')]


def test_bootcache_may_be_off(host):
    host.is_on = False
    assert HostWarmer(host, 0).cache_image(IMAGE, False, stock) is True and host.fetched == []


@pytest.mark.parametrize('answer, rooms, text', [
    (None, BOTH, 'does not answer'), (COLD, BOTH, 'has no cache image yet'),
    ({'action': 'wait', 'reason': 'soon'}, BOTH, 'has no cache image yet'),
    (OFFER, (TierRoom.NONE, TierRoom.NONE), 'raise [bootcache]compute_disk_quota')])
def test_what_cannot_be_had_is_an_error_that_is_told(host, answer, rooms, text):
    host.answer, host.rooms = answer, rooms
    with pytest.raises(exception.BootcacheError) as caught:
        HostWarmer(host, 0).cache_image(IMAGE, False, not_stock)
    assert text in str(caught.value)
    assert host.told == [ReportWarm(IMAGE, 'host-1', 'error', str(caught.value))]


@pytest.mark.parametrize('trust, text', [
    (Trust.PAUSED, 'came wrong'), (Trust.UNREADABLE, 'QEMU cannot read'), (Trust.NONE, '')])
def test_what_came_wrong_is_told_or_cached_the_stock_way(host, trust, text):
    host.trust = trust
    warmer = HostWarmer(host, 0)
    if trust is Trust.NONE:
        assert warmer.cache_image(IMAGE, False, stock) is True
    else:
        with pytest.raises(exception.BootcacheError, match=text):
            warmer.cache_image(IMAGE, False, not_stock)
    assert host.fetched == []


def test_a_driver_that_cannot(host):
    def cannot():
        raise NotImplementedError

    with pytest.raises(NotImplementedError):
        HostWarmer(host, 0).cache_image(IMAGE, True, cannot)
    assert [told.outcome for told in host.told] == ['unsupported']


def test_a_failed_fetch_is_told(host):
    host.fails = [OSError('No space left')]
    with pytest.raises(OSError):
        HostWarmer(host, 0).cache_image(IMAGE, False, not_stock)
    assert host.told == [ReportWarm(IMAGE, 'host-1', 'error', 'No space left')]


def test_a_server_that_comes_meanwhile_does_not_wait(host):
    host.fails = [exception.Cancelled('a server waits')]
    assert HostWarmer(host, 7).cache_image(IMAGE, False, not_stock) is True
    assert [rate for _info, _medium, rate in host.fetched] == [0]


def test_warming_counts_although_nobody_hears_of_it(host, caplog):
    host.deaf = True
    assert HostWarmer(host, 0).cache_image(IMAGE, False, not_stock) is True
    assert 'is not told that warming ended with cached' in caplog.text
