"""Snapshots' cache images that are made on this host, of their parent's and what differs.

What was made takes the place that the storage service's would have, with the same entry, as one
that was expanded has. Whatever goes wrong, all of the cache image is fetched, as without any of
this: nothing that is put together counts before it is verified.
"""

import os
from collections.abc import Callable

from bootcache import cacheimage, cachelayout, difference, exception, qemuimg
from bootcache.util import threads
from bootcache.workingset import Extent
from nova_bootcache.asking.client import Offered
from nova_bootcache.cache.cachefiles import CacheFiles


class Differences:
    """Makes cache images of their parents', where these are on this host.

    :param files: the host's cache images.
    """

    def __init__(self, files: CacheFiles):
        self._files = files

    def applies(self, offered: Offered) -> bool:
        """Tell whether a cache image can be made here, as far as is known without a look at files.

        Its parent's is here, of the content that the storage service means.
        """
        if offered.difference is None or offered.cache_image is None or offered.remote is None:
            return False
        parent = self._files.known(offered.difference.parent)
        return parent is not None and parent.cache_image is not None \
            and parent.remote.image_hash == offered.difference.parent_hash \
            and os.path.exists(self._files.path(offered.difference.parent))

    def room(self, offered: Offered) -> int:
        """Return what a cache image takes at most that is made here, and what it is made of, in
        bytes."""
        info = offered.cache_image
        assert info is not None and offered.difference is not None
        size, whole = info.cluster_bytes, (Extent(0, info.virtual_bytes),)
        return info.data_bytes + size + cachelayout.metadata_bytes(
            whole, size, info.virtual_bytes) + offered.difference.bytes

    def make(self, offered: Offered, path: str, partial: str, base_uri: str,
             check: Callable[[], None], is_awaited: bool) -> None:
        """Make a cache image of its parent's and of what differs, and verify both.

        :param offered: one that ``applies``.
        :param path: of what differs.
        :param partial: of the file that is made.
        :param base_uri: has to be in its header.
        :param check: called now and then; what it raises ends it.
        :param is_awaited: whether a server waits for it.
        :raises BootcacheError: if it cannot be made, or is not what was announced.
        :raises OSError: if the tier cannot be written.
        """
        info, wanted = offered.cache_image, offered.difference
        assert info is not None and wanted is not None
        cacheimage.verify(path, wanted.sha256, wanted.bytes)
        # Of a large one that takes seconds of CPU.
        layout = threads.run_native(lambda: difference.read_layout(path, wanted))
        if (layout.virtual_bytes, layout.cluster_bytes) != (info.virtual_bytes, info.cluster_bytes):
            raise exception.BootcacheError('what differs is of another size')
        difference.put_together(self._files.path(wanted.parent), path, partial, layout, check,
                                is_awaited=is_awaited)
        difference.verify(partial, layout, wanted.content)
        qemuimg.set_backing_pointer(partial, base_uri, 'raw')
