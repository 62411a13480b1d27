"""Profile boots on this host: each is recorded in a store of its own, whatever the host has."""

import dataclasses
import os

from oslo_log import log as logging

from bootcache import naming, recording
from bootcache.growingstore import Mark, StoreKeeper
from bootcache.locks import leaf
from bootcache.recording import Recording
from nova_bootcache.gateway.daemon import Gateway
from nova_bootcache.storagenode import Remote

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class ProfileRecording:
    """The recording of one profile boot.

    :ivar recording: what it reads, and the export for its overlay.
    :ivar begin: the place in that at which it begins.
    :ivar token: proves that its report is the profile boot's.
    """

    recording: Recording
    begin: Mark
    token: str


class ProfileRecordings:
    """The recordings that are under way, by server.

    :param gateway: where their nodes live.
    :param directory: of their stores.
    """

    def __init__(self, gateway: Gateway, directory: str):
        self._gateway = gateway
        self._directory = directory
        self._keeper: StoreKeeper[Recording] = StoreKeeper()
        # By server id; there from before its export is made until that is gone. Guarded by the
        # lock, held for dictionary steps only.
        self._recordings: dict[str, Recording] = {}
        self._lock = leaf('the lock of recordings')

    def start(self, server_id: str, remote: Remote, virtual_bytes: int,
              token: str) -> ProfileRecording:
        """Begin to record.

        :raises BootcacheError: if the gateway or the storage node refuses.
        :raises RuntimeError: if no thread can be started.
        """
        self._gateway.start()
        self._gateway.connections.hold(server_id, remote)
        base = self._gateway.linked_node(naming.node_name(recording.BASE, server_id),
                                         remote.export)
        found = Recording(self._gateway.daemon, server_id, [base], virtual_bytes,
                          os.path.join(self._directory, f'{server_id}.partial'),
                          lambda: self._gateway.connections.check(remote.export))
        with self._lock:
            self._recordings[server_id] = found
        try:
            begin = found.open()
            self._keeper.add(found)
        except BaseException:
            self.finish(server_id)
            raise
        LOG.info('bootcache: server %s is a profile boot of %s', server_id, remote.image_id)
        return ProfileRecording(found, begin, token)

    def finish(self, server_id: str) -> None:
        """End a server's recording, if there is one; what it read has been reported, or is lost."""
        with self._lock:
            found = self._recordings.get(server_id)
        if found is None:
            return
        self._gateway.connections.let_go(server_id)
        try:
            self._keeper.remove(server_id)
            found.discard()
        finally:
            with self._lock:
                self._recordings.pop(server_id, None)

    def discard_left_over(self) -> None:
        """Take recordings out of the gateway that nobody of this process finishes.

        Also what is left of one that could not be finished, as the gateway was busy. The storage
        service notices that such a one is over, and tries again.

        :raises StorageDaemonError: if the gateway does not answer or refuses.
        """
        # Which are this process's is looked up late: one may begin while the gateway is asked.
        recording.discard_leftovers(self._gateway.daemon, self._recordings)
