"""Whether a storage node works, which it asks itself before each beat."""

import errno
import os
import shutil
import tempfile
import types

import oslo_messaging as messaging
import pytest
from fakes_clock import Clock
from neighbours import Neighbour

from bootcache.exception import StorageDaemonError
from bootcache.rpc import messages
from bootcache.rpc.fields import TOKEN
from bootcache.rpc.messages import NO_IMAGE, SENDER, GetImage
from glance_bootcache.health import BUS, EXPORTER, HealthChecks
from glance_bootcache.nodes import selfcheck
from glance_bootcache.nodes.routing import NODE
from glance_bootcache.nodes.selfcheck import DISK
from glance_bootcache.storage import inspection
from glance_bootcache.storage.exporters import Exporters

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'


# The disk.

@pytest.fixture
def images(tmp_path):
    """The directory of a storage node's images."""
    directory = tmp_path / 'images'
    directory.mkdir()
    return directory


@pytest.fixture
def read(monkeypatch):
    """The files that are read, with the bytes of each."""
    found, preadv = [], os.preadv

    def noted(file, buffers, offset):
        count = preadv(file, buffers, offset)
        found.append((os.readlink(f'/proc/self/fd/{file}'), count))
        return count

    monkeypatch.setattr(selfcheck.os, 'preadv', noted)
    return found


def put(images, name='base-1.img', size=4096, image=IMAGE):
    path = images / image / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b'x' * size)
    return str(path)


def test_a_file_that_there_is_is_read(images, read, monkeypatch):
    monkeypatch.setattr(tempfile, 'NamedTemporaryFile', lambda **_named: pytest.fail('it writes'))
    path = put(images, size=1 << 20)
    for _beat in range(2):
        selfcheck.read_disk(str(images))
    assert read == [(path, 4096)] * 2


def nothing(images):
    pass


def no_files(images):
    (images / IMAGE).mkdir()


def nothing_to_read(images):
    """Too short for a block, no file, or somewhere else."""
    put(images, size=4095)
    (images / IMAGE / 'directory').mkdir()
    elsewhere = put(images.parent, image='elsewhere')
    os.symlink(elsewhere, images / IMAGE / 'link')
    os.symlink(os.path.dirname(elsewhere), images / 'link')
    (images / 'lost+found').write_bytes(b'x' * 4096)


@pytest.mark.parametrize('fill', [nothing, no_files, nothing_to_read])
def test_where_there_is_none_one_is_written_and_gone_again(images, read, fill):
    fill(images)
    before = sorted(images.rglob('*'))
    selfcheck.read_disk(str(images))
    (path, count), = read
    assert os.path.dirname(path) == str(images) and count == 4096
    assert sorted(images.rglob('*')) == before


def test_a_file_system_that_knows_no_direct_reads_is_read_as_it_does(images, read, monkeypatch):
    path, opened = put(images), os.open

    def refuse(path, flags, *more):
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, 'Invalid argument')
        return opened(path, flags, *more)

    monkeypatch.setattr(selfcheck.os, 'open', refuse)
    selfcheck.read_disk(str(images))
    assert read == [(path, 4096)]


def test_a_file_that_goes_meanwhile_is_no_fault(images, monkeypatch):
    path, opened = put(images), os.open

    def late(path, *more):
        os.unlink(path)
        return opened(path, *more)

    monkeypatch.setattr(selfcheck.os, 'open', late)
    selfcheck.read_disk(str(images))
    assert not os.path.exists(path)


def test_nor_is_an_image_s_directory(images, monkeypatch):
    """A beat is left out, and operators are told that the node is away."""
    file, scan = put(images), os.scandir

    def late(path):
        if path == os.path.dirname(file):
            os.unlink(file)
            os.rmdir(path)
        return scan(path)

    monkeypatch.setattr(selfcheck.os, 'scandir', late)
    selfcheck.read_disk(str(images))


def test_a_disk_that_cannot_be_read_is_one(images, monkeypatch):
    def fails(file, buffers, offset):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    put(images)
    monkeypatch.setattr(selfcheck.os, 'preadv', fails)
    with pytest.raises(OSError, match='Input/output error'):
        selfcheck.read_disk(str(images))


def test_so_is_one_that_is_not_mounted(images):
    images.rmdir()
    with pytest.raises(FileNotFoundError):
        selfcheck.read_disk(str(images))


# All of it.

class Parts:
    """The message bus, and the exporters.

    :ivar fails: what each raises, by name.
    """

    def __init__(self, monkeypatch):
        self.asked, self.fails = [], {}
        monkeypatch.setattr(messaging, 'get_rpc_client', self.client)

    def client(self, bus, target):
        assert (bus, target.server, target.exchange) == ('bus', 'a', 'bootcache-nodes')
        return types.SimpleNamespace(prepare=self.prepare)

    def prepare(self, **how):
        assert how['timeout'] <= 3
        return types.SimpleNamespace(call=self.call)

    def call(self, context, method, **arguments):
        self.asked.append((context, GetImage.parse(arguments)))
        assert method == GetImage.method
        if BUS in self.fails:
            raise self.fails[BUS]

    def check(self, each=True):
        if EXPORTER in self.fails:
            raise self.fails[EXPORTER]


@pytest.fixture
def parts(monkeypatch):
    return Parts(monkeypatch)


@pytest.fixture
def checks(parts, images):
    return selfcheck.checks('bus', 'a', Neighbour(parts, Exporters), str(images))


def test_bus_exporter_and_disk_are_asked(parts, checks):
    assert checks.failures() == {BUS: '', EXPORTER: '', DISK: ''}
    (context, message), = parts.asked
    assert message == GetImage(NO_IMAGE) and context[NODE] == 'a'
    assert TOKEN(context[SENDER]), 'as any other sender has one'


@pytest.mark.parametrize('name, error', [
    (BUS, messaging.MessagingTimeout('nobody has answered')),
    (EXPORTER, StorageDaemonError('exporter: it does not answer'))], ids=str)
def test_what_does_not_answer_is_named(parts, checks, name, error):
    parts.fails[name] = error
    failures = checks.failures()
    assert failures.pop(name) == str(error) and set(failures.values()) == {''}


def test_so_is_a_disk(checks, images):
    images.rmdir()
    failures = checks.failures()
    assert 'No such file' in failures.pop(DISK) and set(failures.values()) == {''}


def test_who_is_alone_asks_nothing():
    ask = selfcheck.fault(lambda: pytest.fail('it asks'), lambda: False)
    assert ask() == ''


def test_from_the_second_node_on_each_beat_asks_the_same_checks():
    made, calls, are_several, clock = [], [], [], Clock()

    def make():
        made.append(HealthChecks({BUS: lambda: calls.append(1)}, clock=clock))
        return made[-1]

    ask = selfcheck.fault(make, lambda: bool(are_several))
    assert ask() == '' and made == []
    are_several.append(True)
    for _beat in range(3):
        clock.now += 5
        assert ask() == ''
    assert len(made) == 1 and len(calls) == 3
    are_several.clear()
    clock.now += 5
    assert ask() == '' and len(calls) == 3


def test_what_is_wrong_is_told_with_its_name():
    def away():
        raise TimeoutError('nobody has answered')

    def ill():
        raise OSError(errno.EIO, 'Input/output error')

    checks = HealthChecks({BUS: away, EXPORTER: lambda: None, DISK: ill})
    assert selfcheck.fault(lambda: checks, lambda: True)() \
        == 'bus: nobody has answered; disk: [Errno 5] Input/output error'


@pytest.mark.parametrize(('free', 'room'), [(90, 65), (25, 0), (3, 0)])
def test_a_node_tells_what_it_speaks_and_its_room(tmp_path, monkeypatch, free, room):
    monkeypatch.setattr(shutil, 'disk_usage', lambda path: os.stat(path) and types.SimpleNamespace(
        total=200, used=100 - free, free=free))
    assert selfcheck.told(str(tmp_path)) == {
        'rpc': messages.VERSION, 'look_rules': inspection.RULES, 'free_bytes': room}
    with pytest.raises(OSError):
        selfcheck.told(str(tmp_path / 'none'))
