"""Snapshots' cache images that are made on this host, of their parent's and what differs.

What was made takes the place that the storage service's would have, with the same entry, as one
that was expanded has. Whatever goes wrong, all of the cache image is fetched, as without any of
this: nothing that is put together counts before it is verified.
"""

import contextlib
import os
import time

from oslo_log import log as logging

from bootcache import (
    cacheimage,
    cachelayout,
    difference,
    exception,
    green,
    naming,
    qemuimg,
    savefile,
)
from bootcache.tier import Medium
from bootcache.workingset import Extent
from nova_bootcache.asking.client import Offered
from nova_bootcache.cache.cachefiles import CacheEntry, CacheFiles, place
from nova_bootcache.storagenode import Encryption, nbd_node
from nova_bootcache.tiers.room import Room

LOG = logging.getLogger(__name__)

# As for a fetch, see there: a boot waits.
_GRACE_SECONDS = 30
_SLOWEST = 128 << 10


class Differences:
    """Makes cache images of their parents', where these are on this host.

    :param files: the host's cache images.
    :param room: of the tiers.
    :param gateway_socket: has to be in every header.
    :param encryption: how this host connects to storage nodes.
    """

    def __init__(self, files: CacheFiles, room: Room, gateway_socket: str, encryption: Encryption):
        self._files = files
        self._room = room
        self._gateway_socket = gateway_socket
        self._encryption = encryption

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

    def make(self, offered: Offered, medium: Medium, rate: int = 0) -> CacheEntry:
        """Make a cache image, verify it, and put it into its place.

        :param offered: one that ``applies``.
        :param medium: the tier.
        :param rate: bytes a second at which what differs comes at most; 0 for a server that waits.
        :returns: what is noted of it, or of the same one that was there before.
        :raises Cancelled: if it was paced, and a server came to wait for it.
        :raises BootcacheError: if it cannot be made, has no room, or is not what was announced.
        :raises OSError: if the tier cannot be written.
        """
        remote, info, wanted = offered.remote, offered.cache_image, offered.difference
        assert remote is not None and info is not None and wanted is not None
        image_id = remote.image_id
        with self._files.placing(image_id, gives_way=bool(rate)):
            self._files.check_content(remote, info.virtual_bytes, info)
            entry = self._files.entry(image_id)
            if entry is not None and entry.cache_image is not None \
                    and entry.cache_image.sha256 == info.sha256:
                return entry
            # All of it was read, since this process began: what is wrong would be right later.
            if self._files.entry(wanted.parent) is None:
                raise exception.BootcacheError('its parent\'s has gone, or is damaged')
            # It is used, and must not be what has to go for it.
            self._files.touch(wanted.parent)
            with self._room.for_fetch(image_id, medium, self.room(offered)):
                began = time.monotonic()
                path = self._files.difference_path(image_id, medium)
                partial = os.path.join(self._files.directories[medium],
                                       f'{naming.cache_file_name(image_id)}.partial')
                try:
                    self._get(offered, path, rate)
                    self._put_together(offered, path, partial, rate)
                    made = CacheEntry(remote, info, savefile.file_digest(partial),
                                      info.virtual_bytes, offered.pinned, offered.generation,
                                      expanded=True)
                    place(self._files, partial, made, medium)
                finally:
                    for name in (path, partial):
                        with contextlib.suppress(FileNotFoundError):
                            os.unlink(name)
            LOG.info('image %s: cache image made in compute %s of that of image %s and %d bytes'
                     ' that differ, in %.2f s', image_id, medium.value, wanted.parent, wanted.bytes,
                     time.monotonic() - began)
            return made

    def _get(self, offered: Offered, path: str, rate: int) -> None:
        """Copy what differs from the storage node, and verify it."""
        remote, wanted = offered.remote, offered.difference
        assert remote is not None and wanted is not None
        node = {'driver': 'raw', 'file': nbd_node(
            remote.host, remote.port, offered.difference_export,
            self._encryption.credentials(remote.tls))}
        seconds = _GRACE_SECONDS + (2 * wanted.bytes / min(rate, _SLOWEST) if rate
                                    else wanted.bytes / _SLOWEST)
        if rate:
            qemuimg.copy_paced(node, path, length=wanted.bytes, rate=rate, seconds=seconds,
                               check=lambda: self._check(remote.image_id, rate))
        else:
            qemuimg.copy_raw(node, path, seconds=seconds, stalled=_GRACE_SECONDS)
        cacheimage.verify(path, wanted.sha256, wanted.bytes)

    def _put_together(self, offered: Offered, path: str, partial: str, rate: int) -> None:
        remote, info, wanted = offered.remote, offered.cache_image, offered.difference
        assert remote is not None and info is not None and wanted is not None
        # Of a large one that takes seconds of CPU.
        layout = green.aside(lambda: difference.read_layout(path, wanted))
        if (layout.virtual_bytes, layout.cluster_bytes) != (info.virtual_bytes, info.cluster_bytes):
            raise exception.BootcacheError('what differs is of another size')
        difference.put_together(self._files.path(wanted.parent), path, partial, layout,
                                lambda: self._check(remote.image_id, rate), is_awaited=not rate)
        difference.verify(partial, layout, wanted.content)
        qemuimg.set_backing_pointer(partial, naming.nbd_unix_uri(
            self._gateway_socket, naming.export_name(naming.EXPORT_BASE, remote.image_id)), 'raw')

    def _check(self, image_id: str, rate: int) -> None:
        if rate and self._files.is_waited_for(image_id):
            raise exception.Cancelled(f'a server waits for the cache image of {image_id}')
