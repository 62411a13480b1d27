"""Copying a cache image from the storage node's disk to its memory."""

import dataclasses
import os
from collections.abc import Callable

from oslo_log import log as logging

from bootcache import cacheimage, savefile
from bootcache.manifest import CacheInfo, Manifest

LOG = logging.getLogger(__name__)

_CHUNK = 1 << 20


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
