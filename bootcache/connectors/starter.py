"""Starts and kills connectors, and owns the socket at which bases wait that cannot be read.

``bootcache-connectors`` does so on a compute host (supervisor.py), or nova-compute itself where it
starts the gateway as well; on a storage node the storage service does. Connectors outlive each of
these, and are found again by their pid files.
"""

import contextlib
import fcntl
import os
import socket
import threading

from bootcache import exception
from bootcache.connectors import connector
from bootcache.connectors.connectors import CONNECTORS, PARKED, names_in
from bootcache.storagedaemon import StorageDaemon

PROGRAM = 'bootcache-connectors'
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

        A connector that runs is not asked for anything. Others' requests do not wait for this one.

        :param word: ``start``; ``kill``: whatever waits in it, it is gone when this returns; or
            ``release``: who waits connects again, by the links; nothing happens without ``listen``.
        :param name: of the connector; empty for ``release``.
        :raises StorageDaemonError: if it cannot be done.
        """
        if word == 'release':
            with self._lock(PARKED):
                if self._parked is not None:
                    self._park()
            return
        if not connector.NAME.fullmatch(name):
            raise exception.StorageDaemonError(f'{name!r} is no connector\'s name')
        with self._lock(name):
            if word == 'start':
                self._start(self._daemon(name))
            elif word == 'kill':
                self._kill(self._daemon(name))
            else:
                raise exception.StorageDaemonError(f'{word!r} is no request')

    def listen(self) -> None:
        """Listen where bases are parked.

        :raises StorageDaemonError: if another process does, or the socket cannot be made.
        """
        try:
            os.makedirs(self._directory, mode=0o700, exist_ok=True)
            # Held for life, and by no child.
            lock = os.open(self._lock_path, os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise exception.StorageDaemonError(
                f'another process has {self._lock_path}: {PROGRAM}, or nova-compute, by'
                ' [bootcache]gateway_autostart; only one of them starts connectors') from None
        except OSError as error:
            raise self._fault(error) from error
        with self._lock(PARKED):
            self._park()

    def kill_all(self) -> None:
        """Kill all connectors but those that cannot be ended."""
        for name in names_in(self._directory):
            with contextlib.suppress(exception.StorageDaemonError):
                self.do('kill', name)

    def _lock(self, name: str) -> threading.Lock:
        return self._locks.setdefault(name, threading.Lock())

    def _daemon(self, name: str) -> StorageDaemon:
        return connector.daemon(self._directory, name, autostart=True)

    def _start(self, daemon: StorageDaemon) -> None:
        # Its monitor takes one client at a time, which is somebody else.
        if daemon.runs:
            return
        if sum(self._daemon(name).runs for name in names_in(self._directory)) >= _MOST_RUNNING:
            raise exception.StorageDaemonError(
                f'{_MOST_RUNNING} connectors run: no more are started')
        daemon.ensure_running()

    @staticmethod
    def _kill(daemon: StorageDaemon) -> None:
        daemon.stop(0)
        for path in (daemon.monitor_path, daemon.pid_path, daemon.log_path, str(daemon.listener)):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def _park(self) -> None:
        path = os.path.join(self._directory, PARKED)
        listener = socket.socket(socket.AF_UNIX)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f'{path}.new')
            listener.bind(f'{path}.new')
            listener.listen(_MOST_PARKED)
            os.rename(f'{path}.new', path)
        except OSError as error:
            listener.close()
            raise self._fault(error) from error
        # Another one has its place: who is sent on may come back at once.
        self._parked, before = listener, self._parked
        if before is not None:
            before.close()

    def _fault(self, error: OSError) -> exception.StorageDaemonError:
        return exception.StorageDaemonError(
            f'the socket {self._directory}/{PARKED} cannot be made: {error}')
