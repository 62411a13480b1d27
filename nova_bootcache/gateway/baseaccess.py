"""What the bases that the gateway serves are read by: Ceph where that goes, else the exporter."""

import contextlib
import time

from oslo_log import log as logging

from bootcache import exception
from bootcache.breaker import GrowingPauses
from nova_bootcache.cache.cachefiles import CacheFiles
from nova_bootcache.gateway.daemon import Gateway
from nova_bootcache.gateway.graph import Present
from nova_bootcache.gateway.hostclones import HostClones
from nova_bootcache.gateway.hostneeds import HostNeeds
from nova_bootcache.storagenode import Remote

LOG = logging.getLogger(__name__)

_SHORTEST_PAUSE, _LONGEST_PAUSE = 30, 600


class BaseAccess:
    """Looks after it, beside the boots and starts that have a base be served.

    :param gateway: the host's.
    :param clones: the host's.
    :param cache: knows where bases are.
    :param needs: who needs them.
    """

    def __init__(self, gateway: Gateway, clones: HostClones, cache: CacheFiles, needs: HostNeeds):
        self._gateway = gateway
        self._clones = clones
        self._cache = cache
        self._needs = needs
        # What was read in Ceph when it was looked at last.
        self._read: list[Remote] = []
        # Of changes that failed, by image.
        self._pauses = GrowingPauses(_SHORTEST_PAUSE, _LONGEST_PAUSE, lambda: time.monotonic())

    def look(self) -> None:
        """Do what there is to do.

        :raises BootcacheError: if the gateway, the daemon or Ceph does not answer.
        :raises OSError: if the daemon's log cannot be read.
        """
        # Before the gateway is asked, which may wait for what waits for Ceph.
        self._clones.watch(self._read)
        entries = {entry.remote.image_id: entry.remote for entry in self._cache.entries()}
        present = {image_id: there for image_id, there in self._gateway.present(entries).items()
                   if there.is_exported}
        self._read = [entries[image_id] for image_id, there in present.items()
                      if self._gateway.reads_in_ceph(there)]
        if not self._clones.is_on and not self._read:
            if self._clones.daemon.runs:
                # Of a time when it was on.
                self._clones.give_up()
            return
        for image_id, there in present.items():
            if not self._pauses.is_time(image_id):
                continue
            if self._is_to_change(entries[image_id], there):
                self._change(entries[image_id])
            else:
                self._pauses.forget(image_id)
        self._clones.daemon.mend()
        self._clones.keep(self._read)
        self._clones.sweep(self._read)

    def copied(self, remote: Remote) -> contextlib.AbstractContextManager[dict[str, object] | None]:
        """Have a base be open in Ceph while it is copied: see ``HostClones.copied``."""
        return self._clones.copied(remote)

    def _is_to_change(self, remote: Remote, there: Present) -> bool:
        may = self._clones.is_on and not self._clones.is_away \
            and not self._clones.daemon.is_closed(remote.export)
        if self._gateway.reads_in_ceph(there):
            return not may or not self._clones.goes_on(remote)
        return may and remote.rbd is not None and not there.is_absent \
            and self._needs.needs_base(remote.image_id)

    def _change(self, remote: Remote) -> None:
        self._pauses.postpone(remote.image_id)
        try:
            self._gateway.ensure_base(remote)
        except exception.BootcacheError as error:
            LOG.warning('image %s: its base goes on to be read as it is: %s', remote.image_id,
                        error)
