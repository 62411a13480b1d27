"""Nova's own snapshot around ours: what Glance is told, and stock's way after each that can fail.

The host, Glance and the storage service are stand-ins; LibvirtDriver.snapshot is Nova's.
"""

import threading
import types

import libvirt
import pytest
from nova import exception as nova_exception
from nova.compute import power_state, task_states
from nova.virt.libvirt import driver
from nova.virt.libvirt import utils as libvirt_utils
from oslo_utils.fixture import uuidsentinel

from bootcache.rpc.messages import SnapshotProgress
from nova_bootcache.novadriver import directsnapshots
from nova_bootcache.novadriver.directsnapshots import DirectSnapshots, SnapshottingDriver
from nova_bootcache.snapshots.sender import SentDisk, SnapshotRefused

URL = 'rbd://fsid/snapshots/id/snap'
SNAPSHOT = uuidsentinel.snapshot


class Sent:
    """A snapshot that is sent: what was done of it, in order."""

    def __init__(self):
        self.did, self.fails, self.url = [], {}, URL

    def _do(self, what):
        self.did.append(what)
        if what in self.fails:
            raise self.fails[what]

    def begin(self):
        self._do('begin')
        return SnapshotProgress(disk_format='raw')

    def kept(self):
        return threading.Lock()

    def send(self, told, overlay):
        self._do(f'send {overlay.path}')

    def finish(self):
        self._do('finish')
        return self.url

    def upload(self):
        self._do('upload')

    def abandon(self):
        self._do('abandon')


class Glance:
    """Glance: what it was told, and what it says."""

    def __init__(self, did):
        self.told, self.refuses, self.statuses, self.did = [], None, ['active'], did

    def get(self, context, image_id):
        return {'name': 'snapshot', 'status': self.statuses[0] if len(self.statuses) == 1
                else self.statuses.pop(0)}

    def update(self, context, image_id, metadata, data=None, purge_props=False):
        self.told.append((metadata['disk_format'], metadata.get('location'), data is not None))
        self.did.append('update')
        if self.refuses is not None and 'location' in metadata:
            raise self.refuses


class Disk:
    """A root disk, with our seam."""

    def __init__(self, house):
        self._house = house

    def direct_snapshot(self, context, name, image_format, image_id, base_image_id):
        return self._house.direct.direct(image_id, lambda: (self._house.sent, SentDisk(
            'disk', '/base', 'raw', 512, self._house.wanted)))

    def cleanup_direct_snapshot(self, location, also_destroy_volume=False, ignore_errors=False):
        self._house.direct.cleanup()

    def snapshot_extract(self, path, image_format):
        self._house.extracted.append(image_format)
        with open(path, 'wb'):
            pass


@pytest.fixture
def house(monkeypatch, tmp_path):
    """A driver whose server is stopped, unless a test says otherwise."""
    house = types.SimpleNamespace(sent=(sent := Sent()), glance=Glance(sent.did),
                                  direct=DirectSnapshots(), extracted=[], states=[], wanted='',
                                  power=power_state.SHUTDOWN)
    monkeypatch.setattr(libvirt_utils, 'find_disk', lambda guest: ('/disk', 'qcow2'))
    driver.CONF.set_override('snapshots_directory', str(tmp_path), 'libvirt')
    monkeypatch.setattr(directsnapshots, '_WAITING_SECONDS', 0)
    monkeypatch.setattr(directsnapshots, '_POLL_SECONDS', 0)
    guest = types.SimpleNamespace(get_power_state=lambda host: house.power,
                                  get_xml_desc=lambda **how: '<domain/>',
                                  has_persistent_configuration=lambda: True,
                                  is_active=lambda: house.power == power_state.RUNNING)
    ours = SnapshottingDriver.__new__(SnapshottingDriver)
    ours.direct, ours._image_api = house.direct, house.glance
    ours._host = types.SimpleNamespace(get_guest=lambda instance: guest,
                                       has_min_version=lambda **named: True)
    ours.image_backend = types.SimpleNamespace(
        by_libvirt_path=lambda instance, path, image_type: Disk(house))
    monkeypatch.setattr(SnapshottingDriver, '_create_snapshot_metadata', lambda self, *args: (
        metadata := {'disk_format': args[2]}, self.direct.note_metadata(metadata))[0])

    def live(self, context, instance, guest, path, out, source_format, image_format, meta):
        libvirt_utils.extract_snapshot(f'{out}.delta', 'qcow2', out, image_format)

    monkeypatch.setattr(driver.LibvirtDriver, '_live_snapshot', live)
    instance = types.SimpleNamespace(uuid=uuidsentinel.server, image_ref=uuidsentinel.image,
                                     image_meta=None)

    def update(task_state, expected_state=task_states.IMAGE_SNAPSHOT):
        now = house.states[-1] if house.states else task_states.IMAGE_SNAPSHOT
        assert now == expected_state, 'Nova would fail the snapshot'
        house.states.append(task_state)

    house.snapshot = lambda: ours.snapshot('context', instance, SNAPSHOT, update)
    yield house
    driver.CONF.clear_override('snapshots_directory', 'libvirt')


def stocks(house):
    """Stock's way was gone, with its own format, and nothing is left."""
    assert house.glance.told[-1] == ('qcow2', None, True) and house.extracted == ['qcow2']
    return house.sent.did.count('abandon')


def test_what_was_sent_is_registered_as_what_it_is(house):
    house.snapshot()
    assert house.glance.told == [('raw', URL, False)] and house.extracted == []
    assert house.sent.did == ['begin', 'send disk', 'finish', 'update']


def test_what_no_store_registers_is_uploaded_when_nova_has_described_it(house):
    house.sent.url = ''
    house.snapshot()
    assert house.glance.told == [('raw', '', False)] and house.extracted == []
    assert house.sent.did == ['begin', 'send disk', 'finish', 'update', 'upload']


@pytest.mark.parametrize('statuses', [['queued'], ['saving', 'queued']])
def test_what_cannot_be_uploaded_goes_stocks_way(house, statuses, caplog):
    house.sent.url, house.sent.fails['upload'] = '', SnapshotRefused('413: it is full')
    house.glance.statuses = ['any', *statuses]
    house.snapshot()
    assert stocks(house) == 1 and '413: it is full' in caplog.text


def test_what_was_uploaded_while_the_answer_was_lost_is_glances(house):
    house.sent.url, house.sent.fails['upload'] = '', SnapshotRefused('does not answer')
    house.glance.statuses = ['any', 'saving', 'active']
    house.snapshot()
    assert house.glance.told == [('raw', '', False)] and house.extracted == []


def test_an_operator_who_wants_another_format_gets_it(house):
    house.wanted = 'qcow2'
    house.snapshot()
    assert stocks(house) == 1 and 'send disk' not in house.sent.did
    house.wanted = 'raw'
    house.states.clear()
    house.snapshot()
    assert house.glance.told[-1] == ('raw', URL, False)


def test_nova_waits_until_glance_has_taken_it(house):
    house.glance.statuses = ['queued', 'importing', 'importing', 'active']
    house.snapshot()
    assert house.extracted == [] and house.glance.statuses == ['active']


def test_of_a_guest_that_runs_a_delta_is_sent(house, tmp_path):
    house.power = power_state.RUNNING
    house.snapshot()
    [sent] = [did for did in house.sent.did if did.startswith('send')]
    assert sent.startswith(f'send {tmp_path}') and sent.endswith('.delta')
    assert house.glance.told == [('raw', URL, False)]


@pytest.mark.parametrize('step, abandoned', [('begin', 0), ('send disk', 1), ('finish', 1)])
@pytest.mark.parametrize('error', [SnapshotRefused('why not'), RuntimeError('a bug of ours')])
def test_what_cannot_be_sent_goes_stocks_way(house, step, abandoned, error, caplog):
    house.sent.fails[step] = error
    house.snapshot()
    assert stocks(house) == abandoned or step == 'begin'
    assert 'is made in stock Nova\'s way' in caplog.text


@pytest.mark.parametrize('error', [
    nova_exception.Forbidden(), nova_exception.ImageUnacceptable(image_id='x', reason='y'),
    RuntimeError('501: Glance has no such API'), nova_exception.ImageNotAuthorized(image_id='x')])
def test_what_glance_does_not_take_goes_stocks_way(house, error):
    house.glance.refuses = error
    house.snapshot()
    assert house.glance.told[0] == ('raw', URL, False)
    assert stocks(house) >= 1


def test_what_glance_took_and_then_did_not_goes_stocks_way(house):
    """Errors after the 202 show only as an image that waits for its data."""
    house.glance.statuses = ['queued', 'importing', 'queued', 'queued']
    house.snapshot()
    assert stocks(house) == 1


def test_a_glance_that_is_away_for_a_while_is_waited_for(house):
    """It has taken the image meanwhile, and would take no upload into it: Nova's would fail."""
    statuses = ['importing', OSError('away'), nova_exception.GlanceConnectionFailed(
        server='http://glance', reason='started anew'), 'importing', 'active']

    def get(context, image_id):
        if house.glance.told:
            status = statuses.pop(0)
            if isinstance(status, Exception):
                raise status
            return {'status': status}
        return {'name': 'snapshot'}

    house.glance.get = get
    house.snapshot()
    assert house.extracted == [] and statuses == [] and 'abandon' not in house.sent.did


def test_one_that_an_administrator_deactivates_at_once_is_there(house):
    house.glance.statuses = ['deactivated']
    house.snapshot()
    assert house.extracted == []


def test_an_upload_that_fails_in_stocks_way_is_not_tried_twice(house):
    uploads = []

    def update(context, image_id, metadata, data=None, purge_props=False):
        if data is None:
            raise nova_exception.Forbidden()
        uploads.append(metadata)
        raise nova_exception.ImageQuotaExceeded(image_id=image_id)

    house.glance.update = update
    with pytest.raises(nova_exception.ImageQuotaExceeded):
        house.snapshot()
    assert len(uploads) == 1


@pytest.mark.parametrize('is_usual, level', [(True, 'INFO'), (False, 'WARNING')])
def test_a_snapshot_that_always_goes_stocks_way_is_no_warning(house, caplog, is_usual, level):
    house.sent.fails['begin'] = SnapshotRefused('why not', is_usual)
    with caplog.at_level('INFO'):
        house.snapshot()
    said, = (one for one in caplog.records if 'stock Nova\'s way' in one.getMessage())
    assert said.levelname == level


def test_an_image_that_was_deleted_meanwhile_is_not_made_again(house):
    house.glance.refuses = nova_exception.ImageNotFound(image_id=SNAPSHOT)
    with pytest.raises(nova_exception.ImageNotFound):
        house.snapshot()
    assert house.extracted == [] and 'abandon' in house.sent.did


def test_an_error_of_stocks_own_way_is_novas(house, monkeypatch):
    house.sent.fails['begin'] = SnapshotRefused('why not')
    monkeypatch.setattr(Disk, 'snapshot_extract', lambda *args: 1 / 0)
    # Nova 31's driver imports it when it is made, and looks whether the error is its.
    monkeypatch.setattr(driver, 'libvirt', libvirt)
    with pytest.raises(ZeroDivisionError):
        house.snapshot()


@pytest.mark.parametrize('backing, wanted, why', [
    ('/other', None, 'is not on its image'), (None, None, 'is not on its image'),
    ('/base', 'qcow2', 'snapshot_image_format is qcow2, and it would be raw')])
def test_disks_that_are_not_sent(backing, wanted, why):
    with pytest.raises(SnapshotRefused, match=why) as caught:
        directsnapshots.overlay_of('/disk', backing, {'/base': 'raw'}, 'raw', wanted)
    assert caught.value.is_usual


@pytest.mark.parametrize('is_defined', [False, True])
def test_a_live_snapshot_that_fails_leaves_the_domain_defined(monkeypatch, is_defined):
    """tests/functional/test_live_snapshot.py has a real one."""
    did = []

    def fails(*_about):
        raise nova_exception.NovaException('the copy has gone')

    monkeypatch.setattr(driver.LibvirtDriver, '_live_snapshot', fails)
    guest = types.SimpleNamespace(get_xml_desc=lambda **how: f'defined {sorted(how)}',
                                  has_persistent_configuration=lambda: is_defined)
    ours = SnapshottingDriver.__new__(SnapshottingDriver)
    ours._host = types.SimpleNamespace(write_instance_config=did.append)
    ours.unquiesce = lambda *_about: did.append('thawed')
    with pytest.raises(nova_exception.NovaException, match='the copy has gone'):
        ours._live_snapshot(None, types.SimpleNamespace(image_meta=None), guest)
    assert did == ([] if is_defined else [
        "defined ['dump_inactive', 'dump_sensitive']", 'thawed'])
