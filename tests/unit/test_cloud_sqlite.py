"""The test cloud's SQLite: one writer at a time, and no thread that waits for itself."""

import os
import pathlib
import subprocess
import sys

SHIMS = pathlib.Path(__file__).resolve().parents[2] / 'tools' / 'cloud' / 'shims'
PROGRAM = '''
import sqlite3, sys, threading

def connect():
    return sqlite3.connect(sys.argv[1], isolation_level=None, check_same_thread=False)

def read(connection):
    cursor = connection.cursor()
    cursor.execute('BEGIN')
    found = cursor.execute('SELECT x FROM t').fetchone()
    connection.rollback()
    return found[0]

outer, inner, gone = connect(), connect(), connect()
outer.execute('CREATE TABLE t (x)')
outer.execute('INSERT INTO t VALUES (1)')
read(gone)
gone.close()
outer.cursor().execute('BEGIN')
outer.execute('UPDATE t SET x = 2')
print('inner', read(inner))
found = []
other = threading.Thread(target=lambda: found.append(read(connect())))
other.start()
other.join(0.5)
print('waits', found)
outer.commit()
other.join()
print('then', found[0])
'''


def test_a_transaction_waits_for_those_of_other_threads_only(tmp_path):
    """Placement reads on a second connection while it writes on a first one."""
    done = subprocess.run(
        [sys.executable, '-c', PROGRAM, str(tmp_path / 'database')], text=True, timeout=50,
        env={**os.environ, 'PYTHONPATH': str(SHIMS)}, capture_output=True, check=False)
    assert done.stdout.splitlines() == ['inner 1', 'waits []', 'then 2'], done.stderr
