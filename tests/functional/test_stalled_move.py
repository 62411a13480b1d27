"""A server whose copy comes to no end while it is moved to the full base: real QEMU and libvirt.

QEMU answers. What it copies needs the base, and the gateway is stopped: SIGSTOP stands for a
storage node that is frozen, or a link that swallows all.
"""

import concurrent.futures
import contextlib
import copy
import itertools
import os
import threading

import libvirt
import pytest
from functional_tools import frozen, qemu_img, until
from guests import at_home, connect, move, move_of

from bootcache import exception
from nova_bootcache.libvirtcalls import LibvirtCalls
from nova_bootcache.settling import livedisk, pivot
from nova_bootcache.settling.pivotstate import Marker, Overlay, PivotPhase, PivotRefused, which

SLOW = 64 << 10
NUMBERS = itertools.count()


@pytest.fixture(scope='module')
def make():
    """Makes guests of a host."""
    with at_home('bcsm') as make:
        yield make


@pytest.fixture
def ill(make):
    """A guest with data of its own, which is copied with what lies around it of the base."""
    guest = make(f'ill{next(NUMBERS)}')
    guest.boot()
    assert guest.ask('write 4') == 'ok'
    yield guest
    guest.stop()


@pytest.fixture
def well(make):
    """A guest whose cache image has all of the base, and so needs no gateway."""
    guest = make('well')
    guest.images = copy.copy(guest.images)
    guest.images.cache = f'{guest.home}/whole'
    qemu_img('convert', '-O', 'qcow2', guest.images.full, guest.images.cache)
    guest.images.overlay(guest.disk)
    guest.boot()
    assert guest.ask('write 4') == 'ok'
    return guest


@pytest.fixture
def host(ill, monkeypatch):
    """The host's calls to libvirt; what a move waits for is cut short."""
    monkeypatch.setattr(pivot, 'STALLED_SECONDS', 2.0)
    monkeypatch.setattr(livedisk, '_PATIENCE_SECONDS', 2.0)
    monkeypatch.setattr(livedisk, '_ENDING_SECONDS', 0.5)
    return LibvirtCalls(lambda: connect(ill.home))


@contextlib.contextmanager
def base_stalls(guest):
    """Nobody answers for the base."""
    with frozen(guest.images.gateway.pid()):
        yield


def recover(host, guest):
    return pivot.recover(guest.directory, host.find(guest.domain.UUIDString()))


def is_half_done(guest):
    """Tell whether all is kept for the end of the copy: libvirt closes it by its path."""
    marker = Marker.load(guest.directory)
    return marker.phase is PivotPhase.COPYING \
        and which(guest.directory, 'disk', marker) is Overlay.NEW \
        and which(guest.directory, 'disk.settle', marker) is Overlay.OLD


def ended(host, guest):
    """Put the guest's disk right once its copy has ended."""
    def tried():
        with contextlib.suppress(exception.BlockJobStalls):
            return recover(host, guest)
        return None

    return until(tried, 'the end of the copy')


def stalls(host, guest):
    """A copy of a guest is begun, stalls, is given up and does not end."""
    moved = move_of(host, guest)
    moved.begin()
    with pytest.raises(exception.BlockJobStalls, match=r'was copied for ([2-9]|\d\d+) s'):
        moved.wait_ready(threading.Event())
    with pytest.raises(exception.BlockJobStalls, match='does not end'):
        moved.abort()
    assert is_half_done(guest)


def test_a_copy_that_stalls_is_given_up_and_others_move(host, ill, well):
    was, before = ill.backing[0], os.stat(ill.disk).st_ino
    with base_stalls(ill):
        stalls(host, ill)
        # libvirt waits for nothing, and the guest goes on.
        assert host._left == []
        assert ill.domain.controlInfo(0)[0] == libvirt.VIR_DOMAIN_CONTROL_OK
        assert ill.ask('write 1') == 'ok'
        with pytest.raises(exception.BlockJobStalls):
            recover(host, ill)
        assert is_half_done(ill)
        move(host, well)
        assert well.backing[0] == well.images.full and well.files() == ['disk']
    assert ended(host, ill) is Overlay.OLD
    assert ill.files() == ['disk'] and os.stat(ill.disk).st_ino == before
    assert ill.ask('verify') == 'ok' and well.ask('verify') == 'ok'
    move(host, ill)
    assert was != ill.backing[0] == ill.images.full and ill.ask('verify') == 'ok'


def test_a_hard_reboot_ends_a_copy_that_stalls(host, ill):
    """Nova has libvirt end QEMU; the disk is put right then."""
    assert ill.ask('verify') == 'ok'
    was = ill.backing[0]
    with base_stalls(ill):
        stalls(host, ill)
        ill.domain.destroy()
        assert recover(host, ill) is Overlay.OLD
        assert ill.files() == ['disk'] and ill.backing[0] == was
    ill.boot()
    assert ill.ask('verify') == 'ok'


def test_a_copy_that_would_fill_the_disk_of_all_servers_is_given_up(host, ill):
    """Its guest can have it grow while it lasts, and the overlay as well."""
    was, moved = ill.backing[0], move_of(host, ill, SLOW)
    moved.begin()
    moved._keep_free = 1 << 60
    with pytest.raises(PivotRefused, match='reserved_host_disk_mb'):
        moved.wait_ready(threading.Event())
    assert moved.abort() is Overlay.OLD
    assert ill.files() == ['disk'] and ill.backing[0] == was and ill.ask('verify') == 'ok'
    with pytest.raises(PivotRefused, match='reserved_host_disk_mb'):
        moved.begin()
    assert ill.files() == ['disk']


def test_a_guest_that_writes_as_fast_as_it_is_copied_is_left_alone(host, ill, monkeypatch):
    monkeypatch.setattr(pivot, 'OUTRUN_SECONDS', 3.0)
    is_over, was = threading.Event(), ill.backing[0]

    def write():
        while not is_over.is_set():
            assert ill.ask('write 4') == 'ok'
    moved = move_of(host, ill, SLOW)
    moved.begin()
    with concurrent.futures.ThreadPoolExecutor(1) as beside:
        writing = beside.submit(write)
        try:
            with pytest.raises(exception.BlockJobStalls, match='settle_bandwidth'):
                moved.wait_ready(threading.Event())
            assert moved.abort() is Overlay.OLD
        finally:
            is_over.set()
        writing.result()
    assert ill.files() == ['disk'] and ill.backing[0] == was and ill.ask('verify') == 'ok'
    # Once it writes less.
    move(host, ill)
    assert ill.backing[0] == ill.images.full and ill.ask('verify') == 'ok'
