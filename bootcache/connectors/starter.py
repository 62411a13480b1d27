"""Starts and kills connectors, and owns the socket at which bases wait that cannot be read.

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
from bootcache.connectors.connectors import CONNECTORS, PARKED, names_in
from bootcache.storagedaemon import StorageDaemon

PROGRAM = 'bootcache-connectors'
_REQUEST = re.compile(f'(start|kill) {connector.NAME.pattern}|release ')
_MOST_RUNNING = 64
_MOST_PARKED = 4096


class Starter:
    """Does so for one directory.

    :param run_dir: as of the connectors.
    """

    def __init__(self, run_dir: str):
        self._directory = os.path.join(run_dir, CONNECTORS)
        self._lock_path = os.path.join(run_dir, f'{PROGRAM}.lock')
        # One a name, without a rank: nothing but that connector's own monitor is taken under it.
        self._locks: dict[str, threading.Lock] = {}
        self._parked: socket.socket | None = None

    def do(self, word: str, name: str = '') -> None:
        """Start or kill a connector, or send on those who wait at the parked socket.

        Requests for other names do not wait for this one.

        :param word: ``start``: nothing happens to one that runs; ``kill``: whatever waits in it, it
            is gone when this returns; ``release``: who waits connects again, by the links; nothing
            happens without ``listen``.
        :param name: of the connector; empty for ``release``.
        :raises StorageDaemonError: if it cannot be done.
        """
        if not _REQUEST.fullmatch(f'{word} {name}'):
            raise exception.StorageDaemonError('there is no such request')
        with self._locks.setdefault(name, threading.Lock()):
            if word == 'release':
                if self._parked is not None:
                    self.listen()
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
        return connector.daemon(self._directory, name, autostart=True)

    def listen(self) -> None:
        """Listen where bases are parked; who waits there by now is sent on.

        :raises StorageDaemonError: if another process does, or the socket cannot be made.
        """
        path = os.path.join(self._directory, PARKED)
        try:
            if self._parked is None:
                os.makedirs(self._directory, mode=0o700, exist_ok=True)
                # Held for life, and by no child.
                lock = os.open(self._lock_path, os.O_CREAT | os.O_RDWR, 0o600)
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f'{path}.new')
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(f'{path}.new')
            listener.listen(_MOST_PARKED)
            os.rename(f'{path}.new', path)
        except BlockingIOError:
            raise exception.StorageDaemonError(
                f'another process has {self._lock_path}: {PROGRAM}, or nova-compute, by'
                ' [bootcache]gateway_autostart; only one of them starts connectors') from None
        except OSError as error:
            raise exception.StorageDaemonError(
                f'the socket {path} cannot be made: {error}') from error
        # Another one has its place: who is sent on may come back at once.
        self._parked, before = listener, self._parked
        if before is not None:
            before.close()

    def kill_all(self) -> None:
        """Kill all connectors but those that cannot be ended."""
        for name in names_in(self._directory):
            with contextlib.suppress(exception.StorageDaemonError):
                self.do('kill', name)
