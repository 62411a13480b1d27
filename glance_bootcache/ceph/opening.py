"""The clones that exporters read: each is open in a connector, as bases are on compute hosts."""

import contextlib
import dataclasses
import random
import time
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging

from bootcache import conf as bootcache_conf
from bootcache import errorlog, exception, qemuimg
from bootcache.breaker import Breaker
from bootcache.cacheimage import Base
from bootcache.ceph import places
from bootcache.ceph.places import RbdClone, RbdOrigin
from bootcache.ceph.rbd import Rbd
from bootcache.connectors import probe
from bootcache.connectors.connectors import Connectors
from bootcache.connectors.probe import Answer
from bootcache.connectors.starter import Starter
from bootcache.connectors.ways import Way, rbd_origin, rbd_way
from bootcache.locks import OrderedLock
from bootcache.manifest import Manifest
from glance_bootcache.ceph.basenode import base_of
from glance_bootcache.locks import ServiceRank

LOG = logging.getLogger(__name__)

# For which the exporter's reads wait for a connector that is started anew.
_RECONNECT_SECONDS = 60
# After a failure Ceph is not asked for so long where a clone comes from, and no clone is opened.
_PAUSE_SECONDS, _OPEN_PAUSE_SECONDS = 60, 10
# Nor for one of which it has told nothing.
_AGAIN_SECONDS = 600
# For which a round of upkeep asks; those that are left come in the next.
_ROUND_SECONDS = 10
# A read of a clone that has no answer in that time is tried by another connector; of so many at
# most in a round.
_ANSWER_SECONDS = 4
_MOST_READ = 256
# That a connector may take to greet an exporter, which would wait for it with all that it does.
_GREETING_SECONDS = 1
# A clone that is slow is not read by yet another connector sooner: no read would come to its end.
_SETTLED_SECONDS = 60
# For which a clone that gives errors stays closed: longer than exporters wait for it.
_CLOSED_SECONDS = 120
# For which to wait for another thread that has connectors changed.
_BUSY_SECONDS = 30
# How librbd says it.
_SHUT_OUT = b'Cannot send after transport endpoint shutdown'


class OpenClones:
    """Has clones be read by a connector, for all exporters; there is one of these for a run_dir.

    :param conf: configuration of the storage service.
    """

    def __init__(self, conf: cfg.ConfigOpts):
        group = conf[bootcache_conf.GROUP]
        self._conf = conf
        self._ceph = group.rbd_store_ceph_conf, group.rbd_store_user
        self._rbd = Rbd(*self._ceph)
        self._connectors = Connectors(group.run_dir, Starter(group.run_dir).do)
        self._health, self._opening = Breaker(1, _PAUSE_SECONDS), Breaker(1, _OPEN_PAUSE_SECONDS)
        # Makes looking by which connector a clone is read, and changing that, one step; as does
        # starting and ending connectors, of which there are two for all clones.
        self._lock = OrderedLock(ServiceRank.CLONES, 'the lock of clones')
        # Of clones that were open, by name; it never becomes another. Each step is atomic.
        self._origins: dict[str, RbdOrigin] = {}
        # Until when those are not asked for of which nothing was told, in monotonic seconds.
        self._untold: dict[str, float] = {}
        # Until when those stay closed that give errors, in monotonic seconds. Likewise.
        self._closed: dict[str, float] = {}
        # When ``keep`` could not open them, and when it has had them read by another connector
        # though theirs ran, in monotonic seconds. Likewise.
        self._failed_at: dict[str, float] = {}
        self._exchanged_at: dict[str, float] = {}

    def base(self, manifest: Manifest, image_format: str = '') -> Base:
        """Return a manifest's base as the exporter reads it; one that is a clone is open then.

        :param image_format: raw for the bytes of the stored file; the image's own if not given.
        :raises StorageDaemonError: if it cannot be opened, or Ceph does not answer.
        """
        base = base_of(manifest, self._conf, image_format)
        if base.protocol is None:
            return base
        clone = places.clone_of(base.path)
        self._connectors.touch(clone.name)
        before = self._connectors.name_of(clone.name)
        if self._greeting(clone.name) is not Answer.READ:
            self._closed.pop(clone.name, None)
            self._open(clone, before, is_stuck=False)
            self._learn(clone)
        # Else nobody who has a base be served waits for Ceph: ``keep`` asks.
        return dataclasses.replace(base, protocol={
            'driver': 'nbd', 'export': clone.name, 'reconnect-delay': _RECONNECT_SECONDS,
            **qemuimg.open_timeout(),
            'server': {'type': 'unix', 'path': self._connectors.socket(clone.name)}})

    def _greeting(self, name: str) -> Answer:
        """Return how the connector of a clone answers who wants to read that; Ceph is not asked.

        :returns: FAILED if it does not have it open, or there is none.
        """
        if not self._connectors.is_running(name):
            return Answer.FAILED
        return probe.read({name: self._connectors.socket(name)}, _GREETING_SECONDS,
                          only_greets=True)[name]

    def _open(self, clone: RbdClone, before: str, is_stuck: bool) -> None:
        """Have a clone be read by a connector, unless somebody else has done so meanwhile.

        :param before: the name of the one by which it was read.
        :param is_stuck: whether another one is wanted though that greets.
        :raises StorageDaemonError: if it cannot be opened, or Ceph does not answer.
        """
        way = rbd_way(clone, *self._ceph)
        self._check(way)
        with self._alone():
            now, greeting = self._connectors.name_of(clone.name), self._greeting(clone.name)
            if greeting is Answer.READ and not (is_stuck and now == before):
                return
            if self._opening.seconds_left():
                raise self._fault(way, 'Ceph did not answer just now')
            try:
                self._connectors.connect(clone.name, way,
                                         '' if greeting is Answer.FAILED else now)
            except exception.StorageDaemonBusy as error:
                self._opening.failed()
                raise self._fault(way, error) from error

    def _check(self, way: Way) -> None:
        """Check that a clone can be opened, before a connector does that would wait for it: what
        others read by that one would wait as well.

        :raises StorageDaemonError: if it cannot be.
        """
        if not self._opening.may_ask():
            raise self._fault(way, 'Ceph did not answer just now')
        try:
            qemuimg.check_opens(way.node)
        except exception.Interrupted as error:
            self._opening.failed()
            raise self._fault(way, error) from error
        except exception.BootcacheError as error:
            self._opening.answered()
            raise self._fault(way, error) from error
        self._opening.answered()

    @staticmethod
    def _fault(way: Way, why: object) -> exception.StorageDaemonError:
        return exception.StorageDaemonError(f'{way.text} cannot be opened: {why}')

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Have the connectors for this thread.

        :raises StorageDaemonError: if another one has them for longer than this one waits.
        """
        if not self._lock.acquire(_BUSY_SECONDS):
            raise exception.StorageDaemonError(
                'the connectors in Ceph are being changed by another thread, for more than'
                f' {_BUSY_SECONDS} s')
        try:
            yield
        finally:
            self._lock.release()

    def keep(self, served: Iterable[Manifest], may_end: bool = True) -> None:
        """Have those clones be read that an exporter serves, and no others.

        One of which a read has no answer is read by another connector if that has one: Ceph shuts
        out a client for good that it takes for dead. Else it waits for Ceph. One that cannot be
        opened keeps no other one closed: those that could not be come last.

        :param served: the manifests of what the exporters serve.
        :param may_end: whether that is all that they serve.
        :raises StorageDaemonError: if a connector cannot be ended, or a clone cannot be opened; all
            others are.
        """
        clones = {clone.name: clone for clone in (
            places.clone_of(manifest.made.base_path) for manifest in served
            if places.is_clone(manifest.made.base_path))}
        failed: exception.StorageDaemonError | None = None
        self._forget(clones)
        for name, before in self._unread(clones).items():
            try:
                self._open(clones[name], before, is_stuck=True)
                self._failed_at.pop(name, None)
                self._exchanged_at[name] = time.monotonic()
            except exception.StorageDaemonError as error:
                failed, self._failed_at[name] = error, time.monotonic()
        if may_end:
            try:
                with self._alone():
                    self._connectors.keep(clones)
            except exception.StorageDaemonError as error:
                failed = error
        end = time.monotonic() + _ROUND_SECONDS
        for clone in clones.values():
            # Open since before this process, or Ceph did not answer then.
            if time.monotonic() < end:
                self._learn(clone)
        if failed is not None:
            raise failed

    def _unread(self, names: Collection[str]) -> dict[str, str]:
        """Return the clones of which a read has no answer, with the connectors of each; those that
        could not be opened come last."""
        now = time.monotonic()
        before = {name: self._connectors.name_of(name) for name in names
                  if name not in self._closed}
        running = [name for name in before if self._connectors.is_running(name)]
        answers = probe.read({
            name: self._connectors.socket(name)
            for name in random.sample(running, min(len(running), _MOST_READ))}, _ANSWER_SECONDS)
        found = set(before) - set(running)
        for name, answer in answers.items():
            if answer is Answer.FAILED or (answer is Answer.SILENT and now - self._exchanged_at.get(
                    name, -_SETTLED_SECONDS) >= _SETTLED_SECONDS):
                found.add(name)
        return {name: before[name]
                for name in sorted(found, key=lambda name: self._failed_at.get(name, 0.0))}

    def _forget(self, names: Collection[str]) -> None:
        """Forget what is known of all but some clones."""
        now = time.monotonic()
        for name in [name for name, until in list(self._closed.items()) if until <= now]:
            self._closed.pop(name, None)
        for known in self._failed_at, self._exchanged_at:
            for name in set(known) - set(names):
                known.pop(name, None)
        for name in {*self._origins, *self._untold} - set(names):
            if not self._connectors.name_of(name):
                self._origins.pop(name, None)
                self._untold.pop(name, None)

    def mend(self) -> bool:
        """End what makes reads fail: who reads, and reconnects, would ask again without end.

        Ceph shuts out a client for good that it takes for dead, or that an operator puts on the
        blocklist: such a connector is ended, and another client takes its place. A clone that
        cannot be read for another reason is closed; who has waited for it in vain gets the error.

        :returns: True if ``keep`` has to open clones again.
        :raises StorageDaemonError: if a connector cannot be ended.
        """
        shut_out = False
        for name, news in self._connectors.news(rbd_origin(*self._ceph)).items():
            if _SHUT_OUT in news:
                LOG.error('Ceph has shut out connector %s, as a client that is on its blocklist; it'
                          ' is started anew', name)
                with self._alone():
                    self._connectors.end(name)
                shut_out = True
            elif (clone := errorlog.looping(news)) is not None:
                LOG.error('%s cannot be read in Ceph (see connectors/%s.log in run_dir); it is'
                          ' closed', clone, name)
                self._closed[clone] = time.monotonic() + _CLOSED_SECONDS
                with self._alone():
                    self._connectors.park(clone)
        return shut_out

    def stop(self) -> None:
        """End the connectors; what is read of them waits."""
        with self._alone():
            self._connectors.stop()

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
