"""What is below servers' disks in the gateway: bases, growing stores and arrivals, by image.

The only owner of an image's block nodes there; graph.py says what they are to be.
"""

import contextlib
import os
from collections.abc import Iterable
from typing import Any

from oslo_log import log as logging

from bootcache import exception
from bootcache.growingstore import StoreKeeper
from bootcache.locks import KeyedLocks
from bootcache.tier import Medium
from bootcache.util.logthrottle import LogThrottle
from nova_bootcache.cache.cachefiles import CacheEntry, CacheFiles
from nova_bootcache.gateway import arrivingimage, graph, sharedstore
from nova_bootcache.gateway.daemon import Gateway
from nova_bootcache.gateway.graph import Present, Store, Wanted
from nova_bootcache.gateway.hostneeds import HostNeeds
from nova_bootcache.gateway.sharedstore import SharedStore
from nova_bootcache.locks import Rank

LOG = logging.getLogger(__name__)

# For which upkeep, which has more to do, waits for an arrival's job that it ends.
_TIDY_SECONDS = 1


class Below:
    """Opens and closes it, and keeps it as it is wanted.

    :ivar stores: the growing stores that this process looks after.

    :param gateway: the host's.
    :param files: where growing stores lie.
    :param needs: who needs it.
    """

    def __init__(self, gateway: Gateway, files: CacheFiles, needs: HostNeeds):
        self._gateway = gateway
        self._files = files
        self._needs = needs
        self.stores: StoreKeeper[SharedStore] = StoreKeeper(
            lambda store, _error: self.forget_store(store))
        # Images that an earlier process may have left stores of that have space to give back; None
        # until that was looked for. All later ones are this process's.
        self._left: set[str] | None = None
        self._throttle = LogThrottle(LOG)
        # Make beginning an arrival, and clearing up what one left, one step.
        self._beginning = KeyedLocks(Rank.ARRIVAL, 'the lock of arrivals of image')

    # Growing stores.

    def stop(self) -> None:
        """Look at no growing store any more, and have none grow."""
        self.stores.stop()
        for store in self.stores.stores():
            with contextlib.suppress(exception.BootcacheError):
                store.stop_growing()

    def open_store(self, image_id: str, virtual_bytes: int, medium: Medium,
                   limit: int) -> SharedStore:
        """Put a new growing store below an image's export, and watch it.

        :param virtual_bytes: size of the base.
        :param limit: bytes that it may have; the tier has that room.
        :raises BootcacheError: if qemu-img or the gateway refuses, or nobody can watch it.
        :raises OSError: if the tier cannot be written.
        """
        with self._needs.deciding.of(image_id):
            store = SharedStore(self._gateway, image_id, virtual_bytes,
                                 self._files.store_path(image_id, medium), limit)
            self._gateway.change(image_id, store=Store.GOES)
            store.open()
            try:
                self.stores.add(store)
            except RuntimeError as error:
                # Nobody would keep its limit.
                store.close()
                raise exception.BootcacheError(
                    f'the growing store of {image_id} cannot be watched: {error}') from error
            return store

    def room_of_stores(self, medium: Medium) -> dict[str, int]:
        """Return the bytes that growing stores of a tier may come to have, by image."""
        return {store.name: store.limit for store in self.stores.stores()
                if store.grows and store.path == self._files.store_path(store.name, medium)}

    def drop_store(self, image_id: str) -> None:
        """Remove an image's growing store; servers that run read from the base again.

        :raises StorageDaemonError: if the gateway does not answer.
        """
        with self._needs.deciding.of(image_id):
            store = self.stores.get(image_id)
            if store is not None:
                # Where that is refused it grows, and goes on being watched.
                store.close()
                self.stores.remove(image_id)
            else:
                self._gateway.change(image_id, store=Store.GOES)
                # That of an earlier process.
                self._remove_store_files(image_id)

    def forget_store(self, store: SharedStore) -> None:
        """Forget a growing store that the gateway does not have any more.

        Another one that has taken its place meanwhile, and its file's name, stays.
        """
        with self._needs.deciding.of(store.name):
            known = self.stores.get(store.name)
            if known is not None and known is not store:
                return
            self.stores.remove(store.name)
            store.grows = False
            with contextlib.suppress(FileNotFoundError):
                os.unlink(store.path)

    def give_back_space(self) -> None:
        """Give back the space that growing stores were to grow into, once they do not any more.

        Those of an earlier process as well; for one thread. While the storage node is away it stays
        theirs, as tables are written before.
        """
        entries = {entry.remote.image_id: entry for entry in self._files.entries()}
        if self._left is None:
            self._left = {image_id for image_id in entries if self._ahead(image_id)}
        stores = {store.name: store.grows for store in self.stores.stores()
                  if not store.gave_back}
        # One whose cache image is gone went with it.
        self._left &= set(entries)
        for image_id in sorted((self._left | set(stores)) & set(entries)):
            if not stores.get(image_id) and (
                    not self._ahead(image_id) or self._give_back(entries[image_id])):
                self._left.discard(image_id)

    def _ahead(self, image_id: str) -> list[str]:
        """Return the files of an image's stores that have space beyond their end."""
        paths = [self._files.store_path(image_id, medium) for medium in self._files.directories]
        return [path for path in paths if sharedstore.has_ahead(path)]

    def _give_back(self, entry: CacheEntry) -> bool:
        """Have an image's stores give back their space; return whether they did, once for all."""
        image_id = entry.remote.image_id
        try:
            # Nobody opens another one in its place meanwhile.
            with self._needs.deciding.of(image_id):
                if self._may_grow(image_id):
                    return False
                for path in self._ahead(image_id):
                    self._store_at(path, entry).give_back()
            return True
        except (exception.BootcacheError, OSError) as error:
            self._throttle.warning(
                image_id, 'image %s: its growing store keeps space that it does not need, for now:'
                ' %s', image_id, error)
        return False

    def _may_grow(self, image_id: str) -> bool:
        """Tell whether an image's store grows, or is none that the gateway has."""
        store = self.stores.get(image_id)
        if store is not None and store.grows:
            return True
        kinds = self._gateway.present([image_id]).get(image_id, Present()).kinds
        return graph.FILTER in kinds or graph.STORE not in kinds

    def _store_at(self, path: str, entry: CacheEntry) -> SharedStore:
        store = self.stores.get(entry.remote.image_id)
        return store if store is not None and store.path == path else SharedStore(
            self._gateway, entry.remote.image_id, entry.virtual_bytes, path, 0)

    # Arrivals.

    def begin_arrival(self, image_id: str, size: int, path: str, source: dict[str, Any]) -> None:
        """Have servers of an image read from its cache image while it comes.

        :param size: of the cache image's file, in bytes.
        :param path: of the file that it comes into.
        :param source: the node of the file on the storage node, without its name.
        :raises BootcacheError: if qemu-img or the gateway refuses.
        :raises OSError: if the file system has no room for all of it.
        """
        with self._beginning.of(image_id):
            there = self._gateway.present([image_id]).get(image_id, Present())
            if there.kinds & set(graph.ARRIVAL):
                # Of one that could not be cleared up, as storage hung.
                self._gateway.end_arrival_job(image_id)
                self._gateway.change(image_id, arrives=False)
            arrivingimage.begin(self._gateway, image_id, size, path, source)

    def end_arrival(self, image_id: str) -> None:
        """Take an arrival that is over out of the gateway.

        :raises StorageDaemonError: if the gateway does not answer, or refuses: upkeep sees it there
            later, and that nobody waits for it.
        """
        self._gateway.end_arrival_job(image_id)
        self._gateway.change(image_id, arrives=False)

    # All of an image.

    def stop_serving(self, image_id: str) -> bool:
        """Take an image's base out of the gateway, and its growing store with it.

        :returns: False if a server is connected to it, or about to be.
        :raises StorageDaemonError: if the gateway refuses.
        """
        with self._needs.deciding.of(image_id):
            if self._needs.is_in_making(image_id) or not self._gateway.remove_base(image_id):
                return False
            store = self.stores.get(image_id)
            if store is not None:
                self.forget_store(store)
            self._remove_store_files(image_id)
        return True

    def _remove_store_files(self, image_id: str) -> None:
        for medium in self._files.directories:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._files.store_path(image_id, medium))

    def reconcile(self, image_ids: Iterable[str]) -> None:
        """Have the gateway end what nobody of this process looks after, and forget what it lost.

        An earlier process may have left growth or an arrival in it, and it need not have answered
        when this one began; nor when something was to be taken out of it.

        :param image_ids: of images that the host knows.
        :raises BootcacheError: if the gateway does not answer, or refuses one of it.
        """
        stores = self.stores.stores()
        present = self._gateway.present({*image_ids, *(store.name for store in stores)})
        failed: list[str] = []
        for store in stores:
            if graph.STORE not in present.get(store.name, Present()).kinds:
                # The gateway was restarted.
                self.forget_store(store)
        for image_id, there in present.items():
            try:
                if graph.reconcile(self._wanted(image_id, there), there):
                    self._tidy(image_id, there)
            except exception.BootcacheError as error:
                failed.append(f'image {image_id}: {error}')
        if failed:
            raise exception.BootcacheError('; '.join(failed))

    def _wanted(self, image_id: str, there: Present) -> Wanted:
        store = self.stores.get(image_id)
        # Nobody reads through one below a base that is not served any more.
        grows = store is not None and store.grows and there.is_exported
        return Wanted(Store.GROWS if grows else Store.STAYS,
                      self._needs.is_arriving(image_id), graph.as_it_is(there).landed)

    def _tidy(self, image_id: str, there: Present) -> None:
        beginning = self._beginning.of(image_id)
        if not beginning.acquire(0):
            # An arrival begins, and clears up what is in its way.
            return
        try:
            if there.kinds & set(graph.ARRIVAL) and not self._needs.is_arriving(image_id):
                # Before others are kept waiting: it may hang, and the next round asks again.
                self._gateway.end_arrival_job(image_id, _TIDY_SECONDS)
            # Nobody opens a store meanwhile.
            with self._needs.deciding.of(image_id):
                there = self._gateway.present([image_id]).get(image_id, Present())
                wanted = self._wanted(image_id, there)
                self._gateway.change(image_id, store=wanted.store, arrives=wanted.arrives)
        finally:
            beginning.release()
