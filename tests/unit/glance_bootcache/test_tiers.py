"""The storage side's tiers among stand-ins: last uses, plans, options, errors."""

import dataclasses
import errno
import hashlib
import json
import os
import threading

import pytest

from bootcache import conf as bootcache_conf
from bootcache import exception, savefile, tier
from bootcache.manifest import CacheInfo, Made, Manifest, Standing
from bootcache.tier import Eviction, Medium
from glance_bootcache import conf as glance_conf
from glance_bootcache.storage import copying
from glance_bootcache.storage.lastuses import Usage
from glance_bootcache.storage.store import ImageStore
from glance_bootcache.storage.tiers import StorageTiers

MIB = 1 << 20
ONE, TWO, THREE = (f'{number}5f0d3e0-1f2b-4c3d-8e9f-0a1b2c3d4e5f' for number in (1, 2, 3))


def cache_image(size=MIB, content=b'x'):
    return CacheInfo('cache-1.qcow2', size, size, 1, hashlib.sha256(content * size).hexdigest(),
                     size, 4096, size, '', 0.1, 1)


def manifest(image_id, size=MIB, updated_at='2026-01-02T03:04:05+00:00'):
    return Manifest(image_id, Standing.DONE, updated_at=updated_at,
                    made=Made(cache_image=cache_image(size)))


class FakeExporter:
    """Notes from where it is told to serve; refuses if it is told to."""

    def __init__(self):
        self.places, self.refuse, self.missing = {}, False, None

    def cache_export(self, manifest):
        return manifest.image_id

    def ensure(self, manifest, path):
        if path == self.missing:
            raise exception.StorageDaemonError(f'{path} is gone')
        self.places[manifest.image_id] = path

    def cache_places(self):
        return dict(self.places)

    def switch_cache(self, manifest, path):
        if self.refuse:
            raise exception.StorageDaemonError('refused')
        self.places[manifest.image_id] = path


# Last uses.

@pytest.fixture
def path(tmp_path):
    return str(tmp_path / 'usage.json')


def test_uses_are_kept(path):
    usage = Usage(path)
    assert usage.last(ONE) is None
    usage.save()
    assert not os.path.exists(path)
    usage.note(ONE, 5.5)
    usage.note(ONE, 4)
    usage.note(TWO, 0)
    usage.save()
    with open(path) as stream:
        assert json.load(stream) == {'version': 1, 'last_used': {ONE: 5.5, TWO: 0}}
    again = Usage(path)
    assert (again.last(ONE), again.last(TWO), again.last(THREE)) == (5.5, 0, None)
    again.keep_only([ONE, THREE])
    again.save()
    assert (Usage(path).last(ONE), Usage(path).last(TWO)) == (5.5, None)


def test_uses_are_written_once_a_minute_and_at_the_end(path, monkeypatch):
    written = []
    monkeypatch.setattr(savefile, 'write_json', lambda *arguments: written.append(arguments))
    usage = Usage(path)
    for when in range(1, 100):
        usage.note(ONE, when)
        usage.save()
    assert len(written) == 1
    usage.save(at_once=True)
    usage.save(at_once=True)
    assert len(written) == 2


@pytest.mark.parametrize('text', [
    '', '{', '[]', '{}', '{"version": 2, "last_used": {}}', '{"version": 1}',
    '{"version": 1, "last_used": []}', '{"version": 1, "last_used": {"a": "b"}}',
    '{"version": 1, "last_used": {"a": null}}', '{"version": 1, "last_used": {"a": NaN}}',
    '{"version": 1, "last_used": {"a": -1}}', '{"version": 1, "last_used": {"a": Infinity}}'])
def test_a_damaged_record_is_empty(path, text, caplog):
    with open(path, 'w') as stream:
        stream.write(text)
    usage = Usage(path)
    assert usage.last('a') is None and path in caplog.text
    usage.note(ONE, 1)
    usage.save()
    assert Usage(path).last(ONE) == 1


def test_a_record_that_cannot_be_written_is_written_later(path, caplog):
    usage = Usage(f'{path}/below')
    usage.note(ONE, 1)
    usage.save()
    assert 'cannot be written' in caplog.text
    os.mkdir(path)
    usage.save(at_once=True)
    assert Usage(f'{path}/below').last(ONE) == 1


# Tiers.

@pytest.fixture
def exporter():
    return FakeExporter()


@pytest.fixture
def tiers(storage_conf, exporter, tmp_path):
    """Tiers of 2 and 4 MiB; "memory" is any directory here."""
    (tmp_path / 'memory').mkdir()
    for name, value in {'default_quota': '1MiB', 'max_quota': '4MiB', 'storage_disk_quota': '4MiB',
                        'storage_memory_quota': '2MiB',
                        'storage_memory_directory': str(tmp_path / 'memory')}.items():
        storage_conf.set_override(name, value, bootcache_conf.GROUP)
    glance_conf.check(storage_conf)
    store = ImageStore(storage_conf.bootcache.state_dir)
    for image_id in (ONE, TWO, THREE):
        os.makedirs(store.directory(image_id))
    tiers = StorageTiers(storage_conf, store, exporter)
    yield tiers
    tiers._stopping = True
    tiers._worker.shutdown(wait=False)


def settle(tiers):
    tiers._worker.submit(lambda: None).result()


def on_disk(tiers, entry):
    with open(tiers._disk_path(entry), 'wb') as stream:
        stream.write(b'x' * entry.made.cache_image.bytes)
    return entry


def test_the_disk_s_plan(tiers):
    entries = [manifest(ONE), manifest(TWO), Manifest(THREE)]
    tiers.note_use(ONE, 2e9)
    assert tiers.plan_disk(entries) == Eviction(True, ())
    assert tiers.plan_disk(entries, MIB) == Eviction(True, ())
    assert tiers.plan_disk(entries, 2 * MIB) == Eviction(True, (TWO,))
    assert tiers.plan_disk(entries, 2 * MIB, busy=[TWO]) == Eviction(True, (ONE,))
    assert tiers.plan_disk(entries, 4 * MIB) == Eviction(True, (TWO, ONE))
    assert tiers.plan_disk(entries, 5 * MIB) == Eviction(False, ())
    pinned = entries[1].wishing(pinned=True)
    assert tiers.plan_disk([entries[0], pinned], 2 * MIB) == Eviction(True, (ONE,))
    assert tiers.plan_disk([entries[0], pinned], 4 * MIB) == Eviction(False, ())


def test_what_was_never_used_counts_from_its_last_change(tiers):
    assert tiers.last_used(manifest(ONE)) == 1767323045
    assert tiers.last_used(manifest(ONE, updated_at='')) == 0
    tiers.note_use(ONE, 7)
    assert tiers.last_used(manifest(ONE)) == 7


def test_uses_of_unknown_images_are_not_kept(tiers):
    tiers.note_use('45f0d3e0-1f2b-4c3d-8e9f-0a1b2c3d4e5f', 5)
    assert tiers._usage.last('45f0d3e0-1f2b-4c3d-8e9f-0a1b2c3d4e5f') is None
    with pytest.raises(ValueError):
        tiers.note_use('../..', 5)


def test_last_uses_outlive_the_service(tiers, storage_conf, exporter):
    tiers.note_use(ONE, 5)
    tiers.note_use(TWO, 6)
    tiers.stop()
    again = StorageTiers(storage_conf, tiers._store, exporter)
    assert again.last_used(manifest(ONE)) == 5
    again.start([manifest(ONE)])
    again.stop()
    assert os.path.exists(f'{storage_conf.bootcache.state_dir}/usage.json')
    assert StorageTiers(storage_conf, tiers._store, exporter)._usage.last(TWO) is None


def test_whether_there_is_memory(tiers, storage_conf, exporter):
    assert tiers.has_memory
    storage_conf.clear_override('storage_memory_directory', bootcache_conf.GROUP)
    without = StorageTiers(storage_conf, tiers._store, exporter)
    assert not without.has_memory
    without.promote(on_disk(without, manifest(ONE)))
    assert without.medium(ONE) is Medium.DISK and exporter.places == {}


def test_promoting_and_demoting(tiers, exporter, tmp_path):
    entry = on_disk(tiers, manifest(ONE))
    assert tiers.medium(ONE) is Medium.DISK
    tiers.promote(entry)
    settle(tiers)
    assert tiers.medium(ONE) is Medium.MEMORY
    [copy] = (tmp_path / 'memory').iterdir()
    assert exporter.places == {ONE: str(copy)}
    assert copy.name == f'{ONE}-{entry.made.cache_image.sha256}.qcow2'
    assert copy.stat().st_mode & 0o777 == 0o600
    exporter.refuse = True
    with pytest.raises(exception.StorageDaemonError):
        tiers.demote(ONE)
    assert tiers.medium(ONE) is Medium.MEMORY and copy.exists()
    exporter.refuse = False
    tiers.demote(ONE)
    tiers.demote(ONE)
    assert exporter.places == {ONE: tiers._disk_path(entry)}
    assert tiers.medium(ONE) is Medium.DISK and not copy.exists()


def test_an_exporter_that_refuses_leaves_nothing_in_memory(tiers, exporter, tmp_path, caplog):
    exporter.refuse = True
    tiers.promote(on_disk(tiers, manifest(ONE)))
    settle(tiers)
    assert tiers.medium(ONE) is Medium.DISK and list((tmp_path / 'memory').iterdir()) == []
    assert 'refused' in caplog.text


def test_a_memory_that_is_full_all_the_same(tiers, tmp_path, caplog, monkeypatch):
    def refuse(*_arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    entry = on_disk(tiers, manifest(ONE))
    with monkeypatch.context() as patch:
        patch.setattr(savefile, 'commit', refuse)
        tiers.promote(entry)
        settle(tiers)
    assert tiers.medium(ONE) is Medium.DISK and list((tmp_path / 'memory').iterdir()) == []
    assert os.strerror(errno.ENOSPC) in caplog.text
    tiers.promote(entry)
    settle(tiers)
    assert tiers.medium(ONE) is Medium.MEMORY


@pytest.mark.parametrize('give_up', ['forget', 'stop'])
def test_copying_is_given_up(tiers, exporter, tmp_path, monkeypatch, give_up):
    began, go_on = threading.Event(), threading.Event()
    commit = savefile.commit

    def slow(*arguments):
        commit(*arguments)
        began.set()
        go_on.wait()

    monkeypatch.setattr(savefile, 'commit', slow)
    tiers.promote(on_disk(tiers, manifest(ONE)))
    assert began.wait(60)
    if give_up == 'forget':
        tiers.forget(ONE)
        go_on.set()
        settle(tiers)
    else:
        threading.Timer(0.1, go_on.set).start()
        tiers.stop()
        tiers.promote(manifest(TWO))
    assert exporter.places == {} and tiers.medium(ONE) is Medium.DISK
    assert os.listdir(tmp_path / 'memory') == []


def test_a_damaged_file_is_copied_once_only(tiers, monkeypatch):
    entry = on_disk(tiers, manifest(ONE))
    tiers._store.save(entry)
    with open(tiers._disk_path(entry), 'r+b') as stream:
        stream.write(b'bad')
    for _ in range(3):
        tiers.promote(entry)
        settle(tiers)
    assert tiers._damaged == {entry.made.cache_image} and tiers.medium(ONE) is Medium.DISK
    # A new build, even with the same bytes, is looked at anew.
    newer = entry.making(cache_image=dataclasses.replace(entry.made.cache_image,
                                                                       file='cache-2.qcow2'))
    with open(tiers._disk_path(newer), 'wb') as stream:
        stream.write(b'x' * MIB)
    tiers.promote(newer)
    settle(tiers)
    assert tiers.medium(ONE) is Medium.MEMORY


def test_an_exporter_that_comes_up_anew_serves_from_memory_what_is_there(tiers, exporter):
    entry = on_disk(tiers, manifest(ONE))
    tiers.promote(entry)
    settle(tiers)
    copy = exporter.places.pop(ONE)
    tiers.serve(entry)
    assert exporter.places == {ONE: copy} and tiers.medium(ONE) is Medium.MEMORY
    # One that somebody has changed is not, nor counts as there.
    with open(copy, 'ab') as stream:
        stream.write(b'more')
    tiers.serve(entry)
    assert exporter.places == {ONE: tiers._disk_path(entry)} and tiers.medium(ONE) is Medium.DISK


def test_one_of_another_build_is_served_from_the_disk(tiers, exporter):
    entry = on_disk(tiers, manifest(ONE))
    tiers.promote(entry)
    settle(tiers)
    newer = entry.making(cache_image=cache_image(2 * MIB))
    tiers.serve(newer)
    assert exporter.places == {ONE: tiers._disk_path(newer)}
    assert tiers.path(entry.making(cache_image=None)) is None


def test_one_that_leaves_memory_while_it_is_served_comes_from_the_disk(tiers, exporter):
    entry = on_disk(tiers, manifest(ONE))
    tiers.promote(entry)
    settle(tiers)
    exporter.missing, paths = tiers.path(entry), [tiers.path(entry)]
    tiers.path = lambda manifest: paths.pop() if paths else tiers._disk_path(manifest)
    tiers.serve(entry)
    assert exporter.places == {ONE: tiers._disk_path(entry)}
    # What is wrong with the file on the disk is told.
    exporter.missing = tiers._disk_path(entry)
    with pytest.raises(exception.StorageDaemonError, match='is gone'):
        tiers.serve(entry)


def pin(tiers, entry):
    tiers._store.save(entry.wishing(pinned=True))


def test_one_that_was_pinned_while_it_was_copied_stays_in_memory(tiers, monkeypatch):
    entries = [on_disk(tiers, manifest(image_id)) for image_id in (ONE, TWO, THREE)]
    begun, go_on, copy = threading.Event(), threading.Event(), copying.copy

    def slow(*arguments):
        begun.set()
        assert go_on.wait(20)
        copy(*arguments)

    monkeypatch.setattr(copying, 'copy', slow)
    tiers.promote(entries[0])
    assert begun.wait(20)
    pin(tiers, entries[0])
    go_on.set()
    for entry in entries[1:]:
        tiers.promote(entry)
        settle(tiers)
    assert [tiers.medium(entry.image_id) for entry in entries] == [
        Medium.MEMORY, Medium.DISK, Medium.MEMORY]


def test_pinned_ones_stay_in_memory(tiers):
    entries = [on_disk(tiers, manifest(image_id)) for image_id in (ONE, TWO, THREE)]
    for entry in entries[:2]:
        tiers.note_use(entry.image_id, 5)
    tiers.promote(entries[0])
    settle(tiers)
    pin(tiers, entries[0])
    tiers.promote(entries[1])
    settle(tiers)
    assert tiers.medium(ONE) is tiers.medium(TWO) is Medium.MEMORY
    tiers.promote(entries[2])
    settle(tiers)
    assert [tiers.medium(entry.image_id) for entry in entries] == [
        Medium.MEMORY, Medium.DISK, Medium.MEMORY]


# Options.

@pytest.mark.parametrize('values, named', [
    ({'storage_disk_quota': '1GiB'}, ['storage_disk_quota', '2147483648']),
    ({'storage_disk_quota': 'much'}, ['storage_disk_quota', 'much']),
    ({'storage_memory_quota': '1'}, ['storage_memory_quota', '1048576']),
    ({'storage_memory_quota': ''}, ['storage_memory_quota']),
    ({'low_watermark': 95}, ['low_watermark', 'high_watermark=95']),
    ({'high_watermark': 50}, ['low_watermark=85', 'high_watermark=50'])])
def test_wrong_quotas_name_their_option(storage_conf, values, named):
    for name, value in values.items():
        storage_conf.set_override(name, value, bootcache_conf.GROUP)
    with pytest.raises(exception.ConfigurationError) as caught:
        glance_conf.check(storage_conf)
    assert all(word in str(caught.value) for word in ['[bootcache]', *named])


@pytest.fixture
def in_memory(storage_conf, tmp_path, monkeypatch):
    """A directory that passes for one in memory."""
    (tmp_path / 'memory').mkdir()
    monkeypatch.setattr(tier, 'is_memory', lambda path: path == str(tmp_path / 'memory'))
    storage_conf.set_override('storage_memory_directory', str(tmp_path / 'memory'), 'bootcache')
    storage_conf.set_override('storage_memory_quota', '1MiB', 'bootcache')
    return storage_conf


def test_directories_that_can_be_used(in_memory):
    glance_conf.check_tiers(in_memory)
    assert os.path.isdir(in_memory.bootcache.state_dir)
    in_memory.clear_override('storage_memory_directory', 'bootcache')
    glance_conf.check_tiers(in_memory)


@pytest.mark.parametrize('values, named', [
    ({'storage_memory_directory': 'relative'}, ['storage_memory_directory', 'absolute']),
    ({'storage_memory_directory': '{}/missing'}, ['storage_memory_directory', 'not exist']),
    ({'storage_memory_directory': '{}'}, ['storage_memory_directory', 'state_dir', 'overlaps']),
    ({'storage_memory_directory': '{}/other'}, ['storage_memory_directory', 'mount a tmpfs']),
    ({'storage_memory_quota': '100000TiB'}, ['storage_memory_quota', 'larger size']),
    ({'state_dir': '{}/memory/state'}, ['state_dir', 'storage_memory_directory', 'overlaps']),
    ({'state_dir': '{}/file'}, ['state_dir', 'not a directory'])])
def test_wrong_directories_name_their_option(in_memory, tmp_path, values, named):
    (tmp_path / 'other').mkdir()
    (tmp_path / 'file').touch()
    for name, value in values.items():
        in_memory.set_override(name, value.format(tmp_path), bootcache_conf.GROUP)
    with pytest.raises(exception.ConfigurationError) as caught:
        glance_conf.check_tiers(in_memory)
    assert all(word in str(caught.value) for word in ['[bootcache]', *named])
