"""Running servers that began on an empty cache image come to read what has taken its name."""

import contextlib
import errno
import os
import subprocess
import threading

import libvirt
import pytest
from functional_tools import qemu_img, qemu_version, until
from guests import at_home, connect
from test_pivot import RECOVERY, STEPS, Dying, inode, line_after, move, state

from bootcache import exception, qemuimg
from nova_bootcache.libvirtcalls import LibvirtCalls
from nova_bootcache.settling import landing, pivot, pivotstate
from nova_bootcache.settling.landing import Landing
from nova_bootcache.settling.livedisk import LiveDisk
from nova_bootcache.settling.localservers import LocalServer
from nova_bootcache.settling.pivotstate import Marker, Overlay, PivotPhase

SLOW = 256 << 10


@pytest.fixture(scope='module')
def booted():
    """A guest that began while its cache image came, and has data of its own."""
    with at_home('bcld') as make:
        guest = make('guest')
        guest.lands = True
        guest.boot()
        assert guest.ask('write 8') == 'ok'
        yield guest


@pytest.fixture
def guest(booted):
    """The same guest, its gateway there, its cache image too."""
    booted.images.serve()
    booted.images.land()
    yield booted
    assert booted.files() == ['disk']
    assert booted.backing == (booted.images.cache, 'qcow2')


def open_files(guest):
    return LiveDisk(guest.domain, 'vda', guest.disk).open_files(guest.images.cache)


class OneHost:
    """Stands for the host and its Nova: the guest's cache image, and room."""

    def __init__(self, guest):
        self.keep_free = 0
        self._guest = guest

    @property
    def cache(self):
        return self

    def path(self, _image_id):
        return self._guest.images.cache


def wanted(guest, **changes):
    """What the settler would move the guest by."""
    host = OneHost(guest)
    vars(host).update(changes)
    server = LocalServer('one', 'image', True, 3600.0, guest.directory, 'vda')
    calls = LibvirtCalls(lambda: connect(guest.home))
    return Landing(host, host, 1 << 30, 0, None).pivot(
        server, lambda: calls.find(guest.domain.UUIDString()))


def test_a_server_that_began_before_reads_the_file_itself(guest):
    """First of all: the guest began on the empty one. Gateway and storage node may go then."""
    images, before = guest.images, inode(guest)
    opened = open_files(guest)
    assert opened.backing < landing.EMPTY_BYTES < os.stat(images.cache).st_size
    assert opened.own == os.stat(guest.disk).st_blocks * 512
    definition = guest.domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)
    old = qemuimg.info(guest.disk, 'qcow2')
    os.chmod(guest.disk, 0o640)
    moved = wanted(guest)
    moved.begin()
    # It writes while the job runs.
    guest.tell('write 4')
    moved.wait_ready(threading.Event())
    moved.finish()
    assert guest.answer('write') == 'ok'
    assert open_files(guest).backing == os.stat(images.cache).st_blocks * 512
    assert wanted(guest) is None
    images.gateway.stop()
    assert guest.ask('verify') == 'ok' and guest.ask('check-all') == 'ok'
    assert guest.domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE) == definition
    assert inode(guest) != before and os.stat(guest.disk).st_mode & 0o777 == 0o640
    new = qemuimg.info(guest.disk, 'qcow2')
    for of in (lambda details: details['cluster-size'],
               lambda details: details['format-specific']['data']['extended-l2'],
               lambda details: details['format-specific']['data']['lazy-refcounts']):
        assert of(new) == of(old)
    assert new['cluster-size'] == 128 << 10


def test_one_that_is_started_again_opens_it_by_itself(guest):
    guest.stop()
    assert wanted(guest) is None
    guest.boot()
    assert open_files(guest).backing == os.stat(guest.images.cache).st_blocks * 512
    assert wanted(guest) is None and guest.ask('verify') == 'ok'


def test_a_disk_without_room_for_the_copy(guest, monkeypatch):
    monkeypatch.setattr(landing, 'is_to_land', lambda _opened, _here: True)
    with pytest.raises(pivotstate.PivotRefused, match='reserved_host_disk_mb'):
        wanted(guest, keep_free=1 << 60)
    assert guest.ask('write 1') == 'ok' and guest.ask('verify') == 'ok'


def test_what_its_copy_may_take(monkeypatch):
    """Of each cluster of which the guest wrote a part, all; QEMU 10 copies less of it."""
    with at_home('bcle') as make:
        guest = make('scattered')
        guest.lands = True
        # Of each cluster one part in 32, as a guest's file system writes.
        writes = [argument for offset in range(8192, 32 << 20, 128 << 10)
                  for argument in ('-c', f'write -q -P 7 {offset} 4096')]
        subprocess.run(['qemu-io', '-f', 'qcow2', *writes, guest.disk], check=True)
        # It need not boot.
        guest.domain.createWithFlags(libvirt.VIR_DOMAIN_START_PAUSED)
        guest.images.land()
        own, most, old = open_files(guest).own, os.stat(guest.disk).st_size, f'{guest.disk}.old'
        assert own < 2 << 20 and most > 32 << 20
        with monkeypatch.context() as patched:
            patched.setattr(landing, 'MOST_OWN_BYTES', most - 1)
            assert wanted(guest) is None
            patched.setattr(landing, 'MOST_OWN_BYTES', most)
            assert wanted(guest) is not None
        os.link(guest.disk, old)
        move(guest)
        least = 32 << 20 if qemu_version() < 10 else 8 * own
        assert least < open_files(guest).own <= most
        guest.stop()
        qemu_img('compare', '-f', 'qcow2', '-F', 'qcow2', old, guest.disk)


def test_it_is_evicted_or_another_one_comes_meanwhile(guest):
    """Whatever has the name in that moment reads the same."""
    cache = guest.images.cache
    os.rename(cache, f'{cache}.away')
    with pytest.raises(exception.BootcacheError):
        guest.pivot().begin()
    assert guest.files() == ['disk'] and guest.ask('verify') == 'ok'
    os.rename(f'{cache}.away', cache)
    moved = guest.pivot()
    moved.begin()
    guest.images.land()
    moved.wait_ready(threading.Event())
    moved.finish()
    assert guest.ask('write 1') == 'ok' and guest.ask('verify') == 'ok'
    move(guest)
    assert guest.ask('verify') == 'ok' and guest.ask('check-all') == 'ok'


def test_the_gateway_is_restarted_while_it_is_copied(guest):
    moved = guest.pivot(SLOW)
    moved.begin()
    guest.images.gateway.stop()
    guest.images.serve()
    assert moved.abort() is Overlay.OLD
    move(guest)
    assert guest.ask('verify') == 'ok'


def test_the_server_stops_in_mid_job(guest):
    before, moved = inode(guest), guest.pivot(SLOW)
    moved.begin()
    guest.stop()
    with pytest.raises(pivotstate.PivotFailed):
        moved.finish()
    assert inode(guest) == before and guest.files() == ['disk']
    guest.boot()
    assert guest.ask('verify') == 'ok'


def test_qemu_dies_and_we_do_not(guest):
    before, moved = inode(guest), guest.pivot()
    moved._find_domain = lambda: Dying(guest, 'suspend')
    moved.begin()
    moved.wait_ready(threading.Event())
    with pytest.raises(pivotstate.PivotFailed):
        moved.finish()
    assert inode(guest) == before
    guest.boot()
    assert guest.ask('verify') == 'ok'


def test_without_qemus_lock_nothing_is_begun(guest, monkeypatch):
    monkeypatch.setattr(pivot.tier, 'is_open', lambda _path: False)
    with pytest.raises(pivotstate.PivotRefused, match='no lock'):
        guest.pivot().begin()

    def has_none(_path):
        raise OSError(errno.EOPNOTSUPP, 'no locks')

    monkeypatch.setattr(pivot.tier, 'is_open', has_none)
    with pytest.raises(pivotstate.PivotFailed, match='no locks'):
        guest.pivot().begin()
    assert guest.files() == ['disk']


def test_what_is_open_cannot_be_told(guest, monkeypatch):
    """Nothing is decided then; it is tried again, and a later look puts it right."""
    moved = guest.pivot(SLOW)
    moved.begin()
    for answer in (True, False):
        with monkeypatch.context() as patched:
            patched.setattr(pivot.tier, 'is_open', lambda _path, answer=answer: answer)
            with pytest.raises(pivotstate.PivotFailed, match='hard reboot'):
                pivot.recover(guest.directory, guest.domain)
        assert guest.files() == ['disk', 'disk.settle', 'disk.settle.json']
    assert pivot.recover(guest.directory, guest.domain) is Overlay.OLD


def test_killed_at_any_line_while_the_guest_goes_on(guest):
    lines, whole = guest.child('move', functions=STEPS)
    assert whole and {line.split(':')[0] for line in lines} == set(STEPS)
    outcomes = set()
    for number in range(1, len(lines) + 1):
        before = inode(guest)
        guest.tell('write 1')
        guest.child('move', number, functions=STEPS)
        valid = pivot.recover(guest.directory, guest.domain)
        outcomes.add(valid)
        assert guest.files() == ['disk'] and guest.answer('write') == 'ok'
        assert valid is not Overlay.OLD or inode(guest) == before
        assert valid is not Overlay.NEW or inode(guest) != before
        assert state(guest) == libvirt.VIR_DOMAIN_RUNNING
        assert _has_open(guest, guest.disk)
        assert guest.ask('verify') == 'ok', lines[number - 1]
    assert outcomes == {None, Overlay.OLD, Overlay.NEW}


def _has_open(guest, path):
    """Whether QEMU has the file open that has this name now, and no other overlay."""
    status = os.stat(path)
    opened = []
    for name in os.listdir(f'/proc/{guest.pid}/fd'):
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(f'/proc/{guest.pid}/fd/{name}')
            if os.readlink(f'/proc/{guest.pid}/fd/{name}').startswith(guest.directory):
                opened.append((found.st_dev, found.st_ino))
    return set(opened) == {(status.st_dev, status.st_ino)}


@pytest.mark.parametrize('text, left, phase, name', [
    ('yield', Overlay.OLD, PivotPhase.COPYING, Overlay.NEW),
    ('disk.pivot()', Overlay.OLD, PivotPhase.PIVOTING, Overlay.OLD),
    ('exchange(', Overlay.OLD, PivotPhase.PIVOTING, Overlay.NEW),
    ('PIVOTED', Overlay.NEW, PivotPhase.PIVOTED, Overlay.NEW)])
def test_a_host_that_crashes(guest, text, left, phase, name):
    """QEMU and we die together, after a step; what boots then has all that the guest had synced."""
    number, functions = line_after(guest, text)
    assert guest.ask('write 2') == 'ok'
    _lines, whole = guest.child('move', number, [guest.pid], functions)
    until(lambda: not guest.domain.isActive(), 'the end of QEMU')
    marker = Marker.load(guest.directory)
    assert not whole and marker.phase is phase and marker.lands
    assert pivotstate.which(guest.directory, 'disk', marker) is name
    assert pivot.recover(guest.directory, None) is left
    # As QEMU does when it opens it: refcounts are lazy.
    qemu_img('check', '-r', 'all', '-f', 'qcow2', guest.disk)
    guest.boot()
    assert guest.ask('verify') == 'ok'


@pytest.mark.parametrize('text', ['.suspend()', 'disk.pivot()'])
def test_a_recovery_that_is_killed_at_any_line(guest, text):
    number, functions = line_after(guest, text)
    guest.child('move', number, functions=functions)
    assert state(guest) == libvirt.VIR_DOMAIN_PAUSED
    # Each goes on where the one before it was killed.
    for number in range(1, 200):
        _lines, whole = guest.child('recover', number, functions=(*RECOVERY, '_open_one'))
        if whole:
            break
    assert guest.files() == ['disk'] and state(guest) == libvirt.VIR_DOMAIN_RUNNING
    assert _has_open(guest, guest.disk)
    assert guest.ask('write 2') == 'ok' and guest.ask('verify') == 'ok'
