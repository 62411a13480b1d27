"""A server whose QEMU hangs while it is moved to the full base: with a real QEMU and libvirt.

SIGSTOP stands for a disk of the host that does not answer.
"""

import contextlib
import os
import shutil
import signal
import tempfile
import threading

import libvirt
import pytest
from functional_tools import frozen, until
from guests import at_home, connect, move, move_of

from bootcache import exception
from nova_bootcache import libvirtcalls
from nova_bootcache.libvirtcalls import LibvirtCalls
from nova_bootcache.settling import pivot
from nova_bootcache.settling.livedisk import LiveDisk
from nova_bootcache.settling.pivotstate import Marker, Overlay, PivotConflict, PivotPhase, which
from tools import libvirtd

SLOW = 256 << 10


@pytest.fixture(scope='module')
def guests():
    """Two guests of a host, one of which hangs at times, with data of their own."""
    with at_home('bchm') as make:
        found = [make(name) for name in ('ill', 'well')]
        for guest in found:
            guest.boot()
            assert guest.ask('write 4') == 'ok'
        yield found


@pytest.fixture
def host(guests, monkeypatch):
    """The host's calls to libvirt; what a move waits for at its end is cut short."""
    monkeypatch.setattr(libvirtcalls, 'SECONDS', 2.0)
    monkeypatch.setitem(libvirtcalls._OF_QEMU, 'blockJobAbort', 3.0)
    guests[0].images.serve()
    return LibvirtCalls(lambda: connect(guests[0].home))


@contextlib.contextmanager
def hangs():
    with pytest.raises(exception.LibvirtHangs, match='its QEMU does not answer'):
        yield


def recovered(host, guest):
    """Put the guest's disk right once its QEMU answers, and check the guest."""
    def recover():
        with contextlib.suppress(exception.LibvirtHangs):
            return pivot.recover(guest.directory, host.find(guest.domain.UUIDString()))
        return None

    valid = until(recover, 'that QEMU answers')
    assert guest.files() == ['disk']
    until(lambda: guest.domain.state(0)[0] == libvirt.VIR_DOMAIN_RUNNING, 'that it runs')
    assert guest.ask('write 1') == 'ok' and guest.ask('verify') == 'ok'
    assert f"'{guest.backing[0]}'" in guest.domain.XMLDesc(0)
    return valid


def stops_at(monkeypatch, guest, step):
    """QEMU hangs as libvirt is told a step of the move."""
    whole = getattr(LiveDisk, step)

    def stop(disk, *arguments):
        os.kill(guest.pid, signal.SIGSTOP)
        monkeypatch.setattr(LiveDisk, step, whole)
        return whole(disk, *arguments)
    monkeypatch.setattr(LiveDisk, step, stop)


def test_before_it_is_begun_nothing_is_changed(host, guests):
    ill, well = guests
    with frozen(ill.pid):
        with hangs():
            move_of(host, ill).begin()
        assert ill.files() == ['disk'] and not pivot.is_under_way(ill.directory)
        move(host, well)
    until(lambda: not [outcome for _of, outcome in host._left if not outcome.done()], 'its answer')
    move(host, ill)
    assert ill.ask('verify') == 'ok'


def test_in_mid_copy_others_move_and_nobody_waits_for_its_end(host, guests):
    ill, well = guests
    before = os.stat(ill.disk).st_ino
    moved = move_of(host, ill, SLOW)
    moved.begin()
    with frozen(ill.pid):
        with hangs():
            moved.wait_ready(threading.Event())
        # As Nova gives it up, and the settler: no second call is made.
        with hangs():
            moved.abort()
        assert len(host._left) == 1 and os.stat(ill.disk).st_ino == before
        assert ill.files() == ['disk', 'disk.settle', 'disk.settle.json']
        move(host, well)
        # A nova-compute that is started anew finds it in the same state, by what libvirt knows.
        until(lambda: ill.domain.controlInfo(0)[2] >= 2000, 'that libvirt has waited for long')
        later = LibvirtCalls(lambda: connect(ill.home))
        with hangs():
            pivot.recover(ill.directory, later.find(ill.domain.UUIDString()))
        assert later._left == []
    assert recovered(host, ill) is Overlay.OLD and os.stat(ill.disk).st_ino == before


@pytest.mark.parametrize('step, phase, name, outcomes', [
    ('copy', PivotPhase.COPYING, Overlay.NEW, {Overlay.OLD}),
    ('catch_up', PivotPhase.COPYING, Overlay.OLD, {Overlay.OLD}),
    ('suspend', PivotPhase.PIVOTING, Overlay.OLD, {Overlay.OLD}),
    # libvirt does it when QEMU answers.
    ('pivot', PivotPhase.PIVOTING, Overlay.OLD, {Overlay.OLD, Overlay.NEW}),
    ('resume', PivotPhase.PIVOTED, Overlay.NEW, {Overlay.NEW})])
def test_at_each_step_what_libvirt_still_does_is_waited_for(host, guests, monkeypatch, step, phase,
                                                            name, outcomes):
    ill = guests[0]
    stops_at(monkeypatch, ill, step)
    try:
        with hangs():
            move(host, ill)
        marker = Marker.load(ill.directory)
        assert marker.phase is phase and which(ill.directory, 'disk', marker) is name
        with hangs():
            pivot.recover(ill.directory, host.find(ill.domain.UUIDString()))
        assert Marker.load(ill.directory) == marker
        assert which(ill.directory, 'disk', marker) is name
    finally:
        os.kill(ill.pid, signal.SIGCONT)
    assert recovered(host, ill) in outcomes


@pytest.mark.parametrize('is_put_right', [True, False])
def test_a_pivot_that_comes_off_late_loses_nothing(host, guests, monkeypatch, is_put_right):
    """Of a guest that its user paused, and has go on before or after the disk was put right."""
    ill = guests[0]
    (base, _format), _was = ill.way()
    ill.domain.suspend()
    stops_at(monkeypatch, ill, 'pivot')
    try:
        with hangs():
            move(host, ill)
    finally:
        os.kill(ill.pid, signal.SIGCONT)
    until(lambda: all(outcome.done() for _of, outcome in host._left), 'that libvirt is done')
    marker = Marker.load(ill.directory)
    assert marker.phase is PivotPhase.PIVOTING and marker.unanswered
    assert which(ill.directory, 'disk', marker) is Overlay.OLD
    assert LiveDisk(ill.domain, 'vda', ill.disk).backing() == base
    if is_put_right:
        # As the driver does before Nova has it go on.
        assert pivot.recover(ill.directory, host.find(ill.domain.UUIDString())) is Overlay.NEW
        assert ill.domain.state(0)[0] == libvirt.VIR_DOMAIN_PAUSED
    ill.domain.resume()
    assert ill.ask('write 2') == 'ok' and ill.ask('verify') == 'ok'
    ill.kill()
    if not is_put_right:
        with pytest.raises(PivotConflict, match='may have resumed the guest'):
            pivot.recover(ill.directory, host.find(ill.domain.UUIDString()))
        # An operator takes the right one.
        os.rename(f'{ill.disk}.settle', ill.disk)
        os.unlink(f'{ill.disk}.settle.json')
    assert ill.files() == ['disk'] and ill.backing[0] == base
    ill.boot()
    assert ill.ask('verify') == 'ok'


def test_libvirtd_is_started_again_between_two_calls():
    """What is asked next opens a connection anew, and finds what is asked for."""
    home = tempfile.mkdtemp(prefix='bchm')
    try:
        process, _connection = libvirtd.start(home)
        calls = LibvirtCalls(lambda: connect(home))
        try:
            assert calls.ask(lambda connection: connection.getType()) == 'QEMU'
        finally:
            process.terminate()
            process.wait()
        process, _connection = libvirtd.start(home)
        try:
            assert calls.ask(lambda connection: connection.getType()) == 'QEMU'
        finally:
            process.terminate()
            process.wait()
    finally:
        shutil.rmtree(home)


@pytest.mark.parametrize('step', ['copy', 'catch_up', 'pivot'])
def test_a_hard_reboot_ends_it(host, guests, monkeypatch, step):
    """Nova has libvirt end QEMU, which kills it; the disk is put right then."""
    ill = guests[0]
    # On a host where the guest's writes are not synced, only what was is there afterwards.
    assert ill.ask('verify') == 'ok'
    was = ill.backing[0]
    stops_at(monkeypatch, ill, step)
    with hangs():
        move(host, ill)
    ill.domain.destroy()
    assert pivot.recover(ill.directory, host.find(ill.domain.UUIDString())) is Overlay.OLD
    assert ill.files() == ['disk'] and ill.backing[0] == was
    ill.boot()
    assert ill.ask('verify') == 'ok'
