"""Snapshots under way: decisions and records. Stores, exporters, Glance and Nova are stand-ins;
tests/functional/test_snapshot_jobs.py has real ones."""

import errno
import threading
import time
import types

import pytest
from oslo_utils.fixture import uuidsentinel

from bootcache import exception
from bootcache.ceph.snapshotcommands import SnapshotCommands
from bootcache.manifest import Made, Manifest
from glance_bootcache import startchecks
from glance_bootcache.snapshots import snapshotjobs
from glance_bootcache.snapshots.claims import Claims, ImageStanding
from glance_bootcache.snapshots.rbdstore import RbdSnapshots
from glance_bootcache.snapshots.records import Record, Records, Stage
from glance_bootcache.snapshots.sending import Sending
from glance_bootcache.snapshots.snapshotjobs import SnapshotJobs
from glance_bootcache.snapshots.stores import SnapshotUnfit, Stored

IMAGE, SNAPSHOT, SERVER = uuidsentinel.image, uuidsentinel.snapshot, uuidsentinel.server
TOKEN = 'f' * 32


class Sends:
    """Stands for the steps of a snapshot, and for the store."""

    name, disk_format = 'rbd', 'raw'

    def __init__(self):
        self.stores, self.did, self.fails, self.goes_on = {'rbd': self}, [], {}, threading.Event()
        self.goes_on.set()
        self.gone, self.lost = True, []

    def _do(self, what):
        self.did.append(what)
        if what in self.fails:
            raise self.fails[what]

    def choose(self, base):
        self._do('choose')
        return self

    def begin(self, store, base, snapshot_id, export, virtual_bytes, certificate):
        assert self.goes_on.wait(10)
        self._do('begin')
        return {'export': export, 'server': ['192.0.2.1', 10820], 'tls': True,
                'disk_format': 'raw'}

    def finish(self, store, snapshot_id, export, virtual_bytes):
        self._do('finish')
        return Stored(url='rbd://x')

    def give_up(self, store, snapshot_id, export):
        self._do('give_up')
        return self.gone

    def settled(self, snapshot_id):
        self._do('settled')

    def discard(self, snapshot_id):
        self._do('discard')
        return True

    def left(self):
        return self.lost

    def sweep(self):
        self._do('sweep')

    def tidy(self):
        pass

    def rest(self):
        self._do('rest')


@pytest.fixture
def house(storage_conf, tmp_path):
    house = types.SimpleNamespace(sends=Sends(), seconds=1000.0, path=str(tmp_path / 'records'),
                                  standing=ImageStanding.WAITS, refusal='', certificate='CN=one')
    images = types.SimpleNamespace(load=lambda image_id: Manifest(image_id, made=Made(
        base_path='rbd:a/b/c')) if image_id == IMAGE else None)
    claims = types.SimpleNamespace(refusal=lambda *arguments: house.refusal,
                                   standing=lambda *arguments: house.standing)
    exporters = types.SimpleNamespace(know=lambda host, certificate: house.certificate)

    def restart():
        house.records = Records(house.path)
        house.jobs = SnapshotJobs(storage_conf, images, exporters, house.sends, claims,
                                  house.records, lambda: house.seconds)

    def ask(what, wanted, **named):
        deadline = time.monotonic() + 20
        while wanted not in (told := what(**named)) and 'refused' not in told:
            assert time.monotonic() < deadline, told
            time.sleep(0.01)
        return told

    house.restart = restart
    house.begin = lambda snapshot=SNAPSHOT, token=TOKEN, host='one', image=IMAGE: ask(
        house.jobs.begin, 'export', image_id=image, snapshot_id=snapshot, host=host,
        certificate='CN=one', token=token, virtual_bytes=512)
    house.finish = lambda: ask(house.jobs.finish, 'url', snapshot_id=SNAPSHOT, token=TOKEN)
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
    assert told['export'].startswith('snapshot-') and len(told['export']) > 40
    assert house.stages() == [Stage.BEGUN] and house.begin() == told
    assert house.finish() == {'url': 'rbd://x'} and house.stages() == [Stage.FINISHED]
    assert house.finish() == {'url': 'rbd://x'}
    house.standing = ImageStanding.HAS
    house.jobs.once()
    house.jobs.once()
    assert house.stages() == [] and house.sends.did.count('settled') == 1
    assert 'give_up' not in house.sends.did and 'discard' not in house.sends.did


@pytest.mark.parametrize('step', ['choose', 'begin', 'finish'])
@pytest.mark.parametrize('error', [SnapshotUnfit('why not'), exception.Interrupted('Ceph is away')])
def test_what_fails_is_told_and_removed(house, step, error):
    house.sends.fails[step] = error
    told = house.begin()
    if step == 'finish':
        told = house.finish()
    assert told == {'refused': str(error)}
    house.until_stages()
    assert ('give_up' in house.sends.did) is (step != 'choose')


def test_an_error_of_our_own_is_told_and_removed(house):
    house.sends.fails['begin'] = KeyError('a bug')
    assert 'refused' in house.begin()
    house.until_stages()


def test_what_is_given_up_while_it_begins(house):
    house.sends.goes_on.clear()
    assert house.jobs.begin(IMAGE, SNAPSHOT, 'one', 'CN=one', TOKEN, 512) == {}
    house.jobs.abandon(SNAPSHOT, TOKEN)
    house.sends.goes_on.set()
    house.until_stages()
    deadline = time.monotonic() + 20
    while house.sends.did[-1:] != ['give_up']:
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


def test_a_crash_dooms_what_was_begun_only(house):
    house.begin()
    house.records.put(Record(IMAGE, 'rbd', 'one', 'snapshot-x', Stage.FINISHED, time.time()))
    house.restart()
    house.jobs.once()
    assert sorted(stage.value for stage in house.stages()) == ['doomed', 'finished']
    house.jobs.once()
    assert house.stages() == [Stage.FINISHED] and house.sends.did.count('give_up') == 1


def test_one_that_is_over_is_not_begun_anew_by_a_host_that_goes_on_with_it(house):
    """Its host asks again and again: a new copy, into which nothing was sent, would be finished."""
    house.begin()
    house.restart()
    house.jobs.once()
    house.jobs.once()
    assert house.stages() == []
    assert 'before' in house.begin()['refused']
    assert 'refused' in house.finish()
    # Nor is one that was given up for silence.
    house.restart()
    house.begin()
    house.seconds += 1000
    house.jobs.once()
    house.until_stages()
    house.seconds += 1000
    house.jobs.once()
    assert 'before' in house.begin()['refused'] and house.stages() == []


@pytest.mark.parametrize('step', ['begin', 'finish'])
def test_what_is_begun_goes_also_if_the_disk_is_full_meanwhile(house, monkeypatch, step):
    house.begin()
    put = Records.put
    full = OSError(errno.ENOSPC, 'No space left on device')

    def refuse(self, record):
        raise full

    monkeypatch.setattr(Records, 'put', refuse)
    house.jobs.abandon(SNAPSHOT, TOKEN) if step == 'begin' else house.finish()
    deadline = time.monotonic() + 20
    while house.jobs._jobs[SNAPSHOT].step.value != 'failed':
        assert time.monotonic() < deadline
        time.sleep(0.01)
    monkeypatch.setattr(Records, 'put', put)
    for _round in range(3):
        house.seconds += 1000
        house.jobs.once()
    assert house.stages() == [] and 'give_up' in house.sends.did


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


def test_what_no_record_names_is_removed_and_what_one_does_stays(house):
    house.begin()
    house.sends.lost = [SNAPSHOT, uuidsentinel.lost]
    house.jobs.once()
    assert house.sends.did.count('discard') == 1
    house.jobs.once()
    assert house.sends.did.count('discard') == 1, 'not each time'


def test_who_is_refused(house, storage_conf):
    assert 'does not have the base' in house.begin(image=SERVER)['refused']
    house.refusal = 'Nova does not have its server on host one'
    assert house.begin(uuidsentinel.other)['refused'] == house.refusal
    house.refusal = ''
    house.begin()
    assert house.begin(token='e' * 32) == {'refused': 'another host sends it'}
    assert house.jobs.finish(SNAPSHOT, 'e' * 32) == {'refused': 'another host sends it'}
    house.jobs.abandon(SNAPSHOT, 'e' * 32)
    assert house.stages() == [Stage.BEGUN]
    storage_conf.set_override('snapshots_per_host', 1, 'bootcache')
    assert 'snapshots_per_host' in house.begin(uuidsentinel.second)['refused']
    assert 'export' in house.begin(uuidsentinel.second, host='two')
    house.certificate = ''
    assert 'no exporter of its own' in house.begin(uuidsentinel.third, host='three')['refused']
    storage_conf.set_override('snapshot_exporters', 'common', 'bootcache')
    assert 'export' in house.begin(uuidsentinel.fourth, host='four')


def test_a_damaged_file_of_records_counts_as_empty(house, caplog):
    house.begin()
    with open(house.path, 'w') as stream:
        stream.write('{"version": 1, "snapshots": {"../x": {}}}')
    assert Records(house.path).all() == [] and 'cannot be used' in caplog.text


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
        status=status, disk_format=disk_format))
    assert claims.standing(SNAPSHOT, 'raw').value == standing


def test_a_trash_that_takes_long_keeps_no_snapshot_from_being_made(storage_conf, monkeypatch):
    storage_conf.set_override('rbd_snapshot_pool', 'snapshots', 'bootcache')
    store = RbdSnapshots(storage_conf)

    def purge(self, pool):
        raise exception.Interrupted('rbd trash purge was not done after 60 s')

    monkeypatch.setattr(SnapshotCommands, 'purge', purge)
    monkeypatch.setattr(SnapshotCommands, 'clones', lambda self, pool, namespace: [])
    store.tidy()
    assert store.left() == []


def test_a_ceph_that_is_away_is_told_once_an_hour(house, caplog, monkeypatch):
    """Each look fails, every ten seconds: that would be the log's only content."""
    looks = threading.Semaphore(0)

    def once():
        looks.release()
        raise exception.Interrupted('Ceph is away')

    monkeypatch.setattr(snapshotjobs, '_LOOK_SECONDS', 0.001)
    monkeypatch.setattr(house.jobs, 'once', once)
    house.jobs.start()
    for _look in range(5):
        assert looks.acquire(timeout=20)
    assert caplog.text.count('Ceph is away') == 1
    house.seconds += 3600
    deadline = time.monotonic() + 20
    while caplog.text.count('Ceph is away') != 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_pool_for_snapshots_without_glances_is_told(storage_conf, caplog):
    storage_conf.set_override('rbd_snapshot_pool', 'snapshots', 'bootcache')
    startchecks.check_ceph(storage_conf)
    assert 'without rbd_store_pool' in caplog.text


def test_what_was_looked_at_when_the_service_was_killed_is_removed(house, storage_conf, tmp_path):
    (tmp_path / 'look-x1').write_bytes(b'of a tenant')
    (tmp_path / 'snapshots.json').write_text('{}')
    Sending(storage_conf, [], None, str(tmp_path)).sweep()
    assert not (tmp_path / 'look-x1').exists() and (tmp_path / 'snapshots.json').exists()
    house.jobs.start()
    assert 'sweep' in house.sends.did
