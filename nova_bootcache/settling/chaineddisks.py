"""Which disks of a host's servers stand on a cache image: each is looked at once."""

import os
from collections.abc import Collection

from bootcache import exception, qemuimg
from bootcache.locks import leaf
from nova_bootcache.cache.cachefiles import CacheFiles
from nova_bootcache.settling import pivot
from nova_bootcache.settling.pivotstate import DISK


class ChainedDisks:
    """Knows them, by their inodes; any thread may ask, and have one forgotten.

    :param cache: the host's cache images.
    """

    def __init__(self, cache: CacheFiles):
        self._cache = cache
        # Inodes of disks, and the names of the cache images below them, by directory; how often
        # one was forgotten. Guarded by the lock, held for dictionary steps.
        self._known: dict[str, tuple[int, str]] = {}
        self._forgotten = 0
        self._lock = leaf('the lock of known disks')

    def is_in(self, directory: str) -> bool:
        """Tell whether the disk in a server's directory stands on a cache image.

        One whose move is under way does until that is over, whatever it is called just now: so that
        is looked at last.
        """
        return bool(self.name_below(directory)) or pivot.is_under_way(directory)

    def name_below(self, directory: str) -> str:
        """Return the name of the cache image that a disk stands on; empty if on none."""
        key, path, forgotten = os.path.basename(directory), os.path.join(directory, DISK), \
            self._forgotten
        try:
            inode = os.stat(path).st_ino
            known = self._known.get(key)
            if known is not None and known[0] == inode:
                return known[1]
            if not qemuimg.is_qcow2(path):
                return ''
            backing = qemuimg.info(path, 'qcow2').get('full-backing-filename')
        except (OSError, exception.BootcacheError):
            # Not there yet, or of another kind.
            return ''
        name = os.path.basename(str(backing)) if self._cache.holds_path(backing) else ''
        if name or backing is None or os.path.exists(backing):
            # Only Nova's work on the server, and settling itself, change it. One that came from
            # another host, and whose base is not here, is still to be put onto a cache image.
            with self._lock:
                if self._forgotten == forgotten:
                    self._known[key] = inode, name
        return name

    def forget(self, server_id: str) -> None:
        """Look at a server's disk again: it may stand on something else by now."""
        with self._lock:
            for key in server_id, f'{server_id}_resize':
                self._known.pop(key, None)
            self._forgotten += 1

    def keep_only(self, names: Collection[str]) -> None:
        """Forget the disks of directories that are gone: of deleted servers, or moved ones."""
        for name in set(self._known).difference(names):
            self.forget(name)
