"""The daemon that has snapshots open while they are written.

Exporters read and write them by NBD on a unix socket, and have none of their nodes themselves: one
in Ceph waits for Ceph in the thread that does everything else, as bootcache/connectors/connector.py
tells, and what a host writes into a file goes through QEMU's drivers for it. A daemon that hangs is
ended: those that are being sent then go stock Nova's way.
"""

import contextlib
import os
from collections.abc import Callable, Mapping

from oslo_log import log as logging

from bootcache import exception, naming
from bootcache.storagedaemon import StorageDaemon, UnixListener

LOG = logging.getLogger(__name__)

_NAME = 'snapshots'
_PATIENCE_SECONDS = 20
_END_SECONDS = 5


class SnapshotDaemon:
    """Opens what is written, under the names of its exports.

    :param run_dir: of its files, ``snapshots.*``.
    """

    def __init__(self, run_dir: str):
        self._socket = os.path.join(run_dir, f'{_NAME}.nbd')
        self._daemon = StorageDaemon(_NAME, run_dir, UnixListener(self._socket),
                                     patience=_PATIENCE_SECONDS)

    def open(self, export: str, node: Mapping[str, object]) -> dict[str, object]:
        """Open a node, to be written.

        :param export: its name here.
        :param node: as of ``Writable``.
        :returns: the node by which it is written, without its name.
        :raises StorageDaemonError: if it cannot be opened.
        """
        name = naming.node_name('w', export)
        with self._daemon.monitor.alone():
            self._daemon.ensure_running()
            self._daemon.add_nodes({**node, 'node-name': name, 'read-only': False})
            try:
                self._daemon.add_export(export, name, writable=True)
            except exception.StorageDaemonError:
                with contextlib.suppress(exception.StorageDaemonError):
                    self._daemon.remove_nodes(name)
                raise
        return {'driver': 'nbd', 'export': export, 'discard': 'unmap',
                'server': {'type': 'unix', 'path': self._socket}}

    def close(self, export: str) -> None:
        """Close one, whoever writes: what was written is stored when this returns.

        :raises StorageDaemonError: if that is not known; it is closed then all the same.
        """
        name = naming.node_name('w', export)
        with self._daemon.monitor.alone():
            if not self.runs:
                raise exception.StorageDaemonError(f'{_NAME}: the daemon has ended meanwhile')
            try:
                served = export in self._daemon.exports()
                if served:
                    self._daemon.remove_export(export, disconnect=True)
                if name in self._daemon.nodes():
                    self._daemon.remove_nodes(name)
            except exception.StorageDaemonError:
                LOG.warning('the daemon of snapshots does not close one, and is ended: those that'
                            ' are under way go stock Nova\'s way')
                self._daemon.stop(_END_SECONDS)
                raise
        if not served:
            # Another one was begun since, and with it a new daemon.
            raise exception.StorageDaemonError(
                f'{_NAME}: the daemon has ended meanwhile, and did not store it')

    @property
    def runs(self) -> bool:
        """Whether there is a daemon."""
        return self._daemon.runs

    def rest(self, is_idle: Callable[[], bool]) -> None:
        """End the daemon if nothing is under way; who opens something then starts another one.

        :param is_idle: tells so, while nobody can open anything.
        """
        if not self.runs:
            return
        with self._daemon.monitor.alone():
            if is_idle():
                self._daemon.stop(_END_SECONDS)
