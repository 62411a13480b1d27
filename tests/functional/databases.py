"""MariaDB and PostgreSQL as the tests have them: on unix sockets, in directories of their own."""

import contextlib
import glob
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile

from functional_tools import until

_PATIENCE = 120


class Server:
    """A database server; its subclasses know which.

    :ivar home: its directory, which its user owns.
    """

    user: str | None = None

    def __init__(self):
        self.home = tempfile.mkdtemp(prefix='bcdb', dir='/tmp')
        self._process = None
        # PostgreSQL does not run as root.
        self._as = {'user': self.user, 'group': pwd.getpwnam(self.user).pw_gid,
                    'extra_groups': []} if self.user and os.geteuid() == 0 else {}
        if self._as:
            os.chown(self.home, pwd.getpwnam(self.user).pw_uid, self._as['group'])
            os.chmod(self.home, 0o755)
        self.run(*self.initialize())
        self.start()

    def run(self, *command):
        """Run one of its programs to its end."""
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              check=False, timeout=_PATIENCE, cwd=self.home, **self._as)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self):
        """Start it, and wait until it answers."""
        with open(f'{self.home}/log', 'ab') as log:
            self._process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=log,
                                             stderr=log, cwd=self.home, **self._as)
        until(self._answers, 'the database', patience=_PATIENCE)

    def _answers(self):
        if self._process.poll() is not None:
            with open(f'{self.home}/log') as stream:
                raise AssertionError(stream.read())
        with contextlib.suppress(AssertionError):
            self.sql('SELECT 1')
            return True

    def stop(self):
        """End it as a crash does: what was committed is on the disk."""
        if self._process is not None:
            self._process.send_signal(self.signal)
            self._process.wait(_PATIENCE)
            self._process = None

    def freeze(self, frozen):
        """Have it hang, or go on."""
        self._process.send_signal(signal.SIGSTOP if frozen else signal.SIGCONT)

    def new_name(self):
        """Make a new database; returns its name."""
        name = f'bootcache_{secrets.token_hex(4)}'
        self.sql(f'CREATE DATABASE {name}')
        return name

    def database(self):
        """Make a new database; returns its URL."""
        return self.url(self.new_name())

    def remove(self):
        """End it, and remove its files."""
        self.stop()
        shutil.rmtree(self.home)


class MariaDB(Server):
    """Debian's mariadb-server."""

    signal = signal.SIGKILL

    def initialize(self):
        return ('mariadb-install-db', '--no-defaults', f'--datadir={self.home}/data',
                '--auth-root-authentication-method=normal', '--skip-test-db', *self._root())

    @staticmethod
    def _root():
        return ['--user=root'] if os.geteuid() == 0 else []

    def command(self):
        return ['mariadbd', '--no-defaults', f'--datadir={self.home}/data', '--skip-networking',
                f'--socket={self.home}/socket', f'--pid-file={self.home}/pid',
                '--innodb-buffer-pool-size=16M', *self._root()]

    def sql(self, statement):
        """Run a statement as root of the server."""
        return self.run('mariadb', '--no-defaults', f'--socket={self.home}/socket', '--user=root',
                        '--batch', '--skip-column-names', '--execute', statement)

    def url(self, name, who='root'):
        return (f'mysql+pymysql://{who}@localhost/{name}?unix_socket={self.home}/socket'
                '&charset=utf8mb4')


class PostgreSQL(Server):
    """Debian's postgresql."""

    user = 'postgres'
    # It ends its children before itself, and writes nothing any more.
    signal = signal.SIGQUIT

    @staticmethod
    def _program(name):
        return max(glob.glob(f'/usr/lib/postgresql/*/bin/{name}'))

    def initialize(self):
        return (self._program('initdb'), '--no-sync', '--auth=trust', '--username=root',
                '--encoding=UTF8', '--locale=C.UTF-8', '--pgdata', f'{self.home}/data')

    def command(self):
        return [self._program('postgres'), '-D', f'{self.home}/data', '-h', '', '-k', self.home,
                '-c', 'shared_buffers=16MB']

    def sql(self, statement):
        """Run a statement as root of the server."""
        return self.run('psql', '--no-psqlrc', '--host', self.home, '--username=root',
                        '--dbname=postgres', '--tuples-only', '--no-align', '--command', statement)

    def url(self, name, who='root'):
        return f'postgresql+psycopg2://{who}@/{name}?host={self.home}'
