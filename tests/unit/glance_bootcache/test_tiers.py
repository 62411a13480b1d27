"""The storage side's tiers among stand-ins: last uses, plans, options, errors."""

import json
import os

import pytest
from fakes_tiers import MIB, ONE, THREE, TWO, manifest
from fakes_tiers import exporter as exporter  # the fixture
from fakes_tiers import path as path  # the fixture
from fakes_tiers import tiers as tiers  # the fixture

from bootcache import savefile
from bootcache.manifest import Manifest
from bootcache.tier import Eviction
from glance_bootcache.storage.lastuses import Usage
from glance_bootcache.storage.tiers import StorageTiers


def test_uses_are_kept(path):
    usage = Usage(path)
    assert usage.last(ONE) is None
    usage.save()
    assert not os.path.exists(path)
    usage.note(ONE, 5.5)
    usage.note(ONE, 4)
    usage.note(TWO, 0)
    usage.save()
    with open(path) as stream:
        assert json.load(stream) == {'version': 1, 'last_used': {ONE: 5.5, TWO: 0}}
    again = Usage(path)
    assert (again.last(ONE), again.last(TWO), again.last(THREE)) == (5.5, 0, None)
    again.keep_only([ONE, THREE])
    again.save()
    assert (Usage(path).last(ONE), Usage(path).last(TWO)) == (5.5, None)


def test_uses_are_written_once_a_minute_and_at_the_end(path, monkeypatch):
    written = []
    monkeypatch.setattr(savefile, 'write_json', lambda *arguments: written.append(arguments))
    usage = Usage(path)
    for when in range(1, 100):
        usage.note(ONE, when)
        usage.save()
    assert len(written) == 1
    usage.save(at_once=True)
    usage.save(at_once=True)
    assert len(written) == 2


@pytest.mark.parametrize('text', [
    '', '{', '[]', '{}', '{"version": 2, "last_used": {}}', '{"version": 1}',
    '{"version": 1, "last_used": []}', '{"version": 1, "last_used": {"a": "b"}}',
    '{"version": 1, "last_used": {"a": null}}', '{"version": 1, "last_used": {"a": NaN}}',
    '{"version": 1, "last_used": {"a": -1}}', '{"version": 1, "last_used": {"a": Infinity}}'])
def test_a_damaged_record_is_empty(path, text, caplog):
    with open(path, 'w') as stream:
        stream.write(text)
    usage = Usage(path)
    assert usage.last('a') is None and path in caplog.text
    usage.note(ONE, 1)
    usage.save()
    assert Usage(path).last(ONE) == 1


def test_a_record_that_cannot_be_written_is_written_later(path, caplog):
    usage = Usage(f'{path}/below')
    usage.note(ONE, 1)
    usage.save()
    assert 'cannot be written' in caplog.text
    os.mkdir(path)
    usage.save(at_once=True)
    assert Usage(f'{path}/below').last(ONE) == 1


def test_the_disk_s_plan(tiers):
    entries = [manifest(ONE), manifest(TWO), Manifest(THREE)]
    tiers.note_use(ONE, 2e9)
    assert tiers.plan_disk(entries) == Eviction(True, ())
    assert tiers.plan_disk(entries, MIB) == Eviction(True, ())
    assert tiers.plan_disk(entries, 2 * MIB) == Eviction(True, (TWO,))
    assert tiers.plan_disk(entries, 2 * MIB, busy=[TWO]) == Eviction(True, (ONE,))
    assert tiers.plan_disk(entries, 4 * MIB) == Eviction(True, (TWO, ONE))
    assert tiers.plan_disk(entries, 5 * MIB) == Eviction(False, ())
    pinned = entries[1].wishing(pinned=True)
    assert tiers.plan_disk([entries[0], pinned], 2 * MIB) == Eviction(True, (ONE,))
    assert tiers.plan_disk([entries[0], pinned], 4 * MIB) == Eviction(False, ())


def test_what_was_never_used_counts_from_its_last_change(tiers):
    assert tiers._usage.last_of(manifest(ONE)) == 1767323045
    assert tiers._usage.last_of(manifest(ONE, updated_at='')) == 0
    tiers.note_use(ONE, 7)
    assert tiers._usage.last_of(manifest(ONE)) == 7


def test_uses_of_unknown_images_are_not_kept(tiers):
    tiers.note_use('45f0d3e0-1f2b-4c3d-8e9f-0a1b2c3d4e5f', 5)
    assert tiers._usage.last('45f0d3e0-1f2b-4c3d-8e9f-0a1b2c3d4e5f') is None
    with pytest.raises(ValueError):
        tiers.note_use('../..', 5)


def test_last_uses_outlive_the_service(tiers, storage_conf, exporter):
    tiers.note_use(ONE, 5)
    tiers.note_use(TWO, 6)
    tiers.stop()
    again = StorageTiers(storage_conf, tiers._store, exporter)
    assert again._usage.last_of(manifest(ONE)) == 5
    again.start([manifest(ONE)])
    again.stop()
    assert os.path.exists(f'{storage_conf.bootcache.state_dir}/usage.json')
    assert StorageTiers(storage_conf, tiers._store, exporter)._usage.last(TWO) is None
