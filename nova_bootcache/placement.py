"""What a server's root disk is chained to: the compute side of SC13's Algorithm 1. Pure."""

import dataclasses
import enum
from typing import Any

from bootcache import exception, rpcapi
from bootcache.manifest import CacheInfo


class Chain(enum.Enum):
    """What the overlay is put on."""

    STOCK = 'stock'          # Nova's own way
    CACHE = 'cache'          # the host's cache image, fetched first where the host lacks it
    RECORDING = 'recording'  # a growing store on the base: this is a profile boot


@dataclasses.dataclass(frozen=True)
class Server:
    """What is known of a server whose root disk is to be made.

    :ivar image_id: its image.
    :ivar disk_name: ``disk`` for a root disk, ``disk.rescue`` and others else.
    :ivar kernel_id: of a separate kernel, empty if none.
    :ivar has_trusted_certs: Nova is to check the image's signature while it downloads.
    :ivar is_unshelving: the image is a snapshot that Nova deletes afterwards.
    :ivar preallocates: Nova is to allocate all of the disk's space.
    """

    image_id: str | None
    disk_name: str
    kernel_id: str
    has_trusted_certs: bool
    is_unshelving: bool
    preallocates: bool


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to do.

    :ivar chain: what the overlay is put on.
    :ivar reason: for the stock way.
    :ivar fetch: whether the host has to fetch the cache image.
    :ivar cache_image: for CACHE: the one to chain to.
    """

    chain: Chain
    reason: str = ''
    fetch: bool = False
    cache_image: CacheInfo | None = None


def stock_reason(server: Server, enabled: bool, host_has_stock_base: bool) -> str:
    """Return why a server goes the stock way whatever the storage side has, or an empty string."""
    if not enabled:
        return '[bootcache]enabled is off'
    if server.disk_name != 'disk':
        return f'{server.disk_name} is not a root disk'
    if not server.image_id:
        return 'the disk is not made from an image'
    if server.kernel_id:
        return 'the image has a separate kernel'
    if server.has_trusted_certs:
        return 'the image\'s signature is checked while all of it is downloaded'
    if server.is_unshelving:
        return 'a shelved server\'s own image is used once only'
    if server.preallocates:
        return 'preallocate_images is on'
    if host_has_stock_base:
        return 'the host has the full base already'
    return ''


def plan(answer: dict[str, Any] | None, host_cache: CacheInfo | None) -> Plan:
    """Return what to do, given the storage service's answer.

    SC13, Algorithm 1: if a cache image exists on the compute node, chain to it; if one exists on
    the storage node, create the compute node's from it.

    :param answer: of ``plan_boot``, see bootcache/rpcapi.py; None if the service does not answer.
    :param host_cache: the host's cache image, None if it has none.
    """
    if answer is None:
        if host_cache is None:
            return Plan(Chain.STOCK, 'the storage service does not answer')
        return Plan(Chain.CACHE, cache_image=host_cache)
    action = answer.get('action')
    if action == rpcapi.ACTION_RECORD:
        return Plan(Chain.RECORDING)
    if action == rpcapi.ACTION_CACHE:
        try:
            cache_image = CacheInfo.from_dict(answer.get('cache_image'))
        except exception.InvalidManifest as error:
            return Plan(Chain.STOCK, f'the storage service\'s answer is not understood: {error}')
        return Plan(Chain.CACHE, cache_image=cache_image,
                    fetch=host_cache is None or host_cache.sha256 != cache_image.sha256)
    return Plan(Chain.STOCK, str(answer.get('reason') or 'the storage service gave no reason'))
