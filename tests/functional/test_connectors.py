"""Bases that are read through connectors, whose links are exchanged below a daemon that reads."""

import contextlib
import functools
import itertools
import os
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import nbd
import pytest
from functional_tools import free_port, frozen, supervise, until

from bootcache import exception
from bootcache.connectors import connector, probe, supervisor
from bootcache.connectors.connectors import Connectors
from bootcache.connectors.probe import Answer
from bootcache.connectors.starter import Starter
from bootcache.connectors.watch import BaseWatch
from bootcache.connectors.ways import absent_way, nbd_way
from bootcache.locks import KeyedLocks
from bootcache.storagedaemon import StorageDaemon, TcpListener, UnixListener

MIB = 1 << 20
EXPORT = 'base-7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f-0123456789abcdef'
RECONNECT_SECONDS = 10


@pytest.fixture
def content(directory):
    path = os.path.join(directory, 'base')
    with open(path, 'wb') as stream:
        stream.write(os.urandom(16 * MIB))
    return path


@pytest.fixture
def storage_nodes(directory, content):
    """Two that serve the same base."""
    daemons = []
    for number in range(2):
        daemon = StorageDaemon(f'node{number}', directory, TcpListener('127.0.0.1', free_port()))
        daemon.ensure_running()
        daemon.add_nodes({'driver': 'raw', 'node-name': 'base', 'read-only': True,
                          'file': {'driver': 'file', 'filename': content}})
        daemon.add_export(EXPORT, 'base')
        daemons.append(daemon)
    yield daemons
    for daemon in daemons:
        daemon.stop(0)


@pytest.fixture
def starter(directory):
    starter = Starter(directory)
    starter.listen()
    yield starter
    starter.kill_all()


@pytest.fixture
def connectors(directory, starter):
    return Connectors(directory, starter.do)


@pytest.fixture
def reader(directory):
    """A daemon that reads by the link, as the gateway does."""
    daemon = StorageDaemon('reader', directory, UnixListener(os.path.join(directory, 'r.sock')))
    daemon.ensure_running()
    link = Connectors(directory, Starter(directory).do).socket(EXPORT)

    def open_base():
        daemon.add_nodes({'driver': 'nbd', 'node-name': 'base', 'read-only': True, 'export': EXPORT,
                          'reconnect-delay': RECONNECT_SECONDS, 'open-timeout': 3,
                          'server': {'type': 'unix', 'path': link}})
        daemon.add_export('base', 'base')
        return daemon.listener.path

    yield open_base
    daemon.stop(0)


def way(daemon):
    return nbd_way('127.0.0.1', daemon.listener.port, EXPORT)


def read(path, offset=0):
    handle = nbd.NBD()
    handle.set_export_name('base')
    handle.connect_unix(path)
    try:
        return bytes(handle.pread(65536, offset))
    finally:
        handle.shutdown()


def told_of(path):
    """Return what is told to be allocated; None if that is an error."""
    handle, found = nbd.NBD(), []
    handle.set_export_name(EXPORT)
    handle.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
    handle.connect_unix(path)
    with contextlib.suppress(nbd.Error):
        handle.block_status(MIB, 0, lambda _context, _offset, told, _error: found.extend(told))
    return found or None


class Reading(threading.Thread):
    """A read that may wait."""

    def __init__(self, path, offset):
        super().__init__(daemon=True)
        self._path, self._offset, self.found = path, offset, None
        self.start()

    def run(self):
        try:
            self.found = read(self._path, self._offset)
        except nbd.Error as error:
            self.found = error


def expected(content, offset=0):
    with open(content, 'rb') as stream:
        stream.seek(offset)
        return stream.read(65536)


def answer(connectors, seconds=4):
    return probe.read({EXPORT: connectors.socket(EXPORT)}, seconds)[EXPORT]


def test_a_read_that_waits_for_a_frozen_node_ends_when_the_link_leads_to_another(
        connectors, storage_nodes, reader, content):
    first, second = storage_nodes
    connectors.connect(EXPORT, way(first))
    path = reader()
    assert read(path) == expected(content)
    with frozen(first.pid()):
        waiting = Reading(path, 5 * MIB)
        assert answer(connectors, 1) is Answer.SILENT
        connectors.connect(EXPORT, way(second))
        waiting.join(30)
        assert waiting.found == expected(content, 5 * MIB)
    assert answer(connectors) is Answer.READ


def test_a_second_connector_of_the_same_node_takes_over(connectors, storage_nodes, reader, content):
    """As where a firewall has forgotten the first one's connection."""
    connectors.connect(EXPORT, way(storage_nodes[0]))
    path, before = reader(), connectors.name_of(EXPORT)
    connectors.connect(EXPORT, way(storage_nodes[0]), avoid={before})
    assert connectors.name_of(EXPORT) not in ('', before)
    assert read(path, MIB) == expected(content, MIB)


def test_reads_of_a_base_that_is_away_fail_and_then_go_on(
        connectors, storage_nodes, reader, content):
    connectors.connect(EXPORT, way(storage_nodes[0]))
    path = reader()
    with frozen(storage_nodes[0].pid()):
        waiting = Reading(path, 5 * MIB)
        assert answer(connectors, 1) is Answer.SILENT
        park(connectors)
        waiting.join(3 * RECONNECT_SECONDS)
        assert isinstance(waiting.found, nbd.Error)
        assert answer(connectors, 1) is Answer.SILENT
    connectors.connect(EXPORT, way(storage_nodes[0]))
    until(lambda: reads(path, content), 'reads that go on')


def park(connectors, export=EXPORT):
    name = connectors.name_of(export)
    connectors.park(export)
    connectors.disconnect(name)


def reads(path, content):
    try:
        return read(path, 6 * MIB) == expected(content, 6 * MIB)
    except nbd.Error:
        return False


def test_reads_go_on_with_the_next_owner_of_the_socket_at_which_they_wait(
        storage_nodes, reader, content, directory):
    owner = supervise(directory)
    connectors = Connectors(directory, functools.partial(supervisor.ask, directory))
    connectors.connect(EXPORT, way(storage_nodes[0]))
    path = reader()
    try:
        with frozen(storage_nodes[0].pid()):
            waiting = Reading(path, 5 * MIB)
            park(connectors)
            owner.kill()
            owner.wait()
            waiting.join(3 * RECONNECT_SECONDS)
            assert isinstance(waiting.found, nbd.Error)
        owner = supervise(directory)
        connectors.connect(EXPORT, way(storage_nodes[0]))
        until(lambda: reads(path, content), 'reads that go on')
    finally:
        owner.terminate()
        owner.wait(60)


def test_a_base_that_is_away_can_be_opened(connectors, storage_nodes, reader, content):
    connectors.connect(EXPORT, absent_way(EXPORT, 16 * MIB))
    path = reader()
    # Who reads too early gets no bytes that are none of the base's.
    early = Reading(path, 0)
    early.join(3 * RECONNECT_SECONDS)
    assert isinstance(early.found, nbd.Error)
    assert told_of(connectors.socket(EXPORT)) is None
    connectors.park_absent(EXPORT)
    waiting = Reading(path, 0)
    waiting.join(3 * RECONNECT_SECONDS)
    assert isinstance(waiting.found, nbd.Error)
    connectors.connect(EXPORT, way(storage_nodes[0]))
    until(lambda: reads(path, content), 'reads that go on')


def test_one_that_was_killed_is_started_again(connectors, storage_nodes, reader, content,
                                              directory):
    connectors.connect(EXPORT, way(storage_nodes[0]))
    path = reader()
    name = connectors.name_of(EXPORT)
    daemon = connector.daemon(os.path.join(directory, 'connectors'), name)
    os.kill(daemon.pid(), signal.SIGKILL)
    until(lambda: not daemon.runs, 'its end')
    connectors.connect(EXPORT, way(storage_nodes[0]))
    assert connectors.name_of(EXPORT) == name
    assert reads(path, content)


def test_what_nobody_needs_ends(connectors, storage_nodes, directory):
    first, second = storage_nodes
    connectors.connect(EXPORT, way(first))
    connectors.connect('other', absent_way('other', MIB))
    os.utime(connectors.socket('other'), (0, 0), follow_symlinks=False)
    connectors.connect(EXPORT, way(second))
    connectors.keep([EXPORT])
    assert connectors.name_of(EXPORT).startswith(way(second).origin)
    assert not connectors.name_of('other')
    assert [name.partition('.')[0] for name in os.listdir(os.path.join(directory, 'connectors'))
            if name.endswith('.qmp')] == [connectors.name_of(EXPORT)]


def test_a_way_that_cannot_be_opened_leaves_the_one_before(connectors, storage_nodes, directory):
    connectors.connect(EXPORT, way(storage_nodes[0]))
    before = connectors.name_of(EXPORT)
    with pytest.raises(exception.StorageDaemonError):
        connectors.connect(EXPORT, nbd_way('127.0.0.1', free_port(), EXPORT))
    assert connectors.name_of(EXPORT) == before and answer(connectors) is Answer.READ


def test_a_try_that_began_before_tells_who_waits_for_it_nothing(connectors, storage_nodes):
    """A storage node comes back while somebody else waits for its answer."""
    trying, is_back, waiting = threading.Event(), threading.Event(), threading.Event()
    clock = itertools.count()

    def ways(_export, _quickly):
        if trying.is_set():
            yield way(storage_nodes[0])
        else:
            trying.set()
            assert is_back.wait(60)
            yield nbd_way('127.0.0.1', free_port(), EXPORT)

    def now():
        if trying.is_set():
            waiting.set()
        return next(clock)

    watch = BaseWatch(connectors, ways, lambda: {EXPORT: ''}, KeyedLocks(1, 'the way to'), True,
                      clock=now)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(watch.connect, EXPORT)
        assert trying.wait(60)
        second = pool.submit(watch.connect, EXPORT)
        assert waiting.wait(60)
        is_back.set()
        with pytest.raises(exception.StorageDaemonError):
            first.result(60)
        second.result(60)
    assert answer(connectors) is Answer.READ


def test_where_a_base_is_now_is_asked_when_it_is_exchanged_again_soon(connectors, storage_nodes):
    """A node whose disk hangs answers what is in its page cache."""
    current, lost = list(storage_nodes), []
    watch = BaseWatch(connectors, lambda *_arguments: [way(current[0])], lambda: {EXPORT: ''},
                      KeyedLocks(1, 'the way to'), True, lost.extend)
    watch.connect(EXPORT)
    watch.start()
    try:
        for _exchange in range(2):
            before = connectors.name_of(EXPORT)
            current.reverse()
            with frozen(current[1].pid()):
                until(lambda before=before: connectors.name_of(EXPORT) not in ('', before),
                      'another way')
        until(lambda: lost, 'the question')
    finally:
        watch.stop()
    assert lost == [EXPORT]


def test_a_check_that_fails_disturbs_no_other_one(connectors, storage_nodes):
    """A storage node comes back, and does not serve all that is looked for."""
    node, *_others = storage_nodes
    absent = nbd_way('127.0.0.1', node.listener.port, 'absent')
    with ThreadPoolExecutor() as pool:
        failing = pool.submit(connectors.check, 'absent', absent)
        while not failing.done():
            connectors.check(EXPORT, way(node))
        with pytest.raises(exception.StorageDaemonError, match='not served now'):
            failing.result()


def test_many_bases_are_connected_by_many_threads_at_once(connectors, storage_nodes):
    """As when many servers start: a connector's monitor takes one client at a time."""
    node, *_others = storage_nodes
    exports = [f'{EXPORT}-{number}' for number in range(24)]
    for export in exports:
        node.add_export(export, 'base')
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda export: connectors.connect(
            export, nbd_way('127.0.0.1', node.listener.port, export)), exports))
    assert len({connectors.name_of(export) for export in exports}) == 1
    answers = probe.read({export: connectors.socket(export) for export in exports}, 4)
    assert set(answers.values()) == {Answer.READ}


def test_who_waits_for_a_base_stays_where_it_is_until_there_is_a_way_to_that_one(
        connectors, storage_nodes):
    """QEMU waits for twice as long after each time that it was sent on for nothing."""
    node, *_others = storage_nodes
    node.add_export('other', 'base')
    ways = {EXPORT: way(node), 'other': nbd_way('127.0.0.1', node.listener.port, 'other')}
    waiting = {}
    for export, found in ways.items():
        connectors.connect(export, found)
        park(connectors, export)
        waiting[export] = socket.socket(socket.AF_UNIX)
        waiting[export].connect(connectors.socket(export))
        waiting[export].settimeout(60)
    connectors.connect('other', ways['other'])
    connectors.keep(list(ways))
    assert is_over(waiting['other'])
    waiting[EXPORT].setblocking(False)
    with pytest.raises(BlockingIOError):
        waiting[EXPORT].recv(1)
    # Whoever made a link may have been killed before it told of that.
    os.rename(connectors.socket('other'), connectors.socket(EXPORT))
    connectors.keep([EXPORT])
    waiting[EXPORT].settimeout(60)
    assert is_over(waiting[EXPORT])


def is_over(client):
    try:
        return client.recv(1) == b''
    except ConnectionResetError:
        return True
