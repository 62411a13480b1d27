"""The files of a host's cache images: names, entries, and when they were used last.

Every cache image has one name, ``<sha1 of the image id>`` in the directory of the disk tier, which
is what overlays have in their headers. One in the memory tier is a symbolic link of that name, so
that it can move between tiers, and be lost with a reboot, without a change to any overlay.

Beside the name lies its entry, a JSON document that names the image, the file's hash and where its
base is (doc/source/formats.rst). A file without an entry does not count.
"""

import contextlib
import dataclasses
import json
import os
import re
import time
from collections.abc import Iterator

from oslo_log import log as logging

from bootcache import cacheimage, exception, naming, savefile, steps, tier
from bootcache.ceph.places import RbdOrigin
from bootcache.locks import KeyedLocks, UsageCounts, leaf
from bootcache.manifest import CacheInfo
from bootcache.tier import Medium
from nova_bootcache.locks import Rank
from nova_bootcache.storagenode import Remote

LOG = logging.getLogger(__name__)

VERSION = 2


@dataclasses.dataclass(frozen=True)
class CacheEntry:
    """A cache image on this host.

    :ivar remote: where its base is.
    :ivar cache_image: the storage service's description of it; None of an empty one.
    :ivar file_sha256: of the file as it lies here; another than the storage service's where the
        header had to be rewritten, or the file was expanded.
    :ivar virtual_bytes: size of the base.
    :ivar pinned: an operator wants it to stay.
    :ivar generation: the storage service's count when it was placed, or used last: a host that
        holds an earlier one than there is lets go of it.
    :ivar expanded: no cluster of the file is compressed here, though the storage service's are, or
        may be.
    """

    remote: Remote
    cache_image: CacheInfo | None
    file_sha256: str
    virtual_bytes: int
    pinned: bool = False
    generation: int = 0
    expanded: bool = False

    def is_of(self, remote: Remote, virtual_bytes: int, cache_image: CacheInfo | None = None
              ) -> bool:
        """Tell whether it is of the content that a base has: an image may get another one.

        :param virtual_bytes: size of the base; 0 if it is not known.
        :param cache_image: of the base; None if there is none.
        """
        if virtual_bytes and virtual_bytes != self.virtual_bytes:
            return False
        if self.remote.image_hash and remote.image_hash:
            return self.remote.image_hash == remote.image_hash
        if self.cache_image is not None and cache_image is not None \
                and self.cache_image.sha256 == cache_image.sha256:
            return True
        return self.remote.export == remote.export

    @classmethod
    def load(cls, path: str) -> 'CacheEntry':
        """Read an entry.

        :raises InvalidManifest: if it cannot be read, is damaged or of another version.
        """
        try:
            with open(path) as stream:
                document = json.load(stream)
            if document['version'] != VERSION:
                raise exception.InvalidManifest(f'{path} is not of version {VERSION}')
            raw = document['cache_image']
            cache_image = None if raw is None else CacheInfo(**raw)
            remote = Remote(**document['remote'], image_hash=str(document['image_hash']),
                            tls=bool(document['tls']), rbd=RbdOrigin.read(document['rbd']))
            return cls(remote, cache_image, document['file_sha256'],
                       int(document['virtual_bytes']), bool(document['pinned']),
                       int(document['generation']), bool(document['expanded']))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise exception.InvalidManifest(f'{path}: {error}') from error

    def save(self, path: str) -> None:
        """Replace the entry atomically.

        :raises OSError: if it cannot be written.
        """
        remote = dataclasses.asdict(self.remote)
        savefile.write_json(path, {
            'version': VERSION, 'image_hash': remote.pop('image_hash'), 'tls': remote.pop('tls'),
            'rbd': remote.pop('rbd'), 'remote': remote,
            'cache_image': self.cache_image and dataclasses.asdict(self.cache_image),
            'file_sha256': self.file_sha256, 'virtual_bytes': self.virtual_bytes,
            'pinned': self.pinned, 'generation': self.generation, 'expanded': self.expanded})


# Of a growing store's file.
STORE_SUFFIX = '.store'
_NAME = re.compile('[0-9a-f]{40}')
_LEFTOVER = re.compile(r'[0-9a-f-]{36,40}(\.json\..*\.tmp|\.tmp|'
                       r'(\.map|\.exchanged|\.expanded|\.difference)?\.partial)')


def is_same_name(path: str, other: str) -> bool:
    """Tell whether two paths are one name in one directory, whatever way leads there.

    A cache image of the memory tier is a link itself, which is not followed.
    """
    return os.path.basename(path) == os.path.basename(other) \
        and os.path.realpath(os.path.dirname(path)) == os.path.realpath(os.path.dirname(other))


def _plain(directory: str) -> str:
    """Return a directory's path as names are made of it: with nothing in it that says nothing.

    A symbolic link stays, as an operator may exchange what it points to. One before ``..`` is
    followed: only that tells which directory is meant.
    """
    if '..' in directory.split(os.sep):
        return os.path.realpath(directory)
    # POSIX gives two slashes at the beginning a meaning of their own.
    return os.path.normpath(directory).replace('//', '/', 1)


class CacheFiles:
    """The cache images of one host, by their names.

    :ivar directory: of the disk tier, and of all names.
    :ivar directories: of the tiers there are.

    :param directory: the same; made if missing.
    :param memory_directory: of the memory tier; None if there is none.
    """

    def __init__(self, directory: str, memory_directory: str | None = None):
        self.directory = _plain(directory)
        self.directories = {Medium.DISK: self.directory}
        if memory_directory is not None:
            self.directories[Medium.MEMORY] = memory_directory
        # The file of an image that this process verified: inode, time and size. Guarded by the
        # lock, held for dictionary steps.
        self._verified: dict[str, tuple[int, int, int]] = {}
        self._lock = leaf('the lock of verified files')
        # Who places an image's file, or waits for that, and does not give way.
        self._waiting = UsageCounts('files that are placed')
        self._placing = KeyedLocks(Rank.PLACING, 'the lock of placing image')

    def prepare(self) -> None:
        """Make the directories, and remove what a crash left half-made.

        :raises OSError: if one cannot be written.
        """
        for directory in self.directories.values():
            os.makedirs(directory, mode=0o755, exist_ok=True)
            for name in os.listdir(directory):
                # The disk tier's directory is ours; the other one may be somebody else's as well.
                if name.endswith(('.partial', '.tmp')) \
                        and (directory == self.directory or _LEFTOVER.fullmatch(name)):
                    os.unlink(os.path.join(directory, name))
        self._remove_unnamed()
        memory = self.directories.get(Medium.MEMORY)
        for name in os.listdir(self.directory):
            path = os.path.join(self.directory, name)
            if os.path.islink(path) and (memory is None or os.readlink(path)
                                         != os.path.join(memory, name)):
                # Of a memory tier that there was; it is fetched again when it is asked for.
                if os.path.basename(os.readlink(path)) == name and _NAME.fullmatch(name):
                    with contextlib.suppress(OSError):
                        os.unlink(os.readlink(path))
                os.unlink(path)
        for name in os.listdir(memory) if memory else ():
            if _NAME.fullmatch(name) and not os.path.islink(os.path.join(self.directory, name)):
                os.unlink(os.path.join(memory or '', name))

    def _remove_unnamed(self) -> None:
        """Remove files whose entry is gone: of a process that ended while it placed another one.

        Nothing says of which content they are, so no server is started on them, and no quota
        counts them. What a server has open stays until it has not.
        """
        for name in os.listdir(self.directory):
            path = os.path.join(self.directory, name)
            # The file system may know no locks.
            with contextlib.suppress(OSError):
                if _NAME.fullmatch(name) and not os.path.exists(f'{path}.json') \
                        and not tier.is_open(path):
                    os.unlink(path)

    # Names and entries.

    def path(self, image_id: str) -> str:
        """Return where an image's cache image is, or would be."""
        return os.path.join(self.directory, naming.cache_file_name(image_id))

    def store_path(self, image_id: str, medium: Medium) -> str:
        """Return where an image's growing store is, or would be."""
        return os.path.join(self.directories[medium], f'{image_id}{STORE_SUFFIX}')

    def coming_path(self, image_id: str, medium: Medium) -> str:
        """Return where an image's cache image is while servers read it and it still comes."""
        return os.path.join(self.directories[medium], f'{image_id}.partial')

    def exchanged_path(self, image_id: str, medium: Medium) -> str:
        """Return where one that servers read comes from other hosts, apart from what they read."""
        return os.path.join(self.directories[medium], f'{image_id}.exchanged.partial')

    def expanding_path(self, image_id: str, medium: Medium) -> str:
        """Return where an image's cache image is while it is being expanded."""
        return os.path.join(self.directories[medium],
                            f'{naming.cache_file_name(image_id)}.expanded.partial')

    def difference_path(self, image_id: str, medium: Medium) -> str:
        """Return where what differs from its parent's is while a cache image is made of it."""
        return os.path.join(self.directories[medium], f'{image_id}.difference.partial')

    def holds_path(self, path: str | None) -> bool:
        """Tell whether a path, such as an overlay's backing file, is a cache image's."""
        # Headers were written under the option's value of then.
        return path is not None and os.path.isabs(path) \
            and os.path.realpath(os.path.dirname(path)) == os.path.realpath(self.directory)

    def medium(self, image_id: str) -> Medium:
        """Return which tier an image's cache image is in."""
        return Medium.MEMORY if os.path.islink(self.path(image_id)) else Medium.DISK

    def entry(self, image_id: str) -> CacheEntry | None:
        """Return an image's entry if its file is there, whole and right; else None.

        The content is read once for each process and file, and after that only if the file's
        inode, time or size is another.
        """
        path = self.path(image_id)
        try:
            entry = CacheEntry.load(f'{path}.json')
            status = os.stat(path)
            rules = entry.cache_image.verify_rules if entry.cache_image else cacheimage.VERIFY_RULES
            with self._lock:
                if self._verified.get(image_id) == savefile.identity(status) \
                        and rules == cacheimage.VERIFY_RULES:
                    return entry
            cacheimage.verify(path, entry.file_sha256, status.st_size)
        except (exception.InvalidManifest, FileNotFoundError) as error:
            if os.path.exists(path):
                LOG.warning('cache image %s cannot be used and is fetched again: %s', path, error)
            return None
        self.note_verified(image_id, status)
        return entry

    def note_verified(self, image_id: str, status: os.stat_result) -> None:
        """Note that the content of an image's file is known to be right."""
        with self._lock:
            self._verified[image_id] = savefile.identity(status)

    def note_doubt(self, image_id: str) -> None:
        """Have the content of an image's file read again before its next use."""
        with self._lock:
            self._verified.pop(image_id, None)

    def note_expanded(self, entry: CacheEntry) -> None:
        """Note that no cluster of a cache image's file is compressed; it is not used by that.

        :raises OSError: if the entry cannot be written.
        """
        path = f'{self.path(entry.remote.image_id)}.json'
        with self.placing_if_free(entry.remote.image_id) as is_alone:
            if is_alone and self.known(entry.remote.image_id) == entry:
                used = os.stat(path).st_mtime
                dataclasses.replace(entry, expanded=True).save(path)
                os.utime(path, (used, used))

    def known(self, image_id: str) -> CacheEntry | None:
        """Return what is noted of an image's cache image, also if its file is gone."""
        with contextlib.suppress(exception.InvalidManifest):
            return CacheEntry.load(f'{self.path(image_id)}.json')
        return None

    def update(self, entry: CacheEntry, remote: Remote, pinned: bool, generation: int
               ) -> CacheEntry:
        """Note where a cache image's base is now, and what the storage service says of it.

        What cannot be written is used all the same, and asked for again the next time.

        :raises BootcacheError: if that base is of another content.
        """
        if (entry.remote, entry.pinned, entry.generation) == (remote, pinned, generation):
            return entry
        path = f'{self.path(remote.image_id)}.json'
        with self.placing(remote.image_id):
            # It may have been replaced meanwhile.
            self.check_content(remote)
            changed = dataclasses.replace(self.known(remote.image_id) or entry,
                                          remote=remote, pinned=pinned, generation=generation)
            try:
                used = os.stat(path).st_mtime
                changed.save(path)
                os.utime(path, (used, used))
            except OSError as error:
                LOG.warning('image %s: what has changed of its cache image is not noted: %s',
                            remote.image_id, error)
        return changed

    def check_content(self, remote: Remote, virtual_bytes: int = 0,
                      cache_image: CacheInfo | None = None) -> None:
        """Check that what is here of an image is of the content that a base has.

        :raises BootcacheError: if it is not: servers' disks here may stand on it.
        """
        known = self.known(remote.image_id)
        if known is not None and not known.is_of(remote, virtual_bytes, cache_image):
            raise exception.BootcacheError(
                f'image {remote.image_id} has another content now ({remote.image_hash or "?"}) than'
                f' the cache image on this host ({known.remote.image_hash or "?"}), on which disks'
                ' of its servers stand; restore the image\'s content, or rebuild these servers')

    def check_stored(self, image_id: str, image_hash: str, base_export: str) -> None:
        """Check that what is here of an image is of the content that the storage service has.

        :param base_export: the exporter's name for the base; empty if it does not tell.
        :raises BootcacheError: if it is not.
        """
        known = self.known(image_id)
        if known is not None:
            self.check_content(dataclasses.replace(
                known.remote, image_hash=image_hash, export=base_export or known.remote.export))

    @contextlib.contextmanager
    def placing(self, image_id: str, gives_way: bool = False) -> Iterator[None]:
        """Have one thread at a time place an image's file, or change its entry.

        :param gives_way: whether it ends when another one waits: see ``is_waited_for``. A server
            may wait for any of these.
        """
        with contextlib.nullcontext() if gives_way else self._waiting.of(image_id), \
                self._placing.of(image_id):
            yield

    @contextlib.contextmanager
    def placing_if_free(self, image_id: str) -> Iterator[bool]:
        """Keep others from placing an image's file; gives False where somebody does just now."""
        lock = self._placing.of(image_id)
        is_alone = lock.acquire(0)
        try:
            yield is_alone
        finally:
            if is_alone:
                lock.release()

    def is_waited_for(self, image_id: str) -> bool:
        """Tell whether somebody waits to place an image's file, and does not give way."""
        return image_id in self._waiting

    def entries(self) -> list[CacheEntry]:
        """Return the entries of all cache images, without a look at their content."""
        found = []
        for name in sorted(os.listdir(self.directory)):
            if name.endswith('.json'):
                try:
                    found.append(CacheEntry.load(os.path.join(self.directory, name)))
                except exception.InvalidManifest as error:
                    LOG.warning('%s', error)
        return found

    def memory_path(self, image_id: str) -> str | None:
        """Return where an image's file in the memory tier is, or would be; None without one."""
        directory = self.directories.get(Medium.MEMORY)
        return directory and os.path.join(directory, naming.cache_file_name(image_id))

    def remove(self, image_id: str) -> None:
        """Remove a cache image; a server that still runs from it keeps its inode."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f'{self.path(image_id)}.json')
        self.remove_file(image_id)

    def remove_file(self, image_id: str) -> None:
        """Remove a cache image's file. Its entry stays: it names the content that disks stand on.

        A server that is stopped may need it, and its image may get another content meanwhile.
        """
        path = self.path(image_id)
        for name in (path, self.memory_path(image_id)):
            if name is not None and os.path.lexists(name):
                os.unlink(name)
        self.note_doubt(image_id)
        LOG.info('image %s: cache image removed', image_id)

    def gone(self, unused_seconds: float) -> list[str]:
        """Return the images of which only the entry is left: evicted, or lost with a memory tier.

        :param unused_seconds: since the last use, at least.
        """
        return [image_id for image_id in (entry.remote.image_id for entry in self.entries())
                if self.is_gone(image_id, unused_seconds)]

    def use_until_now(self) -> None:
        """Note what was last used at a time to come as used now: the clock was set back since.

        It would not grow old before that time.
        """
        for entry in self.entries():
            if self.age(entry.remote.image_id) < 0:
                self.touch(entry.remote.image_id)

    def is_gone(self, image_id: str, unused_seconds: float) -> bool:
        """Tell whether only an image's entry is left.

        :param unused_seconds: since the last use, at least.
        """
        return not os.path.exists(self.path(image_id)) and self.age(image_id) >= unused_seconds

    # Last use.

    def age(self, image_id: str) -> float:
        """Return the seconds since a cache image was last used, or placed."""
        try:
            return time.time() - os.stat(f'{self.path(image_id)}.json').st_mtime
        except FileNotFoundError:
            return 0.0

    def touch(self, image_id: str) -> None:
        """Note that a cache image is used now: the entry's time is that of the last use.

        libvirt may have given the file itself to its own user; the entry stays ours. One that is
        being replaced is new in a moment. Nobody's start depends on it: a directory may have become
        read-only, or the entry be another user's.
        """
        with contextlib.suppress(OSError):
            os.utime(f'{self.path(image_id)}.json')


def place(files: CacheFiles, partial: str, entry: CacheEntry, medium: Medium,
          used: float | None = None) -> None:
    """Put a file into its place; servers that run from an older one keep its inode.

    Whoever calls is the one who places the image's file: see ``CacheFiles.placing``.

    :param partial: the file, in the tier's directory; its sha256 was just computed.
    :param entry: of it.
    :param medium: the tier.
    :param used: when the image was last used, in seconds since the epoch; None for now.
    :raises OSError: if the tier cannot be written.
    """
    final = files.path(entry.remote.image_id)
    os.chmod(partial, 0o644)
    described = f'{final}.json.new.tmp'
    # What takes time comes first: for a moment the image has no entry, and others look.
    savefile.fsync_file(partial)
    entry.save(described)
    if used is not None:
        os.utime(described, (used, used))
    # An older file loses its entry before its name: no entry ever describes another file.
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f'{final}.json')
    steps.reached('place: entry gone')
    stale = files.memory_path(entry.remote.image_id)
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
    steps.reached('place: file there')
    files.note_verified(entry.remote.image_id, os.stat(final))
    os.rename(described, f'{final}.json')
    for directory in set(files.directories.values()):
        savefile.fsync_directory(directory)
