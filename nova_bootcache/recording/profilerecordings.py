"""Profile boots on this host: each is recorded in a store of its own, whatever the host has."""

import os
from collections.abc import Callable

from oslo_log import log as logging

from bootcache import naming, recorder, rpcapi, workingset
from bootcache.locks import leaf
from bootcache.recorder import Recording
from nova_bootcache.gateway.daemon import Gateway
from nova_bootcache.storagenode import Remote

LOG = logging.getLogger(__name__)


class ProfileRecordings:
    """The recordings that are under way, by server.

    :param gateway: where their nodes live.
    :param directory: of their stores.
    :param api: gives the storage service's client.
    """

    def __init__(self, gateway: Gateway, directory: str, api: Callable[[], rpcapi.StorageAPI]):
        self._gateway = gateway
        self._directory = directory
        self._api = api
        # By server id, with image and token. Guarded by the lock, held for dictionary steps only.
        self._recordings: dict[str, tuple[Recording, str, str]] = {}
        # Servers whose recordings are this process's until they are closed: from before their
        # exports are made until these are gone. Changed under the lock.
        self._under_way: set[str] = set()
        self._lock = leaf('the lock of recordings')

    def start(self, server_id: str, remote: Remote, virtual_bytes: int, token: str) -> str:
        """Begin to record, and return the export for the server's overlay.

        :raises BootcacheError: if the gateway or the storage node refuses.
        """
        self._gateway.start()
        store = os.path.join(self._directory, f'{server_id}.partial')
        base = self._gateway.remote_node(naming.node_name(recorder.BASE, server_id), remote)
        recording = Recording(self._gateway.daemon, server_id, [base], virtual_bytes, store)
        api = self._api()

        def tell(recorded_bytes: int, idle_seconds: float) -> None:
            api.recording_progress(remote.image_id, token, recorded_bytes, idle_seconds)

        with self._lock:
            self._recordings[server_id] = recording, remote.image_id, token
            self._under_way.add(server_id)
        recording.open(tell)
        LOG.info('bootcache: server %s is a profile boot of %s', server_id, remote.image_id)
        return recording.export

    def finish(self, server_id: str) -> None:
        """Report what a profile boot read, if this server was one; its domain is gone already.

        A failure is logged; the storage service waits for the report and gives up in the end.
        """
        with self._lock:
            found = self._recordings.pop(server_id, None)
        if found is None:
            return
        recording, image_id, token = found
        try:
            extents = recording.finish()
            self._api().report_working_set(image_id, token, recorder.GRANULARITY,
                                           workingset.to_wire(extents))
            LOG.info('bootcache: image %s: reported %d extents', image_id, len(extents))
        except Exception:
            LOG.exception('bootcache: image %s: the profile boot\'s record is lost', image_id)
        finally:
            self._closed(server_id)

    def discard(self, server_id: str) -> None:
        """Give a recording up, if there is one."""
        with self._lock:
            found = self._recordings.pop(server_id, None)
        if found is not None:
            try:
                found[0].discard()
            finally:
                self._closed(server_id)

    def _closed(self, server_id: str) -> None:
        with self._lock:
            self._under_way.discard(server_id)

    def discard_left_over(self) -> None:
        """Take recordings out of the gateway that nobody of this process finishes.

        The storage service notices that such a one is over, and tries again.

        :raises StorageDaemonError: if the gateway does not answer or refuses.
        """
        # Which are this process's is looked up late: one may begin while the gateway is asked.
        recorder.discard_leftovers(self._gateway.daemon, self._under_way)
