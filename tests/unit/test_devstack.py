"""The devstack plugin: shellcheck, and each phase run in bash against stand-ins for devstack.

The stand-ins write down how they were called. ``sudo`` runs its command, as all paths are below the
test's own directory.
"""

import getpass
import os
import re
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

COMPUTES = ['n-bootcache-connectors', 'n-bootcache-gateway']
GLANCE_IMAGES = '/opt/stack/data/glance/images/'


@pytest.mark.skipif(not shutil.which('shellcheck'), reason='shellcheck is not installed')
def test_shellcheck():
    done = subprocess.run(['shellcheck', '-x', str(PLUGIN), str(SETTINGS)], capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(('services', 'wanted'), [
    (ALL, ['g-bootcache', *COMPUTES]), ('n-cpu', COMPUTES),
    ('g-api,mysql', ['g-bootcache']), ('g-api,postgresql', ['g-bootcache']), ('horizon', []),
    # Another glance-api of the same cloud.
    ('g-api', [])])
def test_services_follow_the_node(tmp_path, services, wanted):
    calls = Devstack(tmp_path, services).run('unstack')
    assert names(calls, 'enable_service') == wanted
    assert names(calls, 'define_plugin') == ['bootcache']


@pytest.mark.parametrize('phase', ['pre-install', 'install', 'post-config', 'extra',
                                   'test-config'])
def test_a_node_without_our_services_is_left_alone(tmp_path, phase):
    calls = Devstack(tmp_path, 'horizon').run('stack', phase)
    assert [call[0] for call in calls] == ['define_plugin']


@pytest.mark.parametrize('other', [{'VIRT_DRIVER': 'fake'}, {'VIRT_DRIVER': 'ironic'},
                                   {'LIBVIRT_TYPE': 'lxc'}])
def test_another_virt_driver_is_left_alone(tmp_path, other):
    devstack = Devstack(tmp_path, 'n-cpu', **other)
    calls = devstack.run('stack', 'post-config')
    assert not names(calls, 'enable_service')
    assert not settings_of(calls, 'nova.conf')
    assert 'VIRT_DRIVER=libvirt' in names(calls, 'echo_summary')[-1]


def test_packages_are_those_that_services_run():
    """devstack asks bindep about this file for each of its plugins."""
    lines = (PLUGIN.parent / 'files' / 'bindep.txt').read_text().splitlines()
    packages = {line.split()[0] for line in lines if line and not line.startswith('#')}
    assert packages == {'qemu-utils', 'qemu-system-common', 'qemu-block-extra', 'python3-libnbd'}


def test_pre_install_refuses_other_distributions(tmp_path):
    calls = Devstack(tmp_path, ALL, DISTRIBUTION='other').run('stack', 'pre-install', check=False)
    assert calls[-1][0] == 'die'


def test_install_goes_through_pip_and_leaves_nova_whole(tmp_path):
    devstack = Devstack(tmp_path, ALL)
    calls = devstack.run('stack', 'install')
    assert names(calls, 'pip_install') == [f'{devstack.source}[storage]']
    assert not names(calls, 'setup_develop')
    assert (devstack.nova / 'bootcache').resolve() == devstack.source / 'nova_bootcache' / 'shim'
    assert (TOP / 'nova_bootcache' / 'shim' / '__init__.py').exists()
    # A folder "nova" here would hide an editable Nova.
    assert not (devstack.site / 'nova').exists()


def test_an_earlier_build_does_not_get_into_the_wheel(tmp_path):
    devstack = Devstack(tmp_path, ALL)
    stale = devstack.source / 'build' / 'lib' / 'bootcache' / 'gone.py'
    stale.parent.mkdir(parents=True)
    stale.write_text('')
    (devstack.source / 'bootcache.egg-info').mkdir()
    calls = devstack.run('stack', 'install')
    removed = [name for name, call in enumerate(calls) if call[:3] == ['sudo', 'rm', '-rf']]
    assert removed[0] < [call[0] for call in calls].index('pip_install')
    assert not stale.exists()
    assert not (devstack.source / 'bootcache.egg-info').exists()


def test_install_beside_an_installed_nova_takes_nothing_of_it(tmp_path):
    devstack = Devstack(tmp_path, 'n-cpu')
    (devstack.site / 'nova' / '__init__.py').write_text('')
    devstack.run('stack', 'install')
    assert (devstack.site / 'nova' / 'virt' / 'bootcache').is_dir()


def test_install_twice(tmp_path):
    devstack = Devstack(tmp_path, 'n-cpu')
    devstack.run('stack', 'install')
    devstack.run('stack', 'install')
    assert (devstack.nova / 'bootcache').is_symlink()
    assert list((devstack.source / 'nova_bootcache' / 'shim').iterdir()) == []


FILE_STORE = f'glance_store/filesystem_store_datadir={GLANCE_IMAGES}'


def test_post_config_service(tmp_path):
    calls = Devstack(tmp_path, ALL, INI=FILE_STORE).run('stack', 'post-config')
    conf = settings_of(calls, 'bootcache.conf')
    assert conf['bootcache', 'transport_url'] == conf['DEFAULT', 'transport_url'] \
        == 'rabbit://main/'
    assert conf['bootcache', 'state_dir'] == str(tmp_path / 'data' / 'bootcache')
    assert conf['bootcache', 'glance_store_dirs'] == GLANCE_IMAGES
    assert conf['bootcache', 'export_host'] == '192.0.2.7'
    assert conf['service_auth', 'auth_url'] == 'http://192.0.2.1/identity'
    assert conf['service_auth', 'username'] == 'bootcache'
    assert conf['service_auth', 'password'] == 'secret'
    assert ['create_service_user', 'bootcache', 'admin'] in calls
    assert (tmp_path / 'etc' / 'bootcache').is_dir()
    assert (tmp_path / 'data' / 'bootcache').is_dir()


@pytest.mark.parametrize(('ini', 'wanted'), [
    (FILE_STORE, GLANCE_IMAGES),
    (f'{FILE_STORE};glance_store/default_store=file', GLANCE_IMAGES),
    (f'{FILE_STORE};glance_store/default_store=swift', ''),
    ('DEFAULT/enabled_backends=fast:file,far:rbd,slow:file;fast/filesystem_store_datadir=/a;'
     'slow/filesystem_store_datadir=/b/', '/a,/b/'),
    ('DEFAULT/enabled_backends=far:rbd', '')])
def test_the_directories_of_glances_file_stores(tmp_path, ini, wanted):
    """Only those that its configuration has: others are never made."""
    calls = Devstack(tmp_path, ALL, INI=ini).run('stack', 'post-config')
    assert settings_of(calls, 'bootcache.conf')['bootcache', 'glance_store_dirs'] == wanted


def test_a_restack_begins_anew(tmp_path):
    """devstack makes Glance's database anew: what is known of its images is of others."""
    devstack = Devstack(tmp_path, ALL)
    devstack.run('stack', 'post-config')
    known = tmp_path / 'data' / 'bootcache' / 'images'
    known.mkdir()
    devstack.run('stack', 'post-config')
    assert known.parent.is_dir()
    assert not known.exists()


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
    calls = Devstack(tmp_path, 'n-cpu', BOOTCACHE_TLS='False').run('stack', 'post-config')
    conf = settings_of(calls, 'nova.conf')
    assert conf['DEFAULT', 'compute_driver'] == 'bootcache.BootCacheLibvirtDriver'
    assert conf['bootcache', 'transport_url'] == 'rabbit://main/'
    assert conf['bootcache', 'gateway_socket'] == str(tmp_path / 'gateway' / 'gateway.sock')
    assert conf['bootcache', 'gateway_autostart'] == 'False'
    assert conf['bootcache', 'gateway_group'] == 'libvirt-qemu'
    assert ('DEFAULT', 'non_inheritable_image_properties') not in conf
    assert not settings_of(calls, 'bootcache.conf')
    assert not settings_of(calls, 'nova-cpu.conf')
    assert not names(calls, 'create_service_user')


def test_post_config_reaches_a_nova_cpu_conf_that_is_there(tmp_path):
    devstack = Devstack(tmp_path, 'n-cpu', BOOTCACHE_TLS='False')
    (tmp_path / 'etc' / 'nova-cpu.conf').write_text('')
    calls = devstack.run('stack', 'post-config')
    assert settings_of(calls, 'nova-cpu.conf') == settings_of(calls, 'nova.conf')


def test_snapshots_do_not_inherit_states(tmp_path):
    calls = Devstack(tmp_path, 'n-api,g-api').run('stack', 'post-config')
    assert settings_of(calls, 'nova.conf')['DEFAULT', 'non_inheritable_image_properties'] \
        == 'cache_in_nova,bittorrent,bootcache_state,bootcache_reason'


# Units. Those of etc/systemd are tried in tests/functional.

def started(calls: list[list[str]]) -> list[str]:
    """Return the units that were started, each after it was enabled."""
    made = [call[1:] for call in calls if call[0] == 'systemctl']
    units = [words[1] for words in made if words[0] == 'restart']
    assert made == [words for unit in units
                    for words in (['daemon-reload'], ['enable', unit], ['restart', unit])]
    return units


@pytest.mark.parametrize('service', COMPUTES)
def test_what_reads_bases_is_a_unit_with_devstacks_user(tmp_path, service):
    """Before nova-compute; sockets closed but for the gateway's, which is QEMU's."""
    devstack = Devstack(tmp_path, 'n-cpu', BOOTCACHE_TLS='False')
    calls = devstack.run('stack', 'post-config')
    # The gateway reads by connectors.
    assert started(calls) == [f'devstack@{name}.service' for name in COMPUTES]
    unit = devstack.unit(service)
    assert unit['User'] == getpass.getuser()
    assert unit['Group'] == 'libvirt-qemu'
    assert unit['UMask'] == '0077'
    assert unit['Restart'] == 'always'
    # What /run loses with a reboot comes with the unit.
    assert unit['RuntimeDirectory'] == 'bootcache'
    assert 'devstack@n-cpu.service' in unit['Before'].split()
    assert 'nova-compute.service' not in unit['Before'].split()


def test_connectors_are_run_where_the_gateway_is(tmp_path):
    devstack = Devstack(tmp_path, 'n-cpu', BOOTCACHE_TLS='False')
    devstack.run('stack', 'post-config')
    unit = devstack.unit('n-bootcache-connectors')
    assert unit['ExecStart'] == f'{tmp_path}/venv/bin/bootcache-connectors {tmp_path}/gateway'
    # devstack's programs and certificates may be there.
    assert 'ProtectHome' not in unit


@pytest.mark.parametrize('group', ['kvm', 'others'])
def test_guest_group(tmp_path, group):
    extra = {'BOOTCACHE_GUEST_GROUP': group} if group == 'others' else {}
    devstack = Devstack(tmp_path, 'n-cpu', GUEST_GROUP=group, BOOTCACHE_TLS='False', **extra)
    calls = devstack.run('stack', 'post-config')
    assert devstack.unit('n-bootcache-gateway')['Group'] == group
    assert settings_of(calls, 'nova.conf')['bootcache', 'gateway_group'] == group


def test_the_storage_service_starts_when_hosts_are_found(tmp_path):
    """devstack finds them after the phase "extra"."""
    devstack = Devstack(tmp_path, ALL)
    assert not started(devstack.run('stack', 'extra'))
    assert started(devstack.run('stack', 'test-config')) == ['devstack@g-bootcache.service']
    unit = devstack.unit('g-bootcache')
    assert unit['ExecStart'] == (f'{tmp_path}/venv/bin/glance-bootcache --config-file'
                                 f' {tmp_path}/etc/bootcache/bootcache.conf')
    assert unit['User'] == getpass.getuser()
    assert unit['Restart'] == 'always'
    assert unit['RuntimeDirectory'] == 'glance-bootcache'
    # The state is in devstack's own folder.
    assert 'ExecStartPre' not in unit


def test_a_storage_service_that_does_not_answer_fails_the_stack(tmp_path):
    calls = Devstack(tmp_path, ALL, ANSWER='false').run('stack', 'test-config', check=False)
    assert calls[-1][0] == 'die' and 'journalctl -u devstack@g-bootcache' in calls[-1][2]


@pytest.mark.parametrize('there', [False, True])
def test_profile_boots_have_a_flavor_of_their_own(tmp_path, there):
    """All of devstack's have extra specs, and flavors with some are taken by name only."""
    devstack = Devstack(tmp_path, ALL, **({'HAS_FLAVOR': '1'} if there else {}))
    calls = devstack.run('stack', 'post-config')
    assert settings_of(calls, 'bootcache.conf')['bootcache', 'profile_flavor'] \
        == 'bootcache-profile'
    calls = devstack.run('stack', 'test-config')
    made = [call for call in calls if call[:3] == ['openstack', 'flavor', 'create']]
    assert [call[-1] for call in made] == ([] if there else ['bootcache-profile'])
    assert there or '--private' in made[0]


def test_a_compute_node_starts_nothing_else(tmp_path):
    assert not started(Devstack(tmp_path, 'n-cpu').run('stack', 'test-config'))


def test_units_name_no_place_of_a_packages_own(tmp_path):
    devstack = Devstack(tmp_path, ALL, BOOTCACHE_EXCHANGE_NETWORKS='192.0.2.0/24')
    devstack.run('stack', 'post-config')
    devstack.run('stack', 'test-config')
    units = sorted((tmp_path / 'systemd').iterdir())
    assert len(units) == 4
    for unit in units:
        settings = [line for line in unit.read_text().splitlines() if not line.startswith('#')]
        assert not [line for line in settings if re.search(
            '/opt/|nova-compute.service|=(nova|glance)$', line)]


def test_unstack_ends_nova_compute_before_its_gateway_and_connectors(tmp_path):
    """devstack itself stops Nova only after its plugins."""
    calls = [call[:2] for call in Devstack(tmp_path, 'n-cpu').run('unstack')]
    assert calls.index(['stop_nova_compute']) \
        < calls.index(['stop_process', 'n-bootcache-gateway']) \
        < calls.index(['stop_process', 'n-bootcache-connectors'])


def test_apparmors_rule_is_written_once_and_taken_away(tmp_path):
    rules = tmp_path / 'apparmor' / 'libvirt-qemu'
    devstack = Devstack(tmp_path, 'n-cpu', BOOTCACHE_TLS='False')
    # None where AppArmor is not used.
    devstack.run('stack', 'post-config')
    assert not rules.parent.exists()
    rules.parent.mkdir()
    rules.write_text('/theirs r,\n')
    devstack.run('stack', 'post-config')
    devstack.run('stack', 'post-config')
    assert rules.read_text() == f'/theirs r,\n{tmp_path}/gateway/gateway.sock rw,\n'
    devstack.run('clean')
    assert rules.read_text() == '/theirs r,\n'


def test_the_samples_branch_is_the_repositorys():
    """devstack takes "master" where none is named."""
    for page in TOP / 'README.md', PLUGIN.parent / 'README.rst':
        lines = re.findall(r'enable_plugin bootcache (\S+|<[^>]+>)( \S+)?(?=`|$)',
                           page.read_text(), re.M)
        assert lines and {branch for _url, branch in lines} == {' main'}


@pytest.mark.parametrize('name', ['exporter', 'exporter-10820', 'snapshots',
                                  'connectors/0123456789abcdef-0'])
def test_unstack_ends_the_exporters_and_no_other_process(tmp_path, name):
    devstack = Devstack(tmp_path, ALL)
    monitor = tmp_path / 'run' / f'{name}.qmp'
    monitor.parent.mkdir(parents=True, exist_ok=True)
    exporter = subprocess.Popen(['python3', '-c', 'import time; time.sleep(60)', str(monitor)])
    other = subprocess.Popen(['sleep', '60'])
    try:
        pidfile = tmp_path / 'run' / f'{name}.pid'
        pidfile.write_text(f'{other.pid}\n')
        calls = devstack.run('unstack')
        assert names(calls, 'stop_process') == ['g-bootcache', 'n-bootcache-gateway',
                                                'n-bootcache-connectors']
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
    for gone in ('etc/bootcache', 'data/bootcache', 'data/CA/bootcache', 'run',
                 'instances/_bootcache', 'nova/nova/virt/bootcache'):
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
    calls = Devstack(tmp_path, 'n-cpu', BOOTCACHE_TLS='False').run('stack', 'post-config')
    assert not [key for key in settings_of(calls, 'nova.conf') if key[0] == 'filter_scheduler']
