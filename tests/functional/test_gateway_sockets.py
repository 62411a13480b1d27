"""Guests' QEMU reaches the gateway and not its monitor, however the gateway was started.

Who reaches the monitor can have the gateway open any file that its user can read. Each way is tried
as the user of libvirt's QEMU.
"""

import contextlib
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

import pytest

from bootcache import exception
from nova_bootcache.gateway.daemon import Gateway
from nova_bootcache.gateway.socketfault import GatewaySocket

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(TOP / 'tests' / 'unit'))

from devstack_node import Devstack  # noqa: E402

QEMU = 'libvirt-qemu'
CONNECT = ('import socket, sys\n'
           'socket.socket(socket.AF_UNIX).connect(sys.argv[1])\n')


@pytest.fixture
def directory():
    """A folder that others can pass through, as /run is; pytest's own are root's."""
    made = pathlib.Path(tempfile.mkdtemp(prefix='bootcache-', dir='/tmp'))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@contextlib.contextmanager
def run_unit(text, directory):
    """Start what a unit starts, with its user's rights, its group and its umask."""
    run = directory / 'run'
    lines = text.replace('\\\n', ' ').replace('/run/bootcache', str(run)).splitlines()
    unit = dict(line.split('=', 1) for line in lines if re.match('[A-Z][A-Za-z]+=', line))
    run.mkdir(mode=int(unit['RuntimeDirectoryMode'], 8))
    run.chmod(int(unit['RuntimeDirectoryMode'], 8))
    shutil.chown(run, 'nobody', unit['Group'])
    # Neither nova nor devstack's user is on a machine that tests.
    as_user = ['setpriv', '--reuid', 'nobody', '--regid', unit['Group'], '--clear-groups', '--']
    umask = int(unit['UMask'], 8)
    daemon = subprocess.Popen([*as_user, *shlex.split(unit['ExecStart'])], umask=umask)
    try:
        subprocess.run([*as_user, *shlex.split(unit['ExecStartPost'])], check=True, umask=umask,
                       timeout=30)
        yield run
    finally:
        daemon.terminate()
        daemon.wait()


@contextlib.contextmanager
def from_the_package(directory, tmp_path):
    """The unit of doc/source/install.rst."""
    text = (TOP / 'etc' / 'systemd' / 'bootcache-gateway.service').read_text()
    with run_unit(text, directory) as run:
        yield run


@contextlib.contextmanager
def from_devstack(directory, tmp_path):
    """The unit that the plugin makes."""
    devstack = Devstack(tmp_path, 'n-cpu', BOOTCACHE_TLS='False')
    devstack.run('stack', 'post-config')
    text = (tmp_path / 'systemd' / 'devstack@n-bootcache-gateway.service').read_text()
    with run_unit(text, directory) as run:
        yield run


@contextlib.contextmanager
def from_the_driver(directory, tmp_path):
    """What nova-compute starts where none answers."""
    gateway = Gateway(str(directory), str(directory / 'gateway.sock'), None, group=QEMU)
    gateway.start()
    try:
        yield directory
    finally:
        gateway.daemon.stop()


def connects(path):
    """Tell whether libvirt's QEMU can connect to a socket."""
    done = subprocess.run(['setpriv', '--reuid', QEMU, '--regid', QEMU, '--init-groups', '--',
                           '/usr/bin/python3', '-c', CONNECT, str(path)],
                          capture_output=True, text=True, timeout=30)
    assert done.returncode == 0 or 'PermissionError' in done.stderr, done.stderr
    return done.returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason='takes on another user')
@pytest.mark.parametrize('way', [from_the_package, from_devstack, from_the_driver])
def test_guests_reach_the_socket_that_is_theirs(way, directory, tmp_path):
    with way(directory, tmp_path) as run:
        assert connects(run / 'gateway.sock')
        assert not connects(run / 'gateway.qmp')


def start_qemu(path):
    """Have libvirt's QEMU open a base at a socket; the error is of Nova's kind, with its words."""
    done = subprocess.run(
        ['setpriv', '--reuid', QEMU, '--regid', QEMU, '--init-groups', '--', 'qemu-system-x86_64',
         '-M', 'none', '-S', '-display', 'none', '-nodefaults', '-blockdev',
         f'node-name=base,driver=nbd,export=none,server.type=unix,server.path={path}'],
        capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    raise RuntimeError(done.stderr)


@pytest.mark.skipif(os.geteuid() != 0, reason='takes on another user')
@pytest.mark.parametrize('what', ['socket', 'folder'])
def test_a_socket_that_guests_are_denied_costs_one_start_until_it_is_another(what, directory):
    gateway = Gateway(str(directory), str(directory / 'gateway.sock'), None,
                      group=QEMU if what == 'folder' else None)
    gateway.start()
    socket, tries = GatewaySocket(gateway.socket_path, str(directory / 'cache')), []

    def start():
        tries.append(socket.reason_for('server'))
        if not tries[-1]:
            start_qemu(gateway.socket_path)

    try:
        if what == 'folder':
            directory.chmod(0o700)
        for _server in range(3):
            socket.start('server', start, lambda: True)
        assert tries == ['', *[socket.reason] * 3]
        assert f'QEMU is denied {gateway.socket_path}: ' in socket.reason
        # As whoever mends it does.
        directory.chmod(0o755)
        shutil.chown(gateway.socket_path, group=QEMU)
        socket.check()
        assert socket.reason == '' and connects(gateway.socket_path)
    finally:
        gateway.daemon.stop()


def test_a_gateway_without_the_socket_that_servers_open_is_not_ready(directory):
    gateway = Gateway(str(directory), f'{directory}/gateway.sock', None)
    gateway.start()
    try:
        other = Gateway(str(directory), f'{directory}/other.sock', None)
        with pytest.raises(exception.StorageDaemonError,
                           match=r'other\.sock, as \[bootcache\]gateway_socket has it; name'):
            other.start()
        gateway.start()
    finally:
        gateway.daemon.stop()
