"""The storage service's tables on SQLite, MariaDB and PostgreSQL, and what happens without them."""

import contextlib
import dataclasses
import os
import re
import signal
import sqlite3
import subprocess
import threading
import time

import pytest
from alembic import autogenerate, migration
from command import command
from functional_tools import until
from oslo_config import cfg

from bootcache import conf as bootcache_conf
from bootcache import exception
from bootcache.manifest import Manifest
from bootcache.rpc.report import HostReport
from glance_bootcache import conf as glance_conf
from glance_bootcache.db import conf as db_conf
from glance_bootcache.db import engine, models, schema, start
from glance_bootcache.db.engine import Database, upsert
from glance_bootcache.db.writer import Writer
from glance_bootcache.hosts.orders import Orders
from glance_bootcache.hosts.reportedneeds import ReportedNeeds
from glance_bootcache.nodes.node import StorageNode
from glance_bootcache.snapshots.records import Record, Records, Stage
from glance_bootcache.storage import imagerows
from glance_bootcache.storage.lastuses import LastUses
from tools.databases import MariaDB, PostgreSQL

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
OTHER = '8a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
BEGUN = Record(IMAGE, 'rbd', 'host-1', 'snapshot-x', Stage.BEGUN, 1763697600.125)
MANAGE = 'import sys; from glance_bootcache.cli import manage; sys.exit(manage.main(sys.argv[1:]))'
STATUS = 'import sys; from glance_bootcache.cli import status; sys.exit(status.main(sys.argv[1:]))'
# Writes all of one or all of the other, and says so after each commit.
CHANGING = '''
import sys
from oslo_config import cfg
from bootcache.rpc.report import HostReport
from glance_bootcache import conf as glance_conf
from glance_bootcache.db import conf as db_conf
from glance_bootcache.db.engine import Database
from glance_bootcache.db.writer import Writer
from glance_bootcache.hosts.orders import Orders
from glance_bootcache.hosts.reportedneeds import ReportedNeeds
conf = cfg.ConfigOpts()
conf([], default_config_files=[], default_config_dirs=[])
glance_conf.register_opts(conf)
db_conf.register_opts(conf)
conf.set_override('connection', sys.argv[1], 'database')
database = Database(conf)
needs = ReportedNeeds(database)
writer = Writer(database, [needs.changes])
for count in range(1_000_000):
    for host in 'one', 'two':
        needs.note(host, HostReport(needs=frozenset(
            f'{count % 2}{image:07x}-1f2b-4c3d-8e9f-0a1b2c3d4e5f' for image in range(50))))
    writer.write()
    print(count, flush=True)
'''


@pytest.fixture(scope='module')
def servers():
    """Starts a server of a kind when it is first asked for."""
    made = {}

    def server(kind):
        if kind not in made:
            made[kind] = kind()
        return made[kind]

    yield server
    for each in made.values():
        each.remove()


@pytest.fixture
def mariadb():
    """A server that a test may stop."""
    server = MariaDB()
    yield server
    server.remove()


def configured(directory, url):
    conf = cfg.ConfigOpts()
    conf([], project='bootcache', default_config_files=[], default_config_dirs=[])
    glance_conf.register_opts(conf)
    db_conf.register_opts(conf)
    os.makedirs(f'{directory}/state', exist_ok=True)
    conf.set_override('state_dir', f'{directory}/state', bootcache_conf.GROUP)
    conf.set_override('connection', url, db_conf.GROUP)
    return conf


@pytest.fixture(params=[None, MariaDB, PostgreSQL], ids=['sqlite', 'mariadb', 'postgresql'])
def url(request, servers, directory):
    """Of an empty database."""
    return servers(request.param).database() if request.param else \
        f'sqlite:///{directory}/other.sqlite'


@pytest.fixture
def database(url, directory):
    """One with tables."""
    made = Database(configured(directory, url))
    schema.sync(made)
    yield made
    made.close()


def add_node(database, directory):
    """Have the database know a storage node; return the number of its row."""
    return StorageNode(database, f'{directory}/node.json', 'storage-1').id


def add_images(database, directory, *images):
    """Have the database know images."""
    row = {**imagerows.to_row(Manifest(IMAGE)),
           'node_id': add_node(database, directory),
           'term': 1, 'version': 1}
    database.write(lambda connection: upsert(connection, models.ImageRow, [
        {**row, 'image_id': image} for image in images or (IMAGE, OTHER)]))


def written(database, *sources):
    Writer(database, [source.changes for source in sources]).write(at_once=True)


# The schema.

def test_migrations_end_in_the_models(database):
    def differences(connection):
        return autogenerate.compare_metadata(
            migration.MigrationContext.configure(connection, opts={'compare_type': True}),
            models.Model.metadata)

    assert database.read(differences) == []
    assert schema.version(database) == schema.wanted()
    schema.sync(database)
    schema.check(database)
    # A run that was cut off, after a table or before its index: MariaDB has what was made.
    database.write(lambda connection: [connection.exec_driver_sql(sql) for sql in (
        'DROP TABLE snapshots', 'DROP TABLE orders', 'DELETE FROM alembic_version',
        'DROP INDEX ix_host_images_image_id' + (
            ' ON host_images' if connection.dialect.name == 'mysql' else ''))])
    schema.sync(database)
    assert database.read(differences) == []


def test_without_tables_or_with_those_of_a_later_release(url, directory):
    database = Database(configured(directory, url))
    with pytest.raises(exception.DatabaseUnusable, match='bootcache-manage db sync'):
        start.wait_for(configured(directory, url))
    schema.sync(database)
    database.write(lambda connection: connection.exec_driver_sql(
        "UPDATE alembic_version SET version_num = '9999'"))
    for check in schema.sync, schema.check:
        with pytest.raises(exception.DatabaseUnusable, match=r'9999.*does not know'):
            check(database)
    database.close()


@pytest.mark.parametrize(('version', 'works'), [
    ('9999_0001', True), (f'9999_{schema.wanted()[:4]}', True), ('9999_9998', False),
    ('0000_0000', False)])
def test_tables_of_a_later_release_are_used_by_those_that_it_names(url, directory, version, works):
    database = Database(configured(directory, url))
    schema.sync(database)
    database.write(lambda connection: connection.exec_driver_sql(
        f"UPDATE alembic_version SET version_num = '{version}'"))
    for check in schema.sync, schema.check:
        with contextlib.nullcontext() if works else pytest.raises(
                exception.DatabaseUnusable, match=f'{version}.*does not know'):
            check(database)
    assert schema.version(database) == version
    database.close()


def test_versions_tell_which_releases_work_with_them():
    assert re.fullmatch(r'\d{4}(_\d{4})?', schema.wanted())


# What is kept.

def test_what_is_written_is_there_after_a_restart(database, directory):
    records, orders = Records(database, 1), Orders(database)
    needs, uses = ReportedNeeds(database), LastUses(database)
    add_images(database, directory)
    for _again in range(2):
        records.put(BEGUN)
        orders.add(IMAGE, ['Host', 'host'])
        orders.add_for_all(OTHER)
        needs.note('host', HostReport(needs=frozenset([IMAGE, OTHER])))
        needs.note('Host', HostReport(needs=frozenset([IMAGE])))
        needs.note('odd', HostReport())
        uses.record(IMAGE, 1763697600.125)
        written(database, orders, needs, uses)
    assert Records(database, 1).all() == [BEGUN]
    orders, needs, uses = Orders(database), ReportedNeeds(database), LastUses(database)
    assert orders.of('Host') == {IMAGE} == orders.of('host') and orders.is_for_all(OTHER)
    assert needs.hosts(IMAGE) == ['Host', 'host'] and needs.hosts(OTHER) == ['host']
    assert needs.needed('none of them') and uses.last(IMAGE) == 1763697600.125
    records.put(Record(IMAGE, 'rbd', 'host-1', 'snapshot-x', Stage.FINISHED, 5.0))
    assert [record.stage for record in Records(database, 1).all()] == [Stage.FINISHED]
    records.drop(records.get(IMAGE))
    orders.settle('host', [])
    needs.note('host', HostReport(needs=frozenset([OTHER])))
    needs.note('odd', HostReport(needs=frozenset()))
    written(database, orders, needs, uses)
    orders, needs = Orders(database), ReportedNeeds(database)
    assert Records(database, 1).all() == []
    assert orders.of('host') == frozenset() and orders.of('Host') == {IMAGE}
    assert needs.hosts(IMAGE) == ['Host'] and needs.hosts(OTHER) == ['host']
    assert not needs.needed('none of them')


def test_many_hosts_are_written_and_read(database, directory):
    """As after a start, when all report at once."""
    needs, uses = ReportedNeeds(database), LastUses(database)
    images = [f'{number:08x}-1f2b-4c3d-8e9f-0a1b2c3d4e5f' for number in range(1000)]
    add_images(database, directory, *images)
    for host in range(1200):
        needs.note(f'host-{host}', HostReport(needs=frozenset(images[host % 900:][:10])))
    for image in images:
        uses.record(image, 1.0)
    written(database, needs, uses)
    again = ReportedNeeds(database)
    assert [again.hosts(image) for image in images] == [needs.hosts(image) for image in images]
    assert LastUses(database)._last == uses._last


def test_ids_of_hosts_do_not_end(database):
    """MariaDB and PostgreSQL take one for each report that says something new."""
    set_next = {'mysql': 'ALTER TABLE hosts AUTO_INCREMENT = 2147483647',
                'postgresql': "SELECT setval('hosts_id_seq', 2147483646)"}
    database.write(lambda connection: connection.exec_driver_sql(
        set_next.get(connection.dialect.name, 'SELECT 1')))
    needs = ReportedNeeds(database)
    for host in range(5):
        needs.note(f'host-{host}', HostReport(needs=frozenset([IMAGE])))
        written(database, needs)
    assert ReportedNeeds(database).hosts(IMAGE) == [f'host-{host}' for host in range(5)]


@pytest.mark.parametrize('commits', [1, 4, 9])
def test_a_killed_process_leaves_all_of_a_change_or_nothing(database, url, directory, commits):
    argv, options = command(CHANGING, directory, url)
    with subprocess.Popen(argv, stdout=subprocess.PIPE, **options) as process:
        for _commit in range(commits):
            assert process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    found = ReportedNeeds(database)._rows
    images = {image for row in found.values() for image in row.images}
    assert {host: len(row.images) for host, row in found.items()} == {'one': 50, 'two': 50}
    assert len(images) == 50 and len({image[0] for image in images}) == 1


# What goes wrong.

def test_a_deadlock_is_repeated(servers, directory):
    """Two writers that take the same rows in another order: InnoDB ends one."""
    database = Database(configured(directory, servers(MariaDB).database()))
    schema.sync(database)
    orders, both = Orders(database), threading.Barrier(2, timeout=60)
    for host in 'one', 'two':
        orders.add(IMAGE, [host])
    tries = []

    def change(first, second):
        def work(connection):
            tries.append(first)
            upsert(connection, models.OrderRow, [
                {'host': first, 'image_id': IMAGE, 'ordered_at': 7.0}])
            if len(tries) <= 2:
                both.wait()
            upsert(connection, models.OrderRow, [
                {'host': second, 'image_id': IMAGE, 'ordered_at': 8.0}])
        database.write(work)

    other = threading.Thread(target=change, args=('two', 'one'))
    other.start()
    change('one', 'two')
    other.join()
    assert len(tries) >= 3
    database.close()


def test_while_the_database_is_away_nothing_is_lost(mariadb, directory):
    """Reports are written later; what somebody waits for is refused, and has not happened."""
    database = Database(configured(directory, mariadb.database()))
    schema.sync(database)
    records, orders = Records(database, 1), Orders(database)
    needs, uses = ReportedNeeds(database), LastUses(database)
    add_images(database, directory)
    orders.add(OTHER, ['host'])
    needs.note('host', HostReport(needs=frozenset([IMAGE])))
    records.put(BEGUN)
    written(database, orders, needs, uses)
    mariadb.stop()
    for refused in (lambda: orders.add(IMAGE, ['host']), lambda: records.drop(BEGUN),
                    lambda: written(database, needs, uses, orders)):
        needs.note('host', HostReport(needs=frozenset([OTHER])))
        uses.record(IMAGE, 5.0)
        orders.settle('host', [])
        with pytest.raises(exception.DatabaseAway) as raised:
            refused()
        assert not isinstance(raised.value, exception.DatabaseUnusable)
    assert records.all() == [BEGUN] and orders.of('host') == frozenset()
    assert needs.hosts(OTHER) == ['host'] and uses.last(IMAGE) == 5.0
    mariadb.start()
    written(database, needs, uses, orders)
    assert Records(database, 1).all() == [BEGUN]
    assert Orders(database).of('host') == frozenset()
    assert ReportedNeeds(database).hosts(OTHER) == ['host'] and LastUses(database).last(IMAGE) == 5
    database.close()


def is_put(records):
    """Put a record; False for as long as a database that hung is not asked."""
    with contextlib.suppress(exception.DatabaseAway):
        records.put(BEGUN)
        return True
    return False


def test_a_database_that_hangs_holds_nobody_up_for_good(mariadb, directory):
    url = mariadb.database()
    making = Database(configured(directory, url))
    schema.sync(making)
    node_id = add_node(making, directory)
    making.close()
    database = Database(configured(directory, f'{url}&read_timeout=2&connect_timeout=2'))
    records = Records(database, node_id)
    mariadb.freeze(True)
    began = time.monotonic()
    try:
        with pytest.raises(exception.DatabaseAway):
            records.put(BEGUN)
    finally:
        mariadb.freeze(False)
    assert time.monotonic() - began < 60
    until(lambda: is_put(records), 'the end of it')
    assert Records(database, node_id).all() == [BEGUN]
    database.close()


@pytest.mark.parametrize('kind', [MariaDB, PostgreSQL])
def test_a_table_that_somebody_else_locks_holds_nobody_up_for_good(servers, kind, directory,
                                                                   monkeypatch):
    monkeypatch.setattr(engine, '_ANSWER_SECONDS', 2)
    url = servers(kind).database() + '&read_timeout=2' * (kind is MariaDB)
    database, other = (Database(configured(directory, url)) for _session in range(2))
    schema.sync(database)
    node_id = add_node(database, directory)
    records, is_locked, is_over = Records(database, node_id), threading.Event(), threading.Event()

    def lock(connection):
        upsert(connection, models.SnapshotRow, [
            {**dataclasses.asdict(BEGUN), 'stage': BEGUN.stage.value, 'node_id': node_id}])
        is_locked.set()
        assert is_over.wait(60)

    locking = threading.Thread(target=other.write, args=(lock,))
    locking.start()
    assert is_locked.wait(60)
    began = time.monotonic()
    try:
        with pytest.raises(exception.DatabaseAway):
            records.put(BEGUN)
    finally:
        is_over.set()
        locking.join()
    assert time.monotonic() - began < 30 and records.all() == []
    until(lambda: is_put(records), 'the end of it')
    assert Records(database, node_id).all() == [BEGUN]
    database.close()
    other.close()


@pytest.mark.parametrize('kind', [MariaDB, PostgreSQL])
def test_messages_name_no_password(servers, kind, directory):
    server = servers(kind)
    name = server.new_name()
    host = {'MariaDB': f'localhost/{name}?unix_socket={server.home}/no-socket',
            'PostgreSQL': f'/{name}?host={server.home}/no-folder'}[kind.__name__]
    scheme = server.url(name).partition(':')[0]
    with pytest.raises(exception.DatabaseAway) as raised:
        schema.version(Database(configured(directory, f'{scheme}://who:secret@{host}')))
    assert 'secret' not in str(raised.value) and '[database]connection' in str(raised.value)
    assert 'who:***@' in str(raised.value)


def test_a_user_that_is_refused_is_told_of_with_the_option(servers, directory):
    server = servers(MariaDB)
    name = server.new_name()
    for who, what in ('nobody:secret', name), ('root', 'no_such_database'):
        with pytest.raises(exception.DatabaseUnusable) as raised:
            start.wait_for(configured(directory, server.url(what, who)))
        assert 'secret' not in str(raised.value)
        assert 'refuses' in str(raised.value) and '[database]connection' in str(raised.value)


@pytest.mark.parametrize('url', ['mysql+pymysql:/who:secret@x', 'nosuch://who:secret@x/y', 'x',
                                 'sqlite://', 'mysql+nosuch://who:secret@x/y',
                                 'mysql+pymysql://who@x:secret/y'])
def test_a_url_that_is_none_is_told_of_without_what_it_says(directory, url):
    with pytest.raises(exception.ConfigurationError, match=r'\[database\]connection') as raised:
        Database(configured(directory, url))
    assert 'secret' not in str(raised.value)


@pytest.mark.parametrize('damage', [b'no database at all' * 500, 'a page'])
def test_a_damaged_file_is_told_of_and_left_as_it_is(directory, damage):
    conf = configured(directory, None)
    path = db_conf.default_file(conf)
    database = start.wait_for(conf)
    for number in range(30):
        Orders(database).add(IMAGE, [f'host-{number}'])
    database.close()
    if damage == 'a page':
        with sqlite3.connect(path) as file:
            page, = file.execute("SELECT rootpage FROM sqlite_master WHERE name = 'orders'"
                                 ).fetchone()
            size, = file.execute('PRAGMA page_size').fetchone()
        file.close()
        with open(path, 'r+b') as stream:
            stream.seek((page - 1) * size)
            stream.write(b'x' * size)
    else:
        with open(path, 'wb') as stream:
            stream.write(damage)
    with open(path, 'rb') as stream:
        before = stream.read()
    with pytest.raises(exception.DatabaseUnusable, match=r'damaged.*left as it is'):
        Orders(start.wait_for(conf))
    with open(path, 'rb') as stream:
        assert stream.read() == before


def test_a_file_system_that_is_full_refuses_and_loses_nothing(directory):
    """A tmpfs of the test's own, where it may mount one."""
    os.makedirs(f'{directory}/state')
    if subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=1m', 'tmpfs', f'{directory}/state'],
                      capture_output=True, check=False).returncode:
        pytest.skip('nothing can be mounted')
    try:
        conf = configured(directory, None)
        database = start.wait_for(conf)
        orders = Orders(database)
        orders.add(IMAGE, ['one'])
        with open(f'{directory}/state/filler', 'wb') as stream:
            try:
                while True:
                    os.write(stream.fileno(), bytes(4096))
            except OSError:
                pass
        with pytest.raises(exception.DatabaseAway, match=r'full|I/O error'):
            for number in range(200):
                orders.add(IMAGE, [f'host-{number}' * 20])
        known = {host for host in orders._orders}
        os.unlink(f'{directory}/state/filler')
        assert set(Orders(database)._orders) == known
        orders.add(OTHER, ['one'])
        assert Orders(database).of('one') == {IMAGE, OTHER}
        database.close()
    finally:
        subprocess.run(['umount', f'{directory}/state'], check=True)


# Commands.

@pytest.fixture
def run(url, directory):
    """Runs a command on a database."""
    os.makedirs(f'{directory}/state')
    with open(f'{directory}/bootcache.conf', 'w') as stream:
        stream.write(f'[bootcache]\nstate_dir = {directory}/state\nrun_dir = {directory}/run\n'
                     f'[database]\nconnection = {url}\n')

    def run(program, *arguments):
        argv, options = command(program, directory, '--config-file',
                                f'{directory}/bootcache.conf', *arguments)
        return subprocess.run(argv, capture_output=True, check=False, **options)
    return run


def test_an_operator_makes_the_tables_and_sees_them(run):
    told = run(MANAGE, 'db', 'version')
    assert told.returncode == 0 and 'no tables' in told.stdout
    checked = run(STATUS, 'upgrade', 'check')
    assert checked.returncode == 2 and 'bootcache-manage db' in ' '.join(checked.stdout.split())
    for _again in range(2):
        told = run(MANAGE, 'db', 'sync')
        assert told.returncode == 0 and f'has schema {schema.wanted()}' in told.stdout
    told = run(MANAGE, 'db', 'version')
    assert f'schema {schema.wanted()}; this release needs {schema.wanted()}' in told.stdout
    checked = run(STATUS, 'upgrade', 'check')
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_before_the_first_start_the_default_database_need_not_be_there(directory):
    path = f'{directory}/bootcache.conf'
    with open(path, 'w') as stream:
        stream.write(f'[bootcache]\nstate_dir = {directory}/none\n')
    argv, options = command(STATUS, directory, '--config-file', path, 'upgrade', 'check')
    checked = subprocess.run(argv, capture_output=True, check=False, **options)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert not os.path.exists(f'{directory}/none')


@pytest.mark.parametrize(('program', 'arguments', 'code'), [
    (MANAGE, ['db', 'sync'], 1), (STATUS, ['upgrade', 'check'], 255)])
def test_commands_say_what_is_wrong_in_one_line(directory, program, arguments, code):
    argv, options = command(program, directory, '--config-file', f'{directory}/none', *arguments)
    done = subprocess.run(argv, capture_output=True, check=False, **options)
    assert done.returncode == code and f'{directory}/none' in done.stderr
    assert done.stdout == '' and done.stderr.count('\n') == 1


def test_a_database_of_another_user_is_not_touched(directory):
    """Its files would be root's, and the service could not write them."""
    if os.geteuid() != 0:
        pytest.skip('only root can give files away')
    conf = configured(directory, None)
    os.chown(f'{directory}/state', 12345, 12345)
    with pytest.raises(exception.ConfigurationError, match='user 12345'):
        Database(conf).check_user()
    assert os.listdir(f'{directory}/state') == []
