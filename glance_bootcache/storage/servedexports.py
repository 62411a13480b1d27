"""What the exporters serve, as a file: a node that reboots serves it without its database.

The file is derived: what the database says is served anyway when it answers. Format:
doc/source/formats.rst.
"""

import dataclasses
import os
import threading
from collections.abc import Collection, Mapping
from typing import Any

from oslo_log import log as logging

from bootcache import savefile
from bootcache.ceph import places
from bootcache.manifest import CacheInfo, Made, Manifest
from bootcache.util.logthrottle import LogThrottle

LOG = logging.getLogger(__name__)

_VERSION = 1
_File = tuple[int, int, int]


@dataclasses.dataclass(frozen=True)
class ServedImage:
    """An image that exporters serve.

    :ivar image_id: its id.
    :ivar base_export: the export's name.
    :ivar path: of the base's file; of one in Ceph its clone.
    :ivar format: of the base, ``qcow2`` or ``raw``.
    :ivar virtual_bytes: size of the base.
    :ivar file: the base's inode, time of the last change in nanoseconds, and size, as they were
        when it was verified; None in Ceph.
    :ivar cache_image: the cache image; None if that is not served.
    :ivar cache_path: of its file.
    :ivar cache_file: likewise.
    :ivar clients: certificates whose exporters serve it; an empty one stands for all hosts.
    """

    image_id: str
    base_export: str
    path: str
    format: str
    virtual_bytes: int
    file: _File | None
    cache_image: CacheInfo | None
    cache_path: str
    cache_file: _File | None
    clients: tuple[str, ...]

    @classmethod
    def of(cls, manifest: Manifest, cache_path: str | None) -> 'ServedImage':
        """Return what a manifest's image is served from; to nobody yet."""
        made = manifest.made
        has_cache = cache_path is not None and made.cache_image is not None
        return cls(
            manifest.image_id, made.base_export, made.base_path, made.image_format,
            made.virtual_bytes, None if places.is_clone(made.base_path)
            else made.verified_file or savefile.signature(made.base_path),
            made.cache_image if has_cache else None, cache_path or '' if has_cache else '',
            savefile.signature(cache_path) if has_cache and cache_path else None, ())

    def is_of(self, manifest: Manifest, cache_path: str | None) -> bool:
        """Return whether it is of a manifest's files, as far as that knows them. Pure."""
        made = manifest.made
        return (self.path, self.base_export, made.verified_file or self.file,
                self.cache_path) == (made.base_path, made.base_export, self.file,
                                     cache_path or '') \
            and (not cache_path or self.cache_image == made.cache_image)

    def manifest(self) -> Manifest:
        """Return it for the exporters; without the cache image if that is another file by now."""
        has_cache = self.cache_file is not None \
            and savefile.signature(self.cache_path) == self.cache_file
        return Manifest(self.image_id, made=Made(
            base_path=self.path, base_export=self.base_export, image_format=self.format,
            virtual_bytes=self.virtual_bytes, base_file=self.file,
            cache_image=self.cache_image if has_cache else None))

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> 'ServedImage':
        """Read an entry.

        :raises ValueError: if it is none; KeyError and TypeError likewise.
        """
        cache = said['cache_image'] and CacheInfo(**said['cache_image'])
        return cls(**{**said, 'cache_image': cache, 'clients': tuple(said['clients']),
                      'file': _file(said['file']), 'cache_file': _file(said['cache_file'])})


def _file(said: Any) -> _File | None:
    if said is None:
        return None
    inode, changed_at, size = said
    return int(inode), int(changed_at), int(size)


class ServedExports:
    """The images that are served, in a file.

    :param path: of the file; without it, or where it is damaged, nothing is known.
    """

    def __init__(self, path: str):
        self._path = path
        self._throttle = LogThrottle(LOG)
        self._lock = threading.Lock()  # guards the dictionary
        self._images: dict[str, ServedImage] = savefile.read_table(
            path, _VERSION,
            lambda document: {said['image_id']: ServedImage.from_json(said)
                              for said in document['images']},
            'bases that no exporter serves are served when the database answers')
        self._written = list(self._images.values())

    def images(self) -> list[ServedImage]:
        """Return the images."""
        with self._lock:
            return list(self._images.values())

    def record(self, manifest: Manifest, cache_path: str | None) -> None:
        """Record from what an image is served."""
        with self._lock:
            known = self._images.get(manifest.image_id)
        if known is not None and known.is_of(manifest, cache_path):
            return
        image = ServedImage.of(manifest, cache_path)
        with self._lock:
            self._images[manifest.image_id] = dataclasses.replace(
                image, clients=known.clients if known is not None else ())

    def write(self, served: Mapping[str, Collection[str] | None]) -> None:
        """Write the file, if it is another one than was written last.

        :param served: names of the exports that are served, by the certificate to whom; None where
            that is not known just now: it is as before.
        """
        # Of thousands of exporters each serves a few.
        unknown = {whose for whose, exports in served.items() if exports is None}
        clients_of: dict[str, set[str]] = {}
        for whose, exports in served.items():
            for export in exports or ():
                clients_of.setdefault(export, set()).add(whose)
        with self._lock:
            images = [dataclasses.replace(image, clients=tuple(sorted(clients)))
                      for image in self._images.values()
                      if (clients := clients_of.get(image.base_export, set())
                          | unknown.intersection(image.clients))]
            if images == self._written:
                return
            self._images = {image.image_id: image for image in images}
        try:
            savefile.write_json(self._path, {
                'version': _VERSION, 'images': [dataclasses.asdict(image) for image in images]})
            self._written = images
            self._throttle.recovered('', '%s can be written again', self._path)
        except OSError as error:
            self._throttle.warning(
                '', '%s cannot be written: %s; after a reboot bases are served when the database'
                ' answers', self._path, error.strerror or error)


def path_beside(path: str) -> str:
    """Return the path of the file in the directory of another one."""
    return os.path.join(os.path.dirname(path), 'exports.json')
