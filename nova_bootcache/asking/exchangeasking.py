"""What a host asks the storage service, and tells it, of files that come from other hosts."""

import base64
from collections.abc import Callable
from typing import Any

import oslo_messaging as messaging
from oslo_config import cfg
from oslo_log import log as logging

from bootcache import conf as bootcache_conf
from bootcache import exception, rpcexchange
from bootcache.exchange.client import FetchProgress, Peer
from bootcache.exchange.fetching import Exchanged
from nova_bootcache.asking.client import HostsClient

LOG = logging.getLogger(__name__)


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
        return self._ask(image_id, 'cache image', lambda: self._storage.api.exchange_cache(
            image_id, self._storage.hostname, sha256, *self._self()), sha256)

    def ask_for_base(self, image_id: str, image_hash: str, wait: Callable[[], bool]
                     ) -> Exchanged | None:
        """Ask from whom an image's stored file can be had; likewise.

        :param image_hash: of it, ``algorithm:hexadecimal``.
        :param wait: called while the storage node reads the file: waits a while, and tells whether
            to ask again.
        :raises NoSlot: if it comes from the storage node only, and it is others' turn.
        """
        def ask() -> Any:
            while answer := self._storage.api.exchange_base(
                    image_id, self._storage.hostname, image_hash, *self._self()):
                if not answer.get('wait'):
                    break
                if again := answer.get('again'):
                    raise exception.NoSlot(float(again))
                if not wait():
                    return None
            return answer

        return self._ask(image_id, 'full base', ask, '')

    def report(self, image_id: str, file: str, way: str, progress: FetchProgress | None,
               copied: int, gives: bool) -> None:
        """Tell how a file came that was asked for; nothing happens if nobody hears it.

        :param file: the SHA-256 of a cache image, or the hash of a stored file.
        :param way: one of ``rpcexchange.WAYS``.
        :param progress: how far it came by exchange, None if not at all.
        :param copied: bytes that came from the storage node's exporter.
        :param gives: whether this host gives it to others.
        """
        got = sorted(progress.peers.items(), key=lambda peer: -peer[1]) if progress else []
        try:
            self._storage.api.report_exchange(
                image_id, self._storage.hostname, file, way,
                [[address, count] for address, count in got if count][:rpcexchange.MOST_GIVERS],
                copied, gives)
        except (exception.BootcacheError, messaging.MessagingException) as error:
            LOG.info('image %s: nobody hears how it came here: %s', image_id, error)

    def _self(self) -> tuple[str, int, str]:
        return self._conf.exchange_address, self._conf.exchange_port, self._conf.exchange_rack

    def _ask(self, image_id: str, what: str, ask: Callable[[], Any], sha256: str
             ) -> Exchanged | None:
        try:
            answer = ask()
            return None if answer is None else Exchanged(
                base64.b64decode(answer['torrent']), sha256, _peers(answer['peers']),
                _peers(answer['reserve']), bool(answer.get('slot')))
        except exception.NoSlot:
            raise
        except (exception.BootcacheError, messaging.MessagingException, KeyError, TypeError,
                ValueError) as error:
            LOG.info('image %s: its %s is copied, as nobody says who else has it: %s', image_id,
                     what, error)
            return None


def _peers(told: Any) -> tuple[Peer, ...]:
    return tuple((str(address), int(port)) for address, port in told)
