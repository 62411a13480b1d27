"""Which disks of a host's servers stand on a cache image: each is looked at once."""

import os
from collections.abc import Callable, Collection

from bootcache import exception, qemuimg
from nova_bootcache.cache.cachefiles import CacheFiles
from nova_bootcache.settling.localservers import LocalServer


class ChainedDisks:
    """Knows them, by their inodes; Nova's threads forget some as well: each step is atomic.

    :param cache: the host's cache images.
    :param hangs: tells whether a server's move hangs half done: its disk may be called by the other
        one's name.
    """

    def __init__(self, cache: CacheFiles, hangs: Callable[[LocalServer], bool]):
        self._cache = cache
        self._hangs = hangs
        # Inodes of disks, and whether they stand on a cache image, by server.
        self._known: dict[str, tuple[int, bool]] = {}

    def is_one(self, server: LocalServer) -> bool:
        """Tell whether a server's disk stands on a cache image."""
        if self._hangs(server):
            return True
        try:
            inode = os.stat(server.disk).st_ino
            known = self._known.get(server.server_id)
            if known is not None and known[0] == inode:
                return known[1]
            if not qemuimg.is_qcow2(server.disk):
                return False
            backing = qemuimg.info(server.disk, 'qcow2').get('full-backing-filename')
        except (OSError, exception.BootcacheError):
            # Not there yet, or of another kind.
            return False
        chained = self._cache.holds_path(backing)
        if chained or backing is None or os.path.exists(backing):
            # Only Nova's work on the server, and settling itself, change it. One that came from
            # another host, and whose base is not here, is still to be put onto a cache image.
            self._known[server.server_id] = inode, chained
        return chained

    def is_in(self, directory: str) -> bool:
        """Tell whether the disk in a server's directory does."""
        return self.is_one(
            LocalServer(os.path.basename(directory), '', False, 0.0, directory, ''))

    def forget(self, server_id: str) -> None:
        """Look at a server's disk again: it may stand on something else by now."""
        self._known.pop(server_id, None)

    def keep_only(self, server_ids: Collection[str]) -> None:
        """Forget the disks of servers that were deleted, or went to another host."""
        for server_id in set(self._known).difference(server_ids):
            self.forget(server_id)
