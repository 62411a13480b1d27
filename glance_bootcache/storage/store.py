"""The storage service's state on disk: one directory an image (doc/source/formats.rst)."""

import contextlib
import dataclasses
import os
import secrets
import shutil
from collections.abc import Callable

from oslo_log import log as logging
from oslo_utils import timeutils

from bootcache import exception, naming, savefile, steps
from bootcache.ceph import places
from bootcache.difference import VERSION, CacheDifference
from bootcache.locks import OrderedLock
from bootcache.manifest import Manifest
from bootcache.util.logthrottle import LogThrottle
from bootcache.workingset import WorkingSet
from glance_bootcache.locks import ServiceRank

LOG = logging.getLogger(__name__)
_THROTTLE = LogThrottle(LOG)

_MANIFEST = 'manifest.json'


def _named(manifest: Manifest) -> set[str]:
    """Return the names of a manifest's files; a base that lies elsewhere is not one of them."""
    base = manifest.made.base_path
    names = {os.path.basename(base)} if base and not places.is_clone(base) else set()
    if manifest.made.working_set:
        names.add(manifest.made.working_set.file)
    if manifest.made.cache_image:
        names.add(manifest.made.cache_image.file)
        names.update(_difference_names(manifest.made.cache_image.file))
    return names


def _difference_names(cache_file: str) -> tuple[str, str]:
    """Return the names of the difference that belongs to a cache image, and of its entry.

    They follow from its own name, which is used once: what has them is of no other cache image.
    """
    stem = cache_file.partition('.')[0]
    return f'{stem}.difference', f'{stem}.difference.json'


class ImageStore:
    """The images' directories below ``state_dir``.

    :param state_dir: made if missing.
    :ivar lock: guards each read-decide-write of a manifest, and what has to agree with it: see
        glance_bootcache/locks.py.
    """

    def __init__(self, state_dir: str):
        self._directory = state_dir
        self._images = os.path.join(state_dir, 'images')
        os.makedirs(self._images, mode=0o750, exist_ok=True)
        self.lock = OrderedLock(ServiceRank.STORE, 'the store\'s lock')
        # What was read of each file, with which file that was: hosts' reports ask for hundreds of
        # manifests each. No lock: each step is atomic, and what is read again does no harm.
        self._read: dict[str, tuple[tuple[int, ...], Manifest | None]] = {}

    def state_path(self, name: str) -> str:
        """Return the path of a file that is about no single image."""
        return os.path.join(self._directory, name)

    def directory(self, image_id: str) -> str:
        """Return an image's directory.

        :raises ValueError: if the id is no UUID.
        """
        return os.path.join(self._images, naming.canonical_image_id(image_id))

    def path(self, image_id: str, name: str) -> str:
        """Return the path of a file of an image."""
        return os.path.join(self.directory(image_id), name)

    def cache_path(self, manifest: Manifest) -> str | None:
        """Return the path of an image's cache image, None if it has none."""
        cache = manifest.made.cache_image
        return self.path(manifest.image_id, cache.file) if cache else None

    def difference_path(self, image_id: str, cache_file: str) -> str:
        """Return where the difference is, or would be, that belongs to a cache image.

        :param cache_file: name of the cache image's file.
        """
        return self.path(image_id, _difference_names(cache_file)[0])

    def save_difference(self, image_id: str, cache_file: str, difference: CacheDifference) -> None:
        """Write the entry of a difference whose file is there: from now on it counts.

        :param cache_file: name of the cache image's file.
        :raises OSError: if it cannot be written.
        """
        savefile.write_json(self.path(image_id, _difference_names(cache_file)[1]),
                            {'version': VERSION, **difference.to_dict()})

    def drop_difference(self, image_id: str, cache_file: str) -> None:
        """Remove the difference of a cache image that did not come to be, if there is one.

        :param cache_file: name of the cache image's file.
        """
        for name in reversed(_difference_names(cache_file)):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path(image_id, name))

    def load_difference(self, manifest: Manifest) -> CacheDifference | None:
        """Return what is noted of the difference of an image's cache image; None without one."""
        if manifest.made.cache_image is None:
            return None
        path = self.path(manifest.image_id, _difference_names(manifest.made.cache_image.file)[1])
        try:
            return savefile.read_json(path, VERSION, CacheDifference.from_dict)
        except (OSError, ValueError) as error:
            _THROTTLE.warning(path, 'image %s: its difference is not given out: %s: %s',
                              manifest.image_id, path, error)
            return None

    def new_name(self, kind: str, suffix: str) -> str:
        """Return a file name that was not used before, as ``cache-4f1c9d02.qcow2``."""
        return f'{kind}-{secrets.token_hex(4)}{suffix}'

    def load(self, image_id: str) -> Manifest | None:
        """Return an image's manifest, or None if there is none that can be used.

        A damaged one is logged and counts as none: everything in it can be made again.

        :raises OSError: if it cannot be read, which says nothing of it.
        """
        path = self.path(image_id, _MANIFEST)
        manifest = None
        try:
            file = savefile.identity(os.stat(path))
            read = self._read.get(path)
            if read is not None and read[0] == file:
                return read[1]
            manifest = Manifest.load(path)
        except FileNotFoundError:
            self._read.pop(path, None)
            return None
        except exception.InvalidManifest as error:
            LOG.warning('image %s: %s; it is built again', image_id, error)
        if savefile.signature(path) == file:
            # Not replaced while it was read.
            self._read[path] = file, manifest
        return manifest

    def is_damaged(self, image_id: str) -> bool:
        """Tell whether an image has a manifest that cannot be used: nothing follows from it."""
        return self.load(image_id) is None and os.path.exists(self.path(image_id, _MANIFEST))

    def save(self, manifest: Manifest) -> None:
        """Make a manifest the image's state, then remove the files that only the last one named.

        What is being written meanwhile has no manifest that names it yet, and stays.

        :raises OSError: if it cannot be written.
        """
        os.makedirs(self.directory(manifest.image_id), mode=0o750, exist_ok=True)
        replaced = self.load(manifest.image_id)
        manifest.save(self.path(manifest.image_id, _MANIFEST))
        steps.reached('replace: written')
        for name in _named(replaced) - _named(manifest) if replaced else ():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path(manifest.image_id, name))

    def put(self, manifest: Manifest) -> Manifest:
        """Save a manifest with the time of now, and return it so.

        :raises OSError: if it cannot be written.
        """
        stamped = dataclasses.replace(
            manifest, updated_at=timeutils.utcnow(with_timezone=True).isoformat(timespec='seconds'))
        self.save(stamped)
        return stamped

    def add(self, manifest: Manifest) -> Manifest:
        """Make an image known, unless it is already; return what is known of it.

        :raises OSError: if it cannot be written.
        """
        with self.lock:
            return self.load(manifest.image_id) or self.put(manifest)

    def change(self, image_id: str, change: Callable[[Manifest], Manifest]) -> Manifest | None:
        """Change an image's manifest, and return what it is then; None if there is none.

        :param change: called under the lock; returns its argument to leave it as it is.
        :raises OSError: if it cannot be written.
        """
        with self.lock:
            manifest = self.load(image_id)
            if manifest is None:
                return None
            changed = change(manifest)
            return manifest if changed == manifest else self.put(changed)

    def sweep(self, manifest: Manifest) -> None:
        """Remove what a manifest does not name: left-overs of a crash. Nothing may be in hand."""
        named = _named(manifest) | {_MANIFEST}
        if manifest.made.cache_image is not None and self.load_difference(manifest) is None:
            # It was not finished, and nothing would count it.
            named.difference_update(_difference_names(manifest.made.cache_image.file))
        directory = self.directory(manifest.image_id)
        for name in os.listdir(directory):
            if name not in named:
                os.unlink(os.path.join(directory, name))

    def sweep_forgotten(self) -> None:
        """Remove what a crash left of images that were forgotten: directories without a manifest.

        Before anything is in hand: a directory is made before its manifest is written.
        """
        for name in os.listdir(self._images):
            with contextlib.suppress(ValueError, OSError):
                if _MANIFEST not in os.listdir(self.directory(name)):
                    LOG.info('image %s: its directory has no manifest, and is removed', name)
                    shutil.rmtree(self.directory(name), ignore_errors=True)

    def save_working_set(self, image_id: str, working_set: WorkingSet) -> str:
        """Write a working set under a new name, and return the name.

        It counts when a manifest names it.
        """
        name = self.new_name('working-set', '.json')
        savefile.write_json(self.path(image_id, name), working_set.to_json())
        return name

    def drop_working_set(self, image_id: str, name: str) -> None:
        """Remove a working set that has not come to be the image's.

        :raises OSError: if the manifest cannot be read, or the file not be removed.
        """
        manifest = self.load(image_id)
        if manifest is None or manifest.made.working_set is None \
                or manifest.made.working_set.file != name:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path(image_id, name))

    def load_working_set(self, manifest: Manifest) -> WorkingSet | None:
        """Return the working set that a manifest names, or None if there is none to be used."""
        if manifest.made.working_set is None:
            return None
        try:
            return WorkingSet.load(self.path(manifest.image_id, manifest.made.working_set.file))
        except exception.InvalidWorkingSet as error:
            LOG.warning('image %s: %s', manifest.image_id, error)
            return None

    def manifests(self) -> list[Manifest]:
        """Return the manifests of all images, by id; of one that cannot be read what it was."""
        found = map(self.known, sorted(os.listdir(self._images)))
        return [manifest for manifest in found if manifest is not None]

    def known(self, name: str) -> Manifest | None:
        """Return an image's manifest; of one that cannot be read what it was; else None.

        :param name: its id; there is none of what is no UUID.
        """
        try:
            return self.load(name)
        except ValueError:
            return None
        except OSError as error:
            _THROTTLE.warning(name, 'image %s: its manifest cannot be read: %s', name, error)
            return self._read.get(self.path(name, _MANIFEST), (None, None))[1]

    def remove(self, image_id: str,
               is_retired: Callable[[Manifest], bool] = lambda manifest: True) -> None:
        """Forget an image; the manifest goes first, so that a crash leaves no half-true state.

        :param is_retired: tells whether it is to be, as it is now.
        """
        with self.lock:
            manifest = self.load(image_id)
            if manifest is None or is_retired(manifest):
                self._remove(image_id)

    def _remove(self, image_id: str) -> None:
        directory = self.directory(image_id)
        path = os.path.join(directory, _MANIFEST)
        self._read.pop(path, None)
        if os.path.exists(path):
            os.unlink(path)
            savefile.fsync_directory(directory)
        steps.reached('retire: forgotten')
        shutil.rmtree(directory, ignore_errors=True)
