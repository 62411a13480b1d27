"""What a compute host has below its servers' disks, and when it may let go of it.

Cache images and their tiers, bases in the gateway, growing stores, and the boots that are watched
to be reported. nova_bootcache/host.py makes chains out of them.
"""

import collections
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging

from bootcache import conf as bootcache_conf
from bootcache import exception, rpcapi, tier
from bootcache.tier import Medium
from nova_bootcache import conf as nova_conf
from nova_bootcache import gateway, graph
from nova_bootcache.arrivals import Arrivals
from nova_bootcache.bootreports import BootReports
from nova_bootcache.bootwatch import BootWatch
from nova_bootcache.gateway import Gateway, Remote
from nova_bootcache.graph import Present, Store, Wanted
from nova_bootcache.growingstore import GrowingStore, StoreKeeper
from nova_bootcache.hostcache import HostCache
from nova_bootcache.offer import Offered
from nova_bootcache.profilerecordings import ProfileRecordings
from nova_bootcache.socketfault import GatewaySocket

LOG = logging.getLogger(__name__)

_REPORT_SECONDS = 20.0
# Nova may wait for the network, five minutes by default, between a disk's making and its opening.
_OPENED_SECONDS = 900


def _was_opened(path: str, made_at: int) -> bool:
    """Tell whether a disk is open, or was written since a time in nanoseconds, or is gone."""
    try:
        return tier.is_open(path) or os.stat(path).st_mtime_ns != made_at
    except FileNotFoundError:
        return True


class HostStores:
    """The cache images, the gateway and the growing stores of one compute host.

    :ivar cache: the cache images.
    :ivar gateway: serves the bases.
    :ivar stores: the growing stores.
    :ivar arrivals: cache images on their way here.
    :ivar socket: whether QEMU can open the gateway's.
    :ivar recordings: profile boots on this host.
    :ivar boot_reports: what boots read, on its way to the storage service.
    :ivar hostname: the host's name for the storage service.

    :param conf: Nova's configuration, with the driver's options registered.
    :param cache_directory: of the host's cache images.
    :param direct_io: whether servers' disks are opened with O_DIRECT.
    :param base_directory: Nova's own directory of bases.
    :raises ConfigurationError: if the tiers' options make no sense.
    """

    def __init__(self, conf: cfg.ConfigOpts, cache_directory: str, direct_io: bool = True,
                 base_directory: str | None = None):
        self._conf = conf[bootcache_conf.GROUP]
        tiers = nova_conf.tiers(conf, cache_directory, direct_io, base_directory)
        self.cache = HostCache(cache_directory, self._conf.gateway_socket, tiers.disk,
                               tiers.memory_directory, tiers.memory)
        self.gateway = Gateway(self._conf.gateway_run_dir, self._conf.gateway_socket,
                               self._conf.reconnect_delay, self._conf.gateway_autostart,
                               self._conf.gateway_group)
        self.arrivals = Arrivals(self.cache, self.gateway)
        self.recordings = ProfileRecordings(self.gateway, cache_directory, lambda: self.api)
        self.boot_reports = BootReports(lambda *report: self.api.report_boot(*report))
        self._store_limit = tiers.store_limit
        self.stores = StoreKeeper(lambda store, _error: self._forget_store(store.image_id))
        self.cache.drop_store = self.drop_store
        self.cache.evicted = self._evicted
        self.cache.is_wanted = self.is_in_making
        # Tells whether servers of the host need an image's base; settling knows.
        self.needs_base: Callable[[str], bool] = lambda image_id: True
        self.hostname = ''
        # Why this host serves nothing that is new; empty if it does.
        self.refusal = ''
        self.socket = GatewaySocket(self._conf.gateway_socket)
        # Boots that are watched, by server id. Guarded by the lock, held for dictionary steps.
        self._watches: dict[str, BootWatch] = {}
        # How many disks of an image Nova is reading now, by image. Guarded likewise.
        self._copies: collections.Counter[str] = collections.Counter()
        self._lock = threading.Lock()
        # Makes opening and dropping of growing stores one step, and letting go of what no chain
        # in the making needs; some milliseconds of QMP, or of removing a file.
        self._grow_lock = threading.RLock()
        self.cache.removing = self._grow_lock
        # Disks that were just made or are about to be opened: their images, until when that is
        # believed in monotonic seconds, and their files' time. Guarded by the lock.
        self._in_making: dict[str, tuple[str, float, int]] = {}
        # Servers that Nova starts just now, and the disks that were made for that. Likewise.
        self._starting: dict[str, str] = {}

    @property
    def enabled(self) -> bool:
        """Whether new servers boot from cache images."""
        return bool(self._conf.enabled) and not self.refusal and not self.socket.reason

    def did_not_start(self, server_id: str, path: str, error: str) -> bool:
        """Tell whether a server that did not start would from a disk that is made the stock way.

        A profile boot would not be recorded then: it fails.

        :param path: of its root disk; one that was made for this start goes, no other one.
        :param error: libvirt's.
        """
        with self._lock:
            made = self._starting.get(server_id) == path
            watch = self._watches.get(server_id)
        if not made or not self.socket.failed(server_id, error):
            return False
        if watch is not None:
            # It would take the reads of a server that does not boot from here.
            watch.discard()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        self._not_made(path)
        return True

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

    def _note_made(self, server_id: str, path: str) -> None:
        with self._lock:
            if server_id in self._starting:
                self._starting[server_id] = path

    def refuse(self, reason: str) -> None:
        """Serve nothing that is new, as long as this process lives, and change no file.

        Servers that were chained to cache images go on as before.

        :param reason: and the cure.
        """
        self.refusal = reason
        LOG.error('bootcache: all servers of this host go the stock way: %s', reason)

    @property
    def report_interval(self) -> int:
        """Seconds between two reports of what this host holds."""
        return int(self._conf.report_interval)

    @property
    def api(self) -> rpcapi.StorageAPI:
        """The storage service's client.

        :raises BootcacheError: if the driver is not started.
        """
        raise NotImplementedError

    # Chains in the making.

    @contextlib.contextmanager
    def _making(self, image_id: str, path: str) -> Iterator[None]:
        """Keep what a chain needs until its disk is opened, or is not going to be.

        Entered before it is decided what the chain is to be: what is here then is still here when
        the disk is made.

        :param path: of the disk; where the block has made none, nothing is kept.
        """
        until = time.monotonic() + _OPENED_SECONDS
        # Not while something is let go of: what is there from now on stays.
        with self._grow_lock, self._lock:
            self._in_making[path] = image_id, until, 0
        try:
            yield
            if os.path.exists(path):
                with self._lock:
                    self._in_making[path] = image_id, until, os.stat(path).st_mtime_ns
            else:
                self._not_made(path)
        except BaseException:
            self._not_made(path)
            raise

    @contextlib.contextmanager
    def changing(self, path: str) -> Iterator[None]:
        """Change a disk whose chain was just made or mended: it stays so until it is opened.

        :param path: of the disk; one of another kind may be changed as well.
        """
        with self._lock:
            known = self._in_making.get(path)
        with self._making(known[0], path) if known is not None else contextlib.nullcontext():
            yield

    def _not_made(self, path: str) -> None:
        with self._lock:
            self._in_making.pop(path, None)

    def is_in_making(self, image_id: str) -> bool:
        """Tell whether a chain was made, or mended, that nobody has opened yet."""
        now = time.monotonic()
        with self._lock:
            pending = list(self._in_making.items())
        for path, known in pending:
            _image_id, until, made_at = known
            if now > until or (made_at and _was_opened(path, made_at)):
                with self._lock:
                    # It may have been mended anew meanwhile.
                    if self._in_making.get(path) == known:
                        del self._in_making[path]
        with self._lock:
            return any(image == image_id for image, _until, _made in self._in_making.values())

    # Growing stores.

    def room_for(self, image_id: str, size: int) -> Medium | None:
        """Return the tier in which a file of an image has room, memory first (section 5.1).

        :param size: bytes.
        """
        for medium in (Medium.MEMORY, Medium.DISK):
            if self.cache.has_room(medium, image_id, size):
                return medium
        return None

    def _grow(self, image_id: str, virtual_bytes: int) -> GrowingStore | None:
        spoilt = self._spoilt_to_replace(image_id)
        with self._grow_lock:
            if self.arrivals.has(image_id):
                return None
            store = self.stores.get(image_id)
            if store is not None and store.is_there() \
                    and not (store is spoilt and self._gives_way(store)):
                return store
            if store is not None:
                self._forget_store(image_id)
            medium = self.room_for('', self._store_limit)
            if medium is None:
                return None
            try:
                self.cache.reserve(f'store:{image_id}', medium, self._store_limit)
                path = self.cache.store_path(image_id, medium)
                store = GrowingStore(self.gateway, image_id, virtual_bytes, path,
                                     self._store_limit)
                self.gateway.change(image_id, store=Store.GOES)
                store.open()
            except (exception.BootcacheError, OSError) as error:
                self.cache.release(f'store:{image_id}')
                LOG.warning('image %s: it is read without a growing store: %s', image_id, error)
                return None
            store.spoilt = self._is_copied(image_id)
            self.stores.add(store)
            return store

    def _is_copied(self, image_id: str) -> bool:
        with self._lock:
            return self._copies[image_id] > 0

    def _spoilt_to_replace(self, image_id: str) -> GrowingStore | None:
        """Return a store that another one may take the place of; to find out may take seconds.

        While the storage node is away it stays: what it has is all that servers can read.
        """
        store, entry = self.stores.get(image_id), self.cache.known(image_id)
        if store is None or not store.spoilt or entry is None:
            return None
        try:
            gateway.check_reachable(entry.remote)
        except exception.StorageNodeAway as error:
            LOG.info('image %s: its growing store stays for now: %s', image_id, error)
            return None
        return store

    def _gives_way(self, store: GrowingStore) -> bool:
        """Take out a store that cannot tell of boots any more, so that another one can."""
        image_id = store.image_id
        if not store.spoilt or self._is_copied(image_id) or self.is_booting(image_id):
            return False
        try:
            store.close()
        except exception.BootcacheError as error:
            LOG.info('image %s: its growing store stays for now: %s', image_id, error)
            return False
        return True

    def tidy_stores(self) -> None:
        """Remove the growing stores that are of no more use, and give back what they do not need.

        That of a cold image goes on growing to its limit, as servers share it; once there is a
        whole cache image, and no boot is watched, nobody gains by it. While the storage node is
        away it stays: what it has is all that servers can read.
        """
        for store in self.stores.stores():
            entry = self.cache.known(store.image_id)
            try:
                if entry is not None and entry.cache_image is not None \
                        and not self.is_booting(store.image_id):
                    gateway.check_reachable(entry.remote)
                    self.drop_store(store.image_id)
                elif not store.grows:
                    # From now on it counts with what it has, and may be evicted.
                    self.cache.release(f'store:{store.image_id}')
            except exception.BootcacheError as error:
                LOG.info('image %s: its growing store stays for now: %s', store.image_id, error)

    def drop_store(self, image_id: str) -> None:
        """Remove an image's growing store; servers that run read from the base again.

        :raises StorageDaemonError: if the gateway does not answer.
        """
        with self._grow_lock:
            store = self.stores.remove(image_id)
            try:
                if store is not None:
                    store.close()
                else:
                    self.gateway.change(image_id, store=Store.GOES)
            finally:
                self.cache.release(f'store:{image_id}')

    def _evicted(self, image_id: str) -> None:
        """Let the gateway go of an image whose cache image was evicted, if nobody is connected."""
        with contextlib.suppress(exception.BootcacheError):
            self.stop_serving(image_id)

    def _forget_store(self, image_id: str) -> None:
        with self._grow_lock:
            store = self.stores.remove(image_id)
            self.cache.release(f'store:{image_id}')
            if store is not None:
                store.grows = False
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(store.path)

    def reconcile(self) -> None:
        """Have the gateway end what nobody of this process looks after, and forget what it lost.

        An earlier process may have left growth, an arrival or a recording in it, and it need not
        have answered when this one began; nor when something was to be taken out of it.

        :raises BootcacheError: if the gateway does not answer, or refuses one of it.
        """
        stores = self.stores.stores()
        image_ids = {entry.remote.image_id for entry in self.cache.entries()}
        image_ids |= {store.image_id for store in stores}
        present = self.gateway.present(image_ids)
        failed: list[str] = []
        for store in stores:
            if graph.STORE not in present.get(store.image_id, Present()).kinds:
                # The gateway was restarted.
                self._forget_store(store.image_id)
        for image_id, there in present.items():
            try:
                if graph.reconcile(self._wanted(image_id, there), there):
                    self._tidy(image_id)
            except exception.BootcacheError as error:
                failed.append(f'image {image_id}: {error}')
        self.recordings.discard_left_over()
        if failed:
            raise exception.BootcacheError('; '.join(failed))

    def _wanted(self, image_id: str, there: Present) -> Wanted:
        store = self.stores.get(image_id)
        return Wanted(Store.GROWS if store is not None and store.grows else Store.STAYS,
                      self.arrivals.has(image_id), graph.as_it_is(there).landed)

    def _tidy(self, image_id: str) -> None:
        # Nobody opens a store, or begins an arrival, meanwhile.
        with self._grow_lock, self.arrivals.beginning:
            there = self.gateway.present([image_id]).get(image_id, Present())
            wanted = self._wanted(image_id, there)
            self.gateway.change(image_id, store=wanted.store, arrives=wanted.arrives)

    # Boots that are watched.

    def _watch_boot(self, server_id: str, store: GrowingStore, remote: Remote, offered: Offered,
                    console: Callable[[], str]) -> None:
        assert offered.watch is not None

        def report(granularity: int, extents: list[list[Any]], ended_by: str,
                   seconds: float) -> None:
            self.boot_reports.report(remote.image_id, offered.image_hash, self.hostname,
                                     granularity, extents, ended_by, seconds)

        watch = BootWatch(server_id, store, remote, offered.watch, console, report,
                          self._boot_over)
        with self._lock:
            self._watches[server_id] = watch
        watch.start()

    @contextlib.contextmanager
    def copying(self, image_id: str | None) -> Iterator[None]:
        """Nova reads a disk of an image, which is no boot: to snapshot, migrate or rescue a server.

        Boots that are watched are not reported, as the copy's reads are in the same growing store;
        nor is what is in the store until another one takes its place.
        """
        image_id = image_id or ''
        with self._lock:
            self._copies[image_id] += 1
            watches = [watch for watch in self._watches.values()
                       if watch.store.image_id == image_id]
        try:
            for watch in watches:
                watch.discard()
            store = self.stores.get(image_id)
            if store is not None:
                store.spoilt = True
            yield
        finally:
            with self._lock:
                self._copies[image_id] -= 1
                if not self._copies[image_id]:
                    del self._copies[image_id]

    def _boot_over(self, watch: BootWatch) -> None:
        with self._lock:
            if self._watches.get(watch.server_id) is watch:
                del self._watches[watch.server_id]
        self.tidy_stores()

    def server_goes(self, server_id: str) -> None:
        """Report what a watched boot read until now, as its server is stopped, moved or deleted."""
        with self._lock:
            watch = self._watches.get(server_id)
        if watch is not None:
            watch.end()
            watch.join(_REPORT_SECONDS)

    def is_booting(self, image_id: str) -> bool:
        """Tell whether a boot from an image is watched."""
        with self._lock:
            return any(watch.store.image_id == image_id for watch in self._watches.values())

    # Cleaning.

    def remove_unused(self, used_image_ids: Iterable[str], minimum_age: float) -> None:
        """Remove cache images that no server on this host uses, and what the gateway serves them.

        :param used_image_ids: images of this host's servers.
        :param minimum_age: seconds since the last use.
        """
        used = set(used_image_ids)
        for entry in self.cache.entries():
            image_id = entry.remote.image_id
            if image_id in used or entry.pinned or self.cache.age(image_id) < minimum_age \
                    or tier.is_open(self.cache.path(image_id)):
                continue
            try:
                self._remove(image_id)
            except (exception.BootcacheError, OSError) as error:
                LOG.warning('image %s: its cache image cannot be removed: %s', image_id, error)

    def let_go(self, image_id: str) -> bool:
        """Remove a cache image that the storage service withdraws, if no server needs it.

        :returns: False if one does; it is to be tried again.
        :raises BootcacheError: if the gateway refuses.
        :raises OSError: if it cannot be removed.
        """
        if self.needs_base(image_id) or self.is_booting(image_id) \
                or tier.is_open(self.cache.path(image_id)):
            return False
        return self._remove(image_id)

    def _remove(self, image_id: str) -> bool:
        with self._grow_lock:
            if not self.stop_serving(image_id):
                return False
            self.cache.remove(image_id)
        return True

    def stop_serving(self, image_id: str) -> bool:
        """Take an image's base out of the gateway, and its growing store with it.

        :returns: False if a server is connected to it, or about to be.
        :raises StorageDaemonError: if the gateway refuses.
        """
        with self._grow_lock:
            if self.is_in_making(image_id) or not self.gateway.remove_base(image_id):
                return False
            self._forget_store(image_id)
            for medium in Medium:
                with contextlib.suppress(FileNotFoundError, KeyError):
                    os.unlink(self.cache.store_path(image_id, medium))
        return True
