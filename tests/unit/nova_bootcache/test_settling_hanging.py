"""Settling: a server whose QEMU does not answer, or whose copy comes to no end, holds up nobody.

tests/functional/test_hanging_move.py and test_stalled_move.py have real ones.
"""

import concurrent.futures
import os
import threading

import libvirt
import pytest
from fakes_settling import IMAGE, OTHER, Move, nova_works_on, settled
from fakes_settling import house as house  # the fixture
from fakes_settling import settler as settler  # the fixture

from bootcache import exception
from nova_bootcache.libvirtcalls import NO_ANSWER
from nova_bootcache.settling import pivot
from nova_bootcache.settling.pivotstate import PivotFailed

STEPS = ('begin', 'wait_ready', 'finish')


def refuses(*_arguments):
    raise exception.LibvirtHangs(NO_ANSWER)


class Tries(list):
    """When server one was tried at a step that its QEMU does not answer."""

    def __init__(self, house, monkeypatch, step):
        super().__init__()
        whole = getattr(Move, step)
        self.end = lambda: monkeypatch.setattr(Move, step, whole)

        def fail(move, *arguments):
            if move._server_id != 'one':
                return whole(move, *arguments)
            self.append(house.clock.now)
            return refuses()
        monkeypatch.setattr(Move, step, fail)


@pytest.mark.parametrize('step', STEPS)
def test_others_of_its_image_and_of_others_settle(house, settler, monkeypatch, step):
    house.boots('one')
    house.boots('two')
    house.boots('three', OTHER)
    tries = Tries(house, monkeypatch, step)
    settler.once()
    assert settled(house) == ['three', 'two'] and house.locked == []
    # Also one that comes later, at once.
    house.boots('four')
    settler.once()
    assert settled(house) == ['four', 'three', 'two'] and len(tries) == 1
    tries.end()
    house.clock.now += 10
    settler.once()
    assert 'one' in settled(house)


def test_it_is_tried_at_growing_pauses_and_told_of_once(house, settler, monkeypatch, caplog):
    caplog.set_level('INFO')
    house.boots('one')
    tries, began = Tries(house, monkeypatch, 'begin'), house.clock.now
    for _round in range(100):
        settler.look()
        house.clock.now += 10
    assert [round(tried - began) for tried in tries[:6]] == [0, 10, 30, 70, 130, 190]
    assert caplog.text.count('its QEMU does not answer libvirt') == 1
    assert caplog.text.count('a hard reboot of its server ends that process') == 1
    why, = (one.why for one in settler.unsettled.report().named)
    assert why.startswith(NO_ANSWER) and 'hard reboot the server' in why
    tries.end()
    house.clock.now += 60
    settler.look()
    assert settled(house) == ['one'] and 'answers again' in caplog.text


def test_nova_is_not_asked_while_all_that_wait_hang(house, settler, monkeypatch):
    """Its conductor has other hosts to answer."""
    house.boots('one')
    Tries(house, monkeypatch, 'begin')
    asked = []
    servers = house.servers
    monkeypatch.setattr(house, 'servers', lambda: asked.append(1) or servers())
    for _round in range(60):
        settler.look()
        house.clock.now += 10
    assert len(asked) <= 14


@pytest.fixture
def left(house, settler, monkeypatch):
    """A move that is half done: its marker is there, and the disk has the other one's name."""
    house.boots('one', age=0)
    directory = house.known['one'].directory
    marker = os.path.join(directory, pivot.MARKER)
    open(marker, 'w').close()
    house.stands_on('one', house.base())
    asked, answers = [], []

    def recover(_directory, _domain):
        asked.append(house.clock.now)
        if not answers:
            refuses()
        os.unlink(marker)
        house.stands_on('one', house.path(IMAGE))
    monkeypatch.setattr(pivot, 'recover', recover)
    return asked, answers


def test_what_is_half_done_stays_until_qemu_answers(house, settler, left, caplog):
    asked, answers = left
    began = house.clock.now
    settler.recover()
    for _round in range(20):
        settler.look()
        house.clock.now += 10
    assert [round(at - began) for at in asked[:4]] == [0, 10, 30, 70]
    assert caplog.text.count('is left alone until its QEMU answers') == 1
    assert 'cannot be ended' not in caplog.text
    assert house.needs.needs_base(IMAGE), 'whatever its disk is called'
    answers.append(1)
    house.clock.now += 60
    settler.look()
    assert len(asked) < 10 and house.needs.needs_base(IMAGE)


def test_novas_work_does_not_wait_for_its_end(house, settler, monkeypatch, caplog):
    """A hard reboot ends QEMU, and the next one that looks finds all that is needed."""
    caplog.set_level('INFO')
    monkeypatch.setattr(Move, 'abort', refuses)
    house.boots('one')
    house.then['wait'] = lambda: nova_works_on(house, settler)
    settler.once()
    assert house.done('nova') == ['one'] and 'stays half done' in caplog.text
    assert 'Traceback' not in caplog.text


def test_what_hung_at_the_last_try_is_ended_before_nova_works_on_it(house, settler, left, caplog):
    """QEMU may have answered late, and its guest would go on with a disk that nobody noted."""
    caplog.set_level('INFO')
    asked, answers = left
    settler.once()
    directory = house.known['one'].directory
    with settler.held('one'):
        assert pivot.is_under_way(directory), 'Nova may end its QEMU'
    assert 'stays half done' in caplog.text and 'Traceback' not in caplog.text
    answers.append(1)
    with settler.held('one'):
        assert not pivot.is_under_way(directory) and len(asked) == 3


def test_libvirt_that_is_away_is_an_error_that_nova_is_told_of(house, settler, left, monkeypatch):
    def is_away(_server_id, urgent):
        raise libvirt.libvirtError('Broken pipe')
    monkeypatch.setattr(house, 'bounded_domain', is_away)
    with pytest.raises(PivotFailed, match='libvirt does not tell of its server: Broken pipe'):
        settler.recover_server(house.known['one'].directory)
    with settler.held('one'):
        pass


def test_qemu_is_asked_for_what_is_half_done_however_many_hang(house, settler, left, monkeypatch):
    asked = []
    monkeypatch.setattr(house, 'bounded_domain',
                        lambda server_id, urgent: asked.append(urgent))
    settler.recover()
    with settler.held('one'), pytest.raises(exception.LibvirtHangs):
        settler.recover_server(house.known['one'].directory)
    assert asked == [True, True, True]


# Others of which so many hang that no more are asked.

@pytest.fixture
def many(house, monkeypatch):
    """No server's QEMU is asked until this is called."""
    whole = Move.begin

    def begin(_move):
        raise exception.TooManyCalls('5 calls to libvirt have no answer yet')
    monkeypatch.setattr(Move, 'begin', begin)
    return lambda: monkeypatch.setattr(Move, 'begin', whole)


def test_that_is_told_of_the_host_once_and_tried_again_soon(house, settler, many, caplog):
    caplog.set_level('INFO')
    for name in ('one', 'two'):
        house.boots(name)
    for _round in range(20):
        settler.look()
        house.clock.now += 10
    assert caplog.text.count('5 calls to libvirt') == 1 and 'is left alone' not in caplog.text
    assert caplog.text.count('a hard reboot of its server ends that process') == 1
    for why in [one.why for one in settler.unsettled.report().named]:
        assert 'QEMUs of other servers' in why and 'hard reboot' not in why
    many()
    settler.look()
    assert settled(house) == ['one', 'two']
    assert caplog.text.count('waits any more as others hang') == 1
    assert settler._hanging.why('one') == '' and 'one' not in settler._hanging


def test_one_that_hangs_itself_goes_on_being_told_so(house, settler, monkeypatch, many):
    house.boots('one')
    settler._hanging.note('one', exception.LibvirtHangs(NO_ANSWER))
    house.clock.now += 10
    settler.look()
    assert settler._hanging.why('one').startswith(NO_ANSWER)


def test_one_that_hangs_is_not_asked_whether_it_sees_errors(house, settler, monkeypatch):
    asked = []
    monkeypatch.setattr(house, 'sees_errors', asked.append)
    house.boots('one')
    house.boots('two')
    settler._hanging.note('one', exception.LibvirtHangs(NO_ANSWER))
    settler.once()
    assert asked == ['two']


# A copy that comes to no end.

def stalls(*_arguments):
    raise exception.BlockJobStalls('nothing was copied. See whether the storage node answers')


def test_others_settle_while_a_copy_is_given_up(house, settler, monkeypatch, caplog):
    monkeypatch.setattr(Move, 'wait_ready', lambda move, cancelled: move._server_id == 'one'
                        and stalls())
    house.boots('one')
    house.boots('two')
    house.boots('three', OTHER)
    settler.once()
    assert settled(house) == ['three', 'two'] and house.locked == []
    assert house.done('abort') == ['one'] and settler._pivots == {}
    assert caplog.text.count('tried again in 60 s: nothing was copied') == 1
    why, = [one.why for one in settler.unsettled.report().named if one.server == 'one']
    assert 'cannot be copied' in why and 'log of nova-compute' in why
    house.boots('four')
    settler.once()
    assert settled(house) == ['four', 'three', 'two'] and house.done('begin').count('one') == 1


def test_it_is_copied_again_at_growing_pauses_up_to_hours(house, settler, monkeypatch, caplog):
    whole, tries, began = Move.wait_ready, [], house.clock.now
    monkeypatch.setattr(Move, 'wait_ready', lambda move, cancelled: (
        tries.append(house.clock.now - began), stalls()))
    house.boots('one')
    for _round in range(100):
        settler.look()
        house.clock.now += 10
    assert [round(tried) for tried in tries] == [0, 60, 180, 420, 900]
    assert caplog.text.count('is not settled') == len(tries)
    monkeypatch.setattr(Move, 'wait_ready', whole)
    house.clock.now += 6 * 3600
    settler.look()
    assert settled(house) == ['one'] and 'one' not in settler._hanging
    assert settler._hanging.why('one') == ''


def test_one_that_does_not_end_is_looked_at_often_and_told_once(house, settler, monkeypatch,
                                                                caplog):
    """Its disk has another one's name meanwhile; a copy that was given up is begun later."""
    caplog.set_level('INFO')
    house.boots('one')
    directory = house.known['one'].directory
    marker = os.path.join(directory, pivot.MARKER)
    asked, answers, began = [], [], house.clock.now

    def wait_ready(_move, _cancelled):
        open(marker, 'w').close()
        house.stands_on('one', house.base())
        stalls()

    def recover(_directory, _domain):
        asked.append(house.clock.now - began)
        if not answers:
            stalls()
        os.unlink(marker)
        house.stands_on('one', house.path(IMAGE))
    whole = Move.wait_ready
    monkeypatch.setattr(pivot, 'recover', recover)
    monkeypatch.setattr(Move, 'wait_ready', wait_ready)
    monkeypatch.setattr(Move, 'abort', stalls)
    for _round in range(30):
        settler.look()
        house.clock.now += 10
    assert house.done('begin') == ['one'] and house.needs.needs_base(IMAGE)
    assert [round(at) for at in asked[:4]] == [10, 20, 40, 80]
    assert caplog.text.count('is not settled') == 1 and 'Traceback' not in caplog.text
    monkeypatch.setattr(Move, 'wait_ready', whole)
    answers.append(1)
    house.clock.now += 60
    settler.look()
    assert 'the copy of server one' in caplog.text and not pivot.is_under_way(directory)
    assert settled(house) == ['one'], 'it was time for that as well'


def test_a_nova_compute_that_starts_anew_tells_of_one_that_does_not_end(house, settler, left,
                                                                        monkeypatch, caplog):
    monkeypatch.setattr(pivot, 'recover', stalls)
    settler.recover()
    for _round in range(10):
        settler.look()
        house.clock.now += 10
    assert caplog.text.count('is left alone until its copy has ended') == 1
    assert 'cannot be copied' in settler._hanging.why('one')


def test_what_is_half_done_is_ended_by_one_at_a_time(house, settler, left, monkeypatch):
    """Nova takes no lock of the server for a live migration, for instance."""
    _asked, answers = left
    answers.append(1)
    ended, directory = pivot.recover, house.known['one'].directory
    began, may_end = threading.Event(), threading.Event()

    def recover(*arguments):
        assert not began.is_set(), 'names would be exchanged twice'
        began.set()
        assert may_end.wait(60)
        ended(*arguments)
    monkeypatch.setattr(pivot, 'recover', recover)
    with concurrent.futures.ThreadPoolExecutor(2) as beside:
        both = [beside.submit(settler.recover_server, directory)]
        assert began.wait(60)
        both.append(beside.submit(settler.recover_server, directory))
        may_end.set()
        for done in both:
            done.result(60)
    assert not pivot.is_under_way(directory)
