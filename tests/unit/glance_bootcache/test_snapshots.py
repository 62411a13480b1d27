"""Snapshots under way: decisions and records. Stores, exporters, Glance and Nova are stand-ins;
tests/functional/test_snapshot_jobs.py has real ones."""

import dataclasses
import threading
import time
import types

import pytest
from fakes_database import locked
from fakes_snapshots import Sends, Uploads
from oslo_utils.fixture import uuidsentinel

from bootcache import exception
from bootcache.manifest import Made, Manifest
from bootcache.rpc.messages import BeginSnapshot, SnapshotProgress
from bootcache.util import logthrottle
from glance_bootcache.nodes.node import StorageNode
from glance_bootcache.snapshots import snapshotjobs
from glance_bootcache.snapshots.claims import ImageStanding
from glance_bootcache.snapshots.records import Record, Records, Stage
from glance_bootcache.snapshots.snapshotjobs import SnapshotJobs
from glance_bootcache.snapshots.stores import SnapshotUnfit

IMAGE, SNAPSHOT, SERVER = uuidsentinel.image, uuidsentinel.snapshot, uuidsentinel.server
TOKEN = 'f' * 32


@pytest.fixture
def house(storage_conf, database, tmp_path):
    for name in 'one', 'two':
        StorageNode(database, str(tmp_path / name), name, lambda seconds: None)
    house = types.SimpleNamespace(sends=Sends(), uploads=Uploads(), seconds=1000.0,
                                  refusal='', may_remove=True,
                                  standing=ImageStanding.WAITS, certificate='CN=one')
    images = types.SimpleNamespace(load=lambda image_id: Manifest(image_id, made=Made(
        base_path='rbd:a/b/c')) if image_id == IMAGE else None,
        files=types.SimpleNamespace(may_remove=lambda: house.may_remove))
    claims = types.SimpleNamespace(refusal=lambda *arguments: house.refusal,
                                   standing=lambda *arguments: house.standing)
    exporters = types.SimpleNamespace(know=lambda host, certificate: house.certificate)

    def restart():
        house.records = Records(database, 1)
        house.jobs = SnapshotJobs(storage_conf, images, exporters, house.sends, claims,
                                  house.records, house.uploads, lambda: house.seconds)

    def ask(what, wanted, **named):
        deadline = time.monotonic() + 20
        while not getattr(told := what(**named), wanted) and not told.refused:
            assert time.monotonic() < deadline, told
            time.sleep(0.01)
        return told

    house.restart = restart
    house.begin = lambda snapshot=SNAPSHOT, token=TOKEN, host='one', image=IMAGE: ask(
        house.jobs.begin, 'export', message=BeginSnapshot(image, snapshot, host, 'CN=one', token,
                                                          512))
    house.finish = lambda wanted='url': ask(house.jobs.finish, wanted, snapshot_id=SNAPSHOT,
                                            token=TOKEN)
    house.upload = lambda: ask(house.jobs.upload, 'uploaded', snapshot_id=SNAPSHOT, token=TOKEN)
    house.stages = lambda: [record.stage for record in house.records.all()]

    def until_stages(*wanted):
        deadline = time.monotonic() + 20
        while house.stages() != list(wanted):
            assert time.monotonic() < deadline, house.stages()
            time.sleep(0.01)

    house.until_stages = until_stages
    restart()
    yield house
    house.jobs.stop()


def test_from_the_first_to_the_last(house):
    told = house.begin()
    assert told.export.startswith('snapshot-') and len(told.export) > 40
    assert house.stages() == [Stage.BEGUN] and house.begin() == told
    assert house.finish() == SnapshotProgress(url='rbd://x') and house.stages() == [Stage.FINISHED]
    assert house.finish() == SnapshotProgress(url='rbd://x')
    house.standing = ImageStanding.HAS
    house.jobs.once()
    house.jobs.once()
    assert house.stages() == [] and house.sends.did.count('settled') == 1
    assert 'give_up' not in house.sends.did and 'discard' not in house.sends.did


@pytest.mark.parametrize('step', ['choose', 'begin', 'finish'])
@pytest.mark.parametrize('error', [SnapshotUnfit('why not'), exception.Interrupted('Ceph is away')])
def test_what_fails_is_told_and_removed(house, step, error, caplog):
    house.sends.fails[step] = error
    told = house.begin()
    if step == 'finish':
        told = house.finish()
    assert told == SnapshotProgress(refused=str(error))
    house.until_stages()
    assert ('give_up' in house.sends.did) is (step != 'choose')
    # What is always so here is no warning.
    warned = [record for record in caplog.records if record.levelname == 'WARNING']
    assert bool(warned) is not isinstance(error, SnapshotUnfit)


def test_one_that_leaves_others_no_room_is_given_up(house):
    """While a host writes it."""
    house.begin()
    house.jobs.once()
    assert house.stages() == [Stage.BEGUN]
    house.sends.fails['room'] = exception.StorageNodeFull('/glance has 5 bytes left')
    house.jobs.once()
    assert house.finish() == SnapshotProgress(refused='/glance has 5 bytes left')
    house.until_stages()
    assert 'give_up' in house.sends.did


def test_a_service_that_ends_says_so(house):
    house.begin()
    house.jobs.stop()
    assert house.finish().refused == 'the storage service ends'
    assert house.jobs.abandon(SNAPSHOT, TOKEN) is False, 'the next start removes it'


def test_an_error_of_our_own_is_told_and_removed(house):
    house.sends.fails['begin'] = KeyError('a bug')
    assert house.begin().refused
    house.until_stages()


def test_what_is_given_up_while_it_begins(house):
    house.sends.goes_on.clear()
    assert house.jobs.begin(
        BeginSnapshot(IMAGE, SNAPSHOT, 'one', 'CN=one', TOKEN, 512)) == SnapshotProgress()
    house.jobs.abandon(SNAPSHOT, TOKEN)
    house.sends.goes_on.set()
    deadline = time.monotonic() + 20
    while house.stages() or house.sends.did[-1:] != ['give_up']:
        # What was given up twice at once is removed by the next look.
        house.jobs.once()
        assert time.monotonic() < deadline, house.sends.did
        time.sleep(0.01)


@pytest.mark.parametrize('standing, stays, done', [
    (ImageStanding.WAITS, False, 'give_up'), (ImageStanding.ABSENT, False, 'give_up'),
    (ImageStanding.HAS, False, 'settled'), (ImageStanding.TAKING, True, 'finish')])
def test_what_glance_has_or_is_taking_is_not_removed(house, standing, stays, done):
    house.begin()
    house.finish()
    house.standing = standing
    house.jobs.abandon(SNAPSHOT, TOKEN)
    house.until_stages(*[Stage.WITHDRAWN] * stays)
    assert house.sends.did[-1] == done


@pytest.mark.parametrize('standing, age, goes', [
    (ImageStanding.WAITS, 3500, False), (ImageStanding.TAKING, 9000, False),
    (ImageStanding.WAITS, 3700, True), (ImageStanding.ABSENT, 0, True)])
def test_what_nova_was_told_of_goes_after_an_hour_and_not_by_one_answer(house, standing, age, goes):
    house.records.put(Record(SNAPSHOT, 'rbd', 'one', 'snapshot-x', Stage.FINISHED,
                             time.time() - age))
    house.standing = standing
    house.jobs.once()
    assert house.stages() == [Stage.WITHDRAWN if goes else Stage.FINISHED]
    house.jobs.once()
    assert house.stages() == ([] if goes else [Stage.FINISHED])


@pytest.fixture
def held(house, tmp_path):
    """The house with a snapshot that is to be uploaded."""
    (tmp_path / 'work').write_bytes(b'the disk')
    house.sends.url, house.sends.work = '', str(tmp_path / 'work')
    house.begin()
    assert house.finish('upload') == SnapshotProgress(upload=True) == house.finish('upload')
    assert house.stages() == [Stage.BEGUN], 'a crash finds it'
    return house


def test_one_that_no_store_registers_is_uploaded_when_its_host_says_so(held):
    assert held.jobs.upload(SNAPSHOT, 'e' * 32) == SnapshotProgress(refused='another host sends it')
    assert held.jobs.upload(IMAGE, TOKEN).refused
    assert not held.uploads.took
    assert held.upload() == SnapshotProgress(uploaded=True) == held.upload()
    assert held.uploads.took == {SNAPSHOT: b'the disk'}
    held.standing = ImageStanding.HAS
    held.jobs.once()
    assert held.stages() == [] and held.sends.did[-1] == 'settled'
    assert held.jobs.abandon(SNAPSHOT, TOKEN)
    held.jobs.once()
    assert 'give_up' not in held.sends.did and 'discard' not in held.sends.did


def test_one_that_glance_does_not_take_is_removed(held):
    held.uploads.fails = RuntimeError('413: it is full')
    assert '413' in held.upload().refused
    held.until_stages()
    assert held.sends.did[-1] == 'give_up'


@pytest.mark.parametrize('standing, stays, done', [
    (ImageStanding.WAITS, False, 'give_up'), (ImageStanding.HAS, False, 'settled'),
    (ImageStanding.TAKING, True, 'finish')])
def test_a_crash_while_it_is_uploaded(held, standing, stays, done):
    held.uploads.goes_on.clear()
    assert held.jobs.upload(SNAPSHOT, TOKEN) == SnapshotProgress()
    assert held.uploads.begun.wait(10) and held.stages() == [Stage.WITHDRAWN]
    held.uploads.goes_on.set()
    held.upload()
    held.sends.did[:] = ['finish']
    held.restart()
    held.standing = standing
    held.jobs.once()
    held.jobs.once()
    assert [did for did in held.sends.did if did != 'rest'][-1] == done
    assert held.stages() == [Stage.WITHDRAWN] * stays


def test_an_upload_is_given_up(held):
    held.uploads.goes_on.clear()
    held.jobs.upload(SNAPSHOT, TOKEN)
    assert held.uploads.begun.wait(10)
    held.standing = ImageStanding.TAKING
    assert not held.jobs.abandon(SNAPSHOT, TOKEN), 'something of it is left'
    held.uploads.goes_on.set()
    held.until_stages(Stage.WITHDRAWN)
    held.standing = ImageStanding.WAITS
    held.jobs.once()
    # The upload that ends only now has its record be removed itself.
    held.until_stages()
    assert held.uploads.took == {} and held.jobs.abandon(SNAPSHOT, TOKEN)


def test_a_host_that_says_nothing_while_it_is_held(held):
    held.seconds += 1000
    held.jobs.once()
    held.until_stages()
    assert held.jobs.upload(SNAPSHOT, TOKEN).refused


def test_what_an_uploaded_one_has_in_common_is_shared_at_each_look(held):
    held.sends.sharing = 3
    held.upload()
    held.restart()
    held.standing = ImageStanding.HAS
    for _look in range(4):
        assert held.stages() == [Stage.WITHDRAWN]
        held.jobs.once()
    assert held.stages() == [] and held.sends.did.count('settled') == 4
    assert not {'give_up', 'discard', 'end'} & set(held.sends.did)


def test_a_crash_ends_what_was_begun_only(house):
    house.begin()
    house.records.put(Record(IMAGE, 'rbd', 'one', 'snapshot-x', Stage.FINISHED, time.time()))
    house.restart()
    house.jobs.once()
    assert house.stages() == [Stage.FINISHED] and house.sends.did.count('give_up') == 1


def test_what_glance_has_stays_when_a_backup_of_the_database_says_that_it_was_begun(house):
    """The backup is of a time at which it was being sent; it was finished since."""
    house.begin()
    house.restart()
    house.standing = ImageStanding.HAS
    house.jobs.once()
    assert house.stages() == [] and 'give_up' not in house.sends.did
    assert house.sends.did[-3:] == ['end', 'settled', 'rest'], 'stock Nova may have made it'


def test_one_that_is_over_is_not_begun_anew_by_a_host_that_goes_on_with_it(house):
    """Its host asks again and again: a new copy, into which nothing was sent, would be finished."""
    house.begin()
    house.restart()
    house.jobs.once()
    house.jobs.once()
    assert house.stages() == []
    assert 'before' in house.begin().refused
    assert house.finish().refused
    # Nor is one that was given up for silence.
    house.restart()
    house.begin()
    house.seconds += 1000
    house.jobs.once()
    house.until_stages()
    house.seconds += 1000
    house.jobs.once()
    assert 'before' in house.begin().refused and house.stages() == []


@pytest.mark.parametrize('step', ['begin', 'finish'])
def test_what_is_begun_goes_also_if_the_disk_is_full_meanwhile(house, monkeypatch, step):
    house.begin()
    put = Records.put
    full = exception.DatabaseAway('database or disk is full')
    doomed = threading.Event()

    def refuse(self, record):
        if record.stage is Stage.DOOMED:
            doomed.set()
        raise full

    monkeypatch.setattr(Records, 'put', refuse)
    house.jobs.abandon(SNAPSHOT, TOKEN) if step == 'begin' else house.finish()
    assert doomed.wait(20)
    monkeypatch.setattr(Records, 'put', put)
    for _round in range(3):
        house.seconds += 1000
        house.jobs.once()
    assert house.stages() == [] and 'give_up' in house.sends.did


def test_what_was_finished_goes_at_once_also_while_the_database_is_away(house, monkeypatch):
    """Glance's store has a file under the image's name, and takes none by stock Nova's way then."""
    house.begin()

    def refuse(self, record):
        raise exception.DatabaseAway('the database is gone')

    for name in 'put', 'drop':
        monkeypatch.setattr(Records, name, refuse)
    assert 'gone' in house.finish().refused
    deadline = time.monotonic() + 20
    while 'give_up' not in house.sends.did:
        assert time.monotonic() < deadline, house.sends.did
        time.sleep(0.01)
    assert house.stages() == [Stage.BEGUN]
    monkeypatch.undo()
    for _round in range(2):
        house.jobs.once()
    assert house.stages() == []


def test_what_cannot_be_removed_yet_is_tried_again(house):
    house.begin()
    house.sends.gone = False
    house.jobs.abandon(SNAPSHOT, TOKEN)
    house.until_stages(Stage.DOOMED)
    house.jobs.once()
    assert house.stages() == [Stage.DOOMED]
    house.sends.gone = True
    house.jobs.once()
    assert house.stages() == []


def test_what_no_record_names_is_left_and_told_of_once(house, caplog):
    """It may be another storage service's, of the same pool or directory."""
    other = Sends()
    other.name, house.sends.stores['file'] = 'file', other
    house.begin()
    house.sends.lost, other.lost = [SNAPSHOT, uuidsentinel.lost], [SNAPSHOT]
    for _look in range(3):
        house.jobs.once()
    assert 'discard' not in house.sends.did and other.did == []
    [line] = [line for line in caplog.messages if 'of no row' in line]
    assert line.startswith('1 snapshots under way in store rbd') and uuidsentinel.lost in line


def test_an_older_state_of_the_database_removes_nothing(house):
    """It says that what has the name by now is to be removed."""
    house.records.put(Record(SNAPSHOT, 'rbd', 'one', 'snapshot-x', Stage.DOOMED, time.time()))
    house.may_remove = False
    house.restart()
    house.jobs.once()
    assert house.stages() == [Stage.DOOMED] and 'give_up' not in house.sends.did
    house.may_remove = True
    house.jobs.once()
    assert house.stages() == []


def test_who_is_refused(house, storage_conf):
    assert 'does not have the base' in house.begin(image=SERVER).refused
    house.refusal = 'Nova does not have its server on host one'
    assert house.begin(uuidsentinel.other).refused == house.refusal
    house.refusal = ''
    house.begin()
    assert house.begin(token='e' * 32) == SnapshotProgress(refused='another host sends it')
    assert house.jobs.finish(SNAPSHOT,
                             'e' * 32) == SnapshotProgress(refused='another host sends it')
    house.jobs.abandon(SNAPSHOT, 'e' * 32)
    assert house.stages() == [Stage.BEGUN]
    storage_conf.set_override('snapshots_per_host', 1, 'bootcache')
    assert 'snapshots_per_host' in house.begin(uuidsentinel.second).refused
    assert house.begin(uuidsentinel.second, host='two').export
    house.certificate = ''
    assert 'no exporter of its own' in house.begin(uuidsentinel.third, host='three').refused
    storage_conf.set_override('snapshot_exporters', 'common', 'bootcache')
    assert house.begin(uuidsentinel.fourth, host='four').export


def test_another_node_s_snapshots_are_its_own(house, database):
    Records(database, 2).put(Record(SNAPSHOT, 'rbd', 'one', 'snapshot-x', Stage.DOOMED, 1.0))
    house.restart()
    house.jobs.once()
    assert house.stages() == [] and 'give_up' not in house.sends.did
    assert [record.stage for record in Records(database, 2).all()] == [Stage.DOOMED]


def test_a_record_that_cannot_be_written_changes_nothing(house, database):
    house.begin()
    record = house.records.get(SNAPSHOT)
    with locked(database):
        with pytest.raises(exception.DatabaseAway):
            house.records.put(dataclasses.replace(record, stage=Stage.FINISHED))
        with pytest.raises(exception.DatabaseAway):
            house.records.drop(record)
        assert house.records.all() == [record] == Records(database, 1).all()
    house.records.drop(record)
    assert house.records.all() == [] == Records(database, 1).all()


def test_a_ceph_that_is_away_is_told_twice_an_hour(house, caplog, monkeypatch):
    """Each look fails, every ten seconds: that would be the log's only content."""
    looks = threading.Semaphore(0)

    def once():
        looks.release()
        raise exception.Interrupted('Ceph is away')

    monkeypatch.setattr(snapshotjobs, '_LOOK_SECONDS', 0.001)
    monkeypatch.setattr(logthrottle, 'time', types.SimpleNamespace(monotonic=lambda: house.seconds))
    monkeypatch.setattr(house.jobs, 'once', once)
    house.jobs.start()
    assert house.sends.did == ['sweep']
    for _look in range(5):
        assert looks.acquire(timeout=20)
    assert caplog.text.count('Ceph is away') == 1
    house.seconds += logthrottle.REPEAT_SECONDS
    deadline = time.monotonic() + 20
    while caplog.text.count('Ceph is away') != 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
