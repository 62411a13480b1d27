"""What the driver tells Nova of its host; Nova's own driver, and the host, are stand-ins."""

import collections
import json
import types

import pytest
from neighbours import Neighbour
from nova.compute import manager, provider_tree, resource_tracker
from nova.compute.stats import Stats
from nova.virt.libvirt import driver as libvirt_driver

from bootcache import naming
from nova_bootcache.cache.cachefiles import CacheFiles
from nova_bootcache.chains.hostwarmer import HostWarmer
from nova_bootcache.chains.serving import Serving
from nova_bootcache.novadriver import driver
from nova_bootcache.novadriver.driver import TRAIT, BootCacheLibvirtDriver
from nova_bootcache.published import warmth
from nova_bootcache.published.holdings import PublishedHoldings
from nova_bootcache.tiers.room import Room

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'


class Host:
    """Stands for the host, its holdings and its warming."""

    def __init__(self):
        self.cache, self.room = Neighbour(self, CacheFiles), Neighbour(self, Room)
        self.serving = Neighbour(self, Serving)
        self.is_on, self.broken, self.warmed = True, False, []
        self.held, self.reads, self.limits = [], True, []

    def published(self, limit):
        if self.broken:
            raise OSError('input/output error')
        self.limits.append(limit)
        return warmth.encode([])

    def entries(self):
        return self.held

    def quotas(self, instances_path):
        if not self.reads:
            raise FileNotFoundError('no such directory')
        return {'DISK_GB': 10 << 30}

    def cache_image(self, image_id, goes_stock, stock):
        self.warmed.append((image_id, goes_stock))
        return stock()


@pytest.fixture
def host():
    return Host()


@pytest.fixture
def ours(host, monkeypatch, tmp_path):
    """The driver, without Nova's own work."""
    monkeypatch.setattr(libvirt_driver.LibvirtDriver, 'get_available_resource',
                        lambda self, nodename: {'vcpus': 2, 'stats': {'uptime': 'long'}})
    monkeypatch.setattr(libvirt_driver.LibvirtDriver, 'update_provider_tree',
                        lambda self, tree, nodename, allocations=None: None)
    monkeypatch.setattr(libvirt_driver.LibvirtDriver, 'cache_image',
                        lambda self, context, image_id: 'fetched' if image_id == IMAGE else '')
    monkeypatch.setattr(driver.CONF, 'instances_path', str(tmp_path))
    made = BootCacheLibvirtDriver.__new__(BootCacheLibvirtDriver)
    made.bootcache, made.holdings = host, Neighbour(host, PublishedHoldings)
    made.warming = Neighbour(host, HostWarmer)
    # Nova's own, as its compute manager gives it to a driver.
    made.virtapi = manager.ComputeVirtAPI(types.SimpleNamespace(
        reportclient=None, rt=types.SimpleNamespace(stats=collections.defaultdict(Stats))))
    return made


def test_what_the_host_holds_is_published_beside_novas_own(ours):
    resources = ours.get_available_resource('node')
    assert resources == {'vcpus': 2, 'stats': {'uptime': 'long',
                                               warmth.STATS_KEY: warmth.encode([])}}
    assert json.loads(json.dumps(resources)) == resources, 'it goes into a database'


def test_what_is_published_has_the_room_that_nova_leaves(ours, host):
    """Nova's own counters of that very host: a project's name can have 64 characters."""
    ours.virtapi._compute.rt.stats['node'].update(
        {f'num_proj_{number:064x}': 1 for number in range(690)})
    tracker = resource_tracker.ResourceTracker('h', None, types.SimpleNamespace())
    assert type(tracker.stats['node']) is Stats
    ours.get_available_resource('node')
    ours.get_available_resource('another')
    assert 0 < host.limits[0] < host.limits[1] == warmth.LIMIT


def test_what_the_host_holds_is_published_where_nova_has_no_statistics(ours, monkeypatch):
    """As in Nova 31.0, which Debian 13 has."""
    monkeypatch.setattr(libvirt_driver.LibvirtDriver, 'get_available_resource',
                        lambda self, nodename: {'vcpus': 2})
    assert ours.get_available_resource('node') \
        == {'vcpus': 2, 'stats': {warmth.STATS_KEY: warmth.encode([])}}


def test_the_host_counts_although_it_cannot_publish(ours, host, caplog):
    host.broken = True
    assert ours.get_available_resource('node') == {'vcpus': 2, 'stats': {'uptime': 'long'}}
    assert 'is not published' in caplog.text


def test_a_host_where_bootcache_is_off_publishes_nothing(ours, host):
    host.is_on = False
    assert ours.get_available_resource('node') == {'vcpus': 2, 'stats': {'uptime': 'long'}}


@pytest.fixture
def tree():
    """What Placement is told, as Nova has it."""
    tree = provider_tree.ProviderTree()
    tree.new_root('node', '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e60')
    tree.update_inventory('node', {'DISK_GB': {'total': 100, 'reserved': 5}})
    return tree


def reserved(tree):
    return tree.data('node').inventory['DISK_GB']['reserved']


def test_the_tiers_space_is_reserved(ours, tree):
    ours.update_provider_tree(tree, 'node')
    assert reserved(tree) == 15


def test_a_host_that_serves_no_more_reserves_space_until_its_cache_images_are_gone(
        ours, host, tree):
    host.is_on, host.held = False, ['an entry']
    ours.update_provider_tree(tree, 'node')
    assert reserved(tree) == 15 and tree.data('node').traits == set()
    tree.update_inventory('node', {'DISK_GB': {'total': 100, 'reserved': 5}})
    host.held = []
    ours.update_provider_tree(tree, 'node')
    assert reserved(tree) == 5


def test_the_host_counts_although_its_tiers_cannot_be_looked_at(ours, host, tree, caplog):
    host.reads = False
    ours.update_provider_tree(tree, 'node')
    assert reserved(tree) == 5 and tree.data('node').traits == {TRAIT}
    assert 'not reserved in Placement: no such directory' in caplog.text


def test_the_trait_follows_the_option(ours, host, tree):
    tree.add_traits('node', 'CUSTOM_OTHER')
    ours.update_provider_tree(tree, 'node')
    assert tree.data('node').traits == {'CUSTOM_OTHER', TRAIT}
    host.is_on = False
    ours.update_provider_tree(tree, 'node')
    assert tree.data('node').traits == {'CUSTOM_OTHER'}


@pytest.mark.parametrize('group, option, value', [
    ('libvirt', 'images_type', 'raw'), ('libvirt', 'images_type', 'rbd'),
    (None, 'use_cow_images', False), (None, 'preallocate_images', 'space'),
    ('bootcache', 'enabled', False)])
def test_a_host_whose_servers_all_go_the_stock_way(ours, host, tree, group, option, value):
    """Nobody would have a use for a cache image there, nor find it warm, nor miss the space."""
    host.is_on = (group, value) != ('bootcache', False)
    if host.is_on:
        driver.CONF.set_override(option, value, group)
    try:
        assert ours.get_available_resource('node') == {'vcpus': 2, 'stats': {'uptime': 'long'}}
        ours.update_provider_tree(tree, 'node')
        assert tree.data('node').traits == set() and reserved(tree) == 5
        ours.cache_image(None, IMAGE)
        assert host.warmed == [(IMAGE, True)]
    finally:
        driver.CONF.clear_override(option, group) if host.is_on else None


def test_precaching_is_ours_and_stock_novas_where_we_say_so(ours, host, tmp_path):
    assert ours.cache_image(None, IMAGE) is True
    (tmp_path / '_base').mkdir()
    (tmp_path / '_base' / naming.cache_file_name(IMAGE)).touch()
    ours.cache_image(None, IMAGE)
    assert host.warmed == [(IMAGE, False), (IMAGE, True)]
    assert ours.cache_image(None, 'other') is False
