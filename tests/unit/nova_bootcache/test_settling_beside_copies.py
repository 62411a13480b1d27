"""Settling: what is quick waits for no copy, which may take hours.

Interrupted moves, whose guests are paused, are ended meanwhile, and what servers there are is seen
and told. The threads are the settler's own.
"""

import contextlib
import os
import shutil
import threading

import pytest
from fakes_settling import IMAGE, OTHER, Move
from fakes_settling import house as house  # the fixture
from fakes_settling import settler as settler  # the fixture

from bootcache import exception
from nova_bootcache.libvirtcalls import NO_ANSWER
from nova_bootcache.settling import pivot, serversbases
from nova_bootcache.settling import settler as settler_module

PATIENCE = 30


@pytest.fixture
def threads(settler, monkeypatch):
    """The settler looks all the time."""
    monkeypatch.setattr(settler_module, '_PERIOD_SECONDS', 0.01)
    yield settler
    settler.stop()


class Copying:
    """Stands for the copy of a full base that does not end before the test."""

    def __init__(self, monkeypatch):
        self.began, self.ends = threading.Event(), threading.Event()
        whole = serversbases.fullbase.complete

        def complete(*about, **how):
            self.began.set()
            assert self.ends.wait(2 * PATIENCE)
            return whole(*about, **how)

        monkeypatch.setattr(serversbases.fullbase, 'complete', complete)


@pytest.fixture
def copying(monkeypatch, threads):
    copying = Copying(monkeypatch)
    yield copying
    copying.ends.set()


class Seen(threading.Event):
    """Is set when what is told of servers that are not settled is as a test expects it."""

    def __init__(self, settler, monkeypatch, expected):
        super().__init__()
        note = settler.unsettled.note

        def noted(*about):
            note(*about)
            if {one.server for one in settler.unsettled.report().named} == expected:
                self.set()

        monkeypatch.setattr(settler.unsettled, 'note', noted)


@pytest.mark.parametrize('conductor', ['answers', 'is away'])
def test_a_guest_that_a_move_suspended_goes_on_while_a_base_is_copied(house, threads, copying,
                                                                      monkeypatch, conductor):
    """Its QEMU answered the pivot late: it was paused until the other image's base was here."""
    house.boots('hangs')
    house.boots('other', OTHER)
    open(house.base(), 'w').close()
    serversbases.fullbase.note(house.base(), 'sha512:ab')
    marker = os.path.join(house.known['hangs'].directory, pivot.MARKER)
    ended = threading.Event()

    def finish(move):
        # As Pivot.finish: the guest is suspended, and then QEMU does not answer in time.
        open(marker, 'w').close()
        raise exception.LibvirtHangs(NO_ANSWER)

    def recover(directory, _domain):
        os.unlink(os.path.join(directory, pivot.MARKER))
        ended.set()

    monkeypatch.setattr(Move, 'finish', finish)
    monkeypatch.setattr(Move, 'abort', lambda move: None)
    monkeypatch.setattr(pivot, 'recover', recover)
    threads.start()
    assert copying.began.wait(PATIENCE) and os.path.exists(marker)
    if conductor == 'is away':
        monkeypatch.setattr(house, 'servers', lambda: 1 / 0)
    house.clock.now += 60
    assert ended.wait(PATIENCE) and not copying.ends.is_set()


def test_a_move_that_was_just_begun_is_not_taken_for_one_that_was_left(house, threads,
                                                                       monkeypatch):
    """The thread that looks does not wait for Nova's lock of the server while the other begins."""
    house.boots('one')
    open(house.base(), 'w').close()
    serversbases.fullbase.note(house.base(), 'sha512:ab')
    marker = os.path.join(house.known['one'].directory, pivot.MARKER)
    began, seen, moved, recovered = (threading.Event() for _ in range(4))
    lock = threading.Lock()

    @contextlib.contextmanager
    def locked(server_id, waits=True):
        if threading.current_thread().name == 'bootcache-settling':
            seen.set()
            assert not waits
        if is_free := lock.acquire(blocking=waits):
            try:
                yield is_free
            finally:
                lock.release()
        else:
            yield is_free

    def begin(_move):
        open(marker, 'w').close()
        began.set()
        assert seen.wait(PATIENCE), 'the marker is seen'

    def finish(move):
        os.unlink(marker)
        house.stands_on('one', house.base())
        moved.set()

    monkeypatch.setattr(house, 'instance_lock', locked)
    monkeypatch.setattr(Move, 'begin', begin)
    monkeypatch.setattr(Move, 'wait_ready', lambda move, cancelled: None)
    monkeypatch.setattr(Move, 'finish', finish)
    monkeypatch.setattr(pivot, 'recover', lambda *_about: recovered.set())
    threads.start()
    assert moved.wait(PATIENCE) and not recovered.is_set()


def test_servers_that_come_and_go_are_told_of_while_a_base_is_copied(house, threads, copying,
                                                                     monkeypatch):
    """Taking bootcache out of a host relies on what is told."""
    house.boots('one')
    house.boots('goes', OTHER, settles=False, state='suspended')
    threads.start()
    assert copying.began.wait(PATIENCE)
    seen = Seen(threads, monkeypatch, {'one', 'comes'})
    house.boots('comes', OTHER)
    shutil.rmtree(house.known.pop('goes').directory)
    assert seen.wait(PATIENCE) and not copying.ends.is_set()


def test_a_stopped_servers_image_is_needed_while_another_ones_base_is_copied(house, threads,
                                                                             copying, monkeypatch):
    """Else its entry is forgotten ten minutes after its file was evicted."""
    house.boots('one')
    threads.start()
    assert copying.began.wait(PATIENCE)
    noted, note = threading.Event(), house.needs.note_unsettled
    monkeypatch.setattr(house.needs, 'note_unsettled', lambda image_ids: (
        note(image_ids), house.needs.needs_base(OTHER) and noted.set()))
    house.boots('stopped', OTHER, running=False)
    assert noted.wait(PATIENCE) and not copying.ends.is_set()


# Disks that are kept for a revert.

def test_the_image_of_a_kept_disk_is_needed_though_its_server_is_on_another_host(house, settler):
    house.boots('one')
    os.rename(house.known['one'].directory, f"{house.known['one'].directory}_resize")
    house.known.clear()
    house.boots('other', OTHER)
    settler.once()
    settler.once()
    assert house.needs.needs_base(IMAGE) and house.done('stop serving') == [OTHER]
    shutil.rmtree(house.directory('one_resize'))
    settler.once()
    assert not house.needs.needs_base(IMAGE) and IMAGE in house.done('stop serving')
