"""What the storage service answered: every kind, those of an older service, and damaged ones."""

import copy
import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootcache.ending import BootLimits
from bootcache.manifest import CacheDifference, CacheInfo
from bootcache.rpc.messages import BootAction, PlanCause
from bootcache.tier import Medium
from nova_bootcache.asking import client
from nova_bootcache.asking.client import Offered, Watch
from nova_bootcache.asking.placement import Offer, Storage
from nova_bootcache.storagenode import Remote

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
INFO = CacheInfo('cache', 1000, 900, 3, 'ab', 1 << 30, 65536, 1 << 29, 'nbd://', 1.5, 1)
WATCH = {'quota': 1 << 29, 'marker': 'login:', 'linger': 30, 'silence': 60.5, 'timeout': 900}
REMOTE = Remote(IMAGE, '10.0.0.1', 10810, f'base-{IMAGE}', 'sha512:ab')
# Of a service that does not name contents.
BASE = {'server': ['10.0.0.1', 10810], 'virtual_bytes': 1 << 30, 'base_export': f'base-{IMAGE}',
        'image_hash': 'sha512:ab', 'pinned': False}
CACHE = {**BASE, 'action': BootAction.CACHE, 'cache_export': 'cache-x',
         'cache_image': vars(INFO), 'medium': 'memory', 'has_memory': True, 'watch': WATCH}
COLD = {**BASE, 'action': BootAction.COLD, 'watch': WATCH}


def parse(answer):
    return client.parse(IMAGE, answer)


def over_the_bus(answer):
    """As it arrives: RPC knows lists only, and no tuples."""
    return json.loads(json.dumps(answer))


def test_a_cache_image_is_offered():
    assert parse(over_the_bus(CACHE)) == Offered(
        Storage(Offer.CACHE, Medium.MEMORY, has_memory=True, wants_report=True), '', REMOTE,
        1 << 30, 'sha512:ab', INFO, 'cache-x', False,
        Watch(BootLimits(1 << 29, 30.0, 60.5, 900.0), 'login:'), is_verified=False)


def test_other_hosts_were_told_of_it():
    found = parse(over_the_bus({**CACHE, 'others': True}))
    assert found.storage.has_others and not parse({**CACHE, 'others': False}).storage.has_others
    # A service that does not tell.
    assert not parse(CACHE).storage.has_others


def test_the_base_is_offered():
    found = parse(over_the_bus(COLD))
    assert found.storage == Storage(Offer.COLD, Medium.DISK, False, wants_report=True)
    assert (found.remote, found.virtual_bytes, found.cache_image, found.cache_export) \
        == (REMOTE, 1 << 30, None, '')


def test_no_report_is_wanted():
    found = parse({key: value for key, value in COLD.items() if key != 'watch'})
    assert found.watch is None and found.storage.wants_report is False
    assert parse({**COLD, 'watch': None}) == found


def test_a_pin_is_passed_on():
    assert parse({**CACHE, 'pinned': True}).pinned is True


def test_a_profile_boot():
    found = parse({**BASE, 'action': BootAction.RECORD})
    assert found.storage == Storage(Offer.PROFILE) and found.remote == REMOTE


@pytest.mark.parametrize('action, kind', [(BootAction.WAIT, Offer.WAIT),
                                          (BootAction.STOCK, Offer.STOCK)])
def test_a_refusal_has_a_reason(action, kind):
    assert parse({'action': action, 'reason': 'the image is recording'}) \
        == Offered(Storage(kind), 'the image is recording')
    for reason in ({}, {'reason': None}, {'reason': ''}):
        found = parse({'action': action, **reason})
        assert found.storage == Storage(kind) and 'no reason' in found.reason


def test_a_refusal_may_tell_where_the_base_is():
    found = parse({**BASE, 'action': BootAction.STOCK, 'reason': 'bootcache=off'})
    assert found.storage.offer is Offer.STOCK and found.reason == 'bootcache=off'
    assert (found.remote, found.virtual_bytes) == (REMOTE, 1 << 30)


def test_nobody_answers():
    found = parse(None)
    assert found.storage == Storage(Offer.AWAY) and 'does not answer' in found.reason
    assert found.remote is None


@pytest.mark.parametrize('action', ['', 'tomorrow', 'CACHE', None, 5])
def test_an_action_that_is_not_known_is_a_refusal(action):
    assert parse({**CACHE, 'action': action}).storage.offer is Offer.STOCK
    assert parse({'action': action}).storage == Storage(Offer.STOCK)


# Damage.

@pytest.mark.parametrize('answer', [[], [1], 'text', 5, 1.5, True], ids=repr)
def test_what_is_no_answer_at_all_is_not_understood(answer):
    found = parse(answer)
    assert found.storage == Storage(Offer.STOCK) and 'not understood' in found.reason


@pytest.mark.parametrize('entry', ['server', 'virtual_bytes', 'base_export', 'cache_export',
                                   'cache_image'])
def test_an_offer_that_lacks_something_is_not_understood(entry):
    found = parse({key: value for key, value in CACHE.items() if key != entry})
    assert found.storage == Storage(Offer.STOCK) and entry in found.reason
    assert found.remote is None


@pytest.mark.parametrize('change', [
    {'server': None}, {'server': 'host'}, {'server': ['host']}, {'server': ['host', 'port']},
    {'server': ['host', None]}, {'virtual_bytes': None}, {'virtual_bytes': 'many'},
    {'virtual_bytes': []}, {'medium': 'tape'}, {'medium': None}, {'medium': []},
    {'cache_image': None}, {'cache_image': 'x'}, {'cache_image': {}},
    {'cache_image': {**vars(INFO), 'colour': 'red'}},
    {'watch': {}}, {'watch': []}, {'watch': 'yes'}, {'watch': {**WATCH, 'quota': 'all'}},
    {'watch': {**WATCH, 'linger': None}},
    {'watch': {key: value for key, value in WATCH.items() if key != 'marker'}}], ids=repr)
def test_an_offer_that_is_damaged_is_not_understood(change):
    found = parse({**CACHE, **change})
    assert found.storage == Storage(Offer.STOCK) and 'not understood' in found.reason
    assert found == Offered(found.storage, found.reason)


JUNK = st.recursive(st.none() | st.booleans() | st.integers() | st.floats(-1e9, 1e9) | st.text(),
                    lambda inner: st.lists(inner, max_size=3)
                    | st.dictionaries(st.text(max_size=8), inner, max_size=3), max_leaves=5)


@given(st.sampled_from(sorted(CACHE)), JUNK)
def test_whatever_is_in_an_answer_it_is_an_offer_or_a_refusal(entry, junk):
    answer = copy.deepcopy({**CACHE, entry: junk})
    found = parse(answer)
    assert found.storage.offer is Offer.STOCK or (
        found.remote is not None and isinstance(found.virtual_bytes, int))
    if found.storage.offer is Offer.STOCK:
        assert found.reason


# Servers that come from another host.

def test_a_server_that_moves_is_not_watched():
    moved = parse(CACHE).for_a_move()
    assert moved.watch is None and moved.storage.wants_report is False
    assert dataclasses.replace(moved, watch=parse(CACHE).watch,
                               storage=parse(CACHE).storage) == parse(CACHE)


def test_a_server_that_moves_gets_the_base_of_an_image_that_is_gone():
    refused = parse({**BASE, 'action': BootAction.STOCK, 'reason': 'deleted'})
    assert refused.for_a_move().storage.offer is Offer.COLD


@pytest.mark.parametrize('answer, kind', [
    ({'action': 'stock', 'reason': 'x'}, Offer.STOCK), (None, Offer.AWAY),
    ({**BASE, 'action': 'wait', 'reason': 'x'}, Offer.WAIT)])
def test_a_server_that_moves_gets_no_base_that_is_not_there(answer, kind):
    assert parse(answer).for_a_move().storage.offer is kind


DIFFERENCE = CacheDifference('8a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f', 'sha512:cd', 100, 'ab', 50, 64,
                             'ef')
TOLD = {'export': 'difference-x', **vars(DIFFERENCE)}


def test_a_difference_is_offered_with_the_cache_image():
    found = parse(over_the_bus({**CACHE, 'difference': TOLD}))
    assert (found.difference, found.difference_export) == (DIFFERENCE, 'difference-x')
    assert dataclasses.replace(found, difference=None, difference_export='') == parse(CACHE)
    assert parse({**COLD, 'difference': TOLD}).difference is None


@pytest.mark.parametrize('wrong', [None, 1, [], {}, {**TOLD, 'bytes': -1}, {
    key: value for key, value in TOLD.items() if key != 'export'}])
def test_without_one_that_makes_sense_all_of_the_cache_image_is(wrong):
    assert parse({**CACHE, 'difference': wrong}) == parse(CACHE)


def test_who_waits_no_longer_for_a_cache_image_has_its_base():
    waiting = parse(over_the_bus({**BASE, 'action': BootAction.WAIT, 'reason': 'it is built',
                                  'ready_in': None}))
    assert waiting.storage.offer is Offer.WAIT and not waiting.comes_too_late(0.0)
    assert waiting.when_patience_ends() == dataclasses.replace(
        waiting, storage=Storage(Offer.COLD))
    without = parse({'action': BootAction.WAIT, 'reason': 'being prepared', 'ready_in': 3.0})
    assert without.when_patience_ends() == without
    away = parse(over_the_bus({'action': BootAction.WAIT, 'cause': PlanCause.NODE_AWAY,
                               'reason': 'the storage node is away', 'ready_in': None}))
    assert away.storage.offer is Offer.WAIT
    assert away.when_patience_ends() == dataclasses.replace(away, storage=Storage(Offer.AWAY)), \
        'its host may hold the cache image'
    assert parse(CACHE).when_patience_ends() == parse(CACHE)
