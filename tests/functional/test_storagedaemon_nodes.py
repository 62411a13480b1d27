"""One real qemu-storage-daemon: its nodes and exports, and who may reach it."""

import ctypes
import grp
import os
import socket
import stat
import subprocess
import sys
from concurrent import futures

import nbd
import pytest
from functional_tools import free_port, until
from storage_daemons import MIB, connect
from storage_daemons import base as base  # the fixture

from bootcache import exception
from bootcache.cacheimage import Base
from bootcache.storagedaemon import StorageDaemon, TcpListener, UnixListener


def test_what_was_added_before_a_refusal_is_removed(daemons, base):
    daemon = daemons()
    daemon.ensure_running()
    with pytest.raises(exception.StorageDaemonError, match='blockdev-add'):
        daemon.add_nodes(*base.nodes('b-1'), {'driver': 'raw', 'node-name': 'top', 'file': 'none'})
    assert daemon.nodes() == set()
    with pytest.raises(exception.StorageDaemonError, match='none/at/all'):
        daemon.add_nodes(*Base('/none/at/all', 'raw', 1).nodes('b-2'))
    assert daemon.nodes() == set()


def test_names_are_taken_once(daemons, base):
    daemon = daemons()
    daemon.ensure_running()
    daemon.add_nodes(*base.nodes('b-1'))
    daemon.add_export('base-1', 'b-1')
    with pytest.raises(exception.StorageDaemonError):
        daemon.add_export('base-1', 'b-1')
    with pytest.raises(exception.StorageDaemonError):
        daemon.remove_nodes('b-1')
    assert daemon.exports() == {'base-1': 'b-1'}


def test_an_export_in_use_goes_only_when_told(daemons, base):
    daemon = daemons()
    daemon.ensure_running()
    daemon.add_nodes(*base.nodes('b-1'))
    daemon.add_export('base-1', 'b-1')
    handle = connect(daemon.listener.path, 'base-1')
    with open(base.path, 'rb') as stream:
        content = stream.read()
    assert daemon.remove_export('base-1', disconnect=False) is False
    assert handle.pread(MIB, 0) == content and daemon.exports() == {'base-1': 'b-1'}
    assert daemon.remove_export('base-1', disconnect=True) is True
    with pytest.raises(nbd.Error):
        handle.pread(512, 0)
    assert daemon.exports() == {}
    daemon.remove_nodes('b-1', 'b-1f')
    assert daemon.nodes() == set()


def test_an_export_without_clients_goes_at_once(daemons, base):
    daemon = daemons()
    daemon.ensure_running()
    daemon.add_nodes(*base.nodes('b-1'))
    daemon.add_export('base-1', 'b-1')
    connect(daemon.listener.path, 'base-1').shutdown()
    assert until(lambda: daemon.remove_export('base-1', disconnect=False), 'the client to be gone')
    with pytest.raises(exception.StorageDaemonError):
        daemon.remove_export('base-1', disconnect=False)


def test_nobody_writes_to_a_plain_export(daemons, base):
    daemon = daemons()
    daemon.ensure_running()
    daemon.add_nodes(*base.nodes('b-1'))
    daemon.add_export('base-1', 'b-1')
    handle = connect(daemon.listener.path, 'base-1')
    assert handle.is_read_only()
    handle.shutdown()


def test_a_socket_path_that_is_too_long_is_named(daemons, directory):
    path = f'{directory}/{"s" * 107}'
    daemon = daemons(listener=UnixListener(path))
    with pytest.raises(exception.StorageDaemonError, match='107 bytes'):
        daemon.ensure_running()
    assert daemon.pid() is None


def test_a_monitor_path_that_is_too_long_is_named(directory):
    daemon = StorageDaemon('d', f'{directory}/{"m" * 107}', UnixListener(f'{directory}/nbd'))
    with pytest.raises(exception.StorageDaemonError) as caught:
        daemon.ensure_running()
    assert '107 bytes' in str(caught.value)


def test_a_program_that_is_missing(daemons):
    daemon = daemons(binary='/no/such/program')
    with pytest.raises(exception.StorageDaemonError, match='/no/such/program'):
        daemon.ensure_running()


def test_a_program_that_ends_at_once_names_its_log(daemons):
    daemon = daemons(binary='/bin/false')
    with pytest.raises(exception.StorageDaemonError, match=r'daemon\.log'):
        daemon.ensure_running()


def test_a_taken_port(daemons):
    with socket.create_server(('127.0.0.1', 0)) as taken:
        daemon = daemons(listener=TcpListener('127.0.0.1', taken.getsockname()[1]))
        with pytest.raises(exception.StorageDaemonError, match='cannot listen'):
            daemon.ensure_running()
    assert daemon.ensure_running() is True


def test_its_group_may_connect_and_nobody_else(daemons):
    daemon = daemons(group=grp.getgrgid(os.getgid()).gr_name)
    daemon.ensure_running()
    status = os.stat(daemon.listener.path)
    assert stat.S_IMODE(status.st_mode) == 0o660 and status.st_gid == os.getgid()
    # The monitor could do everything; it is for the daemon's user only.
    assert stat.S_IMODE(os.stat(daemon.monitor_path).st_mode) & 0o077 == 0


def test_a_group_that_is_missing_is_named(daemons):
    daemon = daemons(group='no-such-group')
    with pytest.raises(exception.StorageDaemonError, match='no-such-group'):
        daemon.ensure_running()
    assert daemon.pid() is None


def test_one_that_systemd_starts_is_only_adopted(daemons):
    waiting, other = daemons(autostart=False), daemons()
    with pytest.raises(exception.StorageDaemonError, match=r'start bootcache-daemon\.service'):
        waiting.ensure_running()
    assert other.ensure_running() is True
    assert waiting.ensure_running() is False


def nodelay_of_accepted_sockets(pid, port):
    """Ask the kernel for TCP_NODELAY on a process's accepted sockets of a port."""
    found = []
    pidfd = os.pidfd_open(pid)
    try:
        for name in os.listdir(f'/proc/{pid}/fd'):
            if not os.readlink(f'/proc/{pid}/fd/{name}').startswith('socket:'):
                continue
            # pidfd_getfd(2), which Python has no name for.
            fd = ctypes.CDLL(None, use_errno=True).syscall(438, pidfd, int(name), 0)
            if fd < 0:
                pytest.skip('pidfd_getfd is not allowed here')
            with socket.socket(fileno=fd) as copy:
                if copy.family != socket.AF_INET or copy.getsockname()[1] != port:
                    continue
                if not copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    found.append(copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
    finally:
        os.close(pidfd)
    return found


def test_tcp_answers_do_not_wait_for_acknowledgements(daemons, base):
    port = free_port()
    daemon = daemons(listener=TcpListener('127.0.0.1', port))
    daemon.ensure_running()
    daemon.add_nodes(*base.nodes('b-1'))
    daemon.add_export('base-1', 'b-1')
    handle = nbd.NBD()
    handle.set_export_name('base-1')
    handle.connect_tcp('127.0.0.1', str(port))
    assert handle.get_size() == MIB
    options = nodelay_of_accepted_sockets(daemon.pid(), port)
    handle.shutdown()
    assert options and all(options)


def test_it_outlives_who_started_it(directory):
    """A service that ends leaves its exporter serving."""
    code = ('import sys; from bootcache.storagedaemon import StorageDaemon, UnixListener;'
            f'StorageDaemon("d", "{directory}/d", UnixListener("{directory}/d/nbd"))'
            '.ensure_running()')
    subprocess.run([sys.executable, '-c', code], check=True)
    daemon = StorageDaemon('d', f'{directory}/d', UnixListener(f'{directory}/d/nbd'))
    assert daemon.ensure_running() is False
    daemon.stop()
    assert daemon.answers() is False


def test_a_daemon_that_does_not_answer_is_left_alone(daemons):
    """It may hang on a storage node; others read through it."""
    daemon = daemons()
    daemon.ensure_running()
    pid = daemon.pid()
    with daemon.session(), futures.ThreadPoolExecutor(1) as elsewhere:
        # The monitor serves one client only.
        other = StorageDaemon(daemon.name, daemon.directory, daemon.listener)
        other.answers = lambda: False
        with pytest.raises(exception.StorageDaemonError, match=f'pid {pid} runs'):
            elsewhere.submit(other.ensure_running).result()
    assert daemon.pid() == pid and daemon.ensure_running() is False
