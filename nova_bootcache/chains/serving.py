"""Whether a host serves new servers, and what becomes of one that did not start."""

import contextlib
import os
from collections.abc import Iterator

from oslo_config import cfg
from oslo_log import log as logging

from bootcache.locks import leaf
from nova_bootcache.gateway.hostneeds import HostNeeds
from nova_bootcache.gateway.socketfault import GatewaySocket
from nova_bootcache.recording.bootwatch import WatchedBoots

LOG = logging.getLogger(__name__)


class Serving:
    """Says why a server goes the stock way, for reasons that are the host's.

    :ivar refusal: why this host serves nothing that is new; empty if it does.
    :ivar socket: whether QEMU can open the gateway's, and cache images.

    :param conf: the driver's options.
    :param needs: told of disks that are not going to be opened.
    :param boots: told of servers that do not boot from here.
    :param directory: of cache images.
    """

    def __init__(self, conf: cfg.ConfigOpts, needs: HostNeeds, boots: WatchedBoots,
                 directory: str):
        self._conf = conf
        self._needs = needs
        self._boots = boots
        self.refusal = ''
        self.socket = GatewaySocket(conf.gateway_socket, directory)
        # Servers that Nova starts just now, and the disks that were made for that. Guarded by the
        # lock, held for dictionary steps.
        self._starting: dict[str, str] = {}
        self._lock = leaf('the lock of servers that start')

    @property
    def is_on(self) -> bool:
        """Whether new servers boot from cache images."""
        return bool(self._conf.enabled) and not self.refusal and not self.socket.reason

    def refuse(self, reason: str) -> None:
        """Serve nothing that is new, as long as this process lives, and change no file.

        Servers that were chained to cache images go on as before.

        :param reason: and the cure.
        """
        self.refusal = reason
        LOG.error('bootcache: all servers of this host go the stock way: %s', reason)

    def reason_for(self, server_id: str) -> str:
        """Return why a server goes the stock way; empty if it need not."""
        return self.refusal or self.socket.reason_for(server_id)

    @contextlib.contextmanager
    def starting(self, server_id: str) -> Iterator[None]:
        """Note what disk is made for a server while Nova starts it: see ``did_not_start``."""
        with self._lock:
            self._starting[server_id] = ''
        try:
            yield
        finally:
            with self._lock:
                self._starting.pop(server_id, None)

    def note_made(self, server_id: str, path: str) -> None:
        """Note that a root disk was made for a server."""
        with self._lock:
            if server_id in self._starting:
                self._starting[server_id] = path

    def did_not_start(self, server_id: str, path: str) -> bool:
        """Tell whether a server that did not start would from a disk that is made the stock way.

        A profile boot would not be recorded then: it fails.

        :param path: of its root disk; one that was made for this start goes, no other one.
        """
        with self._lock:
            made = self._starting.get(server_id) == path
        if not made:
            return False
        # It would take the reads of a server that does not boot from here.
        self._boots.discard(server_id, 'it did not start, and is made the stock way')
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        self._needs.not_made(path)
        return True
