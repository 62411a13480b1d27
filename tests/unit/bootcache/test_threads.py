"""Long work under eventlet, in a process of its own, and where there is none.

A green thread writes into a pipe what another one hashes: if the hash let nobody else have a turn,
the first would never come to write.
"""

import os
import subprocess
import sys
import threading

import pytest

from bootcache.util import threads

WRITER = '''
import hashlib, sys, threading
from bootcache import savefile
from bootcache.util import threads
path, piece = sys.argv[1], b'x' * (1 << 20)
digest = hashlib.sha512(piece * 3).hexdigest()

def write():
    stream = threads.run_native(lambda: open(path, 'wb'))
    for _ in range(3):
        # Each but the first needs a turn.
        threads.run_native(lambda: stream.write(piece))
    threads.run_native(stream.close)

writer = threading.Thread(target=write)
writer.start()
'''
EVENTLET = 'import eventlet; eventlet.monkey_patch()\n'


def run(code, *arguments):
    """Run Python in a process that is given up if it does not end."""
    done = subprocess.run([sys.executable, '-W', 'ignore', '-c', code, *map(str, arguments)],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def pipe(tmp_path):
    os.mkfifo(tmp_path / 'pipe')
    return tmp_path / 'pipe'


@pytest.mark.parametrize('first', ['', EVENTLET], ids=['threads', 'eventlet'])
def test_others_go_on_while_a_file_is_hashed(pipe, first):
    run(first + WRITER + '''
assert savefile.file_digest(path, 'sha512') == digest
writer.join()
''', pipe)


def test_others_go_on_while_a_base_is_verified(pipe):
    """It is read in pieces, as it is paced and may be given up."""
    run(EVENTLET + WRITER + '''
from nova_bootcache.settling import fullbase
work = fullbase._Work('/nowhere', 0, 0, threading.Event())
# The writer's turn: here the file is opened, which a file on a disk does at once.
threads.run_native(int)
work.verify(path, 'sha512:' + digest)
writer.join()
''', pipe)


def test_errors_come_through():
    run(EVENTLET + '''
from bootcache import savefile
try:
    savefile.file_digest('/nowhere/at/all')
except FileNotFoundError:
    print('told')
else:
    raise SystemExit('nothing was told')
''')


def test_work_is_done_by_a_native_thread_under_eventlet_only():
    code = '''
import sys
from bootcache.util import threads
import threading
native = sys.modules['eventlet.patcher'].original('threading') if threads.is_green() else threading
print(threads.run_native(native.get_ident) == native.get_ident(), threads.is_green())
'''
    assert run(code).split() == ['True', 'False']
    assert run(EVENTLET + code).split() == ['False', 'True']


def test_eventlet_is_not_imported_where_nobody_uses_it():
    """Libraries may do so: earlier versions of oslo.log do."""
    assert run('''
import sys
import oslo_log.log
theirs = 'eventlet' in sys.modules
from bootcache import savefile
from bootcache.util import threads
savefile.file_digest(sys.argv[0] if sys.argv[0] != '-c' else sys.executable)
print('eventlet' in sys.modules and not theirs)
''').split() == ['False']


def test_here():
    assert threads.run_native(threading.get_ident) == threading.get_ident()
