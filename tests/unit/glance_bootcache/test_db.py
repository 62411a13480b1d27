"""The database as the service has it: where it may lie, and the thread that writes reports."""

import contextlib
import multiprocessing
import os
import pathlib
import tempfile
import threading

import pytest
from fakes_clock import Clock
from fakes_database import locked
from fakes_manager import until
from sqlalchemy import event
from sqlalchemy import exc as sa_exception

from bootcache import exception, tier
from bootcache.rpc.report import HostReport
from glance_bootcache.db import conf as db_conf
from glance_bootcache.db import schema, start
from glance_bootcache.db.engine import Database
from glance_bootcache.db.writer import RowChanges, Writer
from glance_bootcache.hosts.orders import Orders
from glance_bootcache.hosts.reportedneeds import ReportedNeeds

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'


# Where it is.

def test_the_default_is_a_file_that_the_service_makes(storage_conf):
    os.makedirs(storage_conf.bootcache.state_dir)
    for _start in range(2):
        database = start.wait_for(storage_conf)
        assert database.is_default and database.file == os.path.join(
            storage_conf.bootcache.state_dir, 'bootcache.sqlite')
        Orders(database).add(IMAGE, ['one'])
        database.close()
    assert Orders(start.wait_for(storage_conf)).of('one') == {IMAGE}


def test_a_start_logs_the_schema_when_it_is_made_and_nothing_else(storage_conf, caplog):
    caplog.set_level('INFO')
    os.makedirs(storage_conf.bootcache.state_dir)
    for _start in range(2):
        start.wait_for(storage_conf).close()
    said, = [record.getMessage() for record in caplog.records]
    assert said.endswith(f'has schema {schema.wanted()}')


def test_what_is_answered_is_on_the_disk(storage_conf):
    """Also after a power cut, which WAL's usual setting does not promise."""
    os.makedirs(storage_conf.bootcache.state_dir)
    database = start.wait_for(storage_conf)

    def settings(connection):
        return [connection.exec_driver_sql(f'PRAGMA {name}').scalar() for name in (
            'journal_mode', 'synchronous', 'busy_timeout', 'foreign_keys')]

    assert database.read(settings) == ['wal', 2, 30000, 1]
    database.close()


@pytest.mark.parametrize('kind', ['nfs', 'nfs4', 'ceph', 'fuse.glusterfs', 'fuse.ceph', 'cifs'])
def test_a_shared_file_system_is_refused(storage_conf, monkeypatch, kind):
    os.makedirs(storage_conf.bootcache.state_dir)
    monkeypatch.setattr(tier, 'file_system', lambda directory: kind)
    with pytest.raises(exception.ConfigurationError, match=rf'{kind}.*MariaDB'):
        Database(storage_conf)
    assert os.listdir(storage_conf.bootcache.state_dir) == []


@pytest.mark.parametrize('kind', ['ext4', 'xfs', 'btrfs', 'overlay', 'tmpfs', ''])
def test_a_file_system_of_this_machine_is_not(storage_conf, monkeypatch, kind):
    os.makedirs(storage_conf.bootcache.state_dir)
    monkeypatch.setattr(tier, 'file_system', lambda directory: kind)
    Database(storage_conf).close()


def test_a_directory_that_is_not_there_is_told_of(storage_conf):
    storage_conf.set_override('connection', 'sqlite:////no/such/folder/x.sqlite', db_conf.GROUP)
    with pytest.raises(exception.ConfigurationError, match='/no/such/folder'):
        start.wait_for(storage_conf)


@pytest.mark.parametrize('connection', [
    'mysql+pymysql://bootcache:secret@db', 'mysql+pymysql://bootcache:half@secret@db/bootcache',
    'mysql+pymysql://bootcache:half@se/cret@db/bootcache'])
def test_a_url_that_lacks_something_is_refused(storage_conf, connection):
    storage_conf.set_override('connection', connection, db_conf.GROUP)
    with pytest.raises(exception.ConfigurationError, match=r'%40|names no database') as told:
        Database(storage_conf)
    assert 'secret' not in str(told.value) and 'cret@' not in str(told.value)


@pytest.mark.parametrize('scheme, parameter', [
    ('mysql+pymysql', 'nonsense=1'), ('mysql+pymysql', 'charset=nonsense'),
    ('mysql+pymysql', 'connect_timeout=nonsense'), ('mysql+pymysql', 'connect_timeout=-1'),
    ('postgresql+psycopg2', 'nonsense=1'), ('postgresql+psycopg2', 'sslmode=nonsense'),
    ('sqlite', 'timeout=nonsense')])
def test_a_parameter_that_there_is_not_is_told_of(storage_conf, tmp_path, scheme, parameter):
    pytest.importorskip(scheme.partition('+')[2] or 'sqlite3')
    place = f'/{tmp_path}/x.sqlite' if scheme == 'sqlite' else 'bootcache:secret@127.0.0.1/x'
    storage_conf.set_override('connection', f'{scheme}://{place}?{parameter}', db_conf.GROUP)
    with pytest.raises(exception.ConfigurationError, match=(
            r'\[database\]connection: a parameter behind the "\?" .*cannot be used')) as told:
        start.wait_for(storage_conf)
    assert 'secret' not in str(told.value)


def test_what_belongs_to_another_user_is_told_of(storage_conf):
    """As a backup that root has put back: it can be read, and reports would never be written."""
    with tempfile.TemporaryDirectory(dir='/var/tmp') as directory:
        os.chmod(directory, 0o777)
        storage_conf.set_override('state_dir', directory, 'bootcache')
        start.wait_for(storage_conf).close()

        def as_nobody(end):
            os.setresuid(65534, 65534, 65534)
            try:
                start.wait_for(storage_conf)
            except exception.ConfigurationError as error:
                end.send(str(error))
            end.close()

        here, there = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context('fork').Process(target=as_nobody, args=(there,))
        process.start()
        there.close()
        told = here.recv()
        process.join()
        assert f'chown 65534 {directory}/bootcache.sqlite' in told


def test_one_call_at_a_time_waits_for_a_database_that_hangs(storage_conf, database):
    """Threads that answer hosts are not held, each for half a minute."""
    def hangs(connection):
        clock.sleep(30)
        raise sa_exception.OperationalError('SELECT 1', {}, Exception('timed out'))

    def fails(connection):
        raise sa_exception.OperationalError('SELECT 1', {}, Exception('connection refused'))

    clock = Clock()
    with contextlib.closing(Database(storage_conf, clock)) as other:
        for _time in range(5):
            with pytest.raises(exception.DatabaseAway, match='refused'):
                other.read(fails)
        with pytest.raises(exception.DatabaseAway, match='timed out'):
            other.write(hangs)
        for call in other.read, other.write:
            with pytest.raises(exception.DatabaseAway, match='has not answered just now'):
                call(pytest.fail)
        clock.sleep(10)
        with pytest.raises(exception.DatabaseAway, match='timed out'):
            other.read(hangs)
        clock.sleep(10)
        assert other.read(lambda connection: 1) == other.write(lambda connection: 1) == 1


def test_what_only_reads_makes_no_file(storage_conf):
    os.makedirs(storage_conf.bootcache.state_dir)
    assert schema.version(Database(storage_conf)) is None
    assert os.listdir(storage_conf.bootcache.state_dir) == []


def test_damage_that_is_no_text_is_damage(storage_conf, database):
    """SQLite's message quotes the damaged schema, and sqlite3 decodes it."""
    database.close()
    found = pathlib.Path(database.file).read_bytes()
    pathlib.Path(database.file).write_bytes(found.replace(b'CREATE TABLE', b'CREATE\xff\xc2TABL'))
    with pytest.raises(exception.DatabaseUnusable, match='is damaged'):
        start.wait_for(storage_conf)


def test_it_is_waited_for(storage_conf, database, caplog, monkeypatch):
    monkeypatch.setattr(start, '_AGAIN_SECONDS', 0.01)
    found = []
    # SQLite can open no directory.
    os.unlink(database.file)
    os.mkdir(database.file)
    waiting = threading.Thread(target=lambda: found.append(start.wait_for(storage_conf)))
    waiting.start()
    until(lambda: 'waits for it' in caplog.text, 'the waiting')
    assert not found
    os.rmdir(database.file)
    waiting.join()
    assert len(found) == 1


def test_it_is_waited_for_again_when_it_goes_away_before_its_first_reads(
        storage_conf, database, caplog, monkeypatch):
    monkeypatch.setattr(start, '_AGAIN_SECONDS', 0.01)
    Orders(database).add(IMAGE, ['one'])
    database.close()
    os.rename(database.file, f'{database.file}-away')
    os.mkdir(database.file)

    def comes_back():
        os.rmdir(database.file)
        os.rename(f'{database.file}-away', database.file)

    orders = start.until_it_answers(lambda: Orders(database), comes_back)
    assert orders.of('one') == {IMAGE} and 'waits for it' in caplog.text


# The writer.

def test_reports_are_written_by_themselves_and_at_the_end(database):
    needs = ReportedNeeds(database)
    is_written = threading.Event()

    def changes(at_once):
        found = needs.changes(at_once)
        return found and RowChanges(found.write, lambda: (found.written(), is_written.set()))

    writer = Writer(database, [changes])
    writer.start()
    needs.note('one', HostReport(needs=frozenset([IMAGE])))
    assert is_written.wait(60) and ReportedNeeds(database).hosts(IMAGE) == ['one']
    needs.note('two', HostReport(needs=frozenset([IMAGE])))
    writer.stop()
    assert ReportedNeeds(database).hosts(IMAGE) == ['one', 'two']


def test_all_of_a_second_is_one_transaction(database):
    """What comes after it fails takes back what came before."""
    needs = ReportedNeeds(database)
    needs.note('one', HostReport(needs=frozenset([IMAGE])))

    def fails(connection):
        raise exception.DatabaseAway('it is gone')

    other = RowChanges(fails, pytest.fail)
    with pytest.raises(exception.DatabaseAway):
        Writer(database, [needs.changes, lambda at_once: other]).write()
    assert ReportedNeeds(database).hosts(IMAGE) == []
    Writer(database, [needs.changes]).write()
    assert ReportedNeeds(database).hosts(IMAGE) == ['one']


def test_a_writer_that_cannot_write_says_so_and_that_it_is_over(database, caplog):
    needs = ReportedNeeds(database)
    needs.note('one', HostReport(needs=frozenset([IMAGE])))
    writer = Writer(database, [needs.changes])
    with locked(database):
        writer._try_to_write()
        writer._try_to_write()
    assert caplog.text.count('is not written yet: the database') == 1
    caplog.set_level('INFO')
    writer._try_to_write()
    assert 'can be written again' in caplog.text
    assert ReportedNeeds(database).hosts(IMAGE) == ['one']


def test_an_error_of_our_own_is_told_once_and_not_each_second(database, caplog):
    def fails(at_once):
        raise KeyError('a bug')

    writer = Writer(database, [fails])
    for _second in range(3):
        writer._try_to_write()
    assert caplog.text.count('Traceback') == 1


def test_a_connection_that_breaks_when_it_was_used_is_not_told_of(database, caplog):
    """As SQLAlchemy's pool does, with a traceback: nothing is lost, and the next one is another."""
    def reset(_connection, _record, _state):
        raise BrokenPipeError

    event.listen(database._engine, 'reset', reset)
    assert database.read(lambda _connection: 5) == 5
    event.remove(database._engine, 'reset', reset)
    assert caplog.records == [] and database.read(lambda _connection: 6) == 6
