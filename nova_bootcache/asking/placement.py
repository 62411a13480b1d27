"""What a server's root disk is chained to: Algorithm 1 of SC13, section 6. Pure.

``stock_reason`` tells whether bootcache has anything to do with a disk at all; ``plan`` is the
algorithm. Both take plain values and give plain values, so that they can be tested over all of
their input space, and run unchanged in a simulation.
"""

import dataclasses
import enum
from collections.abc import Callable, Mapping

from bootcache.tier import Medium


class PlanStep(enum.Enum):
    """One thing to do; a plan has them in the order in which they are done."""

    STOCK = 'boot Nova\'s own way'
    PROFILE = 'record a profile boot in a store of its own'
    PROMOTE = 'ask the storage node to copy its cache image to tmpfs'
    FETCH_TO_MEMORY = 'fetch the cache image into compute memory'
    FETCH_TO_DISK = 'fetch the cache image onto compute disk'
    USE_LOCAL = 'use the cache image that is here: note where its base is now'
    MAKE_EMPTY = 'make an empty cache image'
    SERVE_BASE = 'serve the base through the gateway'
    ARRIVE_IN_MEMORY = 'have the cache image come into compute memory, and servers read from it'
    ARRIVE_ON_DISK = 'have the cache image come onto compute disk, and servers read from it'
    AWAIT = 'wait for some seconds while other hosts give the cache image'
    GROW = 'copy on read into the growing store'
    CHAIN = 'put the overlay on the cache image'
    WATCH = 'report what the boot reads'


# Nova's name of it.
ROOT_DISK = 'disk'

# Where these steps put a cache image: a server waits for a fetch, and not for what arrives.
FETCH = {PlanStep.FETCH_TO_MEMORY: Medium.MEMORY, PlanStep.FETCH_TO_DISK: Medium.DISK}
ARRIVE = {PlanStep.ARRIVE_IN_MEMORY: Medium.MEMORY, PlanStep.ARRIVE_ON_DISK: Medium.DISK}


class Offer(enum.Enum):
    """What the storage side has for an image."""

    AWAY = 'the storage service does not answer'
    STOCK = 'nothing, for a reason'
    WAIT = 'the base is being prepared'
    COLD = 'the base only'
    CACHE = 'a cache image'
    PROFILE = 'this server is its profile boot'


class HeldHere(enum.Enum):
    """What the host has for an image."""

    NOTHING = 'nothing'
    EMPTY = 'an empty cache image: servers of the image booted cold here'
    ARRIVING = 'a cache image on its way, from which servers read'
    OLDER = 'a cache image, but not the one that is offered'
    CURRENT = 'the cache image that is offered, or the only one there is to have'


class TierRoom(enum.Enum):
    """What a tier has room for, after eviction if need be, of an image's cache image."""

    NONE = 'nothing'
    FILE = 'its file'
    ARRIVAL = 'its file, and what it takes to be read from on its way, which is worth it'


class Trust(enum.Enum):
    """What a host makes of the cache image that is offered, after what came of it here before."""

    FULL = 'it is fetched'
    PAUSED = 'it came wrong a while ago: the base is read, and later it is fetched again'
    UNREADABLE = 'this host\'s QEMU cannot read it: the base is read'
    NONE = 'it came wrong time and again: nothing of the image is read from there'


# Why a server goes the stock way though the storage side has something for it.
CAME_WRONG = 'its cache image came wrong to this host, time and again'


@dataclasses.dataclass(frozen=True)
class Server:
    """What is known of a server whose root disk is to be made.

    :ivar image_id: its image.
    :ivar disk_name: ``disk`` for a root disk, ``disk.rescue`` and others else.
    :ivar kernel_id: of a separate kernel, empty if none.
    :ivar checks_signature: Nova is to check the image's signature while it downloads: by trusted
        certificates of the server's, or for all images.
    :ivar is_unshelving: the image is a snapshot that Nova deletes afterwards.
    :ivar preallocates: Nova is to allocate all of the disk's space.
    :ivar is_signed: the image has a signature, whether or not Nova is to check it.
    :ivar owner: the server's project; empty if it is not known.
    """

    image_id: str | None
    disk_name: str
    kernel_id: str
    checks_signature: bool
    is_unshelving: bool
    preallocates: bool
    is_signed: bool = False
    owner: str = ''


@dataclasses.dataclass(frozen=True)
class Host:
    """The compute node, C in the paper.

    :ivar held: what it has for the image.
    :ivar memory_room: what its memory tier has room for.
    :ivar disk_room: the same of its disk tier.
    :ivar store_room: whether there is room for a growing store in any tier.
    :ivar trust: in the cache image that is offered.
    :ivar asks_others: whether it asks other hosts for that.
    """

    held: HeldHere
    memory_room: TierRoom
    disk_room: TierRoom
    store_room: bool
    trust: Trust = Trust.FULL
    asks_others: bool = False


@dataclasses.dataclass(frozen=True)
class Storage:
    """The storage node, S in the paper.

    :ivar offer: what it has for the image.
    :ivar medium: where its cache image lies.
    :ivar has_memory: whether it has a memory tier.
    :ivar wants_report: whether it can use another record of what a boot reads.
    :ivar has_others: whether it has told other hosts of its cache image just now.
    """

    offer: Offer
    medium: Medium = Medium.DISK
    has_memory: bool = False
    wants_report: bool = False
    has_others: bool = False


Plan = tuple[PlanStep, ...]


def stock_reason(server: Server, enabled: bool, host_has_stock_base: bool) -> str:
    """Return why a server goes the stock way whatever the storage side has, or an empty string."""
    if not enabled:
        return '[bootcache]enabled is off'
    if server.disk_name != ROOT_DISK:
        return f'{server.disk_name} is not a root disk'
    if not server.image_id:
        return 'the disk is not made from an image'
    if server.kernel_id:
        return 'the image has a separate kernel'
    if server.is_unshelving:
        return 'its image is a temporary snapshot, as a shelved server\'s'
    if server.preallocates:
        return 'preallocate_images is on'
    if host_has_stock_base:
        return 'the host has the full base already'
    return ''


def unverified_reason(server: Server, signature: str, wanted: Callable[[], str]) -> str:
    """Return why what is offered counts as unverified for a server; an empty string if it does not.

    Stock Nova verifies an image's bytes while it downloads them, where it is to. The storage
    service did that with the bytes that it serves: by the signature and the key that Nova would
    take for this server, or it does not count.

    :param signature: the fingerprint of what they were verified by; empty if they were not.
    :param wanted: has Nova get, and validate, what it would verify them by; only asked where there
        is something to compare it with. An error of its is left to the caller.
    """
    if not server.checks_signature and not server.is_signed:
        return ''
    if not signature:
        return ('the image\'s signature is checked by stock Nova, as the storage service has not'
                ' verified it')
    if server.checks_signature and wanted() != signature:
        return ('the image\'s signature, or its certificate, is not the one by which the storage'
                ' service has verified it: stock Nova checks it')
    return ''


def plan(host: Host, storage: Storage) -> Plan:
    """Return the steps by which an overlay comes to be: SC13, Algorithm 1.

    The paper's lines, and where they are here:

    1. *if Cache exists in C: return Cache*: branch 1. Also while the storage service is away, as
       the exporter and the gateway do not need it. An older cache image of the same image is as
       right as the offered one, and is used where the new one has no room.
    2. *if Cache exists in S*: branch 2.
    3. *if Cache is on disk: copy it to tmpfs*: PROMOTE. The exporter switches under its readers.
    4. *create NewCache on C, chain it to Cache, return NewCache*: ARRIVE: the server reads from the
       storage node's while the new one comes, see nova_bootcache/gateway/arrivingimage.py. A small
       one is fetched before, as is one whose boot is watched: the growing store that takes has
       the same place. Where other hosts get it just now, the server waits while they give it, for
       some seconds at most: AWAIT. In compute memory first, as in section 5.1, else on
       compute disk; without room in either the boot reads from the base.
    5. *create Cache on C, chain it to Base, return Cache*: branch 3. The empty cache image is the
       name that is replaced once there is a whole one; the data is in the gateway's growing store.
    6. *copy Cache to S on VM shutdown*: WATCH. Extents travel, never data, and at the boot's end.

    The paper has no words for what is not to be had: STOCK. WAIT is asked again by the caller, and
    the stock way when its patience ends. Nor has it for a cache image that comes damaged: the boot
    reads from the base, and goes the stock way where that has happened too often. Nor for one that
    C cannot read: the boot reads from the base as well.
    """
    offer = storage.offer
    if offer is Offer.PROFILE:
        return (PlanStep.PROFILE,)
    if offer in (Offer.STOCK, Offer.WAIT):
        return (PlanStep.STOCK,)
    is_watched = storage.wants_report and host.store_room
    ending: Plan = PlanStep.SERVE_BASE, PlanStep.CHAIN
    if is_watched:
        ending = PlanStep.SERVE_BASE, PlanStep.GROW, PlanStep.CHAIN, PlanStep.WATCH
    fetch = _medium(host) if _is_to_have(host, storage) else None
    # One is about to exist in C. A boot that is watched waits for it.
    arrived = _meanwhile(host, storage)
    if host.held is HeldHere.ARRIVING and (fetch is None or not is_watched):
        return PlanStep.SERVE_BASE, *arrived, PlanStep.CHAIN
    # 1. A cache image exists in C.
    if host.held is HeldHere.CURRENT or (host.held is HeldHere.OLDER and fetch is None):
        return (PlanStep.USE_LOCAL, *ending)
    if offer is Offer.AWAY and host.held is HeldHere.NOTHING:
        return (PlanStep.STOCK,)
    if offer is Offer.CACHE and host.trust is Trust.NONE:
        return (PlanStep.STOCK,)
    here = PlanStep.MAKE_EMPTY if host.held is HeldHere.NOTHING else PlanStep.USE_LOCAL
    # 2. One exists in S.
    if fetch is not None:
        promote = _promote(storage)
        if _room(host, fetch) is TierRoom.ARRIVAL and not is_watched:
            return (*promote, here, PlanStep.SERVE_BASE, _step(ARRIVE, fetch), *arrived,
                    PlanStep.CHAIN)
        return (*promote, _step(FETCH, fetch), *ending)
    # 3. None anywhere, or no room for it.
    if host.store_room and not is_watched:
        ending = (PlanStep.SERVE_BASE, PlanStep.GROW, PlanStep.CHAIN)
    return (here, *ending)


def _is_to_have(host: Host, storage: Storage) -> bool:
    return storage.offer is Offer.CACHE and host.trust is Trust.FULL


def _room(host: Host, medium: Medium) -> TierRoom:
    return host.memory_room if medium is Medium.MEMORY else host.disk_room


def _medium(host: Host) -> Medium | None:
    """Return the tier into which a cache image is to come, None if it has no room."""
    return next((medium for medium in (Medium.MEMORY, Medium.DISK)
                 if _room(host, medium) is not TierRoom.NONE), None)


def _step(steps: Mapping[PlanStep, Medium], medium: Medium) -> PlanStep:
    return next(step for step, target in steps.items() if target is medium)


def _meanwhile(host: Host, storage: Storage) -> Plan:
    """Return what a server does before it reads from what arrives."""
    return (PlanStep.AWAIT,) if storage.has_others and host.asks_others else ()


def _promote(storage: Storage) -> Plan:
    return (PlanStep.PROMOTE,) if storage.has_memory and storage.medium is Medium.DISK else ()


def plan_warming(host: Host, storage: Storage) -> Plan:
    """Return the steps by which a host is warmed before a server asks: the same, without a server.

    An empty plan: there is nothing to have now, and may be later. STOCK: the image is none of
    bootcache's. The base is not served before it is needed, as that takes milliseconds; nobody
    reads from it meanwhile, so it is fetched, and does not arrive.
    """
    if storage.offer in (Offer.STOCK, Offer.PROFILE):
        return (PlanStep.STOCK,)
    if storage.offer is Offer.WAIT:
        return ()
    fetch = _medium(host) if _is_to_have(host, storage) else None
    if host.held is HeldHere.CURRENT or (host.held is HeldHere.OLDER and fetch is None):
        return (PlanStep.USE_LOCAL,)
    if storage.offer is Offer.CACHE and host.trust is Trust.NONE:
        return (PlanStep.STOCK,)
    if fetch is None:
        return ()
    return (*_promote(storage), _step(FETCH, fetch))
