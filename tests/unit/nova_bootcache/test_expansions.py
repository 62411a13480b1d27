"""Which cache images of a host are expanded, and when."""

import contextlib
import dataclasses
import os
import threading

import pytest
from fakes_clock import Clock
from fakes_upkeep import IMAGE, INFO, OTHER

from bootcache import exception, tier
from bootcache.tier import Medium, TierLimits
from nova_bootcache.cache.cachefiles import CacheEntry, CacheFiles
from nova_bootcache.gateway.hostneeds import HostNeeds
from nova_bootcache.storagenode import Remote
from nova_bootcache.tiers import expansions
from nova_bootcache.tiers.expansions import Expand, Expansions, is_quiet, is_wanted, most_bytes

ZSTD = dataclasses.replace(INFO, file='cache-1.zstd.qcow2')


def entry(image=IMAGE, info=ZSTD, expanded=False):
    return CacheEntry(Remote(image, '10.0.0.1', 10810, f'base-{image}'), info, 'ab', 1 << 30,
                      expanded=expanded)


# The decision.

@pytest.mark.parametrize(('expand', 'spins', 'wanted'), [
    (Expand.AUTO, False, True), (Expand.AUTO, True, False), (Expand.ALWAYS, False, True),
    (Expand.ALWAYS, True, True), (Expand.NEVER, False, False), (Expand.NEVER, True, False)])
def test_where_unpacking_takes_longer_than_reading_it_is_expanded(expand, spins, wanted):
    assert is_wanted(expand, entry(), spins, False) is wanted


@pytest.mark.parametrize('expand', Expand)
def test_what_gains_nothing_is_left_as_it_is(expand):
    assert not is_wanted(expand, entry(), False, True), 'servers have a full base'
    assert not is_wanted(expand, entry(info=INFO), False, False), 'nothing is compressed'
    assert not is_wanted(expand, entry(info=None), False, False), 'it is empty'
    assert not is_wanted(expand, entry(expanded=True), False, False), 'it is once'


def test_nothing_ever_has_to_go_for_one_and_with_auto_not_for_the_next_one_either():
    limits = TierLimits(100, 95, 85)
    assert [most_bytes(expand, limits, medium) for expand in (Expand.AUTO, Expand.ALWAYS)
            for medium in (Medium.DISK, Medium.MEMORY)] == [85, 42, 95, 95]


def test_boots_and_fetches_have_precedence():
    assert is_quiet([60.0, 1000.0], 60, False, False) and is_quiet([], 60, False, False)
    assert not is_quiet([60.0, 59.0], 60, False, False)
    assert not is_quiet([-5.0], 0, False, False), 'a clock that was set back'
    assert not is_quiet([1000.0], 60, True, False)
    assert not is_quiet([1000.0], 60, False, True)


# The turns.

class Room:
    """Stands for the tiers' room."""

    def __init__(self):
        self.fetching = []

    def arriving(self):
        return self.fetching


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(expansions, 'time', clock)
    return clock


class House:
    """Expansions whose work is noted; it lasts until it is let go, and may fail."""

    def __init__(self, directory, monkeypatch, expand=Expand.AUTO):
        self.files = CacheFiles(str(directory))
        self.room, self.needs, self.bases = Room(), HostNeeds(), str(directory)
        self.made = Expansions(self.files, self.room, self.needs, expand, 60, f'{directory}/bases')
        self.done, self.error, self.may_end = [], None, threading.Event()
        self.may_end.set()
        monkeypatch.setattr(self.made, 'expand', self._expand)

    def _expand(self, entry):
        self.done.append(entry.remote.image_id)
        self.may_end.wait()
        if self.error is not None:
            raise self.error

    def holds(self, image=IMAGE, used=1000.0, **more):
        path = self.files.path(image)
        with open(path, 'w'):
            entry(image, **more).save(f'{path}.json')
        os.utime(f'{path}.json', (used, used))

    def look(self):
        self.made.look()
        if self.made._thread is not None and self.may_end.is_set():
            self.made._thread.join()
        return self.done


@pytest.fixture
def house(tmp_path, clock, monkeypatch):
    # Whatever disk this machine has.
    monkeypatch.setattr(tier, 'spins', lambda directory: False)
    return House(tmp_path, monkeypatch)


def test_one_at_a_time_and_first_what_was_used_last(house):
    house.holds(IMAGE, 1000.0)
    house.holds(OTHER, 2000.0)
    house.may_end.clear()
    house.made.look()
    house.made.look()
    assert house.done == [OTHER]
    house.holds(OTHER, 2000.0, expanded=True)
    house.may_end.set()
    house.made._thread.join()
    assert house.look() == [OTHER, IMAGE]


def test_not_while_somebody_waits(house, tmp_path):
    house.holds()
    house.room.fetching = [OTHER]
    assert house.look() == []
    house.room.fetching = []
    with house.needs.booting(OTHER):
        assert house.look() == []
    disk = tmp_path / 'disk'
    with house.needs.making(OTHER, str(disk)):
        assert house.look() == []
        with pytest.raises(exception.Cancelled):
            house.made._check()
        disk.touch()
    assert house.look() == [], 'nobody has opened it yet'
    disk.unlink()
    assert house.look() == [IMAGE]
    house.made._check()


def test_a_server_of_any_image_that_was_just_started_keeps_it_waiting(house):
    house.holds()
    house.holds(OTHER, info=INFO)
    house.files.touch(OTHER)
    assert house.look() == []
    os.utime(f'{house.files.path(OTHER)}.json', (1000.0, 1000.0))
    assert house.look() == [IMAGE]


def test_not_where_new_servers_stand_on_the_full_base_or_the_file_is_gone(house, tmp_path):
    house.holds()
    (tmp_path / 'bases').mkdir()
    base = tmp_path / 'bases' / os.path.basename(house.files.path(IMAGE))
    base.touch()
    assert house.look() == []
    base.unlink()
    os.unlink(house.files.path(IMAGE))
    assert house.look() == []


@pytest.mark.parametrize(('error', 'again_after', 'says'), [
    (exception.BootcacheError('it broke'), 60, 'WARNING'), (OSError('disk'), 60, 'WARNING'),
    (RuntimeError('ours'), 60, 'ERROR'), (exception.NoRoom('none'), 60, None),
    (exception.Cancelled('a server boots'), 0, None)])
def test_what_did_not_come_off_is_tried_again_in_growing_pauses(house, clock, caplog, error,
                                                               again_after, says):
    house.holds()
    house.error = error
    tries = []
    for _second in range(0, 400, 10):
        before = len(house.done)
        if len(house.look()) > before:
            tries.append(clock.now)
        clock.now += 10
    began = tries[0]
    if again_after:
        assert [at - began for at in tries] == [0, 60, 180]
    else:
        assert len(tries) == 40
    assert {record.levelname for record in caplog.records if record.levelno >= 30} \
        == ({says} if says else set())
    assert all(IMAGE in record.getMessage() for record in caplog.records
               if record.levelname == 'WARNING')


def test_one_that_did_not_come_off_keeps_no_other(house):
    house.holds(IMAGE, 1000.0)
    house.holds(OTHER, 2000.0)
    house.error = exception.BootcacheError('it broke')
    house.look()
    assert house.look() == [OTHER, IMAGE]


def test_never_is_never_and_what_is_stopped_begins_nothing(house, tmp_path, monkeypatch):
    house.holds()
    never = House(tmp_path, monkeypatch, Expand.NEVER)
    assert never.look() == []
    house.made.stop()
    assert house.look() == []
    with pytest.raises(exception.Cancelled):
        house.made._check()


def test_without_a_thread_it_is_done_later(house, monkeypatch):
    house.holds()

    def start(_thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, 'start', start)
        with pytest.raises(exception.BootcacheError, match='no thread'):
            house.made.look()
    assert house.look() == [IMAGE]


def test_a_restart_removes_what_was_being_made(tmp_path):
    disk, memory = tmp_path / 'disk', tmp_path / 'memory'
    memory.mkdir()
    files = CacheFiles(str(disk), str(memory))
    files.prepare()
    (memory / 'of-others.partial').touch()
    for medium in Medium:
        with open(files.expanding_path(IMAGE, medium), 'w'):
            pass
    files.prepare()
    assert list(disk.iterdir()) == [] and [path.name for path in memory.iterdir()] \
        == ['of-others.partial']


def test_the_mark_is_noted_and_no_use(tmp_path):
    files = CacheFiles(str(tmp_path))
    path = f'{files.path(IMAGE)}.json'
    entry().save(path)
    os.utime(path, (1000.0, 1000.0))
    files.note_expanded(entry(expanded=True))
    assert files.known(IMAGE) == entry(), 'another one has its place'
    files.note_expanded(entry())
    assert files.known(IMAGE) == entry(expanded=True) and os.stat(path).st_mtime == 1000
    with contextlib.ExitStack() as held:
        entry().save(path)
        held.enter_context(files.placing(IMAGE))
        thread = threading.Thread(target=files.note_expanded, args=(entry(),))
        thread.start()
        thread.join()
    assert files.known(IMAGE) == entry(), 'somebody places it'
