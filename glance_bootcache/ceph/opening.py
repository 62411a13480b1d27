"""The clones that exporters read, open in a daemon of their own: bootcache/ceph/clonedaemon.py."""

import dataclasses
import time
from collections.abc import Iterable
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging

from bootcache import conf as bootcache_conf
from bootcache import exception
from bootcache.breaker import Breaker
from bootcache.cacheimage import Base
from bootcache.ceph import places
from bootcache.ceph.clonedaemon import CloneDaemon
from bootcache.ceph.places import RbdClone, RbdOrigin
from bootcache.ceph.rbd import Rbd
from bootcache.manifest import Manifest
from glance_bootcache.ceph.basenode import base_of

LOG = logging.getLogger(__name__)

# For which the exporter's reads wait for a daemon that is started anew.
_RECONNECT_SECONDS = 60
# After a failure Ceph is not asked for so long where a clone comes from.
_PAUSE_SECONDS = 60
# Nor for one of which it has told nothing.
_AGAIN_SECONDS = 600
# For which a round of upkeep asks; those that are left come in the next.
_ROUND_SECONDS = 10


class OpenClones(CloneDaemon):
    """Opens clones for all exporters; there is one of these, as for any such daemon.

    :param conf: configuration of the storage service.
    """

    def __init__(self, conf: cfg.ConfigOpts):
        group = conf[bootcache_conf.GROUP]
        super().__init__(group.run_dir, group.rbd_store_ceph_conf, group.rbd_store_user)
        self._conf = conf
        self._rbd = Rbd(group.rbd_store_ceph_conf, group.rbd_store_user)
        self._health = Breaker(1, _PAUSE_SECONDS)
        # Of clones that were open, by name; it never becomes another. Each step is atomic.
        self._origins: dict[str, RbdOrigin] = {}
        # Until when those are not asked for of which nothing was told, in monotonic seconds.
        self._untold: dict[str, float] = {}

    def base(self, manifest: Manifest, image_format: str = '') -> Base:
        """Return a manifest's base as the exporter reads it; one that is a clone is open then.

        :param image_format: raw for the bytes of the stored file; the image's own if not given.
        :raises StorageDaemonError: if it cannot be opened, or Ceph does not answer.
        """
        base = base_of(manifest, self._conf, image_format)
        if base.protocol is None:
            return base
        clone = places.clone_of(base.path)
        if self.open(clone.name, clone):
            self._learn(clone)
        # Else nobody who has a base be served waits for Ceph: ``keep`` asks.
        return dataclasses.replace(base, protocol=self.node(clone.name, _RECONNECT_SECONDS))

    def keep(self, served: Iterable[Manifest]) -> None:
        """Have those clones open that an exporter reads, and no others: see ``keep_open``.

        :param served: the manifests of what the exporters serve.
        :raises StorageDaemonError: if the daemon does not answer, or one cannot be opened.
        """
        clones = [places.clone_of(manifest.made.base_path) for manifest in served
                  if places.is_clone(manifest.made.base_path)]
        try:
            self.keep_open({clone.name: clone for clone in clones})
        finally:
            end = time.monotonic() + _ROUND_SECONDS
            for clone in clones:
                # Open since before this process, or Ceph did not answer then.
                if time.monotonic() < end:
                    self._learn(clone)
            names = {clone.name for clone in clones}
            for name in [*self._origins, *self._untold]:
                if name not in names and not self.is_fresh(name):
                    self._origins.pop(name, None)
                    self._untold.pop(name, None)

    def _learn(self, clone: RbdClone) -> None:
        """Ask Ceph where a clone comes from, if it is not known."""
        if clone.name in self._origins or self._untold.get(clone.name, 0.0) > time.monotonic() \
                or not self._health.may_ask():
            return
        origin = None
        try:
            origin = self._rbd.origin(clone)
        except exception.Interrupted as error:
            self._health.failed()
            LOG.info('hosts are not told yet where in Ceph the parent of %s is: %s', clone.path,
                     error)
            return
        except exception.BootcacheError as error:
            LOG.debug('hosts are not told where in Ceph the parent of %s is: %s', clone.path, error)
        self._health.answered()
        if origin is None:
            self._untold[clone.name] = time.monotonic() + _AGAIN_SECONDS
        else:
            self._origins[clone.name] = origin

    def told(self, manifest: Manifest) -> dict[str, Any]:
        """Return what hosts are told that may read a base from Ceph themselves.

        :returns: ``rbd``, see ``plan_boot`` in rpcapi.py; empty if there is nothing, or it is not
            known yet.
        """
        path = manifest.made.base_path
        origin = self._origins.get(places.clone_of(path).name) if places.is_clone(path) else None
        return {} if origin is None else {'rbd': dataclasses.asdict(origin)}
