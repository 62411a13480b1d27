"""``bootcache-connectors``: starts and kills connectors at nova-compute's word, and outlives it.

A request is a line, ``start NAME``, ``kill NAME`` or ``release``, on a unix socket of its user's.
The answer is a line as well: empty, or what went wrong. A supervisor that was killed is started
again, and finds its connectors by their pid files; one that is told to end kills them.
"""

import argparse
import contextlib
import fcntl
import logging
import os
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time

from bootcache import exception, listening
from bootcache.connectors import connector
from bootcache.connectors.connectors import PARKED, LocalStarter
from bootcache.locks import MONITOR, KeyedLocks

LOG = logging.getLogger(__name__)

PROGRAM = 'bootcache-connectors'
_SOCKET = 'connectors.sock'
_LINE_BYTES = 64
# That an answer takes: a connector that crashes as it comes up is started again.
_ANSWER_SECONDS = 60
_START_SECONDS = 20
_MOST_CONNECTORS = 64
_MOST_PARKED = 4096


class _Request(socketserver.StreamRequestHandler):
    timeout = 5

    def handle(self) -> None:
        line = self.rfile.readline(_LINE_BYTES).decode(errors='replace').strip()
        if not line:
            # Somebody has looked whether it is there.
            return
        word, _, name = line.partition(' ')
        try:
            assert isinstance(self.server, Supervisor)
            self.server.do(word, name)
            answer = ''
        except Exception as error:
            LOG.warning('%s %s: %s', word, name, error)
            answer = ' '.join(str(error).split()) or type(error).__name__
        with contextlib.suppress(OSError):
            self.wfile.write(f'{answer}\n'.encode())


class Supervisor(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Serves requests.

    :param run_dir: of the connectors, and of the socket.
    :raises OSError: if the socket cannot be made.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, run_dir: str):
        self._starter = LocalStarter(run_dir)
        self._locks = KeyedLocks(MONITOR - 1, 'the lock of connector')
        path = socket_path(run_dir)
        self._parked_path = os.path.join(run_dir, 'connectors', PARKED)
        os.makedirs(os.path.dirname(self._parked_path), exist_ok=True)
        # Held for life, and by no child.
        lock = os.open(os.path.join(run_dir, f'{PROGRAM}.lock'), os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise exception.ConfigurationError(f'another {PROGRAM} serves at {path}') from None
        self._parked = self._park()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        super().__init__(path, _Request)

    def do(self, word: str, name: str) -> None:
        """Do what is asked for.

        :raises BootcacheError: if it cannot be done.
        """
        if word == 'release':
            with self._locks.of(PARKED):
                # First another one takes its place: who is sent on may come back at once.
                self._parked, before = self._park(), self._parked
                before.close()
            return
        if not connector.NAME.fullmatch(name):
            raise exception.BootcacheError(f'{name!r} is no connector\'s name')
        with self._locks.of(name):
            if word == 'kill':
                self._starter.kill(name)
            elif word == 'start':
                names = self._starter.names()
                if name not in names and len(names) >= _MOST_CONNECTORS:
                    raise exception.BootcacheError(
                        f'{_MOST_CONNECTORS} connectors run: no more are started')
                self._starter.start(name)
            else:
                raise exception.BootcacheError(f'{word!r} is no request')

    def _park(self) -> socket.socket:
        """Listen where nobody answers."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f'{self._parked_path}.new')
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(f'{self._parked_path}.new')
        listener.listen(_MOST_PARKED)
        os.rename(f'{self._parked_path}.new', self._parked_path)
        return listener

    def kill_all(self) -> None:
        """Kill all connectors."""
        for name in self._starter.names():
            with contextlib.suppress(exception.StorageDaemonError):
                self._starter.kill(name)


def socket_path(run_dir: str) -> str:
    """Return where a supervisor serves. Pure."""
    return os.path.join(run_dir, _SOCKET)


class SupervisedStarter:
    """Has a supervisor start and kill connectors.

    :param run_dir: as of the connectors.
    :param autostart: whether a supervisor is started where none answers.
    """

    def __init__(self, run_dir: str, autostart: bool):
        self._run_dir = run_dir
        self._autostart = autostart

    def start(self, name: str) -> None:
        """See ``Starter``."""
        self._ask('start', name)

    def kill(self, name: str) -> None:
        """See ``Starter``."""
        self._ask('kill', name)

    def release(self) -> None:
        """See ``Starter``."""
        self._ask('release')

    def _ask(self, word: str, name: str = '') -> None:
        path = socket_path(self._run_dir)
        # One that ends just now takes it no more; to do it twice harms nobody.
        for _attempt in range(2):
            if not listening.is_served(path):
                self._start(path)
            try:
                with socket.socket(socket.AF_UNIX) as connection:
                    connection.settimeout(_ANSWER_SECONDS)
                    connection.connect(path)
                    connection.sendall(f'{word} {name}\n'.encode())
                    with connection.makefile() as stream:
                        answer = stream.readline()
            except OSError as error:
                answer = str(error)
            if answer == '\n':
                return
        raise exception.StorageDaemonError(
            f'{PROGRAM} at {path}: {word} {name}: {answer.strip() or "it ended"}')

    def _start(self, path: str) -> None:
        if not self._autostart:
            raise exception.StorageDaemonError(
                f'nothing answers at {path}; start {PROGRAM}.service')
        with open(os.path.join(self._run_dir, f'{PROGRAM}.log'), 'ab') as log:
            subprocess.Popen([sys.executable, '-m', __name__, self._run_dir],
                             stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                             start_new_session=True)
        deadline = time.monotonic() + _START_SECONDS
        while not listening.is_served(path):
            if time.monotonic() > deadline:
                raise exception.StorageDaemonError(
                    f'{PROGRAM} does not come up; see {log.name}')
            time.sleep(0.05)


def main(argv: list[str] | None = None) -> int:
    """Run the supervisor of this host until it is told to stop.

    :returns: the process's exit code.
    """
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description='Starts and kills the daemons by which this host reads bases.')
    parser.add_argument('run_dir', metavar='DIRECTORY', help='[bootcache]gateway_run_dir')
    arguments = parser.parse_args(argv)
    logging.basicConfig(format='%(levelname)s %(message)s', level=logging.INFO)
    # Its sockets are its user's.
    os.umask(0o077)
    try:
        server = Supervisor(arguments.run_dir)
    except (OSError, exception.BootcacheError) as error:
        print(f'{PROGRAM} cannot be started: {error}', file=sys.stderr)
        return 1
    for number in (signal.SIGTERM, signal.SIGINT):
        # Not in the signal's own call: it waits for the loop that it interrupts.
        signal.signal(number, lambda *_: threading.Thread(target=server.shutdown).start())
    try:
        server.serve_forever()
    finally:
        server.server_close()
        server.kill_all()
    return 0


if __name__ == '__main__':
    sys.exit(main())
