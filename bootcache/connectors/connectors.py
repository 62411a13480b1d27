"""The connectors of a host, and the symbolic links by which their readers connect.

QEMU resolves a link each time it connects: what a base is read by changes with its link, and
nothing in the reader's block graph does. Nothing is remembered: links, pid files and what
connectors answer tell all.
"""

import contextlib
import os
from collections.abc import Mapping
from typing import Protocol

from oslo_log import log as logging

from bootcache import exception, green, steps
from bootcache.connectors import connector, probe
from bootcache.connectors.connector import Connector
from bootcache.connectors.probe import Answer
from bootcache.connectors.ways import Way

LOG = logging.getLogger(__name__)

_LINKS, _CONNECTORS = 'bases', 'connectors'
# Where links lead by which nothing can be read: a socket at which nobody answers. QEMU would try a
# path that leads nowhere after 1, 2, 4, 8 and 16 s; one that waits here is sent on, and connects
# within a second.
PARKED = 'parked.sock'
# That a read takes before a link leads to a connector.
_READ_SECONDS = 4
# Of one origin: one that is used, and one beside it where connections of that are stuck.
_NUMBERS = 2


class Starter(Protocol):
    """Starts connectors, and ends them."""

    def start(self, name: str) -> None:
        """Have a connector run.

        :raises StorageDaemonError: if it does not come up.
        """

    def kill(self, name: str) -> None:
        """End a connector at once, whatever waits in it; it is gone when this returns.

        :raises StorageDaemonError: if it cannot be ended.
        """

    def release(self) -> None:
        """Send on those who wait at the parked socket: they connect again, by their links.

        :raises StorageDaemonError: if they cannot be.
        """


def _names_in(directory: str) -> list[str]:
    try:
        return sorted(name for name in {entry.partition('.')[0] for entry in os.listdir(directory)}
                      if connector.NAME.fullmatch(name))
    except FileNotFoundError:
        return []


class LocalStarter:
    """Starts them as this process's children; they outlive it.

    :param run_dir: as of the connectors.
    """

    def __init__(self, run_dir: str):
        self._directory = os.path.join(run_dir, _CONNECTORS)

    def start(self, name: str) -> None:
        """See ``Starter``."""
        connector.daemon(self._directory, name, autostart=True).ensure_running()

    def release(self) -> None:
        """Nobody waits: there is no such socket."""

    def names(self) -> list[str]:
        """Return the names of those of which there are files."""
        return _names_in(self._directory)

    def kill(self, name: str) -> None:
        """See ``Starter``."""
        daemon = connector.daemon(self._directory, name, autostart=True)
        daemon.stop(0)
        for path in (daemon.monitor_path, daemon.pid_path, daemon.log_path,
                     connector.socket_path(self._directory, name)):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


class Connectors:
    """Has bases be read by connectors.

    :param run_dir: of its links and of the connectors' files; short, as paths of unix sockets end
        at 107 bytes.
    :param starter: of connectors.
    """

    def __init__(self, run_dir: str, starter: Starter):
        self._links = os.path.join(run_dir, _LINKS)
        self._directory = os.path.join(run_dir, _CONNECTORS)
        self._starter = starter

    def socket(self, export: str) -> str:
        """Return the path by which a base is read, that never changes."""
        return os.path.join(self._links, f'{connector.digest(export)}.sock')

    def name_of(self, export: str) -> str:
        """Return the name of the connector that a base is read by; empty if there is none."""
        return self._target(self.socket(export))

    @staticmethod
    def _target(link: str) -> str:
        try:
            name = os.path.basename(os.readlink(link)).removesuffix('.nbd')
        except OSError:
            return ''
        return name if connector.NAME.fullmatch(name) else ''

    def is_by(self, export: str, way: Way) -> bool:
        """Tell whether a base is read by a way, as far as links tell, and the connector runs."""
        name = self.name_of(export)
        return name.startswith(f'{way.origin}-') and Connector(self._directory, name).runs

    def connect(self, export: str, way: Way, beside: str = '') -> None:
        """Have a base be read by a way from now on; who reads it connects again.

        :param beside: the name of a connector that is not to be used: connections of it are stuck.
        :raises StorageDaemonError: if the way cannot be opened, or nothing can be read by it within
            four seconds; what was there stays.
        """
        before = self.name_of(export)
        name = next(name for name in self._names(way) if name != beside)
        self._starter.start(name)
        try:
            found = Connector(self._directory, name)
            found.open(export, way.node)
            steps.reached('connector: opened')
            answer = green.aside(lambda: probe.read({export: found.socket}, _READ_SECONDS))[export]
            if answer is not Answer.READ:
                raise exception.StorageDaemonError(f'{way.text}: a read of 4 KiB: {answer.value}')
        except exception.StorageDaemonError:
            if name != before:
                self._end(export, name)
            raise
        if before != name:
            self._link(export, os.path.basename(found.socket))
            steps.reached('connector: linked')
            if before:
                self._end(export, before)
            else:
                self._starter.release()
            LOG.info('%s is read by %s (connector %s)', export, way.text, name)

    @staticmethod
    def _names(way: Way) -> list[str]:
        return [f'{way.origin}-{number}' for number in range(_NUMBERS)]

    def _link(self, export: str, file: str) -> None:
        link = self.socket(export)
        try:
            os.makedirs(self._links, mode=0o700, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f'{link}.new')
            os.symlink(os.path.join(self._directory, file), f'{link}.new')
            os.rename(f'{link}.new', link)
        except OSError as error:
            raise exception.StorageDaemonError(
                f'the link to a connector cannot be made: {error}') from error

    def park(self, export: str) -> None:
        """Have a base be read by no way: reads fail when their reader has tried for long enough.

        :raises StorageDaemonError: if the link cannot be made, or the connector cannot be ended
            that hangs.
        """
        before = self.name_of(export)
        self._link(export, PARKED)
        if before:
            self._end(export, before)
            LOG.warning('%s cannot be read now: its readers wait', export)

    def disconnect(self, export: str) -> None:
        """Forget a base that nobody reads.

        :raises StorageDaemonError: if the connector cannot be ended that hangs.
        """
        before = self.name_of(export)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.socket(export))
        if before:
            self._end(export, before)

    def _end(self, export: str, name: str) -> None:
        if name not in self._used():
            self._starter.kill(name)
            return
        try:
            Connector(self._directory, name).close(export)
        except exception.StorageDaemonError as error:
            LOG.warning('connector %s does not answer, and is ended: %s', name, error)
            self._starter.kill(name)

    def _used(self) -> dict[str, set[str]]:
        """Return the digests of what is read by each connector, as links tell."""
        found: dict[str, set[str]] = {}
        with contextlib.suppress(FileNotFoundError):
            for entry in os.listdir(self._links):
                if entry.endswith('.sock') and (name := self._target(
                        os.path.join(self._links, entry))):
                    found.setdefault(name, set()).add(entry.removesuffix('.sock'))
        return found

    def reconcile(self, ways: Mapping[str, Way]) -> None:
        """Have those bases be read that are needed, each by its way, and nothing else.

        A connector that was killed is started again; one to which no link leads is ended.

        :param ways: by which bases are to be read, by the names of their exports. One that is read
            by that origin already stays as it is.
        :raises StorageDaemonError: if one of them cannot be opened; all others are.
        """
        failed: list[str] = []
        digests = {connector.digest(export) for export in ways}
        for name, read in self._used().items():
            for lost in read - digests:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(self._links, f'{lost}.sock'))
        for export, way in ways.items():
            try:
                if not self._is_open(export, way):
                    self.connect(export, way)
            except exception.StorageDaemonError as error:
                failed.append(f'{export}: {error}')
        used = self._used()
        for name in _names_in(self._directory):
            try:
                if name in used:
                    Connector(self._directory, name).sweep(used[name])
                else:
                    self._starter.kill(name)
            except exception.StorageDaemonError as error:
                failed.append(f'connector {name}: {error}')
        if failed:
            raise exception.StorageDaemonError('; '.join(failed))

    def _is_open(self, export: str, way: Way) -> bool:
        return self.is_by(export, way) and connector.digest(export) in Connector(
            self._directory, self.name_of(export)).exports()
