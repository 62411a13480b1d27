"""Images and files as rows: who is faster, what a crash leaves, and what no row names."""

import dataclasses
import glob
import os
import threading

import pytest
import sqlalchemy as sa
from fakes_database import locked

from bootcache import steps
from bootcache.ceph.rbd import HEAD
from bootcache.exception import DatabaseAway, DatabaseUnusable, Interrupted
from bootcache.manifest import CacheInfo, Made, Manifest, Standing, Wished, WorkingSetInfo
from bootcache.workingset import Extent, WorkingSet
from glance_bootcache.db.models import FileRow, ImageRow, WorkingSetRow
from glance_bootcache.storage.nodefiles import FileKind
from tools import storedimages

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
OTHER = '00000000-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
THIRD = '11111111-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
SET = WorkingSet(IMAGE, 'sha512:00', 8192, 4096, (Extent(4096, 4096), Extent(0, 4096)))


@pytest.fixture
def again(storage_conf, database):
    """The store as another process opens it."""
    return lambda: storedimages.opened(storage_conf, database)


@pytest.fixture
def store(again):
    return again()


def names(store, image=IMAGE):
    directory = store.directory(image)
    return sorted(os.listdir(directory)) if os.path.isdir(directory) else []


def states(database):
    return {row.name: row.state for row in database.read(
        lambda connection: connection.execute(sa.select(FileRow.name, FileRow.state)).all())}


def made(store, kind, suffix):
    name = store.begin_file(IMAGE, kind, suffix)
    with open(store.path(IMAGE, name), 'w') as stream:
        stream.write(name)
    return name


def cache(name):
    return CacheInfo(name, 13, 8192, 2, 'ab', 8192, 4096, 1 << 20, 'nbd:', 1.0, 1)


def fill(store):
    """An image with a base, a working set and a cache image."""
    store.add(Manifest(IMAGE))
    sha256 = store.save_working_set(IMAGE, SET)
    base, file = made(store, FileKind.BASE, '.img'), made(store, FileKind.CACHE_IMAGE, '.qcow2')
    done = Made(
        base_path=store.path(IMAGE, base), cache_image=cache(file),
        working_set=WorkingSetInfo(sha256, 8192, 2, 4096, 'nova', 'marker', 1.0, 'login:'))
    return store.change(IMAGE, lambda known: dataclasses.replace(
        known.standing_at(Standing.DONE), made=done))


# Images.

def test_an_image_comes_back(store, again, database):
    manifest = fill(store)
    for each in (store, again()):
        assert each.load(IMAGE) == manifest == each.known(IMAGE)
        assert each.load_working_set(manifest) == SET and each.manifests() == [manifest]
    assert set(states(database).values()) == {'ready'} and len(names(store)) == 2


def test_nothing_is_known_of_an_unknown_image(store):
    assert store.load(IMAGE) is None and store.manifests() == []
    assert store.load_working_set(Manifest(IMAGE)) is None
    assert store.change(IMAGE, lambda manifest: pytest.fail('there is none')) is None
    store.remove(IMAGE)


@pytest.mark.parametrize('image', ['..', '../x', '', 'x', '/etc'])
def test_only_image_ids_become_paths(store, image):
    for call in (store.directory, store.load, store.remove):
        with pytest.raises(ValueError):
            call(image)
    assert store.known(image) is None


def test_a_change_is_stamped_and_what_is_none_is_not_written(store, database):
    added = store.add(Manifest(IMAGE, updated_at='then'))
    assert added.updated_at != 'then'
    with locked(database):
        assert store.change(IMAGE, lambda manifest: manifest) == added
        with pytest.raises(DatabaseAway, match='locked'):
            store.change(IMAGE, lambda manifest: manifest.wishing(pinned=True))
    assert store.load(IMAGE) == added
    changed = store.change(IMAGE, lambda manifest: manifest.wishing(pinned=True))
    assert changed.wished.pinned and store.load(IMAGE) == changed


def test_who_is_overtaken_changes_what_the_other_has_written(store, again):
    """The other one is another process, of which this one's memory does not know."""
    store.add(Manifest(IMAGE))
    other, seen = again(), []

    def pin(known):
        seen.append(known.wished.quota)
        if len(seen) <= 3:
            other.change(IMAGE, lambda known: known.wishing(quota=known.wished.quota + 1))
        return known.wishing(pinned=True)

    changed = store.change(IMAGE, pin)
    assert seen == [0, 1, 2, 3] and (changed.wished.quota, changed.wished.pinned) == (3, True)
    assert again().load(IMAGE) == changed == store.load(IMAGE)


def test_changes_of_many_threads_are_all_there(store, again):
    store.add(Manifest(IMAGE))

    def count():
        for _change in range(10):
            store.change(IMAGE, lambda known: known.wishing(quota=known.wished.quota + 1))

    threads = [threading.Thread(target=count) for _thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.load(IMAGE).wished.quota == 40 == again().load(IMAGE).wished.quota


def test_who_never_is_the_faster_one_is_told_so(store, again):
    store.add(Manifest(IMAGE))
    other = again()

    def overtaken(known):
        other.change(IMAGE, lambda known: known.wishing(quota=known.wished.quota + 1))
        return known.wishing(pinned=True)

    with pytest.raises(DatabaseAway, match='others have changed its row'):
        store.change(IMAGE, overtaken)


def test_one_that_was_added_meanwhile_is_not_added_again(store, again):
    other = again()
    added = other.add(Manifest(IMAGE, wished=Wished(pinned=True)))
    assert store.add(Manifest(IMAGE)) is None and store.load(IMAGE) == added


def test_removing_leaves_the_others(store, again, database):
    fill(store)
    store.add(Manifest(OTHER))
    store.remove(IMAGE, lambda manifest: False)
    assert len(names(store)) == 2 and store.load(IMAGE) is not None
    store.remove(IMAGE)
    assert not os.path.exists(store.directory(IMAGE)) and states(database) == {}
    assert [manifest.image_id for manifest in store.manifests()] == [OTHER]
    assert database.read(lambda connection: connection.execute(
        sa.select(WorkingSetRow)).all()) == []
    assert store.add(Manifest(IMAGE)) == again().load(IMAGE)


def test_a_change_that_was_written_before_a_removal_is_not_seen_after_it(store, monkeypatch):
    """Two threads may come to memory in another order than to the database."""
    store.add(Manifest(IMAGE))
    remember = store._remember

    def late(image_id, row):
        monkeypatch.setattr(store, '_remember', remember)
        store._read_again(image_id)
        store.remove(image_id)
        store.add(Manifest(IMAGE))
        remember(image_id, row)

    monkeypatch.setattr(store, '_remember', late)
    store.change(IMAGE, lambda known: known.wishing(pinned=True))
    assert not store.load(IMAGE).wished.pinned
    assert store.change(IMAGE, lambda known: known.wishing(held=True)) == store.load(IMAGE)


def test_what_a_database_does_not_have_any_more_stays_on_the_disk(store, database):
    fill(store)
    files = names(store)
    for table in ImageRow, FileRow, WorkingSetRow:
        database.write(lambda connection, table=table: connection.execute(sa.delete(table)))
    assert store.change(IMAGE, lambda known: known.making(cache_image=None)) is None
    store.remove_retired()
    assert names(store) == files and store.load(IMAGE) is None


def test_a_row_that_cannot_be_read_is_told_of_with_the_cure(store, again, database):
    store.add(Manifest(IMAGE))
    database.write(lambda connection: connection.execute(
        sa.update(ImageRow).values(standing='odd')))
    with pytest.raises(DatabaseUnusable, match=rf'{IMAGE}.*odd.*delete it'):
        again()


@pytest.fixture
def lost(database, monkeypatch):
    """The answer to the next commit is lost."""
    def lose():
        def write(change):
            monkeypatch.setattr(database, 'write', written)
            written(change)
            raise DatabaseAway('no answer')

        written = database.write
        monkeypatch.setattr(database, 'write', write)

    return lose


@pytest.mark.parametrize('then', ['change', 'remove'])
def test_a_removal_whose_answer_was_lost_is_one(store, database, lost, then):
    fill(store)
    lost()
    with pytest.raises(DatabaseAway):
        store.remove(IMAGE)
    if then == 'change':
        assert store.change(IMAGE, lambda known: known.wishing(pinned=True)) is None
    else:
        store.remove(IMAGE)
    assert store.load(IMAGE) is None
    store.remove_retired()
    assert states(database) == {} and not os.path.exists(store.directory(IMAGE))
    assert store.add(Manifest(IMAGE)) == store.load(IMAGE)


def test_a_change_while_it_is_removed_finds_nothing(store, database, monkeypatch):
    """The row is gone, and memory does not know it yet."""
    fill(store)
    drop, found = store._drop, []

    def late(image_id, version):
        monkeypatch.setattr(store, '_drop', drop)
        thread = threading.Thread(target=lambda: found.append(
            store.change(IMAGE, lambda known: known.wishing(pinned=True))))
        store._memory.release()
        thread.start()
        thread.join()
        store._memory.acquire()
        drop(image_id, version)

    monkeypatch.setattr(store, '_drop', late)
    store.remove(IMAGE)
    assert found == [None] and store.manifests() == []


def test_an_image_that_is_added_while_it_is_removed_is_known(store, again, monkeypatch):
    """Its row has a lower version than the one that memory still had."""
    fill(store)
    drop = store._drop

    def late(image_id, version):
        monkeypatch.setattr(store, '_drop', drop)
        store._memory.release()
        store.add(Manifest(IMAGE))
        store._memory.acquire()
        drop(image_id, version)

    monkeypatch.setattr(store, '_drop', late)
    store.remove(IMAGE)
    assert store.add(Manifest(IMAGE)) is None
    assert store.load(IMAGE) == again().load(IMAGE) is not None
    assert store.change(IMAGE, lambda known: known.wishing(pinned=True)) == again().load(IMAGE)


def test_a_row_that_was_read_before_it_was_added_again_is_no_lost_one(store, database,
                                                                      monkeypatch):
    store.add(Manifest(IMAGE))
    read = database.read

    def early(query):
        monkeypatch.setattr(database, 'read', read)
        store.remove(IMAGE)
        found = read(query)
        store.add(Manifest(IMAGE))
        return found

    monkeypatch.setattr(database, 'read', early)
    store._read_again(IMAGE)
    assert store.load(IMAGE) is not None


def test_a_change_whose_answer_was_lost_is_one(store, database, lost, again):
    manifest = fill(store)
    lost()
    with pytest.raises(DatabaseAway):
        store.change(IMAGE, lambda known: known.making(cache_image=None))
    changed = store.change(IMAGE, lambda known: known.wishing(pinned=True))
    assert changed.made.cache_image is None and changed == again().load(IMAGE)
    store.remove_retired()
    assert names(store) == [os.path.basename(manifest.made.base_path)] == list(states(database))


def test_a_row_that_is_not_as_in_memory_is_read_again(store, again, lost):
    fill(store)
    assert store.refresh() == []
    lost()
    with pytest.raises(DatabaseAway):
        store.change(IMAGE, lambda known: known.wishing(pinned=True))
    assert store.load(IMAGE).wished.pinned
    other = again()
    other.add(Manifest(OTHER))
    other.change(IMAGE, lambda known: known.wishing(quota=1))
    assert store.refresh() == [IMAGE, OTHER]
    assert store.load(IMAGE).wished.quota == 1 and store.load(OTHER) == other.load(OTHER)
    lost()
    with pytest.raises(DatabaseAway):
        store.remove(OTHER)
    assert store.refresh() == [OTHER] and store.load(OTHER) is None
    other.remove(IMAGE)
    third = f'f{IMAGE[1:]}'
    other.add(Manifest(third))
    assert store.refresh() == [IMAGE, third]
    assert store.load(IMAGE) is None and store.load(third) is not None


# Working sets.

def test_a_working_set_goes_with_the_row_that_named_it(store, database):
    manifest = fill(store)

    def count():
        return len(database.read(lambda connection: connection.execute(
            sa.select(WorkingSetRow.sha256)).all()))

    assert store.save_working_set(IMAGE, SET) == manifest.made.working_set.sha256 and count() == 1
    store.drop_working_set(IMAGE, manifest.made.working_set.sha256)
    assert store.load_working_set(manifest) == SET, 'it is named'
    store.change(IMAGE, lambda known: known.making(working_set=None))
    assert count() == 0 and store.load_working_set(manifest) is None
    store.save_working_set(IMAGE, SET)
    store.retire_left()
    assert count() == 0


def test_one_of_a_recording_that_was_given_up_goes_with_the_next_change(store, database):
    fill(store)
    store.save_working_set(IMAGE, dataclasses.replace(SET, extents=SET.extents[:1]))
    sha256 = store.save_working_set(IMAGE, dataclasses.replace(SET, extents=SET.extents[1:]))
    store.change(IMAGE, lambda known: known.making(working_set=dataclasses.replace(
        known.made.working_set, sha256=sha256)))
    assert database.read(lambda connection: connection.execute(
        sa.select(WorkingSetRow.sha256)).scalars().all()) == [sha256]


@pytest.mark.parametrize('body', [b'', b'{', b'x\x9c\xab\xae\x05\x00\x01u\x00\xf9'])
def test_a_damaged_working_set_counts_as_none(store, database, body):
    manifest = fill(store)
    database.write(lambda connection: connection.execute(
        sa.update(WorkingSetRow).values(body=body)))
    assert store.load_working_set(manifest) is None


def test_without_the_database_nothing_is_said_of_a_working_set(store, database, monkeypatch):
    def away(_query):
        raise DatabaseAway('away')

    manifest = fill(store)
    monkeypatch.setattr(database, 'read', away)
    with pytest.raises(DatabaseAway):
        store.load_working_set(manifest)


# Files.

def test_what_only_the_row_of_before_named_is_removed(store, database):
    """What is being made meanwhile stays."""
    manifest = fill(store)
    making = made(store, FileKind.CACHE_IMAGE, '.qcow2')
    store.change(IMAGE, lambda known: known.making(cache_image=None))
    base = os.path.basename(manifest.made.base_path)
    assert names(store) == sorted([base, making])
    assert states(database) == {base: 'ready', making: 'making'}


def test_what_an_earlier_process_was_making_is_removed(store, again, database):
    manifest = fill(store)
    for _file in range(2):
        name = made(store, FileKind.CACHE_IMAGE, '.qcow2')
    os.rename(store.path(IMAGE, name), store.path(IMAGE, f'{name}.partial'))
    store.begin_file(OTHER, FileKind.BASE, '.img')
    # Of a clone, as CephBases.looked_at has it.
    with open(store.path(IMAGE, f'{HEAD}abcdefgh'), 'w'):
        pass
    assert len(names(store)) == 5
    again().retire_left()
    assert names(store) == sorted([os.path.basename(manifest.made.base_path),
                                   manifest.made.cache_image.file])
    assert set(states(database)) == set(names(store))


def test_what_was_made_in_vain_is_removed_when_the_database_answers(store, database):
    store.add(Manifest(IMAGE))
    name = made(store, FileKind.BASE, '.img')
    with locked(database):
        store.files.abandon(IMAGE, name)
        assert names(store) == [name]
    store.files.remove_retired()
    assert names(store) == [] and states(database) == {}


def test_a_file_that_cannot_be_removed_keeps_no_other_one(store, database):
    store.add(Manifest(IMAGE))
    first, second = sorted(made(store, FileKind.BASE, '.img') for _file in range(2))
    os.unlink(store.path(IMAGE, first))
    os.mkdir(store.path(IMAGE, first))
    for name in first, second:
        store.files.abandon(IMAGE, name)
    assert names(store) == [first] and states(database) == {first: 'retiring'}
    os.rmdir(store.path(IMAGE, first))
    store.remove_retired()
    assert states(database) == {}


def test_a_file_whose_row_s_answer_was_lost_is_not_made(store, database, lost):
    store.add(Manifest(IMAGE))
    lost()
    with pytest.raises(DatabaseAway):
        store.begin_file(IMAGE, FileKind.BASE, '.img')
    assert list(states(database).values()) == ['making']
    store.remove_retired()
    assert states(database) == {}


def test_what_a_row_names_after_all_is_not_removed(store, database):
    """The answer to the commit was lost, and so it was taken for one that came to nothing."""
    manifest = fill(store)
    store.files.abandon(IMAGE, manifest.made.cache_image.file)
    store.files.remove_retired()
    assert manifest.made.cache_image.file in names(store)
    assert set(states(database).values()) == {'ready'}


def test_what_is_being_removed_is_named_no_more(store, database):
    """As where a job began before a cache image was evicted, and writes what it knew of it."""
    manifest = fill(store)
    store.change(IMAGE, lambda known: known.making(cache_image=None))
    before = states(database)
    with pytest.raises(Interrupted, match='was given up meanwhile'):
        store.change(IMAGE, lambda known: dataclasses.replace(known, made=manifest.made))
    assert states(database) == before and store.load(IMAGE).made.cache_image is None


def test_a_base_outside_is_not_touched(store, tmp_path):
    outside = tmp_path / 'glance' / IMAGE
    outside.parent.mkdir()
    outside.write_text('base')
    store.add(Manifest(IMAGE, made=Made(base_path=str(outside))))
    store.change(IMAGE, lambda known: known.making(base_path=''))
    store.remove(IMAGE)
    assert outside.read_text() == 'base'


def test_what_no_row_names_is_left_and_told(store, again):
    manifest = fill(store)
    stray = store.path(IMAGE, 'cache-0.qcow2')
    os.mkdir(store.directory(OTHER))
    for path in (stray, store.path(OTHER, 'base-1.img')):
        with open(path, 'w'):
            pass
    for directory in 'lost+found', THIRD:
        os.mkdir(os.path.join(store.images_directory, directory))
    again().retire_left()
    assert sorted(os.listdir(store.images_directory)) == [OTHER, IMAGE, 'lost+found']
    assert store.files.unnamed() == [store.path(OTHER, 'base-1.img'), stray]
    store.remove(IMAGE)
    assert names(store) == ['cache-0.qcow2'] and manifest is not None


def test_what_is_made_while_that_is_told_is_of_a_row(store, again, monkeypatch):
    fill(store)
    listing = glob.glob

    def listed(*arguments, **named):
        made(store, FileKind.BASE, '.img')
        # Of a clone that is looked at.
        with open(store.path(IMAGE, f'{HEAD}abcdefgh'), 'w'):
            pass
        return listing(*arguments, **named)

    monkeypatch.setattr(glob, 'glob', listed)
    assert again().files.unnamed() == []


def test_a_directory_that_cannot_be_read_ends_no_start(store, again):
    """As on a disk that is damaged there."""
    fill(store)
    # Neither can be listed, or unlinked.
    with open(store.directory(OTHER), 'w'):
        pass
    os.mkdir(store.path(IMAGE, f'{HEAD}abcdefgh'))
    again().retire_left()
    assert again().files.unnamed() == []


def test_a_kill_between_the_row_and_the_files_leaves_nothing(store, again, monkeypatch, database):
    fill(store)

    def killed(_step):
        raise KeyboardInterrupt

    monkeypatch.setattr(steps, '_hook', killed)
    with pytest.raises(KeyboardInterrupt):
        store.remove(IMAGE)
    monkeypatch.undo()
    assert len(names(store)) == 2 and set(states(database).values()) == {'retiring'}
    again().retire_left()
    assert names(store) == [] and states(database) == {}


def test_names_are_new_each_time(store):
    found = {store.begin_file(IMAGE, FileKind.CACHE_IMAGE, '.qcow2') for _ in range(20)}
    assert len(found) == 20
    assert all(name.startswith('cache-') and name.endswith('.qcow2') for name in found)
