"""This storage node in its database, and databases that are not the one that it knew."""

import itertools
import json
import os
import shutil
import threading

import pytest
import sqlalchemy as sa

from bootcache.exception import ConfigurationError, DatabaseAway
from bootcache.manifest import Manifest
from bootcache.rpc.messages import NodeWish
from glance_bootcache.db import conf as db_conf
from glance_bootcache.db.engine import Database
from glance_bootcache.db.models import StorageNodeRow
from glance_bootcache.nodes import node
from glance_bootcache.nodes.membership import Membership, NodeRecord
from glance_bootcache.nodes.node import StorageNode
from glance_bootcache.storage.nodefiles import FileKind
from glance_bootcache.storage.store import ImageStore

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / 'node.json')


@pytest.fixture
def replace(storage_conf, empty_database):
    """Puts an empty database, or a copy, in the place of the one that there is."""
    file = db_conf.default_file(storage_conf)

    def replace(database, by=None):
        database.close()
        for name in (f'{file}-wal', f'{file}-shm'):
            if os.path.exists(name):
                os.unlink(name)
        shutil.copy(by or empty_database, file)
        return Database(storage_conf)

    replace.file = file
    return replace


def copied(database, replace, name='backup'):
    """A backup of it."""
    database.close()
    backup = f'{replace.file}.{name}'
    shutil.copy(replace.file, backup)
    return backup


def no_sleep(_seconds):
    pytest.fail('nobody else has the name')


def test_a_node_knows_its_database_again(database, path, monkeypatch):
    monkeypatch.setattr(node.time, 'time', lambda: 0.0)
    first = StorageNode(database, path, 'one', no_sleep)
    for _beat in range(3):
        assert first.beat()
    again = StorageNode(database, path, 'one', no_sleep)
    assert again.id == first.id and not again.is_restored and not first.is_restored
    with open(path) as stream:
        said = json.load(stream)
    assert said['beat'] == 5 and said['database'] == again._claimed.identity
    assert node.number(database, path) == first.id
    assert node.number(database, f'{path}.none') is None


def test_exporters_that_serve_without_a_node_file_are_of_an_unknown_database(database, path):
    """The state directory was lost, with the SQLite in it, and exporters have its files open."""
    node = StorageNode(database, path, 'one', no_sleep, serves=True)
    assert node.is_restored
    assert StorageNode(database, path, 'one', no_sleep).is_restored, 'nor is it later'


def test_a_name_may_change(database, path):
    first = StorageNode(database, path, 'one', no_sleep)
    assert StorageNode(database, path, 'two', no_sleep).id == first.id
    assert database.read(lambda connection: connection.execute(
        sa.select(StorageNodeRow.name)).scalars().all()) == ['two']


def test_two_nodes_have_rows_of_their_own(database, path):
    one = StorageNode(database, path, 'one', no_sleep)
    two = StorageNode(database, f'{path}.two', 'two', lambda seconds: None)
    assert one.id != two.id and one.beat() and two.beat()


@pytest.mark.parametrize('kind', ['empty', 'older'])
def test_another_database_is_told_of_and_nothing_is_removed_until_it_is_accepted(
        database, path, replace, kind, caplog, tmp_path):
    first = StorageNode(database, path, 'one', no_sleep)
    backup = copied(database, replace) if kind == 'older' else None
    for _beat in range(3):
        first.beat()
    first._save()
    database = replace(database, backup)
    for _start in range(2):
        again = StorageNode(database, path, 'one', no_sleep)
        assert again.is_restored and 'bootcache-manage db accept' in caplog.text
        store = ImageStore(str(tmp_path), database, again.id,
                           lambda again=again: not again.is_restored)
        store.retire_left()
        store.add(Manifest(IMAGE))
        name = store.begin_file(IMAGE, FileKind.BASE, '.img')
        with open(store.path(IMAGE, name), 'w'):
            pass
        store.files.abandon(IMAGE, name)
        store.files.remove_retired()
        for each in FileKind:
            store.files.remove_retired_of(each, lambda *thing: pytest.fail(str(thing)))
        store.remove(IMAGE)
    assert len(os.listdir(store.directory(IMAGE))) == 2
    assert node.accept(database) == ['one'] and node.accept(database) == []
    assert again.beat() and not again.is_restored
    store.files.remove_retired()
    assert os.listdir(store.directory(IMAGE)) == []
    assert not StorageNode(database, path, 'one', no_sleep).is_restored
    database.close()


def test_an_older_database_is_accepted_after_an_hour_and_what_it_was_making_is_nobody_s(
        database, path, replace, tmp_path, monkeypatch):
    monkeypatch.setattr(node, '_SETTLED_BEATS', 3)
    first = StorageNode(database, path, 'one', no_sleep)
    store = ImageStore(str(tmp_path), database, first.id)
    store.add(Manifest(IMAGE))
    names = [store.begin_file(IMAGE, FileKind.BASE, '.img') for _file in range(2)]
    store.files.change(IMAGE, ready=[names[0]])
    backup = copied(database, replace)
    for _beat in range(3):
        first.beat()
    first._save()
    database = replace(database, backup)
    again = StorageNode(database, path, 'one', no_sleep)
    store = ImageStore(str(tmp_path), database, again.id, lambda: not again.is_restored)
    for name in names:
        with open(store.path(IMAGE, name), 'w'):
            pass
    store.retire_left()
    assert store.files.unnamed() == [store.path(IMAGE, names[1])]
    store.remove(IMAGE)
    for _beat in range(node._SETTLED_BEATS):
        assert again.beat() and again.is_restored
    assert len(os.listdir(store.directory(IMAGE))) == 2
    assert again.beat() and not again.is_restored
    store.files.remove_retired()
    assert os.listdir(store.directory(IMAGE)) == [names[1]]
    assert not StorageNode(database, path, 'one', no_sleep).is_restored
    database.close()


@pytest.mark.parametrize('kind', ['empty', 'older'])
def test_a_database_that_is_replaced_under_a_process_is_found(database, path, replace, kind):
    first = StorageNode(database, path, 'one', no_sleep)
    backup = copied(database, replace) if kind == 'older' else None
    for _beat in range(3):
        assert first.beat()
    first._database = replace(database, backup)
    assert not first.beat()
    first._database.close()


def test_the_next_process_knows_that_it_was_replaced(database, path, replace, monkeypatch):
    """The file was last written when the older state was; this process may be killed at once."""
    first, replaced = StorageNode(database, path, 'one', no_sleep), threading.Event()
    backup = copied(database, replace)
    for _beat in range(3):
        assert first.beat()
    first._database = database = replace(database, backup)
    monkeypatch.setattr(node, 'BEAT_SECONDS', 0.01)
    first.start(replaced.set)
    assert replaced.wait(60)
    first._thread.join()
    assert StorageNode(database, path, 'one', no_sleep).is_restored
    database.close()


def test_a_state_that_counts_further_than_the_file_is_another_one_as_well(database, path, replace,
                                                                          monkeypatch):
    """As it is put back: each process begins at beats that were not there before."""
    clock = itertools.count(1_700_000_000, 100)
    monkeypatch.setattr(node.time, 'time', clock.__next__)
    first = StorageNode(database, path, 'one', no_sleep)
    older = copied(database, replace)
    first.beat()
    first._save()
    for _beat in range(15):
        first.beat()
    later = copied(database, replace, 'later')
    database = replace(database, older)
    second = StorageNode(database, path, 'one', no_sleep)
    assert second.is_restored
    node.accept(database)
    for _beat in range(12):
        assert second.beat()
    second._database = database = replace(database, later)
    assert not second.beat()
    assert StorageNode(database, path, 'one', no_sleep).is_restored
    database.close()


def test_an_error_of_a_driver_does_not_end_the_beats(database, path, monkeypatch):
    first, beaten, errors = StorageNode(database, path, 'one', no_sleep), threading.Event(), []
    beat = first.beat

    def beat_once_more():
        if not errors:
            errors.append(AttributeError('as PyMySQL of a connection that was cut'))
            raise errors[0]
        beat()
        beaten.set()
        return True

    monkeypatch.setattr(node, 'BEAT_SECONDS', 0.01)
    monkeypatch.setattr(first, 'beat', beat_once_more)
    first.start(lambda: pytest.fail('it is the same database'))
    try:
        assert beaten.wait(60)
    finally:
        first.stop()


def test_a_lost_answer_is_no_other_database(database, path):
    first = StorageNode(database, path, 'one', no_sleep)
    claimed = first._claimed
    assert first.beat()
    first._claimed = claimed
    assert first.beat()


@pytest.mark.parametrize('kind', ['empty', 'older'])
def test_what_was_being_made_in_a_backup_is_not_removed(database, path, replace, kind, tmp_path):
    first = StorageNode(database, path, 'one', no_sleep)
    store = ImageStore(str(tmp_path), database, first.id)
    store.add(Manifest(IMAGE))
    name = store.begin_file(IMAGE, FileKind.BASE, '.img')
    backup = copied(database, replace) if kind == 'older' else None
    with open(store.path(IMAGE, name), 'w'):
        pass
    store.change(IMAGE, lambda known: known.making(base_path=store.path(IMAGE, name)))
    first.beat()
    first._save()
    database = replace(database, backup)
    for _start in range(2):
        again = StorageNode(database, path, 'one', no_sleep)
        node.accept(database)
        again.beat()
        ImageStore(str(tmp_path), database, again.id).retire_left()
    assert os.listdir(store.directory(IMAGE)) == [name]
    database.close()


@pytest.mark.parametrize('name', ['one', 'two'])
def test_another_process_that_works_with_the_database_refuses_the_start(database, path, name):
    first = StorageNode(database, path, 'one', no_sleep)
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        first.beat()

    with pytest.raises(ConfigurationError, match=r'another glance-bootcache works as one'):
        StorageNode(database, f'{path}.two', name, sleep)
    assert slept and first.beat()


def test_a_copy_of_a_node_that_runs_refuses_the_start(database, path):
    """As of a machine that was cloned with its state directory."""
    one = StorageNode(database, path, 'one', no_sleep)
    shutil.copy(path, f'{path}.copy')
    for _beat in range(100):
        one.beat()
    with pytest.raises(ConfigurationError, match=r'node\.json from a .*copied'):
        StorageNode(database, f'{path}.copy', 'one', lambda seconds: one.beat())
    assert one.beat()
    # A crash, or a state directory from a backup, is no copy.
    assert StorageNode(database, f'{path}.copy', 'one', lambda seconds: None).id == one.id
    for _beat in range(node._WRITE_EVERY):
        one.beat()
    assert not StorageNode(database, path, 'one', lambda seconds: None).is_restored


def test_one_of_the_name_that_is_silent_was_this_node(database, path):
    first, slept = StorageNode(database, path, 'one', no_sleep), []
    # Its state directory was lost.
    again = StorageNode(database, f'{path}.two', 'one', slept.append)
    assert slept and again.id == first.id and not again.is_restored and not first.beat()


@pytest.mark.parametrize('text', ['', '{', '{"version": 1}', '{"version": 9}',
                                  '{"version": 1, "database": "x", "node": "y", "beat": 1}'])
def test_a_damaged_file_says_nothing(database, path, text, caplog):
    with open(path, 'w') as stream:
        stream.write(text)
    assert not StorageNode(database, path, 'one', no_sleep).is_restored
    assert 'cannot be used' in caplog.text


# Several nodes.

@pytest.fixture
def shared(database, monkeypatch):
    """A database that several nodes may use: SQLite is no such one, and stands for it here."""
    monkeypatch.setattr(database, 'file', None)
    return database


def row(database, number):
    return database.read(lambda connection: connection.execute(sa.select(
        StorageNodeRow.__table__).where(StorageNodeRow.id == number)).one())


def test_with_sqlite_a_second_node_is_refused_and_told_what_to_do(database, path):
    one = StorageNode(database, path, 'one', no_sleep)
    with pytest.raises(ConfigurationError, match=r'share a MariaDB in .*, and not SQLite'):
        StorageNode(database, f'{path}.two', 'two', lambda seconds: one.beat())
    assert database.read(lambda connection: connection.execute(
        sa.select(sa.func.count()).select_from(StorageNodeRow)).scalar()) == 1


def test_with_another_database_nodes_of_other_names_start_at_once(shared, path):
    one = StorageNode(shared, path, 'one', no_sleep)
    two = StorageNode(shared, f'{path}.two', 'two', no_sleep)
    assert one.beat() and two.beat() and one.id != two.id
    # Also after an unclean end, and one that was silent.
    for _beat in range(100):
        one.beat()
    assert StorageNode(shared, f'{path}.two', 'two', no_sleep).id == two.id


def test_a_name_is_one_node_s_there_as_well(shared, path):
    one = StorageNode(shared, path, 'one', no_sleep)
    with pytest.raises(ConfigurationError, match='works as one') as refused:
        StorageNode(shared, f'{path}.two', 'one', lambda seconds: one.beat())
    assert 'not SQLite' not in str(refused.value)
    shutil.copy(path, f'{path}.copy')
    for _beat in range(100):
        one.beat()
    with pytest.raises(ConfigurationError, match=r'node\.json from a .*copied'):
        StorageNode(shared, f'{path}.copy', 'one', lambda seconds: one.beat())
    two = StorageNode(shared, f'{path}.two', 'two', no_sleep)
    with pytest.raises(ConfigurationError, match='is another storage node\'s'):
        StorageNode(shared, f'{path}.two', 'one', lambda seconds: None)
    assert one.beat() and two.beat()


def test_each_beat_tells_what_a_node_has_and_hears_of_all(shared, path):
    one = StorageNode(shared, path, 'one', no_sleep)
    two = StorageNode(shared, f'{path}.two', 'two', no_sleep)
    membership, room = Membership(one.id), [5]
    one.start(lambda: pytest.fail('it is the same database'),
              told=lambda: {'rpc': '2.1', 'look_rules': 3, 'free_bytes': room[0]},
              membership=membership)
    try:
        known = {each.record.number: each.record for each in membership.nodes()}
        assert membership.are_several, 'before anything is answered'
        assert known == {
            one.id: NodeRecord(one.id, 'one', row(shared, one.id).beat, False, None, '2.1', 3, 5),
            two.id: NodeRecord(two.id, 'two', row(shared, two.id).beat)}
        room[0] = 7
        node.wish(shared, 'two', NodeWish.DRAINED)
        assert one.beat() and two.beat()
        assert membership.node(one.id).record.free_bytes == 7
        assert membership.node(two.id).record.wish is NodeWish.DRAINED
    finally:
        one.stop()


def test_what_a_later_release_wants_of_a_node_is_nothing_here(shared, path):
    one, membership = StorageNode(shared, path, 'one', no_sleep), Membership(1)
    shared.write(lambda connection: connection.execute(
        sa.update(StorageNodeRow).values(wish='painted', rpc=None, free_bytes=None)))
    one.start(lambda: pytest.fail('it is the same database'), membership=membership)
    one.stop()
    assert membership.node(one.id).record == NodeRecord(one.id, 'one', row(shared, one.id).beat)
    assert row(shared, one.id).wish == 'painted', 'it is for that one to say'


def test_a_node_whose_database_is_away_hears_nothing(shared, path, monkeypatch):
    one, membership = StorageNode(shared, path, 'one', no_sleep), Membership(1)
    write = shared.write

    def away(work):
        raise DatabaseAway('it does not answer')

    monkeypatch.setattr(shared, 'write', away)
    one.start(lambda: pytest.fail('it is the same database'), membership=membership)
    one.stop()
    assert membership.nodes() == [] and not membership.may_judge
    monkeypatch.setattr(shared, 'write', write)
    assert one.beat() and len(membership.nodes()) == 1


def test_a_replaced_database_says_nothing_of_others(shared, path):
    one, membership = StorageNode(shared, path, 'one', no_sleep), Membership(1)
    one._membership = membership
    shared.write(lambda connection: connection.execute(
        sa.update(StorageNodeRow).values(beat=1)))
    assert not one.beat() and membership.nodes() == []


def test_a_node_that_does_not_work_does_not_beat_and_judges_nobody(shared, path, monkeypatch,
                                                                   caplog):
    caplog.set_level('INFO')
    monkeypatch.setattr(node, 'BEAT_SECONDS', 0.01)
    one, membership = StorageNode(shared, path, 'one', no_sleep), Membership(1)
    faults, asked, goes_on = [''], threading.Semaphore(0), threading.Semaphore(0)

    def fault():
        asked.release()
        assert goes_on.acquire(timeout=60)
        return faults[-1]

    def turn(found):
        """One more beat, which finds that; what came of it is there when it returns."""
        faults.append(found)
        goes_on.release()
        assert asked.acquire(timeout=60)

    one.start(lambda: pytest.fail('it is the same database'), fault, membership=membership)
    try:
        assert asked.acquire(timeout=60)
        turn('')
        beat = row(shared, one.id).beat
        assert membership.may_judge
        for _beat in range(3):
            turn('disk: it hangs')
            assert row(shared, one.id).beat == beat and not membership.may_judge
        turn('')
        assert row(shared, one.id).beat == beat + 1 and membership.may_judge
    finally:
        faults.append('')
        one._stopping.set()
        goes_on.release(9)
        one.stop()
    told = [record.getMessage() for record in caplog.records if 'disk: it hangs' in record.message]
    assert len(told) == 1 and 'away for the others' in told[0]
    assert 'this storage node works again' in caplog.text


def test_with_sqlite_a_row_that_is_left_is_no_other_node(database, path):
    """Of a node whose node.json was lost, and that has another name now."""
    StorageNode(database, path, 'before', no_sleep)
    one = StorageNode(database, f'{path}.one', 'now', lambda seconds: None)
    membership = Membership(one.id)
    one.start(lambda: pytest.fail('it is the same database'), membership=membership)
    one.stop()
    assert [each.record.name for each in membership.nodes()] == ['now']
    assert not membership.are_several


def test_the_only_node_works_on_all_images_and_leaves_what_others_made(database, path, tmp_path):
    before = StorageNode(database, path, 'before', no_sleep)
    store = ImageStore(str(tmp_path / 'before'), database, before.id)
    store.add(Manifest(IMAGE))
    name = store.begin_file(IMAGE, FileKind.BASE, '.img')
    now = StorageNode(database, f'{path}.now', 'now', lambda seconds: None)
    assert ImageStore(str(tmp_path / 'now'), database, now.id).load(IMAGE) is None
    node.take_images(database, now.id)
    assert ImageStore(str(tmp_path / 'now'), database, now.id).load(IMAGE) is not None
    assert store.files.named(FileKind.BASE) == {name: IMAGE}


@pytest.mark.parametrize('wanted', NodeWish)
def test_what_an_operator_wants_is_written(database, path, wanted):
    one = StorageNode(database, path, 'one', no_sleep)
    assert node.wish(database, 'one', wanted) and row(database, one.id).wish == wanted.value
    assert node.wish(database, 'one', wanted)
    assert not node.wish(database, 'two', wanted)
    assert node.wish(database, 'one', None) and row(database, one.id).wish is None


def test_a_node_that_nothing_names_is_forgotten_with_its_row(shared, path):
    """What is named is in test_homes.py."""
    one = StorageNode(shared, path, 'one', no_sleep)
    two = StorageNode(shared, f'{path}.two', 'two', no_sleep)
    node.forget(shared, two.id, one.id)
    node.forget(shared, two.id, one.id)
    assert not two.beat() and one.beat()
    assert node.number(shared, f'{path}.two') is None
    # It comes back as a new one, that removes nothing.
    again = StorageNode(shared, f'{path}.two', 'two', no_sleep)
    assert again.is_restored and again.beat() and row(shared, again.id).wish is None
