"""One guest whose QEMU does not answer libvirt keeps no other from going on.

libvirt's domains, Nova and what is below the disks are stand-ins, and a call that does not return
waits for an event; tests/functional/test_waiting.py has a real QEMU that hangs.
"""

import subprocess
import sys
import threading

import libvirt
import pytest
from fakes_standing import Connection, Domain, disk, is_taken, make_house

from bootcache import exception
from bootcache.util import threads
from nova_bootcache import libvirtcalls
from nova_bootcache.libvirtcalls import LibvirtCalls
from nova_bootcache.standstill.standingservers import cure

PATIENCE = 60


@pytest.fixture
def few_seconds(monkeypatch):
    monkeypatch.setattr(libvirtcalls, 'SECONDS', 0.05)


class Hanging:
    """Calls that do not return until the test says so."""

    def __init__(self):
        self.asked, self.answers = 0, threading.Event()

    def __call__(self, *_arguments):
        self.asked += 1
        assert self.answers.wait(PATIENCE)
        return {}


@pytest.fixture
def hanging():
    found = Hanging()
    yield found
    found.answers.set()


@pytest.fixture
def opened():
    """The connections that were opened."""
    return []


@pytest.fixture
def guest():
    return Domain('a', libvirt.VIR_DOMAIN_PAUSED_IOERROR, disk())


@pytest.fixture
def calls(opened, guest):
    def connect():
        opened.append(Connection({'a': guest}))
        return opened[-1]
    return LibvirtCalls(connect)


def hangs(ask, *arguments):
    with pytest.raises(exception.LibvirtHangs) as error:
        ask(*arguments)
    return str(error.value)


def all_return(calls, hanging):
    """Have what was left get its answers."""
    hanging.answers.set()
    for _about, outcome in calls._left:
        outcome.result(PATIENCE)


def test_what_answers_is_returned_or_raised(calls, guest):
    assert calls.ask(lambda _connection: 5) == 5
    assert calls.ask_qemu('a', lambda domain: domain) is guest

    def refuses(_connection):
        raise libvirt.libvirtError('not now')
    for ask, arguments in (calls.ask, ()), (calls.ask_qemu, ('a',)):
        with pytest.raises(libvirt.libvirtError, match='not now'):
            ask(*arguments, refuses)
    assert calls.ask(lambda _connection: 6) == 6


def test_a_connection_is_kept_while_its_calls_are_answered(calls, opened):
    """And no longer: after an error it may be broken, as where libvirt was restarted."""
    assert calls.ask(id) == calls.ask(id) == id(opened[0]) and len(opened) == 1
    with pytest.raises(ZeroDivisionError):
        calls.ask(lambda _connection: 1 / 0)
    assert calls.ask(id) == id(opened[1]) and len(opened) == 2


def test_one_that_was_lost_is_opened_anew_before_anything_is_asked(calls, opened, monkeypatch):
    """An operator restarts libvirtd, and the next call is one that must not be made twice."""
    calls.ask(id)

    def is_lost(_connection):
        raise libvirt.libvirtError('Cannot write data: Broken pipe')
    opened[0].getLibVersion = lambda: is_lost(None)
    assert calls.ask(id) == id(opened[1]) and len(opened) == 2
    made = []
    with pytest.raises(libvirt.libvirtError):
        calls.ask(lambda connection: (made.append(1), is_lost(connection)))
    assert made == [1], 'libvirt may have done it'


def test_one_on_which_a_call_hangs_is_not_used_again(calls, opened, hanging, few_seconds):
    calls.ask(id)
    hangs(calls.ask, hanging)
    assert calls.ask(id) == id(opened[1])
    all_return(calls, hanging)
    assert calls.ask(id) == id(opened[1]) and len(opened) == 2


def test_a_libvirt_that_cannot_be_reached_is_tried_again():
    answers = iter([libvirt.libvirtError('not connected'), object()])

    def connect():
        found = next(answers)
        if isinstance(found, Exception):
            raise found
        return found
    calls = LibvirtCalls(connect)
    with pytest.raises(libvirt.libvirtError, match='not connected'):
        calls.ask(id)
    assert calls.ask(lambda _connection: 5) == 5


def test_libvirt_itself_may_hang(hanging, few_seconds):
    """Also where a connection is opened."""
    calls = LibvirtCalls(hanging)
    assert hangs(calls.ask, lambda _connection: 5) == 'libvirt does not answer'
    assert hanging.asked == 1


def waits(domain, milliseconds, state=libvirt.VIR_DOMAIN_CONTROL_OCCUPIED):
    """Have libvirt say for how long a call has waited for a domain's QEMU."""
    domain.control = [state, 0, milliseconds]


def test_one_at_whose_qemu_others_wait_is_not_asked_at_all(calls, guest):
    """As Nova, or a nova-compute before this one, whose call libvirt still has."""
    waits(guest, 4_999)
    assert calls.ask_qemu('a', lambda domain: 5) == 5
    waits(guest, 5_000)
    assert hangs(calls.ask_qemu, 'a', pytest.fail) == 'its QEMU does not answer libvirt'
    waits(guest, 5_000, libvirt.VIR_DOMAIN_CONTROL_JOB)
    assert calls.ask_qemu('a', lambda domain: 5) == 5


def test_one_that_is_asked_already_is_not_asked_again_while_libvirt_is_at_it(
        calls, guest, hanging, few_seconds):
    """It may wait for another call's end, and not for QEMU."""
    assert hangs(calls.ask_qemu, 'a', hanging) == 'its QEMU does not answer libvirt'
    waits(guest, 0, libvirt.VIR_DOMAIN_CONTROL_JOB)
    assert hangs(calls.ask_qemu, 'a', pytest.fail) == 'its QEMU does not answer libvirt'
    all_return(calls, hanging)
    assert calls.ask_qemu('a', lambda domain: 5) == 5


def test_an_answer_that_was_lost_is_asked_for_again(calls, hanging, few_seconds):
    """Nothing is done with the domain, and the call has not returned."""
    hangs(calls.ask_qemu, 'a', hanging)
    assert calls.ask_qemu('a', lambda domain: 5) == 5 and not hanging.answers.is_set()


def test_there_are_never_many_that_do_not_return(calls, opened, hanging, few_seconds):
    """Each has a thread of libvirtd's, and one of ours. What libvirt knows is told all the same."""
    for _number in range(libvirtcalls.MOST):
        hangs(calls.ask_qemu, 'a', hanging)
    with pytest.raises(exception.TooManyCalls, match='no more are made'):
        calls.ask_qemu('a', pytest.fail)
    assert calls.ask(lambda _connection: 5) == 5
    assert hanging.asked == libvirtcalls.MOST and len(opened) == libvirtcalls.MOST + 1
    all_return(calls, hanging)
    assert calls.ask_qemu('a', lambda _domain: 5) == 5


def test_what_is_urgent_is_asked_all_the_same_once_a_server(calls, hanging, few_seconds):
    """Nova works on a server, whose half-done move has to end first."""
    for name in 'abcde':
        calls._left.append((f'ill-{name}', threads.daemon_thread(hanging, 'ill')))
    assert calls.find('a', urgent=True).XMLDesc(0).startswith('<domain>')
    with pytest.raises(exception.TooManyCalls):
        calls.find('a').XMLDesc(0)
    assert 'QEMU does not answer' in hangs(
        lambda: calls.ask_qemu('a', hanging, urgent=True))
    with pytest.raises(exception.TooManyCalls):
        calls.ask_qemu('a', pytest.fail, urgent=True)


def test_a_libvirt_that_hangs_is_not_asked_for_ever(calls, hanging, few_seconds):
    for _number in range(2):
        assert hangs(calls.ask, hanging) == 'libvirt does not answer'
    for ask, arguments in (calls.ask, ()), (calls.ask_qemu, ('a',)):
        assert hangs(ask, *arguments, pytest.fail) == 'libvirt does not answer'
    assert hanging.asked == 2
    all_return(calls, hanging)
    assert calls.ask(lambda _connection: 5) == 5


THREADS = """
import threading
answers = threading.Event()
def hangs(connection):
    answers.wait(3600)
"""
# As Nova has libvirt's calls made under eventlet.
EVENTLET = """
import eventlet; eventlet.monkey_patch()
from eventlet import patcher, tpool
answers = patcher.original('threading').Event()
def hangs(connection):
    tpool.execute(answers.wait, 3600)
"""
ASK = """
from bootcache import exception
from bootcache.util import threads
from nova_bootcache import libvirtcalls
libvirtcalls.SECONDS = 0.2
calls = libvirtcalls.LibvirtCalls(object)
try:
    calls.ask(hangs)
except exception.LibvirtHangs:
    print(calls.ask(lambda connection: 'the other one'))
"""


@pytest.mark.parametrize('first, last', [
    (THREADS, ''), (EVENTLET, 'answers.set()')], ids=['threads', 'eventlet'])
def test_that_is_so_with_threads_of_both_kinds(first, last):
    """And a process whose call hangs ends all the same, where Python's own threads are used."""
    done = subprocess.run([sys.executable, '-W', 'ignore', '-c', first + ASK + last],
                          capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (0, 'the other one\n'), done.stderr


# Among a host's servers.

@pytest.fixture
def house(monkeypatch, few_seconds):
    return make_house(monkeypatch)


@pytest.mark.parametrize('where', ['diskErrors', 'resume'])
def test_one_ill_guest_keeps_no_other_from_going_on(house, hanging, where):
    ill, other = house.stands('a'), house.stands('b')
    setattr(ill, where, hanging)
    looked = threading.Thread(target=house.standing.look, daemon=True)
    looked.start()
    looked.join(PATIENCE)
    assert not looked.is_alive() and len(other.resumed) == 1
    waits(ill, 6_000)
    house.pass_time(3600)
    other.now = (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_IOERROR)
    house.pass_time(100)
    assert hanging.asked == 1 and ill.resumed == [] and len(other.resumed) == 2


def test_those_that_come_to_stand_still_beside_many_that_hang_are_told_of(house, hanging):
    """And those that do not any more are not."""
    for name in 'abcde':
        house.stands(name).diskErrors = hanging
    house.standing.look()
    other = house.stands('f')
    house.pass_time(20)
    named = {guest.server: guest.waits_for for guest in house.standing.report().named}
    assert sorted(named) == list('abcdef') and hanging.asked == libvirtcalls.MOST
    assert '5 calls to libvirt have no answer yet' in named['f'] and other.resumed == []
    assert house.told[-1][1] == list('abcdef')
    del house.domains['a'], house.known['a']
    all_return(house.standing._calls, hanging)
    house.pass_time(20)
    assert len(other.resumed) == 1 and house.standing.report().servers == 0


def test_it_is_told_of_with_the_cure_and_goes_on_when_its_qemu_answers(house, hanging, caplog):
    ill = house.stands('a')
    well, ill.diskErrors = ill.diskErrors, hanging
    house.standing.look()
    waits(ill, 6_000)
    house.pass_time(3500)
    reason, = (guest.waits_for for guest in house.standing.report().named)
    assert reason == 'its QEMU does not answer libvirt'
    assert caplog.text.count('server a is paused by an I/O error, and cannot be resumed') == 1
    assert caplog.text.count(cure(exception.LibvirtHangs(), False)) == 1
    house.pass_time(3600)
    assert caplog.text.count('server a has been paused') == 1
    ill.diskErrors = well
    ill.control = [libvirt.VIR_DOMAIN_CONTROL_OK, 0, 0]
    all_return(house.standing._calls, hanging)
    house.pass_time(20)
    assert len(ill.resumed) == 1 and house.standing.report().servers == 0


def test_of_one_that_hangs_only_what_libvirt_knows_by_itself_is_believed(house, hanging):
    """Of one without a reason QEMU would have to tell."""
    ill = house.stands('a', reason=libvirt.VIR_DOMAIN_PAUSED_UNKNOWN)
    ill.diskErrors = hanging
    house.standing.look()
    assert house.standing.report().servers == 0 and not house.standing.is_standing('a')
    user = house.stands('b', reason=libvirt.VIR_DOMAIN_PAUSED_USER)
    user.diskErrors = pytest.fail
    house.standing.look()


def test_nova_waits_for_no_answer_either(house, hanging, caplog):
    """As it asks whether a guest is paused, or has one go on that came from another host."""
    ill = house.stands('a', reason=libvirt.VIR_DOMAIN_PAUSED_UNKNOWN)
    ill.diskErrors = ill.resume = hanging
    assert not house.standing.is_standing('a')
    house.standing.has_arrived('a')
    assert hanging.asked == 2 and 'its QEMU does not answer libvirt' in caplog.text


def test_nova_waits_for_no_libvirt_that_loses_answers(house, hanging):
    """libvirt's client loses them on Nova's own connection, on which another call hangs."""
    house.domain = hanging
    ill = house.stands('a', reason=libvirt.VIR_DOMAIN_PAUSED_UNKNOWN)
    ill.state = hanging
    assert not house.standing.is_standing('a')
    house.standing.has_arrived('a')
    assert hanging.asked == 2 and ill.resumed == []


def test_a_user_s_pause_does_not_wait_for_one_that_hangs(house, hanging):
    """libvirt has it wait, and then tells Nova."""
    ill = house.stands('a')
    ill.resume = hanging
    house.standing.look()
    assert hanging.asked == 1 and not is_taken(house.standing._steps.of('a'))


def test_what_nova_does_with_one_keeps_no_other_from_going_on(house):
    """A pause may hang as well."""
    ill, other = house.stands('a'), house.stands('b')
    begun, ends = threading.Event(), threading.Event()

    def pause():
        with house.standing.kept('a'):
            begun.set()
            assert ends.wait(PATIENCE)
    pausing = threading.Thread(target=pause, daemon=True)
    pausing.start()
    assert begun.wait(PATIENCE)
    house.standing.look()
    assert ill.resumed == [] and len(other.resumed) == 1
    ends.set()
    pausing.join(PATIENCE)
    house.pass_time(20)
    assert len(ill.resumed) == 1


def test_a_call_that_is_late_lets_nobody_go_on(house, hanging):
    """By then its user may have paused it, which libvirt does not tell from an error."""
    ill = house.stands('a')
    house.standing.look()
    assert len(ill.resumed) == 1
    ill.now = (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_IOERROR)
    house.clock.now += 100
    states = iter([ill.now])

    def state(_flags):
        # The look's; the one before it would go on hangs.
        if not (found := next(states, None)):
            hanging()
        return found or ill.now
    ill.state = state
    house.standing.look()
    assert hanging.asked == 1
    house.clock.now += libvirtcalls.SECONDS + 100
    all_return(house.standing._calls, hanging)
    assert len(ill.resumed) == 1
