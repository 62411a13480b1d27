"""The devstack plugin under the real stack.sh, unstack.sh and clean.sh of ``$DEVSTACK_DIR``.

What these would install, start and ask is recorded instead; files are written. Without the variable
only the stand-ins of tests/unit/devstack_node.py try the plugin; tools/devstack.sh tries all of it.
"""

import os
import pathlib

import pytest
from recorded_devstack import DEVSTACK, Node

pytestmark = pytest.mark.skipif(not DEVSTACK or os.geteuid() != 0,
                                reason='needs a tree of devstack in DEVSTACK_DIR, and root')

PLUGIN = 'LIBVIRT_TYPE=qemu\nenable_plugin bootcache file:///opt/stack/repos/bootcache main\n'
ALL = ('ENABLED_SERVICES=key,rabbit,mysql,placement-api,placement-client,g-api,n-api,n-cpu,n-cond,'
       'n-sch,n-api-meta\n')
COMPUTE = 'ENABLED_SERVICES=n-cpu,placement-client\nSERVICE_HOST=127.0.0.2\n' \
          'DATABASE_TYPE=mysql\nMYSQL_HOST=127.0.0.2\nRABBIT_HOST=127.0.0.2\n'
STATE = pathlib.Path('opt/stack/data/bootcache')
UNITS = pathlib.Path('etc/systemd/system')


@pytest.fixture(scope='module')
def one(tmp_path_factory):
    """A node with everything, stacked where an earlier stack has left its state."""
    node = Node(tmp_path_factory.mktemp('one'), ALL + PLUGIN)
    stale = node.root / STATE / 'images'
    stale.mkdir(parents=True)
    node.run('chown -R stack:stack /opt/stack/data', user='root')
    node.stack()
    return node


def position(node, *words):
    """Return where a command was recorded first."""
    return next(number for number, line in enumerate(node.recorded())
                if all(word in line for word in words))


def test_no_setting_is_lost_to_what_devstack_writes_meanwhile(one):
    for path in 'etc/nova/nova.conf', 'etc/nova/nova-cpu.conf':
        conf = one.settings(path)
        assert conf['DEFAULT', 'compute_driver'] == 'bootcache.BootCacheLibvirtDriver'
        assert {name for section, name in conf if section == 'bootcache'} == {
            'transport_url', 'gateway_socket', 'gateway_autostart', 'gateway_group',
            'tls_directory'}
        assert 'BootCacheFilter' in conf['filter_scheduler', 'enabled_filters'].split(',')
        # Of the task in the background.
        assert conf['neutron', 'region_name'] == 'RegionOne'
        assert conf['DEFAULT', 'vif_plugging_timeout']


def test_units_are_started_in_their_order(one):
    connectors = position(one, 'systemctl restart devstack@n-bootcache-connectors.service')
    gateway = position(one, 'systemctl restart devstack@n-bootcache-gateway.service')
    compute = position(one, 'systemctl start devstack@n-cpu.service')
    found = position(one, 'nova-manage', 'discover_hosts')
    service = position(one, 'systemctl restart devstack@g-bootcache.service')
    assert connectors < gateway < compute < found < service
    for name in 'connectors', 'gateway':
        unit = (one.root / UNITS / f'devstack@n-bootcache-{name}.service').read_text()
        assert {'User=stack', 'Group=libvirt-qemu', 'UMask=0077', 'Restart=always'} <= set(
            unit.splitlines())


def test_the_storage_service_is_configured_for_what_there_is(one):
    conf = one.settings('etc/bootcache/bootcache.conf')
    assert conf['bootcache', 'glance_store_dirs'] == '/opt/stack/data/glance/images/'
    assert conf['service_auth', 'auth_url'].endswith('/identity')
    assert not (one.root / STATE / 'images').exists()
    assert (one.root / STATE).is_dir()


def test_what_is_installed(one):
    assert position(one, 'pip install', '/opt/stack/bootcache')
    assert position(one, 'bindep', '/opt/stack/bootcache/devstack/files/bindep.txt')
    assert (one.root / 'opt/stack/nova/nova/virt/bootcache').is_symlink()


def test_unstack_and_clean(one):
    """The last test of this node."""
    one.stack('./unstack.sh')
    assert position(one, 'systemctl stop devstack@n-cpu.service') \
        < position(one, 'systemctl stop devstack@n-bootcache-gateway.service') \
        < position(one, 'systemctl stop devstack@n-bootcache-connectors.service')
    assert position(one, 'systemctl stop devstack@g-bootcache.service')
    one.stack('./clean.sh')
    # The tree itself and its repository stay; what is in a "bin" is a recorder.
    kept = [one.root / name for name in ('opt/stack/bootcache', 'opt/stack/repos/bootcache',
                                         'recorded-bootcache')]
    assert not [path for path in one.root.rglob('*bootcache*')
                if not path.is_char_device() and path.parent.name != 'bin'
                and not any(path.is_relative_to(place) for place in kept)]


def test_a_compute_node_without_the_ca_is_refused_before_it_installs(tmp_path):
    node = Node(tmp_path, COMPUTE + PLUGIN)
    done = node.run('cd /opt/stack/devstack && ./stack.sh 2>&1')
    assert done.returncode != 0
    assert 'stack the node with g-bootcache first' in done.stdout
    assert not [line for line in node.recorded() if 'pip install' in line
                and '/opt/stack/nova' in line]


def test_a_compute_node_with_the_ca_signs_its_own(tmp_path):
    node = Node(tmp_path, COMPUTE + PLUGIN)
    ca = node.root / 'opt/stack/data/CA/bootcache'
    ca.mkdir(parents=True)
    (ca / 'ca-key.pem').write_text('')
    node.run('chown -R stack:stack /opt/stack/data', user='root')
    node.stack()
    assert 'bootcache ca /opt/stack/data/CA/bootcache devstack,127.0.0.1' in node.recorded()
    assert node.settings('etc/nova/nova-cpu.conf')['bootcache', 'tls_directory'] \
        == '/opt/stack/data/CA/bootcache/devstack'
    assert not (node.root / UNITS / 'devstack@g-bootcache.service').exists()
    for name in 'connectors', 'gateway':
        assert (node.root / UNITS / f'devstack@n-bootcache-{name}.service').exists()
