"""Whether a snapshot is what a host says, as Glance and Nova tell; both are stand-ins."""

import types

import pytest
from oslo_utils.fixture import uuidsentinel

from bootcache import exception
from bootcache.ceph.snapshotcommands import SnapshotCommands
from glance_bootcache import startchecks
from glance_bootcache.snapshots.claims import Claims, ImageStanding
from glance_bootcache.snapshots.rbdstore import RbdSnapshots
from glance_bootcache.snapshots.records import Record
from glance_bootcache.snapshots.sending import Sending
from tools import storedimages

IMAGE, SNAPSHOT, SERVER = uuidsentinel.image, uuidsentinel.snapshot, uuidsentinel.server


@pytest.mark.parametrize('image, server, why', [
    (None, None, 'no such image'), (('active', SERVER), None, 'no such image'),
    (('queued', None), None, 'of no server'), (('queued', SERVER), ('two', IMAGE), 'on host one'),
    (('queued', SERVER), ('one', SERVER), 'not made of image'), (('queued', SERVER), ('one', IMAGE),
                                                                '')])
def test_glance_and_nova_know_whose_snapshot_it_is(image, server, why):
    claims = Claims.__new__(Claims)
    claims._glance = types.SimpleNamespace(get=lambda image_id: image and types.SimpleNamespace(
        status=image[0], properties={'instance_uuid': image[1]}))
    claims._nova = types.SimpleNamespace(servers=types.SimpleNamespace(
        get=lambda server_id: types.SimpleNamespace(**{
            'OS-EXT-SRV-ATTR:host': server[0], 'image': {'id': server[1]}})))
    refusal = claims.refusal(IMAGE, SNAPSHOT, 'one')
    assert why in refusal and bool(why) is bool(refusal)


@pytest.mark.parametrize('status, disk_format, standing', [
    ('queued', 'raw', 'waits'), ('importing', 'raw', 'taking'), ('saving', 'qcow2', 'taking'),
    ('active', 'raw', 'has'), ('active', 'qcow2', 'absent'), ('deleted', 'raw', 'absent')])
def test_how_an_image_stands_to_its_snapshot(status, disk_format, standing):
    claims = Claims.__new__(Claims)
    claims._glance = types.SimpleNamespace(get=lambda image_id: types.SimpleNamespace(
        status=status, disk_format=disk_format, properties={}))
    assert claims.standing(Record(SNAPSHOT, disk_format='raw')).value == standing


@pytest.mark.parametrize('listed, standing', [(True, 'absent'), (False, 'taking')])
def test_one_answer_of_404_removes_no_snapshot(listed, standing):
    claims = Claims.__new__(Claims)
    claims._glance = types.SimpleNamespace(get=lambda image_id: None)
    claims._is_listed_without = lambda image_id: listed
    assert claims.standing(Record(SNAPSHOT, disk_format='raw')).value == standing


def test_a_listing_of_before_it_was_made_says_nothing_of_a_snapshot(house):
    """Another one's 404 had it made; then glance-api is restarted behind an ingress."""
    claims = Claims.__new__(Claims)
    claims._glance = house.images
    claims._is_listed_without = house.deletions.is_listed_without
    house.images.put(IMAGE)
    house.changed(IMAGE)
    house.settle()
    assert claims.standing(Record(uuidsentinel.gone)) is ImageStanding.ABSENT
    house.images.put(SNAPSHOT)
    house.images.get, house.images.away = lambda image_id: None, True
    for _second in range(20):
        house.seconds.sleep(1)
        with pytest.raises(RuntimeError, match='Glance is away'):
            claims.standing(Record(SNAPSHOT))
    house.images.away = False
    assert claims.standing(Record(SNAPSHOT)) is ImageStanding.TAKING
    del house.images.images[SNAPSHOT]
    assert claims.standing(Record(SNAPSHOT)) is ImageStanding.ABSENT


@pytest.mark.parametrize('known, standing', [
    ({}, 'has'), ({'disk_format': 'qcow2'}, 'has'), ({'disk_format': 'raw'}, 'absent'),
    ({'disk_format': 'qcow2', 'file': '5:1:1', 'glance_store': 'file'}, 'has'),
    ({'disk_format': 'qcow2', 'file': '5:1:1', 'glance_store': 'fil'}, 'absent'),
    ({'disk_format': 'qcow2', 'glance_store': 'fil'}, 'has')])
def test_an_image_of_stocks_way_is_not_taken_for_ours(known, standing):
    claims = Claims.__new__(Claims)
    claims._glance = types.SimpleNamespace(get=lambda image_id: types.SimpleNamespace(
        status='active', disk_format='qcow2', properties={'stores': 'other,file'}))
    assert claims.standing(Record(SNAPSHOT, **known)).value == standing


def test_a_trash_that_takes_long_keeps_no_snapshot_from_being_made(storage_conf, database,
                                                                   monkeypatch):
    storage_conf.set_override('rbd_snapshot_pool', 'snapshots', 'bootcache')
    store = RbdSnapshots(storage_conf, storedimages.opened(storage_conf, database).files)

    def purge(self, pool):
        raise exception.Interrupted('rbd trash purge was not done after 60 s')

    monkeypatch.setattr(SnapshotCommands, 'purge', purge)
    monkeypatch.setattr(SnapshotCommands, 'clones', lambda self, pool, namespace: [])
    store.tidy()
    assert store.left() == []


def test_a_pool_for_snapshots_without_glances_is_told(storage_conf, caplog):
    storage_conf.set_override('rbd_snapshot_pool', 'snapshots', 'bootcache')
    startchecks.check_ceph(storage_conf)
    assert 'without rbd_store_pool' in caplog.text


def test_what_was_looked_at_when_the_service_was_killed_is_removed(storage_conf, tmp_path):
    (tmp_path / 'look-x1').write_bytes(b'of a tenant')
    (tmp_path / 'snapshots.json').write_text('{}')
    Sending(storage_conf, [], None, str(tmp_path)).sweep()
    assert not (tmp_path / 'look-x1').exists() and (tmp_path / 'snapshots.json').exists()
