"""One real cloud for all tests: the demo's, with small guests. See tools/cloud.

``BOOTCACHE_E2E_KEEP=1`` leaves it up for the next run.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.cloud.bootcache import DRIVER, BootcacheCloud
from tools.cloud.client import OpenStack
from tools.cloud.cloud import print_progress
from tools.cloud.tenant import Log, Tenant, guest_image
from tools.cloud.wire import Wire

HERE = Path(__file__).parent
# What takes long, and stands on what others show as well: .ci/run leaves it out, tools/test.sh not.
LONG = ('test_deployment.py', 'test_scheduling.py', 'test_warming.py',
        'test_boot.py::test_a_real_distribution')


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what takes long."""
    for item in items:
        if item.path.parent == HERE and (
                item.path.name in LONG or f'{item.path.name}::{item.name}' in LONG):
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope='session')
def small_image() -> Path:
    """A qcow2 of a guest that boots in seconds and checks its own data."""
    return guest_image('small')


@pytest.fixture(scope='session')
def raw_image(small_image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The small guest as a raw image, as clouds on Ceph have theirs."""
    path = tmp_path_factory.mktemp('raw') / 'small.raw'
    subprocess.run(['qemu-img', 'convert', '-f', 'qcow2', '-O', 'raw', str(small_image),
                    str(path)], check=True)
    yield path
    shutil.rmtree(path.parent)


@pytest.fixture(scope='session')
def cloud() -> Iterator[BootcacheCloud]:
    """The cloud of two hosts, up, with bootcache's driver."""
    cloud = BootcacheCloud(progress=print_progress(), hosts=2)
    # A cloud that cannot be brought up because it is somebody else's is not ours to end.
    ours = not cloud.home.exists() or bool(os.environ.get('BOOTCACHE_E2E_KEEP'))
    try:
        configure(cloud)
        try:
            cloud.up(DRIVER)
            ours = True
            make_flavors(cloud)
        except Exception as error:
            # Without it no test can be run here; others may have clouds, and take the files.
            pytest.exit(f'the cloud in {cloud.home} does not come up:\n{error}', returncode=2)
        yield cloud
    finally:
        # The services' logs outlive the cloud, for whoever has to look why a test failed.
        shutil.rmtree(cloud.home.parent / 'e2e-log', ignore_errors=True)
        if cloud.layout.log.is_dir():
            shutil.copytree(cloud.layout.log, cloud.home.parent / 'e2e-log')
        if ours and not os.environ.get('BOOTCACHE_E2E_KEEP'):
            cloud.down(wipe=True)


def configure(cloud: BootcacheCloud) -> None:
    """Write what makes it a cloud with bootcache, and the options of the tests."""
    cloud.configure_bootcache()
    # Settling soon; only images that ask for it are settled, see Tenant.image.
    cloud.layer('nova', '70-e2e', {'DEFAULT': {'default_ephemeral_format': 'ext4',
                                               # However many processors this machine has.
                                               'cpu_allocation_ratio': 32},
                                   'bootcache': {'settle_delay': 3, 'report_interval': 3,
                                                 # Whatever disk this machine has.
                                                 'expand': 'always'}})


def make_flavors(cloud: BootcacheCloud) -> None:
    """Flavors with an ephemeral and a swap disk."""
    flavors = OpenStack(cloud).nova.flavors
    known = {flavor.name for flavor in flavors.list()}
    for name, disk in (('m1.disks', 1), ('m1.disks.large', 2)):
        if name not in known:
            flavors.create(name, ram=192, vcpus=1, disk=disk, flavorid=name, ephemeral=1, swap=64)


@pytest.fixture(scope='session')
def wire(cloud) -> Wire:
    """What crosses the wire between gateway and exporter, and from Glance."""
    return Wire(cloud.tap_log, cloud.access_log)


@pytest.fixture
def tenant(cloud) -> Iterator[Tenant]:
    """A user of the cloud."""
    tenant = Tenant(cloud)
    yield tenant
    tenant.clean()


@pytest.fixture(scope='module')
def module_tenant(cloud) -> Iterator[Tenant]:
    """A user whose things live as long as a test module."""
    tenant = Tenant(cloud)
    yield tenant
    tenant.clean()


@pytest.fixture(scope='module')
def ready_image(module_tenant, small_image) -> str:
    """A small image, imported, with its cache image ready."""
    image = module_tenant.image(small_image, by_import=True)
    module_tenant.wait_state(image, 'ready')
    return image


@pytest.fixture
def compute_log(cloud) -> Log:
    """The log of the first host's nova-compute."""
    return Log(cloud.layout.log / 'compute.log')


@pytest.fixture
def storage_log(cloud) -> Log:
    """The storage service's log."""
    return Log(cloud.layout.log / 'glance-bootcache.log')
