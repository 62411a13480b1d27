"""Looks at tenants' images that do not come to their end, by no fault of the image."""

import contextlib
import os
import signal
import subprocess
import sys
import threading

import pytest
import rotten
from functional_tools import commands_below, qemu_img, until

from bootcache import confined, exception
from glance_bootcache.storage import inspection
from glance_bootcache.storage.inspection import Inspected

MIB = 1 << 20
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@pytest.fixture
def path(directory):
    return f'{directory}/image'


@pytest.fixture(autouse=True)
def are_heard():
    """A shell in the background, or nohup, has its children ignore some signals."""
    before = {number: signal.signal(number, signal.SIG_DFL)
              for number in SIGNALS if number != signal.SIGKILL}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@contextlib.contextmanager
def killed(path, word, number):
    """The process that looks at a file gets a signal, as soon as it is there, until it has gone."""
    def kill():
        def looks():
            return [pid for pid, words in commands_below().items()
                    if word in words and words[0] != 'sh'
                    and any(path in one or confined.IMAGE in one for one in words)]

        pid = until(looks, 'a look')[0]

        def has_gone():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                return True
            return False

        # An interpreter that begins may lose one.
        until(has_gone, 'its end')

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        thread.join()


@pytest.mark.parametrize('number', SIGNALS, ids=lambda number: number.name)
def test_a_look_that_others_end(path, number):
    """As the kernel does that is short of memory, systemd, and a terminal."""
    # It takes seconds.
    rotten.make_bomb(path, 4 << 40)
    with killed(path, inspection._LOOK, number), \
            pytest.raises(exception.Interrupted, match='did not come to its end'):
        inspection.inspect(path, 'qcow2')


@pytest.mark.parametrize('number', SIGNALS, ids=lambda number: number.name)
def test_a_reading_that_others_end(path, number):
    rotten.make_bomb(path, 64 << 30)
    with killed(path, 'convert', number), \
            pytest.raises(exception.Interrupted, match='ended by others'):
        inspection.read_all(path, Inspected('qcow2', 64 << 30), os.path.getsize(path),
                            lambda: None)


def test_a_look_whose_module_is_being_replaced(path, monkeypatch):
    """As pip does below a service that runs."""
    qemu_img('create', '-q', '-f', 'qcow2', path, MIB)
    monkeypatch.setattr(inspection, '_LOOK', 'glance_bootcache.storage.gone')
    with pytest.raises(exception.Interrupted, match='No module named glance_bootcache'):
        inspection.inspect(path, 'qcow2')


@pytest.mark.parametrize('disk_format', ['qcow2', 'raw'])
@pytest.mark.parametrize('make', [lambda path: None, os.mkdir], ids=['missing', 'directory'])
def test_what_this_machine_cannot_read(path, disk_format, make):
    make(path)
    with pytest.raises(exception.Interrupted):
        inspection.inspect(path, disk_format)


def test_a_look_that_takes_too_much_memory_is_the_images_fault(path):
    """The limit is set when all is loaded that has nothing to do with the image."""
    rotten.make_bomb(path, 2 << 40)
    told = subprocess.run([sys.executable, '-W', 'ignore', '-c', f'''
import os, resource
from glance_bootcache.storage import look
with open('/proc/self/statm') as stream:
    size = int(stream.read().split()[0]) * os.sysconf('SC_PAGE_SIZE')
resource.setrlimit(resource.RLIMIT_AS, (size + 500_000, size + 500_000))
print(look.look({path!r}, 'qcow2', {16 << 40}))
'''], capture_output=True, text=True, check=True).stdout
    assert 'takes too much memory' in told


@pytest.mark.parametrize('disk_format', ['qcow2', 'raw'])
def test_nothing_runs_that_lies_where_the_service_was_started(path, directory, monkeypatch,
                                                              disk_format):
    qemu_img('create', '-q', '-f', disk_format, path, MIB)
    ran = f'{directory}/ran'
    for name in ('json', 'oslo_concurrency', 'argparse', 'glance_bootcache', 'os'):
        with open(f'{directory}/{name}.py', 'w') as stream:
            stream.write(f'open({ran!r}, "w").close()\nraise SystemExit(0)\n')
    monkeypatch.chdir(directory)
    inspected = inspection.inspect('image', disk_format)
    assert inspected == Inspected(disk_format, MIB)
    inspection.read_all('image', inspected, os.path.getsize(path), lambda: None)
    assert not os.path.exists(ran)
