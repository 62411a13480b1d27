"""Copies of cache images in the storage node's memory: their files, and copying one from disk."""

import dataclasses
import os
import re
from collections.abc import Callable, Iterable

from oslo_log import log as logging

from bootcache import cacheimage, savefile
from bootcache.manifest import CacheInfo, Manifest

LOG = logging.getLogger(__name__)

_CHUNK = 1 << 20
# The hash in the name ties a file to one build of one image's cache image.
_NAME = re.compile(r'([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-([0-9a-f]{64})'
                   r'\.qcow2(\.partial)?')


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


def path_of(directory: str, image_id: str, sha256: str) -> str:
    """Return the path of an image's cache image in memory.

    :param sha256: the cache image's.
    """
    return os.path.join(directory, f'{image_id}-{sha256}.qcow2')


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
