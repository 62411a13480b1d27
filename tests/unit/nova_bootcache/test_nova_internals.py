"""Fences what is internal in Nova and used by us: an upgrade that changes it fails here first.

When a test fails after an upgrade, read Nova's change, adapt the override, then this list.
"""

import inspect
import pathlib
import re
import threading
from unittest import mock

import libvirt
import pytest
from nova import filters as nova_filters
from nova import objects, utils
from nova import weights as nova_weights
from nova.compute import manager, power_state, resource_tracker, task_states, vm_states
from nova.image import glance
from nova.privsep import path
from nova.scheduler import host_manager
from nova.scheduler import manager as scheduler_manager
from nova.scheduler.weights import ram
from nova.virt import driver as virt_driver
from nova.virt.libvirt import driver, imagebackend, imagecache
from nova.virt.libvirt import host as libvirt_host
from nova.virt.libvirt import utils as libvirt_utils

from bootcache import naming
from bootcache.rpc.messages import WarmOutcome
from nova_bootcache import conf as nova_conf
from nova_bootcache.cache.cachefiles import CacheFiles
from nova_bootcache.gateway.socketfault import GatewaySocket
from nova_bootcache.novadriver import directsnapshots
from nova_bootcache.novadriver.directsnapshots import DirectSnapshots, SnapshottingDriver
from nova_bootcache.novadriver.driver import BootCacheLibvirtDriver
from nova_bootcache.novadriver.imagebackend import BootCacheQcow2
from nova_bootcache.novadriver.novaservers import NovaServers

objects.register_all()

# What each override looks at, which Nova has to give first, under these names. All else it passes
# on as it came: Nova's releases differ in it.
OVERRIDDEN = {
    (BootCacheLibvirtDriver, driver.LibvirtDriver): {
        '__init__': ['virtapi', 'read_only'],
        'init_host': ['host'],
        'spawn': ['context', 'instance'],
        'finish_migration': ['context', 'migration', 'instance'],
        'emit_event': ['event'],
        'cleanup_host': [],
        'destroy': ['context', 'instance'],
        'manage_image_cache': ['context', 'all_instances'],
        'power_off': ['instance'],
        'reboot': ['context', 'instance'],
        '_soft_reboot': ['instance'],
        '_hard_reboot': ['context', 'instance'],
        'get_info': ['instance'],
        'pause': ['instance'],
        'unpause': ['instance'],
        'suspend': ['context', 'instance'],
        'resume': ['context', 'instance'],
        'rescue': ['context', 'instance'],
        'unrescue': ['context', 'instance'],
        'snapshot': ['context', 'instance'],
        'live_migration': ['context', 'instance', 'dest', 'post_method', 'recover_method',
                           'block_migration', 'migrate_data'],
        'post_live_migration_at_destination': ['context', 'instance'],
        'check_can_live_migrate_source': ['context', 'instance'],
        'pre_live_migration': ['context', 'instance'],
        'migrate_disk_and_power_off': ['context', 'instance'],
        'finish_revert_migration': ['context', 'instance'],
        'update_provider_tree': ['provider_tree', 'nodename'],
        'get_available_resource': ['nodename'],
        'cache_image': ['context', 'image_id'],
    },
    (BootCacheQcow2, imagebackend.Qcow2): {
        '__init__': ['instance', 'disk_name', 'path', 'disk_info_mapping'],
        'cache': ['fetch_func', 'filename', 'size', 'safe'],
        'libvirt_info': [],
        'direct_snapshot': ['context', 'snapshot_name', 'image_format', 'image_id',
                            'base_image_id'],
        'cleanup_direct_snapshot': ['location', 'also_destroy_volume', 'ignore_errors'],
    },
    (SnapshottingDriver, driver.LibvirtDriver): {
        '__init__': [],
        'snapshot': ['context', 'instance'],
        '_create_snapshot_metadata': [],
        '_live_snapshot': ['context', 'instance', 'guest'],
    },
}
CASES = [(ours, nova, method) for (ours, nova), methods in OVERRIDDEN.items()
         for method in methods]


@pytest.mark.parametrize('ours, nova, method', CASES)
def test_nova_gives_first_what_an_override_looks_at(ours, nova, method):
    known = OVERRIDDEN[ours, nova][method]
    upstream = list(inspect.signature(getattr(nova, method)).parameters.values())[1:]
    mine = list(inspect.signature(getattr(ours, method)).parameters.values())[1:]
    kinds = inspect.Parameter
    assert [p.name for p in upstream[:len(known)]] == known
    assert [p.name for p in mine if p.kind is kinds.POSITIONAL_OR_KEYWORD] == known
    # What Nova may leave out may be left out here.
    assert [p.default for p in mine[:len(known)]] == [p.default for p in upstream[:len(known)]]
    passed_on = {p.kind for p in mine[len(known):]}
    assert passed_on == ({kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD}
                         if method != '__init__' or ours is not BootCacheQcow2 else set())


@pytest.mark.parametrize('kind, nova, method', [
    (kind, nova, method) for (kind, nova), methods in OVERRIDDEN.items() for method in methods
    if nova is driver.LibvirtDriver and method not in ('__init__', 'init_host')])
def test_what_is_not_looked_at_reaches_nova_as_it_came(kind, nova, method, monkeypatch):
    """An argument of a release that is yet to come, too."""
    got = []
    # As the driver does when it is made.
    nova_conf.register_opts(driver.CONF)
    # A state of a server's, which is none of Nova's.
    answer = mock.MagicMock() if method == 'get_info' else None
    monkeypatch.setattr(
        nova, method, lambda self, *args, **kwargs: got.append((args, kwargs)) or answer)
    ours = BootCacheLibvirtDriver.__new__(BootCacheLibvirtDriver)
    ours._leaving = threading.local()
    # Stands for all that is ours in the driver, where nothing is to be done.
    ours.bootcache = ours.settler = ours.upkeep = ours.warming = ours.standing = mock.MagicMock()
    ours.bootcache.cache.entries.return_value = []
    ours.bootcache.serving.socket = GatewaySocket('/s', '/c')
    ours.bootcache.serving.is_on = False
    ours.standing.is_standing.return_value, ours.standing.let_go_on.return_value = False, True
    ours._disks, ours._is_patient = mock.MagicMock(), False
    ours._disks.waits_for_qemu.return_value, ours._disks.why_half_done.return_value = False, ''
    ours.direct = DirectSnapshots()
    ours.warming.cache_image = lambda image_id, goes_stock, stock: stock()
    known = OVERRIDDEN[kind, nova][method]
    looked_at = [mock.MagicMock(uuid='x', image_ref='') if name == 'instance' else
                 [] if name == 'all_instances' else
                 '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f' if name == 'image_id' else mock.MagicMock()
                 for name in known]
    getattr(ours, method)(*looked_at, 'more', new_in_nova_35='later')
    assert got == [((*looked_at, 'more'), {'new_in_nova_35': 'later'})]


@pytest.mark.parametrize('ours, nova', OVERRIDDEN)
def test_nothing_else_is_overridden(ours, nova):
    shared = {name for name, value in vars(ours).items()
              if callable(value) and hasattr(nova, name)}
    assert shared == set(OVERRIDDEN[ours, nova])


@pytest.mark.parametrize('use_cow, default', [(True, imagebackend.Qcow2),
                                              (False, imagebackend.Flat)])
def test_the_table_of_image_backends(use_cow, default):
    table = imagebackend.Backend(use_cow).BACKEND
    assert type(table) is dict
    assert table['qcow2'] is imagebackend.Qcow2 and table['default'] is default
    # Each has a table of its own, so ours changes nobody else's.
    assert imagebackend.Backend(use_cow).BACKEND is not table


def test_the_driver_has_the_table_where_we_change_it():
    source = inspect.getsource(driver.LibvirtDriver.__init__)
    assert 'self.image_backend = imagebackend.Backend(' in source


def test_our_backend_takes_the_place_of_qcow2_only(monkeypatch, tmp_path):
    def stock(self, virtapi, read_only):
        self.image_backend, self._host = imagebackend.Backend(True), None

    monkeypatch.setattr(driver.LibvirtDriver, '__init__', stock)
    monkeypatch.setattr(imagebackend.CONF, 'instances_path', str(tmp_path))
    # The driver changes it for good; the test gives it back.
    monkeypatch.setattr(libvirt_utils, 'create_image', libvirt_utils.create_image)
    table = BootCacheLibvirtDriver(None).image_backend.BACKEND
    assert issubclass(table['qcow2'], BootCacheQcow2) and table['default'] is table['qcow2']
    fresh = imagebackend.Backend(True).BACKEND
    assert {name: kind for name, kind in table.items() if name not in ('qcow2', 'default')} \
        == {name: kind for name, kind in fresh.items() if name not in ('qcow2', 'default')}


def test_bases_are_named_as_we_name_cache_images():
    for image in ('7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f', '00000000-0000-0000-0000-000000000000'):
        assert imagecache.get_cache_fname(image) == naming.cache_file_name(image)


@pytest.mark.parametrize('group, option, default', [
    (None, 'instances_path', None), (None, 'use_cow_images', True),
    (None, 'preallocate_images', 'none'), ('libvirt', 'images_type', 'default'),
    ('glance', 'verify_glance_signatures', False),
    ('glance', 'enable_certificate_validation', False),
    ('glance', 'default_trusted_certificate_ids', None),
    ('image_cache', 'subdirectory_name', '_base'),
    ('image_cache', 'remove_unused_base_images', True),
    ('image_cache', 'remove_unused_original_minimum_age_seconds', None)])
def test_options_of_novas(group, option, default):
    section = imagebackend.CONF[group] if group else imagebackend.CONF
    value = getattr(section, option)
    assert default is None or value == default


def test_what_the_image_backend_uses():
    signature = inspect.signature(libvirt_utils.get_disk_backing_file)
    assert [(name, each.default) for name, each in signature.parameters.items()] \
        == [('path', inspect.Parameter.empty), ('basename', True), ('format', None)]
    assert list(inspect.signature(imagebackend.Qcow2.resize_image).parameters) == ['self', 'size']
    assert list(inspect.signature(imagebackend.Qcow2.get_disk_size).parameters) == ['self', 'name']
    assert list(inspect.signature(imagebackend.Qcow2.exists).parameters) == ['self']
    assert vm_states.SHELVED_OFFLOADED == 'shelved_offloaded'


def test_the_root_disk_is_made_with_the_images_id():
    """``image_id`` and ``trusted_certs`` reach ``cache`` as named arguments."""
    fetch = inspect.getsource(driver.LibvirtDriver._try_fetch_image_cache)
    assert 'image_id=image_id' in fetch and 'trusted_certs=instance.trusted_certs' in fetch
    root = inspect.getsource(driver.LibvirtDriver._create_and_inject_local_root)
    assert '_try_fetch_image_cache(' in root
    # The fallback where Glance has lost the image names none: there we stay out of the way.
    assert "filename=filename)" in fetch


def test_what_nova_verifies_an_image_by_is_got_before_it_is_downloaded():
    """All that Nova checks but the bytes: signature, certificate, and whom the user trusts."""
    service = glance.GlanceImageServiceV2
    assert isinstance(glance.get_default_image_service(), service)
    assert list(inspect.signature(service._get_verifier).parameters) \
        == ['self', 'context', 'image_id', 'trusted_certs']
    download = inspect.getsource(service.download)
    assert 'verifier = self._get_verifier(context, image_id, trusted_certs)' in download
    rest = download.split('_get_verifier(')[1]
    assert 'trusted_certs' in rest.split(')')[0] and 'trusted_certs' not in rest.split(')', 1)[1]
    root = inspect.getsource(driver.LibvirtDriver._try_fetch_image_cache)
    assert 'context=context' in root


def test_snapshots_on_our_cache_images_only(monkeypatch):
    """Nova's create_image is ours for our backing files, and stock for all others."""
    assert list(inspect.signature(libvirt_utils.create_image).parameters)[:4] \
        == ['path', 'disk_format', 'disk_size', 'backing_file']
    assert 'libvirt_utils.create_image(' in inspect.getsource(driver.LibvirtDriver._live_snapshot)
    stock, ours = [], []
    monkeypatch.setattr(libvirt_utils, 'create_image', lambda *a, **named: stock.append((a, named)))
    monkeypatch.setattr(directsnapshots.qemuimg, 'create_overlay',
                        lambda *a, **named: ours.append(a))
    # Twice, as the driver may be made twice in a process.
    for _ in range(2):
        directsnapshots.allow_on(CacheFiles('/cache'))
    libvirt_utils.create_image('/delta', 'qcow2', '5', backing_file='/cache/abc')
    libvirt_utils.create_image('/delta', 'qcow2', '5', backing_file='/_base/abc', safe=True)
    libvirt_utils.create_image('/delta', 'raw', '5')
    assert ours == [('/delta', 5, '/cache/abc', 'qcow2')]
    assert stock == [
        (('/delta', 'qcow2', '5'), {'backing_file': '/_base/abc', 'safe': True}),
        (('/delta', 'raw', '5'), {})], 'as they came'


def test_novas_loader_finds_us_below_nova_virt():
    source = inspect.getsource(virt_driver.load_compute_driver)
    assert "'nova.virt.%s' % compute_driver" in source
    assert 'read_only' in inspect.signature(driver.LibvirtDriver.__init__).parameters
    assert callable(utils.synchronized)


def test_a_server_that_leaves_is_powered_off_by_the_method_that_names_its_disk():
    source = inspect.getsource(driver.LibvirtDriver.migrate_disk_and_power_off)
    off = source.index('self.power_off(instance, timeout, retry_interval)')
    assert off < source.index('libvirt_utils.copy_image(from_path, img_path')
    # What ends in ERROR or rolls back comes before it.
    assert source.index('InstanceFaultRollback') < off


def test_starting_and_resuming_come_through_the_hard_reboot():
    for method in ('power_on', 'resume_state_on_host_boot'):
        assert 'self._hard_reboot(' in inspect.getsource(getattr(driver.LibvirtDriver, method))


def test_a_hard_reboot_follows_a_soft_one_that_is_not_done():
    """That starts what has ended by itself, of whatever its disk is called by then."""
    assert 'guest.launch()' in inspect.getsource(driver.LibvirtDriver._soft_reboot)
    source = inspect.getsource(driver.LibvirtDriver.reboot)
    assert source.index('if soft_reboot_success:') < source.index('return self._hard_reboot(')


def test_a_hard_reboot_ends_qemu_first_in_the_way_that_ours_does():
    """Of one that has ended by then Nova takes no note."""
    source = inspect.getsource(driver.LibvirtDriver._hard_reboot)
    assert source.index('self.destroy(') < source.index('self._create_guest_with_network(')
    assert 'self._destroy(instance)' in inspect.getsource(driver.LibvirtDriver.destroy)
    source = inspect.getsource(driver.LibvirtDriver._destroy)
    assert 'guest.poweroff()' in source and 'VIR_ERR_OPERATION_INVALID' in source
    assert list(inspect.signature(driver.LibvirtDriver._destroy).parameters) == [
        'self', 'instance']


def test_novas_start_resumes_servers_after_the_drivers_own_start():
    """Which waits until their disks can be opened; one that cannot be resumed goes to ERROR."""
    compute = manager.ComputeManager
    whole = inspect.getsource(compute.init_host)
    assert whole.index('self.driver.init_host(host=self.host)') \
        < whole.index('self._init_instance(context, instance)')
    start = inspect.getsource(compute._init_instance)
    assert 'if expect_running and CONF.resume_guests_state_on_host_boot:' in start
    resume = inspect.getsource(compute._resume_guests_state)
    assert resume.index('self.driver.resume_state_on_host_boot(') \
        < resume.rindex('self._set_instance_obj_error_state(instance)')
    assert vm_states.ERROR in vm_states.ALLOW_HARD_REBOOT


def test_nova_starts_those_that_an_older_version_left_powering_on():
    """It had servers wait in that state; one whose start fails can be rebooted hard."""
    nova = mock.MagicMock(host='host-1')
    nova._get_power_state.return_value = power_state.SHUTDOWN
    nova._retry_reboot.return_value = False, 'HARD'
    server = mock.MagicMock(host='host-1', vm_state=vm_states.ACTIVE,
                            task_state=task_states.POWERING_ON, power_state=power_state.RUNNING)
    manager.ComputeManager._init_instance(nova, None, server)
    nova.start_instance.assert_called_once_with(None, server)
    source = inspect.getsource(manager.ComputeManager)
    before = source[:source.index('    def start_instance(')].splitlines()[-6:]
    assert '    @reverts_task_state' in before, 'it is ACTIVE then'


def test_the_locks_that_settling_takes_are_novas():
    assert utils.synchronized.keywords == {'lock_file_prefix': 'nova-'}
    backend = inspect.getsource(imagebackend.Image)
    assert "self.lock_path = os.path.join(CONF.instances_path, 'locks')" in backend
    assert '@utils.synchronized(filename, external=True, lock_path=self.lock_path)' in backend
    assert '@utils.synchronized(instance.uuid)' in inspect.getsource(
        manager.ComputeManager.stop_instance)


def test_what_settling_and_watching_ask_nova():
    assert 'def last_bytes(path, num):' in inspect.getsource(path)
    conf = imagebackend.CONF
    assert conf.force_raw_images is True and conf.reserved_host_disk_mb == 0
    fields = objects.Instance.fields
    assert {'uuid', 'image_ref', 'task_state', 'vm_state', 'launched_at', 'host',
            'root_device_name'} <= set(fields)
    assert {vm_states.ACTIVE, vm_states.PAUSED, vm_states.STOPPED} == {
        'active', 'paused', 'stopped'}
    assert {task_states.MIGRATING, task_states.RESIZE_MIGRATED, task_states.RESIZE_FINISH} == {
        'migrating', 'resize_migrated', 'resize_finish'}


def test_the_inventory_is_where_we_change_it():
    source = inspect.getsource(driver.LibvirtDriver.update_provider_tree)
    assert 'provider_tree.update_inventory(nodename, result)' in source
    assert "'reserved': CONF.reserved_host_memory_mb" in source


def test_a_new_overlay_is_what_novas_own_would_be():
    """settling/pivot.py makes it: 64 KiB clusters on a raw base, a qcow2 base's own else."""
    source = inspect.getsource(libvirt_utils.create_image)
    assert "'qemu-img', 'create', '-f', disk_format" in source
    assert 'cluster_size' in source


def test_a_connection_to_libvirt_can_be_opened_beside_novas():
    """By libvirt's own driver for tests, which needs no daemon."""
    host = libvirt_host.Host('test:///default')
    nova, beside = host._connect(host._uri, False), NovaServers(host).connect()
    assert beside is not nova and beside.getURI() == 'test:///default'
    assert len(beside.listAllDomains(0)) == 1


# The scheduler.

def test_choices_are_made_where_we_follow_them():
    """scheduler/hostwarmth.py wraps the method; the scheduler calls it on its choice."""
    state = host_manager.HostState
    assert list(inspect.signature(state.consume_from_request).parameters) == ['self', 'spec_obj']
    source = inspect.getsource(scheduler_manager.SchedulerManager._consume_selected_host)
    assert 'selected_host.consume_from_request(spec_obj)' in source
    assert {'host', 'nodename', 'aggregates'} <= set(vars(state('host', 'node', 'cell')))


def test_what_a_driver_publishes_reaches_the_host_states():
    assert 'stats.digest_stats(resources.get(\'stats\'))' in inspect.getsource(
        resource_tracker.ResourceTracker._copy_resources)
    assert 'self.stats = compute.stats or {}' in inspect.getsource(
        host_manager.HostState._update_from_compute_node)


def test_weighers_and_filters_are_what_ours_are_made_for():
    """A weigher of Nova's own reads its multiplier as ours does; a request knows its image."""
    assert inspect.getsource(ram.RAMWeigher.weight_multiplier).count(
        'utils.get_weight_multiplier(') == 1
    assert list(inspect.signature(nova_weights.BaseWeigher.weigh_objects).parameters) \
        == ['self', 'weighed_obj_list', 'weight_properties']
    assert list(inspect.signature(nova_filters.BaseFilter.filter_all).parameters) \
        == ['self', 'filter_obj_list', 'spec_obj']
    assert {'image', 'scheduler_hints'} <= set(objects.RequestSpec.fields)
    assert not {name for name in objects.ImageMetaProps.fields if 'bootcache' in name}, \
        'Nova knows our properties: the filter need not ask Glance any more'


def test_precaching_takes_what_the_driver_answers():
    source = inspect.getsource(manager.ComputeManager.cache_images)
    for word in set(WarmOutcome) - {WarmOutcome.WAITING}:
        assert f"results[image_id] = '{word}'" in source


def test_novas_lock_of_a_server_that_somebody_has_is_not_waited_for():
    servers = NovaServers(None)
    with servers.instance_lock('one'), servers.instance_lock('one', waits=False) as is_free, \
            servers.instance_lock('two', waits=False) as other_is_free:
        assert not is_free and other_is_free
    with servers.instance_lock('one', waits=False) as is_free:
        assert is_free


def test_what_nova_logs_and_masakari_hears_of_servers_that_wait_is_on_the_page():
    page = (pathlib.Path(__file__).parents[3] / 'doc/source/troubleshooting.rst').read_text()
    line = 'Instance is paused unexpectedly. Ignore.'
    assert f'``{line}``' in page
    assert line in ' '.join(inspect.getsource(manager).replace('"', ' ').split())
    # What Masakari's monitor of instances has in its filter, by libvirt's names.
    section = page[page.index('**Masakari**'):].partition('\n\n\n')[0]
    events = re.findall('``(VIR_DOMAIN_EVENT_[A-Z_]+)``', section)
    assert len(events) == 3 and all(hasattr(libvirt, name) for name in events)
