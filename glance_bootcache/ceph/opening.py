"""The clones that exporters read: each is open in a connector, as bases are on compute hosts."""

import dataclasses
import time
from collections.abc import Iterable
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging

from bootcache import conf as bootcache_conf
from bootcache import exception, qemuimg
from bootcache.cacheimage import Base
from bootcache.ceph import places
from bootcache.ceph.places import RbdClone, RbdOrigin
from bootcache.ceph.rbd import Rbd
from bootcache.connectors.connectors import Connectors
from bootcache.connectors.starter import Starter
from bootcache.connectors.watch import BaseWatch
from bootcache.connectors.ways import rbd_way
from bootcache.locks import KeyedLocks
from bootcache.manifest import Manifest
from bootcache.util.backoff import Backoff, CircuitBreaker
from glance_bootcache.ceph.basenode import base_of
from glance_bootcache.locks import ServiceRank

LOG = logging.getLogger(__name__)

# For which the exporter's reads wait for a connector that is started anew.
_RECONNECT_SECONDS = 60
# After a failure no clone is opened for somebody who waits, for so long.
_OPEN_PAUSE_SECONDS = 10
# Ceph is not asked again for so long where a clone comes from of which it has told nothing.
_AGAIN_SECONDS = 600
# For which a round of upkeep asks; those that are left come in the next.
_ROUND_SECONDS = 10


class OpenClones:
    """Has clones be read by a connector, for all exporters; there is one of these for a run_dir.

    One of which a read has no answer is read by another connector if that has one: Ceph shuts out a
    client for good that it takes for dead. Else it waits for Ceph.

    :param conf: configuration of the storage service.
    """

    def __init__(self, conf: cfg.ConfigOpts):
        group = conf[bootcache_conf.GROUP]
        self._conf = conf
        self._ceph = group.rbd_store_ceph_conf, group.rbd_store_user
        self._rbd = Rbd(*self._ceph)
        self._connectors = Connectors(group.run_dir, Starter(group.run_dir).do)
        self._opening = CircuitBreaker(1, _OPEN_PAUSE_SECONDS)
        # Of clones that are served, or about to be, by name. Each step is atomic; likewise below.
        self._served: dict[str, RbdClone] = {}
        # Of clones that were open, by name; it never becomes another.
        self._origins: dict[str, RbdOrigin] = {}
        # When Ceph is asked again for those of which it told nothing, by name.
        self._untold = Backoff(_AGAIN_SECONDS, clock=lambda: time.monotonic())
        self._watch = BaseWatch(
            self._connectors, lambda name, _quickly: [rbd_way(self._served[name], *self._ceph)],
            lambda: dict.fromkeys(self._served, 'Ceph'),
            KeyedLocks(ServiceRank.CLONES, 'the lock of clone'), parks=False)

    def start(self) -> None:
        """Watch them from now on."""
        self._watch.start()

    def base(self, manifest: Manifest, image_format: str = '') -> Base:
        """Return a manifest's base as the exporter reads it; one that is a clone is open then.

        :param image_format: raw for the bytes of the stored file; the image's own if not given.
        :raises StorageDaemonError: if it cannot be opened, or Ceph does not answer.
        """
        base = base_of(manifest, self._conf, image_format)
        if base.protocol is None:
            return base
        clone = places.clone_of(base.path)
        self._served[clone.name] = clone
        if not self._opening.may_ask():
            raise exception.StorageDaemonBusy(
                f'{clone.path} cannot be opened: Ceph did not answer just now')
        if is_new := not self._connectors.name_of(clone.name):
            self._watch.forgive(clone.name)
        try:
            with self._opening.hearing(
                    lambda error: isinstance(error, exception.StorageDaemonBusy)):
                self._watch.connect(clone.name)
        except exception.StorageDaemonBusy as error:
            raise exception.StorageDaemonBusy(f'{clone.path} cannot be opened: {error}') from error
        if is_new:
            # Else nobody who has a base be served waits for Ceph: ``keep`` asks.
            self._learn(clone)
        return dataclasses.replace(base, protocol={
            'driver': 'nbd', 'export': clone.name, 'reconnect-delay': _RECONNECT_SECONDS,
            **qemuimg.open_timeout(),
            'server': {'type': 'unix', 'path': self._connectors.socket(clone.name)}})

    def keep(self, served: Iterable[Manifest], may_end: bool = True) -> None:
        """Have those clones be read that an exporter serves, and no others.

        :param served: the manifests of what the exporters serve.
        :param may_end: whether that is all that they serve.
        :raises StorageDaemonError: if a connector cannot be ended.
        """
        clones = {clone.name: clone for clone in (
            places.clone_of(manifest.made.base_path) for manifest in served
            if places.is_clone(manifest.made.base_path))}
        self._served.update(clones)
        for name in {*self._served, *self._origins} - set(clones):
            # Of one that somebody is about to open there is a link.
            if may_end and not self._connectors.name_of(name):
                self._served.pop(name, None)
                self._origins.pop(name, None)
                self._untold.forget(name)
        end = time.monotonic() + _ROUND_SECONDS
        for clone in clones.values():
            # Open since before this process, or Ceph did not answer then.
            if time.monotonic() < end:
                self._learn(clone)
        if may_end:
            self._connectors.keep(clones)

    def check_changes(self) -> None:
        """Check that what is above clones may be changed: see ``BaseWatch``."""
        self._watch.check_changes(_RECONNECT_SECONDS)

    def stop(self) -> None:
        """End the connectors; what is read of them waits."""
        self._watch.stop()
        self._connectors.stop()

    def _learn(self, clone: RbdClone) -> None:
        """Ask Ceph where a clone comes from, if it is not known."""
        if clone.name in self._origins or not self._untold.is_due(clone.name):
            return
        origin = None
        try:
            origin = self._rbd.origin(clone)
        except exception.Interrupted as error:
            LOG.info('hosts are not told yet where in Ceph the parent of %s is: %s', clone.path,
                     error)
            return
        except exception.BootcacheError as error:
            LOG.debug('hosts are not told where in Ceph the parent of %s is: %s', clone.path, error)
        if origin is None:
            self._untold.postpone(clone.name)
        else:
            self._origins[clone.name] = origin

    def told(self, manifest: Manifest) -> dict[str, Any]:
        """Return what hosts are told that may read a base from Ceph themselves.

        :returns: ``rbd``, see PlanBoot; empty if there is nothing, or it is not
            known yet.
        """
        path = manifest.made.base_path
        origin = self._origins.get(places.clone_of(path).name) if places.is_clone(path) else None
        return {} if origin is None else {'rbd': dataclasses.asdict(origin)}
