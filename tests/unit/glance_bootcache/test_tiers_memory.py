"""The storage node's memory, and the options of its tiers."""

import dataclasses
import errno
import os
import threading

import pytest
from fakes_tiers import MIB, ONE, THREE, TWO, cache_image, manifest
from fakes_tiers import exporter as exporter  # the fixture
from fakes_tiers import tiers as tiers  # the fixture

from bootcache import conf as bootcache_conf
from bootcache import exception, savefile, tier
from bootcache.tier import Medium
from glance_bootcache import conf as glance_conf
from glance_bootcache.storage import tiers as storage_tiers
from glance_bootcache.storage.lastuses import LastUses
from glance_bootcache.storage.tiers import StorageTiers
from tools import storedimages


def settle(tiers):
    tiers._worker.submit(lambda: None).result()


def on_disk(tiers, entry):
    with open(tiers._disk_path(entry), 'wb') as stream:
        stream.write(b'x' * entry.made.cache_image.bytes)
    return entry


def test_whether_there_is_memory(tiers, storage_conf, exporter, database):
    assert tiers.has_memory
    storage_conf.clear_override('storage_memory_directory', bootcache_conf.GROUP)
    without = StorageTiers(storage_conf, tiers._store, exporter, LastUses(database))
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
    storedimages.put(tiers._store, entry)
    with open(tiers._disk_path(entry), 'r+b') as stream:
        stream.write(b'bad')
    for _ in range(3):
        tiers.promote(entry)
        settle(tiers)
    assert tiers.is_damaged(entry) and tiers.medium(ONE) is Medium.DISK
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
    storedimages.put(tiers._store, entry.wishing(pinned=True))


def test_one_that_was_pinned_while_it_was_copied_stays_in_memory(tiers, monkeypatch):
    entries = [on_disk(tiers, manifest(image_id)) for image_id in (ONE, TWO, THREE)]
    begun, go_on, copy = threading.Event(), threading.Event(), storage_tiers.copy

    def slow(*arguments):
        begun.set()
        assert go_on.wait(20)
        copy(*arguments)

    monkeypatch.setattr(storage_tiers, 'copy', slow)
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


# Moves: the exporter may take its time, and what is moved is anybody's meanwhile.

class Slow:
    """An exporter that hangs at its next switch."""

    def __init__(self, exporter):
        self.begun, self.go_on = threading.Event(), threading.Event()
        exporter.on_switch = self.hang
        self._exporter = exporter

    def hang(self, manifest, path):
        self._exporter.on_switch = lambda manifest, path: None
        self.begun.set()
        assert self.go_on.wait(60)


def test_a_copy_that_leaves_is_served_to_nobody_and_holds_up_nobody(tiers, exporter, tmp_path):
    entry, other = on_disk(tiers, manifest(ONE)), on_disk(tiers, manifest(TWO))
    tiers.promote(entry)
    settle(tiers)
    [copy] = (tmp_path / 'memory').iterdir()
    slow = Slow(exporter)
    thread = threading.Thread(target=tiers.demote, args=(ONE,))
    thread.start()
    assert slow.begun.wait(60)
    assert tiers.path(entry) == tiers._disk_path(entry) and tiers.medium(ONE) is Medium.DISK
    # The exporter may read from it still.
    assert copy.exists()
    tiers.demote(ONE)
    assert copy.exists() and tiers.path(other) == tiers._disk_path(other)
    slow.go_on.set()
    thread.join(60)
    assert not copy.exists() and exporter.places[ONE] == tiers._disk_path(entry)
    tiers.promote(entry)
    settle(tiers)
    assert tiers.medium(ONE) is Medium.MEMORY


@pytest.mark.parametrize('move', ['in', 'out'])
def test_one_that_is_forgotten_while_it_is_moved_is_nowhere(tiers, exporter, tmp_path, move):
    """It was evicted: the exporter serves it no more, which the switch finds."""
    entry = on_disk(tiers, manifest(ONE))
    if move == 'out':
        tiers.promote(entry)
        settle(tiers)
    slow = Slow(exporter)
    thread = threading.Thread(target=tiers.demote, args=(ONE,))
    if move == 'out':
        thread.start()
    else:
        tiers.promote(entry)
    assert slow.begun.wait(60)
    tiers.forget(ONE)
    slow.go_on.set()
    if move == 'out':
        thread.join(60)
    settle(tiers)
    assert list((tmp_path / 'memory').iterdir()) == [] and tiers.medium(ONE) is Medium.DISK
    tiers.promote(entry)
    settle(tiers)
    assert tiers.medium(ONE) is Medium.MEMORY


def test_a_damaged_copy_leaves_before_it_is_made_anew(tiers, exporter):
    """A file of the same name is not the same file: the exporter has the damaged one open."""
    entry = on_disk(tiers, manifest(ONE))
    tiers.promote(entry)
    settle(tiers)
    moves = []
    exporter.on_switch = lambda manifest, path: moves.append(path)
    with open(tiers.path(entry), 'ab') as stream:
        stream.write(b'more')
    tiers.promote(entry)
    settle(tiers)
    assert moves == [tiers._disk_path(entry), tiers.path(entry)]
    assert tiers.medium(ONE) is Medium.MEMORY


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
