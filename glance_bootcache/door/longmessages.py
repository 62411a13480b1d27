"""Messages that are too long to be read: oslo.messaging has no bound, RabbitMQ 3's is 128 MiB.

JSON takes ten times its length when it is read, and a compressed message more than anybody has.
kombu, by which oslo.messaging reaches RabbitMQ, has a register of how messages are read; here it
gets readers with a bound, for this process. In the place of what is longer comes a message that
says so, and which the doorkeeper refuses and counts as any other.
"""

import bz2
import json
import lzma
import zlib
from collections.abc import Callable
from typing import Any

from kombu import compression, serialization
from kombu.utils import json as kombu_json

from glance_bootcache.door.doorkeeper import TOO_LONG

# The longest report of a boot has 15 MB: 2 GiB in pieces of 4 KiB.
LONGEST_BYTES = 32 << 20
_JSON = 'application/json'
_INSTEAD = {'oslo.version': '2.0', 'oslo.message': json.dumps({'method': TOO_LONG, 'args': {}})}


def bounded(body: Any) -> Any:
    """Read a message's JSON, or return what stands in its place if it is too long."""
    return dict(_INSTEAD) if len(body) > LONGEST_BYTES else kombu_json.loads(body)


def _bounded(begin: Callable[[], Any]) -> Callable[[bytes], bytes]:
    # One byte more than is read: it is seen to be too long.
    return lambda body: bytes(begin().decompress(body, LONGEST_BYTES + 1))


def _refused(_body: bytes) -> bytes:
    return b' ' * (LONGEST_BYTES + 1)


def bound() -> None:
    """Have this process read no message that is too long, whatever it is compressed with."""
    serialization.register('json', kombu_json.dumps, bounded, content_type=_JSON,
                           content_encoding='utf-8')
    known: dict[str, Callable[[], Any]] = {
        'application/x-gzip': zlib.decompressobj, 'application/x-bz2': bz2.BZ2Decompressor,
        'application/x-lzma': lzma.LZMADecompressor}
    for encoder in compression.encoders():
        begin = known.get(encoder)
        compression.register(compression.get_encoder(encoder)[0],
                             _bounded(begin) if begin else _refused, encoder)
