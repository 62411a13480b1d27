"""Snapshots under way at a real exporter and a real Ceph, sent as a host sends them.

Glance and Nova are not there: what they say of a snapshot is the test's.
"""

import os
import signal
import subprocess
import uuid

import nbd
import pytest
from functional_tools import until
from glance_rbd import MIB, obtained
from snapshot_bus import SnapshotBus
from test_snapshot_rbd import LARGE, assert_same, names, overlaid, snapshots  # noqa: F401

from bootcache import conf as bootcache_conf
from glance_bootcache.db import start
from glance_bootcache.snapshots.claims import ImageStanding
from glance_bootcache.snapshots.records import Records
from glance_bootcache.snapshots.sending import Sending
from glance_bootcache.snapshots.snapshotjobs import SnapshotJobs
from nova_bootcache.snapshots.sender import SentDisk, Snapshot, SnapshotRefused
from nova_bootcache.storagenode import PLAIN
from tools import storedimages


class Said:
    """What Glance and Nova say."""

    def __init__(self):
        self.why_not, self.stands = '', ImageStanding.WAITS

    def refusal(self, image_id, snapshot_id, host):
        return self.why_not

    def standing(self, record):
        return self.stands


class House:
    """A storage service's snapshots, and a host that sends some."""

    def __init__(self, conf, store, exporters, glance, image, directory):
        self.conf, self.directory, self.glance = conf, directory, glance
        self.path, self.facts = image
        self._store, self._exporters = store, exporters
        self.images = storedimages.opened(conf)
        storedimages.put(self.images, obtained(conf, self.facts))
        self.said, self.seconds = Said(), 1000.0
        self.restart()

    def restart(self):
        self.sending = Sending(self.conf, [self._store], self._exporters, self.directory)
        self.records = Records(start.wait_for(self.conf), 1)
        self.jobs = SnapshotJobs(self.conf, self.images, self._exporters, self.sending, self.said,
                                 self.records, None, lambda: self.seconds)

    def snapshot(self, *commands):
        """Return a snapshot that is about to be sent, and what is to be."""
        overlay = overlaid(self.path, self.directory, LARGE, *commands)
        return (Snapshot(SnapshotBus(self), PLAIN, self.facts.image_id, str(uuid.uuid4()), LARGE,
                         lambda *content: ''),
                SentDisk(overlay, self.path, 'raw', LARGE))

    def left(self):
        """Return all that there is of any snapshot."""
        run = self.conf.bootcache.run_dir
        open_ones = [export for export in self._exporters.common._daemon.exports()
                     if export.startswith('snapshot-')]
        return names(self.glance) + open_ones + self.records.all() + [
            name for name in os.listdir(self.directory) if name.startswith('look-')] + [
            name for name in os.listdir(run) if name == 'snapshots.pid' and self.sending_runs()]

    def sending_runs(self):
        return self.sending._daemon.runs

    def empties(self):
        """Wait until nothing is left."""
        def is_empty():
            self.seconds += 1000
            self.jobs.once()
            return self.left() == []

        until(is_empty, 'the end of all that was left', 120)


@pytest.fixture
def house(ceph_conf, snapshots, ceph_exporter, glance_store, ceph_image, directory):  # noqa: F811
    ceph_conf.set_override('snapshot_exporters', 'common', bootcache_conf.GROUP)
    house = House(ceph_conf, snapshots, ceph_exporter, glance_store, ceph_image, directory)
    yield house
    house.jobs.stop()
    house.sending.rest(lambda: True)


def test_a_snapshot_is_sent_and_glance_gets_it(house, glance_store):
    snapshot, overlay = house.snapshot('write -P 7 2M 300k', 'write -z 10M 1M',
                                       'write -P 9 50M 64k')
    told = snapshot.begin()
    assert told.disk_format == 'raw' and told.tls is False
    assert house.facts.image_id not in told.export and snapshot.snapshot_id not in told.export
    with snapshot.kept():
        snapshot.send(told, overlay)
    url = snapshot.finish()
    assert url == snapshot.finish(), 'asked once more, as an answer may be lost'
    assert url.endswith(f'/snapshots/{snapshot.snapshot_id}/snap')
    assert_same(glance_store, snapshot.snapshot_id, overlay.path)
    # Nobody can write it any more.
    client = nbd.NBD()
    client.set_export_name(told.export)
    with pytest.raises(nbd.Error):
        client.connect_tcp('127.0.0.1', str(told.server[1]))

    house.jobs.once()
    assert [record.stage.value for record in house.records.all()] == ['finished']
    house.said.stands = ImageStanding.HAS
    until(lambda: house.jobs.once() or not house.records.all(), 'the end of the record')
    assert names(glance_store) == [snapshot.snapshot_id], 'it is Glance\'s'


@pytest.mark.parametrize('when', ['begun', 'sent', 'finished'])
def test_what_a_host_gives_up_is_removed(house, when):
    snapshot, overlay = house.snapshot('write -P 7 2M 300k')
    told = snapshot.begin()
    if when != 'begun':
        snapshot.send(told, overlay)
    if when == 'finished':
        snapshot.finish()
    snapshot.abandon()
    house.empties()
    with pytest.raises(SnapshotRefused, match='does not know it any more'):
        snapshot.finish()


@pytest.mark.parametrize('when', ['begun', 'sent'])
def test_a_crash_of_the_service_leaves_nothing(house, when):
    snapshot, overlay = house.snapshot('write -P 7 2M 300k')
    told = snapshot.begin()
    if when == 'sent':
        snapshot.send(told, overlay)
    house.restart()
    with pytest.raises(SnapshotRefused, match='does not know it any more'):
        snapshot.finish()
    house.jobs.start()
    house.empties()
    # Its host goes on for as long as it has not heard: it gets no new copy, which would lack what
    # it has sent.
    with pytest.raises(SnapshotRefused, match='given up'):
        snapshot.begin()
        assert_same(house.glance, snapshot.finish().split('/')[-2], overlay.path)
    house.empties()


def test_what_has_no_record_is_left_in_ceph_and_told_of(house, caplog):
    """It may be another storage service's, or of a database that was lost."""
    snapshot, _overlay = house.snapshot()
    snapshot.begin()
    record = house.records.get(snapshot.snapshot_id)
    house.records.drop(record)
    house.restart()
    house.sending.rest(lambda: True)
    for _round in range(2):
        house.jobs.once()
    assert names(house.glance) != []
    assert caplog.text.count(f'are left, as {snapshot.snapshot_id}') == 1
    house.records.put(record)
    until(lambda: house.jobs.once() or names(house.glance) == [], 'the end of the clone', 120)


def test_one_that_glance_is_taking_stays_until_it_is_known(house, glance_store):
    snapshot, _overlay = house.snapshot()
    snapshot.begin()
    snapshot.finish()
    house.said.stands = ImageStanding.TAKING
    snapshot.abandon()
    until(lambda: house.records.all()[0].stage.value == 'withdrawn', 'the giving up')
    house.jobs.once()
    assert names(glance_store) == [snapshot.snapshot_id]
    house.said.stands = ImageStanding.HAS
    until(lambda: house.jobs.once() or not house.records.all(), 'the end of the record')
    assert names(glance_store) == [snapshot.snapshot_id]


def test_a_host_that_is_silent_is_given_up(house):
    snapshot, overlay = house.snapshot('write -P 7 2M 300k')
    told = snapshot.begin()
    house.seconds += 119
    house.jobs.once()
    snapshot.send(told, overlay)
    house.empties()
    with pytest.raises(SnapshotRefused):
        snapshot.finish()


def test_a_disk_that_is_no_raw_image_is_refused_and_leaves_nothing(house):
    snapshot, overlay = house.snapshot()
    inner = f'{house.directory}/inner'
    subprocess.run(['qemu-img', 'create', '-q', '-f', 'qcow2', inner, '1M'], check=True)
    subprocess.run(['qemu-io', '-f', 'qcow2', '-c', f'write -s {inner} 0 64k', overlay.path],
                   check=True, stdout=subprocess.DEVNULL)
    snapshot.send(snapshot.begin(), overlay)
    with pytest.raises(SnapshotRefused, match='the content is qcow2'):
        snapshot.finish()
    house.empties()


def test_a_daemon_that_dies_meanwhile(house):
    snapshot, overlay = house.snapshot('write -P 7 2M 300k')
    told = snapshot.begin()
    with open(f'{house.conf.bootcache.run_dir}/snapshots.pid') as stream:
        os.kill(int(stream.read()), signal.SIGKILL)
    with pytest.raises(SnapshotRefused, match='cannot be sent'):
        snapshot.send(told, overlay)
    with pytest.raises(SnapshotRefused, match='has ended meanwhile'):
        snapshot.finish()
    house.empties()


def test_one_of_a_daemon_that_died_is_not_finished_by_the_next(house):
    """What a host has sent may have been in the memory of the first one only."""
    snapshot, overlay = house.snapshot('write -P 7 2M 300k')
    snapshot.send(snapshot.begin(), overlay)
    with open(f'{house.conf.bootcache.run_dir}/snapshots.pid') as stream:
        os.kill(int(stream.read()), signal.SIGKILL)
    other, _overlay = house.snapshot()
    other.begin()
    with pytest.raises(SnapshotRefused, match='has ended meanwhile'):
        snapshot.finish()
    assert other.finish()
    other.abandon()
    house.empties()


def test_who_may_not(house):
    house.said.why_not = 'Nova does not have its server on host compute-1'
    refused, _overlay = house.snapshot()
    with pytest.raises(SnapshotRefused, match='Nova does not have its server'):
        refused.begin()
    house.said.why_not = ''
    # Another host, or another secret.
    snapshot, _overlay = house.snapshot()
    snapshot.begin()
    other = Snapshot(SnapshotBus(house), PLAIN, house.facts.image_id, snapshot.snapshot_id, LARGE,
                     lambda *content: '')
    with pytest.raises(SnapshotRefused, match='another host'):
        other.begin()
    with pytest.raises(SnapshotRefused, match='another host'):
        other.finish()
    other.abandon()
    assert snapshot.begin().export
    # Too many.
    house.conf.set_override('snapshots_per_host', 1, bootcache_conf.GROUP)
    with pytest.raises(SnapshotRefused, match='snapshots_per_host'):
        house.snapshot()[0].begin()
    # A host that shares its exporter with others, who can learn all names.
    house.conf.set_override('snapshots_per_host', 8, bootcache_conf.GROUP)
    house.conf.set_override('snapshot_exporters', 'own', bootcache_conf.GROUP)
    with pytest.raises(SnapshotRefused, match='no exporter of its own'):
        house.snapshot()[0].begin()
    snapshot.abandon()
    house.empties()


def test_bytes_beyond_the_disk_cannot_be_written(house):
    snapshot, _overlay = house.snapshot()
    told = snapshot.begin()
    client = nbd.NBD()
    client.set_export_name(told.export)
    client.connect_tcp('127.0.0.1', str(told.server[1]))
    assert client.get_size() == LARGE
    client.set_strict_mode(0)
    with pytest.raises(nbd.Error):
        client.pwrite(b'x' * MIB, LARGE)
    client.shutdown()
    snapshot.abandon()
    house.empties()


def test_an_image_that_is_not_in_ceph(house, make_base):
    path = make_base(f'{house.directory}/file', 4 * MIB, [(0, MIB, 'data')])
    manifest = house.images.load(house.facts.image_id)
    storedimages.put(house.images, manifest.making(base_path=path))
    with pytest.raises(SnapshotRefused, match='not read in Ceph'):
        house.snapshot()[0].begin()
    assert house.left() == []
