"""One owner's images whose guests never end beside one image of another: how long that one takes.

``python -m bench.fairness IMAGE`` has the storage service's own parts get, inspect, read, serve and
build images of a qcow2 file, with real QEMU; in the place of Glance there is a directory, of Nova a
profile boot that takes two seconds, or never ends. First some images alone, then 200 of an owner,
and beside them as many of another owner as before, one after the other. Ends with 1 if those take
more than twice as long.
"""

import argparse
import collections
import dataclasses
import hashlib
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from oslo_config import cfg

from bench.faults.storageside import GlanceClient
from bootcache import conf as bootcache_conf
from bootcache import properties
from bootcache.manifest import ImageState
from bootcache.workingset import WorkingSet
from glance_bootcache import conf as glance_conf
from glance_bootcache.db import start
from glance_bootcache.glance.images import Images
from glance_bootcache.hosts.orders import Orders
from glance_bootcache.hosts.reportedneeds import ReportedNeeds
from glance_bootcache.imagefacts import ImageFacts
from glance_bootcache.images.controller import Controller
from glance_bootcache.images.deletions import Deletions
from glance_bootcache.images.imagework import ImageWork
from glance_bootcache.images.policy import Step
from glance_bootcache.images.publishing import StatePublisher
from glance_bootcache.images.retiring import Retiring
from glance_bootcache.images.running import Running
from glance_bootcache.images.storagedisk import DiskRoom
from glance_bootcache.metrics import ServiceMetrics
from glance_bootcache.profileboot.job import ImageJob, ProfileReport
from glance_bootcache.profileboot.throughnova import NovaProfileBoots
from glance_bootcache.storage.exporters import Exporters
from glance_bootcache.storage.lastuses import LastUses
from glance_bootcache.storage.tiers import StorageTiers
from tools import storedimages

MOST_RATIO = 2.0
BOOT_SECONDS = 2.0
_MIB = 1 << 20
_READS = [[number * _MIB, 65536, 0.0] for number in range(64)]


class _Glance(Images):
    """The product's own, on a stand-in of its client."""

    def __init__(self, directory: str):
        self._client = GlanceClient(directory)


class _ProfileBoots(NovaProfileBoots):
    """Guests of the owner ``never`` do not end; the others read a few MiB within two seconds."""

    def __init__(self) -> None:
        self.running = 0

    def has_servers(self, image_id: str, created_before: float | None = None) -> bool:
        return False

    def remove_retired(self) -> None:
        pass

    def tell_unnamed(self) -> None:
        pass

    def run(self, image: ImageFacts, virtual_bytes: int, policy: properties.Policy,
            job: ImageJob) -> ProfileReport:
        self.running += 1
        began = time.monotonic()
        while image.owner == 'never' or time.monotonic() < began + BOOT_SECONDS:
            job.check_cancelled()
            time.sleep(0.05)
        self.running -= 1
        return ProfileReport(WorkingSet.from_wire(
            image.image_id, image.image_hash, virtual_bytes, 4096, _READS), 'marker', BOOT_SECONDS)


class Stage:
    """The storage service's parts on a directory.

    :param directory: of all that they keep.
    :param source: the qcow2 file that all images are.
    :param options: of the storage service.
    """

    def __init__(self, directory: str, source: str, **options: Any):
        self._glance, self._source = Path(directory, 'glance'), source
        self._glance.mkdir()
        with open(source, 'rb') as stream:
            self._hash = hashlib.file_digest(stream, 'sha512').hexdigest()
        conf = cfg.ConfigOpts()
        conf([], project='bootcache', default_config_files=[], default_config_dirs=[])
        glance_conf.register_opts(conf)
        for name, value in {'state_dir': f'{directory}/state', 'run_dir': f'{directory}/run',
                            'export_host': '127.0.0.1', 'changes_per_hour': 0,
                            'glance_store_dirs': str(self._glance), **options}.items():
            conf.set_override(name, value, bootcache_conf.GROUP)
        os.makedirs(f'{directory}/state')
        database = start.wait_for(conf)
        self._store = storedimages.opened(conf, database)
        self.exporter = Exporters(conf, self._store.state_path('clients.json'))
        self.exporter.start()
        self.boots = _ProfileBoots()
        glance, database = _Glance(directory), start.wait_for(conf)
        tiers = StorageTiers(conf, self._store, self.exporter, LastUses(database))
        tiers.start([])
        self._running = Running(conf[bootcache_conf.GROUP].concurrent_builds)
        retiring = Retiring(self._store, self.exporter, tiers, self.boots, ReportedNeeds(database),
                            Orders(database))
        work = ImageWork(conf, self._store, glance, self.exporter, tiers, self.boots,
                         DiskRoom(self._store, self._running, self.exporter, tiers), retiring,
                         ServiceMetrics())
        self.controller = Controller(conf, self._store, glance, work, self._running, retiring,
                                     Deletions(0, self._store, glance),
                                     StatePublisher(conf, glance))
        self.controller.start()
        self.controller.host_reported()
        self._count = 0
        self._of_owner: collections.defaultdict[str, list[str]] = collections.defaultdict(list)

    def register(self, owner: str) -> str:
        """Register an image; return its id."""
        image_id = f'{self._count:08x}-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
        self._count += 1
        self._of_owner[owner].append(image_id)
        os.link(self._source, self._glance / image_id)
        (self._glance / f'{image_id}.json').write_text(json.dumps({
            'id': image_id, 'status': 'active', 'disk_format': 'qcow2', 'container_format': 'bare',
            'size': os.stat(self._source).st_size, 'os_hash_algo': 'sha512',
            'os_hash_value': self._hash, 'min_ram': 0, 'min_disk': 0, 'visibility': 'private',
            'owner': owner, 'name': owner}))
        self.controller.image_changed(image_id)
        return image_id

    def bases(self, owner: str) -> int:
        """Return of how many of an owner's images there is a base."""
        return sum(manifest is not None and bool(manifest.made.base_path)
                   for manifest in map(self._store.load, self._of_owner[owner]))

    def seconds_until_ready(self, owner: str) -> float:
        """Register an image, and return how long it takes until it is ready.

        :raises RuntimeError: if it does not get so, or has to wait to be recorded.
        """
        began = time.monotonic()
        image_id = self.register(owner)
        while (manifest := self._store.load(image_id)) is None \
                or manifest.state is ImageState.PENDING or self._running.of(image_id):
            # One place is for whoever has none: it would wait for guests that never end.
            job = self._running.of(image_id)
            if job is not None and job.step == Step.RECORD and self._running.is_waiting(image_id):
                raise RuntimeError('it waits for a place to be recorded')
            time.sleep(0.01)
        if manifest.state is not ImageState.READY:
            raise RuntimeError(f'{manifest.state.value}: {manifest.reason}')
        return time.monotonic() - began


@dataclasses.dataclass(frozen=True)
class Measured:
    """How long one owner's images take.

    :ivar usual: seconds of each alone.
    :ivar beside: likewise beside another owner's.
    :ivar before: of how many of the other owner's images bases were got from when the first of
        those was registered until the last was ready.
    """

    usual: list[float]
    beside: list[float]
    before: int


def measure(source: str, images: int, repeats: int, **options: Any) -> Measured:
    """Have an owner's images get ready alone, and beside another owner's.

    :param source: a qcow2 file.
    :param images: of the other owner, whose guests do not end.
    :param repeats: how many of the one's are measured, one after the other.
    :param options: of the storage service.
    """
    # Beside the file, so that images are links.
    with tempfile.TemporaryDirectory(dir=os.path.dirname(os.path.abspath(source))) as directory:
        stage = Stage(directory, source, **options)
        try:
            usual = [stage.seconds_until_ready('one') for _image in range(repeats)]
            for _image in range(images):
                stage.register('never')
            while not stage.boots.running:
                time.sleep(0.05)
            before = stage.bases('never')
            beside = [stage.seconds_until_ready('one') for _image in range(repeats)]
            return Measured(usual, beside, stage.bases('never') - before)
        finally:
            stage.controller.stop()
            stage.exporter.stop()


def main() -> int:
    """Measure, print, and judge.

    :returns: 1 if an image takes more than twice its usual time.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('image', help='a qcow2 file, of which all images are')
    parser.add_argument('--images', type=int, default=200)
    parser.add_argument('--repeats', type=int, default=5)
    said = parser.parse_args()
    found = measure(said.image, said.images, said.repeats)
    figures = SimpleNamespace(usual=statistics.median(found.usual),
                              beside=statistics.median(found.beside))
    for name, seconds in (('alone', found.usual), (f'beside {said.images}', found.beside)):
        print(f'{name:12} median {statistics.median(seconds):.2f} s, of'
              f' {min(seconds):.2f} to {max(seconds):.2f}')
    ratio = figures.beside / figures.usual
    print(f'ratio {ratio:.2f}, at most {MOST_RATIO:g}')
    return int(ratio > MOST_RATIO)


if __name__ == '__main__':
    sys.exit(main())
