"""Client of the storage service's RPC."""

import dataclasses
import secrets
from collections.abc import Callable
from typing import Any

import oslo_messaging as messaging
from oslo_config import cfg

from bootcache import conf as bootcache_conf
from bootcache.bus import BusOpening, within
from bootcache.rpc import transport
from bootcache.rpc.fields import plain
from bootcache.rpc.messages import (
    NO_IMAGE,
    SENDER,
    Answer,
    GetImage,
    ListHosts,
    ListImages,
    Message,
)
from bootcache.util.backoff import CircuitBreaker

# Added to the limit of a client's first call.
_OPENING_SECONDS = 2
# After so many calls in a row without an answer, nothing is sent for so many seconds.
_SILENT_CALLS = 2
_SILENCE_SECONDS = 10


def all_entries(send: Callable[[Any], list[dict[str, Any]]],
                listing: ListHosts | ListImages) -> list[dict[str, Any]]:
    """Return all entries of a listing, page by page until one is empty.

    The errors are those of ``send``.

    :param send: of a StorageClient.
    :param listing: asks for the first page.
    """
    entries: list[dict[str, Any]] = []
    while page := send(listing):
        entries += page
        listing = dataclasses.replace(listing, marker=page[-1][listing.entry_key])
    return entries


class StorageClient:
    """Sends messages to the storage service.

    :param conf: configuration with the shared options registered.
    """

    def __init__(self, conf: cfg.ConfigOpts):
        self._context = {SENDER: secrets.token_hex(16)}
        self._client = messaging.get_rpc_client(transport.get_transport(conf), transport.target())
        self._timeout = conf[bootcache_conf.GROUP].rpc_timeout
        self._breaker = CircuitBreaker(_SILENT_CALLS, _SILENCE_SECONDS)
        self._opening = BusOpening(lambda seconds: self._client.prepare(
            timeout=seconds, retry=0).call(self._context, GetImage.method, image_id=NO_IMAGE))

    def send(self, message: Message[Answer]) -> Answer:
        """Send a message, and return its answer.

        :raises MessagingTimeout: if nobody answers in time.
        :raises MessageDeliveryFailure: if the bus is away, or nobody has answered just now.
        :raises RemoteError: with the service's error.
        :raises AnswerInvalid: if the answer is not what the message declares.
        """
        limit = min(message.seconds or self._timeout, self._timeout)
        answer: Answer = message.read_answer(self._unless_silent(
            lambda: self._deliver(message, limit), message.counts_as_silence))
        return answer

    def _deliver(self, message: Message[Any], limit: float) -> Any:
        # Without a retry limit a message waits for ever for a bus that is away.
        client = self._client.prepare(timeout=limit, retry=1, version=message.since)
        deliver = client.cast if message.is_cast else client.call
        if not message.is_cast:
            self._opening.wait(limit + _OPENING_SECONDS)
        return within(limit, lambda: deliver(self._context, message.method, **plain(message)))

    def _unless_silent(self, deliver: Callable[[], Any], counts_as_silence: bool) -> Any:
        if not self._breaker.may_ask():
            raise messaging.MessageDeliveryFailure(
                'nobody has answered just now; it is tried again in'
                f' {self._breaker.seconds_left():.0f} s')
        try:
            answer = deliver()
        except (messaging.MessagingTimeout, messaging.MessageDeliveryFailure):
            if counts_as_silence:
                self._breaker.failed()
            raise
        except messaging.RemoteError as error:
            self._breaker.answered()
            # Its own text has the service's traceback as well, which ends with the same words.
            error.args = f'the storage service refuses: {error.value}',
            raise
        self._breaker.answered()
        return answer
