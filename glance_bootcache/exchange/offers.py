"""Files that the storage node gives by exchange: to whom, and what they are told."""

import base64
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import cachetools
from oslo_config import cfg
from oslo_log import log as logging

from bootcache import beside, exception, rpcapi
from bootcache import conf as bootcache_conf
from bootcache.breaker import Breaker
from bootcache.ceph import places
from bootcache.exchange.client import ExchangeClient
from glance_bootcache import decisions
from glance_bootcache.availability import served
from glance_bootcache.ceph import basenode
from glance_bootcache.exchange.given import Given
from glance_bootcache.exchange.lines import Lines
from glance_bootcache.exchange.order import Peer
from glance_bootcache.exchange.slots import Slots
from glance_bootcache.storage.contents import Content
from glance_bootcache.storage.store import ImageStore
from glance_bootcache.storage.tiers import StorageTiers

LOG = logging.getLogger(__name__)

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
        self._health = Breaker(1, _SILENCE_SECONDS)

    def offer(self, image_id: str, host: str, sha256: str, address: str, port: int,
              rack: str) -> dict[str, Any] | None:
        """Have a host stand in the line of a cache image; see ``exchange_cache`` in rpcapi.

        It is given what ``plan_boot`` would give it, and nothing else.

        :returns: None if that is not to be had by exchange.
        """
        manifest = self._store.load(image_id) if self._is_on else None
        if manifest is None or manifest.made.cache_image is None \
                or manifest.made.cache_image.sha256 != sha256 \
                or not decisions.gives_out(manifest) \
                or self._tiers.check(manifest) is not Content.RIGHT \
                or not self._health.may_ask():
            return None
        path = self._tiers.path(manifest)
        assert path is not None
        return self._answer(image_id, 'cache image', host, sha256, path, (address, port), rack)

    def tell(self, answer: dict[str, Any], host: str) -> dict[str, Any]:
        """Return an answer of ``plan_boot``, with whether other hosts were told of the cache image.

        :param host: that it is for; it counts for others from now on.
        """
        sha256 = answer.get('cache_image', {}).get('sha256')
        # Who waits is not about to get it.
        if not self._is_on or not sha256 or answer.get('action') == rpcapi.ACTION_WAIT:
            return answer
        return {**answer, 'others': self._lines.tell(sha256, host)}

    def offer_base(self, image_id: str, host: str, image_hash: str, address: str, port: int,
                   rack: str, sender: str) -> dict[str, Any] | None:
        """Have a host stand in the line of an image's stored file; see ``exchange_base`` in rpcapi.

        It is given what ``serve_stored`` would give it to settle its servers, and nothing else.

        :param sender: who speaks, as for ``take_slot``.
        :returns: None if that is not to be had by exchange.
        """
        manifest = self._store.load(image_id) if self._is_on else None
        if manifest is None or not manifest.made.base_path or not manifest.made.base_hash \
                or manifest.made.base_hash != image_hash \
                or places.is_clone(manifest.made.base_path) or basenode.is_changed(manifest) \
                or not served(manifest.wished.availability).base_to_settle \
                or not manifest.wished.settle or decisions.is_unverified(manifest) \
                or not self._health.may_ask():
            return None
        if self._must_wait(image_hash):
            return {'wait': True}
        made, _began = self._describe(image_hash, manifest.made.base_path, begins_anew=False)
        if not made.done():
            # Nobody waits for it as a server waits.
            return {'wait': True}
        if (fault := made.exception()) is not None:
            # Else each that asks would wait for the next try.
            self._note_fault(image_id, 'full base', host, fault)
            self._forget(image_hash)
            return None
        again = 0.0

        def may_ask_storage(needs: bool) -> bool:
            nonlocal again
            again = self._slots.take(sender, waits=needs)
            return not again

        answer = self._answer(image_id, 'full base', host, image_hash, manifest.made.base_path,
                              (address, port), rack, may_ask_storage)
        if answer is None:
            return None
        if not answer['peers']:
            return {'wait': True, 'again': again}
        has_slot = list(self._peer) in answer['peers']
        # Without one nothing comes from the storage node, also where others do not go on.
        return {**answer, 'slot': has_slot, 'reserve': answer['reserve'] if has_slot else []}

    def take_slot(self, sender: str) -> float:
        """Have a host get full bases from this storage node; see ``take_slot`` in rpcexchange."""
        return self._slots.take(sender)

    def hold_slot(self, sender: str, holds: bool) -> None:
        """Hear whether a host goes on doing so."""
        self._slots.hold(sender, holds)

    def note(self, image_id: str, host: str, file: str, way: str, got: Sequence[tuple[str, int]],
             copied: int, gives: bool) -> bool:
        """Hear how a file came to a host that had asked for it; see ``report_exchange``.

        :returns: False if it had not asked.
        """
        manifest, names = self._store.load(image_id), self._lines.has_come(file, host, gives)
        if manifest is None or names is None:
            return False
        cache = manifest.made.cache_image
        if cache is not None and cache.sha256 == file:
            kind, size = 'cache image', cache.bytes
        elif manifest.made.base_hash == file:
            kind, size = 'full base', manifest.made.stored_bytes
        else:
            return False
        self.given.note(image_id, kind, size, host, way, got, copied,
                        {**names, self._peer[0]: ''})
        return True

    def _answer(self, image_id: str, what: str, host: str, file: str, path: str, peer: Peer,
                rack: str, may_ask_storage: Callable[[bool], bool] = lambda needs: True
                ) -> dict[str, Any] | None:
        try:
            torrent = self._give(file, path)
            self._health.answered()
        except (exception.ExchangeFailed, OSError) as error:
            self._note_fault(image_id, what, host, error)
            if error.__cause__ is None:
                # It was answered, and refused.
                self._forget(file)
            return None
        peers = self._lines.join(file, host, peer, rack, may_ask_storage)
        return {'torrent': base64.b64encode(torrent).decode(),
                'peers': [list(told) for told in peers],
                'reserve': [list(self._peer)]}

    def _note_fault(self, image_id: str, what: str, host: str, error: BaseException) -> None:
        if isinstance(error.__cause__, TimeoutError):
            self._health.failed()
        LOG.warning('image %s: its %s is not exchanged, and %s copies it: %s', image_id, what, host,
                    str(error) or 'it is not read yet')

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
                made, began = self._torrents[file] = beside.begin(
                    lambda: self._client.describe(path)[0], 'bootcache-torrent'), time.monotonic()
            return made, began

    def _give(self, file: str, path: str) -> bytes:
        """Give a file from this storage node, for as long as the last host may need it."""
        # Who asks while it is read waits for the same.
        made, began = self._describe(file, path)
        torrent = made.result(max(0.0, began + _READ_SECONDS - time.monotonic()))
        # With the above within what a host waits for.
        self._client.within(_GIVE_SECONDS).give(torrent, path, self._seconds)
        return torrent
