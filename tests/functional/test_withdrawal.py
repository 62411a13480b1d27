"""Cache images leave storage disk and memory, with the real exporter: no file goes that is served,
no export of a file comes to be that is gone, and nobody waits for an exporter that hangs."""

import os
import threading

import pytest
from functional_tools import frozen, until
from tiers_house import Readers
from tiers_house import house as house  # the fixture
from tiers_house import memory as memory  # likewise

from bootcache import exception, tier
from bootcache.tier import Medium
from glance_bootcache.images.running import Running
from glance_bootcache.images.storagedisk import DiskRoom


@pytest.fixture
def room(house):
    return DiskRoom(house.store, Running(1), house.exporter, house.tiers)


@pytest.mark.parametrize('medium', list(Medium))
def test_an_evicted_cache_image_is_nowhere(house, room, medium):
    manifest, other = house.image(1), house.image(2)
    if medium is Medium.MEMORY:
        house.promote(manifest)
    assert room.evict(manifest.image_id)
    assert house.store.load(manifest.image_id).made.cache_image is None
    assert not os.path.exists(house.disk_path(manifest)) and os.listdir(house.memory) == []
    assert house.served_from(manifest) is None
    house.check(other, house.disk_path(other))
    # Who still has its manifest is refused, and leaves nothing.
    with pytest.raises(exception.StorageDaemonError):
        house.serve(manifest)
    assert house.served_from(manifest) is None


def test_one_that_is_fetched_stays(house, room):
    manifest = house.image(1)
    with Readers(house, manifest) as readers:
        readers.go_on()
        assert not room.evict(manifest.image_id)
        readers.go_on()
        assert os.path.exists(house.disk_path(manifest))
    assert readers.errors == []
    until(lambda: room.evict(manifest.image_id), 'the end of the readers')


@pytest.mark.parametrize('stays', [True, False])
def test_who_wants_it_meanwhile_waits(house, stays):
    manifest, results = house.image(1), []

    def serve():
        try:
            house.exporter.ensure(manifest, house.disk_path(manifest))
            results.append('served')
        except exception.StorageDaemonError as error:
            results.append(error)

    thread = threading.Thread(target=serve)
    with house.exporter.withdrawn(manifest) as gone:
        assert gone and house.served_from(manifest) is None
        with house.exporter.withdrawn(manifest) as twice:
            assert not twice, 'one at a time'
        waits = _has_begun_to_wait(house, manifest)
        thread.start()
        until(waits.is_set, 'who waits')
        assert results == [] and house.served_from(manifest) is None
        # Others are served meanwhile.
        other = house.image(2)
        house.check(other, house.disk_path(other))
        if not stays:
            os.unlink(house.disk_path(manifest))
    thread.join(60)
    if stays:
        assert results == ['served']
        house.check(manifest, house.disk_path(manifest))
    else:
        assert 'No such file' in str(results[0]) and house.served_from(manifest) is None


def _has_begun_to_wait(house, manifest):
    """Return an event that is set when somebody waits for the end of a withdrawal."""
    export = house.exporter.cache_export(manifest)
    leaving, begun = house.exporter.common._leaving[export], threading.Event()
    wait = leaving.wait
    leaving.wait = lambda seconds: begun.set() or wait(seconds)
    return begun


def test_an_exporter_that_hangs_holds_up_nobody_and_keeps_its_files(house, room, monkeypatch):
    """It serves on when it is awake: what it has open is not to go. Nor does the tiers' lock
    wait for it, which every server's boot takes."""
    manifest = house.image(1)
    house.promote(manifest)
    monitor, refused = house.exporter.common._daemon.monitor, []

    def leave():
        for work in (room.evict, house.tiers.demote):
            try:
                work(manifest.image_id)
            except exception.StorageDaemonError as error:
                refused.append(error)

    thread = threading.Thread(target=leave)
    with frozen(house.exporter.common._daemon.pid()), monkeypatch.context() as patch:
        # So that the test need not wait for ten.
        patch.setattr(monitor, '_patience', 1)
        thread.start()
        until(lambda: _is_taken(monitor._lock) or not thread.is_alive(), 'who asks it')
        assert not _is_taken(house.tiers._lock)
        thread.join(60)
        assert len(refused) == 2
    assert house.tiers.medium(manifest.image_id) is Medium.MEMORY
    assert tier.is_open(house.memory_path(manifest)) and os.path.exists(house.disk_path(manifest))
    # After a while it is asked again.
    monitor.heard()
    house.check(manifest, house.memory_path(manifest))
    assert room.evict(manifest.image_id) and os.listdir(house.memory) == []


def _is_taken(lock):
    """Tell whether another thread has a lock."""
    if lock.acquire(0):
        lock.release()
        return False
    return True
