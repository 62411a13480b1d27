"""``glance-bootcache`` as a process of its own, and its database: made, waited for, or refused."""

import contextlib
import os
import signal

import nbd
import pytest
import sqlalchemy as sa
from functional_tools import free_port, until
from service_process import CONTENT, PATIENCE, known_base, lines, served, serves
from service_process import cloud as cloud  # a fixture
from service_process import images as images  # likewise
from service_process import service as service  # likewise

from glance_bootcache.db import conf as db_conf
from glance_bootcache.db import schema
from glance_bootcache.db.engine import Database
from glance_bootcache.db.models import StorageNodeRow
from glance_bootcache.hosts.orders import Orders
from glance_bootcache.nodes import node
from tools.databases import MariaDB


@pytest.fixture
def mariadb():
    """A server, and the URL of an empty database with a password."""
    server = MariaDB()
    server.sql("CREATE USER bootcache@localhost IDENTIFIED BY 'secret';"
               ' GRANT ALL ON *.* TO bootcache@localhost')
    server.bootcache_url = server.url(server.new_name(), 'bootcache:secret')
    yield server
    server.remove()


@pytest.fixture
def base(directory):
    """A base that servers read."""
    return known_base(directory)


def is_served(port, base):
    with contextlib.suppress(nbd.Error):
        return served(port, base) == CONTENT


def ended(process):
    assert process.wait(PATIENCE) in (0, 1)
    return process.returncode


def test_nothing_has_to_be_set_up_without_a_database(service, directory):
    port = free_port()
    for _start in range(2):
        process = service(export_port=port)
        until(lambda: serves(directory), 'the service')
        process.send_signal(signal.SIGTERM)
        assert ended(process) == 0 and lines(directory) == []
    assert os.path.exists(f'{directory}/state/{db_conf.FILE}')


def test_a_database_without_tables_ends_it_with_the_command(service, directory, mariadb, base):
    port = free_port()
    process = service(others={'database': {'connection': mariadb.bootcache_url}}, export_port=port)
    assert ended(process) == 1
    told = '\n'.join(lines(directory))
    assert 'run "bootcache-manage db sync"' in told and 'secret' not in told
    assert served(port, base) == CONTENT, 'servers that run are served all the same'


def test_a_database_that_is_away_is_waited_for_while_bases_are_served(
        service, directory, mariadb, base, storage_conf):
    storage_conf.set_override('connection', mariadb.bootcache_url, db_conf.GROUP)
    database = Database(storage_conf)
    schema.sync(database)
    mariadb.stop()
    port = free_port()
    process = service(others={'database': {'connection': mariadb.bootcache_url}}, export_port=port)
    until(lambda: any('waits for it' in line for line in lines(directory)), 'the waiting')
    assert 'secret' not in ''.join(lines(directory))
    assert served(port, base) == CONTENT and not serves(directory)
    with open(f'{directory}/run/exporter.pid') as stream:
        os.kill(int(stream.read()), signal.SIGKILL)
    until(lambda: is_served(port, base), 'another exporter')
    assert not serves(directory)
    mariadb.start()
    until(lambda: serves(directory), 'the service')
    process.send_signal(signal.SIGTERM)
    assert ended(process) == 0
    assert Orders(database).of('nobody') == frozenset()
    database.close()


def test_it_ends_when_told_while_it_waits(service, directory, mariadb):
    mariadb.stop()
    process = service(others={'database': {'connection': mariadb.bootcache_url}})
    until(lambda: any('waits for it' in line for line in lines(directory)), 'the waiting')
    process.send_signal(signal.SIGTERM)
    assert ended(process) == 0
    assert not any('cannot be started' in line for line in lines(directory))


def test_a_damaged_database_ends_it_and_is_left_as_it_is(service, directory, base):
    path, damage, port = f'{directory}/state/{db_conf.FILE}', b'no database' * 1000, free_port()
    with open(path, 'wb') as stream:
        stream.write(damage)
    process = service(export_port=port)
    assert ended(process) == 1
    line, = lines(directory)
    assert path in line and 'damaged' in line and 'put a backup in their place' in line
    with open(path, 'rb') as stream:
        assert stream.read() == damage
    assert served(port, base) == CONTENT


def end_exporter(directory):
    """As a reboot does."""
    with open(f'{directory}/run/exporter.pid') as stream:
        pid = int(stream.read())
    os.kill(pid, signal.SIGKILL)
    until(lambda: not os.path.exists(f'/proc/{pid}'), 'its end')


def test_an_empty_database_has_what_was_served_served_and_nothing_removed(
        service, directory):
    """After a reboot: neither process nor memory knows of it."""
    port = free_port()
    process = service(export_port=port)
    until(lambda: serves(directory), 'the service')
    process.send_signal(signal.SIGTERM)
    assert ended(process) == 0 and lines(directory) == []
    base = known_base(directory)
    left = f'{directory}/state/images/{base[5:]}/base-0a1b2c3d.img'
    os.makedirs(os.path.dirname(left))
    with open(left, 'wb') as stream:
        stream.write(CONTENT)
    for end in '', '-wal', '-shm':
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f'{directory}/state/{db_conf.FILE}{end}')
    for _start in range(2):
        end_exporter(directory)
        process = service(export_port=port)
        until(lambda: serves(directory), 'the service')
        assert served(port, base) == CONTENT and os.path.exists(left)
        another, files = lines(directory)
        assert 'another one than this node used' in another and 'db accept' in another
        assert left in files and 'bootcache-manage files list' in files
        process.send_signal(signal.SIGTERM)
        assert ended(process) == 0


def test_a_database_that_is_replaced_under_the_service_ends_it(service, directory, mariadb, base,
                                                               storage_conf):
    """systemd starts it again, and it reads all of it anew."""
    storage_conf.set_override('connection', mariadb.bootcache_url, db_conf.GROUP)
    database, port = Database(storage_conf), free_port()
    schema.sync(database)
    others = {'database': {'connection': mariadb.bootcache_url}}
    process = service(others=others, export_port=port)
    until(lambda: serves(directory), 'the service')
    database.write(lambda connection: connection.execute(
        sa.update(StorageNodeRow).values(beat=-5)))
    assert ended(process) == 0
    assert any('was replaced by another one' in line for line in lines(directory))
    assert served(port, base) == CONTENT
    process = service(others=others, export_port=port)
    until(lambda: serves(directory), 'the service')
    assert any('another one than this node used' in line for line in lines(directory))
    assert node.accept(database) and served(port, base) == CONTENT
    process.send_signal(signal.SIGTERM)
    assert ended(process) == 0
    database.close()
