"""The growing store that a host's servers share: what they read of a base, kept in the gateway.

SC13 section 3.2 and figure 5: a cache that fills while the first server boots, and stops to grow at
its quota. It lies between the gateway's export and the storage node, so that all servers of the
host share it; its map, in the order of the file, is what they read for the first time.

The quota is kept by dropping the copy-on-read filter (blockdev-reopen: a millisecond, readers do
not notice). As a medium that runs full is a read error in the guest, what may be written before the
next look is the store's already (fallocate), whoever fills the medium meanwhile; and writes are
slowed down the nearer the end of that is, so that whoever watches has the time to drop the filter.
"""

import contextlib
import os

from oslo_log import log as logging

from bootcache import exception, naming, steps, tier
from bootcache.growingstore import GrowingStore, Mark
from bootcache.locks import OrderedLock
from bootcache.workingset import Extent
from nova_bootcache.gateway import diskroom, graph
from nova_bootcache.gateway.daemon import Gateway
from nova_bootcache.gateway.graph import FILTER, REMOTE, STORE, Store
from nova_bootcache.gateway.growth import ahead, horizon, reserve, spare, write_rate
from nova_bootcache.locks import Rank

LOG = logging.getLogger(__name__)

# What cache images have by default: the record is rounded to it anyway when one is built.
GRANULARITY = 65536
# A store smaller than that holds nothing worth it beside its tables.
MIN_LIMIT = 1 << 20


class SharedStore:
    """One image's growing store in the gateway, within a limit.

    :ivar name: the image's id.
    :ivar path: of the store's file; made new, removed at the end.
    :ivar limit: bytes that the file may have.
    :ivar grows: whether what is read through it is still kept.
    :ivar gave_back: whether it gave back the space that it does not need: what stays beyond its
        end is the file system's, which may give out megabytes at a time.
    :ivar spoilt: what is read through it is not boots' alone, or not kept, or what a boot read was
        not told: it tells nothing of boots any more, and gives way to another one.

    :param gateway: where its nodes live.
    :param virtual_bytes: size of its base.
    """

    def __init__(self, gateway: Gateway, image_id: str, virtual_bytes: int, path: str, limit: int):
        self.name = image_id
        self.path = path
        self.limit = limit
        self.grows = self.gave_back = self.spoilt = False
        self._gateway = gateway
        self._store = GrowingStore(gateway.daemon, image_id, naming.node_name(REMOTE, image_id),
                                   virtual_bytes, path, GRANULARITY)
        self._rate = 0
        # Sizes of the file: up to which the medium's space is its own, and at the last look.
        self._held = self._looked_at = 0
        self._is_in_memory = False
        # Guards the store's nodes.
        self._lock = OrderedLock(Rank.STORE, f'the lock of the growing store of {image_id}')

    def open(self) -> None:
        """Put the store between the gateway's export of the base and the storage node.

        :raises BootcacheError: if qemu-img or the gateway refuses; the base is then read directly.
        """
        self._looked_at = size = self._store.create()
        self._is_in_memory = tier.is_memory(os.path.dirname(self.path))
        if size + reserve(self.limit) >= self.limit:
            os.unlink(self.path)
            raise exception.StorageDaemonError(
                f'a growing store of {self.limit} bytes has no room beside its own tables')
        if not (end := self._take_room(size)):
            os.unlink(self.path)
            raise exception.StorageDaemonError(
                f'the file system of {self.path} has no room for a growing store')
        try:
            steps.reached('grow: made')
            self._rate = write_rate(end, size)
            with self._gateway.daemon.session() as session:
                self._store.open(self._rate)
                session.execute('blockdev-reopen', options=[graph.top_node(self.name, FILTER)])
        except exception.BootcacheError:
            with contextlib.suppress(exception.BootcacheError):
                self.close()
            raise
        steps.reached('grow: opened')
        self.grows = True

    def is_there(self) -> bool:
        """Tell whether the gateway still has it; one that was restarted has not.

        :raises StorageDaemonError: if the gateway does not answer.
        """
        return self._store.node(STORE) in self._gateway.daemon.nodes()

    def size(self) -> int:
        """Return the size of the store's file in bytes, 0 if it is gone."""
        return self._store.size()

    def look(self, now: float) -> bool:
        """Note the store's size, and keep its limit.

        :param now: monotonic seconds.
        :returns: whether it still grows.
        :raises StorageDaemonError: if the gateway does not answer.
        """
        size = self._store.look(now)
        if not self._lock.acquire(0):
            # Somebody changes it, which takes seconds where storage hangs: others are looked at.
            return self.grows
        try:
            if self.grows:
                self._keep_limit(size)
            return self.grows
        finally:
            self._lock.release()

    def _take_room(self, size: int) -> int:
        """Take the medium's space for what may come until the next look.

        :returns: how large the file may become until then, 0 if it has to stop to grow.
        """
        try:
            free = diskroom.free(self.path)
            grown, self._looked_at = size - self._looked_at, size
            end = horizon(self.limit, size, self._held, free, ahead(grown, self._is_in_memory))
            if end > self._held and diskroom.hold(self.path, end):
                self._held = end
        except OSError as error:
            # Somebody was faster, or has a quota of his own there.
            LOG.info('image %s: no more room for its growing store: %s', self.name, error)
            return 0
        return end if free >= spare(self.limit) and end > size + reserve(self.limit) else 0

    def _keep_limit(self, size: int) -> None:
        end = self._take_room(size)
        if not end:
            if size + reserve(self.limit) < self.limit:
                LOG.warning('image %s: its growing store stops to grow, as the file system of %s'
                            ' is full', self.name, self.path)
                # It does not tell what boots read from now on; another one may have room later.
                self.spoilt = True
            LOG.info('image %s: its growing store has %d of %d bytes and stops to grow',
                     self.name, size, self.limit)
            self.stop_growing()
        elif (rate := write_rate(end, size)) != self._rate:
            self._store.slow_down(rate)
            self._rate = rate

    def stop_growing(self) -> None:
        """Drop the copy-on-read filter; what is in the store goes on being read from there.

        :raises StorageDaemonError: if the gateway refuses.
        """
        with self._lock:
            # Where that is refused it grows, and goes on being looked at.
            self._gateway.change(self.name, store=Store.STAYS)
            self.grows = False

    def give_back(self) -> None:
        """Give back the medium's space beyond what is in it, when it does not grow any more.

        To be called only while the storage node answers; see ``GrowingStore.write_tables``.

        :raises StorageDaemonError: if the gateway refuses.
        :raises OSError: if its file is gone.
        """
        with self._lock:
            # They may lie beyond the file's end. Nobody writes to it after that.
            self._store.write_tables()
            diskroom.give_back(self.path)
            self.gave_back = True
        LOG.info('image %s: its growing store, which does not grow any more, gave back the space'
                 ' beyond its %d bytes', self.name, self.size())

    def mark(self) -> Mark:
        """Return the present place in the store's growth."""
        return self._store.mark()

    def idle_since(self) -> float:
        """Return the monotonic time at which it grew last, or was looked at first."""
        return self._store.idle_since()

    def extents_between(self, begin: Mark, end: Mark) -> list[Extent]:
        """Return what was read for the first time between two marks, in that order.

        To be called only while the storage node answers; see ``GrowingStore.extents_between``.

        :raises BootcacheError: if the gateway refuses or the store cannot be read.
        """
        with self._lock:
            self._store.write_tables()
        return self._store.extents_between(begin, end)

    def close(self) -> None:
        """Take the store out from below the export, and remove it; readers do not notice.

        :raises StorageDaemonError: if the gateway does not answer.
        """
        with self._lock:
            self._gateway.change(self.name, store=Store.GOES)
            self.grows = False
        # If that was refused it may still be written to, and goes on being counted.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
