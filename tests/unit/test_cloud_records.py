"""What the test cloud reads in Nova's records: the tables have the columns that it asks for."""

import contextlib
import sqlite3
import time
from datetime import UTC, datetime

import pytest

from tools.cloud import records
from tools.cloud.layout import Host, Layout

STARTED = int(time.time()) - 10 + 0.4


def note(database, table, **row):
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(f'CREATE TABLE {table} ({", ".join(row)})')
        connection.execute(f'INSERT INTO {table} VALUES ({", ".join("?" * len(row))})',
                           tuple(row.values()))


def stamp(seconds):
    return datetime.fromtimestamp(int(seconds), UTC).strftime('%Y-%m-%d %H:%M:%S')


@pytest.mark.parametrize('noted, registered', [
    (STARTED - 5, False),
    # Of the one that was killed, and of the same second.
    (STARTED, False),
    (STARTED + 2, True)])
def test_a_compute_service_is_registered_once_it_has_noted_so_itself(tmp_path, noted, registered):
    layout, host = Layout(tmp_path), Host(tmp_path, 1)
    for name in ('nova_cell1', 'nova_api'):
        layout.database(name).parent.mkdir(parents=True, exist_ok=True)
    note(layout.database('nova_cell1'), 'compute_nodes', deleted=0, host=host.hostname,
         updated_at=stamp(noted), created_at=stamp(0))
    note(layout.database('nova_cell1'), 'services', deleted=0, binary='nova-compute',
         host=host.hostname, last_seen_up=stamp(time.time()), created_at=stamp(0))
    note(layout.database('nova_api'), 'host_mappings', host=host.hostname)
    for opened in (True, False):
        with contextlib.ExitStack() as services:
            for name in ('nova_cell1', 'nova_api') if opened else ():
                service = services.enter_context(contextlib.closing(
                    sqlite3.connect(layout.database(name))))
                service.execute('PRAGMA journal_mode=WAL')
                service.execute('SELECT 1 FROM sqlite_master').fetchall()
            assert records.compute_registered(layout, host, STARTED) is registered
    # Nothing is made where nobody has it open.
    assert {path.name for path in layout.database('nova_api').parent.iterdir()} == {
        'nova_api.db', 'nova_cell1.db'}
