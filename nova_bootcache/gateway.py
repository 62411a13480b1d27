"""The gateway: one stock qemu-storage-daemon a host, through which servers reach what is remote.

libvirt drops NBD's reconnect settings, so no server's own QEMU speaks to a storage node: each
reaches its base by an export of the gateway on a unix socket.
"""

import dataclasses
import re
import socket
import threading
from typing import Any

from oslo_log import log as logging

from bootcache import exception, naming
from bootcache.breaker import Breaker
from bootcache.storagedaemon import StorageDaemon, UnixListener
from nova_bootcache import arrival, growingstore

LOG = logging.getLogger(__name__)

_REACH_SECONDS = 3
# A boot waits for the gateway for so long. After that nobody asks it for so many seconds: boots
# go the stock way at once.
_ANSWER_SECONDS = 5
_SILENCE_SECONDS = 10


@dataclasses.dataclass(frozen=True)
class Remote:
    """A base on a storage node.

    :ivar image_id: the image.
    :ivar host: of the exporter.
    :ivar port: of the exporter.
    :ivar export: the exporter's name for the base.
    :ivar image_hash: of its content, ``algorithm:hexadecimal`` of the image file as Glance has it;
        empty if it is not known.
    """

    image_id: str
    host: str
    port: int
    export: str
    image_hash: str = ''

    @classmethod
    def from_answer(cls, image_id: str, answer: dict[str, Any]) -> 'Remote':
        """Read it out of ``plan_boot``'s answer."""
        host, port = answer['server']
        return cls(image_id, str(host), int(port), str(answer['base_export']),
                   str(answer.get('image_hash', '')))


def check_reachable(remote: Remote) -> None:
    """Try to connect: while the daemon itself tries, or waits in vain, it takes no new connections.

    :raises StorageNodeAway: if the exporter does not answer at once.
    """
    try:
        with socket.create_connection((remote.host, remote.port),
                                      timeout=_REACH_SECONDS) as connection:
            # The server speaks first; one that is frozen takes connections all the same.
            connection.settimeout(_REACH_SECONDS)
            if connection.recv(8) != b'NBDMAGIC':
                raise OSError('it does not speak NBD')
    except OSError as error:
        raise exception.StorageNodeAway(
            f'gateway: the exporter at {remote.host}:{remote.port} cannot be reached: {error}'
        ) from error


class Gateway:
    """The gateway of this host.

    :param run_dir: of its monitor socket.
    :param socket_path: where servers connect.
    :param reconnect_delay: seconds for which reads wait while the storage node is away.
    :param autostart: whether one is started where none answers.
    :param group: that may connect to one that is started.
    """

    def __init__(self, run_dir: str, socket_path: str, reconnect_delay: int,
                 autostart: bool = True, group: str | None = None):
        self.socket_path = socket_path
        self.daemon = StorageDaemon('gateway', run_dir, UnixListener(socket_path),
                                    autostart=autostart, group=group, patience=_ANSWER_SECONDS,
                                    # Changing a chain waits for reads that wait.
                                    command_seconds=_ANSWER_SECONDS + reconnect_delay,
                                    breaker=Breaker(1, _SILENCE_SECONDS))
        self._reconnect_delay = reconnect_delay
        # Guards looking, adding and removing as one step; held for milliseconds.
        self._lock = threading.Lock()

    def start(self) -> bool:
        """Adopt the gateway that runs, or start one.

        :returns: True if it was started, and so serves nothing yet.
        :raises StorageDaemonError: if it does not come up.
        """
        return self.daemon.ensure_running()

    def remote_node(self, name: str, remote: Remote) -> dict[str, Any]:
        """Return the block node of a base on a storage node.

        :param name: of the node.
        """
        return {'driver': 'nbd', 'node-name': name,
                'read-only': True, 'export': remote.export,
                'reconnect-delay': self._reconnect_delay,
                # A storage node that is frozen, not dead, is found out by the kernel.
                'server': {'type': 'inet', 'host': remote.host, 'port': str(remote.port),
                           'keep-alive': True}}

    def ensure_base(self, remote: Remote) -> str:
        """Serve a base to this host's servers.

        :returns: the export's name.
        :raises StorageDaemonError: if the storage node cannot be reached, or the daemon refuses.
        """
        export = naming.export_name(naming.EXPORT_BASE, remote.image_id)
        self.daemon.ensure_running()
        if export in self.daemon.exports() and self._is_of(remote):
            return export
        # Not under the lock: bases of other storage nodes do not wait for this one.
        check_reachable(remote)
        with self._lock:
            if export in self.daemon.exports():
                if self._is_of(remote):
                    return export
                if not self.daemon.remove_export(export, disconnect=False):
                    raise exception.StorageDaemonError(
                        f'gateway: servers that run read another content of {remote.image_id} than'
                        f' {remote.export}')
            self._remove_nodes(remote.image_id)
            growingstore.ensure_unlimited(self.daemon)
            top = growingstore.top_node(remote.image_id, growingstore.REMOTE)
            self.daemon.add_nodes(self.remote_node(str(top['file']), remote), top)
            self.daemon.add_export(export, str(top['node-name']))
        return export

    def _is_of(self, remote: Remote) -> bool:
        """Tell whether the base that is served is of a remote's content: its export is of one."""
        name = naming.node_name(growingstore.REMOTE, remote.image_id)
        with self.daemon.session() as session:
            files = {node['node-name']: str(node['file'])
                     for node in session.execute('query-named-block-nodes', flat=True)}
        return re.search(f'{re.escape(remote.export)}(?![-\\w])', files.get(name, '')) is not None

    def serves(self, image_id: str) -> bool:
        """Tell whether a base is served to this host's servers."""
        return self.daemon.answers() and naming.export_name(
            naming.EXPORT_BASE, image_id) in self.daemon.exports()

    def served(self) -> set[str]:
        """Return the images whose bases are served to this host's servers.

        :raises StorageDaemonError: if the daemon does not answer.
        """
        kind = naming.export_name(naming.EXPORT_BASE, '')
        return {export.removeprefix(kind) for export in self.daemon.exports()
                if export.startswith(kind)}

    def remove_base(self, image_id: str) -> bool:
        """Stop serving a base.

        :returns: False if a server is connected to it, or its cache image is on its way.
        :raises StorageDaemonError: if the daemon refuses.
        """
        export = naming.export_name(naming.EXPORT_BASE, image_id)
        with self._lock:
            if self.daemon.pid() is None and not self.daemon.answers():
                return True
            served = self.daemon.exports()
            if arrival.is_under_way(self.daemon, image_id):
                return False
            if export in served and not self.daemon.remove_export(export, disconnect=False):
                return False
            self._remove_nodes(image_id)
        return True

    def _remove_nodes(self, image_id: str) -> None:
        growingstore.discard(self.daemon, image_id)
        arrival.discard(self.daemon, image_id)
        present = self.daemon.nodes()
        names = [naming.node_name(kind, image_id)
                 for kind in (growingstore.TOP, growingstore.LANDED, growingstore.REMOTE)]
        self.daemon.remove_nodes(*(name for name in names if name in present))
