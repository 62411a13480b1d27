"""This host's clones in Ceph, by which it reads bases past the storage node.

The clone of a snapshot has one name in this host's namespace: what a crash left of one is found
when it is made again, or by its name when nothing reads it. There is no other record.
"""

import contextlib
import time
from collections.abc import Collection, Iterable, Iterator

from oslo_log import log as logging

from bootcache import exception, steps
from bootcache.breaker import Breaker
from bootcache.ceph import rights
from bootcache.ceph.clonedaemon import CloneDaemon, forget_before
from bootcache.ceph.places import RbdClone, RbdOrigin
from bootcache.ceph.rbd import Rbd, RbdAbsent, RbdRefused
from bootcache.ceph.rights import HarmfulKey, RbdAccess
from bootcache.locks import KeyedLocks
from nova_bootcache.gateway.graph import Place
from nova_bootcache.locks import Rank
from nova_bootcache.news import News
from nova_bootcache.storagenode import Remote

LOG = logging.getLogger(__name__)

# After a failure Ceph is left alone for so long, as each that asks waits.
_PAUSE_SECONDS = 30
# A boot does not wait for longer while another one of its image has a clone be made.
_TURN_SECONDS = 10
# After so long without an answer guests do not wait for Ceph any more, where there is an exporter.
_AWAY_SECONDS = 30
# Before it is killed: what waits for Ceph does not end by itself.
_GRACE_SECONDS = 1
_SWEEP_SECONDS = 300
# One that was asked for so many seconds ago may be about to be opened.
_FRESH_SECONDS = 120


def clockwise(image_ids: Iterable[str], last: str) -> str | None:
    """Return the one that comes after another one, the first after the last; None of none. Pure."""
    ordered = sorted(image_ids)
    return next((image_id for image_id in ordered if image_id > last), ordered[0]) \
        if ordered else None


class HostClones:
    """Makes and opens them, and removes them when nothing reads them.

    :ivar is_on: whether bases are read in Ceph from now on; what is read there goes on until
        somebody changes it.
    :ivar daemon: that has them open.

    :param access: how this host reaches Ceph.
    :param run_dir: of the daemon's files.
    :param reconnect_delay: seconds for which reads wait for a daemon that is started anew.
    :param autostart: whether one is started where none answers.
    """

    def __init__(self, access: RbdAccess, is_on: bool, run_dir: str, reconnect_delay: int,
                 autostart: bool = True):
        self.is_on = is_on
        self.daemon = CloneDaemon(run_dir, access.conf, access.user, autostart)
        self._access = access
        self._reconnect_delay = reconnect_delay
        self._rbd = Rbd(access.conf, access.user)
        self._health = Breaker(1, _PAUSE_SECONDS)
        self._is_harmless = False
        self._news = News(LOG)
        # Make looking for a clone, making and opening it one step.
        self._locks = KeyedLocks(Rank.CLONE, 'the lock of the clone of image')
        # When each was asked for, in monotonic seconds, by its name. Each step is atomic.
        self._asked_at: dict[str, float] = {}
        # Those that somebody copies, by image. Likewise.
        self._copied: dict[str, Remote] = {}
        # The image whose base was tried last.
        self._tried = ''
        # Since when Ceph does not give out what is read, in monotonic seconds.
        self._away_since: float | None = None
        self._swept_at: float | None = None

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
            self._health.failed()
            LOG.warning('bootcache: Ceph does not answer (%s): bases are read through the exporter'
                        ' until it does', error)
        except exception.BootcacheError as error:
            LOG.warning('bootcache: bases are read through the exporter: %s', error)

    # One base.

    def place(self, remote: Remote) -> Place | None:
        """Return by what a base is reached that this host can read in Ceph; it is open then.

        :returns: None if it is to be read through the exporter; why is logged.
        """
        if not self.is_on or self.is_away:
            return None
        image_id = remote.image_id
        there = Place('', 0, remote.export, socket=self.daemon.socket)
        if remote.rbd is None:
            # One that is open is read on: a service that has just started does not know it yet.
            with contextlib.suppress(exception.StorageDaemonError):
                if self.daemon.is_ready(remote.export):
                    return there
            self._news.bad(image_id, 'image %s: its base is read through the exporter: the storage'
                           ' service does not tell where in Ceph it is. It tells of raw images in'
                           ' Glance\'s RBD store, if its rbd_store_pool is set, and it is of this'
                           ' version', image_id)
            return None
        lock = self._locks.of(image_id)
        if not lock.acquire(_TURN_SECONDS):
            return None
        try:
            self._open(remote, remote.rbd)
        except exception.BootcacheError as error:
            cure = f'; client.{self._access.user} needs mon "{rights.MON_CAPS}", osd' \
                f' "{self._access.caps}"' if isinstance(error, RbdRefused) else ''
            self._news.bad(image_id, 'image %s: its base is read through the exporter, and not in'
                           ' Ceph: %s%s', image_id, error, cure)
            return None
        finally:
            lock.release()
        self._news.mended(image_id, 'image %s: its base can be read in Ceph', image_id)
        return there

    @contextlib.contextmanager
    def copied(self, remote: Remote) -> Iterator[dict[str, object] | None]:
        """Have a base be open while it is copied, whether the gateway reads it or not.

        One caller at a time for an image.

        :returns: its block node, which does not reconnect: whoever copies goes on another way. None
            if this host cannot read it in Ceph; why is logged.
        """
        self._copied[remote.image_id] = remote
        try:
            yield self.daemon.node(remote.export, 0) if self.place(remote) is not None else None
        finally:
            del self._copied[remote.image_id]

    def node(self, export: str) -> dict[str, object]:
        """Return the block node of a base that is open, without its name."""
        return self.daemon.node(export, self._reconnect_delay)

    def _open(self, remote: Remote, origin: RbdOrigin) -> None:
        clone = self.clone(remote, origin)
        self._asked_at[clone.name] = time.monotonic()
        if self.daemon.is_ready(remote.export):
            return
        if self.daemon.is_closed(remote.export):
            raise exception.BootcacheError('it could not be read there just now')
        if not self._health.may_ask():
            raise exception.BootcacheError('Ceph did not answer just now')
        try:
            self._make(clone, origin)
        except exception.Interrupted:
            self._health.failed()
            raise
        except exception.BootcacheError:
            self._health.answered()
            raise
        self._health.answered()
        self.daemon.open(remote.export, clone)

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
            parent, snapshot_id = self._rbd.parent(clone)
        except RbdAbsent:
            self._rbd.clone(origin.parent, clone)
            LOG.info('%s is made, a clone of %s', clone.path, origin.parent)
            steps.reached('clone: made')
            parent, snapshot_id = self._rbd.parent(clone)
        image = str(parent.get('id', ''))
        if (image, snapshot_id) != (origin.id, origin.snapshot_id):
            # Half made, or of another image of that name, or a snapshot that was made anew.
            self._rbd.remove(clone)
            raise exception.BootcacheError(
                f'{origin.parent} is image {image or "?"} of RBD, snapshot {snapshot_id or "?"},'
                f' and the storage service has verified {origin.id},'
                f' {origin.snapshot_id}')

    # All that are read.

    @property
    def is_away(self) -> bool:
        """Whether Ceph has not given out what is read for so long that guests are not to wait."""
        since = self._away_since
        return since is not None and time.monotonic() - since >= _AWAY_SECONDS

    def answers(self, remote: Remote) -> bool:
        """Tell whether Ceph gives out the clone of a base now, and the daemon does not hang."""
        if remote.rbd is None:
            return False
        try:
            self.daemon.check(self.clone(remote, remote.rbd))
        except exception.StorageDaemonError as error:
            LOG.debug('image %s: %s', remote.image_id, error)
            return False
        return not self.daemon.hangs(remote.export)

    def waits(self, remote: Remote) -> bool:
        """Tell whether reads of a base that is open may wait for Ceph, or the daemon, for long."""
        return self.is_away or (self.daemon.hangs(remote.export) if remote.rbd is None
                                else not self.answers(remote))

    def goes_on(self, remote: Remote) -> bool:
        """Tell whether a base can be read on, also if it is not known where in Ceph it is."""
        try:
            return remote.rbd is not None or self.daemon.is_open(remote.export)
        except exception.StorageDaemonError as error:
            LOG.debug('image %s: %s', remote.image_id, error)
            return False

    def is_read(self, remote: Remote) -> bool:
        """Tell whether a base is open, and Ceph gives it out.

        :raises StorageDaemonError: if the daemon does not answer.
        """
        return self.daemon.is_open(remote.export) and self.answers(remote)

    def watch(self, read: Collection[Remote]) -> None:
        """See whether Ceph gives out what is read; where it is away for long the daemon is ended.

        Reads that wait for Ceph then fail, and do not keep the gateway from having a base be read
        another way.

        One is tried, as each may wait: that which Ceph did not give out the last time, else the
        next in turn.

        :param read: bases that are read in Ceph; those that are copied are tried as well.
        """
        known = {remote.image_id: remote for remote in (*list(self._copied.values()), *read)
                 if remote.rbd is not None}
        image_id = clockwise(known, self._tried) if self._away_since is None \
            or self._tried not in known else self._tried
        if image_id is not None:
            self._tried = image_id
        if image_id is None or self.answers(known[image_id]):
            self._away_since = None
            self._news.mended('', 'Ceph gives out bases again')
            return
        if self._away_since is None:
            self._away_since = time.monotonic()
        self._news.bad('', 'Ceph does not give out bases that servers of this host read; after'
                       ' %d s they are read through the exporter ("ceph status" tells of the'
                       ' cluster), or the daemon hangs that has them open', _AWAY_SECONDS)
        if self.is_away:
            self.leave()

    def leave(self) -> None:
        """End the daemon, whatever waits in it."""
        self.daemon.stop(_GRACE_SECONDS)

    def keep(self, read: Iterable[Remote]) -> None:
        """Have those open that are read, and no others.

        :param read: bases that are read in Ceph.
        :raises StorageDaemonError: if the daemon does not answer, or one cannot be opened.
        """
        wanted, kept = {}, []
        for remote in read:
            if remote.rbd is None:
                kept.append(remote.export)
            else:
                wanted[remote.export] = self.clone(remote, remote.rbd)
        if self._away_since is not None:
            return
        kept += [remote.export for remote in list(self._copied.values())]
        there = self.daemon.exports()
        for export in set(wanted) - there:
            try:
                self.daemon.keep_open({export: wanted[export]}, there)
            except exception.StorageDaemonError as error:
                # Not all of Ceph is away: this one is, as where somebody has removed the clone.
                LOG.warning('%s cannot be opened again, and its base is read through the exporter:'
                            ' %s', wanted[export].path, error)
                self.daemon.cut_off(export)
        self.daemon.keep_open({}, [*wanted, *kept])

    def sweep(self, read: Iterable[Remote], at_once: bool = False) -> None:
        """Remove clones that nothing reads, some minutes after the last time.

        One that is open stays until the next time; so does one that was asked for just now.

        :param read: bases that are read in Ceph.
        :param at_once: whenever the last time was.
        :raises BootcacheError: if Ceph does not answer, or says no.
        """
        now = time.monotonic()
        if self._swept_at is not None and now - self._swept_at < _SWEEP_SECONDS and not at_once:
            return
        self._swept_at = now
        needed = {self.clone(remote, remote.rbd).name for remote in read if remote.rbd is not None}
        needed |= {self.clone(remote, remote.rbd).name for remote in list(self._copied.values())
                   if remote.rbd is not None}
        forget_before(self._asked_at, now - _FRESH_SECONDS)
        needed |= {name for name, asked in list(self._asked_at.items())
                   if now - asked < _FRESH_SECONDS}
        for clone in self._rbd.clones(self._access.clone_pool, self._access.namespace):
            if clone.image_id is not None and clone.name not in needed \
                    and self._rbd.remove(clone):
                self._asked_at.pop(clone.name, None)
                LOG.info('image %s: %s, which nothing reads, is removed from Ceph', clone.image_id,
                         clone.path)

    def give_up(self) -> None:
        """End the daemon, and remove all clones, once nothing is read in Ceph any more.

        :raises BootcacheError: if the daemon or Ceph does not answer, or says no.
        """
        self.daemon.keep_open({})
        if not self.daemon.exports():
            self.sweep((), at_once=True)
            self.daemon.stop()
