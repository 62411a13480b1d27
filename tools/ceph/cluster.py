"""A small real Ceph: a monitor and some OSDs on plain files, started and ended by hand.

No systemd, no root: it runs as whoever starts it, on the loopback interface, and all that it has is
in one directory. One OSD is up in about 5 s. There is no manager daemon: nothing here needs what
one does.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from tools.ceph import settings

PROGRAMS = ('ceph', 'ceph-authtool', 'ceph-mon', 'ceph-osd', 'monmaptool', 'rbd')
_COMMAND_SECONDS = 60
_UP_SECONDS = 60
_END_SECONDS = 20


class CephError(RuntimeError):
    """A command of Ceph's failed, or a daemon did not come up."""


class Ceph:
    """A Ceph in a directory.

    :ivar conf: path of its ceph.conf, for clients as well.
    :ivar fsid: the cluster's id; known once it was up.

    :param directory: of all that it has; made if missing.
    :param port: TCP port of the monitor; the next one is its too.
    :param osds: how many.
    :param osd_bytes: size of each OSD's block file, which is sparse.
    :param copies: of each object.
    :param places: of daemons, by name (``mon.a``, ``osd.0``), that have a network namespace of
        their own: that, and the address there.
    """

    def __init__(self, directory: Path, port: int = 6789, osds: int = 1,
                 osd_bytes: int = 20 * settings.GIB, copies: int = 1,
                 places: Mapping[str, tuple[str, str]] | None = None):
        self.directory = directory
        self.conf = directory / 'ceph.conf'
        self._port = port
        self._osds = osds
        self._osd_bytes = osd_bytes
        self._copies = copies
        self._places = places or {}

    @property
    def fsid(self) -> str:
        return (self.directory / 'fsid').read_text().strip()

    def run(self, *command: str, stdin: str = '', timeout: float = _COMMAND_SECONDS) -> str:
        """Run a program of Ceph's as this cluster's administrator, and return its output.

        :raises CephError: if it fails, or is not done in that many seconds.
        """
        environment = {key: value for key, value in os.environ.items() if key != 'CEPH_ARGS'}
        try:
            done = subprocess.run(
                command, env={**environment, 'CEPH_CONF': str(self.conf)}, input=stdin, text=True,
                capture_output=True, timeout=timeout)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CephError(f'{" ".join(command)}: {error}') from error
        if done.returncode:
            raise CephError(f'{" ".join(command)} (exit {done.returncode}): {done.stderr.strip()}')
        return done.stdout

    def up(self) -> None:
        """Start what does not run; the first time all of it is made.

        :raises CephError: if something does not come up.
        """
        lacking = [name for name in PROGRAMS if shutil.which(name) is None]
        if lacking:
            raise CephError(f'{", ".join(lacking)} cannot be found; tools/setup.sh installs them')
        for name in ('mon', 'run', 'log', 'crash'):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        if not (self.directory / 'fsid').exists():
            (self.directory / 'fsid').write_text(str(uuid.uuid4()))
        addresses = {name: address for name, (_namespace, address) in self._places.items()}
        classes = min(Path('/usr/lib').glob('*/rados-classes'), default=None)
        self.conf.write_text(settings.render(self.directory, self.fsid, self._port,
                                             self._osd_bytes, self._copies, addresses, classes))
        if not (self.directory / 'mon' / 'a' / 'store.db').exists():
            self._make_monitor()
        if 'mon.a' not in self.pids():
            self._start('mon.a')
            self.run('ceph', '--connect-timeout', '30', 'config', 'set', 'mon',
                     'auth_allow_insecure_global_id_reclaim', 'false')
        self._make_osds()
        for number in range(self._osds):
            self.start_osd(number)
        self.wait('its OSDs are not up', self._all_up)

    def start_osd(self, number: int) -> None:
        """Start an OSD that does not run."""
        if f'osd.{number}' not in self.pids():
            self._start(f'osd.{number}')

    def _start(self, name: str) -> None:
        kind, _dot, one = name.partition('.')
        self.run(*self._inside(name), f'ceph-{kind}', '-i', one)

    def _inside(self, name: str) -> tuple[str, ...]:
        """Return what a daemon's command begins with, so that it runs where it has its place."""
        there = self._places.get(name)
        return ('ip', 'netns', 'exec', there[0]) if there else ()

    def _make_monitor(self) -> None:
        admin = str(self.directory / 'ceph.client.admin.keyring')
        first, plan = str(self.directory / 'first.keyring'), str(self.directory / 'monmap')
        shutil.rmtree(self.directory / 'mon' / 'a', ignore_errors=True)
        self.run('ceph-authtool', '--create-keyring', first, '--gen-key', '-n', 'mon.',
                 '--cap', 'mon', 'allow *')
        self.run('ceph-authtool', '--create-keyring', admin, '--gen-key', '-n', 'client.admin',
                 *(word for part in ('mon', 'osd', 'mgr') for word in ('--cap', part, 'allow *')))
        self.run('ceph-authtool', first, '--import-keyring', admin)
        _namespace, address = self._places.get('mon.a', ('', settings.LOOPBACK))
        self.run('monmaptool', '--create', '--clobber', '--fsid', self.fsid, '--addv', 'a',
                 f'[v2:{address}:{self._port + 1},v1:{address}:{self._port}]', plan)
        self.run('ceph-mon', '--mkfs', '-i', 'a', '--monmap', plan, '--keyring', first)
        shutil.copy(first, self.directory / 'mon' / 'a' / 'keyring')

    def _make_osds(self) -> None:
        """Make those that are not there; each takes 2 s, so all at once."""
        making = []
        for number in range(self._osds):
            home = self.directory / f'osd{number}'
            if (home / 'ready').exists():
                continue
            home.mkdir(exist_ok=True)
            name, key = str(uuid.uuid4()), self.run('ceph-authtool', '--gen-print-key').strip()
            given = self.run('ceph', 'osd', 'new', name, '-i', '-',
                             stdin=json.dumps({'cephx_secret': key})).strip()
            if given != str(number):
                raise CephError(f'the next OSD is {given}, not {number}: wipe {self.directory}')
            self.run('ceph-authtool', '--create-keyring', str(home / 'keyring'), '-n',
                     f'osd.{number}', '--add-key', key)
            making.append((home, subprocess.Popen(
                [*self._inside(f'osd.{number}'), 'ceph-osd', '--mkfs', '-i', str(number),
                 '--osd-uuid', name],
                env={**os.environ, 'CEPH_CONF': str(self.conf)}, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)))
        for home, process in making:
            if process.wait(_COMMAND_SECONDS):
                raise CephError(f'{home} cannot be made; see {self.directory}/log')
            (home / 'ready').touch()

    def _all_up(self) -> bool:
        status = json.loads(self.run('ceph', 'osd', 'stat', '-f', 'json'))
        return int(status['num_up_osds']) == self._osds

    def wait(self, fault: str, condition: Callable[[], bool]) -> None:
        """Wait until something is so.

        :raises CephError: with the fault, if it takes too long.
        """
        deadline = time.monotonic() + _UP_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise CephError(f'{fault}; see {self.directory}/log')
            time.sleep(0.1)

    def make_pool(self, name: str) -> None:
        """Make a pool for RBD, if there is none of that name."""
        if name not in self.run('ceph', 'osd', 'pool', 'ls').split():
            self.run('ceph', 'osd', 'pool', 'create', name)
            self.run('rbd', 'pool', 'init', name)

    def make_user(self, name: str, osd: str, mon: str = 'allow r') -> None:
        """Make a user, or give it other caps; its keyring is where ceph.conf has clients look.

        :param name: without ``client.``.
        :param osd: caps.
        :param mon: caps.
        """
        keyring = self.directory / f'ceph.client.{name}.keyring'
        if keyring.exists():
            self.run('ceph', 'auth', 'caps', f'client.{name}', 'mon', mon, 'osd', osd)
        else:
            self.run('ceph', 'auth', 'get-or-create', f'client.{name}', 'mon', mon, 'osd', osd,
                     '-o', str(keyring))

    def pids(self) -> dict[str, int]:
        """Return the daemons that run, by name: ``mon.a``, ``osd.0``."""
        found = {}
        for file in (self.directory / 'run').glob('*.pid'):
            with contextlib.suppress(OSError, ValueError):
                pid = int(file.read_text())
                # A pid may be another process's by now.
                words = Path(f'/proc/{pid}/cmdline').read_bytes().split(b'\0')
                environment = Path(f'/proc/{pid}/environ').read_bytes()
                if words[0].startswith(b'ceph-') \
                        and f'CEPH_CONF={self.conf}\0'.encode() in environment + b'\0':
                    found[file.stem] = pid
        return found

    def end(self, name: str) -> None:
        """End a daemon, if it runs: ``osd.0``."""
        pid = self.pids().get(name)
        if pid is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            deadline = time.monotonic() + _END_SECONDS
            while name in self.pids() and time.monotonic() < deadline:
                time.sleep(0.05)

    def down(self, wipe: bool = False) -> None:
        """End all daemons.

        :param wipe: remove all that it has, too.
        """
        # The monitor last: an OSD tells it that it goes.
        for name in sorted(self.pids(), reverse=True):
            self.end(name)
        if wipe:
            shutil.rmtree(self.directory, ignore_errors=True)
