"""bootcache-connectors as a process, and what nova-compute does itself where there is none."""

import contextlib
import os
import resource
import shutil
import signal
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from functional_tools import supervise, until

from bootcache import exception
from bootcache.connectors import connector, starter, supervisor
from bootcache.connectors.starter import Starter

NAME, OTHER, THIRD = '0123456789abcdef-0', '0123456789abcdef-1', 'fedcba9876543210-0'
BASE, ANOTHER = '0123456789abcdef' * 2, 'fedcba9876543210' * 2


@pytest.fixture
def own(directory):
    """What nova-compute starts connectors by itself."""
    found = Starter(directory)
    found.listen()
    yield found
    found.kill_all()


@pytest.fixture
def served(directory):
    """A supervisor's process."""
    process = supervise(directory)
    yield process
    process.kill()
    process.wait()
    Starter(directory).kill_all()


@pytest.fixture(params=['own', 'served'])
def do(request, directory):
    """What starts and kills connectors, by either."""
    made = request.getfixturevalue(request.param)
    return made.do if request.param == 'own' \
        else lambda word, name='': supervisor.ask(directory, word, name)


def daemon(directory, name=NAME):
    return connector.daemon(os.path.join(directory, 'connectors'), name)


def link(directory, base=BASE):
    return os.path.join(directory, 'bases', f'{base}.sock')


def parked(directory, base=BASE):
    """Return a client of the socket at which readers of a base wait."""
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(60)
    client.connect(link(directory, base))
    return client


def waits(client):
    client.setblocking(False)
    try:
        return client.recv(1) is None
    except BlockingIOError:
        return True


def is_sent_on(client):
    """Wait until a client's connection has ended."""
    with contextlib.suppress(ConnectionResetError):
        return client.recv(1) == b''
    return True


def test_connectors_are_started_and_killed(do, directory):
    do('start', NAME)
    pid = daemon(directory).pid()
    assert pid and daemon(directory).answers()
    do('start', NAME)
    assert daemon(directory).pid() == pid
    do('kill', NAME)
    assert not daemon(directory).runs
    assert os.listdir(os.path.join(directory, 'connectors')) == []
    # Nobody else comes to their sockets.
    for name in ('bases', 'connectors'):
        assert os.stat(os.path.join(directory, name)).st_mode & 0o777 == 0o700


@pytest.mark.parametrize('word, name', [
    ('start', 'x'), ('kill', ''), ('end', NAME), ('park', NAME), ('release', BASE)])
def test_what_is_no_request_is_told(do, directory, word, name):
    with pytest.raises(exception.StorageDaemonError, match='no such request'):
        do(word, name)


def test_who_waits_for_a_base_that_has_a_link_again_is_sent_on(do, directory):
    do('park', BASE)
    do('park', ANOTHER)
    found = [parked(directory) for _number in range(3)]
    other = parked(directory, ANOTHER)
    do('release')
    assert all(waits(client) for client in (*found, other))
    os.symlink('nowhere', f'{link(directory)}.new')
    os.rename(f'{link(directory)}.new', link(directory))
    do('release')
    for client in found:
        client.settimeout(60)
        assert is_sent_on(client)
    assert waits(other)
    # Nobody needs that one any more.
    os.unlink(link(directory, ANOTHER))
    do('release')
    other.settimeout(60)
    assert is_sent_on(other)


def test_many_have_bases_wait_and_go_on_at_once(do, directory):
    def ask(number):
        do('park', f'{number:032x}')
        os.unlink(link(directory, f'{number:032x}'))
        do('release')

    do('park', BASE)
    client = parked(directory)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(64)))
    assert waits(client)


def test_nobody_waits_for_a_connector_of_another_name(directory, monkeypatch):
    """One that is slow to start has a minute."""
    program = os.path.join(directory, 'bin', 'qemu-storage-daemon')
    os.mkdir(os.path.dirname(program))
    with open(program, 'w') as stream:
        stream.write(f'#!/bin/sh\ncase "$*" in *{OTHER}*) echo > "{directory}/waits"\n'
                     f'  while [ ! -e "{directory}/go" ]; do sleep 0.1; done;; esac\n'
                     f'exec {shutil.which("qemu-storage-daemon")} "$@"\n')
    os.chmod(program, 0o755)
    monkeypatch.setenv('PATH', os.path.dirname(program), prepend=':')
    process = supervise(directory)
    try:
        with ThreadPoolExecutor(1) as pool:
            slow = pool.submit(supervisor.ask, directory, 'start', OTHER)
            until(lambda: os.path.exists(f'{directory}/waits'), 'the start of the slow one')
            supervisor.ask(directory, 'start', NAME)
            supervisor.ask(directory, 'park', BASE)
            supervisor.ask(directory, 'release', '')
            assert not slow.done() and daemon(directory).answers()
            with open(f'{directory}/go', 'w'):
                pass
            slow.result(60)
            assert daemon(directory, OTHER).answers()
    finally:
        process.terminate()
        process.wait(60)


def test_only_those_that_run_are_too_many(own, directory, monkeypatch):
    monkeypatch.setattr(starter, '_MOST_RUNNING', 1)
    own.do('start', NAME)
    with pytest.raises(exception.StorageDaemonError, match='1 connectors run'):
        own.do('start', OTHER)
    own.do('start', NAME)
    # Its files stay.
    os.kill(daemon(directory).pid(), signal.SIGKILL)
    until(lambda: not daemon(directory).runs, 'its end')
    own.do('start', OTHER)


def test_a_connector_may_open_as_many_files_as_this_process_might(own, directory):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        own.do('start', NAME)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert hard > 512
    assert resource.prlimit(daemon(directory).pid(), resource.RLIMIT_NOFILE) == (hard, hard)


def test_connectors_outlive_a_supervisor_that_is_killed(served, directory):
    supervisor.ask(directory, 'start', NAME)
    supervisor.ask(directory, 'park', BASE)
    pid, client = daemon(directory).pid(), parked(directory)
    served.kill()
    served.wait()
    assert is_sent_on(client) and daemon(directory).pid() == pid
    with pytest.raises(exception.StorageDaemonError, match='start bootcache-connectors'):
        supervisor.ask(directory, 'kill', NAME)
    later = supervise(directory)
    supervisor.ask(directory, 'start', NAME)
    assert daemon(directory).pid() == pid
    # Readers wait for it again.
    assert waits(parked(directory))
    # One that is told to end kills them.
    later.terminate()
    assert later.wait(60) == 0
    assert not daemon(directory).runs


def test_one_process_starts_the_connectors_of_a_directory(served, directory):
    second = supervise(directory)
    assert second.wait(60) == 1
    with pytest.raises(exception.StorageDaemonError, match='another process has'):
        Starter(directory).listen()
    supervisor.ask(directory, 'release', '')


def test_who_looks_whether_it_is_there_makes_no_line(served, directory):
    with pytest.raises(exception.StorageDaemonError, match='start x: there is no such request'):
        supervisor.ask(directory, 'start', 'x')
    with open(os.path.join(directory, 'supervisor.log')) as stream:
        told = stream.read()
    assert [line for line in told.splitlines() if 'no such request' in line] == [
        'WARNING start x: there is no such request']


def test_nova_compute_asks_a_supervisor_that_is_there(hosts, directory):
    served = supervise(f'{directory}/gateway')
    try:
        host = hosts()
        host.connections._connectors._starter('start', NAME)
        with open(f'/proc/{daemon(f"{directory}/gateway").pid()}/stat') as stream:
            assert int(stream.read().rpartition(')')[2].split()[1]) == served.pid
        host.connections._connectors._starter('release', '')
    finally:
        served.terminate()
        served.wait(60)
