"""A connector: a stock qemu-storage-daemon that has the remote side of what others read.

It has TLS, or Ceph's key, waits for the remote side without end, and serves what it has open on a
unix socket. QEMU waits for Ceph in the thread that does everything else, and for a storage node
that is frozen without end: so nobody but a connector has such a node, and a connector can be killed
at any time.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Mapping
from typing import Any

from bootcache import errorlog, exception
from bootcache.storagedaemon import StorageDaemon, UnixListener

# The begin of the names of those that read in Ceph, and that have but the size of a base that is
# away.
RBD, ABSENT = 'rbd-', 'absent-'
NAME = re.compile(f'({RBD}|{ABSENT})?[0-9a-f]{{16}}-[0-9]')
# A monitor answers within milliseconds, whatever the remote side does (QEMU 7.2 and 10).
# To open what is in Ceph it waits for that.
_ANSWER_SECONDS, _COMMAND_SECONDS, _QUEUE_SECONDS = 3, 4, 10


def digest(export: str) -> str:
    """Return the 32 hexadecimal digits that stand for an export's name. Pure."""
    return hashlib.sha256(export.encode()).hexdigest()[:32]


def daemon(directory: str, name: str) -> StorageDaemon:
    """Return the daemon of a connector.

    :param directory: of all connectors' files.
    """
    return StorageDaemon(name, directory, UnixListener(socket_path(directory, name)),
                         patience=_ANSWER_SECONDS, command_seconds=_COMMAND_SECONDS,
                         queue_seconds=_QUEUE_SECONDS,
                         # Of a base that a storage node cannot read its exporter tells.
                         trace=errorlog.traced_apart(directory, name)
                         if name.startswith(RBD) else '')


def socket_path(directory: str, name: str) -> str:
    """Return where a connector serves. Pure."""
    return os.path.join(directory, f'{name}.nbd')


class Connector:
    """What a connector has open.

    An export that was ended with clients goes some time later, and keeps its id until then (QEMU
    7.2 and 10): ids and nodes have running numbers.

    :ivar name: its own.
    :ivar socket: the path of its socket.
    :ivar log_path: of what its QEMU says.

    :param directory: of all connectors' files.
    """

    def __init__(self, directory: str, name: str):
        self.name = name
        self.socket = socket_path(directory, name)
        self._daemon = daemon(directory, name)
        self.log_path = self._daemon.log_path

    @property
    def runs(self) -> bool:
        """Whether there is such a process."""
        return self._daemon.runs

    def exports(self) -> set[str]:
        """Return the digests of the names of what it serves.

        :raises StorageDaemonError: if it does not answer.
        """
        return {self._digest(entry) for entry in self._daemon.exports()}

    @staticmethod
    def _digest(entry: str) -> str:
        return entry.partition('-')[0][1:]

    def open(self, export: str, node: Mapping[str, Any]) -> None:
        """Serve a node under a name; nothing happens if it is served.

        :raises StorageDaemonError: if it cannot be opened, or the connector does not answer.
        """
        with self._daemon.session() as session:
            taken = [entry for entry in session.execute('query-block-exports')
                     if self._digest(entry['id']) == digest(export)]
            if not all(entry['shutting-down'] for entry in taken):
                return
            number = max((int(entry['id'].rpartition('-')[2]) for entry in taken), default=-1) + 1
            name = f'c{digest(export)[:24]}-{number}'
            with contextlib.suppress(exception.StorageDaemonError):
                # Left by a crash between a node and its export.
                self._daemon.remove_nodes(name)
            self._daemon.add_nodes({**node, 'node-name': name, 'read-only': True})
            try:
                session.execute('block-export-add', type='nbd', id=f'c{digest(export)}-{number}',
                                node_name=name, name=export)
            except exception.StorageDaemonError:
                self._daemon.remove_nodes(name)
                raise

    def sweep(self, digests: set[str]) -> None:
        """End what nobody is to read, and remove the nodes of what has ended; whoever reads such
        connects again.

        :param digests: of the names of what is read.
        :raises StorageDaemonError: if the connector does not answer.
        """
        with self._daemon.session() as session:
            for entry in self._daemon.exports():
                if self._digest(entry) not in digests:
                    session.execute('block-export-del', id=entry, mode='hard')
            used = {entry['node-name'] for entry in session.execute('query-block-exports')}
            # The common query of nodes reads a little of each that is in Ceph.
            nodes = {entry['name'] for entry in session.execute('x-debug-query-block-graph')[
                'nodes'] if entry['type'] == 'block-driver' and not entry['name'].startswith('#')}
            for name in nodes - used:
                with contextlib.suppress(exception.StorageDaemonError):
                    # A read that waits keeps it.
                    self._daemon.remove_nodes(name)
