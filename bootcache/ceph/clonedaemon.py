"""A daemon that has clones open, for the one that serves them alone.

QEMU's rbd driver waits for Ceph in the thread that does everything else: to open an image, to close
it, and to be asked which nodes there are. While Ceph is away, whoever has such a node does nothing
else any more. So exporter and gateway have none: another stock qemu-storage-daemon has them, and
they read from it by NBD on a unix socket, where only those wait who want what is in Ceph.
"""

import contextlib
import os
import time
from collections.abc import Iterable, Mapping

from oslo_log import log as logging

from bootcache import errorlog, exception, naming, qemuimg
from bootcache.breaker import Breaker
from bootcache.ceph import places
from bootcache.ceph.places import RbdClone
from bootcache.ceph.reach import CephReach
from bootcache.storagedaemon import StorageDaemon, UnixListener

LOG = logging.getLogger(__name__)

_NAME = 'ceph'
# For which to wait for its monitor; after that nobody asks for so many seconds.
_PATIENCE_SECONDS = 10
_SILENCE_SECONDS = 10
# For which one that cannot be read stays closed, unless somebody asks for it: longer than the
# exporter waits for it.
_CLOSED_SECONDS = 120
# One that was opened so many seconds ago is about to be read.
_FRESH_SECONDS = 60
# How librbd says it.
_SHUT_OUT = b'Cannot send after transport endpoint shutdown'


def forget_before(times: dict[str, float], before: float) -> None:
    """Forget the names of which a time says nothing any more, while others note times.

    Else it would grow with each name that was ever asked for.

    :param before: which times these are.
    """
    for name in [name for name, when in list(times.items()) if when < before]:
        when = times.pop(name, before)
        if when > before:
            # Noted since.
            times.setdefault(name, when)


class CloneDaemon:
    """Opens clones, and closes those that nobody reads any more.

    There is one of these for a daemon: who closes has to know all that is read.

    :ivar socket: where the clones are served.

    :param run_dir: of its files, ``ceph.*``.
    :param conf: path of ceph.conf.
    :param user: of Ceph, without ``client.``.
    :param autostart: whether one is started where none answers.
    """

    def __init__(self, run_dir: str, conf: str, user: str, autostart: bool = True):
        self.socket = os.path.join(run_dir, f'{_NAME}.nbd')
        self._ceph = conf, user
        self._daemon = StorageDaemon(_NAME, run_dir, UnixListener(self.socket),
                                     autostart=autostart, patience=_PATIENCE_SECONDS,
                                     breaker=Breaker(1, _SILENCE_SECONDS), trace=errorlog.TRACE)
        self._log = errorlog.ErrorLog(self._daemon.log_path)
        self._reach = CephReach()
        # When each was opened, in monotonic seconds. Each step is atomic.
        self._opened_at: dict[str, float] = {}
        # Until when those stay closed that could not be read, in monotonic seconds. Likewise.
        self._closed_until: dict[str, float] = {}
        # When ``keep_open`` could not open them, in monotonic seconds. Likewise.
        self._failed_at: dict[str, float] = {}

    def node(self, export: str, reconnect_seconds: int) -> dict[str, object]:
        """Return the block node of a clone that is open, without its name.

        :param export: its name here.
        :param reconnect_seconds: for which reads wait for a daemon that is started anew.
        """
        return {'driver': 'nbd', 'export': export, 'reconnect-delay': reconnect_seconds,
                'server': {'type': 'unix', 'path': self.socket}}

    def open(self, export: str, clone: RbdClone) -> bool:
        """Have a clone be open.

        :param export: the name by which it is read.
        :returns: True if it was not: Ceph has answered just now.
        :raises StorageDaemonError: if it cannot be opened, or Ceph does not answer.
        """
        self._opened_at[export] = time.monotonic()
        self._closed_until.pop(export, None)
        if self.is_open(export):
            return False
        protocol = places.protocol(clone, *self._ceph)
        self._reach.check(clone.path, protocol)
        with self._daemon.monitor.alone():
            self._daemon.ensure_running()
            if export not in self._daemon.exports():
                self._open(export, protocol)
        return True

    def is_open(self, export: str) -> bool:
        """Tell whether a clone is open.

        :raises StorageDaemonError: if the daemon does not answer.
        """
        return export in self.exports()

    def is_ready(self, export: str) -> bool:
        """Tell whether a clone is open, for somebody who is about to read it: it stays so then.

        :raises StorageDaemonError: if the daemon does not answer.
        """
        self._opened_at[export] = time.monotonic()
        return self.is_open(export)

    def hangs(self, export: str) -> bool:
        """Tell whether the daemon runs, and says nothing to who wants to read a clone.

        Its monitor is not asked, which another client may have.
        """
        if not self.runs:
            return False
        try:
            qemuimg.check_opens(self.node(export, 0))
        except exception.Interrupted as error:
            LOG.debug('%s: %s', self.socket, error)
            return True
        except exception.BootcacheError:
            # It does not have that one, and says so, or has ended.
            pass
        return False

    @property
    def runs(self) -> bool:
        """Whether there is a daemon."""
        return self._daemon.runs

    def exports(self) -> set[str]:
        """Return the names of what is open.

        :raises StorageDaemonError: if the daemon does not answer.
        """
        return set(self._daemon.exports()) if self.runs else set()

    def is_closed(self, export: str) -> bool:
        """Tell whether one was closed just now, as it could not be read."""
        return self._closed_until.get(export, 0.0) >= time.monotonic()

    def check(self, clone: RbdClone) -> None:
        """Check that Ceph gives out a clone.

        :raises StorageDaemonError: if it does not, or did not answer just now.
        """
        self._reach.check(clone.path, places.protocol(clone, *self._ceph))

    def _open(self, export: str, protocol: Mapping[str, object]) -> None:
        name = self._node_name(export)
        with contextlib.suppress(exception.StorageDaemonError):
            # What a crash, or an answer that came too late, left without its export.
            self._daemon.remove_nodes(name)
        self._daemon.add_nodes({**protocol, 'node-name': name, 'read-only': True})
        self._daemon.add_export(export, name)

    @staticmethod
    def _node_name(export: str) -> str:
        return naming.node_name('r', export)

    def keep_open(self, wanted: Mapping[str, RbdClone], kept: Iterable[str] = ()) -> None:
        """Have those clones open that are read, and no others.

        A daemon that was started anew has none; one that nobody reads is a watcher, so that its
        clone could not be removed.

        One that cannot be opened keeps no other one closed: those that could not be come last.

        :param wanted: what is read, by the name by which it is.
        :param kept: names of which only those that are open stay so.
        :raises StorageDaemonError: if the daemon does not answer, or one cannot be opened.
        """
        there = self.exports()
        forget_before(self._opened_at, time.monotonic() - _FRESH_SECONDS)
        forget_before(self._closed_until, time.monotonic())
        self._failed_at = {export: when for export, when in self._failed_at.items()
                           if export in wanted}
        failed = None
        for export in sorted(set(wanted) - there, key=lambda name: self._failed_at.get(name, 0)):
            if not self.is_closed(export):
                LOG.warning('%s is opened again', wanted[export].path)
                try:
                    self.open(export, wanted[export])
                except exception.StorageDaemonError as error:
                    failed, self._failed_at[export] = error, time.monotonic()
        for export in sorted(there - set(wanted) - set(kept)):
            self._close(export)
        if failed is not None:
            raise failed

    def is_fresh(self, export: str) -> bool:
        """Tell whether somebody asked for one just now, and is about to read it."""
        before = time.monotonic() - _FRESH_SECONDS
        return self._opened_at.get(export, before) > before

    def _close(self, export: str) -> None:
        with self._daemon.monitor.alone():
            # One that somebody is connected to, or is about to, stays.
            if not self.is_fresh(export) and self._daemon.remove_export(export, disconnect=False):
                self._daemon.remove_nodes(self._node_name(export))
                self._opened_at.pop(export, None)

    def cut_off(self, export: str) -> None:
        """Close a clone, whoever reads it: their reads wait to connect again, and fail then.

        :raises StorageDaemonError: if the daemon does not answer.
        """
        self._closed_until[export] = time.monotonic() + _CLOSED_SECONDS
        with self._daemon.monitor.alone():
            if export in self.exports():
                self._daemon.remove_export(export, disconnect=True)
                self._daemon.remove_nodes(self._node_name(export))

    def mend(self) -> bool:
        """End what makes reads fail: who reads, and reconnects, would ask again without end.

        Ceph shuts out a client for good that it takes for dead, or that an operator puts on the
        blocklist: the daemon is started anew, as another client. A clone that cannot be read for
        another reason is closed; who has waited for it in vain gets the error.

        :returns: True if ``keep_open`` has to open clones again.
        :raises StorageDaemonError: if the daemon does not answer.
        :raises OSError: if its log cannot be read.
        """
        news = self._log.news()
        if _SHUT_OUT in news:
            LOG.error('Ceph has shut out the daemon that has bases open, as one that is on its'
                      ' blocklist; it is started anew')
            self._daemon.stop()
            # What it wrote until it ended is of the one that has gone.
            self._log.news()
            return True
        export = errorlog.looping(news)
        if export is not None:
            LOG.error('%s cannot be read in Ceph (see %s); it is closed', export,
                      self._daemon.log_path)
            self.cut_off(export)
            self._log.news()
        return False

    def stop(self, grace: float = 5) -> None:
        """End the daemon; what is read of it waits.

        :param grace: seconds after which it is killed.
        """
        self._daemon.stop(grace)
