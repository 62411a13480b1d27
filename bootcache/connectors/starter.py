"""Starts and kills connectors, and owns the sockets at which readers of a base wait for a way.

``bootcache-connectors`` does so on a compute host (supervisor.py), or nova-compute itself where it
starts the gateway as well; on a storage node the storage service does. Connectors outlive each of
these, and are found again by their pid files.
"""

import contextlib
import fcntl
import os
import re
import socket
import threading

from bootcache import errorlog, exception
from bootcache.connectors import connector
from bootcache.connectors.connectors import CONNECTORS, LINKS, is_parked, names_in, target
from bootcache.storagedaemon import StorageDaemon

PROGRAM = 'bootcache-connectors'
_REQUEST = re.compile(f'(start|kill) {connector.NAME.pattern}|park [0-9a-f]{{32}}|release ')
_MOST_RUNNING = 64
_MOST_WAITING = 64


class Starter:
    """Does so for one directory.

    :param run_dir: as of the connectors.
    """

    def __init__(self, run_dir: str):
        self._directory = os.path.join(run_dir, CONNECTORS)
        self._links = os.path.join(run_dir, LINKS)
        self._lock_path = os.path.join(run_dir, f'{PROGRAM}.lock')
        # One a name, without a rank: nothing but a connector's own monitor is taken under it.
        self._locks: dict[str, threading.Lock] = {}
        # By the digests of bases' names. Each step is atomic.
        self._parked: dict[str, socket.socket] = {}

    def do(self, word: str, name: str = '') -> None:
        """Start or kill a connector, or have readers of bases wait, or go on.

        Requests for other names do not wait for this one.

        :param word: ``start``: nothing happens to one that runs; ``kill``: whatever waits in it, it
            is gone when this returns; ``park``: a base has a socket at which nobody answers,
            in its link's place; ``release``: whoever waits for a base that has a link again, or is
            forgotten, connects anew.
        :param name: of the connector; for ``park`` the digest of the base's name.
        :raises StorageDaemonError: if it cannot be done.
        """
        if not _REQUEST.fullmatch(f'{word} {name}'):
            raise exception.StorageDaemonError('there is no such request')
        with self._locks.setdefault(name, threading.Lock()):
            if word == 'park':
                self._park(name)
                return
            if word == 'release':
                self._release()
                return
            daemon = self._daemon(name)
            if word == 'kill':
                daemon.stop(0)
                for path in (daemon.monitor_path, daemon.pid_path, daemon.log_path,
                             errorlog.apart(daemon.log_path), str(daemon.listener)):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(path)
            elif not daemon.runs:
                if sum(self._daemon(other).runs
                       for other in names_in(self._directory)) >= _MOST_RUNNING:
                    raise exception.StorageDaemonError(
                        f'{_MOST_RUNNING} connectors run: no more are started')
                daemon.ensure_running()

    def _daemon(self, name: str) -> StorageDaemon:
        return connector.daemon(self._directory, name)

    def listen(self) -> None:
        """Be the one that starts connectors; who waits for a base does so at this one's sockets.

        :raises StorageDaemonError: if another process is, or a socket cannot be made.
        """
        try:
            for directory in (self._directory, self._links):
                os.makedirs(directory, mode=0o700, exist_ok=True)
            # Held for life, and by no child.
            lock = os.open(self._lock_path, os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise exception.StorageDaemonError(
                f'another process has {self._lock_path}: {PROGRAM}, or nova-compute, by'
                ' [bootcache]gateway_autostart; only one of them starts connectors') from None
        except OSError as error:
            raise exception.StorageDaemonError(
                f'{self._lock_path} cannot be made: {error}') from error
        for entry in os.listdir(self._links):
            name, _, kind = entry.partition('.')
            if kind == 'sock' and not target(self._path(name)):
                self.do('park', name)

    def _park(self, name: str) -> None:
        """QEMU would try a path that leads nowhere after 1, 2, 4, 8 and 16 s; who waits at a socket
        tries its path again a second after that has gone.
        """
        path = self._path(name)
        try:
            os.makedirs(self._links, mode=0o700, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f'{path}.new')
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(f'{path}.new')
            listener.listen(_MOST_WAITING)
            os.rename(f'{path}.new', path)
        except OSError as error:
            raise exception.StorageDaemonError(
                f'the socket {path} cannot be made: {error}') from error
        before, self._parked[name] = self._parked.get(name), listener
        if before is not None:
            before.close()

    def _release(self) -> None:
        for name in list(self._parked):
            with self._locks[name]:
                if not is_parked(self._path(name)):
                    self._parked.pop(name).close()

    def _path(self, name: str) -> str:
        return os.path.join(self._links, f'{name}.sock')

    def kill_all(self) -> None:
        """Kill all connectors but those that cannot be ended."""
        for name in names_in(self._directory):
            with contextlib.suppress(exception.StorageDaemonError):
                self.do('kill', name)
