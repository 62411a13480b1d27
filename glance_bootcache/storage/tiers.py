"""The storage node's tiers: every cache image lies on its disk, those in demand in its memory too.

SC13 section 6, Algorithm 1: a storage node copies a cache image that a compute node asks for from
its disk to a tmpfs and serves it from there. Each tier evicts by the cloud's least recent use
(section 3.4): this service hears of every boot, so its record of uses is that of the whole cloud.
"""

import dataclasses
import enum
import os
import re
import time
from collections.abc import Callable, Collection, Iterable

import futurist
from oslo_config import cfg
from oslo_log import log as logging

from bootcache import cacheimage, exception, savefile, steps, tier
from bootcache import conf as bootcache_conf
from bootcache.locks import OrderedLock
from bootcache.manifest import CacheInfo, Manifest
from bootcache.tier import Eviction, Item, Medium
from glance_bootcache import conf as glance_conf
from glance_bootcache.locks import ServiceRank
from glance_bootcache.storage.exporters import Exporters
from glance_bootcache.storage.lastuses import LastUses
from glance_bootcache.storage.store import ImageStore

LOG = logging.getLogger(__name__)

_CHUNK = 1 << 20
# The hash in the name ties a file to one build of one image's cache image.
_NAME = re.compile(r'([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-([0-9a-f]{64})'
                   r'\.qcow2(\.partial)?')
# A compute host fetches a cache image right after it has asked for it. QEMU cannot be asked for
# an export's clients without the risk of cutting one off, so this is how long one counts as being
# fetched. Demoting it meanwhile would disturb nobody; it would only copy to and fro.
_FETCH_SECONDS = 30
# A file's identity, as of bootcache/savefile.py; and that of no file.
_File = tuple[int, int, int]
_UNREAD: _File = (0, 0, 0)


@dataclasses.dataclass(frozen=True)
class MemoryCopy:
    """A cache image in memory.

    :ivar path: of the file.
    :ivar manifest: that it was verified against.
    :ivar signature: of the file then.
    """

    path: str
    manifest: Manifest
    signature: tuple[int, int, int] | None

    def holds(self, manifest: Manifest) -> bool:
        """Tell whether this is a manifest's cache image, and the file still the same one."""
        mine, its = self.manifest.made.cache_image, manifest.made.cache_image
        return mine is not None and its is not None and mine.sha256 == its.sha256 \
            and self.signature is not None and savefile.signature(self.path) == self.signature


def found(directory: str, manifests: Iterable[Manifest]) -> list[tuple[str, Manifest | None]]:
    """Return the paths of the copies that lie in memory, with the image whose cache image each is.

    It is None for what was not copied to its end, and for what is no image's any more. Others'
    files are not told of.

    :raises OSError: if the directory cannot be read.
    """
    known = {(manifest.image_id, manifest.made.cache_image.sha256): manifest
             for manifest in manifests if manifest.made.cache_image is not None}
    copies = []
    for name in sorted(os.listdir(directory)):
        match = _NAME.fullmatch(name)
        if match is None:
            LOG.warning('%s in the storage memory directory is no cache image; it is left'
                        ' alone and not counted', name)
            continue
        manifest = known.get((match[1], match[2])) if match[3] is None else None
        copies.append((os.path.join(directory, name), manifest))
    return copies


def copy(source: str, target: str, info: CacheInfo, check: Callable[[], None]) -> None:
    """Copy a cache image; the target is there when all of it is verified.

    :param check: called between pieces; raises to give the copying up.
    :raises InvalidManifest: if the source is not what was built.
    :raises OSError: if there is no room.
    """
    partial = f'{target}.partial'
    remove(partial)
    try:
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, 'wb') as written, open(source, 'rb') as read:
            while chunk := read.read(_CHUNK):
                check()
                written.write(chunk)
        cacheimage.verify(partial, info.sha256, info.bytes)
        savefile.commit(partial, target)
    finally:
        remove(partial)


def remove(path: str) -> None:
    """Remove a file from memory; what cannot be is logged."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        LOG.error('%s cannot be removed from memory: %s', path, error)


class Content(enum.Enum):
    """What is known of a cache image's content."""

    WRONG = 'there is none, or it is another one than was built'
    UNREAD = 'nobody has read all of it yet'
    RIGHT = 'it is as it was built'


def _cache_bytes(manifest: Manifest) -> int:
    return manifest.made.cache_image.bytes if manifest.made.cache_image is not None else 0


def _sha256(manifest: Manifest) -> str:
    return manifest.made.cache_image.sha256 if manifest.made.cache_image is not None else ''


class StorageTiers:
    """The storage disk tier (``state_dir``) and the storage memory tier, if there is one.

    :param conf: configuration of the storage service, checked by ``check`` and ``check_tiers``.
    :param last_uses: by which cache images are evicted.
    :raises ConfigurationError: if it was not.
    """

    def __init__(self, conf: cfg.ConfigOpts, store: ImageStore, exporter: Exporters,
                 last_uses: LastUses):
        group = conf[bootcache_conf.GROUP]
        self._store = store
        self._exporter = exporter
        self._directory: str | None = group.storage_memory_directory
        self._disk = glance_conf.disk_limits(conf)
        self._memory = glance_conf.memory_limits(conf)
        self._last_uses = last_uses
        self._worker = futurist.ThreadPoolExecutor(max_workers=1)
        self._lock = OrderedLock(ServiceRank.TIERS, 'the tiers\' lock')  # guards what is below
        self._held: dict[str, MemoryCopy] = {}
        self._leaving: set[str] = set()  # of these, which the exporter is told to read no more
        self._wanted: dict[str, Manifest] = {}  # whose copying waits or goes on
        # By path, of which each build has another one: the file as it was when all of it was read
        # and found right, None while it is about to be read.
        self._right: dict[str, _File | None] = {}
        self._damaged: set[str] = set()  # paths of files that are others than were built
        self._stopping = False

    # Starting and stopping.

    def start(self, manifests: Iterable[Manifest]) -> None:
        """Take over what an earlier process left in memory, in the background.

        What is not exactly some image's cache image is removed, and exports that an adopted
        exporter serves from there return to the disk.

        :param manifests: all that there are, after the exporter was told to serve them.
        :raises OSError: if the storage memory directory cannot be read.
        """
        present = list(manifests)
        self._last_uses.keep_only({manifest.image_id for manifest in present})
        with self._lock:
            leftovers = found(self._directory, present) if self._directory else []
            self._wanted.update({manifest.image_id: manifest for _path, manifest in leftovers
                                 if manifest is not None})
            self._worker.submit(self._take_over, leftovers, [
                manifest for manifest in present if manifest.made.cache_image is not None])

    def stop(self) -> None:
        """Give up what is being copied; the exporter serves on."""
        with self._lock:
            self._stopping = True
            self._wanted.clear()
        self._worker.shutdown(wait=True)

    def _take_over(self, leftovers: list[tuple[str, Manifest | None]],
                   manifests: list[Manifest]) -> None:
        for path, manifest in leftovers:
            if manifest is None:
                remove(path)
            else:
                self._bring_in(manifest, path, leftover=True)
        try:
            places = self._exporter.cache_places()
            for manifest in manifests:
                elsewhere = places.get(self._exporter.cache_export(manifest), set()) \
                    - {self._disk_path(manifest)}
                # Only this thread brings any in.
                if elsewhere \
                        and manifest.image_id not in self._held and not self._stopping:
                    self._exporter.switch_cache(manifest, self._disk_path(manifest))
        except exception.BootcacheError as error:
            LOG.warning('the exporter cannot be asked what it serves from memory: %s', error)

    # The cloud's last uses.

    def note_use(self, image_id: str, when: float) -> None:
        """Note that a server boots from an image's cache image; an unknown image is ignored.

        :param when: seconds since the epoch.
        :raises ValueError: if the id is no UUID.
        """
        # Compute hosts tell of uses, and what is noted has an end.
        if self._store.load(image_id) is not None:
            self._last_uses.record(image_id, when)

    def forget_gone(self, manifests: Iterable[Manifest]) -> None:
        """Forget files and last uses of images that are gone.

        :param manifests: of all images, just read.
        """
        gone = [path for path in list(self._right) if not os.path.exists(path)]
        with self._lock:
            for path in gone:
                self._right.pop(path, None)
        self._last_uses.keep_only({manifest.image_id for manifest in manifests})

    def plan_disk(self, manifests: Iterable[Manifest], incoming: int = 0,
                  busy: Collection[str] = ()) -> Eviction:
        """Plan which images' cache images leave the storage disk tier.

        :param manifests: of all images whose cache images count.
        :param incoming: bytes of one that comes in beside them.
        :param busy: ids of those that stay, as they are being fetched or built again.
        """
        return tier.make_room([self._on_disk(manifest, manifest.image_id in busy)
                               for manifest in manifests if manifest.made.cache_image is not None],
                              self._disk, incoming)

    def used(self, manifests: Iterable[Manifest]) -> dict[Medium, int]:
        """Return the bytes of the cache images in each tier.

        :param manifests: of all images.
        """
        used = {Medium.DISK: sum(self._on_disk(manifest, busy=False).bytes
                                 for manifest in manifests)}
        if self.has_memory:
            with self._lock:
                used[Medium.MEMORY] = sum(_cache_bytes(held.manifest)
                                          for held in self._held.values())
        return used

    def quotas(self) -> dict[Medium, int]:
        """Return each tier's quota in bytes."""
        return {Medium.DISK: self._disk.quota} | (
            {Medium.MEMORY: self._memory.quota} if self.has_memory else {})

    def _on_disk(self, manifest: Manifest, busy: bool) -> Item:
        item, difference = self._item(manifest, busy), manifest.made.difference
        return item if difference is None else dataclasses.replace(
            item, bytes=item.bytes + difference.bytes)

    def _item(self, manifest: Manifest, busy: bool) -> Item:
        # As it is now: it may have been pinned while it was copied, or since.
        current = self._store.load(manifest.image_id) or manifest
        return Item(manifest.image_id, _cache_bytes(manifest), self._last_uses.last_of(manifest),
                    current.wished.pinned, busy)

    # Files on the disk.

    def check(self, manifest: Manifest) -> Content:
        """Return what is known of what is served as a cache image.

        Its size on disk is looked at now; all of it in the background, once unless it is changed.
        """
        info = manifest.made.cache_image
        if info is None or self.is_damaged(manifest):
            return Content.WRONG
        path = self._disk_path(manifest)
        try:
            status = os.stat(path)
            fault = '' if status.st_size == info.bytes \
                else f'{path} has {status.st_size} bytes, not {info.bytes}'
        except OSError as error:
            fault = str(error)
        if fault:
            self.note_damage(manifest, fault)
            return Content.WRONG
        file = savefile.identity(status)
        with self._lock:
            if not self._stopping and self._right.get(path, _UNREAD) not in (None, file):
                self._right[path] = None
                self._worker.submit(self._verify, manifest)
            held = self._held.get(manifest.image_id)
            if held is None or manifest.image_id in self._leaving:
                right = self._right.get(path) == file
            else:
                # It was verified. One that was changed since is read until it is gone.
                right = held.holds(manifest)
        return Content.RIGHT if right else Content.UNREAD

    def is_damaged(self, manifest: Manifest) -> bool:
        """Tell whether a cache image's file on the disk was found damaged."""
        return manifest.made.cache_image is not None and self._disk_path(manifest) in self._damaged

    def note_built(self, path: str) -> None:
        """Note that a cache image was just built, and that all of its file was looked at."""
        self._note_right(path, savefile.signature(path))

    def _note_right(self, path: str, file: _File | None) -> None:
        with self._lock:
            if file is None:
                self._right.pop(path, None)
            else:
                self._right[path] = file

    def _verify(self, manifest: Manifest) -> None:
        path = self._disk_path(manifest)
        file, right = savefile.signature(path), None
        try:
            if not self._stopping:
                cacheimage.verify(path, _sha256(manifest), _cache_bytes(manifest))
                right = file
        except exception.InvalidManifest as error:
            self.note_damage(manifest, str(error))
        finally:
            self._note_right(path, right)

    def note_damage(self, manifest: Manifest, reason: str) -> None:
        """Note that a cache image's file on the disk is not what it was: it is not given out."""
        with self._lock:
            current = self._store.load(manifest.image_id)
            if current is None or current.made.cache_image != manifest.made.cache_image:
                # It was replaced, or removed, meanwhile.
                return
            self._damaged.add(self._disk_path(manifest))
        LOG.error('image %s: its cache image on storage disk is damaged, and is built again when a'
                  ' server boots from it: %s', manifest.image_id, reason)

    # The storage memory tier.

    @property
    def has_memory(self) -> bool:
        """Whether there is a storage memory tier."""
        return self._directory is not None

    def medium(self, image_id: str) -> Medium:
        """Return from where an image's cache image is served."""
        with self._lock:
            held = self._held.get(image_id)
            return Medium.DISK if held is None or self._copy_of(held.manifest) is None \
                else Medium.MEMORY

    def path(self, manifest: Manifest) -> str | None:
        """Return the file from which an image's cache image is to be served; None if it has none.

        It is in memory if one was copied there and nobody has changed it since.
        """
        if manifest.made.cache_image is None:
            return None
        with self._lock:
            held = self._copy_of(manifest)
            return held.path if held is not None else self._disk_path(manifest)

    def _copy_of(self, manifest: Manifest) -> MemoryCopy | None:
        """Return the copy that a cache image may be served from; under the lock."""
        held = self._held.get(manifest.image_id)
        return held if held is not None and held.holds(manifest) \
            and manifest.image_id not in self._leaving else None

    def serve(self, manifest: Manifest, certificates: Collection[str] | None = None) -> None:
        """Serve an image's base, and its cache image, if it has one, from the tier that it is in.

        :param certificates: to whom: see ``Exporters.ensure``.
        :raises StorageDaemonError: if the exporter refuses, for instance as a file is gone.
        """
        path = self.path(manifest)
        try:
            self._exporter.ensure(manifest, path, certificates)
        except exception.StorageDaemonError:
            if path == self.path(manifest):
                raise
            # It left memory at that moment.
            self._exporter.ensure(manifest, self.path(manifest), certificates)

    def promote(self, manifest: Manifest) -> None:
        """Have a cache image copied to memory and served from there (SC13 Algorithm 1).

        Returns at once. Without a memory tier, or where it has no room that could be made, the disk
        serves on; so it does after any error, which is logged.
        """
        if self._directory is None or manifest.made.cache_image is None:
            return
        image_id, sha256 = manifest.image_id, manifest.made.cache_image.sha256
        with self._lock:
            held = self._held.get(image_id)
            if held is not None and held.holds(manifest):
                return
            wanted = self._wanted.get(image_id)
            if self._stopping or self.is_damaged(manifest) \
                    or (wanted is not None and _sha256(wanted) == sha256):
                return
            self._wanted[image_id] = manifest
            self._worker.submit(self._bring_in, manifest, os.path.join(
                self._directory, f'{image_id}-{sha256}.qcow2'))

    def demote(self, image_id: str) -> None:
        """Serve a cache image from the disk again, and remove it from memory; readers go on.

        :raises StorageDaemonError: if the exporter refuses; it then stays in memory.
        """
        with self._lock:
            held = self._held.get(image_id)
            if held is None or image_id in self._leaving:
                return
            self._leaving.add(image_id)  # from now on nobody has it served from there
        try:
            self._exporter.switch_cache(held.manifest, self._disk_path(held.manifest))
            with self._lock:
                if self._held.get(image_id) is held:
                    self._discard(image_id)
        finally:
            self._leaving.discard(image_id)
        LOG.info('image %s: its cache image left memory', image_id)

    def forget(self, image_id: str) -> None:
        """Remove an image's cache image from memory, as it was removed or replaced.

        Call it when the exporter serves it no more. Copying it is given up.
        """
        with self._lock:
            self._wanted.pop(image_id, None)
            self._discard(image_id)

    def _disk_path(self, manifest: Manifest) -> str:
        assert manifest.made.cache_image is not None
        return self._store.path(manifest.image_id, manifest.made.cache_image.file)

    def _discard(self, image_id: str) -> None:
        held = self._held.pop(image_id, None)
        if held is not None:
            remove(held.path)

    # The work, in the worker's thread.

    def _bring_in(self, manifest: Manifest, path: str, leftover: bool = False) -> None:
        """Copy a cache image unless it is a leftover, verify it, and have it served from there."""
        image_id, began, entered = manifest.image_id, time.monotonic(), False
        is_in_part = False
        try:
            if self._make_room(manifest):
                if leftover:
                    cacheimage.verify(path, _sha256(manifest), _cache_bytes(manifest))
                else:
                    assert manifest.made.cache_image is not None
                    copy(self._disk_path(manifest), path, manifest.made.cache_image,
                                 lambda: self._check_wanted(manifest))
                    steps.reached('promote: copied')
                entered = self._enter(manifest, path)
        except exception.Cancelled:
            LOG.debug('image %s: copying it to memory was given up', image_id)
        except (exception.BootcacheError, OSError) as error:
            if isinstance(error, exception.InvalidManifest) and not leftover:
                self.note_damage(manifest, str(error))
            else:
                LOG.error('image %s: not served from memory: %s', image_id, error)
                # Of several exporters others may serve it from there.
                is_in_part = isinstance(error, exception.StorageDaemonError)
        except Exception:
            LOG.exception('image %s: unexpected error while it was copied to memory', image_id)
        with self._lock:
            if self._wanted.get(image_id) is manifest:
                del self._wanted[image_id]
        if entered:
            LOG.info('image %s: cache image of %d bytes in memory after %.2f s', image_id,
                     _cache_bytes(manifest), time.monotonic() - began)
        elif not (leftover or is_in_part):
            remove(path)
        elif not self._stopping:
            # The exporter may be serving it.
            try:
                self._exporter.switch_cache(manifest, self._disk_path(manifest))
            except exception.BootcacheError as error:
                LOG.error('image %s: %s', image_id, error)
            remove(path)

    def _check_wanted(self, manifest: Manifest) -> None:
        if self._wanted.get(manifest.image_id) is not manifest:
            raise exception.Cancelled('the cache image is not wanted in memory any more')

    def _make_room(self, manifest: Manifest) -> bool:
        self._check_wanted(manifest)
        # Of another build, or damaged since.
        self.demote(manifest.image_id)
        with self._lock:
            room = tier.make_room(
                [self._item(held.manifest,
                            abs(time.time() - self._last_uses.last_of(held.manifest))
                            < _FETCH_SECONDS)
                 for held in self._held.values()], self._memory, _cache_bytes(manifest))
        if not room.fits:
            LOG.info('image %s: no room in memory for its cache image of %d bytes; the disk'
                     ' serves it', manifest.image_id, _cache_bytes(manifest))
            return False
        for image_id in room.evict:
            self.demote(image_id)
        return True

    def _enter(self, manifest: Manifest, path: str) -> bool:
        self._check_wanted(manifest)
        self._exporter.switch_cache(manifest, path)
        with self._lock:
            # Where it was forgotten meanwhile, the exporter does not serve it any more.
            self._check_wanted(manifest)
            self._held[manifest.image_id] = MemoryCopy(path, manifest, savefile.signature(path))
        return True
