"""Snapshots under way on Glance's file store: a real exporter, real Glances on XFS, sent as a host
sends them, registered or uploaded as Nova and the service do.

Nova is not there: what it says of a snapshot is the test's. tests/e2e has all of it.
"""

import glob
import io
import os
import subprocess
import threading
import uuid

import pytest
from functional_tools import qemu_img, until
from glance_files import ALWAYS, BASE, MIB, NEVER, PIECES, SIZE, tried
from real_glance import ADMIN
from reflinks import used
from snapshot_bus import SnapshotBus
from test_file_snapshots import glance, home, place, plain_glance  # noqa: F401

from bootcache import conf as bootcache_conf
from bootcache import qemuimg
from bootcache.manifest import Made, Manifest, Standing
from bootcache.rpc.messages import SnapshotProgress
from glance_bootcache.filestore.snapshots import FileSnapshots
from glance_bootcache.glance.images import Images
from glance_bootcache.snapshots.claims import Claims
from glance_bootcache.snapshots.records import Records
from glance_bootcache.snapshots.sending import Sending
from glance_bootcache.snapshots.snapshotjobs import SnapshotJobs
from glance_bootcache.storage.exporters import Exporters
from nova_bootcache.snapshots.sender import SentDisk, Snapshot, SnapshotRefused
from nova_bootcache.storagenode import PLAIN
from tools import storedimages

LARGE = SIZE + 32 * MIB
COMMANDS = ('write -P 7 2M 300k', 'write -z 10M 1M', f'write -P 9 {SIZE // MIB + 8}M 64k')


class KnownOf(Claims):
    """What Glance says, and what Nova would."""

    def __init__(self, glance):  # noqa: F811
        self._glance = Images.__new__(Images)
        self._glance._client = glance.client(ADMIN)

    def refusal(self, image_id, snapshot_id, host):
        return ''


class Held:
    """Glance's upload, as the service calls it; it can be made to wait in the midst."""

    def __init__(self, glance):  # noqa: F811
        self._images = glance.client(ADMIN).images
        self.goes_on, self.begun = threading.Event(), threading.Event()
        self.goes_on.set()

    def upload(self, image_id, stream, stored_bytes):
        house = self

        class Slow:
            """A stream that does."""

            def read(self, size=-1):
                found = stream.read(size)
                house.begun.set()
                assert house.goes_on.wait(60)
                return found

        self._images.upload(image_id, Slow(), image_size=stored_bytes)


class House:
    """A storage service's snapshots, a Glance, and a host that sends some."""

    def __init__(self, conf, database, directory, glance, base, image_format,  # noqa: F811
                 registrars=None):
        self.conf, self.directory, self.glance = conf, directory, glance
        self.database = database
        self.base, self.format, self._registrars = base, image_format, registrars
        conf.set_override('glance_store_dirs', [glance.images], bootcache_conf.GROUP)
        conf.set_override('snapshot_exporters', 'common', bootcache_conf.GROUP)
        self.exporters = Exporters(conf, f'{directory}/clients.json')
        self.exporters.start()
        self.images = storedimages.opened(conf, database)
        storedimages.put(self.images, Manifest(BASE, Standing.DONE, made=Made(
            image_format=image_format, virtual_bytes=SIZE, base_path=base,
            base_export=f'base-{BASE}')))
        self.claims, self.uploads, self.seconds = KnownOf(glance), Held(glance), 1000.0
        self.restart()

    def restart(self):
        self.store = FileSnapshots(self.conf, self._registrars) if self._registrars \
            else tried(self.conf, self.glance)
        self.sending = Sending(self.conf, [self.store], self.exporters, self.directory)
        self.records = Records(self.database, 1)
        self.jobs = SnapshotJobs(self.conf, self.images, self.exporters, self.sending, self.claims,
                                 self.records, self.uploads, lambda: self.seconds)

    def snapshot(self):
        """Return a snapshot that is about to be sent, what is to be, and the disk as a raw file."""
        overlay = f'{self.directory}/overlay-{uuid.uuid4()}'
        qemuimg.create_overlay(overlay, LARGE, self.base, self.format, cluster_bytes=131072,
                               subclusters=True)
        for command in COMMANDS:
            subprocess.run(['qemu-io', '-f', 'qcow2', '-c', command, overlay], check=True,
                           stdout=subprocess.DEVNULL)
        qemu_img('convert', '-f', 'qcow2', '-O', 'raw', overlay, f'{overlay}.raw')
        # As Nova makes it: what it is is known later.
        image = self.glance.image(disk_format=None, container_format=None)
        return (Snapshot(SnapshotBus(self), PLAIN, BASE, image, LARGE, lambda *content: ''),
                SentDisk(overlay, self.base, self.format, LARGE), f'{overlay}.raw')

    def sent(self):
        """Return a snapshot that was sent, and where it is."""
        snapshot, overlay, wanted = self.snapshot()
        told = snapshot.begin()
        assert told.disk_format == self.format
        with snapshot.kept():
            snapshot.send(told, overlay)
        return snapshot, snapshot.finish(), wanted

    def describe(self, snapshot):
        """As Nova does, before it adds a location if it has one."""
        self.glance.client().images.update(snapshot.snapshot_id, disk_format=self.format,
                                           container_format='bare')

    def works(self):
        """Return the files of snapshots under way."""
        state = self.conf.bootcache.state_dir
        return [path for pattern in (f'{self.glance.images}/.bootcache/*', f'{state}/snapshots/*')
                for path in glob.glob(pattern)]

    def empties(self):
        """Wait until nothing is under way."""
        def is_empty():
            self.seconds += 1000
            self.jobs.once()
            return not self.records.all() and not self.works()

        until(is_empty, 'the end of all that was left', 120)

    def close(self):
        self.jobs.stop()
        self.sending.rest(lambda: True)
        self.exporters.stop()


@pytest.fixture
def house(storage_conf, database, directory, make_base, place):  # noqa: F811
    """Makes houses, on a base that is on the store's file system unless another one is wanted.

    SQLite follows links, and that file system is reached by one of another process.
    """
    made = []

    def make(glance, image_format='raw', home=None, **options):  # noqa: F811
        os.makedirs(home := home or f'{place}/bases-{uuid.uuid4()}')
        storage_conf.set_override('state_dir', f'{home}/state', bootcache_conf.GROUP)
        base = make_base(f'{home}/base', SIZE, PIECES, image_format)
        made.append(House(storage_conf, database, directory, glance, base, image_format, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()
        for name in os.listdir(each.glance.images):
            if os.path.isfile(f'{each.glance.images}/{name}'):
                os.unlink(f'{each.glance.images}/{name}')


def same(house, snapshot, wanted):
    assert house.glance.client().images.get(snapshot.snapshot_id)['disk_format'] == house.format
    qemu_img('compare', '-f', house.format, '-F', 'raw', house.glance.file(snapshot.snapshot_id),
             wanted)


@pytest.mark.parametrize('image_format', ['raw', 'qcow2'])
def test_with_the_driver_it_is_registered_as_it_is(house, glance, place, image_format):  # noqa: F811
    house = house(glance, image_format)
    before = used(place)
    snapshot, url, wanted = house.sent()
    assert url == f'bootcache://file/{snapshot.snapshot_id}'
    house.describe(snapshot)
    glance.add_location(snapshot.snapshot_id, url)
    glance.wait(snapshot.snapshot_id)
    same(house, snapshot, wanted)
    house.empties()
    same(house, snapshot, wanted)
    assert used(place) - before < 4 * MIB


@pytest.mark.parametrize('image_format', ['raw', 'qcow2'])
def test_without_it_it_is_uploaded_and_shares(house, plain_glance, place, image_format):  # noqa: F811
    house = house(plain_glance, image_format)
    before = used(place)
    snapshot, url, wanted = house.sent()
    assert url == ''
    # Nobody has said yet what it is.
    assert plain_glance.status(snapshot.snapshot_id) == 'queued'
    house.describe(snapshot)
    snapshot.upload()
    assert plain_glance.status(snapshot.snapshot_id) == 'active'
    same(house, snapshot, wanted)
    house.empties()
    same(house, snapshot, wanted)
    assert used(place) - before < 4 * MIB
    # A host that goes wrong then does no harm.
    snapshot.abandon()
    house.jobs.once()
    same(house, snapshot, wanted)


def test_without_reflinks_only_the_network_is_saved(house, plain_glance, directory, caplog):  # noqa: F811
    house = house(plain_glance, home=f'{directory}/elsewhere')
    for _time in range(2):
        snapshot, _url, wanted = house.sent()
        house.describe(snapshot)
        snapshot.upload()
        same(house, snapshot, wanted)
        house.empties()
    assert caplog.text.count('only the network is saved') == 1


def test_a_glance_that_does_not_take_the_upload(house, plain_glance):  # noqa: F811
    house = house(plain_glance)
    snapshot, _url, _wanted = house.sent()
    # It does not know what it is.
    with pytest.raises(SnapshotRefused, match='disk_format'):
        snapshot.upload()
    snapshot.abandon()
    assert not house.records.all() and not house.works()
    stock_can(house, snapshot)


def test_a_glance_that_does_not_take_the_location(house, plain_glance):  # noqa: F811
    """Glance keeps nothing for stock Nova's way under the name that a file has."""
    house = house(plain_glance, registrars=ALWAYS)
    snapshot, url, _wanted = house.sent()
    assert url and os.path.exists(plain_glance.file(snapshot.snapshot_id))
    snapshot.abandon()
    assert not house.records.all() and not house.works()
    stock_can(house, snapshot)


def stock_can(house, snapshot):
    """Stock Nova's way: it comes to the end."""
    house.describe(snapshot)
    with open('/dev/urandom', 'rb') as stream:
        content = stream.read(MIB)
    house.glance.client().images.upload(snapshot.snapshot_id, io.BytesIO(content))
    assert house.glance.content(snapshot.snapshot_id) == content
    house.seconds += 10_000
    house.jobs.once()
    house.jobs.once()
    assert house.glance.content(snapshot.snapshot_id) == content


@pytest.mark.parametrize('when', ['begun', 'sent', 'held', 'placed'])
def test_a_crash_leaves_nothing(house, glance, when):  # noqa: F811
    house = house(glance, registrars=NEVER if when == 'held' else ALWAYS)
    snapshot, overlay, _wanted = house.snapshot()
    told = snapshot.begin()
    if when != 'begun':
        snapshot.send(told, overlay)
    if when in ('placed', 'held'):
        # The service ends before it has said so to anybody.
        snapshot._is_placed = True
        job = house.jobs._jobs[snapshot.snapshot_id]
        house.sending.finish(job.record, LARGE, lambda: None, house.records.put)
    house.jobs.stop()
    house.restart()
    house.sending.rest(lambda: True)
    with pytest.raises(SnapshotRefused, match='does not know it any more'):
        snapshot.finish()
    house.jobs.start()
    # Stock Nova's way begins when nothing is left that it would meet.
    snapshot.abandon()
    assert not os.path.exists(glance.file(snapshot.snapshot_id))
    house.empties()
    stock_can(house, snapshot)


@pytest.mark.parametrize('when', ['begun', 'sent'])
def test_what_has_no_record_is_left_and_told_of(house, glance, when, caplog):  # noqa: F811
    """It may be another storage service's, or of a database that was lost."""
    house = house(glance, registrars=ALWAYS)
    snapshot, overlay, _wanted = house.snapshot()
    told = snapshot.begin()
    if when == 'sent':
        snapshot.send(told, overlay)
    record = house.records.get(snapshot.snapshot_id)
    house.records.drop(record)
    house.jobs.stop()
    house.restart()
    house.sending.rest(lambda: True)
    for _round in range(2):
        house.jobs.once()
    assert house.works() != []
    assert caplog.text.count(f'are left, as {snapshot.snapshot_id}') == 1
    house.records.put(record)
    house.empties()


@pytest.mark.parametrize('when', ['begun', 'sent'])
def test_stock_novas_way_is_over_before_a_crash_is_looked_at(house, glance, when):  # noqa: F811
    house = house(glance, registrars=ALWAYS)
    snapshot, overlay, _wanted = house.snapshot()
    told = snapshot.begin()
    if when == 'sent':
        snapshot.send(told, overlay)
    house.jobs.stop()
    house.restart()
    house.sending.rest(lambda: True)
    house.describe(snapshot)
    content = os.urandom(MIB)
    glance.client().images.upload(snapshot.snapshot_id, io.BytesIO(content))
    # The first notes that nobody goes on with it. No time goes by: nothing else is looked for.
    house.jobs.once()
    house.jobs.once()
    assert not house.records.all() and not house.works()
    assert glance.content(snapshot.snapshot_id) == content


def test_a_crash_while_it_is_uploaded(house, plain_glance):  # noqa: F811
    house = house(plain_glance, registrars=NEVER)
    snapshot, _url, _wanted = house.sent()
    house.describe(snapshot)
    house.uploads.goes_on.clear()
    assert house.jobs.upload(snapshot.snapshot_id, snapshot._token) == SnapshotProgress()
    assert house.uploads.begun.wait(60)
    until(lambda: plain_glance.status(snapshot.snapshot_id) == 'saving', 'the upload')
    older, crashed = house.uploads, house.jobs
    house.uploads = Held(plain_glance)
    house.restart()
    house.jobs.once()
    house.jobs.once()
    assert [record.stage.value for record in house.records.all()] == ['withdrawn'], 'it is taken'
    # Its connection ends with the process.
    crashed.stop()
    older.goes_on.set()
    until(lambda: plain_glance.status(snapshot.snapshot_id) == 'queued', 'the end of it')
    with pytest.raises(SnapshotRefused, match='does not know it any more'):
        snapshot.upload()
    house.empties()
    stock_can(house, snapshot)


def test_another_ones_image_is_not_touched(house, glance):  # noqa: F811
    """A file of that name is there already: a host that lies, or stock Nova's way came first."""
    house = house(glance, registrars=ALWAYS)
    snapshot, overlay, _wanted = house.snapshot()
    told = snapshot.begin()
    snapshot.send(told, overlay)
    with open(glance.file(snapshot.snapshot_id), 'xb') as stream:
        stream.write(b'another')
    with pytest.raises(SnapshotRefused, match='nothing replaces an image'):
        snapshot.finish()
    snapshot.abandon()
    house.empties()
    with open(glance.file(snapshot.snapshot_id), 'rb') as stream:
        assert stream.read() == b'another'


def test_a_hostile_content_is_refused_and_leaves_nothing(house, glance):  # noqa: F811
    house = house(glance, registrars=ALWAYS)
    snapshot, overlay, _wanted = house.snapshot()
    inner = f'{house.directory}/inner'
    subprocess.run(['qemu-img', 'create', '-q', '-f', 'qcow2', inner, '1M'], check=True)
    subprocess.run(['qemu-io', '-f', 'qcow2', '-c', f'write -s {inner} 0 64k', overlay.path],
                   check=True, stdout=subprocess.DEVNULL)
    snapshot.send(snapshot.begin(), overlay)
    with pytest.raises(SnapshotRefused, match='the content is qcow2'):
        snapshot.finish()
    snapshot.abandon()
    assert not house.works() and not os.path.exists(glance.file(snapshot.snapshot_id))
