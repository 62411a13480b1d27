"""What a server's root disk is chained to: every combination of what decides it."""

import dataclasses
import itertools

import pytest

from bootcache.manifest import CacheInfo
from nova_bootcache import placement
from nova_bootcache.placement import Chain, Plan, Server

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
NEW = CacheInfo('cache', 1000, 900, 3, 'new', 1 << 30, 65536, 1 << 29, 'nbd://', 1.5, 1)

# In the order in which they are told: the first that applies is the reason.
REASONS = ['enabled is off', 'not a root disk', 'not made from an image', 'kernel', 'signature',
           'shelved', 'preallocate', 'full base']


def test_every_combination_of_obstacles():
    for obstacles in itertools.product((False, True), repeat=8):
        off, disk, image, kernel, certs, unshelving, preallocates, stock = obstacles
        server = Server(None if image else IMAGE, 'disk.rescue' if disk else 'disk',
                        'kernel-id' if kernel else '', certs, unshelving, preallocates)
        reason = placement.stock_reason(server, not off, stock)
        first = next((word for word, there in zip(REASONS, obstacles, strict=True) if there), '')
        assert bool(reason) == any(obstacles)
        assert first in reason


@pytest.mark.parametrize('name', ['disk.rescue', 'disk.eph0', 'disk.swap', 'disk.config', 'root',
                                  'disk.local', '', 'Disk'])
def test_only_the_root_disk(name):
    assert name in placement.stock_reason(Server(IMAGE, name, '', False, False, False), True, False)


@pytest.mark.parametrize('image', [None, ''])
def test_a_disk_without_an_image(image):
    assert placement.stock_reason(Server(image, 'disk', '', False, False, False), True, False)


OLD = dataclasses.replace(NEW, sha256='old')
SAME = dataclasses.replace(NEW, file='another-name')


@pytest.mark.parametrize('host, fetch', [(None, True), (OLD, True), (NEW, False), (SAME, False)])
def test_chain_to_the_cache_image(host, fetch):
    assert placement.plan({'action': 'cache', 'cache_image': NEW.to_dict()}, host) \
        == Plan(Chain.CACHE, '', fetch, NEW)


@pytest.mark.parametrize('host', [None, OLD, NEW])
def test_a_recording_does_not_look_at_what_the_host_has(host):
    assert placement.plan({'action': 'record'}, host) == Plan(Chain.RECORDING)


@pytest.mark.parametrize('answer, word', [
    ({'action': 'stock', 'reason': 'the image is pending'}, 'pending'),
    ({'action': 'stock'}, 'no reason'), ({'action': 'stock', 'reason': ''}, 'no reason'),
    ({'action': 'stock', 'reason': None}, 'no reason'),
    ({'action': 'of tomorrow'}, 'no reason'), ({}, 'no reason'), ({'action': None}, 'no reason'),
    ({'action': 'cache'}, 'not understood'), ({'action': 'cache', 'cache_image': None},
                                              'not understood'),
    ({'action': 'cache', 'cache_image': {'sha256': 'new'}}, 'not understood'),
    ({'action': 'cache', 'cache_image': {**NEW.to_dict(), 'more': 1}}, 'not understood')])
@pytest.mark.parametrize('host', [None, NEW])
def test_everything_else_is_stock_with_a_reason(answer, word, host):
    plan = placement.plan(answer, host)
    assert plan.chain is Chain.STOCK and word in plan.reason
    assert plan.cache_image is None and not plan.fetch


def test_a_warm_host_needs_no_storage_service():
    assert placement.plan(None, OLD) == Plan(Chain.CACHE, '', False, OLD)
    cold = placement.plan(None, None)
    assert cold.chain is Chain.STOCK and 'does not answer' in cold.reason
