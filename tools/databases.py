"""MariaDB and PostgreSQL for tests and benchmarks: on unix sockets, in directories of their own."""

import contextlib
import glob
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from oslo_config import cfg

from glance_bootcache.db import conf as db_conf
from glance_bootcache.db import schema
from glance_bootcache.db.engine import Database
from tools.ports import free_port

_PATIENCE = 120.0


class DatabaseError(Exception):
    """A database server, or one of its programs, does not do what it is told."""


class Server(ABC):
    """A database server, started; its subclasses know which.

    :param place: directory that gets the server's; paths of sockets have to be short.
    :ivar home: its directory, which its user owns.
    """

    user: str | None = None
    signal = signal.SIGKILL

    def __init__(self, place: str = '/tmp') -> None:
        self.home = tempfile.mkdtemp(prefix='bcdb', dir=place)
        self._process: subprocess.Popen[bytes] | None = None
        # PostgreSQL does not run as root.
        self._as: dict[str, Any] = {
            'user': self.user, 'group': pwd.getpwnam(self.user).pw_gid,
            'extra_groups': []} if self.user and os.geteuid() == 0 else {}
        if self._as and self.user:
            os.chown(self.home, pwd.getpwnam(self.user).pw_uid, self._as['group'])
            os.chmod(self.home, 0o755)
        self.run(*self.initialize())
        self.start()

    @abstractmethod
    def initialize(self) -> tuple[str, ...]:
        """Return the command that makes its files."""

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command that is the server."""

    @abstractmethod
    def sql(self, statement: str) -> str:
        """Run a statement as root of the server; return what it prints."""

    @abstractmethod
    def url(self, name: str, who: str = 'root') -> str:
        """Return a database's URL.

        :param who: the user, with the password if it has one.
        """

    @property
    def pid(self) -> int:
        """The server's process id."""
        assert self._process is not None
        return self._process.pid

    def run(self, *command: str) -> str:
        """Run one of its programs to its end.

        :raises DatabaseError: if it fails.
        """
        done: subprocess.CompletedProcess[str] = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            timeout=_PATIENCE, cwd=self.home, **self._as)
        if done.returncode:
            raise DatabaseError(done.stdout + done.stderr)
        return done.stdout

    def start(self) -> None:
        """Start it, and wait until it answers.

        :raises DatabaseError: if it does not.
        """
        with open(f'{self.home}/log', 'ab') as log:
            self._process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=log,
                                             stderr=log, cwd=self.home, **self._as)
        deadline = time.monotonic() + _PATIENCE
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                with open(f'{self.home}/log') as stream:
                    raise DatabaseError(stream.read())
            time.sleep(0.01)

    def _answers(self) -> bool:
        with contextlib.suppress(DatabaseError):
            self.sql('SELECT 1')
            return True
        return False

    def stop(self) -> None:
        """End it as a crash does: what was committed is on the disk."""
        if self._process is not None:
            self._process.send_signal(self.signal)
            self._process.wait(_PATIENCE)
            self._process = None

    def freeze(self, frozen: bool) -> None:
        """Have it hang, or go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP if frozen else signal.SIGCONT)

    def new_name(self) -> str:
        """Make a new database; returns its name."""
        name = f'bootcache_{secrets.token_hex(4)}'
        self.sql(f'CREATE DATABASE {name}')
        return name

    def database(self) -> str:
        """Make a new database; returns its URL."""
        return self.url(self.new_name())

    def remove(self) -> None:
        """End it, and remove its files."""
        self.stop()
        shutil.rmtree(self.home)


class MariaDB(Server):
    """Debian's mariadb-server."""

    def initialize(self) -> tuple[str, ...]:
        return ('mariadb-install-db', '--no-defaults', f'--datadir={self.home}/data',
                '--auth-root-authentication-method=normal', '--skip-test-db', *self._root())

    @staticmethod
    def _root() -> list[str]:
        return ['--user=root'] if os.geteuid() == 0 else []

    def command(self) -> list[str]:
        return ['mariadbd', '--no-defaults', f'--datadir={self.home}/data', '--skip-networking',
                f'--socket={self.home}/socket', f'--pid-file={self.home}/pid',
                '--innodb-buffer-pool-size=16M', *self._root()]

    def sql(self, statement: str) -> str:
        return self.run('mariadb', '--no-defaults', f'--socket={self.home}/socket', '--user=root',
                        '--batch', '--skip-column-names', '--execute', statement)

    def url(self, name: str, who: str = 'root') -> str:
        return (f'mysql+pymysql://{who}@localhost/{name}?unix_socket={self.home}/socket'
                '&charset=utf8mb4')


class GaleraNode(MariaDB):
    """A node of a Galera cluster of MariaDB; on 127.0.0.1, but for clients.

    :param peers: the cluster's nodes, to which this one is added; if there are none it begins one.
    """

    _LIBRARY = '/usr/lib/galera/libgalera_smm.so'

    def __init__(self, peers: 'list[GaleraNode]'):
        self._group, self._others, self._whole = free_port(), free_port(), free_port()
        self._peers = peers
        super().__init__()
        peers.append(self)

    @staticmethod
    def _root() -> list[str]:
        # Another node gives it what there is when it comes, by rsync, which does nothing as root.
        return ['--user=mysql'] if os.geteuid() == 0 else []

    def initialize(self) -> tuple[str, ...]:
        if os.geteuid() == 0:
            shutil.chown(self.home, 'mysql')
            os.chmod(self.home, 0o755)
        return super().initialize()

    def command(self) -> list[str]:
        peers = ','.join(f'127.0.0.1:{peer._group}' for peer in self._peers if peer is not self)
        # SST's program reads options from a file.
        options = {
            'datadir': f'{self.home}/data', 'socket': f'{self.home}/socket',
            'pid-file': f'{self.home}/pid', 'innodb-buffer-pool-size': '16M', 'wsrep-on': 'ON',
            'skip-networking': '1', 'wsrep-provider': self._LIBRARY, 'binlog-format': 'ROW',
            'innodb-autoinc-lock-mode': '2', 'wsrep-cluster-name': 'bootcache',
            'wsrep-cluster-address': f'gcomm://{peers}', 'wsrep-sst-method': 'rsync',
            'wsrep-node-address': '127.0.0.1',
            'wsrep-sst-receive-address': f'127.0.0.1:{self._whole}',
            'wsrep-provider-options':
                f'"gmcast.listen_addr=tcp://127.0.0.1:{self._group};ist.recv_addr=127.0.0.1:'
                f'{self._others};gcache.size=16M;evs.suspect_timeout=PT2S;'
                'evs.inactive_timeout=PT4S;evs.inactive_check_period=PT1S;'
                'evs.keepalive_period=PT0.5S"'}
        with open(f'{self.home}/options', 'w') as stream:
            stream.write('[mysqld]\n' + ''.join(
                f'{name}={value}\n' for name, value in options.items()))
        return ['mariadbd', f'--defaults-file={self.home}/options', *self._root()]

    def _answers(self) -> bool:
        with contextlib.suppress(DatabaseError):
            return 'ON' in self.sql('SHOW STATUS LIKE "wsrep_ready"')
        return False


def start_again(cluster: list[GaleraNode]) -> None:
    """Start a Galera cluster of which all nodes have ended, by what the first one has."""
    nodes, cluster[:] = list(cluster), []
    state = Path(nodes[0].home, 'data', 'grastate.dat')
    state.write_text(state.read_text().replace('safe_to_bootstrap: 0', 'safe_to_bootstrap: 1'))
    for node in nodes:
        node.start()
        cluster.append(node)


class PostgreSQL(Server):
    """Debian's postgresql."""

    user = 'postgres'
    # It ends its children before itself, and writes nothing any more.
    signal = signal.SIGQUIT

    @staticmethod
    def _program(name: str) -> str:
        return max(glob.glob(f'/usr/lib/postgresql/*/bin/{name}'))

    def initialize(self) -> tuple[str, ...]:
        return (self._program('initdb'), '--no-sync', '--auth=trust', '--username=root',
                '--encoding=UTF8', '--locale=C.UTF-8', '--pgdata', f'{self.home}/data')

    def command(self) -> list[str]:
        return [self._program('postgres'), '-D', f'{self.home}/data', '-h', '', '-k', self.home,
                '-c', 'shared_buffers=16MB']

    def sql(self, statement: str) -> str:
        return self.run('psql', '--no-psqlrc', '--host', self.home, '--username=root',
                        '--dbname=postgres', '--tuples-only', '--no-align', '--command', statement)

    def url(self, name: str, who: str = 'root') -> str:
        return f'postgresql+psycopg2://{who}@/{name}?host={self.home}'


def made(url: str) -> Database:
    """Return an empty database with the service's tables, as ``bootcache-manage db sync`` makes
    them.

    :param url: as for ``[database]connection``.
    """
    conf = cfg.ConfigOpts()
    conf([], project='bootcache', default_config_files=[], default_config_dirs=[])
    db_conf.register_opts(conf)
    conf.set_override('connection', url, db_conf.GROUP)
    database = Database(conf)
    schema.sync(database)
    return database
