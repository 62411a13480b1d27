"""The connectors of a host, and the symbolic links by which their readers connect.

QEMU resolves a link each time it connects: what a base is read by changes with its link, and
nothing in the reader's block graph does. Nothing is remembered: links, pid files and what
connectors answer tell all.
"""

import contextlib
import os
import stat
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator

from oslo_log import log as logging

from bootcache import exception, steps
from bootcache.connectors import connector, probe
from bootcache.connectors.connector import Connector
from bootcache.connectors.probe import Answer
from bootcache.connectors.ways import Way
from bootcache.errorlog import ErrorLog
from bootcache.util import threads

LOG = logging.getLogger(__name__)

LINKS, CONNECTORS = 'bases', 'connectors'
# Where a link leads for which a socket cannot be had, at which readers wait.
_NOWHERE = 'nowhere'
# In a directory of connectors.
LONGEST_SOCKET = f'{LINKS}/{"0" * 32}.sock.new'
# That a read takes before a link leads to a connector.
_READ_SECONDS = 3
# Who had a link be made that long ago has opened the base, or will not.
_FRESH_SECONDS = 120
# Of one origin: one that is used, and one beside it where connections of that are stuck; and those
# by which nothing is read, see ``check``.
_NUMBERS, _CHECKS = 2, range(2, 10)


def names_in(directory: str) -> list[str]:
    """Return the names of the connectors of which there are files in a directory."""
    try:
        return sorted(name for name in {entry.partition('.')[0] for entry in os.listdir(directory)}
                      if connector.NAME.fullmatch(name))
    except FileNotFoundError:
        return []


def target(link: str) -> str:
    """Return the name of the connector that a link leads to; empty if it leads to none."""
    try:
        name = os.path.basename(os.readlink(link)).removesuffix('.nbd')
    except OSError:
        return ''
    return name if connector.NAME.fullmatch(name) else ''


def _made_at(link: str) -> float:
    try:
        return os.lstat(link).st_mtime
    except OSError:
        return 0.0


def is_parked(link: str) -> bool:
    """Tell whether there is a socket in the place of a link, where readers wait for one."""
    with contextlib.suppress(OSError):
        return stat.S_ISSOCK(os.lstat(link).st_mode)
    return False


class Connectors:
    """Has bases be read by connectors.

    :param run_dir: of its links and of the connectors' files; short, as paths of unix sockets end
        at 107 bytes.
    :param starter: ``Starter.do`` (starter.py), or what asks another process for it.
    """

    def __init__(self, run_dir: str, starter: Callable[[str, str], None]):
        self._links = os.path.join(run_dir, LINKS)
        self._directory = os.path.join(run_dir, CONNECTORS)
        self._starter = starter
        # What is being opened, by the names of connectors: no link leads there yet. Each step is
        # atomic.
        self._opening: dict[str, str] = {}
        # One for each that is asked: its monitor takes one client at a time. Likewise.
        self._known: dict[str, Connector] = {}
        # Those that check, by name: a check that fails ends its connector. Without a rank: nothing
        # but a connector's own monitor is taken under it.
        self._checks: dict[str, threading.Lock] = {}
        # What was read of connectors' logs, by name; for one thread.
        self._logs: dict[str, ErrorLog] = {}

    def socket(self, export: str) -> str:
        """Return the path by which a base is read, that never changes."""
        return os.path.join(self._links, f'{connector.digest(export)}.sock')

    def name_of(self, export: str) -> str:
        """Return the name of the connector that a base is read by; empty if there is none.

        One that has but its size is none.
        """
        name = target(self.socket(export))
        return '' if name.startswith(connector.ABSENT) else name

    def has_link(self, export: str) -> bool:
        """Tell whether a base has a link, wherever that leads: somebody reads it, or did."""
        return os.path.lexists(self.socket(export))

    def since(self, export: str) -> float:
        """Return when the link of a base was made that leads where it does, in seconds since the
        epoch; 0 if there is none.
        """
        return _made_at(self.socket(export))

    def is_by(self, name: str, way: Way) -> bool:
        """Tell whether a connector is one of a way's, and runs."""
        return name.startswith(f'{way.origin}-') and self.runs(name)

    def runs(self, name: str) -> bool:
        """Tell whether a connector runs."""
        return bool(name) and self._of(name).runs

    def _of(self, name: str) -> Connector:
        return self._known.get(name) or self._known.setdefault(
            name, Connector(self._directory, name))

    def check(self, export: str, way: Way) -> None:
        """Check that a base can be read by a way, in a connector that nobody reads by: a read that
        hangs keeps all others of a connector waiting (QEMU 10), and its connection.

        :raises StorageDaemonError: as ``connect``.
        """
        with self._free_check(way) as name:
            try:
                with self._opened(name, export, way):
                    pass
            except BaseException:
                self._starter('kill', name)
                raise

    @contextlib.contextmanager
    def _free_check(self, way: Way) -> Iterator[str]:
        """Have a connector for one check; gives its name."""
        for number in _CHECKS:
            name = f'{way.origin}-{number}'
            lock = self._checks.setdefault(name, threading.Lock())
            if lock.acquire(blocking=False):
                break
        else:
            raise exception.StorageDaemonBusy(f'{way.text}: {len(_CHECKS)} bases are tried there')
        try:
            yield name
        finally:
            lock.release()

    @contextlib.contextmanager
    def _opened(self, name: str, export: str, way: Way) -> Iterator[None]:
        """Have a connector open a base; nobody ends it for want of a link while the block runs."""
        found = self._of(name)
        self._opening[export] = name
        try:
            if not found.runs:
                self._starter('start', name)
            self._open(found, export, way)
            yield
        finally:
            self._opening.pop(export, None)

    def connect(self, export: str, way: Way, avoid: Container[str] = ()) -> None:
        """Have a base be read by a way from now on; who reads it connects again.

        :param avoid: the names of connectors that are not to be used: connections of them are
            stuck.
        :raises StorageDaemonBusy: if all are to be avoided, nothing is read by the way within three
            seconds, or the connector does not answer; what was there stays.
        :raises BaseUnreadable: if that one cannot be read; likewise.
        :raises StorageDaemonError: if nothing can be opened by the way; likewise.
        """
        link = self.socket(export)
        before, was_parked = target(link), is_parked(link)
        names = (f'{way.origin}-{number}' for number in range(_NUMBERS))
        name = next((name for name in names if name not in avoid), '')
        if not name:
            raise exception.StorageDaemonBusy(f'{way.text}: its connectors have no answer')
        try:
            with self._opened(name, export, way):
                if before != name:
                    self._link(export, os.path.basename(self._of(name).socket))
        except BaseException:
            if name != before:
                self.disconnect(name)
            raise
        if before != name:
            steps.reached('connector: linked')
            if before:
                self.disconnect(before)
            elif was_parked:
                self._release(export)
            LOG.info('%s is read by %s (connector %s)', export, way.text, name)

    @staticmethod
    def _open(found: Connector, export: str, way: Way) -> None:
        try:
            found.open(export, way.node)
        except exception.StorageDaemonBusy:
            raise
        except exception.StorageDaemonError as error:
            # Ceph tells of each by itself; a storage node is not reached as a rule.
            if way.node['driver'] == 'nbd':
                raise
            raise exception.BaseUnreadable(f'{way.text}: {error}') from error
        steps.reached('connector: opened')
        if way.origin.startswith(connector.ABSENT):
            return
        answer = threads.run_native(
            lambda: probe.read({export: found.socket}, _READ_SECONDS))[export]
        if answer is not Answer.READ:
            fault = exception.StorageDaemonBusy if answer is Answer.SILENT \
                else exception.BaseUnreadable
            raise fault(f'{way.text}: a read of 4 KiB: {answer.value}')

    def _release(self, export: str) -> None:
        try:
            self._starter('release', '')
        except exception.StorageDaemonError as error:
            # Nobody waits if that has ended; else upkeep asks again.
            LOG.warning('who waits for %s is not sent on: %s', export, error)

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
        """Have a base be read by no way; who reads it does so until ``disconnect``, and then waits:
        reads fail when their reader has tried for long enough.

        :raises StorageDaemonError: if the link cannot be made.
        """
        try:
            self._starter('park', connector.digest(export))
        except exception.StorageDaemonError as error:
            LOG.warning('who reads %s does not wait at a socket: %s', export, error)
            self._link(export, _NOWHERE)

    def park_absent(self, export: str) -> None:
        """Do both with a base of which there is but its size; raises as these."""
        name = target(self.socket(export))
        if name.startswith(connector.ABSENT):
            self.park(export)
            self.disconnect(name)

    def disconnect(self, name: str) -> None:
        """End the connections to what a connector serves and no link leads to.

        :raises StorageDaemonError: if the connector hangs and cannot be ended.
        """
        try:
            self._tidy(name)
        except exception.StorageDaemonBusy as error:
            LOG.warning('connector %s does not answer, and is ended: %s', name, error)
            self._starter('kill', name)
        except exception.StorageDaemonError as error:
            LOG.warning('connector %s: %s', name, error)

    def _tidy(self, name: str) -> None:
        used = self._used().get(name)
        if used is None:
            self._starter('kill', name)
        elif (found := self._of(name)).runs:
            found.sweep(used)

    def _used(self) -> dict[str, set[str]]:
        """Return the digests of what is read by each connector, as links tell."""
        # First: what is opened has its link when it is no more.
        opening = list(self._opening.items())
        found: dict[str, set[str]] = {}
        with contextlib.suppress(FileNotFoundError):
            for entry in os.listdir(self._links):
                if entry.endswith('.sock') and (name := target(
                        os.path.join(self._links, entry))):
                    found.setdefault(name, set()).add(entry.removesuffix('.sock'))
        for export, name in opening:
            found.setdefault(name, set()).add(connector.digest(export))
        return found

    def looping(self) -> set[str]:
        """Return the bases whose readers ask again without end, as each answer is an error.

        Of those that are read in Ceph: an exporter's are seen by its own node.
        """
        found = set()
        used = self._used()
        self._logs = {name: self._logs.get(name) or ErrorLog(self._of(name).log_path)
                      for name in used}
        for log in self._logs.values():
            with contextlib.suppress(OSError):
                found.add(log.looping())
        return {export for export in found if export is not None}

    def is_fresh(self, export: str) -> bool:
        """Tell whether somebody may be about to open a base."""
        return time.time() - self.since(export) <= _FRESH_SECONDS

    def touch(self, export: str) -> None:
        """Have ``keep`` leave a base as it is for two minutes: somebody is about to open it."""
        with contextlib.suppress(OSError):
            os.utime(self.socket(export), follow_symlinks=False)

    def stop(self) -> None:
        """End all connectors; who reads by them waits.

        :raises StorageDaemonError: if one cannot be ended.
        """
        for name in names_in(self._directory):
            self._starter('kill', name)

    def keep(self, exports: Iterable[str]) -> None:
        """Forget all but some bases, and end what nobody reads by any more.

        :param exports: the names of those that are needed.
        :raises StorageDaemonError: if something cannot be ended.
        """
        failed: list[str] = []
        needed = {f'{connector.digest(export)}.sock' for export in exports}
        with contextlib.suppress(FileNotFoundError):
            for entry in set(os.listdir(self._links)) - needed:
                link = os.path.join(self._links, entry)
                if time.time() - _made_at(link) > _FRESH_SECONDS:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(link)
        for name in names_in(self._directory):
            try:
                self._tidy(name)
            except exception.StorageDaemonBusy as error:
                # The watch has it, or finds that it hangs.
                LOG.debug('connector %s: %s', name, error)
            except exception.StorageDaemonError as error:
                # One of a way that is tried again and again may have just ended.
                if self.runs(name):
                    failed.append(f'connector {name}: {error}')
        # Whoever has made a link may have been killed before that.
        self._starter('release', '')
        if failed:
            raise exception.StorageDaemonError('; '.join(failed))
