"""The cache images that a host holds: fetched, verified, placed atomically, removed when unused.

Beside each file lies its entry, a JSON document that names the image, the file's hash and where its
base is (doc/source/formats.rst). A file without an entry does not count.
"""

import dataclasses
import json
import os
import threading
import time

from oslo_concurrency import lockutils
from oslo_log import log as logging

from bootcache import cacheimage, exception, naming, qemuimg, savefile
from bootcache.manifest import CacheInfo
from nova_bootcache.gateway import Remote

LOG = logging.getLogger(__name__)

VERSION = 1


@dataclasses.dataclass(frozen=True)
class Entry:
    """A cache image on this host.

    :ivar remote: where its base is.
    :ivar cache_image: the storage service's description of it.
    :ivar file_sha256: of the file as it lies here; another than the storage service's where the
        header had to be rewritten.
    """

    remote: Remote
    cache_image: CacheInfo
    file_sha256: str

    @classmethod
    def load(cls, path: str) -> 'Entry':
        """Read an entry.

        :raises InvalidManifest: if it cannot be read, is damaged or of another version.
        """
        try:
            with open(path) as stream:
                document = json.load(stream)
            if document['version'] != VERSION:
                raise exception.InvalidManifest(f'{path} is not of version {VERSION}')
            return cls(Remote(**document['remote']), CacheInfo.from_dict(document['cache_image']),
                       document['file_sha256'])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise exception.InvalidManifest(f'{path}: {error}') from error

    def save(self, path: str) -> None:
        """Replace the entry atomically.

        :raises OSError: if it cannot be written.
        """
        savefile.write_json(path, {'version': VERSION, 'remote': dataclasses.asdict(self.remote),
                                   'cache_image': self.cache_image.to_dict(),
                                   'file_sha256': self.file_sha256})


class HostCache:
    """The directory of this host's cache images.

    :param directory: made if missing.
    :param gateway_socket: has to be in every header.
    """

    def __init__(self, directory: str, gateway_socket: str):
        self.directory = directory
        self._gateway_socket = gateway_socket
        # Files verified by this process, by inode, time and size; guarded by the lock.
        self._verified: set[tuple[int, int, int]] = set()
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Make the directory, and remove what a crash left half-made.

        :raises OSError: if it cannot be written.
        """
        os.makedirs(self.directory, mode=0o755, exist_ok=True)
        for name in os.listdir(self.directory):
            if name.endswith(('.partial', '.tmp')):
                os.unlink(os.path.join(self.directory, name))

    def path(self, image_id: str) -> str:
        """Return where an image's cache image is, or would be."""
        return os.path.join(self.directory, naming.cache_file_name(image_id))

    def holds_path(self, path: str | None) -> bool:
        """Tell whether a path, such as an overlay's backing file, is a cache image's."""
        return path is not None and os.path.dirname(path) == self.directory

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
            with self._lock:
                if seen in self._verified \
                        and entry.cache_image.verify_rules == cacheimage.VERIFY_RULES:
                    return entry
            cacheimage.verify(path, entry.file_sha256, status.st_size)
        except (exception.InvalidManifest, FileNotFoundError) as error:
            if os.path.exists(path):
                LOG.warning('cache image %s cannot be used and is fetched again: %s', path, error)
            return None
        with self._lock:
            self._verified.add(seen)
        return entry

    def move(self, entry: Entry, remote: Remote) -> Entry:
        """Note that a cache image's base is elsewhere now.

        :raises OSError: if the entry cannot be written.
        """
        moved = dataclasses.replace(entry, remote=remote)
        moved.save(f'{self.path(remote.image_id)}.json')
        return moved

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

    def fetch(self, remote: Remote, cache_image: CacheInfo, cache_export: str) -> Entry:
        """Get a cache image from a storage node, verify it, and put it into its place.

        Servers that run from an older one keep its inode. Two servers of one image that start
        together fetch once.

        :param cache_export: the exporter's name for the file.
        :raises BootcacheError: if it cannot be fetched or is not what was announced.
        :raises OSError: if the directory cannot be written.
        """
        final = self.path(remote.image_id)
        partial = f'{final}.partial'
        with lockutils.lock(f'bootcache-{naming.cache_file_name(remote.image_id)}'):
            entry = self.entry(remote.image_id)
            if entry is not None and entry.cache_image.sha256 == cache_image.sha256:
                return entry
            began = time.monotonic()
            try:
                qemuimg.copy_raw(f'nbd://{remote.host}:{remote.port}/{cache_export}', partial)
                cacheimage.verify(partial, cache_image.sha256, cache_image.bytes)
                file_sha256 = self._point_home(partial, remote.image_id, cache_image)
                os.chmod(partial, 0o644)
                entry = Entry(remote, cache_image, file_sha256)
                # An older file loses its entry first: no entry ever describes another file.
                if os.path.exists(f'{final}.json'):
                    os.unlink(f'{final}.json')
                savefile.commit(partial, final)
                entry.save(f'{final}.json')
            finally:
                if os.path.exists(partial):
                    os.unlink(partial)
            LOG.info('image %s: cache image of %d bytes fetched in %.2f s', remote.image_id,
                     cache_image.bytes, time.monotonic() - began)
            return entry

    def _point_home(self, path: str, image_id: str, cache_image: CacheInfo) -> str:
        wanted = naming.nbd_unix_uri(self._gateway_socket,
                                     naming.export_name(naming.EXPORT_BASE, image_id))
        if cache_image.backing_uri == wanted:
            return cache_image.sha256
        LOG.info('image %s: the header names %s; it is rewritten for this host\'s'
                 ' [bootcache]gateway_socket', image_id, cache_image.backing_uri)
        qemuimg.set_backing_pointer(path, wanted, 'raw')
        return savefile.file_digest(path)

    def remove(self, image_id: str) -> None:
        """Remove a cache image; a server that still runs from it keeps its inode."""
        path = self.path(image_id)
        for name in (f'{path}.json', path):
            if os.path.exists(name):
                os.unlink(name)
        LOG.info('image %s: cache image removed', image_id)

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
