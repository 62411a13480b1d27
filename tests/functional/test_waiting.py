"""Guests that wait: the gateway dies below them, and they go on; with a real QEMU and libvirt.

Nova is a stand-in: it says of each server that it runs, unless a test says otherwise.
"""

import contextlib
import itertools
import os
import signal
import threading

import libvirt
import libvirt_qemu
import pytest
from functional_tools import PATIENCE, until
from guests import at_home, connect

from bootcache import exception
from nova_bootcache import libvirtcalls
from nova_bootcache.novadriver import errorpolicy
from nova_bootcache.settling.localservers import LocalServer
from nova_bootcache.settling.pivotstate import Marker, PivotPhase, PivotRefused
from nova_bootcache.standstill import errorstop
from nova_bootcache.standstill.standingservers import StandingServers

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
NUMBERS = itertools.count(1)
POLICIES = ' '.join(f"{name}='{value}'" for name, value in errorstop.POLICIES.items())


@pytest.fixture(scope='module')
def home():
    """A short directory, with a libvirtd, and images with a gateway."""
    with at_home('bcwt') as make:
        def booting(name, policies=POLICIES):
            guest = make(name, policies)
            guest.boot()
            return guest

        yield booting


@pytest.fixture(scope='module')
def booted(home):
    """A guest that has read what a boot reads, and written data of its own."""
    guest = home('waits')
    assert guest.ask('write 8') == 'ok'
    return guest


class Host:
    """Stands for Nova, and for the chains: a gateway that is gone is started again."""

    def __init__(self, guest):
        self.guest, self.runs, self.away, self.tries = guest, True, False, 0
        self.standing = StandingServers(self, self, lambda path: path == guest.images.cache, self)

    def stand_still(self, server_ids):
        """No boot is watched."""

    def connect(self):
        return connect(self.guest.home)

    def domain(self, server_id):
        return self.guest.connection.lookupByUUIDString(server_id)

    def servers(self):
        return [self.server(self.guest.domain.UUIDString())]

    def server(self, server_id):
        return LocalServer(server_id, IMAGE, True, 9.0, self.guest.directory, 'vda', 'active',
                           self.runs)

    def is_read(self, image_id):
        return not self.away

    def reach_base(self, image_id):
        self.tries += 1
        if self.away:
            raise exception.StorageNodeAway('the exporter cannot be reached')
        self.guest.images.serve()


@pytest.fixture
def host(booted):
    """A host with that guest, which reads from below what it has not read."""
    booted.images.serve()
    host = Host(booted)
    yield host
    host.standing.stop()
    if booted.domain.state(0)[0] == libvirt.VIR_DOMAIN_PAUSED:
        booted.images.serve()
        booted.domain.resume()


def kill_gateway(guest):
    gateway = guest.images.gateway
    os.kill(gateway.pid(), signal.SIGKILL)
    until(lambda: gateway.pid() is None, 'the end of the gateway')


def reads(guest):
    """Have it read all of its disk, which its page cache need not have."""
    guest.tell('check-all')


def stands_still(guest):
    until(lambda: errorstop.is_stopped_by_error(guest.domain), 'that the guest is paused')


def runs(guest):
    return guest.domain.state(0)[0] == libvirt.VIR_DOMAIN_RUNNING


def test_a_gateway_that_dies_is_replaced_below_a_guest_that_reads(booted, host):
    """No error in the guest, and all of its data is right; it is let go on as often as it takes."""
    kill_gateway(booted)
    reads(booted)
    stands_still(booted)
    host.standing.start()
    host.standing.wake()
    assert booted.answer('check-all') == 'ok'
    assert booted.ask('verify') == 'ok'
    until(lambda: not host.standing.report().servers, 'that nobody waits')


def test_it_waits_while_what_is_below_is_away_and_does_not_see_how_long(booted, host):
    host.away = True
    kill_gateway(booted)
    reads(booted)
    stands_still(booted)
    host.standing.look()
    host.standing.look()
    assert errorstop.is_stopped_by_error(booted.domain)
    found = host.standing.report()
    assert found.servers == 1 and found.named[0].waits_for == 'the exporter cannot be reached'
    host.away = False
    host.standing.start()
    assert booted.answer('check-all') == 'ok'


def test_one_that_its_user_paused_stays_paused(booted, host):
    """Also where it was paused by an error before, of which libvirt takes no note."""
    kill_gateway(booted)
    reads(booted)
    stands_still(booted)
    booted.domain.suspend()
    assert errorstop.is_stopped_by_error(booted.domain), 'libvirt tells of it: Nova need not'
    host.runs = False
    for _again in range(3):
        host.standing.look()
    assert not runs(booted) and host.tries == 0
    host.runs = True
    host.standing.start()
    assert booted.answer('check-all') == 'ok'
    booted.domain.suspend()
    host.standing.look()
    assert booted.domain.state(0) == [libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_USER]
    booted.domain.resume()


def test_it_dies_again_and_again_while_the_guest_reads_and_writes(booted, host):
    """Writes of less than the overlay's subclusters read the rest from below: they wait, too."""
    host.standing.start()
    reads(booted)
    for _time in range(3):
        kill_gateway(booted)
        stands_still(booted)
        host.standing.wake()
        until(lambda: runs(booted) and booted.images.gateway.answers(), 'that it goes on')
    assert booted.answer('check-all') == 'ok'
    assert booted.ask('write 16') == 'ok' and booted.ask('verify') == 'ok'


def test_one_that_comes_to_stand_still_in_mid_move_is_not_moved(booted, host, monkeypatch):
    """It would go on between QEMU's change of the disk and the note of that."""
    moved, files = booted.pivot(), booted.files()
    moved.begin()
    moved.wait_ready(threading.Event())
    save = Marker.save

    def stops_before_it_is_suspended(marker, directory):
        save(marker, directory)
        if marker.phase is PivotPhase.PIVOTING:
            kill_gateway(booted)
            reads(booted)
            stands_still(booted)
    monkeypatch.setattr(Marker, 'save', stops_before_it_is_suspended)
    with pytest.raises(PivotRefused, match='has just been paused'):
        moved.finish()
    assert booted.files() == files and booted.backing[0] == booted.images.cache
    host.standing.start()
    assert booted.answer('check-all') == 'ok'


def test_one_of_whose_error_libvirt_was_not_told_goes_on(booted, host):
    """Releases of QEMU 10 need not tell of it: libvirt has no reason then, and the disks have one.

    Here as of one that was stopped behind libvirt's back after an error, which QEMU keeps.
    """
    kill_gateway(booted)
    reads(booted)
    stands_still(booted)
    assert booted.domain.diskErrors(0) == {'vda': libvirt.VIR_DOMAIN_DISK_ERROR_UNSPEC}
    host.standing.start()
    assert booted.answer('check-all') == 'ok'
    libvirt_qemu.qemuMonitorCommand(booted.domain, '{"execute": "stop"}', 0)
    until(lambda: not runs(booted), 'that the guest is paused')
    assert booted.domain.state(0) == [libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_UNKNOWN]
    host.standing.wake()
    until(lambda: runs(booted), 'that it goes on')


def test_one_that_stood_still_as_it_was_suspended_runs_when_it_comes_back(booted, host):
    """Nova waits for that. libvirt notes of such a one that it did not run."""
    kill_gateway(booted)
    reads(booted)
    stands_still(booted)
    booted.domain.managedSave(0)
    host.standing.comes_back_running(booted.domain.UUIDString())
    booted.images.serve()
    booted.domain.create()
    until(lambda: runs(booted), 'that it runs')
    booted.connect()
    host.standing.start()
    assert booted.ask('verify') == 'ok' and booted.ask('check-all') == 'ok'


@pytest.fixture
def ill(home, booted, host, monkeypatch):
    """Another guest of the host, and the first of its servers; both are paused.

    Its QEMU answers nobody, as one that hangs at a disk of its host.
    """
    found, of_host = home(f'ill{next(NUMBERS)}'), host.servers
    monkeypatch.setattr(
        host, 'servers', lambda: [host.server(found.domain.UUIDString()), *of_host()])
    kill_gateway(booted)
    for guest in (found, booted):
        reads(guest)
        stands_still(guest)
    pid = found.pid
    os.kill(pid, signal.SIGSTOP)
    yield found
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
    found.stop()


def hangs(host, guest):
    """Tell whether that is what the host tells of a guest."""
    return [guest.domain.UUIDString(), libvirtcalls.NO_ANSWER] in [
        [guest.server, guest.waits_for] for guest in host.standing.report().named]


def test_one_whose_qemu_hangs_keeps_no_other_from_going_on(booted, host, ill):
    """libvirt waits for its monitor without end. Again and again, and then it goes on as well."""
    host.standing.start()
    assert booted.answer('check-all') == 'ok'
    for _time in range(3):
        until(lambda: hangs(host, ill), 'that it is told of')
        state, _details, _milliseconds = ill.domain.controlInfo(0)
        assert state == libvirt.VIR_DOMAIN_CONTROL_OCCUPIED, 'our call waits for it'
        kill_gateway(booted)
        assert booted.ask('check-all') == 'ok'
    os.kill(ill.pid, signal.SIGCONT)
    assert ill.answer('check-all') == 'ok'
    until(lambda: not host.standing.report().servers, 'that nobody waits')


def test_a_nova_compute_that_is_started_anew_does_not_ask_it_again(booted, host, ill):
    """libvirt still waits for the answer to the one before. A hard reboot ends that."""
    host.standing.look()
    until(lambda: ill.domain.controlInfo(0)[2] >= libvirtcalls.SECONDS * 1000,
          'that libvirt has waited for long')
    later = Host(booted)
    later.servers = host.servers
    later.standing.look()
    assert hangs(later, ill) and not later.standing._calls._left
    # As Nova does first.
    ill.domain.destroy()
    (about, outcome), = host.standing._calls._left
    assert about == ill.domain.UUIDString()
    assert isinstance(outcome.exception(PATIENCE), libvirt.libvirtError)
    later.standing.start()
    assert booted.answer('check-all') == 'ok'
    until(lambda: not later.standing.report().servers, 'that nobody waits')
    later.standing.stop()


def test_one_that_saw_errors_waits_once_it_was_suspended_and_resumed(home):
    """As one that came, running, from a host with stock Nova's driver."""
    guest = home('earlier', '')
    host = Host(guest)
    assert errorstop.waits_at(guest.domain.XMLDesc(0)) == {}
    guest.domain.managedSave(0)
    assert host.standing.comes_back_running(guest.domain.UUIDString(), errorpolicy.with_policies)
    guest.domain.create()
    guest.connect()
    assert errorstop.waits_at(guest.domain.XMLDesc(0)) != {}
    kill_gateway(guest)
    reads(guest)
    stands_still(guest)
    host.standing.start()
    assert guest.answer('check-all') == 'ok'
    host.standing.stop()
    guest.stop()


def test_stock_novas_sees_the_error(home):
    """What the policies are for: without them the guest's reads fail for good."""
    guest = home('stock', '')
    kill_gateway(guest)
    reads(guest)
    assert guest.answer('check-all') != 'ok'
    assert runs(guest) and errorstop.waits_at(guest.domain.XMLDesc(0)) == {}
    guest.stop()
