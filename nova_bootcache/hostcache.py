"""The cache images that a host holds: fetched, verified, placed atomically, evicted."""

import collections
import contextlib
import dataclasses
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from oslo_log import log as logging

from bootcache import cacheimage, exception, naming, qemuimg, savefile, tier
from bootcache.manifest import CacheInfo
from bootcache.tier import Item, Limits, Medium
from nova_bootcache import growingstore
from nova_bootcache.cacheentry import Entry
from nova_bootcache.gateway import Remote, check_reachable
from nova_bootcache.hostfiles import HostFiles

LOG = logging.getLogger(__name__)

_FETCH = 'fetch:'
_ATTEMPTS = 5
# A boot waits for the fetch. One that is slow as many hosts fetch goes on: what a boot reads from
# the base would come by the same link. One from which nothing comes is given up.
_GRACE_SECONDS = 30
_SLOWEST = 128 << 10
# An empty cache image is a header and its first tables.
_EMPTY_CLUSTER = 65536


@dataclasses.dataclass(frozen=True)
class Patience:
    """How long a fetch may take.

    :ivar seconds: in all.
    :ivar stalled: in which nothing comes.
    """

    seconds: float
    stalled: float


class HostCache(HostFiles):
    """This host's cache images, in one tier or two.

    :ivar limits: by tier.

    :param directory: of the disk tier, and of all names; made if missing.
    :param gateway_socket: has to be in every header.
    :param disk: limits of the disk tier.
    :param memory_directory: of the memory tier; None if there is none.
    :param memory: its limits.
    """

    def __init__(self, directory: str, gateway_socket: str, disk: Limits,
                 memory_directory: str | None = None, memory: Limits | None = None):
        super().__init__(directory, memory_directory)
        self._gateway_socket = gateway_socket
        self.limits = {Medium.DISK: disk}
        if memory_directory is not None:
            assert memory is not None
            self.limits[Medium.MEMORY] = memory
        # Tells whether a server is about to open an image's cache image.
        self.is_wanted: Callable[[str], bool] = lambda image_id: False
        # Held while it is seen that nobody is about to open a file, and the file is removed.
        self.removing: contextlib.AbstractContextManager[Any] = threading.RLock()
        # Called with an image's id after its file was evicted.
        self.evicted: Callable[[str], None] = lambda image_id: None
        # Called with an image's id to have its growing store removed.
        self.drop_store: Callable[[str], None] = lambda image_id: None
        # How many wait for an image's fetch that is paced, if one is. Guarded by the lock of the
        # files.
        self._waiting: collections.Counter[str] = collections.Counter()
        # Room that is promised to what is being fetched or grows, by key. Guarded by the lock of
        # the files, held for dictionary steps.
        self._reserved: dict[str, tuple[Medium, int]] = {}
        # Makes looking for room and taking it one step; held for milliseconds.
        self._room_lock = threading.Lock()

    # Placing.

    def fetch(self, remote: Remote, cache_image: CacheInfo, cache_export: str,
              medium: Medium = Medium.DISK, pinned: bool = False, generation: int = 0,
              rate: int = 0) -> Entry:
        """Get a cache image from a storage node, verify it, and put it into its place.

        Servers that run from an older one keep its inode. Two servers of one image that start
        together fetch once.

        :param cache_export: the exporter's name for the file.
        :param medium: the tier.
        :param generation: the storage service's count.
        :param rate: bytes a second at most; 0 for a server that waits for it: no limit.
        :raises Cancelled: if it was paced, and a server came to wait for it.
        :raises BootcacheError: if it has no room, cannot be fetched or is not what was announced.
        :raises OSError: if the directory cannot be written.
        """
        partial = os.path.join(self._directories[medium],
                               f'{naming.cache_file_name(remote.image_id)}.partial')

        def bring(patience: Patience) -> None:
            check_reachable(remote)
            self._copy(remote, cache_export, cache_image.bytes, partial, rate, patience)

        return self.receive(Entry(remote, cache_image, cache_image.sha256,
                                  cache_image.virtual_bytes, pinned, generation),
                            medium, partial, bring, rate)

    def receive(self, wanted: Entry, medium: Medium, partial: str,
                bring: Callable[[Patience], None], rate: int = 0, room: int = 0) -> Entry:
        """Have a cache image brought, verify it, and put it into its place.

        :param wanted: what is noted of it when it is there.
        :param partial: the file that it is brought into; it is gone when this returns.
        :param bring: does so.
        :param rate: bytes a second at which it does at most; 0 for no limit.
        :param room: bytes that are needed meanwhile, if more than its own.
        :returns: what is noted of it, or of the same one that was there before.
        :raises BootcacheError: if it has no room, or is not what was announced; what ``bring``
            raises.
        :raises OSError: if the directory cannot be written.
        """
        image_id, info = wanted.remote.image_id, wanted.cache_image
        assert info is not None
        with self._placing(image_id, rate):
            self.check_content(wanted.remote, wanted.virtual_bytes, info)
            entry = self.entry(image_id)
            if entry is not None and entry.cache_image is not None \
                    and entry.cache_image.sha256 == info.sha256:
                return entry
            with self.reserved(f'{_FETCH}{image_id}', medium, room or info.bytes):
                began = time.monotonic()
                try:
                    bring(Patience(_GRACE_SECONDS + info.bytes / _SLOWEST, _GRACE_SECONDS))
                    cacheimage.verify(partial, info.sha256, info.bytes)
                    entry = dataclasses.replace(
                        wanted, file_sha256=self._point_home(partial, image_id, info))
                    self._place(partial, entry, medium)
                finally:
                    if os.path.exists(partial):
                        os.unlink(partial)
            LOG.info('image %s: cache image of %d bytes fetched into compute %s in %.2f s',
                     image_id, info.bytes, medium.value, time.monotonic() - began)
            return entry

    @contextlib.contextmanager
    def _placing(self, image_id: str, rate: int = 0) -> Iterator[None]:
        """Have one thread at a time place an image's file; a paced fetch gives way to all others.

        A server may wait for any of them.
        """
        if rate:
            with super()._placing(image_id, rate):
                yield
            return
        with self._lock:
            self._waiting[image_id] += 1
        try:
            with super()._placing(image_id):
                yield
        finally:
            with self._lock:
                self._waiting[image_id] -= 1
                if not self._waiting[image_id]:
                    del self._waiting[image_id]

    def _check_patience(self, image_id: str) -> None:
        with self._lock:
            if self._waiting[image_id]:
                raise exception.Cancelled(f'a server waits for the cache image of {image_id}')

    def _copy(self, remote: Remote, export: str, size: int, partial: str, rate: int,
              patience: Patience) -> None:
        if not rate:
            qemuimg.copy_raw(f'nbd://{remote.host}:{remote.port}/{export}', partial,
                             seconds=patience.seconds, stalled=patience.stalled)
            return
        server = {'type': 'inet', 'host': remote.host, 'port': str(remote.port)}
        node = {'driver': 'raw', 'file': {'driver': 'nbd', 'server': server, 'export': export}}
        qemuimg.copy_paced(node, partial, length=size, rate=rate,
                           check=lambda: self._check_patience(remote.image_id),
                           seconds=_GRACE_SECONDS + 2 * size / min(rate, _SLOWEST))

    def arriving(self) -> list[str]:
        """Return the ids of images whose cache image is being fetched."""
        with self._lock:
            promised = list(self._reserved)
        return [key.removeprefix(_FETCH) for key in promised if key.startswith(_FETCH)]

    def make_empty(self, remote: Remote, virtual_bytes: int) -> Entry:
        """Make a cache image without data: the name that a whole one replaces later.

        SC13, Algorithm 1: "create Cache on C, chain Cache to Base".

        :param virtual_bytes: size of the base.
        :raises BootcacheError: if qemu-img refuses.
        :raises OSError: if the directory cannot be written.
        """
        image_id = remote.image_id
        with self._placing(image_id):
            self.check_content(remote, virtual_bytes)
            entry = self.entry(image_id)
            if entry is not None:
                return entry
            partial = f'{self.path(image_id)}.partial'
            try:
                qemuimg.create_overlay(partial, virtual_bytes, self._base_uri(image_id), 'raw',
                                       cluster_bytes=_EMPTY_CLUSTER, open_backing=False)
                entry = Entry(remote, None, savefile.file_digest(partial), virtual_bytes)
                self._place(partial, entry, Medium.DISK)
            finally:
                if os.path.exists(partial):
                    os.unlink(partial)
            return entry

    def _base_uri(self, image_id: str) -> str:
        return naming.nbd_unix_uri(self._gateway_socket,
                                   naming.export_name(naming.EXPORT_BASE, image_id))

    def _point_home(self, path: str, image_id: str, cache_image: CacheInfo) -> str:
        wanted = self._base_uri(image_id)
        if cache_image.backing_uri == wanted:
            return cache_image.sha256
        LOG.info('image %s: the header names %s; it is rewritten for this host\'s'
                 ' [bootcache]gateway_socket', image_id, cache_image.backing_uri)
        qemuimg.set_backing_pointer(path, wanted, 'raw')
        return savefile.file_digest(path)

    def _place(self, partial: str, entry: Entry, medium: Medium) -> None:
        final = self.path(entry.remote.image_id)
        os.chmod(partial, 0o644)
        described = f'{final}.json.new.tmp'
        # What takes time comes first: for a moment the image has no entry, and others look.
        savefile.fsync_file(partial)
        entry.save(described)
        # An older file loses its entry before its name: no entry ever describes another file.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f'{final}.json')
        stale = self._memory_path(entry.remote.image_id)
        if medium is Medium.MEMORY:
            assert stale is not None
            os.rename(partial, stale)
            link = f'{final}.tmp'
            with contextlib.suppress(FileNotFoundError):
                os.unlink(link)
            os.symlink(stale, link)
            os.rename(link, final)
        else:
            os.rename(partial, final)
            if stale is not None and os.path.exists(stale):
                os.unlink(stale)
        # All who place a file have just computed its digest.
        self._note_verified(os.stat(final))
        os.rename(described, f'{final}.json')
        for directory in set(self._directories.values()):
            savefile.fsync_directory(directory)

    # Room.

    def quotas(self, instances_path: str) -> dict[str, int]:
        """Return the tiers' quotas in bytes, by Placement's resource class that they take from.

        :param instances_path: whose file system is what Nova reports as the host's disk.
        """
        found = {}
        if os.stat(self.directory).st_dev == os.stat(instances_path).st_dev:
            found['DISK_GB'] = self.limits[Medium.DISK].quota
        if Medium.MEMORY in self.limits:
            found['MEMORY_MB'] = self.limits[Medium.MEMORY].quota
        return found

    def _items(self, medium: Medium, but: str) -> list[Item]:
        """Return what is in a tier: cache images, growing stores, and what is promised."""
        items = []
        for entry in self.entries():
            image_id = entry.remote.image_id
            if image_id == but or self.medium(image_id) is not medium:
                continue
            path = self.path(image_id)
            with contextlib.suppress(FileNotFoundError):
                used = os.stat(f'{path}.json').st_mtime
                busy = self.is_wanted(image_id) or tier.is_open(path)
                items.append(Item(image_id, os.stat(path).st_size, used, entry.pinned, busy))
        with self._lock:
            promised = dict(self._reserved)
        directory = self._directories[medium]
        for name in os.listdir(directory):
            key = f'store:{name.removesuffix(growingstore.SUFFIX)}'
            if name.endswith(growingstore.SUFFIX) and key not in promised:
                with contextlib.suppress(FileNotFoundError):
                    status = os.stat(os.path.join(directory, name))
                    # Beyond its end it has space that was its own while it grew.
                    items.append(Item(key, max(status.st_size, status.st_blocks * 512),
                                      status.st_mtime))
        items.extend(Item(key, size, 0.0, busy=True) for key, (there, size) in promised.items()
                     if there is medium)
        return items

    def has_room(self, medium: Medium, image_id: str, size: int) -> bool:
        """Tell whether a file of an image would fit a tier, after evictions if need be.

        :param size: bytes.
        """
        return medium in self.limits and tier.make_room(
            self._items(medium, image_id), self.limits[medium], size).fits

    @contextlib.contextmanager
    def reserved(self, key: str, medium: Medium, size: int) -> Iterator[None]:
        """Make room in a tier, and keep it while the block runs: for a fetch.

        :raises BootcacheError: if there is none.
        """
        self.reserve(key, medium, size)
        try:
            yield
        finally:
            self.release(key)

    def reserve(self, key: str, medium: Medium, size: int) -> None:
        """Make room in a tier, least recently used first, and keep it until it is released.

        :param key: ``fetch:`` or ``store:`` and the image's id.
        :raises BootcacheError: if there is none.
        """
        kind, _colon, image_id = key.partition(':')
        # What is fetched takes the place of the image's older file.
        but = image_id if kind == 'fetch' else ''
        for _attempt in range(_ATTEMPTS):
            with self._room_lock:
                room = tier.make_room(self._items(medium, but), self.limits[medium], size)
                if room.fits and not room.evict:
                    self._check_free(medium, size)
                    with self._lock:
                        self._reserved[key] = medium, size
                    return
            if not room.fits:
                break
            # Not under the lock: what goes may have a growing store, which has locks of its own.
            for victim in room.evict:
                self._evict(victim)
        raise exception.BootcacheError(
            f'compute {medium.value} has no room for {size} bytes; raise'
            f' [bootcache]compute_{medium.value}_quota')

    def _check_free(self, medium: Medium, size: int) -> None:
        """Check the medium itself: servers may still hold what has lost its name already."""
        free = shutil.disk_usage(self._directories[medium]).free
        if free < size:
            raise exception.BootcacheError(
                f'compute {medium.value}: {free} bytes are free at {self._directories[medium]},'
                f' not {size}')

    def release(self, key: str) -> None:
        """Give back what was reserved."""
        with self._lock:
            self._reserved.pop(key, None)

    def _evict(self, key: str) -> None:
        kind, _colon, image_id = key.rpartition(':')
        try:
            if kind == 'store':
                self.drop_store(image_id)
                for directory in self._directories.values():
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(os.path.join(directory, f'{image_id}{growingstore.SUFFIX}'))
            else:
                with self.removing:
                    # A server may have come since it was chosen; room is looked for anew then.
                    if self.is_wanted(image_id) or tier.is_open(self.path(image_id)):
                        return
                    # What disks of stopped servers stand on is not forgotten with it.
                    self.remove_file(image_id)
                self.evicted(image_id)
        except (exception.BootcacheError, OSError) as error:
            LOG.warning('image %s: cannot be evicted: %s', image_id, error)
