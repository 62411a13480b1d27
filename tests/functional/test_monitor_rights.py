"""Who reaches a compute host's daemons, however they are started: tried as libvirt's QEMU.

Who speaks to a monitor can have the daemon open any file that its user can.
"""

import contextlib
import grp
import os
import pwd
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from functional_tools import until

from bootcache import listening
from bootcache.connectors import supervisor

TOP = Path(__file__).resolve().parents[2]
# No user of this machine: as nova-compute's.
NOVA = 42436
QEMU = 'libvirt-qemu'
CONNECTOR = '0123456789abcdef-0'
BASE = '0123456789abcdef' * 2
# The tree, and Python's packages, may be where that user cannot read.
READS = ('--inh-caps=+dac_read_search', '--ambient-caps=+dac_read_search')


def as_user(user, group, *command):
    """Return a command that runs as a user, with a further group."""
    return ['setpriv', f'--reuid={user}', f'--regid={user}', f'--groups={group}', *command]


def unit(name, directory):
    """Return what a unit says, with its folder elsewhere: values by name."""
    text = (TOP / 'etc' / 'systemd' / name).read_text().replace('\\\n', ' ')
    lines = text.replace('/run/bootcache', directory).splitlines()
    return dict(line.split('=', 1) for line in lines
                if '=' in line and not line.startswith('#'))


@contextlib.contextmanager
def started_by_unit(name, directory):
    """A daemon as systemd starts it: user, group, umask, and what is run before and after."""
    lines = unit(name, directory)
    assert lines['Group'] == QEMU
    group = grp.getgrnam(QEMU).gr_gid
    start = ['setpriv', f'--reuid={NOVA}', f'--regid={group}', '--clear-groups', 'sh', '-c',
             f'umask {lines["UMask"]}; exec "$@"', 'sh']
    subprocess.run([*start, *shlex.split(lines['ExecStartPre'])], check=True)
    daemon = subprocess.Popen([*start, *shlex.split(lines['ExecStart'])])
    try:
        pidfile = Path(shlex.split(lines['ExecStart'].partition('--pidfile')[2])[0])
        until(lambda: pidfile.exists() and pidfile.read_text(), 'the daemon')
        if after := lines.get('ExecStartPost'):
            subprocess.run([*start, *shlex.split(after)], check=True, timeout=60)
        yield
    finally:
        daemon.kill()
        daemon.wait()


@contextlib.contextmanager
def started_by_driver(name, directory):
    """A gateway that the driver starts, as nova-compute's user."""
    script = textwrap.dedent(f"""
        from unittest import mock
        from nova_bootcache.gateway.daemon import Gateway
        # Nothing is read here.
        gateway = Gateway({directory!r}, '{directory}/gateway.sock', mock.Mock(), group={QEMU!r})
        gateway.start()
        print(flush=True)
        input()
        gateway.daemon.stop()
    """)
    with as_driver(script):
        yield


@contextlib.contextmanager
def as_driver(script):
    """A script runs as nova-compute's user, which has said something by now, until it is told."""
    driver = subprocess.Popen(
        as_user(NOVA, grp.getgrnam(QEMU).gr_gid, *READS, sys.executable, '-W', 'ignore', '-c',
                script),
        cwd=TOP, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, umask=0o022)
    assert driver.stdout.readline(), 'it has started'
    try:
        yield
    finally:
        driver.communicate('\n', 60)


def reaches(path):
    """Tell whether libvirt's QEMU can connect to a socket; fails if that is not there."""
    assert Path(path).is_socket()
    user = pwd.getpwnam(QEMU)
    done = subprocess.run(
        ['setpriv', f'--reuid={user.pw_uid}', f'--regid={user.pw_gid}', '--init-groups',
         '/usr/bin/python3', '-c', 'import socket, sys\n'
         'try: socket.socket(socket.AF_UNIX).connect(sys.argv[1])\n'
         'except PermissionError: sys.exit(7)', path], check=False)
    assert done.returncode in (0, 7)
    return done.returncode == 0


@pytest.fixture
def run_dir(directory):
    """As RuntimeDirectory has it."""
    os.chmod(directory, 0o755)
    path = f'{directory}/run'
    os.mkdir(path, 0o755)
    os.chown(path, NOVA, grp.getgrnam(QEMU).gr_gid)
    return path


@pytest.mark.skipif(os.geteuid() != 0, reason='becomes other users')
@pytest.mark.parametrize('name, start', [
    ('bootcache-gateway.service', started_by_unit),
    ('gateway', started_by_driver)])
def test_qemu_reaches_what_it_reads_by_and_no_monitor(run_dir, name, start):
    with start(name, run_dir):
        assert reaches(f'{run_dir}/gateway.sock')
        assert not reaches(f'{run_dir}/gateway.qmp')


@contextlib.contextmanager
def connectors_by_unit(directory):
    """A connector, as systemd and nova-compute's driver start it."""
    lines = unit('bootcache-connectors.service', directory)
    assert lines['Group'] == QEMU
    _program, *arguments = shlex.split(lines['ExecStart'])
    group = grp.getgrnam(QEMU).gr_gid
    process = subprocess.Popen(
        ['setpriv', f'--reuid={NOVA}', f'--regid={group}', '--clear-groups', *READS, sys.executable,
         '-W', 'ignore', '-c',
         f'import sys; from {supervisor.__name__} import main; sys.exit(main())', *arguments],
        cwd=TOP, umask=int(lines['UMask'], 8))
    try:
        until(lambda: listening.is_served(f'{directory}/connectors.sock'), 'the supervisor')
        assert not reaches(f'{directory}/connectors.sock')
        supervisor.ask(directory, 'start', CONNECTOR)
        supervisor.ask(directory, 'park', BASE)
        yield
    finally:
        process.terminate()
        process.wait(60)


@contextlib.contextmanager
def connectors_by_driver(directory):
    """One that nova-compute's driver starts itself, as its user."""
    script = textwrap.dedent(f"""
        from bootcache.connectors.starter import Starter
        starter = Starter({directory!r})
        starter.listen()
        starter.do('start', {CONNECTOR!r})
        starter.do('park', {BASE!r})
        print(flush=True)
        input()
        starter.kill_all()
    """)
    with as_driver(script):
        yield


@pytest.mark.skipif(os.geteuid() != 0, reason='becomes other users')
@pytest.mark.parametrize('start', [connectors_by_unit, connectors_by_driver])
def test_qemu_reaches_no_connector_and_starts_none(run_dir, start):
    """Only the gateway reads by them, and only nova-compute has them started and killed."""
    with start(run_dir):
        for name in (f'connectors/{CONNECTOR}.nbd', f'connectors/{CONNECTOR}.qmp',
                     f'bases/{BASE}.sock'):
            assert not reaches(f'{run_dir}/{name}')
