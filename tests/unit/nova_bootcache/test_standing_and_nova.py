"""What Nova does with servers whose guests are paused by an error: none of them goes to ERROR.

Nova's methods are noted; libvirt and QEMU are real in tests/functional/test_waiting.py.
"""

import inspect
import threading
import types
from unittest import mock

import libvirt
import pytest
from fakes_standing import CACHE, disk, make_house
from nova import exception as nova_exception
from nova.compute import api, manager, power_state, vm_states
from nova.objects.instance import Instance
from nova.virt import hardware
from nova.virt.libvirt import driver as libvirt_driver
from nova.virt.libvirt import imagebackend

from nova_bootcache import conf as bootcache_nova_conf
from nova_bootcache import libvirtcalls
from nova_bootcache.novadriver import errorpolicy
from nova_bootcache.novadriver.driver import BootCacheLibvirtDriver
from nova_bootcache.novadriver.novaservers import NovaServers
from nova_bootcache.standstill import errorstop

SERVER = '5f0d3e7a-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
STOCK = ('live_migration', 'pre_live_migration', 'post_live_migration_at_destination',
         'check_can_live_migrate_source', 'suspend', 'resume')


@pytest.fixture
def nova(monkeypatch):
    """A driver, what it did, and a server."""
    bootcache_nova_conf.register_opts(imagebackend.CONF)
    ours = BootCacheLibvirtDriver.__new__(BootCacheLibvirtDriver)
    ours.bootcache = ours.settler = mock.MagicMock()
    ours.standing, ours._disks = mock.MagicMock(), mock.MagicMock()
    ours._disks.waits_for_qemu.return_value, ours._disks.why_half_done.return_value = False, ''
    did = []
    for name in STOCK:
        monkeypatch.setattr(libvirt_driver.LibvirtDriver, name,
                            lambda _self, *_more, name=name: did.append(name) or name)
    monkeypatch.setattr(ours, '_open_chain', lambda instance, guest_waits=False: did.append(
        'chain, may be absent' if guest_waits else 'chain'))
    for name in ('comes_back_running', 'has_arrived'):
        getattr(ours.standing, name).side_effect = lambda *_about, name=name: did.append(name)
    return types.SimpleNamespace(driver=ours, did=did, instance=types.SimpleNamespace(
        uuid=SERVER, image_ref=IMAGE, vm_state=vm_states.ACTIVE))


# Live migration.

def test_the_other_host_sees_to_the_chain_before_anything_moves(nova):
    assert nova.driver.pre_live_migration(None, nova.instance, 'more') == 'pre_live_migration'
    assert nova.did == ['pre_live_migration', 'chain']


@pytest.mark.parametrize('stands', [False, True])
def test_a_guest_that_waits_is_not_moved(nova, stands):
    """libvirt would have it paused on the other host as if its user wanted it to."""
    nova.driver.standing.is_standing.return_value = stands
    if stands:
        with pytest.raises(nova_exception.MigrationPreCheckError, match='waits for its disk'):
            nova.driver.check_can_live_migrate_source(None, nova.instance, 'more')
        assert nova.did == []
    else:
        nova.driver.check_can_live_migrate_source(None, nova.instance, 'more')
        assert nova.did == ['check_can_live_migrate_source']


@pytest.mark.parametrize('goes_on', [False, True])
def test_one_that_comes_to_wait_before_it_moves_goes_on_first_or_stays_here(nova, goes_on):
    """An error would put it to ERROR, though its guest goes on by itself."""
    nova.driver.standing.let_go_on.return_value = goes_on
    recovered = mock.Mock()
    nova.driver.live_migration(None, nova.instance, 'there', 'post', recovered, True, 'data')
    assert nova.did == (['live_migration'] if goes_on else [])
    assert recovered.mock_calls == ([] if goes_on else [
        mock.call(None, nova.instance, 'there', 'data')])


def test_nova_takes_an_error_for_one_after_which_the_server_is_in_error():
    """And ends a migration that did not come off by what it hands to the driver."""
    source = inspect.getsource(manager.ComputeManager._do_live_migration)
    assert '_set_instance_obj_error_state' in source
    assert 'self._rollback_live_migration, source_bdms=source_bdms' in source
    parameters = list(inspect.signature(
        manager.ComputeManager._rollback_live_migration).parameters)
    assert parameters[:5] == ['self', 'context', 'instance', 'dest', 'migrate_data']


@pytest.mark.parametrize('vm_state, goes_on', [
    (vm_states.ACTIVE, True), (vm_states.PAUSED, False)])
def test_one_that_arrives_goes_on_unless_its_user_paused_it(nova, vm_state, goes_on):
    """It may have stopped after it was looked at, and before libvirt did."""
    nova.instance.vm_state = vm_state
    nova.driver.post_live_migration_at_destination(None, nova.instance, 'more')
    assert nova.did == ['post_live_migration_at_destination', 'has_arrived'][:1 + goes_on]


# Suspending.

@pytest.mark.parametrize('vm_state, comes_back', [
    (vm_states.ACTIVE, True), (vm_states.PAUSED, False)])
def test_one_that_is_suspended_comes_back_running_unless_its_user_paused_it(
        nova, vm_state, comes_back):
    nova.instance.vm_state = vm_state
    nova.driver.suspend(None, nova.instance)
    assert nova.did == ['suspend', 'comes_back_running'][:1 + comes_back]


@pytest.mark.parametrize('waits', [False, True])
def test_one_that_is_resumed_comes_back_running_and_waits_for_its_base(nova, waits):
    """Also one that had come, running, from a host with stock Nova's driver."""
    nova.instance.vm_state = vm_states.SUSPENDED
    nova.driver.standing.comes_back_running.side_effect = lambda *_about: nova.did.append(
        'comes_back_running') or waits
    nova.driver.resume(None, nova.instance, 'more')
    assert nova.did == ['comes_back_running', 'chain, may be absent' if waits else 'chain',
                        'resume']
    assert nova.driver.standing.comes_back_running.call_args.args[1] is errorpolicy.with_policies
    nova.driver._disks.stands_on_cache_image.return_value = False
    nova.driver.resume(None, nova.instance, 'more')
    assert nova.driver.standing.comes_back_running.call_args.args[1] is None


def test_one_that_cannot_be_resumed_stays_suspended(nova, monkeypatch):
    """Another error would put it to ERROR: Nova's manager tells them apart."""
    def busy(_instance, guest_waits):
        raise nova_exception.InternalError('the gateway is busy')

    monkeypatch.setattr(nova.driver, '_open_chain', busy)
    with pytest.raises(nova_exception.InstanceFaultRollback) as caught:
        nova.driver.resume(None, nova.instance)
    assert isinstance(caught.value.inner_exception, nova_exception.InternalError)
    assert 'resume' not in nova.did
    source = inspect.getsource(manager.ComputeManager.resume_instance)
    assert '_error_out_instance_on_exception' in source \
        and 'instance_state=instance.vm_state' in source


class Looks:
    """Nova's looks at a guest that never runs; a test that would wait for it fails."""

    def __init__(self, most):
        self._most, self.seen = most, 0

    def get_guest(self, _instance):
        self.seen += 1
        assert self.seen <= self._most, 'Nova waits until the storage node is back'
        return self

    def get_info(self, _host):
        return hardware.InstanceInfo(power_state.PAUSED, 7)


def test_a_hard_reboot_ends_with_a_guest_that_stood_still_before_nova_looked(nova, monkeypatch):
    """Starting a server, and Nova's own start, come there too. With Nova's own code and pauses."""
    ours, made = nova.driver, []
    ours.standing, ours._host = make_house(monkeypatch).standing, Looks(1)
    monkeypatch.setattr(ours.standing, 'is_standing', lambda server_id: server_id == SERVER)
    for name in ('_get_all_assigned_mediated_devices', 'destroy', '_get_guest_xml',
                 '_build_device_metadata'):
        monkeypatch.setattr(ours, name, mock.MagicMock())
    # Nova before 2026.1 does not ask for it.
    monkeypatch.setattr(ours, '_get_existing_guest_config', mock.MagicMock(), raising=False)
    monkeypatch.setattr(ours, '_create_guest_with_network', lambda *_, **_more: made.append('it'))
    monkeypatch.setattr(libvirt_driver, 'libvirt_utils', mock.MagicMock())
    monkeypatch.setattr(libvirt_driver, 'blockinfo', mock.MagicMock())
    monkeypatch.setattr(libvirt_driver.fileutils, 'ensure_tree', lambda _path: None)
    context = types.SimpleNamespace(auth_token=None)
    instance = mock.MagicMock(uuid=SERVER, **{'flavor.extra_specs': {}})
    instance.__getitem__.side_effect = {'uuid': SERVER}.get
    required = [parameter for parameter in inspect.signature(
        libvirt_driver.LibvirtDriver._hard_reboot).parameters.values()
        if parameter.default is parameter.empty][3:]
    ours._hard_reboot(context, instance, *[mock.MagicMock() for _parameter in required])
    assert made == ['it'] and ours._host.seen == 1
    ours._host = Looks(2)
    assert ours.get_info(instance).state == power_state.PAUSED, 'as users see it from then on'


@pytest.mark.parametrize('state, stands, starts, shown', [
    (power_state.RUNNING, False, True, power_state.RUNNING),
    (power_state.PAUSED, True, True, power_state.RUNNING),
    (power_state.PAUSED, True, False, power_state.PAUSED),
    # As its user wants it to.
    (power_state.PAUSED, False, True, power_state.PAUSED),
    (power_state.SHUTDOWN, True, True, power_state.SHUTDOWN)])
def test_one_that_stands_still_as_soon_as_it_is_started_has_been_started(
        nova, monkeypatch, state, stands, starts, shown):
    """Nova would wait until the storage node is back."""
    instance = Instance(uuid=SERVER)
    nova.driver.standing = standing = make_house(monkeypatch).standing
    monkeypatch.setattr(standing, 'is_standing', lambda server_id: server_id == SERVER and stands)
    monkeypatch.setattr(libvirt_driver.LibvirtDriver, 'get_info',
                        lambda _self, _instance: hardware.InstanceInfo(state, 7))
    with standing.starting(SERVER if starts else 'another one'), standing.starting('b'):
        # Of two of one server, as of a soft reboot that becomes a hard one, the first ends last.
        with standing.starting(SERVER if starts else 'b'):
            pass
        found = nova.driver.get_info(instance)
    assert (found.state, found.internal_id) == (shown, 7)
    assert nova.driver.get_info(instance).state == state


@pytest.mark.parametrize('method', ['resume', '_soft_reboot', 'finish_migration',
                                    'finish_revert_migration'])
def test_nova_waits_so_for_what_it_starts(method):
    source = inspect.getsource(getattr(libvirt_driver.LibvirtDriver, method))
    assert 'self._wait_for_running' in source


@pytest.mark.parametrize('method', ['_wait_for_running', 'spawn', '_hard_reboot'])
def test_what_nova_waits_by_is_what_it_is_told_of_a_guest(method):
    source = inspect.getsource(getattr(libvirt_driver.LibvirtDriver, method))
    assert 'self.get_info(instance).state' in source and 'power_state.RUNNING' in source


@pytest.mark.parametrize('method', ['spawn', 'finish_migration', 'reboot', '_hard_reboot',
                                    'resume', 'finish_revert_migration'])
def test_whatever_starts_a_server_says_so(nova, monkeypatch, method):
    seen = []
    monkeypatch.setattr(libvirt_driver.LibvirtDriver, method, lambda *_: seen.append(
        nova.driver.standing.starting.call_args.args))
    nova.driver.bootcache.serving.socket.start = lambda _server, start, _otherwise: start()
    monkeypatch.setattr('nova_bootcache.novadriver.driver.libvirt_utils', mock.MagicMock())
    monkeypatch.setattr('nova_bootcache.novadriver.driver.os.path', mock.MagicMock())
    monkeypatch.setattr(nova.driver, '_open_chain', mock.MagicMock())
    before = [None] * (2 if method == 'finish_migration' else 1)
    getattr(nova.driver, method)(*before, nova.instance)
    assert seen == [(SERVER,)]


def test_nova_suspends_active_servers_and_waits_until_they_run_again():
    source = inspect.getsource(libvirt_driver.LibvirtDriver.resume)
    assert '_wait_for_running' in source and 'timer.start(interval=0.5).wait()' in source
    assert ('@check_instance_state(vm_state=[vm_states.ACTIVE])\n    def suspend('
            in inspect.getsource(api.API))


# What is done with libvirt's domains.

@pytest.fixture
def house(monkeypatch):
    return make_house(monkeypatch)


@pytest.mark.parametrize('policies, is_active, sees', [
    ("error_policy='stop' rerror_policy='stop'", True, False), ('', True, True),
    ('', False, False)])
def test_a_guest_that_was_started_before_sees_errors(house, monkeypatch, policies, is_active, sees):
    """What is off is given the policies when it is started."""
    domain = house.stands('a', xml=disk(policies=policies))
    domain.ID = lambda: 7 if is_active else -1  # libvirt's name
    monkeypatch.setattr(NovaServers, 'connect', lambda _servers: house.connect())
    servers = NovaServers(None)
    assert servers.sees_errors('a') is sees
    assert servers.sees_errors('gone') is False
    domain.ID = lambda: 1 / 0
    assert servers.sees_errors('a') is False


def test_that_a_guest_waits_is_asked_once_a_run_and_nobody_waits_for_its_qemu(house, monkeypatch):
    domain, asked, over = house.stands('a'), [], threading.Event()
    domain.ID = lambda: 7
    monkeypatch.setattr(domain, 'XMLDesc', lambda _flags: asked.append(1) or domain.xml)
    monkeypatch.setattr(NovaServers, 'connect', lambda _servers: house.connect())
    monkeypatch.setattr(libvirtcalls, 'SECONDS', 0.05)
    servers = NovaServers(None)
    assert [servers.sees_errors('a') for _look in range(3)] == [False] * 3 and len(asked) == 1
    # The next run is another one, and its QEMU hangs.
    domain.ID = lambda: 8
    monkeypatch.setattr(domain, 'XMLDesc', lambda _flags: over.wait(60))
    assert servers.sees_errors('a') is False and len(servers._calls._left) == 1
    over.set()


USER = libvirt.VIR_DOMAIN_PAUSED_USER


def test_a_saved_guest_is_noted_as_one_that_ran(house):
    """libvirt notes of one that was paused that it did not."""
    domain = house.stands('a')
    house.standing.comes_back_running('a')
    assert domain.redefined == []
    domain.saved = '<domain/>'
    house.standing.comes_back_running('a')
    assert domain.redefined == [('<domain/>', libvirt.VIR_DOMAIN_SAVE_RUNNING)]


def test_a_guest_that_saw_errors_as_it_was_suspended_waits_when_it_is_resumed(house):
    """As one that came, running, from a host with stock Nova's driver."""
    domain = house.stands('a', xml=disk(policies=''))
    domain.saved = domain.xml
    assert not house.standing.comes_back_running('a') and domain.redefined == []
    assert house.standing.comes_back_running('a', errorpolicy.with_policies)
    (description, flags), = domain.redefined
    assert errorstop.waits_at(description) == {'vda': CACHE}
    assert flags == libvirt.VIR_DOMAIN_SAVE_RUNNING
    # Of one without a disk of ours nothing is changed but that it runs.
    other = house.stands('b', xml="<disk type='file' device='cdrom'/>")
    other.saved = other.xml
    assert not house.standing.comes_back_running('b', errorpolicy.with_policies)
    assert other.redefined == [(other.xml, libvirt.VIR_DOMAIN_SAVE_RUNNING)]


def test_one_that_was_not_saved_waits_if_it_is_described_so(house):
    """As its memory was lost: it is started anew."""
    house.stands('a')
    house.stands('b', xml=disk(policies=''))
    assert house.standing.comes_back_running('a', errorpolicy.with_policies)
    assert not house.standing.comes_back_running('b', errorpolicy.with_policies)


def test_a_guest_goes_on_that_stood_still_as_it_came(house):
    """For libvirt of this host its user wants it so."""
    domain = house.stands('a', reason=USER)
    house.standing.has_arrived('a')
    assert len(domain.resumed) == 1 and domain.now[0] == libvirt.VIR_DOMAIN_RUNNING
    house.standing.has_arrived('a')
    assert len(domain.resumed) == 1


@pytest.mark.parametrize('work', ['comes_back_running', 'has_arrived'])
def test_servers_of_stock_novas_are_left_as_they_are(house, work):
    domain = house.stands('a', reason=USER, xml=disk(policies=''))
    domain.saved = '<domain/>'
    getattr(house.standing, work)('a')
    getattr(house.standing, work)('gone')
    assert domain.redefined == domain.resumed == []


@pytest.mark.parametrize('work', ['comes_back_running', 'has_arrived'])
def test_a_libvirt_that_refuses_fails_no_operation_of_novas(house, work, caplog):
    domain = house.stands('a', reason=USER)

    def refuses(_flags):
        raise libvirt.libvirtError('not now')
    domain.XMLDesc = refuses
    getattr(house.standing, work)('a')
    assert 'server a' in caplog.text and 'not now' in caplog.text
