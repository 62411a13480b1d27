"""The stored file of an image as it comes from other hosts, instead of from the storage node alone.

A host gives on what it got, for a while: the exchange has the file open, whatever becomes of it
here, as when it is converted.
"""

import time
from collections.abc import Callable

from oslo_log import log as logging

from bootcache import exception, rpcexchange
from bootcache.exchange import fetching
from bootcache.exchange.client import ExchangeClient, FetchProgress
from bootcache.exchange.fetching import Exchanged
from nova_bootcache.asking.exchangeasking import ExchangeAsking

LOG = logging.getLogger(__name__)

# One that is smaller is copied in less time than it takes to find the others.
_WORTH_BYTES = 4 << 20
_AGAIN_SECONDS = 1.0
# In which the storage node reads the file, at least; and this host what it has of it.
_READ_RATE = 20 << 20
_GRACE_SECONDS = 30
# A fetch that is slower is left to copying, in pieces.
_SLOWEST = 1 << 20


class ExchangedBase:
    """One stored file: asked for, then fetched, then told of.

    :param asking: the storage service.
    :param image_hash: Glance's, of the file.
    :param size: of the file, in bytes.
    """

    def __init__(self, asking: ExchangeAsking, image_id: str, image_hash: str, size: int):
        self._asking = asking
        self._client = ExchangeClient(asking.socket)
        self._linger = asking.linger
        self._image_id = image_id
        self._image_hash = image_hash
        self._size = size
        self._progress: FetchProgress | None = None
        self._way = ''
        self._copied = 0

    def ask(self, check: Callable[[], None]) -> Exchanged | None:
        """Ask from whom it can be had; waits while the storage node reads it.

        :param check: called meanwhile; what it raises ends it.
        :returns: None if all of it is to be copied.
        :raises NoSlot: if it comes from the storage node only, and it is others' turn.
        """
        if not self._asking.is_on or self._size < _WORTH_BYTES:
            return None
        try:
            # Before others are sent to this host, and what was copied earlier is handed over.
            self._client.files()
        except exception.ExchangeFailed as error:
            LOG.info('image %s: its full base is copied: %s', self._image_id, error)
            return None
        deadline = time.monotonic() + _GRACE_SECONDS + self._size / _READ_RATE

        def wait() -> bool:
            check()
            time.sleep(_AGAIN_SECONDS)
            return time.monotonic() < deadline

        return self._asking.ask_for_base(self._image_id, self._image_hash, wait)

    def fetch(self, wanted: Exchanged, path: str, has_some: bool, rate: int,
              check: Callable[[], None]) -> list[tuple[int, int]] | None:
        """Fetch it; what is right of the file that is there stays.

        :param path: of the file.
        :param has_some: whether something is in it, which is looked at first.
        :param rate: bytes a second at most; 0 for no limit.
        :param check: called several times a second; what it raises ends it.
        :returns: the parts that did not come, offset and length; None if it does not come this
            way: the file is to be made anew then.
        :raises OSError: if the file cannot be opened.
        """
        def look(progress: FetchProgress) -> None:
            self._progress = progress
            check()

        now = time.monotonic()
        try:
            self._progress = fetching.fetch(
                self._client, wanted, path, self._linger, look, rate,
                _GRACE_SECONDS + 3 * self._size / (rate or _SLOWEST),
                now + (self._size / _READ_RATE if has_some else 0.0))
        except exception.ExchangeStalled as still:
            LOG.warning('image %s: others do not give all of its full base, and the rest is copied:'
                        ' %s', self._image_id, still)
            self._way = rpcexchange.STALLED
            self._copied = sum(length for _offset, length in still.missing)
            return still.missing
        except exception.ExchangeFailed as error:
            LOG.warning('image %s: its full base is copied: %s', self._image_id, error)
            self._way, self._progress = rpcexchange.COPIED, None
            self._copied = self._size
            return None
        self._way = rpcexchange.EXCHANGED
        LOG.info('image %s: full base of %d bytes came from %s', self._image_id, self._size,
                 ', '.join(f'{address} ({got} bytes)'
                           for address, got in sorted(self._progress.peers.items()) if got))
        return []

    def tell(self) -> None:
        """Tell the storage service how it came, if it was to be fetched; it has been verified."""
        if self._way:
            self._asking.report(self._image_id, self._image_hash, self._way, self._progress,
                                self._copied,
                                gives=bool(self._linger) and self._way == rpcexchange.EXCHANGED)
