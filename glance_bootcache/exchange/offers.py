"""Files that the storage node gives by exchange: to whom, and what they are told.

In a full mesh all hosts ask the source for what none of them has; told of two predecessors each,
one copy leaves it, and all can finish as soon as one has. Two of them, never one: one may die. The
storage node is the second one where no other host has asked; not where the only one has all of it.
Those of the same rack come first, so that a rack's link carries a file about once.
"""

import dataclasses
import heapq
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import cachetools
from oslo_config import cfg
from oslo_log import log as logging

from bootcache import conf as bootcache_conf
from bootcache import exception
from bootcache.ceph import places
from bootcache.exchange import patience
from bootcache.exchange.client import ExchangeClient
from bootcache.rpc.messages import (
    BootAction,
    ExchangeBase,
    ExchangeCache,
    ExchangeOffer,
    ExchangeWay,
    ReportExchange,
)
from bootcache.util import threads
from bootcache.util.backoff import CircuitBreaker
from glance_bootcache.availability import served
from glance_bootcache.ceph import basenode
from glance_bootcache.exchange.slots import Slots
from glance_bootcache.images import policy
from glance_bootcache.storage.store import ImageStore
from glance_bootcache.storage.tiers import Content, StorageTiers

LOG = logging.getLogger(__name__)

# Of each the latest are kept.
_MOST_FILES = 500
_MOST_HOSTS = 200


class Given:
    """What hosts told of files that they got."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards what was told, for steps in memory
        # As ``describe`` returns them, by file and host.
        self._files: cachetools.LRUCache[
            tuple[str, str, int], cachetools.LRUCache[str, dict[str, Any]]] = \
            cachetools.LRUCache(_MOST_FILES)
        self._totals = {f'{way}_files': 0 for way in ExchangeWay} | {
            'exchanged_bytes': 0, 'storage_bytes': 0, 'copied_bytes': 0}

    def note(self, message: ReportExchange, kind: str, size: int, names: Mapping[str, str]) -> None:
        """Note how a file came to a host; what it told of before is replaced.

        :param kind: what it is to people.
        :param size: of the file, in bytes; no host got more of it than twice that.
        :param names: of hosts by address; the storage node's has an empty one. Others are left out.
        """
        most = 2 * size
        got = {names[address]: min(count, most) for address, count in message.got
               if address in names}
        copied = min(message.copied, most)
        with self._lock:
            self._files.setdefault(
                (message.image_id, kind, size), cachetools.LRUCache(_MOST_HOSTS))[message.host] = {
                    'file': kind, 'size': size, 'to': message.host, 'way': message.way,
                    'copied': copied, 'got': [list(one) for one in sorted(got.items())]}
            self._totals[f'{message.way}_files'] += 1
            self._totals['copied_bytes'] += copied
            for giver, count in got.items():
                self._totals['exchanged_bytes' if giver else 'storage_bytes'] += count

    def describe(self, image_id: str) -> list[dict[str, Any]]:
        """Return who gave of an image's files to whom; see ImageHosts."""
        with self._lock:
            return [row for (known, _kind, _size), hosts in self._files.items()
                    if known == image_id for row in hosts.values()]

    def totals(self) -> dict[str, int]:
        """Return the counts since the service's start."""
        with self._lock:
            return dict(self._totals)


# Told to each host.
PREDECESSORS = 2

Peer = tuple[str, int]


@dataclasses.dataclass(frozen=True)
class Member:
    """A host that has asked for a file.

    :ivar host: its name.
    :ivar peer: where its exchange listens.
    :ivar rack: what it is near to, as its operator calls it; empty if it does not say.
    :ivar until: when it is counted no longer, in monotonic seconds.
    :ivar is_complete: whether it has all of it.
    """

    host: str
    peer: Peer
    rack: str
    until: float
    is_complete: bool = False


def predecessors(before: Sequence[Member], rack: str, storage: Peer) -> tuple[Peer, ...]:
    """Return from whom a host gets pieces.

    :param before: who asked before it, the last one last.
    :param rack: the host's own.
    :param storage: the storage node's, for the first hosts.
    """
    chosen = heapq.nsmallest(PREDECESSORS, reversed(before),
                             key=lambda member: not rack or member.rack != rack)
    peers = tuple(member.peer for member in chosen)
    if len(chosen) == PREDECESSORS or any(member.is_complete for member in chosen):
        return peers
    return *peers, storage


# Of each file: whoever can write to the message bus can make up names.
_MOST_MEMBERS = 20_000
# Hosts that are told of a file: of two, one is another than the one that asks.
_MOST_TOLD = 2


class Lines:
    """Who stands in which line.

    :param seconds: for which a host that has asked for a file counts as one that gives it.
    :param storage: where the storage node's exchange listens.
    :param clock: monotonic seconds.
    """

    def __init__(self, seconds: float, storage: Peer,
                 clock: Callable[[], float] = time.monotonic):
        self._seconds = seconds
        self._storage = storage
        self._clock = clock
        self._lock = threading.Lock()  # guards the lines, for steps in memory
        self._lines: cachetools.LRUCache[str, dict[str, Member]] = cachetools.LRUCache(_MOST_FILES)
        # Hosts that were told of a file just now.
        self._told: cachetools.LRUCache[str, cachetools.TTLCache[str, None]] = \
            cachetools.LRUCache(_MOST_FILES)

    def tell(self, file: str, host: str) -> bool:
        """Note that a host is told of a file: it is about to get it, and may join its line.

        :param file: its name.
        :returns: whether another host was just now, so that servers there may be waiting for it
            still: many hosts get it at once, which one by one copy it as fast.
        """
        with self._lock:
            told = self._told.setdefault(file, cachetools.TTLCache(
                _MOST_TOLD, patience.SERVERS_WAIT, self._clock))
            others = any(name != host for name in told)
            told[host] = None
            return others

    def join(self, file: str, host: str, peer: Peer, rack: str,
             may_ask_storage: Callable[[bool], bool] = lambda needs: True) -> tuple[Peer, ...]:
        """Have a host stand at the end of a file's line.

        One that stands there already has failed, or was evicted: it comes to the end.

        :param file: its name.
        :param peer: where the host's exchange listens.
        :param may_ask_storage: tells whether it may get pieces from the storage node; called where
            it would, with whether it has nobody else, and the lock of the lines: for a step in
            memory.
        :returns: from whom it gets pieces; none if there is nobody but the storage node, and it may
            not. It does not stand in the line then.
        """
        with self._lock:
            now = self._clock()
            line = self._lines.setdefault(file, {})
            for name in [name for name, member in line.items()
                         if member.until <= now or member.peer == peer or name == host]:
                del line[name]
            found = predecessors(list(line.values()), rack, self._storage)
            if self._storage in found and not may_ask_storage(len(found) == 1):
                found = tuple(peer for peer in found if peer != self._storage)
                if not found:
                    return ()
            if len(line) < _MOST_MEMBERS:
                line[host] = Member(host, peer, rack, now + self._seconds)
            return found

    def has_come(self, file: str, host: str, gives: bool) -> dict[str, str] | None:
        """Note that a host has all of a file.

        :param gives: whether it gives it to others; it leaves the line if it does not.
        :returns: the names of who stands in the line, by address; None if the host does not.
        """
        with self._lock:
            line = self._lines.get(file, {})
            if host not in line:
                return None
            names = {member.peer[0]: name for name, member in line.items()}
            if gives:
                line[host] = dataclasses.replace(line[host], is_complete=True,
                                                 until=self._clock() + self._seconds)
            else:
                del line[host]
            return names


_MOST_TORRENTS = 500
# A host waits for little longer, and copies then; the next one may be told.
_READ_SECONDS = 3
_GIVE_SECONDS = 1
# Full bases that are read for their torrents at a time: the disk is that of every boot.
_READ_AT_ONCE = 2
# For which nobody asks an exchange that was silent: each that does has one of the threads that
# answer hosts, also those of which servers boot.
_SILENCE_SECONDS = 30


class ExchangeOffers:
    """What hosts are told that want a cache image or a full base by exchange.

    :ivar given: what hosts told of what they got.

    :param conf: configuration of the storage service.
    :param store: has the images.
    :param tiers: know where their cache images are.
    """

    def __init__(self, conf: cfg.ConfigOpts, store: ImageStore, tiers: StorageTiers):
        group = conf[bootcache_conf.GROUP]
        # What is given for no time nobody would get.
        self._is_on = bool(group.exchange_address) and group.exchange_linger > 0
        self._seconds = group.exchange_linger
        self._peer = group.exchange_address or '', group.exchange_port
        self._client = ExchangeClient(group.exchange_socket)
        self._lines = Lines(self._seconds, self._peer)
        self.given = Given()
        self._slots = Slots(group.settle_slots)
        self._store = store
        self._tiers = tiers
        self._lock = threading.Lock()  # guards the torrents, for steps in memory
        # With when it was begun, in monotonic seconds.
        self._torrents: cachetools.LRUCache[str, tuple[Future[bytes], float]] = \
            cachetools.LRUCache(_MOST_TORRENTS)
        self._health = CircuitBreaker(1, _SILENCE_SECONDS)

    def offer(self, message: ExchangeCache) -> ExchangeOffer | None:
        """Have a host stand in the line of a cache image.

        It is given what ``plan_boot`` would give it, and nothing else.

        :returns: None if that is not to be had by exchange.
        """
        manifest = self._store.load(message.image_id) if self._is_on else None
        if manifest is None or manifest.made.cache_image is None \
                or manifest.made.cache_image.sha256 != message.sha256 \
                or not policy.gives_out(manifest) \
                or self._tiers.check(manifest) is not Content.RIGHT \
                or not self._health.may_ask():
            return None
        path = self._tiers.path(manifest)
        assert path is not None
        return self._answer(message, 'cache image', message.sha256, path)

    def tell(self, answer: dict[str, Any], host: str) -> dict[str, Any]:
        """Return an answer of ``plan_boot``, with whether other hosts were told of the cache image.

        :param host: that it is for; it counts for others from now on.
        """
        sha256 = answer.get('cache_image', {}).get('sha256')
        # Who waits is not about to get it.
        if not self._is_on or not sha256 or answer.get('action') == BootAction.WAIT:
            return answer
        return {**answer, 'others': self._lines.tell(sha256, host)}

    def offer_base(self, message: ExchangeBase, sender: str) -> ExchangeOffer | None:
        """Have a host stand in the line of an image's stored file.

        It is given what ``serve_stored`` would give it to settle its servers, and nothing else.

        :param sender: who speaks, as for ``take_slot``.
        :returns: None if that is not to be had by exchange.
        """
        image_hash = message.image_hash
        manifest = self._store.load(message.image_id) if self._is_on else None
        if manifest is None or not manifest.made.base_path or not manifest.made.base_hash \
                or manifest.made.base_hash != image_hash \
                or places.is_clone(manifest.made.base_path) or basenode.is_changed(manifest) \
                or not served(manifest.wished.availability).base_to_settle \
                or not manifest.wished.settle or policy.is_unverified(manifest) \
                or not self._health.may_ask():
            return None
        if self._must_wait(image_hash):
            return ExchangeOffer()
        made, _began = self._describe(image_hash, manifest.made.base_path, begins_anew=False)
        if not made.done():
            # Nobody waits for it as a server waits.
            return ExchangeOffer()
        if (fault := made.exception()) is not None:
            # Else each that asks would wait for the next try.
            self._note_fault(message, 'full base', fault)
            self._forget(image_hash)
            return None
        again = 0.0

        def may_ask_storage(needs: bool) -> bool:
            nonlocal again
            again = self._slots.take(sender, waits=needs)
            return not again

        answer = self._answer(message, 'full base', image_hash, manifest.made.base_path,
                              may_ask_storage)
        if answer is None:
            return None
        if not answer.peers:
            return ExchangeOffer(again=again)
        has_slot = self._peer in answer.peers
        # Without one nothing comes from the storage node, also where others do not go on.
        return dataclasses.replace(answer, has_slot=has_slot,
                                   reserve=answer.reserve if has_slot else ())

    def take_slot(self, sender: str) -> float:
        """Have a host get full bases from this storage node; see TakeSlot."""
        return self._slots.take(sender)

    def hold_slot(self, sender: str, holds: bool) -> None:
        """Hear whether a host goes on doing so."""
        self._slots.hold(sender, holds)

    def note(self, message: ReportExchange) -> bool:
        """Hear how a file came to a host that had asked for it.

        :returns: False if it had not asked.
        """
        manifest = self._store.load(message.image_id)
        names = self._lines.has_come(message.file, message.host, message.gives)
        if manifest is None or names is None:
            return False
        cache = manifest.made.cache_image
        if cache is not None and cache.sha256 == message.file:
            kind, size = 'cache image', cache.bytes
        elif manifest.made.base_hash == message.file:
            kind, size = 'full base', manifest.made.stored_bytes
        else:
            return False
        self.given.note(message, kind, size, {**names, self._peer[0]: ''})
        return True

    def _answer(self, message: ExchangeCache | ExchangeBase, what: str, file: str, path: str,
                may_ask_storage: Callable[[bool], bool] = lambda needs: True
                ) -> ExchangeOffer | None:
        try:
            torrent = self._give(file, path)
            self._health.answered()
        except (exception.ExchangeFailed, OSError) as error:
            self._note_fault(message, what, error)
            if error.__cause__ is None:
                # It was answered, and refused.
                self._forget(file)
            return None
        peers = self._lines.join(file, message.host, (message.address, message.port), message.rack,
                                 may_ask_storage)
        return ExchangeOffer(torrent, tuple(peers), (self._peer,))

    def _note_fault(self, message: ExchangeCache | ExchangeBase, what: str,
                    error: BaseException) -> None:
        if isinstance(error.__cause__, TimeoutError):
            self._health.failed()
        LOG.warning('image %s: its %s is not exchanged, and %s copies it: %s', message.image_id,
                    what, message.host, str(error) or 'it is not read yet')

    def _forget(self, file: str) -> None:
        """Have a torrent that was of no use made anew, as where the CA is another one now."""
        with self._lock:
            made, _began = self._torrents.get(file, (None, 0.0))
            if made is not None and made.done():
                del self._torrents[file]

    def _must_wait(self, file: str) -> bool:
        """Tell whether another file has to wait, as so many are read already."""
        with self._lock:
            return file not in self._torrents and sum(
                not made.done() for made, _began in self._torrents.values()) >= _READ_AT_ONCE

    def _describe(self, file: str, path: str, begins_anew: bool = True
                  ) -> tuple[Future[bytes], float]:
        """Have a file's torrent made, once: all of it is read; with when that was begun.

        :param begins_anew: whether it is tried again at once where that failed.
        """
        with self._lock:
            made, began = self._torrents.get(file, (None, 0.0))
            if made is None or (begins_anew and made.done() and made.exception() is not None):
                made, began = self._torrents[file] = threads.daemon_thread(
                    lambda: self._client.describe(path)[0], 'bootcache-torrent'), time.monotonic()
            return made, began

    def _give(self, file: str, path: str) -> bytes:
        """Give a file from this storage node, for as long as the last host may need it."""
        # Who asks while it is read waits for the same.
        made, began = self._describe(file, path)
        torrent = made.result(max(0.0, began + _READ_SECONDS - time.monotonic()))
        # With the above within what a host waits for.
        self._client.with_timeout(_GIVE_SECONDS).give(torrent, path, self._seconds)
        return torrent
