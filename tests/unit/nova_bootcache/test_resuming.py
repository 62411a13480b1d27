"""Servers that Nova resumes as the host comes up wait for what is below their disks.

Nova's record of a server is a stand-in, and time; the driver is our own over Nova's method.
"""

import types

import pytest
from fakes_clock import Clock
from nova import exception as nova_exception
from nova.compute import power_state, task_states, vm_states
from nova.virt.libvirt import driver, imagebackend
from nova.virt.libvirt import utils as libvirt_utils

from bootcache import exception
from nova_bootcache.novadriver import novaservers, resuming
from nova_bootcache.novadriver.driver import BootCacheLibvirtDriver
from nova_bootcache.novadriver.imagebackend import BootCacheQcow2
from nova_bootcache.novadriver.novaservers import NovaServers, PoweringOn
from nova_bootcache.novadriver.resuming import Resuming

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
OTHER = '00000000-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
PATIENCE = 3600
AWAY = exception.StorageNodeAway('the exporter at 10.0.0.1:10810 cannot be reached')


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(resuming, 'time', clock)
    return clock


class Record:
    """Nova's record of a server, with the database's row behind it."""

    def __init__(self, uuid='one', image=IMAGE, **row):
        self.uuid, self.image_ref, self.name = uuid, image, uuid
        self.row = {'vm_state': vm_states.ACTIVE, 'task_state': None, 'host': 'host-1',
                    'power_state': power_state.RUNNING, **row}
        self.saved = []
        self.refresh()

    def refresh(self):
        if self.row is None:
            raise nova_exception.InstanceNotFound(instance_id=self.uuid)
        vars(self).update(self.row)

    def save(self, expected_task_state=None):
        if self.row is None:
            raise nova_exception.InstanceNotFound(instance_id=self.uuid)
        if expected_task_state is not None and self.row['task_state'] not in expected_task_state:
            raise nova_exception.UnexpectedTaskStateError(
                instance_uuid=self.uuid, expected={}, actual={})
        self.row.update({name: getattr(self, name) for name in self.row})
        self.saved.append((self.vm_state, self.task_state))


class Below:
    """What is below disks: opens them, or does not; notes what was tried and started."""

    def __init__(self):
        self.error, self.tried, self.started = AWAY, [], []

    def opens(self, name):
        self.tried.append(name)
        if self.error is not None:
            raise nova_exception.InternalError(f'cannot be opened: {self.error}') from self.error


@pytest.fixture
def below():
    return Below()


@pytest.fixture(autouse=True)
def on_host(monkeypatch):
    monkeypatch.setattr(novaservers.CONF, 'host', 'host-1')


def keeper(places=None):
    keeper = Resuming((places or {}).get, PATIENCE)
    # The thread is not needed: a test looks itself.
    keeper._thread = object()
    return keeper


def waits(keeper, below, record):
    keeper.add(PoweringOn(record, lambda: below.opens(record.uuid),
                          lambda: below.started.append(record.uuid)), AWAY)


def looks(keeper, clock, seconds):
    """Look so often as the thread does."""
    for _ in range(seconds // resuming.PERIOD_SECONDS):
        clock.now += resuming.PERIOD_SECONDS
        keeper.look()


def test_it_is_powering_on_while_it_waits_and_active_then(below, clock, caplog):
    record, resumes = Record(), keeper()
    waits(resumes, below, record)
    assert record.saved == [(vm_states.ACTIVE, task_states.POWERING_ON)]
    looks(resumes, clock, 600)
    assert below.started == [] and len(record.saved) == 1
    below.error = None
    looks(resumes, clock, 60)
    assert below.started == ['one'] and not resumes.has_some()
    assert record.saved[1:] == [(vm_states.ACTIVE, None)]
    told = [entry.getMessage() for entry in caplog.records if 'waits' in entry.getMessage()]
    assert len(told) == 1 and 'server one' in told[0] and '10.0.0.1:10810' in told[0]


def test_it_is_tried_ever_less_often_up_to_once_a_minute(below, clock):
    resumes = keeper()
    waits(resumes, below, Record())
    looks(resumes, clock, 600)
    assert 600 / 60 <= len(below.tried) <= 600 / 60 + 5


def test_it_goes_to_error_when_nobody_comes(below, clock):
    record, resumes = Record(), keeper()
    waits(resumes, below, record)
    looks(resumes, clock, PATIENCE - 60)
    assert record.row['vm_state'] == vm_states.ACTIVE
    looks(resumes, clock, 120)
    assert record.saved[1:] == [(vm_states.ERROR, None)] and not resumes.has_some()


def test_what_does_not_pass_is_told_at_once(below, clock):
    record, resumes = Record(), keeper()
    waits(resumes, below, record)
    below.error = exception.BootcacheError('the image has another content now')
    looks(resumes, clock, 10)
    assert record.row['vm_state'] == vm_states.ERROR and not resumes.has_some()


def test_a_start_that_fails_ends_as_under_stock_nova(below, clock):
    def fail():
        raise nova_exception.NovaException('no such network')

    record, resumes = Record(), keeper()
    resumes.add(PoweringOn(record, lambda: None, fail), AWAY)
    looks(resumes, clock, 10)
    assert record.row['vm_state'] == vm_states.ERROR and record.row['task_state'] is None


@pytest.mark.parametrize('change', [
    {'task_state': task_states.DELETING}, {'host': 'host-2'}, {'task_state': None},
    {'vm_state': vm_states.ERROR}, None], ids=repr)
def test_a_server_of_which_nova_thinks_otherwise_meanwhile_is_left_alone(below, clock, change):
    record, resumes = Record(), keeper()
    waits(resumes, below, record)
    record.row = None if change is None else {**record.row, **change}
    after = record.row and dict(record.row)
    below.error = None
    looks(resumes, clock, 10)
    assert below.started == [] and not resumes.has_some() and record.row == after


def test_one_that_is_deleted_while_it_is_started_fails_nobody(below, clock):
    record, resumes = Record(), keeper()
    resumes.add(PoweringOn(record, lambda: None, lambda: record.row.update(
        task_state=task_states.DELETING)), AWAY)
    looks(resumes, clock, 10)
    assert record.row['task_state'] == task_states.DELETING
    assert record.row['vm_state'] == vm_states.ACTIVE and not resumes.has_some()


def test_one_that_waits_holds_up_no_other(below, clock):
    resumes = keeper({IMAGE: 'node-1', OTHER: 'node-2'})
    for name in ('one', 'two'):
        waits(resumes, below, Record(name))
    other = Below()
    other.error = None
    waits(resumes, other, Record('three', OTHER))
    looks(resumes, clock, 10)
    assert other.started == ['three'] and below.tried.count('two') == 0
    below.error = None
    looks(resumes, clock, 60)
    assert sorted(below.started) == ['one', 'two']


def test_a_storage_node_that_is_away_is_asked_once_a_round(below, clock):
    resumes = keeper({IMAGE: 'node-1', OTHER: 'node-1'})
    waits(resumes, below, Record())
    waits(resumes, below, Record('two', OTHER))
    looks(resumes, clock, resuming.PERIOD_SECONDS)
    assert below.tried == ['one']


def test_a_nova_compute_that_stops_leaves_them_to_the_next_one(below, clock):
    record, resumes = Record(), keeper()
    waits(resumes, below, record)
    resumes.stop()
    below.error = None
    looks(resumes, clock, 60)
    assert below.started == [] and record.row['task_state'] == task_states.POWERING_ON


@pytest.mark.parametrize('row, resumes, after', [
    ({'task_state': task_states.POWERING_ON}, True, None),
    # A user's start that was interrupted: Nova itself tries it again.
    ({'task_state': task_states.POWERING_ON, 'vm_state': vm_states.STOPPED}, True,
     task_states.POWERING_ON),
    ({'task_state': task_states.POWERING_ON}, False, task_states.POWERING_ON),
    ({'task_state': task_states.REBUILDING}, True, task_states.REBUILDING)])
def test_a_nova_compute_that_starts_lets_nova_resume_them_again(monkeypatch, row, resumes, after):
    record = Record(**row)
    monkeypatch.setattr(novaservers.CONF, 'resume_guests_state_on_host_boot', resumes)
    monkeypatch.setattr(novaservers.nova_context, 'get_admin_context', lambda: None)
    monkeypatch.setattr(novaservers.objects.InstanceList, 'get_by_host',
                        lambda *_arguments, **_named: [record])
    NovaServers(None).let_resume_again()
    assert record.row['task_state'] == after
    assert record.row['vm_state'] == row.get('vm_state', vm_states.ACTIVE)
    assert record.row['power_state'] == power_state.RUNNING, 'Nova expects it to run'


# The driver.

@pytest.fixture
def nova(monkeypatch, tmp_path, below):
    def stock(self, virtapi, read_only):
        self.image_backend, self._host = imagebackend.Backend(True), None

    monkeypatch.setattr(driver.LibvirtDriver, '__init__', stock)
    monkeypatch.setattr(driver.LibvirtDriver, 'resume_state_on_host_boot',
                        lambda self, context, instance, *arguments:
                        self._hard_reboot(context, instance, *arguments))
    monkeypatch.setattr(driver.LibvirtDriver, '_hard_reboot',
                        lambda self, context, instance, *arguments: below.started.append(
                            (instance.uuid, arguments)))
    monkeypatch.setattr(imagebackend.CONF, 'instances_path', str(tmp_path))
    monkeypatch.setattr(libvirt_utils, 'create_image', libvirt_utils.create_image)
    monkeypatch.setattr(BootCacheQcow2, 'open_chain',
                        lambda disk, path, patience=0.0, guest_waits=False:
                        below.opens(disk._instance.uuid))
    ours = BootCacheLibvirtDriver(None)
    ours.resuming._thread = object()
    monkeypatch.setattr(ours.settler._nova, 'domain', lambda server_id: None)
    monkeypatch.setattr(libvirt_utils, 'get_disk_backing_file',
                        lambda *_a, **_n: ours.bootcache.cache.path(IMAGE))

    def resume(name='one', **row):
        record = Record(name, **row)
        (tmp_path / name).mkdir()
        (tmp_path / name / 'disk').touch()
        ours.resume_state_on_host_boot(None, record, 'network', 'shares', 'volumes')
        return record

    return types.SimpleNamespace(driver=ours, resume=resume, path=tmp_path)


def test_a_server_that_can_be_started_is(nova, below):
    below.error = None
    record = nova.resume()
    assert below.started == [('one', ('network', 'shares', 'volumes'))] and record.saved == []


def test_a_server_that_cannot_be_started_yet_waits_and_is_started_as_nova_does(nova, below, clock):
    record = nova.resume()
    assert record.row['task_state'] == task_states.POWERING_ON and below.started == []
    below.error = None
    looks(nova.driver.resuming, clock, 10)
    assert below.started == [('one', ('network', 'shares', 'volumes'))]
    assert record.row['task_state'] is None and record.row['vm_state'] == vm_states.ACTIVE


def test_novas_start_does_not_wait_for_each_server_anew(nova, below):
    records = [nova.resume(name) for name in ('one', 'two', 'three')]
    assert below.tried == ['one']
    assert {record.row['task_state'] for record in records} == {task_states.POWERING_ON}


def test_a_settled_server_does_not_wait_with_the_others(nova, below, monkeypatch):
    nova.resume()
    monkeypatch.setattr(libvirt_utils, 'get_disk_backing_file', lambda *_a, **_n: '/_base/x')
    below.error = None
    nova.resume('settled')
    assert [uuid for uuid, _arguments in below.started] == ['settled']


def test_what_does_not_pass_goes_to_nova(nova, below):
    below.error = exception.BootcacheError('another content')
    with pytest.raises(nova_exception.InternalError, match='another content'):
        nova.resume()
    assert not nova.driver.resuming.has_some()


def test_without_patience_it_is_as_it_was(nova, below, monkeypatch):
    monkeypatch.setattr(nova.driver.resuming, '_patience', 0)
    with pytest.raises(nova_exception.InternalError, match='cannot be reached'):
        nova.resume()


@pytest.mark.parametrize('vm_state', [vm_states.RESIZED, vm_states.RESCUED, vm_states.PAUSED])
def test_one_that_is_in_another_state_than_active_goes_novas_way(nova, below, vm_state):
    """Powering on, Nova would not know any more that its resize is to be confirmed."""
    with pytest.raises(nova_exception.InternalError, match='cannot be reached'):
        nova.resume(vm_state=vm_state)
    nova.resume('other')
    with pytest.raises(nova_exception.InternalError, match='cannot be reached'):
        nova.resume('two', vm_state=vm_state)
