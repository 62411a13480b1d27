"""Guests that are paused by an I/O error: which of them go on by themselves, and when.

libvirt's domains, Nova and what is below the disks are stand-ins; tests/functional/test_waiting.py
has real ones.
"""

import itertools
import threading

import libvirt
import pytest
from fakes_standing import BASE, CACHE, IMAGE, OTHER, Domain, disk, is_taken, make_house

from bootcache import exception
from bootcache.rpc.report import PausedGuest, PausedGuests
from nova_bootcache.libvirtcalls import LibvirtCalls
from nova_bootcache.settling.localservers import LocalServer
from nova_bootcache.standstill import errorstop, standingservers
from nova_bootcache.standstill.standingservers import cure, why


def test_disks_are_asked_only_where_libvirt_does_not_know():
    """QEMU has to answer, which it need not do; and a description is for whoever lists them."""
    domain = Domain('a', libvirt.VIR_DOMAIN_PAUSED_IOERROR, disk())
    domain.diskErrors = domain.XMLDesc = pytest.fail
    assert errorstop.is_stopped_by_error(domain)
    domain.now = (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_USER)
    assert not errorstop.is_stopped_by_error(domain)


def test_what_is_told_and_the_cure():
    assert why('it is away', True, True) == 'it is away'
    assert 'no space' in why('', True, True) and 'each time' in why('', False, True)
    told = {cure(error, is_full) for error in (
        exception.StorageNodeAway('x'), exception.StorageDaemonError('x'),
        exception.BaseUnreadable('x'),
        exception.LibvirtHangs('x'), exception.BootcacheError('x'), None)
        for is_full in (False, True)}
    assert len(told) == 6 and cure(None, True).startswith('Make room')


# What libvirt tells.

@pytest.mark.parametrize('disks, found', [
    ([disk()], {'vda': CACHE}), ([disk(below=BASE)], {'vda': BASE}),
    ([disk(below='')], {'vda': ''}),
    ([disk(policies='')], {}), ([disk(policies="rerror_policy='stop'")], {}),
    ([disk(policies="error_policy='stop' rerror_policy='report'")], {}),
    ([disk(policies='', target='vda'), disk('vdb')], {'vdb': CACHE}),
    (["<disk type='file' device='cdrom'><target dev='sda'/></disk>"], {}), ([], {})])
def test_the_disks_at_which_a_guest_waits(disks, found):
    assert errorstop.waits_at(f'<domain><devices>{"".join(disks)}</devices></domain>') == found


STATES = {name: getattr(libvirt, name) for name in dir(libvirt)
          if name.startswith('VIR_DOMAIN_PAUSED_')}


@pytest.mark.parametrize('errors', [{}, {'vda': libvirt.VIR_DOMAIN_DISK_ERROR_UNSPEC}], ids=len)
@pytest.mark.parametrize('reason', STATES)
def test_only_an_io_error_is_one(reason, errors):
    """Also one of which QEMU has not told libvirt: its disks have it, and libvirt no reason."""
    domain = Domain('a', STATES[reason], disk())
    domain.errors = errors
    assert errorstop.is_stopped_by_error(domain) == (
        reason == 'VIR_DOMAIN_PAUSED_IOERROR'
        or (reason == 'VIR_DOMAIN_PAUSED_UNKNOWN' and bool(errors)))
    assert (errorstop.look_at(domain) is None) == (
        reason not in ('VIR_DOMAIN_PAUSED_IOERROR', 'VIR_DOMAIN_PAUSED_UNKNOWN'))
    # The numbers of reasons are those of other states, too.
    domain.now = (libvirt.VIR_DOMAIN_RUNNING, STATES[reason])
    assert not errorstop.is_stopped_by_error(domain)


# A host's servers.

@pytest.fixture
def house(monkeypatch):
    return make_house(monkeypatch)


def test_one_goes_on_at_once_where_what_is_below_can_be_read(house, caplog):
    caplog.set_level('INFO')
    domain = house.stands('a')
    house.pass_time(5)
    assert domain.resumed == [5000.0] and house.reached == [(IMAGE, 5000.0)]
    assert 'server a is paused' in caplog.text and 'server a goes on after 1 s' in caplog.text
    assert house.standing.report() == PausedGuests(0, ())


def test_who_watches_boots_is_told_before_anybody_is_waited_for(house, monkeypatch):
    house.stands('a')
    house.stands('b', reason=libvirt.VIR_DOMAIN_PAUSED_USER)
    monkeypatch.setattr(house, 'reach_base', lambda _image: house.told.append('below'))
    house.standing.look()
    assert house.told == [(5000.0, ['a']), 'below']
    house.standing.look()
    assert house.told[-1] == (5000.0, [])


def test_nova_is_not_asked_while_none_stands_still(house):
    domain = house.stands('a')
    domain.now = (libvirt.VIR_DOMAIN_RUNNING, 0)
    house.pass_time(100)
    assert house.asked == 0 and house.reached == []


@pytest.mark.parametrize('what', [
    {'reason': libvirt.VIR_DOMAIN_PAUSED_USER}, {'reason': libvirt.VIR_DOMAIN_PAUSED_MIGRATION},
    {'reason': libvirt.VIR_DOMAIN_PAUSED_SNAPSHOT}, {'reason': libvirt.VIR_DOMAIN_PAUSED_POSTCOPY},
    {'runs': False}, {'xml': disk(policies='')}], ids=str)
def test_others_are_left_alone(house, what):
    domain = house.stands('a', **what)
    house.pass_time(4000)
    assert domain.resumed == [] and house.standing.report().servers == 0


def test_a_domain_that_is_no_server_of_this_host_is_left_alone(house):
    domain = house.stands('a')
    house.known.clear()
    house.pass_time(100)
    assert domain.resumed == []


def test_one_that_qemu_did_not_tell_of_goes_on_as_well(house):
    """Releases of QEMU 10 tell of one error a second at most; libvirt then knows no reason."""
    told_of = house.stands('a', reason=libvirt.VIR_DOMAIN_PAUSED_UNKNOWN)
    told_of.errors = {'vda': libvirt.VIR_DOMAIN_DISK_ERROR_UNSPEC}
    other = house.stands('b', reason=libvirt.VIR_DOMAIN_PAUSED_UNKNOWN)
    house.pass_time(20)
    assert len(told_of.resumed) == 1 and other.resumed == []


def test_one_waits_until_its_base_is_there_and_is_told_of(house):
    domain = house.stands('a')
    house.away[IMAGE] = exception.StorageNodeAway('the exporter cannot be reached')
    house.pass_time(1000)
    assert domain.resumed == []
    assert house.standing.report() == PausedGuests(1, (
        PausedGuest('a', 'the exporter cannot be reached', 1000005000),))
    del house.away[IMAGE]
    house.pass_time(1)
    assert len(domain.resumed) == 1 and house.standing.report().servers == 0


def test_while_a_base_is_away_libvirt_and_nova_are_seldom_asked(house):
    """A host would ask the conductor each second for as long as a storage node is away."""
    house.stands('a')
    house.away[IMAGE] = exception.StorageNodeAway('away')
    house.pass_time(1000)
    assert house.asked <= 102


def test_where_reads_go_on_failing_it_is_tried_ever_less_often(house):
    """As where several were under way, or where a disk of the storage node is ill."""
    domain = house.stands('a')
    domain.relapses = 10_000
    house.pass_time(600)
    pauses = [later - sooner for sooner, later in itertools.pairwise(domain.resumed)]
    assert pauses[:6] == [1, 2, 4, 8, 16, 32] and set(pauses[6:]) == {60}
    reason, = (guest.waits_for for guest in house.standing.report().named)
    assert 'each time it goes on' in reason
    # It ran on: the next time is another one.
    domain.relapses = 0
    house.pass_time(80)
    domain.now = (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_IOERROR)
    domain.resumed.clear()
    began = house.clock.now
    house.pass_time(5)
    assert domain.resumed == [began]


def test_where_reads_fail_late_it_is_tried_ever_less_often_too(house):
    """The gateway keeps them for a while before they fail."""
    domain = house.stands('a')
    for _second in range(600):
        house.standing.look()
        if domain.resumed and house.clock.now - domain.resumed[-1] >= 20:
            domain.now = (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_IOERROR)
        house.clock.now += 1
    pauses = [later - sooner for sooner, later in itertools.pairwise(domain.resumed)]
    assert pauses[0] <= 22 and pauses[-1] == 60


def test_a_settled_one_waits_for_no_base(house):
    """What is below it is the host's own; QEMU keeps the policy until it is started anew."""
    domain = house.stands('a', xml=disk(below=BASE))
    house.away[IMAGE] = exception.StorageNodeAway('away')
    house.pass_time(5)
    assert len(domain.resumed) == 1 and house.reached == []


def test_a_full_disk_is_named(house):
    domain = house.stands('a')
    domain.relapses, domain.errors = 10_000, {'vda': libvirt.VIR_DOMAIN_DISK_ERROR_NO_SPACE}
    house.pass_time(5)
    assert 'no space' in house.standing.report().named[0].waits_for


def test_after_an_hour_there_is_a_warning_with_the_cure_and_then_each_hour(house, caplog):
    house.stands('a')
    house.away[IMAGE] = exception.StorageNodeAway('the exporter cannot be reached')
    house.pass_time(3500)
    assert 'Bring the storage node back' not in caplog.text
    house.pass_time(2 * 3600)
    said = [record.getMessage() for record in caplog.records
            if 'Bring the storage node back' in record.getMessage()]
    assert len(said) == 2 and all('the exporter cannot be reached' in line for line in said)


def test_one_image_that_is_lost_keeps_no_other_waiting(house):
    lost, fine = house.stands('a'), house.stands('b', OTHER)
    house.away = {IMAGE: exception.BootcacheError('it does not serve it')}
    house.pass_time(20)
    assert lost.resumed == [] and len(fine.resumed) == 1


def test_one_that_its_user_pauses_meanwhile_stays_as_it_is(house):
    """libvirt notes no new reason then: Nova's record tells."""
    domain = house.stands('a')
    house.away[IMAGE] = exception.StorageNodeAway('away')
    house.pass_time(20)
    house.known['a'] = LocalServer('a', IMAGE, True, 9.0, '/instances/a', 'vda', 'paused', False)
    house.away.clear()
    house.pass_time(4000)
    assert domain.resumed == [] and house.standing.report().servers == 0


def test_a_pause_that_comes_in_between_is_seen(house, monkeypatch):
    """After the list of servers was read, and before the guest would go on."""
    domain = house.stands('a')
    paused = LocalServer('a', IMAGE, True, 9.0, '/instances/a', 'vda', 'pausing', False)
    monkeypatch.setattr(house, 'server', lambda name: paused)
    house.pass_time(100)
    assert domain.resumed == []


def test_a_user_s_pause_waits_for_one_that_goes_on_just_now(house):
    """And the other way round: whoever is second finds what the first has done."""
    domain, order = house.stands('a'), []
    domain.on_resume = lambda: order.append(is_taken(house.standing._steps.of('a')))
    house.pass_time(5)
    assert order == [True]


def test_one_that_ends_while_it_is_looked_at_is_no_reason_to_overlook_others(house):
    gone, other = house.stands('a'), house.stands('b')

    def raises(_flags):
        raise libvirt.libvirtError('no domain')
    gone.XMLDesc = raises
    house.pass_time(5)
    assert len(other.resumed) == 1


@pytest.mark.parametrize('who', ['libvirt', 'Nova'])
def test_one_that_cannot_go_on_keeps_no_other_waiting(house, monkeypatch, who, caplog):
    """Nor does it fill the log."""
    ill, other = house.stands('a'), house.stands('b')

    def refuses(*_arguments):
        raise RuntimeError('it cannot be told')
    if who == 'libvirt':
        monkeypatch.setattr(ill, 'state', lambda _flags: refuses() if is_taken(
            house.standing._steps.of('a')) else ill.now)
    else:
        server = house.server
        monkeypatch.setattr(house, 'server',
                            lambda name: refuses() if name == 'a' else server(name))
    house.pass_time(300)
    assert len(other.resumed) == 1 and ill.resumed == []
    assert 1 < caplog.text.count('server a cannot go on, for now: it cannot be told') < 12


def test_a_libvirt_that_is_away_is_told_once_and_asked_again(house, monkeypatch, caplog):
    caplog.set_level('INFO')
    standing = house.standing
    waits = iter([False] * 5 + [True])

    def away():
        raise libvirt.libvirtError('not connected')
    monkeypatch.setattr(standing, '_calls', LibvirtCalls(away))

    def wait(_seconds):
        standing._stopped = next(waits)
    monkeypatch.setattr(standing._woken, 'wait', wait)
    standing._run()
    assert caplog.text.count('which guests are paused is not known') == 1


def test_an_event_ends_the_pause(house):
    """The thread is libvirt's: all that is done there is to set an event."""
    house.standing._woken = threading.Event()
    house.standing.wake()
    assert house.standing._woken.is_set()


def test_not_all_are_named_but_all_are_counted(house, monkeypatch):
    monkeypatch.setattr(standingservers, 'MOST_NAMED', 2)
    house.away[IMAGE] = exception.StorageNodeAway('away')
    for name in 'abc':
        house.stands(name)
    house.standing.look()
    found = house.standing.report()
    assert found.servers == 3 and [guest.server for guest in found.named] == ['a', 'b']


def test_one_that_nova_is_about_to_move_goes_on_first(house, monkeypatch):
    """Only for as long as somebody waits for that: in mid-move nobody touches it."""
    domain = house.stands('a', runs=False)
    house.away[IMAGE] = exception.StorageNodeAway('away')
    monkeypatch.setattr(house.standing, 'wake', house.standing.look)
    assert house.standing.let_go_on('a', 30) is False and domain.resumed == []
    del house.away[IMAGE]
    assert house.standing.let_go_on('a', 30) is True and len(domain.resumed) == 1
    domain.now = (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_IOERROR)
    house.pass_time(100)
    assert len(domain.resumed) == 1
    assert house.standing.is_standing('a') and not house.standing.is_standing('b')
