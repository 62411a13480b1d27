"""Bases of an earlier version, whose manifest does not tell their content: the file does.

The neighbours are stand-ins, see test_manager.py."""

import dataclasses
import json
import os

import pytest
from fakes_manager import failed

from bootcache import savefile
from glance_bootcache.images.oldercontent import OlderContent

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
REASON = 'the guest does not come up'


@pytest.fixture
def house(house):
    """A server runs from the image, which keeps its base."""
    house.images.put(IMAGE, b'1' * 4096)
    house.manager.consider(IMAGE)
    house.settle()
    house.needs.note('one', {'needs': [IMAGE]})
    house.older = OlderContent(house.store, house.manager, house.seconds)
    return house


def upgraded(house, state, reason='', **changes):
    """Write the image's manifest as version 1 had it."""
    manifest = house.store.load(IMAGE)
    made = dataclasses.asdict(manifest.made)
    for entry in ('base_hash', 'base_export'):
        del made[entry]
    savefile.write_json(house.store.path(IMAGE, 'manifest.json'), {
        'version': 1, 'image_id': IMAGE, 'state': state, 'reason': reason,
        'image_hash': manifest.image_hash, 'updated_at': manifest.updated_at, 'held': False,
        **made, **changes})
    assert house.store.load(IMAGE).has_older_base
    return manifest


def look(house, seconds=60):
    house.seconds.now += seconds
    house.older.retry()
    house.settle()
    return house.store.load(IMAGE)


def action(house):
    return house.hosts.plan_boot(IMAGE, 'host', 'server', None)['action']


def test_a_failed_image_is_served_again_as_before_the_upgrade(house):
    """Its servers went the stock way until the last one was gone."""
    before = upgraded(house, 'failed', REASON, cache_image=None, working_set=None)
    assert action(house) == 'stock'
    look(house)
    manifest = look(house)
    assert manifest.made.base_hash == before.made.base_hash
    assert (manifest.state, manifest.reason) == ('failed', REASON)
    assert action(house) == 'cold'
    # Once only, and nothing is recorded anew for it.
    digests = []
    house.manager._image_work.name_base = digests.append
    look(house, 7200)
    assert digests == [] and len(house.boots.jobs) == 1


def test_a_pending_one_goes_on(house):
    before = upgraded(house, 'pending', cache_image=None, working_set=None)
    house.images.download = lambda image_id: pytest.fail('downloaded')
    house.upkeep.recovered = True
    house.upkeep.go_on()
    house.settle()
    manifest = house.store.load(IMAGE)
    assert (manifest.state, manifest.reason) == ('ready', '')
    assert manifest.made.base_path == before.made.base_path and action(house) == 'cache'


@pytest.mark.parametrize('state', ['failed', 'pending'])
def test_one_whose_file_is_of_an_older_content_goes_on_waiting(house, state):
    """Version 1 had noted the new content's hash before it was got."""
    older = house.store.load(IMAGE)
    house.images.put(IMAGE, b'2' * 4096)
    newer = house.images.get(IMAGE).image_hash
    upgraded(house, state, 'Glance was away' if state == 'failed' else '', image_hash=newer)
    if state == 'failed':
        look(house)
        manifest = look(house)
    else:
        house.upkeep.recovered = True
        house.upkeep.go_on()
        house.settle()
        manifest = house.store.load(IMAGE)
    assert manifest.made.base_hash == older.made.base_hash and manifest.image_hash == newer
    assert action(house) == 'stock' and os.path.exists(older.made.base_path)
    house.needs.note('one', {'needs': []})
    for _time in range(4):
        look(house, 7200)
    assert house.state(IMAGE) == 'ready' and action(house) == 'cache'
    assert house.store.load(IMAGE).made.base_hash == newer


def test_one_whose_older_cache_image_served_does_so_again(house):
    upgraded(house, 'ready', 'the older cache image serves, as Glance was away')
    assert action(house) == 'stock'
    look(house)
    assert look(house).state == 'ready' and action(house) == 'cache'


def test_a_base_that_cannot_be_read_is_told(house, monkeypatch):
    upgraded(house, 'failed', REASON)

    def fail(path, algorithm):
        raise OSError(5, 'Input/output error')

    monkeypatch.setattr(savefile, 'file_digest', fail)
    look(house)
    manifest = look(house)
    assert manifest.state == 'failed' and 'cannot be read' in manifest.reason
    assert 'Input/output error' in manifest.reason and manifest.made.base_hash == ''


def test_a_base_whose_file_is_gone_is_got_anew_when_nobody_needs_it(house):
    before = upgraded(house, 'failed', REASON)
    os.unlink(before.made.base_path)
    house.boots.fails = failed(REASON)
    look(house)
    assert look(house).made.base_hash == ''
    house.needs.note('one', {'needs': []})
    house.boots.fails = None
    look(house, 7200)
    assert house.state(IMAGE) == 'ready'
    with open(house.store.path(IMAGE, 'manifest.json')) as stream:
        assert json.load(stream)['version'] == 2
