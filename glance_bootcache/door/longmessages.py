"""Messages that are too long to be read: oslo.messaging has no bound, RabbitMQ 3's is 128 MiB.

JSON takes ten times its length when it is read, and a compressed message more than anybody has.
kombu, by which oslo.messaging reaches RabbitMQ, has a register of how messages are read; here it
gets readers with a bound, for this process. In the place of what is longer comes a message that
says so, and which the doorkeeper refuses and counts as any other.
"""

import bz2
import json
import lzma
import threading
import time
import zlib
from collections.abc import Callable
from typing import Any

from kombu import compression, serialization
from kombu.utils import json as kombu_json

from glance_bootcache.door.doorkeeper import TOO_LONG, TOO_MANY_LONG

# The longest report of a boot has 15 MB: 2 GiB in pieces of 4 KiB.
LONGEST_BYTES = 32 << 20
# A usual one has 100 kB. Of those that are longer than that so many bytes are read at once, and so
# many a second from then on.
LONG_BYTES = 1 << 20
LONG_BURST = 128 << 20
LONG_RATE = 1 << 20
_JSON = 'application/json'


class LongMessages:
    """How much is read of what is long, whoever sends it: that is not known before.

    :param clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._lock = threading.Lock()
        self._left, self._at = float(LONG_BURST), clock()

    def bounded(self, body: Any) -> Any:
        """Read a message's JSON, or return what stands in its place if it is too long, or one of
        too many long ones."""
        if len(body) > LONGEST_BYTES:
            return _instead(TOO_LONG)
        if len(body) > LONG_BYTES and not self._may_read(len(body)):
            return _instead(TOO_MANY_LONG)
        return kombu_json.loads(body)

    def _may_read(self, count: int) -> bool:
        with self._lock:
            now = self._clock()
            self._left = min(LONG_BURST, self._left + (now - self._at) * LONG_RATE)
            self._at = now
            if self._left < count:
                return False
            self._left -= count
            return True


def _instead(method: str) -> dict[str, str]:
    return {'oslo.version': '2.0', 'oslo.message': json.dumps({'method': method, 'args': {}})}


def _bounded(begin: Callable[[], Any]) -> Callable[[bytes], bytes]:
    # One byte more than is read: it is seen to be too long.
    return lambda body: bytes(begin().decompress(body, LONGEST_BYTES + 1))


def _refused(_body: bytes) -> bytes:
    return b' ' * (LONGEST_BYTES + 1)


def bound() -> None:
    """Have this process read no message that is too long, whatever it is compressed with."""
    serialization.register('json', kombu_json.dumps, LongMessages().bounded, content_type=_JSON,
                           content_encoding='utf-8')
    known: dict[str, Callable[[], Any]] = {
        'application/x-gzip': zlib.decompressobj, 'application/x-bz2': bz2.BZ2Decompressor,
        'application/x-lzma': lzma.LZMADecompressor}
    for encoder in compression.encoders():
        begin = known.get(encoder)
        compression.register(compression.get_encoder(encoder)[0],
                             _bounded(begin) if begin else _refused, encoder)
