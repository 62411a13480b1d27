"""The room of a host's tiers: what fits, what is promised, and what has to go for it."""

import contextlib
import os
import shutil
from collections.abc import Collection, Iterable, Iterator

from oslo_log import log as logging

from bootcache import exception, steps, tier
from bootcache.locks import OrderedLock, leaf
from bootcache.tier import Item, Medium, TierLimits
from nova_bootcache.cache.cachefiles import STORE_SUFFIX, CacheFiles
from nova_bootcache.gateway.below import Below
from nova_bootcache.gateway.hostneeds import HostNeeds
from nova_bootcache.locks import Rank
from nova_bootcache.metrics import HostMetrics

LOG = logging.getLogger(__name__)

_FETCH, _ARRIVAL, _STORE, _EXPANSION = 'fetch:', 'arrival:', 'store:', 'expansion:'
_EXCHANGE = 'exchange:'
_COMING = _FETCH, _ARRIVAL, _EXCHANGE
_ATTEMPTS = 5


def _coming_keys(image_id: str) -> tuple[str, ...]:
    """Return the keys of what may be on its way of an image already, for another server."""
    return tuple(f'{kind}{image_id}' for kind in _COMING)


class Room:
    """Keeps the tiers' quotas: the least recently used goes, and nothing that somebody needs.

    A cache image that a newer one of its image is to replace counts until it has: it has its place
    as long as that comes, as servers need one meanwhile. Where there is no room for both it stays.

    :ivar limits: by tier.

    :param files: the cache images.
    :param below: what the gateway has below servers' disks.
    :param needs: who needs it.
    :param limits: by tier.
    :param metrics: count what is evicted.
    """

    def __init__(self, files: CacheFiles, below: Below, needs: HostNeeds,
                 limits: dict[Medium, TierLimits], metrics: HostMetrics):
        self._files = files
        self._below = below
        self._needs = needs
        self.limits = limits
        self._metrics = metrics
        # Room that is promised to what is being fetched, or opened, by key. Guarded by the lock,
        # held for dictionary steps.
        self._reserved: dict[str, tuple[Medium, int]] = {}
        self._lock = leaf('the lock of promised room')
        # Makes looking for room and taking it one step.
        self._room_lock = OrderedLock(Rank.ROOM, 'the lock of the tiers\' room')

    def arriving(self) -> list[str]:
        """Return the ids of images whose cache image is being fetched."""
        with self._lock:
            promised = list(self._reserved)
        return sorted({key.removeprefix(kind) for kind in _COMING for key in promised
                       if key.startswith(kind)})

    def quotas(self, instances_path: str) -> dict[str, int]:
        """Return the tiers' quotas in bytes, by Placement's resource class that they take from.

        :param instances_path: whose file system is what Nova reports as the host's disk.
        """
        found = {}
        if os.stat(self._files.directory).st_dev == os.stat(instances_path).st_dev:
            found['DISK_GB'] = self.limits[Medium.DISK].quota
        if Medium.MEMORY in self.limits:
            found['MEMORY_MB'] = self.limits[Medium.MEMORY].quota
        return found

    def _items(self, medium: Medium, but: Collection[str] = ()) -> list[Item]:
        """Return what is in a tier: cache images, growing stores, and what is promised.

        :param but: keys of what does not count, as it is what is to come.
        """
        items = []
        for entry in self._files.entries():
            image_id = entry.remote.image_id
            if self._files.medium(image_id) is not medium:
                continue
            path = self._files.path(image_id)
            with contextlib.suppress(FileNotFoundError):
                used = os.stat(f'{path}.json').st_mtime
                busy = self._needs.keeps_file(image_id, path)
                items.append(Item(image_id, os.stat(path).st_size, used, entry.pinned, busy))
        with self._lock:
            promised = dict(self._reserved)
        for image_id, limit in self._below.room_of_stores(medium).items():
            # One that grows may come to have all of that.
            promised[f'{_STORE}{image_id}'] = medium, limit
        directory = self._files.directories[medium]
        for name in os.listdir(directory):
            key = f'{_STORE}{name.removesuffix(STORE_SUFFIX)}'
            if name.endswith(STORE_SUFFIX) and key not in promised:
                with contextlib.suppress(FileNotFoundError):
                    status = os.stat(os.path.join(directory, name))
                    # Beyond its end it has space that was its own while it grew.
                    items.append(Item(key, max(status.st_size, status.st_blocks * 512),
                                      status.st_mtime,
                                      # What a boot read is still to be told.
                                      busy=self._needs.is_booting(key.removeprefix(_STORE))))
        items.extend(Item(key, size, 0.0, busy=True) for key, (there, size) in promised.items()
                     if there is medium)
        return [item for item in items if item.key not in but]

    def used(self, medium: Medium) -> int:
        """Return the bytes of what is in a tier, and of what is promised room there."""
        return sum(item.bytes for item in self._items(medium))

    def has_room(self, medium: Medium, image_id: str, size: int) -> bool:
        """Tell whether a file of an image would fit a tier, after evictions if need be.

        :param size: bytes.
        """
        return self._has_room(medium, _coming_keys(image_id), size)

    def _has_room(self, medium: Medium, but: Collection[str], size: int) -> bool:
        return medium in self.limits and tier.make_room(
            self._items(medium, but), self.limits[medium], size).fits

    def room_for(self, image_id: str, size: int) -> Medium | None:
        """Return the tier in which a file of an image has room, memory first (section 5.1).

        :param size: bytes.
        """
        return self._first_room(_coming_keys(image_id), size)

    def room_for_store(self, image_id: str, size: int) -> Medium | None:
        """Return the tier in which a growing store of an image has room, memory first.

        :param size: bytes.
        """
        return self._first_room((f'{_STORE}{image_id}',), size)

    def _first_room(self, but: Collection[str], size: int) -> Medium | None:
        for medium in (Medium.MEMORY, Medium.DISK):
            if self._has_room(medium, but, size):
                return medium
        return None

    def for_fetch(self, image_id: str, medium: Medium, size: int
                  ) -> contextlib.AbstractContextManager[None]:
        """Make room in a tier for a cache image, and keep it while the block runs.

        :raises BootcacheError: if there is none.
        """
        return self._reserved_for(f'{_FETCH}{image_id}', medium, size)

    def for_arrival(self, image_id: str, medium: Medium, size: int
                    ) -> contextlib.AbstractContextManager[None]:
        """Do the same for one that servers read from on its way: its files are others.

        :raises BootcacheError: if there is none.
        """
        return self._reserved_for(f'{_ARRIVAL}{image_id}', medium, size)

    def for_store(self, image_id: str, medium: Medium, size: int
                  ) -> contextlib.AbstractContextManager[None]:
        """Make room in a tier for a growing store, and keep it until that is opened.

        :raises BootcacheError: if there is none.
        """
        return self._reserved_for(f'{_STORE}{image_id}', medium, size)

    def for_expansion(self, image_id: str, medium: Medium, size: int, most: int
                      ) -> contextlib.AbstractContextManager[None]:
        """Keep room for the expanded file of a cache image beside the compressed one.

        Nothing goes for it: what has no room stays compressed.

        :param most: bytes that the tier may have with it.
        :raises NoRoom: if it would have more, or the medium has not that much free.
        """
        return self._beside(f'{_EXPANSION}{image_id}', medium, size, most)

    def for_exchange(self, image_id: str, medium: Medium, size: int
                     ) -> contextlib.AbstractContextManager[None]:
        """Keep room for what comes from other hosts, beside what servers read of the same file.

        Nothing goes for it: what has no room comes from the storage node.

        :raises NoRoom: if something would have to go, or the medium has not that much free.
        """
        return self._beside(f'{_EXCHANGE}{image_id}', medium, size, self.limits[medium].high)

    @contextlib.contextmanager
    def _beside(self, key: str, medium: Medium, size: int, most: int) -> Iterator[None]:
        with self._room_lock:
            used = self.used(medium)
            if used + size > most:
                raise exception.NoRoom(
                    f'compute {medium.value} has {used} bytes, and is to have {most} at most with'
                    f' {size} more')
            self._promise(key, medium, size)
        with self._given_back(key):
            yield

    @contextlib.contextmanager
    def _reserved_for(self, key: str, medium: Medium, size: int) -> Iterator[None]:
        self._reserve(key, medium, size)
        with self._given_back(key):
            yield

    @contextlib.contextmanager
    def _given_back(self, key: str) -> Iterator[None]:
        try:
            yield
        finally:
            with self._lock:
                self._reserved.pop(key, None)

    def _reserve(self, key: str, medium: Medium, size: int) -> None:
        for _attempt in range(_ATTEMPTS):
            with self._room_lock:
                # A growing store is made anew in its own file.
                room = tier.make_room(self._items(medium, (key,)), self.limits[medium], size)
                if room.fits and not room.evict:
                    self._promise(key, medium, size)
                    return
            if not room.fits:
                break
            # Not under the lock: what goes may have a growing store, which has locks of its own.
            for victim in room.evict:
                self._evict(victim, medium)
        raise exception.BootcacheError(
            f'compute {medium.value} has no room for {size} bytes; raise'
            f' [bootcache]compute_{medium.value}_quota')

    def _promise(self, key: str, medium: Medium, size: int) -> None:
        """Keep room, if the medium has it: servers may still hold what has lost its name already.
        """
        free = shutil.disk_usage(self._files.directories[medium]).free
        if free < size:
            raise exception.NoRoom(
                f'compute {medium.value}: {free} bytes are free at'
                f' {self._files.directories[medium]}, not {size}')
        with self._lock:
            self._reserved[key] = medium, size

    def _evict(self, key: str, medium: Medium) -> None:
        kind, _colon, image_id = key.rpartition(':')
        try:
            # A server may have come since it was chosen; room is looked for anew then.
            with self._needs.deciding.of(image_id):
                if kind:
                    if not self._needs.is_booting(image_id):
                        self._below.drop_store(image_id)
                        self._metrics.count_eviction(medium)
                    return
                if self._needs.keeps_file(image_id, self._files.path(image_id)):
                    return
                # What disks of stopped servers stand on is not forgotten with it.
                self._files.remove_file(image_id)
            self._metrics.count_eviction(medium)
            steps.reached('evict: file gone')
            # The gateway lets go of it, if nobody is connected.
            self._below.stop_serving(image_id)
        except (exception.BootcacheError, OSError) as error:
            LOG.warning('image %s: cannot be evicted: %s', image_id, error)

    # Letting go.

    def remove_unused(self, used_image_ids: Iterable[str], minimum_age: float) -> None:
        """Remove cache images that no server on this host uses, and what the gateway serves them.

        :param used_image_ids: images of this host's servers.
        :param minimum_age: seconds since the last use.
        """
        used = set(used_image_ids)
        for entry in self._files.entries():
            image_id = entry.remote.image_id
            if image_id in used or entry.pinned or self._files.age(image_id) < minimum_age \
                    or self._needs.needs_base(image_id) \
                    or tier.is_open(self._files.path(image_id)):
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
        if self._needs.needs_base(image_id) or self._needs.is_booting(image_id) \
                or tier.is_open(self._files.path(image_id)):
            return False
        return self._remove(image_id)

    def forget_gone(self, image_id: str, unused_seconds: float) -> None:
        """Forget an image of which only the entry is left, if no server needs it.

        :param unused_seconds: since its last use, at least.
        :raises BootcacheError: if the gateway refuses.
        :raises OSError: if the entry cannot be removed.
        """
        # Its file may have come again since somebody looked, or comes just now.
        with self._files.placing_if_free(image_id) as is_alone:
            if is_alone and self._files.is_gone(image_id, unused_seconds):
                self.let_go(image_id)

    def forget_empty(self, image_id: str) -> None:
        """Remove an empty cache image that no server needs, and what the gateway serves with it.

        Where it cannot be removed upkeep does it later.
        """
        try:
            # A whole one may take its place just now.
            with self._files.placing_if_free(image_id) as is_alone:
                known = self._files.known(image_id)
                if is_alone and known is not None and known.cache_image is None:
                    self.let_go(image_id)
        except (exception.BootcacheError, OSError) as error:
            LOG.info('image %s: its empty cache image stays, for now: %s', image_id, error)

    def _remove(self, image_id: str) -> bool:
        with self._needs.deciding.of(image_id):
            if not self._below.stop_serving(image_id):
                return False
            steps.reached('evict: base gone')
            self._files.remove(image_id)
        return True
