"""The bound of a message's size, before its JSON is read; how much of a listing one answer has.

JSON takes ten times its length when it is read, and a compressed message more than any machine has.
kombu, by which oslo.messaging reaches RabbitMQ, has registries of serializers and of compressions;
here they get bounded ones, for this process. In the place of a longer message comes a message that
says so, which the dispatcher rejects and counts as any other.
"""

import bz2
import itertools
import json
import lzma
import threading
import time
import zlib
from collections.abc import Callable, Iterable
from typing import Any

from kombu import compression, serialization
from kombu.utils import json as kombu_json

from bootcache.rpc.messages import PAGE_ENTRIES
from glance_bootcache.rpc.ratelimit import TokenBucket

# RabbitMQ's own bound since 4.0. The longest report of a boot, 2 GiB in pieces of 4 KiB, has less.
LONGEST_BYTES = 16 << 20
# A usual report has 100 kB. Of longer messages so many bytes are read at once, and so many a second
# from then on, by whomever they are sent: that is not known before.
LONG_BYTES = 1 << 20
LONG_BURST = 128 << 20
LONG_RATE = 1 << 20
# Methods of the messages that come in the place of others, and why.
TOO_LONG = 'message of too many bytes'
TOO_MANY_LONG = 'one of too many long messages'
REASONS = {TOO_LONG: 'it has too many bytes', TOO_MANY_LONG: 'too many that are as long came'}
# Of an answer: hosts that lie name servers by 200 kB each.
_PAGE_BYTES = 4 << 20


def page(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the first entries of a listing, as many as one answer has; at least one. Pure."""
    found: list[dict[str, Any]] = []
    size = 0
    for entry in itertools.islice(entries, PAGE_ENTRIES):
        # oslo.messaging writes JSON into JSON.
        size += len(json.dumps(json.dumps(entry)))
        if found and size > _PAGE_BYTES:
            break
        found.append(entry)
    return found


class BoundedReader:
    """Reads messages' JSON within bounds.

    :param clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._lock = threading.Lock()  # guards the bucket
        self._bucket = TokenBucket(LONG_RATE, LONG_BURST, clock())

    def read(self, body: Any) -> Any:
        """Return a message, or what comes in its place if it, or too many as long, are too long."""
        if len(body) > LONGEST_BYTES:
            return _instead(TOO_LONG)
        if len(body) > LONG_BYTES and not self._may_read(len(body)):
            return _instead(TOO_MANY_LONG)
        return kombu_json.loads(body)

    def _may_read(self, count: int) -> bool:
        with self._lock:
            if may_read := self._bucket.has(count, self._clock()):
                self._bucket.take(count)
            return may_read


def _instead(method: str) -> dict[str, str]:
    return {'oslo.version': '2.0', 'oslo.message': json.dumps({'method': method, 'args': {}})}


def _bounded(decompressor: Callable[[], Any]) -> Callable[[bytes], bytes]:
    # One byte more than the bound tells that the message is too long.
    return lambda body: bytes(decompressor().decompress(body, LONGEST_BYTES + 1))


def _refused(_body: bytes) -> bytes:
    return b' ' * (LONGEST_BYTES + 1)


def register_bounds() -> None:
    """Have this process read no message above the bound, however it is compressed."""
    serialization.register('json', kombu_json.dumps, BoundedReader().read,
                           content_type='application/json', content_encoding='utf-8')
    known: dict[str, Callable[[], Any]] = {
        'application/x-gzip': zlib.decompressobj, 'application/x-bz2': bz2.BZ2Decompressor,
        'application/x-lzma': lzma.LZMADecompressor}
    for content_type in compression.encoders():
        decompressor = known.get(content_type)
        compression.register(compression.get_encoder(content_type)[0],
                             _bounded(decompressor) if decompressor else _refused, content_type)
