"""A storage daemon in other namespaces than who looks for it, as containers have them."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from functional_tools import frozen, until

from bootcache import exception
from nova_bootcache.gateway.socketfault import GatewaySocket

APART = ['unshare', '--pid', '--fork', '--kill-child=KILL', '--mount-proc']


@contextlib.contextmanager
def daemon_apart(daemon):
    """Start what a daemon's object would start, in a PID namespace of its own."""
    os.makedirs(daemon.directory, exist_ok=True)
    process = subprocess.Popen(
        [*APART, 'qemu-storage-daemon', '--chardev',
         f'socket,path={daemon.monitor_path},server=on,wait=off,id=monitor',
         '--monitor', 'chardev=monitor', '--pidfile', daemon.pid_path, '--nbd-server',
         f'addr.type=unix,addr.path={daemon.listener.path},max-connections=0'])
    try:
        until(lambda: os.path.exists(daemon.pid_path) and daemon.answers(), 'the daemon')
        yield
    finally:
        process.kill()
        process.wait()


def look_from_apart(daemon):
    """Have a process in another PID namespace ensure that the daemon runs; return what it says."""
    script = textwrap.dedent(f"""
        from bootcache.storagedaemon import StorageDaemon, UnixListener
        daemon = StorageDaemon({daemon.name!r}, {daemon.directory!r},
                               UnixListener({daemon.listener.path!r}), patience=0.5)
        print(daemon.runs, daemon.pid())
        try:
            print('started', daemon.ensure_running())
        except Exception as error:
            print(type(error).__name__, error)
        try:
            daemon.stop()
        except Exception as error:
            print(type(error).__name__, error)
    """)
    return subprocess.run([*APART, sys.executable, '-W', 'ignore', '-c', script], check=True,
                          capture_output=True, text=True, timeout=120).stdout


def test_one_in_a_container_that_hangs_is_not_started_over(daemons):
    daemon = daemons(patience=0.5)
    with daemon_apart(daemon):
        socket, pid = os.stat(daemon.listener.path).st_ino, daemon.pid()
        assert daemon.runs and pid != int(Path(daemon.pid_path).read_text())
        assert not daemon.ensure_running()
        with frozen(pid):
            with pytest.raises(exception.StorageDaemonBusy, match='left alone'):
                daemon.ensure_running()
            said = look_from_apart(daemon)
        assert said.startswith('True None\nStorageDaemonBusy')
        assert 'StorageDaemonError' in said and 'another PID namespace' in said
        assert os.stat(daemon.listener.path).st_ino == socket
        until(daemon.answers, 'its answer once it goes on')


def test_one_whose_container_has_ended_is_started_anew(daemons):
    daemon = daemons()
    with daemon_apart(daemon):
        os.kill(daemon.pid(), signal.SIGKILL)
        until(lambda: not daemon.runs, 'its end')
    # The number that it wrote is that of another process here.
    assert int(Path(daemon.pid_path).read_text()) == 1
    assert daemon.pid() is None and daemon.ensure_running() is True


def test_one_of_which_only_the_socket_is_shared_is_not_started_over(daemons, directory):
    """Its monitor and its pid file are in a folder that only its own container has."""
    theirs = daemons('theirs')
    theirs.ensure_running()
    ours = daemons('ours', theirs.listener)
    with pytest.raises(exception.StorageDaemonError, match='already, and its monitor') as caught:
        ours.ensure_running()
    assert ours.monitor_path in str(caught.value)
    os.kill(theirs.pid(), signal.SIGKILL)
    until(lambda: not theirs.runs, 'its end')
    assert ours.ensure_running() is True, 'a socket on which nobody listens is no daemon'


def qemu_start(node, *hidden):
    """Return QEMU's words of a start with a disk that it cannot open, for want of a folder."""
    hide = ' && '.join(['true', *(f'mount -t tmpfs none {path}' for path in hidden)])
    done = subprocess.run(
        ['unshare', '--mount', 'sh', '-c', f'{hide} && exec qemu-system-x86_64 -M none -S'
         f' -display none -nodefaults -blockdev {node}'],
        capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    return done.stderr


@pytest.fixture
def tried(daemons, directory):
    """Starts servers as the driver does, with QEMU's words for the first try; tells how often."""
    daemon = daemons('gateway')
    daemon.ensure_running()
    socket = GatewaySocket(daemon.listener.path, f'{directory}/cache')
    below = ('node-name=base,driver=nbd,export=none,server.type=unix,server.path='
             f'{daemon.listener.path}')

    def start(*hidden, meanwhile=lambda: None, below=below):
        tries = []

        def nova():
            tries.append(socket.reason_for('server'))
            if not tries[-1]:
                meanwhile()
                raise RuntimeError(qemu_start(below, *hidden))

        socket.start('server', nova, lambda: True)
        return len(tries)

    start.daemon, start.socket = daemon, socket
    return start


def test_a_socket_that_qemus_container_lacks_costs_one_start(tried):
    directory = os.path.dirname(tried.daemon.listener.path)
    assert [tried(directory) for _server in range(3)] == [2, 1, 1]
    assert f'share the folder {directory} ' in tried.socket.reason
    # Another gateway's socket is tried: somebody did something.
    kill(tried.daemon)
    tried.daemon.ensure_running()
    tried.socket.check()
    assert tried.socket.reason == '' and tried(directory) == 2


def test_a_tier_that_qemus_container_lacks_costs_one_start(tried, directory):
    tier = Path(directory, 'cache')
    tier.mkdir()
    (tier / 'ab12').touch()
    below = f'node-name=base,driver=file,read-only=on,filename={tier}/ab12'
    assert [tried(tier, below=below) for _server in range(3)] == [2, 1, 1]
    assert f'share the folder {tier} ' in tried.socket.reason


def test_a_cache_image_that_went_meanwhile_is_remembered_by_nobody(tried, directory):
    gone = f'{directory}/cache/ab12'
    assert tried(below=f'node-name=base,driver=file,read-only=on,filename={gone}') == 2
    assert tried.socket.reason == ''


@pytest.mark.parametrize('is_gone', [False, True])
def test_a_gateway_that_ends_meanwhile_is_remembered_by_nobody(tried, is_gone):
    def meanwhile():
        kill(tried.daemon)
        if is_gone:
            os.unlink(tried.daemon.listener.path)

    assert tried(meanwhile=meanwhile) == 2 and tried.socket.reason == ''


def kill(daemon):
    os.kill(daemon.pid(), signal.SIGKILL)
    until(lambda: daemon.pid() is None, 'its end')
