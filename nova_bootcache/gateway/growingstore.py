"""The growing store: what servers read of a base on this host, kept by copy-on-read in the gateway.

SC13 section 3.2 and figure 5: a cache that fills while the first server boots, and stops to grow at
its quota. It lies between the gateway's export and the storage node, so that all servers of the
host share it; its map, in the order of the file, is what they read for the first time.

The quota is kept by dropping the copy-on-read filter (blockdev-reopen: a millisecond, readers do
not notice). As a medium that runs full is a read error in the guest, what may be written before the
next look is the store's already (fallocate), whoever fills the medium meanwhile; and writes are
slowed down the nearer the end of that is, so that whoever watches has the time to drop the filter.
"""

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from oslo_log import log as logging

from bootcache import exception, naming, qemuimg, recorder, steps, workingset
from bootcache.locks import OrderedLock, leaf
from bootcache.recorder import Sample
from bootcache.workingset import Extent
from nova_bootcache.gateway import diskroom, graph
from nova_bootcache.gateway.daemon import Gateway
from nova_bootcache.gateway.graph import FILTER, REMOTE, STORE, STORE_FILE, THROTTLE, Store
from nova_bootcache.gateway.growth import horizon, reserve, spare, write_rate
from nova_bootcache.locks import Rank

LOG = logging.getLogger(__name__)

# What cache images have by default: the record is rounded to it anyway when one is built.
GRANULARITY = 65536
# A store smaller than that holds nothing worth it beside its tables.
MIN_LIMIT = 1 << 20
_LOOK_SECONDS = 0.05


@dataclasses.dataclass(frozen=True)
class Mark:
    """A place in a store's growth: what comes later was read for the first time after it.

    :ivar file_bytes: size of the store's file.
    :ivar samples: how many samples of its size had been taken.
    """

    file_bytes: int
    samples: int


class GrowingStore:
    """One image's growing store in the gateway.

    :param gateway: where its nodes live.
    :param image_id: the image.
    :param virtual_bytes: size of its base.
    :param path: of the store's file; made new, removed at the end.
    :param limit: bytes that the file may have.
    """

    def __init__(self, gateway: Gateway, image_id: str, virtual_bytes: int, path: str, limit: int):
        self._gateway = gateway
        self._daemon = gateway.daemon
        self.image_id = image_id
        self.path = path
        self.limit = limit
        self._throttle = graph.throttle_group(image_id)
        self._virtual_bytes = virtual_bytes
        self.grows = False
        # What is read through it is not boots' alone: it tells nothing of them any more.
        self.spoilt = False
        self._opened_bytes = 0
        self._samples: list[Sample] = []
        self._rate = 0
        # Size of the file up to which the medium's space is its own.
        self._held = 0
        # Guards the store's nodes.
        self._lock = OrderedLock(Rank.STORE, f'the lock of the growing store of {image_id}')

    def _name(self, kind: str) -> str:
        return naming.node_name(kind, self.image_id)

    def _store_node(self) -> dict[str, Any]:
        return {'driver': 'qcow2', 'node-name': self._name(STORE), 'read-only': False,
                'backing': self._name(REMOTE), 'file': self._name(THROTTLE),
                'l2-cache-size': 8 << 20}

    def open(self) -> None:
        """Put the store between the gateway's export of the base and the storage node.

        :raises BootcacheError: if qemu-img or the gateway refuses; the base is then read directly.
        """
        self._gateway.check_top(self.image_id)
        qemuimg.create_standalone(self.path, self._virtual_bytes, GRANULARITY)
        size = os.stat(self.path).st_size
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
            with self._daemon.session() as session:
                self._rate = write_rate(end, size)
                session.execute('object-add', **{'qom-type': 'throttle-group', 'id': self._throttle,
                                                 'limits': {'bps-write': self._rate}})
            self._daemon.add_nodes(
                {'driver': 'file', 'node-name': self._name(STORE_FILE), 'filename': self.path},
                {'driver': 'throttle', 'node-name': self._name(THROTTLE),
                 'throttle-group': self._throttle, 'file': self._name(STORE_FILE)},
                self._store_node(),
                {'driver': 'copy-on-read', 'node-name': self._name(FILTER),
                 'file': self._name(STORE)})
            self._reopen(graph.top_node(self.image_id, FILTER))
        except exception.BootcacheError:
            with contextlib.suppress(exception.BootcacheError):
                self.close()
            raise
        steps.reached('grow: opened')
        self._opened_bytes = self.size()
        self.grows = True

    def _reopen(self, *nodes: dict[str, Any]) -> None:
        with self._daemon.session() as session:
            session.execute('blockdev-reopen', options=list(nodes))

    def is_there(self) -> bool:
        """Tell whether the gateway still has it; one that was restarted has not.

        :raises StorageDaemonError: if the gateway does not answer.
        """
        return self._name(STORE) in self._daemon.nodes()

    def size(self) -> int:
        """Return the size of the store's file in bytes, 0 if it is gone."""
        with contextlib.suppress(OSError):
            return os.stat(self.path).st_size
        return 0

    def look(self, now: float) -> bool:
        """Note the store's size, and keep its limit.

        :param now: monotonic seconds.
        :returns: whether it still grows.
        :raises StorageDaemonError: if the gateway does not answer.
        """
        size = self.size()
        if not self._samples or self._samples[-1].file_bytes != size:
            self._samples.append(Sample(now, size))
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
            end = horizon(self.limit, size, self._held, free)
            if end > self._held and diskroom.hold(self.path, end):
                self._held = end
        except OSError as error:
            # Somebody was faster, or has a quota of his own there.
            LOG.info('image %s: no more room for its growing store: %s', self.image_id, error)
            return 0
        return end if free >= spare(self.limit) and end > size + reserve(self.limit) else 0

    def _keep_limit(self, size: int) -> None:
        end = self._take_room(size)
        if not end:
            if size + reserve(self.limit) < self.limit:
                LOG.warning('image %s: its growing store stops to grow, as the file system of %s'
                            ' is full', self.image_id, self.path)
            LOG.info('image %s: its growing store has %d of %d bytes and stops to grow',
                     self.image_id, size, self.limit)
            self.stop_growing()
        elif (rate := write_rate(end, size)) != self._rate:
            with self._daemon.session() as session:
                session.execute('qom-set', path=f'/objects/{self._throttle}', property='limits',
                                value={'bps-write': rate})
            self._rate = rate

    def stop_growing(self) -> None:
        """Drop the copy-on-read filter; what is in the store goes on being read from there.

        :raises StorageDaemonError: if the gateway refuses.
        """
        with self._lock:
            # Where that is refused it grows, and goes on being looked at.
            self._gateway.change(self.image_id, store=Store.STAYS)
            self.grows = False

    def mark(self) -> Mark:
        """Return the present place in the store's growth."""
        return Mark(self.size(), len(self._samples))

    def idle_since(self) -> float:
        """Return the monotonic time at which it grew last, or was looked at first."""
        return self._samples[-1].seconds if self._samples else 0.0

    def extents_between(self, begin: Mark, end: Mark) -> list[Extent]:
        """Return what was read for the first time between two marks, in that order.

        Nobody knows when a cluster of zeros came, as it has no place in the file: they are told of
        a store that was new at the first mark.

        To be called only while the storage node answers: the store's tables are written out by
        opening it anew, which waits for requests that are under way.

        :raises BootcacheError: if the gateway refuses or the store cannot be read.
        """
        with self._lock:
            # Identical options: nothing changes, but the tables are written.
            self._reopen(self._store_node())
        entries = between(qemuimg.allocation_map(self.path), begin.file_bytes, end.file_bytes,
                          with_zeros=begin.file_bytes <= self._opened_bytes)
        samples = self._samples[max(begin.samples - 1, 0):]
        return workingset.align(recorder.extents_from_map(entries, samples), GRANULARITY,
                                self._virtual_bytes)

    def close(self) -> None:
        """Take the store out from below the export, and remove it; readers do not notice.

        :raises StorageDaemonError: if the gateway does not answer.
        """
        with self._lock:
            self._gateway.change(self.image_id, store=Store.GOES)
            self.grows = False
        # If that was refused it may still be written to, and goes on being counted.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)


def between(entries: list[dict[str, Any]], begin: int, end: int,
            with_zeros: bool) -> list[dict[str, Any]]:
    """Return the part of a store's map that lies between two places in its file. Pure.

    :param entries: of :func:`bootcache.qemuimg.allocation_map`.
    :param begin: bytes.
    :param end: bytes.
    :param with_zeros: whether to return what has no place.
    """
    found = []
    for entry in entries:
        if 'offset' not in entry:
            if with_zeros:
                found.append(entry)
            continue
        before = max(0, begin - entry['offset'])
        length = min(entry['length'], end - entry['offset']) - before
        if length > 0:
            found.append({**entry, 'start': entry['start'] + before, 'length': length,
                          'offset': entry['offset'] + before})
    return found


class StoreKeeper:
    """Watches the growing stores of this host, and keeps their limits.

    :param failed: called with a store whose gateway does not answer.
    """

    def __init__(self, failed: Callable[[GrowingStore, Exception], None] | None = None):
        self._failed = failed
        # By image id; guarded by the lock.
        self._stores: dict[str, GrowingStore] = {}
        self._lock = leaf('the lock of the list of stores')
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._wanted = threading.Event()

    def add(self, store: GrowingStore) -> None:
        """Begin to watch a store; the thread that looks is started with the first one.

        :raises RuntimeError: if no thread can be started; the store is not watched.
        """
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._watch, name='bootcache-stores', daemon=True)
                thread.start()
                self._thread = thread
            self._stores[store.image_id] = store
        self._wanted.set()

    def get(self, image_id: str) -> GrowingStore | None:
        """Return an image's store, if there is one."""
        with self._lock:
            return self._stores.get(image_id)

    def stores(self) -> list[GrowingStore]:
        """Return all stores."""
        with self._lock:
            return list(self._stores.values())

    def remove(self, image_id: str) -> GrowingStore | None:
        """Stop watching an image's store, and return it."""
        with self._lock:
            return self._stores.pop(image_id, None)

    def stop(self) -> None:
        """Stop all growth: nobody looks from now on."""
        self._stopped.set()
        self._wanted.set()
        for store in self.stores():
            with contextlib.suppress(exception.BootcacheError):
                store.stop_growing()

    def _watch(self) -> None:
        while not self._stopped.is_set():
            growing = False
            for store in self.stores():
                try:
                    growing |= store.look(time.monotonic())
                except exception.StorageDaemonBusy as error:
                    # It has the store all the same.
                    LOG.debug('image %s: its growing store is looked at later: %s',
                              store.image_id, error)
                    growing = True
                except Exception as error:
                    LOG.warning('image %s: its growing store is lost: %s', store.image_id, error)
                    self.remove(store.image_id)
                    store.grows = False
                    self._tell(store, error)
            if growing:
                self._stopped.wait(_LOOK_SECONDS)
            else:
                self._wanted.clear()
                # A store that does not grow may still be asked for how long it has been idle.
                self._wanted.wait(1.0)

    def _tell(self, store: GrowingStore, error: Exception) -> None:
        if self._failed is not None:
            try:
                self._failed(store, error)
            except Exception:
                # Others are watched all the same.
                LOG.exception('image %s: its growing store is lost, and is not cleared up',
                              store.image_id)
