"""What a host notes of a cache image beside the file: doc/source/formats.rst."""

import dataclasses
import json

from bootcache import exception, savefile
from bootcache.ceph.places import RbdOrigin
from bootcache.manifest import CacheInfo
from nova_bootcache.storagenode import Remote

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
            cache_image = None if raw is None else CacheInfo.from_dict(raw)
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
            'cache_image': None if self.cache_image is None else self.cache_image.to_dict(),
            'file_sha256': self.file_sha256, 'virtual_bytes': self.virtual_bytes,
            'pinned': self.pinned, 'generation': self.generation, 'expanded': self.expanded})
