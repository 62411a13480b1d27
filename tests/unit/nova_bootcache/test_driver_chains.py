"""What becomes of Nova's operations where a server's disk cannot be told, and of disks that leave.

The driver is our own, with Nova's methods noted; libvirt knows no domain.
"""

import inspect
import os
import threading
import types

import pytest
from nova import exception as nova_exception
from nova.virt.libvirt import driver, imagebackend
from nova.virt.libvirt import utils as libvirt_utils

from bootcache import exception, qemuimg
from nova_bootcache.novadriver.driver import BootCacheLibvirtDriver
from nova_bootcache.novadriver.imagebackend import BootCacheQcow2
from nova_bootcache.settling import hanging
from nova_bootcache.settling.pivotstate import (
    DISK,
    MARKER,
    SPARE,
    Marker,
    PivotConflict,
    PivotFailed,
    PivotPhase,
)
from nova_bootcache.standstill import errorstop

SERVER = '5f0d3e7a-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
STOCK = {'_hard_reboot': 4, 'resume': 3, 'rescue': 7, 'unrescue': 2, 'snapshot': 4,
         'migrate_disk_and_power_off': 5, 'finish_revert_migration': 4}
OPENING = sorted(set(STOCK) - {'migrate_disk_and_power_off'})


@pytest.fixture
def nova(monkeypatch, tmp_path):
    """The driver; what Nova's own methods are called for is in ``did``."""
    def stock(self, virtapi, read_only):
        self.image_backend, self._host = imagebackend.Backend(True), None

    did = []
    monkeypatch.setattr(driver.LibvirtDriver, '__init__', stock)
    for name in STOCK:
        monkeypatch.setattr(driver.LibvirtDriver, name,
                            lambda *_arguments, name=name: did.append(name))
    monkeypatch.setattr(imagebackend.CONF, 'instances_path', str(tmp_path))
    monkeypatch.setattr(libvirt_utils, 'create_image', libvirt_utils.create_image)
    monkeypatch.setattr(BootCacheQcow2, 'open_chain',
                        lambda disk, path, patience, guest_waits: did.append(
                            f'open {os.path.relpath(path, tmp_path)}'))
    ours = BootCacheLibvirtDriver(None)
    monkeypatch.setattr(ours.settler._nova, 'bounded_domain', lambda *_about, **_how: None)
    instance = types.SimpleNamespace(uuid=SERVER, image_ref=IMAGE, name='instance-1',
                                     vm_state='active')
    (tmp_path / SERVER).mkdir()

    def do(name):
        arguments = [None] * STOCK[name]
        arguments[0 if name == 'unrescue' else 1] = instance
        if name == 'unrescue':
            arguments = [None, instance]
        getattr(ours, name)(*arguments)

    return types.SimpleNamespace(driver=ours, did=did, do=do, instance=instance,
                                 directory=tmp_path / SERVER)


def leave(directory, phase, names, ran_on=False):
    """What a crash leaves: overlays under names, and the marker."""
    inodes = {}
    for name, overlay in zip((DISK, SPARE), names, strict=True):
        (directory / name).write_text(overlay)
        inodes[overlay] = os.stat(directory / name).st_ino
    Marker(phase, 'vda', '/base', 'raw', inodes['old'], inodes['new']).save(str(directory))
    if ran_on:
        late = os.stat(directory / MARKER).st_mtime + 3600
        os.utime(directory / names_of(directory, 'new'), (late, late))


def names_of(directory, overlay):
    return next(name for name in (DISK, SPARE) if (directory / name).read_text() == overlay)


def state(directory):
    return {path.name: (path.read_bytes(), path.stat().st_ino, path.stat().st_mtime_ns)
            for path in directory.iterdir()}


@pytest.fixture(params=['conflict', 'unreadable'])
def untold(nova, request):
    """A server of which cannot be told which disk is the right one."""
    leave(nova.directory, PivotPhase.PIVOTING, ('new', 'old'), ran_on=True)
    if request.param == 'unreadable':
        (nova.directory / MARKER).write_text('{')
    return nova


@pytest.mark.parametrize('operation', OPENING)
def test_a_disk_that_cannot_be_told_is_not_opened(untold, operation):
    before = state(untold.directory)
    # One that is resumed stays suspended by that.
    expected = nova_exception.InstanceFaultRollback if operation == 'resume' \
        else nova_exception.InternalError
    with pytest.raises(expected, match=f'{SERVER} cannot be told') as caught:
        untold.do(operation)
    assert str(untold.directory) in str(caught.value), 'what an operator has to look at'
    assert untold.did == [] and state(untold.directory) == before
    assert not untold.driver.bootcache.needs.is_operated(SERVER), 'Nova is done with it'


def test_a_disk_that_cannot_be_told_does_not_leave(untold):
    """Nova takes such an error for one that changed nothing: the server is not in ERROR."""
    before = state(untold.directory)
    with pytest.raises(nova_exception.InstanceFaultRollback) as caught:
        untold.do('migrate_disk_and_power_off')
    assert isinstance(caught.value.inner_exception, nova_exception.InternalError)
    assert SERVER in str(caught.value)
    assert untold.did == [] and state(untold.directory) == before


@pytest.mark.parametrize('operation', STOCK)
@pytest.mark.parametrize('phase, names, right', [
    (PivotPhase.COPYING, ('new', 'old'), 'old'), (PivotPhase.PIVOTED, ('old', 'new'), 'new'),
    (PivotPhase.PIVOTING, ('old', 'new'), 'old')])
def test_a_disk_that_can_be_told_is_put_right_first(nova, operation, phase, names, right):
    leave(nova.directory, phase, names)
    nova.do(operation)
    assert (nova.directory / DISK).read_text() == right
    assert not {SPARE, MARKER} & set(os.listdir(nova.directory))
    opened = [f'open {SERVER}/disk'] if operation in OPENING else []
    assert nova.did == [*opened, operation]


@pytest.mark.parametrize('operation', STOCK)
def test_a_qemu_that_does_not_answer_is_ended_by_a_hard_reboot_only(nova, operation, monkeypatch):
    """And before the disk is opened: which one is right is known then. Others change nothing."""
    leave(nova.directory, PivotPhase.COPYING, ('new', 'old'))
    before = state(nova.directory)

    class Hanging:
        isActive = staticmethod(lambda: 1)  # libvirt's name

        def __getattr__(self, name):
            raise exception.LibvirtHangs('its QEMU does not answer libvirt')

    def destroy(_driver, instance):
        nova.did.append('_destroy')
        monkeypatch.setattr(nova.driver.settler._nova, 'bounded_domain',
                            lambda *_about, **_how: None)
    monkeypatch.setattr(driver.LibvirtDriver, '_destroy', destroy)
    monkeypatch.setattr(nova.driver.settler._nova, 'bounded_domain',
                        lambda *_about, **_how: Hanging())
    if operation == '_hard_reboot':
        nova.do(operation)
        assert nova.did == ['_destroy', f'open {SERVER}/disk', '_hard_reboot']
        assert (nova.directory / DISK).read_text() == 'old'
        assert not {SPARE, MARKER} & set(os.listdir(nova.directory))
        return
    with pytest.raises((nova_exception.InternalError, nova_exception.InstanceFaultRollback),
                       match='does not answer libvirt'):
        nova.do(operation)
    assert nova.did == [] and state(nova.directory) == before


@pytest.fixture
def half_done(nova, monkeypatch):
    """A server with a block job that does not end; it may not be moved nor started from its disk.

    Gives what is appended to once the job has ended.
    """
    leave(nova.directory, PivotPhase.COPYING, ('new', 'old'))
    ended, recover = [], nova.driver.settler.recover_server

    def recover_server(directory):
        if not ended:
            raise exception.BlockJobStalls('its block job does not end')
        recover(directory)
    monkeypatch.setattr(nova.driver._disks, '_recover_server', recover_server)
    return ended


@pytest.mark.parametrize('ends', [True, False])
def test_a_soft_reboot_starts_no_disk_that_has_another_ones_name(nova, half_done, monkeypatch,
                                                                 ends):
    """A hard one follows in Nova."""
    monkeypatch.setattr(driver.LibvirtDriver, '_soft_reboot', lambda *_arguments: True)
    half_done.extend([1] * ends)
    assert nova.driver._soft_reboot(nova.instance) is ends


@pytest.mark.parametrize('error, goes_on', [
    (exception.LibvirtHangs, False), (exception.TooManyCalls, False), (PivotConflict, False),
    (PivotFailed, False), (exception.BlockJobStalls, True)])
def test_a_paused_guest_goes_on_only_with_a_disk_that_is_known(nova, monkeypatch, error, goes_on):
    """What it wrote to another one would be lost. A copy that does not end is no matter."""
    def fails(*_arguments):
        raise error('it hangs')
    monkeypatch.setattr(driver.LibvirtDriver, 'unpause',
                        lambda *_arguments: nova.did.append('unpause'))
    leave(nova.directory, PivotPhase.PIVOTING, ('old', 'new'))
    monkeypatch.setattr(hanging.pivot, 'recover', fails)
    if goes_on:
        nova.driver.unpause(nova.instance)
        assert nova.did == ['unpause']
        return
    with pytest.raises(nova_exception.InternalError, match=r'stays paused for now.* it hangs'):
        nova.driver.unpause(nova.instance)
    assert nova.did == []


@pytest.mark.parametrize('ends', [True, False])
def test_one_whose_block_job_does_not_end_is_not_migrated(nova, half_done, monkeypatch, caplog,
                                                          ends):
    """libvirt would refuse it, and Nova put the server to ERROR."""
    half_done.extend([1] * ends)
    monkeypatch.setattr(nova.driver.standing, 'let_go_on', lambda *_arguments: True)
    monkeypatch.setattr(driver.LibvirtDriver, 'live_migration',
                        lambda *_arguments: nova.did.append('live_migration'))
    nova.driver.live_migration(None, nova.instance, 'other', None,
                               lambda *_arguments: nova.did.append('recovered'))
    assert nova.did == (['live_migration'] if ends else ['recovered'])
    assert ends or 'does not end' in caplog.text


@pytest.fixture
def opened(nova, monkeypatch):
    """How disks are opened: patience, and whether their guests wait for the base."""
    found = []
    monkeypatch.setattr(BootCacheQcow2, 'open_chain',
                        lambda _disk, _path, patience, guest_waits: found.append(
                            (patience, guest_waits)))
    (nova.directory / DISK).touch()
    return found


def test_operations_wait_once_novas_start_is_over(nova, opened, monkeypatch):
    """Nova's start works on one server after the other."""
    monkeypatch.setattr(driver.LibvirtDriver, 'get_available_resource',
                        lambda *_arguments: {'stats': {}})
    nova.do('_hard_reboot')
    nova.driver.get_available_resource('node')
    for operation in OPENING:
        nova.do(operation)
    assert [patience for patience, _waits in opened] == [0, *[60] * len(OPENING)]


# Whose guests Nova describes anew, so that they wait for their disks.
DESCRIBED = ('_hard_reboot', 'finish_revert_migration', 'rescue')


@pytest.mark.parametrize('operation', OPENING)
def test_a_guest_that_waits_for_its_disk_needs_no_storage_node_to_start(nova, opened, operation):
    """One that goes on from a description that does not say so does, and what reads as no guest."""
    nova.do(operation)
    assert opened == [(0, operation in DESCRIBED)]


@pytest.mark.parametrize('is_ours', [True, False])
@pytest.mark.parametrize('policies', ["error_policy='stop' rerror_policy='stop'", ''])
def test_a_guest_that_is_unrescued_waits_for_its_disk(nova, opened, monkeypatch, policies, is_ours):
    """Nova starts what libvirt had of it, which may be stock Nova's of another host."""
    monkeypatch.setattr(BootCacheQcow2, 'stands_on_cache_image', lambda _disk: is_ours)
    kept = nova.directory / 'unrescue.xml'
    kept.write_text(f"""<domain><uuid>{SERVER}</uuid><devices><disk type='file'>
        <driver name='qemu' type='qcow2' cache='none' {policies}/>
        <source file='{nova.directory}/disk'/><target dev='vda'/></disk></devices></domain>""")
    kept.chmod(0o640)
    before = kept.read_text()
    nova.do('unrescue')
    assert opened == [(0, is_ours)] and nova.did == ['unrescue']
    assert bool(errorstop.waits_at(kept.read_text())) is (is_ours or bool(policies))
    assert SERVER in kept.read_text() and "cache=" in kept.read_text()
    assert (kept.read_text() == before) is (bool(policies) or not is_ours)
    assert kept.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize('text', [None, 'no XML', '<domain><devices/></domain>'])
def test_a_description_that_nova_did_not_keep_makes_nobody_wait(nova, opened, monkeypatch, text):
    monkeypatch.setattr(BootCacheQcow2, 'stands_on_cache_image', lambda _disk: True)
    if text is not None:
        (nova.directory / 'unrescue.xml').write_text(text)
    nova.do('unrescue')
    assert opened == [(0, False)]


def test_nova_keeps_that_description_there():
    source = inspect.getsource(driver.LibvirtDriver.rescue)
    assert "'unrescue.xml'" in source and 'self._get_existing_domain_xml(' in source
    source = inspect.getsource(driver.LibvirtDriver.unrescue)
    assert "'unrescue.xml'" in source and 'self._create_guest(context, xml, instance)' in source


def test_a_reverted_resize_opens_the_disk_where_it_was_kept(nova):
    kept = nova.directory.rename(f'{nova.directory}_resize')
    leave(kept, PivotPhase.COPYING, ('new', 'old'))
    nova.do('finish_revert_migration')
    assert (kept / DISK).read_text() == 'old'
    assert not {SPARE, MARKER} & set(os.listdir(kept))
    assert nova.did == [f'open {SERVER}_resize/disk', 'finish_revert_migration']


@pytest.mark.parametrize('operation', [
    'destroy', 'power_off', 'reboot', '_hard_reboot', 'pause', 'unpause', 'suspend', 'resume',
    'rescue', 'unrescue', 'snapshot', 'live_migration', 'migrate_disk_and_power_off',
    'finish_revert_migration', 'spawn', 'finish_migration'])
def test_settling_is_kept_away_from_a_server_while_nova_works_on_it(nova, operation, monkeypatch):
    """A pivot that ends would let a guest go on that Nova has just paused.

    And what the server's disk needs stays here until Nova is done with it.
    """
    held, needs = [], nova.driver.bootcache.needs
    monkeypatch.setattr(driver.LibvirtDriver, operation, lambda *_arguments: held.append(
        needs.is_operated(SERVER)))
    before = [None] * {'power_off': 0, 'pause': 0, 'unpause': 0, 'finish_migration': 2}.get(
        operation, 1)
    after = [None] * 3 * (operation == 'live_migration')
    getattr(nova.driver, operation)(*before, nova.instance, *after)
    assert held == [True] and not needs.is_operated(SERVER)


def test_a_pause_that_comes_while_a_server_is_moved_waits_for_its_end(nova, monkeypatch):
    """Nova takes no lock of its own for it."""
    settler, moved, found = nova.driver.settler, threading.Event(), []
    asked = threading.Event()
    give_up = settler._give_up
    monkeypatch.setattr(settler, '_give_up', lambda server_id: (asked.set(), give_up(server_id)))
    monkeypatch.setattr(driver.LibvirtDriver, 'pause',
                        lambda self, instance: found.append(moved.is_set()))
    pause = threading.Thread(target=nova.driver.pause, args=(nova.instance,))
    with settler._steps.of(SERVER):
        pause.start()
        assert asked.wait(60)
        moved.set()
    pause.join(60)
    assert found == [True]


def test_a_server_without_a_disk_gets_no_disk_info(nova):
    """Nova's image backend writes it as soon as it is asked for a disk."""
    nova.do('_hard_reboot')
    assert nova.did == ['_hard_reboot'] and os.listdir(nova.directory) == []


# Disks that leave.

def backend(nova, path):
    disk = nova.driver.image_backend.by_name(nova.instance, 'disk')
    assert isinstance(disk, BootCacheQcow2)
    disk.path = str(path)
    return disk


@pytest.fixture
def pointed(monkeypatch):
    """Notes which headers are rewritten."""
    changes = []
    monkeypatch.setattr(qemuimg, 'set_backing_pointer',
                        lambda *arguments: changes.append(arguments))
    return changes


def test_a_server_without_a_disk_leaves_as_it_is(nova, pointed, monkeypatch):
    """It boots from a volume: there is no file to look into."""
    def look(*_arguments, **_named):
        raise AssertionError('there is none')

    monkeypatch.setattr(libvirt_utils, 'get_disk_backing_file', look)
    backend(nova, nova.directory / DISK).name_stock_base()
    assert pointed == [] and not (nova.directory / DISK).exists()


@pytest.mark.parametrize('backing', ['{tmp}/_base/abc', None])
def test_a_disk_that_is_not_ours_leaves_as_it_is(nova, pointed, monkeypatch, tmp_path, backing):
    (nova.directory / DISK).touch()
    monkeypatch.setattr(libvirt_utils, 'get_disk_backing_file',
                        lambda *_a, **_n: backing and backing.format(tmp=tmp_path))
    backend(nova, nova.directory / DISK).name_stock_base()
    assert pointed == []


def test_a_disk_of_ours_leaves_under_novas_name(nova, pointed, monkeypatch, tmp_path):
    (nova.directory / DISK).touch()
    cache_image = nova.driver.bootcache.cache.path(IMAGE)
    monkeypatch.setattr(libvirt_utils, 'get_disk_backing_file', lambda *_a, **_n: cache_image)
    backend(nova, nova.directory / DISK).name_stock_base()
    base = tmp_path / '_base' / os.path.basename(cache_image)
    assert pointed == [(str(nova.directory / DISK), str(base), 'raw')]
