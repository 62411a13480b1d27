"""The growing store: a qcow2 that keeps what is read of a base, by copy-on-read.

Its clusters are allocated in the order of their first reads, so its own map, sorted by place in the
file, is what was read for the first time, and when (SC13 section 3.2, figure 5; no patched QEMU).
The size of the file over time tells when each cluster came.

In a storage daemon, from above: the copy-on-read filter, the store, a throttle by which its growth
can be slowed down, and its file; the store's backing is the base.
"""

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from oslo_log import log as logging

from bootcache import exception, naming, qemuimg, recorder, workingset
from bootcache.locks import leaf
from bootcache.recorder import Sample
from bootcache.storagedaemon import StorageDaemon
from bootcache.workingset import Extent

LOG = logging.getLogger(__name__)

# Kinds of nodes, from above.
FILTER, STORE, THROTTLE, STORE_FILE = 'f', 's', 't', 'u'
KINDS = FILTER, STORE, THROTTLE, STORE_FILE
# Of a store's throttle, before its name: writes to the store are slowed down by this group.
_GROUP = 'throttle-'
# All tables of a store stay in memory: thousands of clusters, all over the base.
_TABLES_OF_SMALL, _TABLES = 32 << 20, 8 << 20
_SMALL_CLUSTER = 4096


@dataclasses.dataclass(frozen=True)
class Mark:
    """A place in a store's growth: what comes later was read for the first time after it.

    :ivar file_bytes: size of the store's file.
    :ivar samples: how many samples of its size had been taken.
    """

    file_bytes: int
    samples: int


def remove_throttle(daemon: StorageDaemon, node: str) -> None:
    """Remove the group by which writes to a store are slowed down, if it is there.

    :param node: name of the store's throttle, or the beginning of it.
    """
    with contextlib.suppress(exception.StorageDaemonError), daemon.session() as session:
        for group in daemon.objects():
            if group.startswith(f'{_GROUP}{node}'):
                session.execute('object-del', id=group)


class GrowingStore:
    """A store below disks, and what was read through it.

    :ivar name: what it is called by: an image's id, or a server's whose boot has one of its own.
    :ivar path: of its file.
    :ivar grows: whether what is read through it is kept.
    :ivar is_full: it does not grow any more, as it has no more room.

    :param daemon: where its nodes live.
    :param base: name of the node that it reads from.
    :param virtual_bytes: size of that.
    :param granularity: bytes that are kept, and told, together.
    :param check: raises an error unless the base can be read now; None for one that always can.
    """

    def __init__(self, daemon: StorageDaemon, name: str, base: str, virtual_bytes: int, path: str,
                 granularity: int, check: Callable[[], None] | None = None):
        self.name = name
        self.path = path
        self.grows = self.is_full = False
        self._daemon = daemon
        self._base = base
        self._virtual_bytes = virtual_bytes
        self._granularity = granularity
        self._check = check
        self._group = _GROUP + self.node(THROTTLE)
        self._opened_bytes = 0
        self._samples: list[Sample] = []

    def node(self, kind: str) -> str:
        """Return the name of its node of a kind."""
        return naming.node_name(kind, self.name)

    def create(self) -> int:
        """Make its file new, and return the file's size in bytes.

        :raises BootcacheError: if qemu-img refuses.
        """
        qemuimg.create_standalone(self.path, self._virtual_bytes, self._granularity)
        return os.stat(self.path).st_size

    def _store_node(self) -> dict[str, Any]:
        tables = _TABLES_OF_SMALL if self._granularity <= _SMALL_CLUSTER else _TABLES
        return {'driver': 'qcow2', 'node-name': self.node(STORE), 'read-only': False,
                'backing': self._base, 'file': self.node(THROTTLE), 'l2-cache-size': tables}

    def add_nodes(self, write_rate: int = 0) -> None:
        """Open the file that was made; what reads through its filter is kept from then on.

        :param write_rate: bytes a second that it may grow by, 0 for no limit.
        :raises StorageDaemonError: if the daemon refuses; what it has of the store stays then.
        """
        limits = {'bps-write': write_rate} if write_rate else {}
        with self._daemon.session() as session:
            session.execute('object-add', **{'qom-type': 'throttle-group',
                                             'id': self._group, 'limits': limits})
        self._daemon.add_nodes(
            {'driver': 'file', 'node-name': self.node(STORE_FILE), 'filename': self.path},
            {'driver': 'throttle', 'node-name': self.node(THROTTLE),
             'throttle-group': self._group, 'file': self.node(STORE_FILE)},
            self._store_node(),
            {'driver': 'copy-on-read', 'node-name': self.node(FILTER), 'file': self.node(STORE)})
        self._opened_bytes = self.size()

    def slow_down(self, write_rate: int) -> None:
        """Have it grow by so many bytes a second at most.

        :raises StorageDaemonError: if the daemon refuses.
        """
        with self._daemon.session() as session:
            session.execute('qom-set', path=f'/objects/{self._group}',
                            property='limits', value={'bps-write': write_rate})

    def size(self) -> int:
        """Return the size of its file in bytes, 0 if it is gone."""
        with contextlib.suppress(OSError):
            return os.stat(self.path).st_size
        return 0

    def look(self, now: float) -> bool:
        """Note its size, keep its limit if it has one, and tell whether it still grows.

        :param now: monotonic seconds.
        :raises StorageDaemonError: if it is gone.
        """
        size = self.size()
        if not self._samples or self._samples[-1].file_bytes != size:
            self._samples.append(Sample(now, size))
        return self.grows

    def mark(self) -> Mark:
        """Return the present place in its growth."""
        return Mark(self.size(), len(self._samples))

    def idle_since(self) -> float:
        """Return the monotonic time at which it grew last, or was looked at first."""
        return self._samples[-1].seconds if self._samples else 0.0

    def write_tables(self) -> None:
        """Have the store's tables written to its file, which lacks most of them before.

        :raises StorageDaemonError: if the daemon refuses, or the base cannot be read now: requests
            that are under way are waited for.
        """
        with self._daemon.session() as session:
            if self._check is not None:
                self._check()
            # Opened anew with identical options: nothing changes, but the tables are written.
            session.execute('blockdev-reopen', options=[self._store_node()])

    def extents_between(self, begin: Mark, end: Mark) -> list[Extent]:
        """Return what was read for the first time between two marks, in that order.

        Nobody knows when a cluster of zeros came, as it has no place in the file: they are told of
        a store that was new at the first mark.

        :raises BootcacheError: if the daemon refuses, or the store or the base cannot be read.
        """
        self.write_tables()
        entries = recorder.between(
            qemuimg.allocation_map(self.path), begin.file_bytes, end.file_bytes,
            with_zeros=begin.file_bytes <= self._opened_bytes)
        samples = self._samples[max(begin.samples - 1, 0):]
        return workingset.align(recorder.extents_from_map(entries, samples), self._granularity,
                                self._virtual_bytes)

    def remove(self) -> None:
        """Take out what the daemon has of the store, and remove the file.

        To be called when nothing reads through its filter any more.

        :raises StorageDaemonError: if the daemon does not answer, or refuses.
        """
        try:
            present = self._daemon.nodes()
            self._daemon.remove_nodes(*(name for name in map(self.node, KINDS) if name in present))
            remove_throttle(self._daemon, self.node(THROTTLE))
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)


LOOK_SECONDS = 0.05


Kept = TypeVar('Kept', bound=GrowingStore)


class StoreKeeper(Generic[Kept]):
    """Looks at growing stores in a thread of its own, and so keeps their limits.

    :param failed: called with a store whose daemon does not answer.
    """

    def __init__(self, failed: Callable[[Kept, Exception], None] | None = None):
        self._failed = failed
        # By name; guarded by the lock.
        self._stores: dict[str, Kept] = {}
        self._lock = leaf('the lock of the list of stores')
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._wanted = threading.Event()

    def add(self, store: Kept) -> None:
        """Begin to look at a store; the thread that looks is started with the first one.

        :raises RuntimeError: if no thread can be started; the store is not looked at.
        """
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._watch, name='bootcache-stores', daemon=True)
                thread.start()
                self._thread = thread
            self._stores[store.name] = store
        self._wanted.set()

    def get(self, name: str) -> Kept | None:
        """Return the store of a name, if there is one."""
        with self._lock:
            return self._stores.get(name)

    def stores(self) -> list[Kept]:
        """Return all stores."""
        with self._lock:
            return list(self._stores.values())

    def remove(self, name: str) -> Kept | None:
        """Look at the store of a name no more, and return it."""
        with self._lock:
            return self._stores.pop(name, None)

    def stop(self) -> None:
        """Look at none any more."""
        self._stopped.set()
        self._wanted.set()

    def _watch(self) -> None:
        while not self._stopped.is_set():
            growing = False
            # One that is added from now on is looked at again at once.
            self._wanted.clear()
            for store in self.stores():
                try:
                    growing |= store.look(time.monotonic())
                except (exception.StorageDaemonBusy, exception.StorageNodeAway) as error:
                    # It has the store all the same.
                    LOG.debug('the growing store of %s is looked at later: %s',
                              store.name, error)
                    growing = True
                except Exception as error:
                    LOG.warning('the growing store of %s is lost: %s', store.name, error)
                    with self._lock:
                        # Another one may have taken its place while this was found out.
                        if self._stores.get(store.name) is store:
                            del self._stores[store.name]
                    store.grows = False
                    self._tell(store, error)
            if growing:
                self._stopped.wait(LOOK_SECONDS)
            else:
                # A store that does not grow may still be asked for how long it has been idle.
                self._wanted.wait(1.0)

    def _tell(self, store: Kept, error: Exception) -> None:
        if self._failed is not None:
            try:
                self._failed(store, error)
            except Exception:
                # Others are looked at all the same.
                LOG.exception('the growing store of %s is lost, and is not cleared up',
                              store.name)
