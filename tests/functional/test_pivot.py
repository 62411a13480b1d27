"""Servers' disks move to the full base, and back, whatever dies on the way: with real guests."""

import contextlib
import inspect
import os
import threading

import libvirt
import pytest
from functional_tools import qemu_img, until
from guests import at_home

from bootcache import exception, qemuimg
from nova_bootcache.settling import pivot, pivotstate, rebase
from nova_bootcache.settling.pivotstate import Marker, Overlay, PivotPhase

SLOW = 256 << 10
# The steps of a move; a process is killed at each of their lines.
STEPS = ('begin', '_make', '_exchanged', '_pivot', 'clean_up')
RECOVERY = ('recover', '_recover', '_names_of_job', '_exchanged', 'end_job', '_wait_for_abort',
            'resume', 'clean_up')


@pytest.fixture(scope='module')
def host():
    """Gives a maker of guests, each of one name once."""
    with at_home('bclv') as make:
        made = {}

        def known(name):
            if name not in made:
                made[name] = make(name)
            return made[name]

        yield known


@pytest.fixture(scope='module')
def booted(host):
    """A guest that has data of its own; the tests share it and move it to and fro."""
    guest = host('guest')
    guest.boot()
    assert guest.ask('write 8') == 'ok'
    return guest


@pytest.fixture
def guest(booted):
    """The same guest, running on the cache image, its gateway there."""
    booted.images.serve()
    if booted.backing[0] != booted.images.cache:
        move(booted)
    yield booted
    assert booted.files() == ['disk']


def move(guest, rate=0):
    moved = guest.pivot(rate)
    moved.begin()
    moved.wait_ready(threading.Event())
    moved.finish()


def inode(guest):
    return os.stat(guest.disk).st_ino


def state(guest):
    return guest.domain.state(0)[0]


def test_a_running_server_moves_and_needs_the_gateway_no_more(guest):
    images, before = guest.images, inode(guest)
    assert guest.ask('write 8') == 'ok'
    definition = guest.domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)
    os.chmod(guest.disk, 0o640)
    os.chown(guest.disk, 1, 1)
    moved = guest.pivot()
    moved.begin()
    # It writes while the job runs.
    guest.tell('write 4')
    moved.wait_ready(threading.Event())
    moved.finish()
    assert guest.answer('write') == 'ok'
    images.gateway.stop()
    assert guest.ask('verify') == 'ok' and guest.ask('check-all') == 'ok'
    assert guest.domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE) == definition
    assert images.cache not in guest.domain.XMLDesc(0) and 'nbd' not in guest.domain.XMLDesc(0)
    status = os.stat(guest.disk)
    assert (status.st_mode & 0o777, status.st_uid, status.st_gid) == (0o640, 1, 1)
    assert status.st_ino != before and guest.backing == (images.full, 'raw')
    details = qemuimg.info(guest.disk, 'qcow2')
    assert details['cluster-size'] == 65536
    assert details['format-specific']['data']['extended-l2'] is False
    assert _flags(guest) & os.O_DIRECT


def _flags(guest):
    """The flags with which QEMU has the disk open."""
    for name in os.listdir(f'/proc/{guest.pid}/fd'):
        if os.readlink(f'/proc/{guest.pid}/fd/{name}') == guest.disk:
            with open(f'/proc/{guest.pid}/fdinfo/{name}') as stream:
                return next(int(line.split()[1], 8) for line in stream if line.startswith('flags'))
    raise AssertionError('QEMU does not have the disk open')


def test_a_move_is_given_up_in_mid_job(guest):
    before, raised = inode(guest), []
    moved = guest.pivot(SLOW)
    moved.begin()
    assert inode(guest) == before and guest.files() == ['disk', 'disk.settle', 'disk.settle.json']
    assert pivot.is_under_way(guest.directory)

    def wait():
        with contextlib.suppress(exception.Cancelled):
            moved.wait_ready(threading.Event())
            raised.append('ready')

    thread = threading.Thread(target=wait)
    thread.start()
    assert moved.abort() is Overlay.OLD
    thread.join()
    assert raised == [] and guest.domain.blockJobInfo('vda', 0) == {}
    with pytest.raises(exception.Cancelled):
        moved.finish()
    assert moved.abort() is None
    assert inode(guest) == before and guest.files() == ['disk']
    assert guest.ask('write 2') == 'ok' and guest.ask('verify') == 'ok'


def test_a_move_is_cancelled_while_it_waits(guest):
    moved, cancelled = guest.pivot(SLOW), threading.Event()
    moved.begin()
    cancelled.set()
    with pytest.raises(exception.Cancelled):
        moved.wait_ready(cancelled)
    assert moved.abort() is Overlay.OLD


def test_a_guest_that_a_user_paused_stays_paused(guest):
    guest.domain.suspend()
    move(guest)
    assert state(guest) == libvirt.VIR_DOMAIN_PAUSED
    guest.domain.resume()
    assert guest.backing[0] == guest.images.full and guest.ask('verify') == 'ok'


def test_servers_that_are_not_moved(guest, host, tmp_path):
    """Each for its own reason, and nothing is left behind."""
    images = guest.images

    def refused(reason, moved=None):
        with pytest.raises(exception.BootcacheError, match=reason):
            (moved or guest.pivot()).begin()
        assert guest.files() == ['disk']

    other = pivot.Pivot(guest.find_domain, guest.directory, images.full, 'raw', '/another', 0)
    refused('not on the cache image', other)
    other = pivot.Pivot(guest.find_domain, guest.directory, images.full, 'raw', images.cache, 0,
                        target='vdb')
    refused('no disk vdb', other)
    other = pivot.Pivot(guest.find_domain, guest.directory, '/none', 'raw', images.cache, 0)
    refused('/none', other)
    refused('does not run', pivot.Pivot(lambda: None, guest.directory, '', 'raw', '', 0))
    qemuimg.create_overlay(f'{tmp_path}/job', images.virtual_bytes, images.cache, 'qcow2',
                           cluster_bytes=65536)
    guest.domain.blockCopy('vda', f"<disk type='file'><driver type='qcow2'/>"
                           f"<source file='{tmp_path}/job'/></disk>", {'bandwidth': SLOW},
                           libvirt.VIR_DOMAIN_BLOCK_COPY_SHALLOW
                           | libvirt.VIR_DOMAIN_BLOCK_COPY_REUSE_EXT
                           | libvirt.VIR_DOMAIN_BLOCK_COPY_TRANSIENT_JOB)
    refused('another block job')
    # Somebody else's job survives a recovery of ours.
    Marker(PivotPhase.COPYING, 'vda', images.full, 'raw', inode(guest)).save(guest.directory)
    assert pivot.recover(guest.directory, guest.domain) is Overlay.OLD
    assert guest.domain.blockJobInfo('vda', 0)
    guest.domain.blockJobAbort('vda', 0)
    moved = guest.pivot(SLOW)
    moved.begin()
    with pytest.raises(pivotstate.PivotRefused, match='earlier move'):
        guest.pivot().begin()
    with pytest.raises(pivotstate.PivotRefused, match='earlier move'):
        rebase.rebase_stopped(guest.directory, images.cache, images.full, 'raw', None)
    moved.abort()
    with pytest.raises(pivotstate.PivotRefused, match='runs or has'):
        rebase.rebase_stopped(guest.directory, images.cache, images.full, 'raw', guest.domain)
    # QEMU has the file open, whatever libvirt says.
    with pytest.raises(pivotstate.PivotRefused, match='lock'):
        rebase.rebase_stopped(guest.directory, images.cache, images.full, 'raw', None)
    assert guest.files() == ['disk'] and guest.backing == (images.cache, 'qcow2')


def test_the_server_stops_in_mid_job(guest):
    before = inode(guest)
    moved = guest.pivot(SLOW)
    moved.begin()
    guest.stop()
    with pytest.raises(pivotstate.PivotFailed, match='does not run'):
        moved.wait_ready(threading.Event())
    with pytest.raises(pivotstate.PivotFailed):
        moved.finish()
    assert inode(guest) == before and guest.files() == ['disk']
    guest.boot()
    assert guest.ask('verify') == 'ok'


class Dying:
    """A domain whose QEMU is killed after a call."""

    def __init__(self, guest, call):
        self._guest, self._call = guest, call

    def __getattr__(self, name):
        method = getattr(self._guest.domain, name)

        def call(*arguments):
            answer = method(*arguments)
            if name == self._call:
                self._guest.kill()
            return answer

        return call


def test_qemu_dies_and_we_do_not(guest):
    moved = guest.pivot()
    moved._find_domain = lambda: Dying(guest, 'suspend')
    moved.begin()
    moved.wait_ready(threading.Event())
    with pytest.raises(pivotstate.PivotFailed):
        moved.finish()
    assert guest.backing[0] == guest.images.cache and guest.files() == ['disk']
    qemu_img('check', '-f', 'qcow2', guest.disk)
    guest.boot()
    assert guest.ask('verify') == 'ok'


def test_killed_at_any_line_while_the_guest_goes_on(guest):
    lines, whole = guest.child('move', functions=STEPS)
    assert whole and {line.split(':')[0] for line in lines} == set(STEPS)
    outcomes = set()
    for number in range(1, len(lines) + 1):
        guest.tell('write 1')
        guest.child('move', number, functions=STEPS)
        outcomes.add(pivot.recover(guest.directory, guest.domain))
        assert guest.files() == ['disk'] and guest.answer('write') == 'ok'
        assert state(guest) == libvirt.VIR_DOMAIN_RUNNING
        assert f"'{guest.backing[0]}'" in guest.domain.XMLDesc(0)
        assert guest.ask('verify') == 'ok', lines[number - 1]
    assert outcomes == {None, Overlay.OLD, Overlay.NEW}


def line_after(guest, text):
    """The number of the line of ``_pivot`` or ``_exchanged`` that follows the one with a text."""
    source, start = inspect.getsourcelines(
        pivot.Pivot._pivot if 'yield' not in text else pivot._exchanged)
    function = '_pivot' if 'yield' not in text else '_exchanged'
    at = next(start + index for index, line in enumerate(source) if text in line)
    lines, _whole = guest.child('move', functions=(function,))
    return lines.index(f'{function}:{at}') + 2, (function,)


@pytest.mark.parametrize('text, left, phase, name', [
    ('yield', 'cache', PivotPhase.COPYING, Overlay.NEW),
    ('disk.pivot()', 'cache', PivotPhase.PIVOTING, Overlay.OLD),
    ('exchange(', 'cache', PivotPhase.PIVOTING, Overlay.NEW),
    ('PIVOTED', 'full', PivotPhase.PIVOTED, Overlay.NEW)])
def test_a_host_that_crashes(guest, text, left, phase, name):
    """QEMU and we die together, after a step; what boots then has all that the guest had synced."""
    number, functions = line_after(guest, text)
    if guest.backing[0] == guest.images.full:
        move(guest)
    assert guest.ask('write 2') == 'ok'
    _lines, whole = guest.child('move', number, [guest.pid], functions)
    until(lambda: not guest.domain.isActive(), 'the end of QEMU')
    marker = Marker.load(guest.directory)
    assert not whole and marker.phase is phase
    assert pivotstate.which(guest.directory, 'disk', marker) is name
    assert pivot.recover(guest.directory, None) is (Overlay.NEW if left == 'full' else Overlay.OLD)
    assert guest.backing[0] == getattr(guest.images, left) and guest.files() == ['disk']
    qemu_img('check', '-f', 'qcow2', guest.disk)
    guest.boot()
    assert guest.ask('verify') == 'ok'


@pytest.mark.parametrize('text', ['.suspend()', 'disk.pivot()'])
def test_a_recovery_that_is_killed_at_any_line(guest, text):
    number, functions = line_after(guest, text)
    guest.child('move', number, functions=functions)
    assert state(guest) == libvirt.VIR_DOMAIN_PAUSED
    # Each goes on where the one before it was killed.
    for number in range(1, 200):
        _lines, whole = guest.child('recover', number, functions=RECOVERY)
        if whole:
            break
    assert guest.files() == ['disk'] and state(guest) == libvirt.VIR_DOMAIN_RUNNING
    assert f"'{guest.backing[0]}'" in guest.domain.XMLDesc(0)
    assert guest.ask('write 2') == 'ok' and guest.ask('verify') == 'ok'


# Stopped servers.

def test_a_stopped_server_moves(guest):
    images = guest.images
    guest.stop()
    with pytest.raises(pivotstate.PivotRefused, match='not on the cache image'):
        rebase.rebase_stopped(guest.directory, '/another', images.full, 'raw', guest.domain)
    before = inode(guest)
    lines, whole = guest.child('rebase', functions=('rebase_stopped', 'clean_up'))
    assert whole and guest.backing == (images.full, 'raw') and inode(guest) == before
    for number in range(1, len(lines) + 1):
        guest.child('rebase', number, functions=('rebase_stopped', 'clean_up'))
        valid = pivot.recover(guest.directory, None)
        assert guest.files() == ['disk'] and valid in (None, Overlay.OLD, Overlay.NEW)
        assert guest.backing in guest.way()
        qemu_img('check', '-f', 'qcow2', guest.disk)
    if guest.backing[0] == images.cache:
        rebase.rebase_stopped(guest.directory, images.cache, images.full, 'raw', guest.domain)
    images.gateway.stop()
    guest.boot()
    assert guest.ask('verify') == 'ok' and guest.ask('check-all') == 'ok'


@pytest.mark.parametrize('torn', ['half', 'garbage', 'old', 'new'])
def test_a_header_that_a_power_failure_tore(host, torn):
    stopped = host('stopped')
    images = stopped.images
    if stopped.backing[0] != images.cache:
        rebase.rebase_stopped(stopped.directory, images.full, images.cache, 'qcow2', None)
    cluster = qemuimg.info(stopped.disk, 'qcow2')['cluster-size']
    with open(stopped.disk, 'rb') as stream:
        old = stream.read(cluster)
    Marker(PivotPhase.REBASING, '', images.full, 'raw', inode(stopped),
           old_backing=(images.cache, 'qcow2'),
           header=old.rstrip(b'\0').hex()).save(stopped.directory)
    qemuimg.set_backing_pointer(stopped.disk, images.full, 'raw')
    with open(stopped.disk, 'r+b') as stream:
        new = stream.read(cluster)
        stream.seek(0)
        # The pointer is in the first sector, the path in the second.
        stream.write({'half': new[:512] + old[512:], 'garbage': b'\xff' * cluster, 'old': old,
                      'new': new}[torn])
    assert pivot.recover(stopped.directory, None) \
        is (Overlay.NEW if torn == 'new' else Overlay.OLD)
    assert stopped.files() == ['disk']
    with open(stopped.disk, 'rb') as stream:
        assert stream.read(cluster) == (new if torn == 'new' else old)


def test_a_saved_guest_is_not_moved(host):
    saved = host('stopped')
    (base, base_format), (cache_image, _format) = saved.way()
    saved.domain.create()
    saved.domain.managedSave(0)
    with pytest.raises(pivotstate.PivotRefused, match='saved memory'):
        rebase.rebase_stopped(saved.directory, cache_image, base, base_format, saved.domain)
    saved.domain.managedSaveRemove(0)
    rebase.rebase_stopped(saved.directory, cache_image, base, base_format, saved.domain)
    assert saved.backing == (base, base_format)
