"""Hostile images through registration: from Glance's event to what becomes of each, all real.

Stand-ins are Glance, a directory of files, and Nova, who is not asked: no image gets as far as a
profile boot. QEMU's programs, the exporter, and all between them are the product's own.
"""

import hashlib
import os
import re
import resource
import tempfile
import time
import types
import uuid

import hostile_others
import hostile_qcow2
import nbd
import pytest
from functional_tools import free_port, until
from oslo_config import cfg

from bootcache import conf as bootcache_conf
from bootcache.manifest import Standing
from glance_bootcache import conf as glance_conf
from glance_bootcache.db import start
from glance_bootcache.glance import tenants
from glance_bootcache.glance.images import Images
from glance_bootcache.glance.listener import ImageEvents
from glance_bootcache.hosts.orders import Orders
from glance_bootcache.hosts.reportedneeds import ReportedNeeds
from glance_bootcache.images.controller import Controller
from glance_bootcache.images.deletions import Deletions
from glance_bootcache.images.imagework import ImageWork
from glance_bootcache.images.publishing import StatePublisher
from glance_bootcache.images.retiring import Retiring
from glance_bootcache.images.running import Running
from glance_bootcache.images.storagedisk import DiskRoom
from glance_bootcache.metrics import ServiceMetrics
from glance_bootcache.profileboot.throughnova import NovaProfileBoots
from glance_bootcache.storage import inspection
from glance_bootcache.storage.exporters import Exporters
from glance_bootcache.storage.lastuses import LastUses
from glance_bootcache.storage.tiers import StorageTiers
from tools import storedimages

MIB = 1 << 20
HOSTILE = {
    **{f'qcow2: {name}': ('qcow2', make, why)
       for name, (make, why) in hostile_qcow2.MAKERS.items()}, **hostile_others.MAKERS}
HARMLESS = hostile_others.HARMLESS
# Of CPU, an image: those of the bomb's limits come on top.
CPU_SECONDS = 3
MEMORY = 128 * MIB


class Glance(Images):
    """The product's own, on a stand-in of its client: images are dictionaries."""

    def __init__(self):
        self.known = {}
        self._client = types.SimpleNamespace(images=self._Client(self.known))

    class _Client:
        def __init__(self, known):
            self._known = known

        def get(self, image_id):
            return dict(self._known[image_id])

        def update(self, image_id, remove_props=(), **changes):
            self._known[image_id] = {key: value for key, value in {
                **self._known[image_id], **changes}.items() if key not in remove_props}
            return self.get(image_id)


class NoServers(NovaProfileBoots):
    """Nova, without servers."""

    def __init__(self):
        pass

    def has_servers(self, image_id, created_before=None):
        return False


class Service:
    """What of the storage service registers images, in this process."""

    def __init__(self, directory):
        self.directory = directory
        os.mkdir(f'{directory}/glance')
        conf = cfg.ConfigOpts()
        conf([], project='bootcache', default_config_files=[], default_config_dirs=[])
        glance_conf.register_opts(conf)
        for name, value in {
                'state_dir': f'{directory}/state', 'run_dir': f'{directory}/run',
                'export_port': free_port(), 'gateway_socket': f'{directory}/gateway/nbd',
                'glance_store_dirs': [f'{directory}/glance'], 'profile_boots': False,
                'show_state_after': 0}.items():
            conf.set_override(name, value, bootcache_conf.GROUP)
        self.conf = conf
        self.glance = Glance()
        self.store = storedimages.opened(conf)
        self.exporter = Exporters(conf, self.store.state_path('clients.json'))
        self.exporter.start()
        database, nova = start.wait_for(conf), NoServers()
        tiers = StorageTiers(conf, self.store, self.exporter, LastUses(database))
        tiers.start([])
        self.running = Running(conf.bootcache.concurrent_builds)
        retiring = Retiring(self.store, self.exporter, tiers, nova, ReportedNeeds(database),
                            Orders(database))
        work = ImageWork(conf, self.store, self.glance, self.exporter, tiers, nova,
                         DiskRoom(self.store, self.running, self.exporter, tiers), retiring,
                         ServiceMetrics())
        self.controller = Controller(conf, self.store, self.glance, work, self.running, retiring,
                                     Deletions(0, self.store, self.glance),
                                     StatePublisher(conf, self.glance))
        self.controller.start()
        self.events = ImageEvents(self.controller.image_changed, self.controller.image_deleted,
                                  self.controller.let_go)

    def register(self, disk_format, make):
        """Have Glance tell of an image that has just become active; return its id."""
        image_id = str(uuid.uuid4())
        path = f'{self.directory}/glance/{image_id}'
        make(path)
        with open(path, 'rb') as stream:
            value = hashlib.file_digest(stream, 'sha512').hexdigest()
        self.glance.known[image_id] = {
            'id': image_id, 'status': 'active', 'disk_format': disk_format,
            'container_format': 'bare', 'size': os.path.getsize(path), 'os_hash_algo': 'sha512',
            'os_hash_value': value, 'visibility': 'private', 'owner': 'one', 'name': 'hostile'}
        self.events.info({}, 'image.stage', 'image.activate', {'id': image_id}, {})
        return image_id

    def settle(self):
        """Wait until nothing is in hand."""
        # All of them take a minute of CPU.
        until(lambda: self.controller.queue.is_idle() and not self.running.images()
              and self.controller.queue.is_idle(), 'the end of all steps', patience=800)

    def left(self, image_id):
        """Return what there is of an image besides its row."""
        directory = self.store.directory(image_id)
        return (os.listdir(directory) if os.path.exists(directory) else []) + [
            export for export in self.exporter.common._daemon.exports() if image_id in export]

    def read(self, image_id):
        """Return the size of an image's base, as a host sees it, and its first bytes."""
        handle = nbd.NBD()
        handle.set_export_name(self.exporter.describe(self.store.load(image_id))['base_export'])
        handle.connect_tcp('127.0.0.1', str(self.conf.bootcache.export_port))
        try:
            return handle.get_size(), bytes(handle.pread(512, 0))
        finally:
            handle.shutdown()

    def stop(self):
        self.controller.stop()
        self.exporter.common._daemon.stop()


def memory():
    """Return the bytes of memory that this process has."""
    with open('/proc/self/statm') as stream:
        return int(stream.read().split()[1]) * resource.getpagesize()


def cpu():
    """Return the seconds of CPU that ended children have taken."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.fixture(scope='module')
def registered():
    """All of them, registered one after the other; by name what became of each."""
    with pytest.MonkeyPatch.context() as patch, \
            tempfile.TemporaryDirectory(prefix='bc', dir='/tmp') as directory:
        # A bomb is given up sooner than in a cloud.
        patch.setattr(inspection, '_GRACE_SECONDS', 5)
        # What has no CPU for long is no fault of an image.
        patch.setattr(inspection, '_WAITING', 60)
        service = Service(directory)
        try:
            began, before, files_before = cpu(), memory(), len(os.listdir('/proc/self/fd'))
            ids = {name: service.register(disk_format, make)
                   for name, (disk_format, make, _why) in (HOSTILE | HARMLESS).items()}
            service.settle()
            service.used = (cpu() - began, memory() - before,
                            len(os.listdir('/proc/self/fd')) - files_before)
            yield service, ids
        finally:
            service.stop()


@pytest.mark.parametrize('name', HOSTILE)
def test_a_hostile_image_is_skipped_and_leaves_nothing(registered, name):
    service, ids = registered
    manifest = service.store.load(ids[name])
    assert manifest.standing is Standing.SKIPPED, manifest.reason
    assert re.search(HOSTILE[name][2], manifest.reason), manifest.reason
    assert len(manifest.reason) < 1200 and '\n' not in manifest.reason.strip()
    assert not manifest.made.base_path and service.left(ids[name]) == []
    told = service.glance.get(ids[name]).properties
    assert told['bootcache_state'] == 'skipped'
    assert told['bootcache_reason'] in tenants.SENTENCES


@pytest.mark.parametrize('name', HARMLESS)
def test_what_is_strange_and_harmless_is_served(registered, name):
    service, ids = registered
    manifest = service.store.load(ids[name])
    assert manifest.standing is Standing.DONE, manifest.reason
    assert manifest.made.virtual_bytes == HARMLESS[name][2]
    assert service.read(ids[name])[0] == HARMLESS[name][2]


def test_they_take_little(registered):
    service, ids = registered
    seconds, memory_bytes, descriptors = service.used
    assert seconds < CPU_SECONDS * len(ids)
    assert memory_bytes < MEMORY
    assert descriptors < 40


def test_the_service_is_alive_after_all_of_them(registered):
    service, _ids = registered
    began = time.monotonic()
    image_id = service.register('raw', hostile_others.written((0, b'the next one')))
    service.settle()
    assert service.store.load(image_id).standing is Standing.DONE
    assert service.read(image_id)[1].startswith(b'the next one')
    assert time.monotonic() - began < 60
