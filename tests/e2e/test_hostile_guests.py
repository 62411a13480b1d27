"""Profile boots of guests that mean harm, by a real Nova: they end, are told of, leave nothing.

Each is an image of one boot sector, see tools/bootsectors.py.
"""

import re

import pytest

from tools import bootsectors
from tools.bootsectors import MIB
from tools.cloud.bootcache import STORAGE_SERVICE
from tools.cloud.tenant import wait_until

QUOTA = 8 * MIB
UUID = re.compile(r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}')
# By name: the guest, how much of its disk is filled, and properties.
GUESTS = {
    'reads': (bootsectors.READS, 32 * MIB, {'bootcache_quota': f'{QUOTA}'}),
    'writes': (bootsectors.WRITES, 0, {}),
    'floods': (bootsectors.FLOODS, 0, {}),
    'reboots': (bootsectors.REBOOTS, 0, {}),
    'network': (bootsectors.LOOKS_FOR_NETWORK, 0,
                {'bootcache_boot_marker': f'^{bootsectors.NO_CARD}'})}


@pytest.fixture(scope='module')
def images(module_tenant, cloud, tmp_path_factory):
    """All of them are registered at once, to a service that gives a boot less time."""
    cloud.layer(STORAGE_SERVICE, '50-test', {'bootcache': {'profile_timeout': 60}})
    with cloud.hosts_heard():
        cloud.restart(STORAGE_SERVICE)
    found = {}
    for name, (guest, filled, properties) in GUESTS.items():
        path = tmp_path_factory.mktemp('guests') / name
        bootsectors.make(path, guest, filled)
        found[name] = module_tenant.image(path, disk_format='raw', **properties)
    yield found
    cloud.layer(STORAGE_SERVICE, '50-test', None)
    with cloud.hosts_heard():
        cloud.restart(STORAGE_SERVICE)


def test_one_that_reads_all_of_its_disk_is_recorded_to_its_quota(module_tenant, images):
    found = module_tenant.wait_state(images['reads'], 'ready')
    assert found['working_set']['ended_by'] == 'quota'
    assert found['cache_image']['bytes'] <= QUOTA


@pytest.mark.parametrize('name', ['writes', 'floods', 'reboots'])
def test_one_that_never_comes_up_is_given_up_and_its_owner_told(module_tenant, images, name):
    """It fills its disk, or its console, or reboots for ever."""
    found = module_tenant.wait_state(images[name], 'failed')
    # A busy host that takes long to start it may be given up before it says so.
    assert not found['cache_image'] and ('read nothing from its disk but' in found['reason']
                                         or 'did not report what it read' in found['reason'])
    module_tenant.wait_property(images[name], 'bootcache_state', 'failed')
    assert module_tenant.property(images[name], 'bootcache_reason')


def test_one_that_looks_for_a_network_finds_none(module_tenant, images):
    found = module_tenant.wait_state(images['network'], 'ready')
    assert found['working_set']['ended_by'] == 'marker'


def test_nothing_is_left_of_their_servers(module_tenant, images, cloud):
    for image in images.values():
        wait_until(lambda image=image: module_tenant.show(image)['state'] in ('ready', 'failed'),
                   f'the end of {image}', 300)

    def left():
        servers = [server.name for server in module_tenant.openstack.nova.servers.list(
            search_opts={'all_tenants': 1}) if server.name.startswith('bootcache-profile-')]
        return servers + [path.name for host in cloud.hosts for path in host.instances.iterdir()
                          if UUID.fullmatch(path.name)]

    wait_until(lambda: not left(), f'the end of {left()}', 120)
