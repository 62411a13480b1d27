"""What the storage service answered to ``plan_boot``, read and checked. Pure."""

import contextlib
import dataclasses
from typing import Any

from bootcache import exception, rpcapi
from bootcache.difference import CacheDifference
from bootcache.ending import BootLimits
from bootcache.manifest import CacheInfo
from bootcache.tier import Medium
from nova_bootcache.asking.placement import Offer, Storage
from nova_bootcache.storagenode import Remote

_OFFERS = {rpcapi.ACTION_CACHE: Offer.CACHE, rpcapi.ACTION_COLD: Offer.COLD,
           rpcapi.ACTION_RECORD: Offer.PROFILE, rpcapi.ACTION_WAIT: Offer.WAIT}
# A download may become faster; to go the stock way costs this host another one.
_MARGIN = 1.25


@dataclasses.dataclass(frozen=True)
class Watch:
    """How a boot is to be watched whose reads are to be reported.

    :ivar limits: when it is over.
    :ivar marker: regular expression that a console line of a finished boot matches.
    """

    limits: BootLimits
    marker: str


@dataclasses.dataclass(frozen=True)
class Offered:
    """What the storage side has for one image.

    :ivar storage: for :func:`nova_bootcache.asking.placement.plan`.
    :ivar reason: for the stock way.
    :ivar remote: where the base is, None if it is not served.
    :ivar virtual_bytes: size of the base.
    :ivar image_hash: ``algorithm:hexadecimal`` of the image's stored bytes.
    :ivar cache_image: what is offered, None if there is none.
    :ivar cache_export: the exporter's name for it.
    :ivar pinned: an operator wants hosts to keep it.
    :ivar watch: how to watch the boot, None if its reads are of no use.
    :ivar generation: a host that holds an earlier one than this is to let go of it.
    :ivar is_verified: whether the storage service knows that its file is as it was built: servers
        read from what arrives before this host has seen all of it.
    :ivar ready_in: seconds until the base is here, at least; None if nobody knows.
    :ivar difference: from its parent's cache image; None if there is none.
    :ivar difference_export: the exporter's name for that.
    :ivar signature: by what the base was verified, empty if it was not:
        :func:`bootcache.signatures.fingerprint`.
    """

    storage: Storage
    reason: str = ''
    remote: Remote | None = None
    virtual_bytes: int = 0
    image_hash: str = ''
    cache_image: CacheInfo | None = None
    cache_export: str = ''
    pinned: bool = False
    watch: Watch | None = None
    generation: int = 0
    ready_in: float | None = None
    is_verified: bool = True
    signature: str = ''
    difference: CacheDifference | None = None
    difference_export: str = ''

    def comes_too_late(self, patience: float) -> bool:
        """Tell whether to wait is in vain.

        :param patience: seconds for which the server would still wait.
        """
        return self.storage.offer is Offer.WAIT and self.ready_in is not None \
            and self.ready_in > _MARGIN * patience

    def when_patience_ends(self) -> 'Offered':
        """Return what is offered to a server that waits no longer: the base, if it is there."""
        if self.storage.offer is not Offer.WAIT or self.remote is None:
            return self
        return dataclasses.replace(self, storage=dataclasses.replace(
            self.storage, offer=Offer.COLD))

    def for_a_move(self) -> 'Offered':
        """Return what is offered to a server that comes from another host.

        It does not boot, so there is nothing to watch; and where its image was deleted or opted
        out meanwhile, its base is all the same what it needs.
        """
        offer = self.storage.offer
        if offer is Offer.STOCK and self.remote is not None:
            offer = Offer.COLD
        return dataclasses.replace(self, watch=None, storage=dataclasses.replace(
            self.storage, offer=offer, wants_report=False, has_others=False))


def parse(image_id: str, answer: dict[str, Any] | None) -> Offered:
    """Read an answer; one that makes no sense is a reason for the stock way.

    :param answer: of ``plan_boot``, see bootcache/rpcapi.py; None if the service does not answer.
    """
    if answer is None:
        return Offered(Storage(Offer.AWAY), 'the storage service does not answer')
    try:
        return _parse(image_id, answer)
    except (exception.BootcacheError, KeyError, ValueError, TypeError, AttributeError,
            OverflowError) as error:
        return Offered(Storage(Offer.STOCK),
                       f'the storage service\'s answer is not understood: {error!r}')


def _parse(image_id: str, answer: dict[str, Any]) -> Offered:
    offer = _OFFERS.get(answer.get('action', ''), Offer.STOCK)
    reason = str(answer.get('reason') or '')
    if offer in (Offer.STOCK, Offer.WAIT) and not reason:
        reason = 'the storage service gave no reason'
    if 'base_export' not in answer and offer in (Offer.STOCK, Offer.WAIT):
        ready_in = answer.get('ready_in')
        return Offered(Storage(offer), reason,
                       ready_in=None if ready_in is None else float(ready_in))
    cache_image = None
    if offer is Offer.CACHE or 'cache_image' in answer:
        cache_image = CacheInfo.from_dict(answer['cache_image'])
    raw = answer.get('watch')
    watch = None
    if raw is not None:
        watch = Watch(BootLimits(int(raw['quota']), float(raw['linger']), float(raw['silence']),
                                 float(raw['timeout'])), str(raw['marker']))
    difference, difference_export = _difference(answer.get('difference'))
    storage = Storage(offer, Medium(answer.get('medium', 'disk')), bool(answer.get('has_memory')),
                      watch is not None, bool(answer.get('others')))
    return Offered(storage, reason, Remote.from_answer(image_id, answer),
                   int(answer['virtual_bytes']), str(answer.get('image_hash', '')), cache_image,
                   str(answer['cache_export']) if cache_image else '',
                   bool(answer.get('pinned', False)), watch, int(answer.get('generation', 0)),
                   is_verified=bool(answer.get('verified', False)),
                   signature=str(answer.get('signature', '')),
                   difference=difference if cache_image else None,
                   difference_export=difference_export)


def _difference(said: Any) -> tuple[CacheDifference | None, str]:
    """Read what is told of a difference; where it is none, all of the cache image is got."""
    with contextlib.suppress(KeyError, TypeError, ValueError):
        return CacheDifference.from_dict(said), str(said['export'])
    return None, ''
