"""The storage side's tiers among stand-ins: last uses, plans, options, errors."""

import pytest
from fakes_clock import Clock
from fakes_database import locked
from fakes_tiers import MIB, ONE, THREE, TWO, manifest
from fakes_tiers import exporter as exporter  # the fixture
from fakes_tiers import tiers as tiers  # the fixture

from bootcache import exception
from bootcache.manifest import Manifest
from bootcache.tier import Eviction
from glance_bootcache.db.writer import Writer
from glance_bootcache.storage.lastuses import LastUses
from glance_bootcache.storage.tiers import StorageTiers
from tools import storedimages


@pytest.fixture
def clock():
    return Clock(1e9)


@pytest.fixture
def images(storage_conf, database):
    """There are two."""
    store = storedimages.opened(storage_conf, database)
    for image_id in ONE, TWO:
        store.add(Manifest(image_id))
    return store


def test_uses_are_kept(database, clock, images):
    uses = LastUses(database, clock)
    writer = Writer(database, [uses.changes])
    assert uses.last(ONE) is None and uses.changes(True) is None
    uses.record(ONE, 5.5)
    uses.record(ONE, 4)
    uses.record(TWO, 0)
    writer.write()
    again = LastUses(database)
    assert (again.last(ONE), again.last(TWO), again.last(THREE)) == (5.5, 0, None)
    images.remove(TWO)
    again.keep_only([ONE, THREE])
    again.record(ONE, 7)
    Writer(database, [again.changes]).write()
    again = LastUses(database)
    assert (again.last(ONE), again.last(TWO)) == (7, None)


def test_uses_are_written_once_a_minute_and_at_the_end(database, clock, images):
    uses = LastUses(database, clock)
    writer, written = Writer(database, [uses.changes]), []
    for when in range(1, 100):
        uses.record(ONE, when)
        writer.write()
        written.append(LastUses(database).last(ONE))
        clock.now += 1
    assert sorted(set(written)) == [1, 61]
    writer.write(at_once=True)
    assert LastUses(database).last(ONE) == 99 and uses.changes(True) is None


def test_uses_that_cannot_be_written_are_written_later(database, clock, images):
    uses = LastUses(database, clock)
    uses.record(ONE, 1)
    writer = Writer(database, [uses.changes])
    with locked(database), pytest.raises(exception.DatabaseAway, match='locked'):
        writer.write()
    clock.now += 60
    writer.write()
    assert LastUses(database).last(ONE) == 1


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
    storedimages.put(tiers._store, pinned)
    assert tiers.plan_disk([entries[0], pinned], 2 * MIB) == Eviction(True, (ONE,))
    assert tiers.plan_disk([entries[0], pinned], 4 * MIB) == Eviction(False, ())


def test_what_was_never_used_counts_from_its_last_change(tiers):
    assert tiers._last_uses.last_of(manifest(ONE)) == 1767323045
    assert tiers._last_uses.last_of(manifest(ONE, updated_at='')) == 0
    tiers.note_use(ONE, 7)
    assert tiers._last_uses.last_of(manifest(ONE)) == 7


def test_uses_of_unknown_images_are_not_kept(tiers):
    tiers.note_use('45f0d3e0-1f2b-4c3d-8e9f-0a1b2c3d4e5f', 5)
    assert tiers._last_uses.last('45f0d3e0-1f2b-4c3d-8e9f-0a1b2c3d4e5f') is None
    with pytest.raises(ValueError):
        tiers.note_use('../..', 5)


def test_last_uses_outlive_the_service(tiers, storage_conf, exporter, database):
    tiers.note_use(ONE, 5)
    tiers.note_use(TWO, 6)
    tiers.stop()
    Writer(database, [tiers._last_uses.changes]).write(at_once=True)
    again = StorageTiers(storage_conf, tiers._store, exporter, LastUses(database))
    assert again._last_uses.last_of(manifest(ONE)) == 5
    again._store.remove(TWO)
    again.start([manifest(ONE)])
    again.stop()
    Writer(database, [again._last_uses.changes]).write(at_once=True)
    assert LastUses(database).last(TWO) is None
