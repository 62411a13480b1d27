"""Live snapshots of servers that run from a cache image.

Nova makes a snapshot's delta file with ``libvirt_utils.create_image`` on the server's own backing
file, and that function refuses a backing file which has one itself: the API says nothing, and the
image record vanishes. For our own cache images, which are verified, the delta is made here.
"""

import functools
from typing import Any

from nova.virt.libvirt import utils as libvirt_utils

from bootcache import qemuimg
from nova_bootcache.cache.cachefiles import CacheFiles


def allow_on(cache: CacheFiles) -> None:
    """Let Nova create overlays on this host's cache images; all else stays as it is.

    :param cache: tells which backing files are ours.
    """
    stock = getattr(libvirt_utils.create_image, '__wrapped__', libvirt_utils.create_image)

    @functools.wraps(stock)
    def create_image(path: str, disk_format: str, disk_size: Any, *arguments: Any,
                     **named: Any) -> None:
        backing_file = arguments[0] if arguments else named.get('backing_file')
        if disk_format == 'qcow2' and cache.holds_path(backing_file):
            assert backing_file is not None
            qemuimg.create_overlay(path, int(disk_size), backing_file, 'qcow2',
                                   cluster_bytes=65536)
        else:
            stock(path, disk_format, disk_size, *arguments, **named)

    libvirt_utils.create_image = create_image
