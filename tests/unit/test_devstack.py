"""The devstack plugin: shellcheck, and each phase run in bash against stand-ins for devstack.

The stand-ins write down how they were called. ``sudo`` runs its command, as all paths are below the
test's own directory.
"""

import os
import shutil
import subprocess

import pytest
from devstack_node import ALL, PLUGIN, SETTINGS, TOP, Devstack, names, settings_of
from nova.conf import CONF

from bootcache import conf as shared_conf
from glance_bootcache import conf as glance_conf
from nova_bootcache import conf as nova_conf
from nova_bootcache.scheduler.filters import BootCacheFilter
from nova_bootcache.scheduler.weights import BootCacheWeigher


@pytest.mark.skipif(not shutil.which('shellcheck'), reason='shellcheck is not installed')
def test_shellcheck():
    done = subprocess.run(['shellcheck', '-x', str(PLUGIN), str(SETTINGS)], capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(('services', 'wanted'), [
    (ALL, ['g-bootcache', 'n-bootcache-gateway']), ('n-cpu', ['n-bootcache-gateway']),
    ('g-api', ['g-bootcache']), ('horizon', [])])
def test_services_follow_the_node(tmp_path, services, wanted):
    calls = Devstack(tmp_path, services).run('unstack')
    assert names(calls, 'enable_service') == wanted
    assert names(calls, 'define_plugin') == ['bootcache']


@pytest.mark.parametrize('phase', ['pre-install', 'install', 'post-config', 'extra',
                                   'test-config'])
def test_a_node_without_our_services_is_left_alone(tmp_path, phase):
    calls = Devstack(tmp_path, 'horizon').run('stack', phase)
    assert [call[0] for call in calls] == ['define_plugin']


def test_pre_install_packages(tmp_path):
    calls = Devstack(tmp_path, 'n-cpu').run('stack', 'pre-install')
    packages = {name for call in calls if call[0] == 'install_package' for name in call[1:]}
    assert packages == {'qemu-utils', 'qemu-system-common'}


def test_pre_install_packages_of_a_storage_node(tmp_path):
    calls = Devstack(tmp_path, 'g-api').run('stack', 'pre-install')
    packages = {name for call in calls if call[0] == 'install_package' for name in call[1:]}
    assert 'python3-libnbd' in packages


def test_pre_install_refuses_other_distributions(tmp_path):
    calls = Devstack(tmp_path, ALL, DISTRIBUTION='other').run('stack', 'pre-install', check=False)
    assert calls[-1][0] == 'die'


def test_install_goes_through_pip_and_leaves_nova_whole(tmp_path):
    devstack = Devstack(tmp_path, ALL)
    calls = devstack.run('stack', 'install')
    assert names(calls, 'pip_install') == [str(devstack.source)]
    assert not names(calls, 'setup_develop')
    assert (devstack.nova / 'bootcache').resolve() == devstack.source / 'nova_bootcache' / 'shim'
    assert (TOP / 'nova_bootcache' / 'shim' / '__init__.py').exists()
    # A folder "nova" here would hide an editable Nova.
    assert not (devstack.site / 'nova').exists()
    assert (devstack.site / 'nbd.py').is_symlink()
    assert (devstack.site / 'libnbdmod.so').is_symlink()
    assert not (devstack.site / 'python3-libnbd').is_symlink()


def test_install_beside_an_installed_nova_takes_nothing_of_it(tmp_path):
    devstack = Devstack(tmp_path, 'n-cpu')
    (devstack.site / 'nova' / '__init__.py').write_text('')
    calls = devstack.run('stack', 'install')
    assert (devstack.site / 'nova' / 'virt' / 'bootcache').is_dir()
    assert not names(calls, 'dpkg')


def test_install_twice(tmp_path):
    devstack = Devstack(tmp_path, 'n-cpu')
    devstack.run('stack', 'install')
    devstack.run('stack', 'install')
    assert (devstack.nova / 'bootcache').is_symlink()
    assert list((devstack.source / 'nova_bootcache' / 'shim').iterdir()) == []


def test_post_config_service(tmp_path):
    calls = Devstack(tmp_path, ALL).run('stack', 'post-config')
    conf = settings_of(calls, 'bootcache.conf')
    assert conf['bootcache', 'transport_url'] == conf['DEFAULT', 'transport_url'] \
        == 'rabbit://main/'
    assert conf['bootcache', 'state_dir'] == str(tmp_path / 'data' / 'bootcache')
    assert conf['bootcache', 'run_dir'] == str(tmp_path / 'run')
    assert conf['bootcache', 'glance_store_dirs'] == str(tmp_path / 'images')
    assert conf['bootcache', 'export_host'] == '192.0.2.7'
    assert conf['service_auth', 'auth_url'] == 'http://192.0.2.1/identity'
    assert conf['service_auth', 'username'] == 'bootcache'
    assert conf['service_auth', 'password'] == 'secret'
    assert ['create_service_user', 'bootcache', 'admin'] in calls
    assert (tmp_path / 'etc' / 'bootcache').is_dir()
    assert (tmp_path / 'data' / 'bootcache').is_dir()


def test_every_option_that_is_set_exists(tmp_path):
    calls = Devstack(tmp_path, ALL).run('stack', 'post-config')
    known = {group: {opt.dest for opt in opts} for group, opts in glance_conf.list_opts()}
    shared = {opt.dest for opt in shared_conf.opts}
    for (section, option) in settings_of(calls, 'bootcache.conf'):
        if section == 'bootcache':
            assert option in known['bootcache'] | shared
        elif section == 'service_auth':
            assert option in {name.replace('-', '_') for name in known['service_auth']}
    nova = {opt.dest for opt in nova_conf.opts} | shared
    assert {option for section, option in settings_of(calls, 'nova.conf')
            if section == 'bootcache'} <= nova


@pytest.mark.parametrize(('present', 'wanted'), [
    ('', '[bootcache]'), ('[no_op]', '[bootcache]'),
    ("['image_conversion']", '[image_conversion,bootcache]'),
    ('[bootcache, image_decompression]', '[image_decompression,bootcache]')])
def test_post_config_hook(tmp_path, present, wanted):
    calls = Devstack(tmp_path, 'g-api', INIGET_OPTION='image_import_plugins',
                     INIGET_VALUE=present).run('stack', 'post-config')
    assert settings_of(calls, 'glance-image-import.conf') == {
        ('image_import_opts', 'image_import_plugins'): wanted}
    api = settings_of(calls, 'glance-api.conf')
    assert api['oslo_messaging_notifications', 'driver'] == 'messagingv2'
    assert api['oslo_messaging_notifications', 'topics'] == 'bootcache_images'
    assert api['bootcache', 'transport_url'] == 'rabbit://main/'
    assert not settings_of(calls, 'nova.conf')


@pytest.mark.parametrize(('option', 'present', 'wanted'), [
    ('topics', 'notifications', 'notifications,bootcache_images'),
    ('topics', 'notifications, bootcache_images', 'notifications,bootcache_images'),
    ('topics', 'bootcache_images', 'bootcache_images'),
    # Somebody has switched them on, with the topic that there is by default.
    ('driver', 'messagingv2', 'notifications,bootcache_images')])
def test_notifications_have_a_topic_of_their_own(tmp_path, option, present, wanted):
    calls = Devstack(tmp_path, 'g-api', INIGET_OPTION=option, INIGET_VALUE=present).run(
        'stack', 'post-config')
    api = settings_of(calls, 'glance-api.conf')
    assert api['oslo_messaging_notifications', 'topics'] == wanted
    assert api['oslo_messaging_notifications', 'driver'] == 'messagingv2'


def test_post_config_compute_only(tmp_path):
    calls = Devstack(tmp_path, 'n-cpu').run('stack', 'post-config')
    conf = settings_of(calls, 'nova.conf')
    assert conf['DEFAULT', 'compute_driver'] == 'bootcache.BootCacheLibvirtDriver'
    assert conf['bootcache', 'transport_url'] == 'rabbit://main/'
    assert conf['bootcache', 'gateway_socket'] == str(tmp_path / 'run' / 'gateway.sock')
    assert ('DEFAULT', 'non_inheritable_image_properties') not in conf
    assert not settings_of(calls, 'bootcache.conf')
    assert not settings_of(calls, 'nova-cpu.conf')
    assert not names(calls, 'create_service_user')


def test_post_config_reaches_a_nova_cpu_conf_that_is_there(tmp_path):
    devstack = Devstack(tmp_path, 'n-cpu')
    (tmp_path / 'etc' / 'nova-cpu.conf').write_text('')
    calls = devstack.run('stack', 'post-config')
    assert settings_of(calls, 'nova-cpu.conf') == settings_of(calls, 'nova.conf')


def test_snapshots_do_not_inherit_states(tmp_path):
    calls = Devstack(tmp_path, 'n-api,g-api').run('stack', 'post-config')
    assert settings_of(calls, 'nova.conf')['DEFAULT', 'non_inheritable_image_properties'] \
        == 'cache_in_nova,bittorrent,bootcache_state,bootcache_reason'


def test_gateway_starts_before_nova_compute_and_as_the_driver_expects(tmp_path):
    calls = Devstack(tmp_path, 'n-cpu').run('stack', 'post-config')
    runs = [call for call in calls if call[0] == 'run_process']
    assert len(runs) == 1
    _name, service, command, group = runs[0]
    assert service == 'n-bootcache-gateway'
    assert group == 'libvirt-qemu'
    assert command.startswith('/')
    run = tmp_path / 'run'
    for part in ('umask 0007', f'--chardev socket,path={run}/gateway.qmp,server=on,wait=off,id=',
                 f'--pidfile {run}/gateway.pid',
                 f'--nbd-server addr.type=unix,addr.path={run}/gateway.sock,max-connections=0'):
        assert part in command


@pytest.mark.parametrize('group', ['kvm', 'others'])
def test_guest_group(tmp_path, group):
    extra = {'BOOTCACHE_GUEST_GROUP': group} if group == 'others' else {}
    calls = Devstack(tmp_path, 'n-cpu', GUEST_GROUP=group, **extra).run('stack', 'post-config')
    assert next(call for call in calls if call[0] == 'run_process')[3] == group


def test_extra_starts_the_storage_service(tmp_path):
    calls = Devstack(tmp_path, ALL).run('stack', 'extra')
    runs = [call[1:] for call in calls if call[0] == 'run_process']
    assert runs == [['g-bootcache', f'{tmp_path}/venv/bin/glance-bootcache --config-file'
                                    f' {tmp_path}/etc/bootcache/bootcache.conf']]


def test_extra_starts_nothing_on_a_compute_node(tmp_path):
    assert not names(Devstack(tmp_path, 'n-cpu').run('stack', 'extra'), 'run_process')


@pytest.mark.parametrize('name', ['exporter', 'exporter-10820', 'ceph', 'snapshots'])
def test_unstack_ends_the_exporters_and_no_other_process(tmp_path, name):
    devstack = Devstack(tmp_path, ALL)
    monitor = tmp_path / 'run' / f'{name}.qmp'
    exporter = subprocess.Popen(['python3', '-c', 'import time; time.sleep(60)', str(monitor)])
    other = subprocess.Popen(['sleep', '60'])
    try:
        pidfile = tmp_path / 'run' / f'{name}.pid'
        pidfile.write_text(f'{other.pid}\n')
        calls = devstack.run('unstack')
        assert names(calls, 'stop_process') == ['g-bootcache', 'n-bootcache-gateway']
        assert other.poll() is None
        pidfile.write_text(f'{exporter.pid}\n')
        devstack.run('unstack')
        assert exporter.wait(timeout=10) != 0
    finally:
        for process in (exporter, other):
            process.kill()
            process.wait()


def test_clean_removes_what_is_ours(tmp_path):
    devstack = Devstack(tmp_path, ALL)
    devstack.run('stack', 'install')
    devstack.run('stack', 'post-config')
    (tmp_path / 'instances' / '_bootcache').mkdir(parents=True)
    (tmp_path / 'instances' / '_base').mkdir(parents=True)
    devstack.run('clean')
    for gone in ('etc/bootcache', 'data/bootcache', 'run', 'instances/_bootcache',
                 'nova/nova/virt/bootcache'):
        assert not os.path.lexists(tmp_path / gone)
    for kept in ('instances/_base', 'nova/nova/virt'):
        assert (tmp_path / kept).is_dir()


# The scheduler.

def test_a_controller_gets_the_weigher_and_the_filter(tmp_path):
    calls = Devstack(tmp_path, 'n-sch').run('stack', 'post-config')
    settings = settings_of(calls, 'nova.conf')
    assert settings['filter_scheduler', 'weight_classes'] \
        == f'nova.scheduler.weights.all_weighers,{BootCacheWeigher.__module__}.BootCacheWeigher'
    # Nova's default, and ours.
    assert settings['filter_scheduler', 'enabled_filters'].split(',') \
        == [*CONF.filter_scheduler.enabled_filters, 'BootCacheFilter']
    assert [call[1:] for call in calls if call[0] == 'iniset_multiline'] == [
        ['nova.conf', 'filter_scheduler', 'available_filters', 'nova.scheduler.filters.all_filters',
         f'{BootCacheFilter.__module__}.BootCacheFilter']]


@pytest.mark.parametrize('there', ['ComputeFilter', 'ComputeFilter,BootCacheFilter'])
def test_filters_that_are_configured_stay(tmp_path, there):
    stack = Devstack(tmp_path, 'n-sch', INIGET_OPTION='enabled_filters', INIGET_VALUE=there)
    settings = settings_of(stack.run('stack', 'post-config'), 'nova.conf')
    assert settings['filter_scheduler', 'enabled_filters'] == 'ComputeFilter,BootCacheFilter'


def test_no_scheduler_no_weigher(tmp_path):
    calls = Devstack(tmp_path, 'n-cpu').run('stack', 'post-config')
    assert not [key for key in settings_of(calls, 'nova.conf') if key[0] == 'filter_scheduler']
