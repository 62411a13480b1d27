"""This host's clones in Ceph, by which it reads bases past the storage node.

The clone of a snapshot has one name in this host's namespace, and has it once it is whole: whoever
looks for a way in haste opens it by that, and does not ask Ceph. What a crash left of one is found
by its name when nothing reads it. There is no other record.
"""

import contextlib
import time
from collections.abc import Iterable

from oslo_log import log as logging

from bootcache import exception, steps
from bootcache.ceph import rights
from bootcache.ceph.places import RbdClone, RbdOrigin
from bootcache.ceph.rbd import RbdAbsent, RbdRefused
from bootcache.ceph.rights import HarmfulKey, RbdAccess
from bootcache.connectors.ways import Way, rbd_origin, rbd_way
from bootcache.util.backoff import Backoff
from bootcache.util.logthrottle import LogThrottle
from nova_bootcache.storagenode import Remote

LOG = logging.getLogger(__name__)

_SWEEP_SECONDS = 300
# One that was asked for so many seconds ago may be about to be opened.
_FRESH_SECONDS = 120


class HostClones:
    """Makes them, and removes them when nothing reads them.

    :ivar is_on: whether bases are read in Ceph from now on; what is read there goes on until
        somebody changes it.

    :param access: how this host reaches Ceph.
    """

    def __init__(self, access: RbdAccess, is_on: bool):
        self.is_on = is_on
        self._access = access
        self._rbd = access.commands
        self._is_harmless = False
        self._throttle = LogThrottle(LOG)
        # When each was asked for, in monotonic seconds, by its name. Each step is atomic.
        self._asked_at: dict[str, float] = {}
        self._sweeps = Backoff(_SWEEP_SECONDS, clock=lambda: time.monotonic())

    def check(self) -> None:
        """Check, before anything is read, that this host's key is such that it may be used.

        What else keeps bases from being read in Ceph is told of, with the cure, and the key is
        looked at again before its first use.

        :raises HarmfulKey: naming the option and the cure.
        """
        if not self.is_on:
            return
        try:
            rights.check(self._access, is_alone=True)
            self._is_harmless = True
        except HarmfulKey:
            raise
        except exception.Interrupted as error:
            LOG.warning('bootcache: Ceph does not answer (%s): bases are read through the exporter'
                        ' until it does', error)
        except exception.BootcacheError as error:
            LOG.warning('bootcache: bases are read through the exporter: %s', error)

    @property
    def origin(self) -> str:
        """The origin of all ways to this host's clones."""
        return rbd_origin(self._access.conf, self._access.user)

    # One base.

    def way(self, remote: Remote, makes: bool = True) -> Way | None:
        """Return the way to a base that this host can read in Ceph; its clone is there then.

        :param makes: whether to see to that; Ceph is not asked else.
        :returns: None if it is to be read through the exporter; why is logged.
        """
        if not self.is_on:
            return None
        image_id = remote.image_id
        if remote.rbd is None:
            self._throttle.warning(
                image_id, 'image %s: its base is read through the exporter: the storage service'
                ' does not tell where in Ceph it is. It tells of raw images in Glance\'s RBD store,'
                ' if its rbd_store_pool is set, and it is of this version', image_id)
            return None
        clone = self.clone(remote, remote.rbd)
        self._asked_at[clone.name] = time.monotonic()
        try:
            if makes:
                self._make(clone, remote.rbd)
        except exception.BootcacheError as error:
            cure = f'; client.{self._access.user} needs mon "{rights.MON_CAPS}", osd' \
                f' "{self._access.caps}"' if isinstance(error, RbdRefused) else ''
            self._throttle.warning(
                image_id, 'image %s: its base is read through the exporter, and not in Ceph: %s%s',
                image_id, error, cure)
            return None
        self._throttle.recovered(image_id, 'image %s: its base can be read in Ceph', image_id)
        return rbd_way(clone, self._access.conf, self._access.user)

    def clone(self, remote: Remote, origin: RbdOrigin) -> RbdClone:
        """Return the clone of a base, which there need not be."""
        return origin.clone(remote.image_id, self._access.clone_pool, self._access.namespace)

    def _make(self, clone: RbdClone, origin: RbdOrigin) -> None:
        if not self._is_harmless:
            rights.check_key(self._access, is_alone=True)
            self._is_harmless = True
        if origin.pool != self._access.pool:
            raise exception.BootcacheError(
                f'it is in pool {origin.pool}, and [bootcache]base_rbd_pool is {self._access.pool}')
        if (fsid := self._rbd.fsid()) != origin.fsid:
            raise exception.BootcacheError(
                f'it is in cluster {origin.fsid}, and [bootcache]base_rbd_ceph_conf='
                f'{self._access.conf} is of {fsid}; name the configuration file of that cluster')
        try:
            self._check_parent(clone, origin)
        except RbdAbsent:
            made = clone.beside()
            self._rbd.clone(origin.parent, made)
            steps.reached('clone: made')
            try:
                self._check_parent(made, origin)
                self._rbd.rename(made, clone)
            except exception.BootcacheError:
                # Each try makes another; what Ceph keeps now goes when nothing reads the base.
                with contextlib.suppress(exception.BootcacheError):
                    self._rbd.remove(made)
                raise
            LOG.info('%s is made, a clone of %s', clone.path, origin.parent)

    def _check_parent(self, clone: RbdClone, origin: RbdOrigin) -> None:
        parent, snapshot_id = self._rbd.parent(clone)
        image = str(parent.get('id', ''))
        if (image, snapshot_id) != (origin.id, origin.snapshot_id):
            # Of another image of that name, or a snapshot that was made anew.
            self._rbd.remove(clone)
            raise exception.BootcacheError(
                f'{origin.parent} is image {image or "?"} of RBD, snapshot {snapshot_id or "?"},'
                f' and the storage service has verified {origin.id},'
                f' {origin.snapshot_id}')

    # All that are read.

    def sweep(self, read: Iterable[Remote]) -> None:
        """Remove clones that nothing reads, some minutes after the last time.

        One that is open stays until the next time; so does one that was asked for just now.

        :param read: bases that are read in Ceph.
        :raises BootcacheError: if Ceph does not answer, or says no.
        """
        if not self._sweeps.acquire():
            return
        now = time.monotonic()
        needed = {self.clone(remote, remote.rbd).name for remote in read if remote.rbd is not None}
        for name, asked in list(self._asked_at.items()):
            if now - asked < _FRESH_SECONDS:
                needed.add(name)
            else:
                self._asked_at.pop(name, None)
        for clone in self._rbd.clones(self._access.clone_pool, self._access.namespace):
            if clone.image_id is not None and clone.name.partition('.')[0] not in needed \
                    and self._rbd.remove(clone):
                self._asked_at.pop(clone.name, None)
                LOG.info('image %s: %s, which nothing reads, is removed from Ceph', clone.image_id,
                         clone.path)
