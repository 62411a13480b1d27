"""The cache images that a host holds: fetched, verified, placed atomically, evicted.

Every cache image has one name, ``<sha1 of the image id>`` in the directory of the disk tier, which
is what overlays have in their headers. One in the memory tier is a symbolic link of that name, so
that it can move between tiers, and be lost with a reboot, without a change to any overlay.

Beside the name lies its entry, a JSON document that names the image, the file's hash and where its
base is (doc/source/formats.rst). A file without an entry does not count.
"""

import contextlib
import dataclasses
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator

from oslo_concurrency import lockutils
from oslo_log import log as logging

from bootcache import cacheimage, exception, naming, qemuimg, savefile, tier
from bootcache.manifest import CacheInfo
from bootcache.tier import Item, Limits, Medium
from nova_bootcache import growingstore
from nova_bootcache.cacheentry import Entry
from nova_bootcache.gateway import Remote, check_reachable

LOG = logging.getLogger(__name__)

_NAME = re.compile('[0-9a-f]{40}')
_LEFTOVER = re.compile(r'[0-9a-f-]{36,40}(\.json\..*\.tmp|\.tmp|\.partial)')
_ATTEMPTS = 5
# A boot waits for the fetch; one that is slower than this would be no gain.
_GRACE_SECONDS = 30
_SLOWEST = 2 << 20
# An empty cache image is a header and its first tables.
_EMPTY_CLUSTER = 65536


class HostCache:
    """This host's cache images, in one tier or two.

    :param directory: of the disk tier, and of all names; made if missing.
    :param gateway_socket: has to be in every header.
    :param disk: limits of the disk tier.
    :param memory_directory: of the memory tier; None if there is none.
    :param memory: its limits.
    """

    def __init__(self, directory: str, gateway_socket: str, disk: Limits,
                 memory_directory: str | None = None, memory: Limits | None = None):
        self.directory = directory
        self._gateway_socket = gateway_socket
        self._directories = {Medium.DISK: directory}
        self._limits = {Medium.DISK: disk}
        if memory_directory is not None:
            assert memory is not None
            self._directories[Medium.MEMORY] = memory_directory
            self._limits[Medium.MEMORY] = memory
        # Tells whether a server is about to open an image's cache image.
        self.is_wanted: Callable[[str], bool] = lambda image_id: False
        # Called with an image's id after its file was evicted.
        self.evicted: Callable[[str], None] = lambda image_id: None
        # Called with an image's id to have its growing store removed.
        self.drop_store: Callable[[str], None] = lambda image_id: None
        # Files verified by this process, by inode, time and size; and room that is promised to
        # what is being fetched or grows, by key. Guarded by the lock, held for dictionary steps.
        self._verified: set[tuple[int, int, int]] = set()
        self._reserved: dict[str, tuple[Medium, int]] = {}
        self._lock = threading.Lock()
        # Makes looking for room and taking it one step; held for milliseconds.
        self._room_lock = threading.Lock()

    def prepare(self) -> None:
        """Make the directories, and remove what a crash left half-made.

        :raises OSError: if one cannot be written.
        """
        for directory in self._directories.values():
            os.makedirs(directory, mode=0o755, exist_ok=True)
            for name in os.listdir(directory):
                # The disk tier's directory is ours; the other one may be somebody else's as well.
                if name.endswith(('.partial', '.tmp')) \
                        and (directory == self.directory or _LEFTOVER.fullmatch(name)):
                    os.unlink(os.path.join(directory, name))
        memory = self._directories.get(Medium.MEMORY)
        for name in os.listdir(self.directory):
            path = os.path.join(self.directory, name)
            if os.path.islink(path) and (memory is None or os.readlink(path)
                                         != os.path.join(memory, name)):
                # Of a memory tier that there was; it is fetched again when it is asked for.
                os.unlink(path)
        for name in os.listdir(memory) if memory else ():
            if _NAME.fullmatch(name) and not os.path.islink(os.path.join(self.directory, name)):
                os.unlink(os.path.join(memory or '', name))

    # Names and entries.

    def path(self, image_id: str) -> str:
        """Return where an image's cache image is, or would be."""
        return os.path.join(self.directory, naming.cache_file_name(image_id))

    def store_path(self, image_id: str, medium: Medium) -> str:
        """Return where an image's growing store is, or would be."""
        return os.path.join(self._directories[medium], f'{image_id}{growingstore.SUFFIX}')

    def holds_path(self, path: str | None) -> bool:
        """Tell whether a path, such as an overlay's backing file, is a cache image's."""
        return path is not None and os.path.dirname(path) == self.directory

    def medium(self, image_id: str) -> Medium:
        """Return which tier an image's cache image is in."""
        return Medium.MEMORY if os.path.islink(self.path(image_id)) else Medium.DISK

    def entry(self, image_id: str) -> Entry | None:
        """Return an image's entry if its file is there, whole and right; else None.

        The content is read once for each process and file, and after that only if the file's
        inode, time or size is another.
        """
        path = self.path(image_id)
        try:
            entry = Entry.load(f'{path}.json')
            status = os.stat(path)
            seen = (status.st_ino, status.st_mtime_ns, status.st_size)
            rules = entry.cache_image.verify_rules if entry.cache_image else cacheimage.VERIFY_RULES
            with self._lock:
                if seen in self._verified and rules == cacheimage.VERIFY_RULES:
                    return entry
            cacheimage.verify(path, entry.file_sha256, status.st_size)
        except (exception.InvalidManifest, FileNotFoundError) as error:
            if os.path.exists(path):
                LOG.warning('cache image %s cannot be used and is fetched again: %s', path, error)
            return None
        with self._lock:
            self._verified.add(seen)
        return entry

    def known(self, image_id: str) -> Entry | None:
        """Return what is noted of an image's cache image, also if its file is gone."""
        with contextlib.suppress(exception.InvalidManifest):
            return Entry.load(f'{self.path(image_id)}.json')
        return None

    def update(self, entry: Entry, remote: Remote, pinned: bool) -> Entry:
        """Note where a cache image's base is now, and whether it is pinned.

        :raises OSError: if the entry cannot be written.
        """
        if (entry.remote, entry.pinned) == (remote, pinned):
            return entry
        path = f'{self.path(remote.image_id)}.json'
        with lockutils.lock(f'bootcache-{naming.cache_file_name(remote.image_id)}'):
            # It may have been replaced meanwhile.
            changed = dataclasses.replace(self.known(remote.image_id) or entry, remote=remote,
                                          pinned=pinned)
            used = os.stat(path).st_mtime
            changed.save(path)
            os.utime(path, (used, used))
        return changed

    def entries(self) -> list[Entry]:
        """Return the entries of all cache images, without a look at their content."""
        found = []
        for name in sorted(os.listdir(self.directory)):
            if name.endswith('.json'):
                try:
                    found.append(Entry.load(os.path.join(self.directory, name)))
                except exception.InvalidManifest as error:
                    LOG.warning('%s', error)
        return found

    # Placing.

    def fetch(self, remote: Remote, cache_image: CacheInfo, cache_export: str,
              medium: Medium = Medium.DISK, pinned: bool = False) -> Entry:
        """Get a cache image from a storage node, verify it, and put it into its place.

        Servers that run from an older one keep its inode. Two servers of one image that start
        together fetch once.

        :param cache_export: the exporter's name for the file.
        :param medium: the tier.
        :raises BootcacheError: if it has no room, cannot be fetched or is not what was announced.
        :raises OSError: if the directory cannot be written.
        """
        image_id = remote.image_id
        with lockutils.lock(f'bootcache-{naming.cache_file_name(image_id)}'):
            entry = self.entry(image_id)
            if entry is not None and entry.cache_image is not None \
                    and entry.cache_image.sha256 == cache_image.sha256:
                return entry
            with self.reserved(f'fetch:{image_id}', medium, cache_image.bytes):
                began = time.monotonic()
                partial = os.path.join(self._directories[medium],
                                       f'{naming.cache_file_name(image_id)}.partial')
                try:
                    check_reachable(remote)
                    qemuimg.copy_raw(f'nbd://{remote.host}:{remote.port}/{cache_export}', partial,
                                     timeout=_GRACE_SECONDS + cache_image.bytes // _SLOWEST)
                    cacheimage.verify(partial, cache_image.sha256, cache_image.bytes)
                    file_sha256 = self._point_home(partial, image_id, cache_image)
                    entry = Entry(remote, cache_image, file_sha256, cache_image.virtual_bytes,
                                  pinned)
                    self._place(partial, entry, medium)
                finally:
                    if os.path.exists(partial):
                        os.unlink(partial)
            LOG.info('image %s: cache image of %d bytes fetched into compute %s in %.2f s',
                     image_id, cache_image.bytes, medium.value, time.monotonic() - began)
            return entry

    def make_empty(self, remote: Remote, virtual_bytes: int) -> Entry:
        """Make a cache image without data: the name that a whole one replaces later.

        SC13, Algorithm 1: "create Cache on C, chain Cache to Base".

        :param virtual_bytes: size of the base.
        :raises BootcacheError: if qemu-img refuses.
        :raises OSError: if the directory cannot be written.
        """
        image_id = remote.image_id
        with lockutils.lock(f'bootcache-{naming.cache_file_name(image_id)}'):
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
        # An older file loses its entry first: no entry ever describes another file.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f'{final}.json')
        stale = self._memory_path(entry.remote.image_id)
        if medium is Medium.MEMORY:
            assert stale is not None
            savefile.commit(partial, stale)
            link = f'{final}.tmp'
            with contextlib.suppress(FileNotFoundError):
                os.unlink(link)
            os.symlink(stale, link)
            os.rename(link, final)
            savefile.fsync_directory(self.directory)
        else:
            savefile.commit(partial, final)
            if stale is not None and os.path.exists(stale):
                os.unlink(stale)
        entry.save(f'{final}.json')

    def _memory_path(self, image_id: str) -> str | None:
        directory = self._directories.get(Medium.MEMORY)
        return directory and os.path.join(directory, naming.cache_file_name(image_id))

    # Room.

    def quotas(self, instances_path: str) -> dict[str, int]:
        """Return the tiers' quotas in bytes, by Placement's resource class that they take from.

        :param instances_path: whose file system is what Nova reports as the host's disk.
        """
        found = {}
        if os.stat(self.directory).st_dev == os.stat(instances_path).st_dev:
            found['DISK_GB'] = self._limits[Medium.DISK].quota
        if Medium.MEMORY in self._limits:
            found['MEMORY_MB'] = self._limits[Medium.MEMORY].quota
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
                    items.append(Item(key, status.st_size, status.st_mtime))
        items.extend(Item(key, size, 0.0, busy=True) for key, (there, size) in promised.items()
                     if there is medium)
        return items

    def has_room(self, medium: Medium, image_id: str, size: int) -> bool:
        """Tell whether a file of an image would fit a tier, after evictions if need be.

        :param size: bytes.
        """
        return medium in self._limits and tier.make_room(
            self._items(medium, image_id), self._limits[medium], size).fits

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
                room = tier.make_room(self._items(medium, but), self._limits[medium], size)
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
                self.remove(image_id)
                self.evicted(image_id)
        except (exception.BootcacheError, OSError) as error:
            LOG.warning('image %s: cannot be evicted: %s', image_id, error)

    def remove(self, image_id: str) -> None:
        """Remove a cache image; a server that still runs from it keeps its inode."""
        path = self.path(image_id)
        for name in (f'{path}.json', path, self._memory_path(image_id)):
            if name is not None and os.path.lexists(name):
                os.unlink(name)
        LOG.info('image %s: cache image removed', image_id)

    # Last use.

    def age(self, image_id: str) -> float:
        """Return the seconds since a cache image was last used, or placed."""
        try:
            return time.time() - os.stat(f'{self.path(image_id)}.json').st_mtime
        except FileNotFoundError:
            return 0.0

    def touch(self, image_id: str) -> None:
        """Note that a cache image is used now: the entry's time is that of the last use.

        libvirt may have given the file itself to its own user; the entry stays ours.
        """
        os.utime(f'{self.path(image_id)}.json')
