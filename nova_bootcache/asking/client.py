"""What a host asks the storage service for when a server boots."""

import contextlib
import dataclasses
import time
from collections.abc import Callable
from typing import Any

import oslo_messaging as messaging
import tenacity
from oslo_config import cfg
from oslo_log import log as logging

from bootcache import conf as bootcache_conf
from bootcache import exception
from bootcache.ending import BootLimits
from bootcache.exchange.client import Exchanged, FetchProgress
from bootcache.manifest import CacheDifference, CacheInfo
from bootcache.rpc import fields
from bootcache.rpc.client import StorageClient
from bootcache.rpc.fields import MOST_GIVERS
from bootcache.rpc.messages import (
    Answer,
    BootAction,
    ExchangeBase,
    ExchangeCache,
    ExchangeOffer,
    ExchangeWay,
    HoldSlot,
    Message,
    PlanBoot,
    PlanCause,
    ReportExchange,
    ServeStored,
    StoredExport,
    TakeSlot,
)
from bootcache.tier import Medium
from nova_bootcache.asking.placement import Offer, Storage
from nova_bootcache.storagenode import PLAIN, Encryption, Remote

LOG = logging.getLogger(__name__)

_OFFERS = {BootAction.CACHE: Offer.CACHE, BootAction.COLD: Offer.COLD,
           BootAction.RECORD: Offer.PROFILE, BootAction.WAIT: Offer.WAIT}
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
    :ivar is_node_away: whether the storage node that knows more is away.
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
    is_node_away: bool = False

    def comes_too_late(self, patience: float) -> bool:
        """Tell whether to wait is in vain.

        :param patience: seconds for which the server would still wait.
        """
        return self.storage.offer is Offer.WAIT and self.ready_in is not None \
            and self.ready_in > _MARGIN * patience

    def when_patience_ends(self) -> 'Offered':
        """Return what is offered to a server that waits no longer: the base, if it is there; if the
        storage node is away, what its host holds."""
        if self.storage.offer is not Offer.WAIT or (self.remote is None and not self.is_node_away):
            return self
        return dataclasses.replace(self, storage=dataclasses.replace(
            self.storage, offer=Offer.AWAY if self.remote is None else Offer.COLD))

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

    :param answer: of ``plan_boot``, None if the service does not answer.
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
                       ready_in=None if ready_in is None else float(ready_in),
                       is_node_away=answer.get('cause') == PlanCause.NODE_AWAY)
    cache_image = None
    if offer is Offer.CACHE or 'cache_image' in answer:
        cache_image = CacheInfo(**answer['cache_image'])
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
        return fields.read(CacheDifference, said), str(said['export'])
    return None, ''


def _nothing() -> str:
    return ''


@dataclasses.dataclass(frozen=True)
class AsUser:
    """Asks for it; each question goes to other services, and no lock is held over it.

    :ivar verifies_by: the fingerprint of what Nova would verify the image by; raises what Nova
        raises if that cannot be had.
    :ivar download_refusal: why Glance does not let the user download the image; empty if it does,
        or cannot be asked.
    """

    verifies_by: Callable[[], str] = _nothing
    download_refusal: Callable[[], str] = _nothing


_ASK_AGAIN_SECONDS = 1.0
# For which a service is asked again that has too much to answer: many hosts ask at one moment, and
# each gets its answer in a fraction of that. Not longer: the host may have all that it takes.
_REFUSED_SECONDS = 20.0


def _has_too_much(error: BaseException) -> bool:
    """Return whether the storage service has refused a question, as it has too many to answer."""
    return isinstance(error, messaging.RemoteError) \
        and error.exc_type == exception.TooManyMessages.__name__


class HostsClient:
    """The storage service, as one host reaches it.

    :ivar hostname: the host's name for it; empty before the driver is started.

    :param conf: Nova's configuration, with the driver's options registered.
    :param encryption: how this host connects to storage nodes.
    """

    def __init__(self, conf: cfg.ConfigOpts, encryption: Encryption = PLAIN):
        self._conf = conf
        self._encryption = encryption
        self._client: StorageClient | None = None
        self.hostname = ''

    def start(self, hostname: str) -> None:
        """Connect to the message bus.

        :param hostname: the host's name for the storage service.
        """
        self.hostname = hostname
        self._client = StorageClient(self._conf)

    def send(self, message: Message[Answer]) -> Answer:
        """Send a message, and return its answer.

        :raises BootcacheError: if the driver is not started, or the answer makes no sense.
        :raises MessagingException: if the storage service does not answer, or with an error.
        """
        if self._client is None:
            raise exception.BootcacheError('the driver is not started')
        return self._client.send(message)

    def ask(self, image_id: str, server_id: str, profile_token: str | None = None,
            owner: str = '', refused_until: float = 0.0) -> dict[str, Any] | None:
        """Ask the storage service for an image; None if it does not answer.

        :param owner: the server's project, empty if it is not known.
        :param refused_until: to which it is asked again if it has too much to answer, in monotonic
            seconds.
        :raises BootcacheError: if the driver is not started.
        """
        if image_id != image_id.lower():
            # Of Glance's databases some take such an id for another image's.
            return {'action': BootAction.STOCK, 'reason': 'the id of its image is not in lower'
                    ' case'}
        try:
            answer: dict[str, Any] = tenacity.Retrying(
                retry=tenacity.retry_if_exception(_has_too_much), reraise=True,
                stop=lambda _state: time.monotonic() >= refused_until,
                # Not all that were refused at one moment at another one.
                wait=tenacity.wait_random(0.5 * _ASK_AGAIN_SECONDS, 1.5 * _ASK_AGAIN_SECONDS))(
                    self.send, PlanBoot(image_id, self.hostname, server_id, profile_token, owner,
                                        self._encryption.name()))
            return answer
        except (messaging.MessagingTimeout, messaging.MessageDeliveryFailure) as error:
            LOG.warning('bootcache: the storage service does not answer: %s', error)
        except messaging.RemoteError as error:
            if not _has_too_much(error):
                raise
            LOG.warning('bootcache: the storage service has too much to answer: %s', error.value)
        return None

    def ask_for_stored(self, image_id: str) -> StoredExport | None:
        """Ask for an image's stored bytes; None if the image has no base there.

        :raises BootcacheError: if the driver is not started.
        :raises MessagingException: if the storage service does not answer, or with an error.
        """
        return self.send(ServeStored(image_id, self.hostname, self._encryption.name()))

    def take_slot(self) -> None:
        """Get leave to get full bases from the storage node.

        :raises NoSlot: if it is others' turn.
        :raises BootcacheError: if the driver is not started.
        :raises MessagingException: if the storage service does not answer, or with an error.
        """
        again = self.send(TakeSlot(self.hostname))
        if again:
            raise exception.NoSlot(again)

    def hold_slot(self, holds: bool) -> None:
        """Tell that this host uses its slot, or needs it no longer; it need not be heard.

        :param holds: False for the latter.
        """
        try:
            self.send(HoldSlot(self.hostname, holds))
        except (exception.BootcacheError, messaging.MessagingException) as error:
            LOG.info('bootcache: the storage service does not hear of its slot: %s', error)

    def ask_patiently(self, image_id: str, server_id: str = '',
                      profile_token: str | None = None, owner: str = '') -> Offered:
        """Ask the storage service, again while it prepares the image's base."""
        cold_wait = self._conf[bootcache_conf.GROUP].cold_wait
        deadline = time.monotonic() + cold_wait
        refused_until = min(deadline, time.monotonic() + _REFUSED_SECONDS)
        while True:
            offered = parse(image_id, self.ask(image_id, server_id, profile_token, owner,
                                                     refused_until))
            if offered.remote is not None and (
                    reason := self._encryption.refusal(offered.remote.tls)):
                return Offered(Storage(Offer.STOCK), reason)
            left = deadline - time.monotonic()
            if offered.storage.offer is not Offer.WAIT or left <= 0:
                return offered.when_patience_ends()
            if offered.comes_too_late(left):
                return dataclasses.replace(offered, reason=(
                    f'{offered.reason}, which takes {offered.ready_in:.0f} s more; a server waits'
                    f' for [bootcache]cold_wait, {cold_wait} s'))
            time.sleep(_ASK_AGAIN_SECONDS)


class ExchangeAsking:
    """The storage service, for files that come from other hosts.

    :param conf: Nova's configuration, with the driver's options registered.
    :param storage: the storage service, as this host reaches it.
    """

    def __init__(self, conf: cfg.ConfigOpts, storage: HostsClient):
        self._conf = conf[bootcache_conf.GROUP]
        self._storage = storage

    @property
    def socket(self) -> str:
        """The unix socket of this host's exchange."""
        return str(self._conf.exchange_socket)

    @property
    def linger(self) -> float:
        """Seconds for which this host gives on what it got."""
        return float(self._conf.exchange_linger)

    @property
    def is_on(self) -> bool:
        """Whether this host exchanges anything."""
        return bool(self._conf.exchange_address)

    def ask_for_cache(self, image_id: str, sha256: str) -> Exchanged | None:
        """Ask from whom a cache image can be had; others are told that this host gives it soon.

        :param sha256: of its file.
        :returns: None if all of it is to be copied from the storage node.
        """
        return self._ask(image_id, 'cache image', lambda: self._storage.send(ExchangeCache(
            image_id, self._storage.hostname, sha256, *self._self())), sha256)

    def ask_for_base(self, image_id: str, image_hash: str, wait: Callable[[], bool]
                     ) -> Exchanged | None:
        """Ask from whom an image's stored file can be had; likewise.

        :param image_hash: of it, ``algorithm:hexadecimal``.
        :param wait: called while the storage node reads the file: waits a while, and tells whether
            to ask again.
        :raises NoSlot: if it comes from the storage node only, and it is others' turn.
        """
        def ask() -> ExchangeOffer | None:
            while answer := self._storage.send(ExchangeBase(
                    image_id, self._storage.hostname, image_hash, *self._self())):
                if answer.torrent:
                    break
                if answer.again:
                    raise exception.NoSlot(answer.again)
                if not wait():
                    return None
            return answer

        return self._ask(image_id, 'full base', ask, '')

    def report(self, image_id: str, file: str, way: ExchangeWay, progress: FetchProgress | None,
               copied: int, gives: bool) -> None:
        """Tell how a file came that was asked for; nothing happens if nobody hears it.

        :param file: the SHA-256 of a cache image, or the hash of a stored file.
        :param progress: how far it came by exchange, None if not at all.
        :param copied: bytes that came from the storage node's exporter.
        :param gives: whether this host gives it to others.
        """
        got = sorted(progress.peers.items(), key=lambda peer: -peer[1]) if progress else []
        try:
            self._storage.send(ReportExchange(
                image_id, self._storage.hostname, file, way,
                [(address, count) for address, count in got if count][:MOST_GIVERS],
                copied, gives))
        except (exception.BootcacheError, messaging.MessagingException) as error:
            LOG.info('image %s: nobody hears how it came here: %s', image_id, error)

    def _self(self) -> tuple[str, int, str]:
        return self._conf.exchange_address, self._conf.exchange_port, self._conf.exchange_rack

    def _ask(self, image_id: str, what: str, ask: Callable[[], ExchangeOffer | None],
             sha256: str) -> Exchanged | None:
        try:
            answer = ask()
            return None if answer is None else Exchanged(
                answer.torrent, sha256, answer.peers, answer.reserve, answer.has_slot)
        except exception.NoSlot:
            raise
        except (exception.BootcacheError, messaging.MessagingException) as error:
            LOG.info('image %s: its %s is copied, as nobody says who else has it: %s', image_id,
                     what, error)
            return None
