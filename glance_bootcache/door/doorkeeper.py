"""The doorkeeper of the storage service's RPC: every message comes by it.

oslo.messaging logs what an endpoint raises with all of its text, each time, and passes on whatever
arguments came. Here they are read before, and what is refused is counted in one place and told to
the sender.

Messages that are too long are not read: JSON takes ten times its length when it is read, and a
compressed message more than anybody has. kombu, by which oslo.messaging reaches RabbitMQ, has a
register of how messages are read; here it gets readers with a bound, for this process. In the place
of what is longer comes a message that says so, and which the doorkeeper refuses and counts as any
other.

A sender is a process: its messages have a secret that it has made, which nobody else gets to know.
What has none is counted by the host that it names. Either is made up easily, so senders that were
not heard of for long share a limit of their own: whoever makes up names takes from those alone who
have just come, and pushes out nobody. Who keeps made-up ones up for minutes has as many shares.
"""

import bz2
import contextlib
import json
import lzma
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import cachetools
import oslo_messaging as messaging
from kombu import compression, serialization
from kombu.utils import json as kombu_json
from oslo_log import log as logging
from oslo_messaging.rpc import server as rpc_server

from bootcache import rpcapi
from bootcache.exception import (
    BootcacheError,
    InvalidWorkingSet,
    MessageRefused,
    RequestRefused,
    TooManyMessages,
)
from bootcache.quoting import quoted
from glance_bootcache.door import arguments

LOG = logging.getLogger(__name__)

# What one sender may send: a host of which 20 servers a second start, and three times its usual
# share of the threads that answer (oslo.messaging has 64).
RATE = 20.0
BURST = 400.0
MOST_AT_ONCE = 24
# Of the threads that answer: the others are for senders that have nothing in hand.
MOST_OF_ALL = 56
# What those may together that came within the last minutes: all hosts of a cloud that begins.
NEW_RATE = 200.0
NEW_BURST = 4000.0
MOST_NEW_AT_ONCE = 48
ESTABLISHED_SECONDS = 600
# A sender that is silent for so long is a new one again.
_SILENT_SECONDS = 3600
_MOST_SENDERS = 20_000
# Extents of a boot that are as much work as a message.
EXTENTS_OF_ONE = 10_000


class _Share:
    """What a sender, or several, may still send: a bucket that fills by itself.

    :param rate: messages a second.
    :param burst: messages at once, after a pause.
    :param most: messages in hand.
    :param now: monotonic seconds.
    """

    def __init__(self, rate: float, burst: float, most: int, now: float):
        self._rate, self._burst, self._most = rate, burst, most
        self._left, self._at = burst, now
        self.since = now
        self.in_hand = 0

    def lacks(self, cost: float, now: float) -> str:
        """Return why a message is one too many; an empty string if it is not."""
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        if self.in_hand >= self._most:
            return f'{self.in_hand} are being answered'
        return '' if self._left >= min(cost, self._burst) else f'more than {self._rate:g} a second'

    def take(self, cost: float) -> None:
        """Have a message in hand."""
        self._left -= min(cost, self._burst)
        self.in_hand += 1


class Rates:
    """Who sends how much.

    :param clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._lock = threading.Lock()  # guards what is below; nothing is called under it
        self._newcomers = _Share(NEW_RATE, NEW_BURST, MOST_NEW_AT_ONCE, clock())
        self._in_hand = 0
        self._new = self._table()
        self._established = self._table()

    def _table(self) -> 'cachetools.TTLCache[str, _Share]':
        return cachetools.TTLCache(_MOST_SENDERS, _SILENT_SECONDS, timer=self._clock)

    @contextlib.contextmanager
    def taking(self, sender: str, cost: float = 1.0) -> Iterator[None]:
        """Have a message of a sender in hand within the block.

        :param cost: how many messages it is as much work as.
        :raises TooManyMessages: if it is one too many.
        """
        shares = self._take(sender, cost)
        try:
            yield
        finally:
            with self._lock:
                self._in_hand -= 1
                for share in shares:
                    share.in_hand -= 1

    def _take(self, sender: str, cost: float) -> list[_Share]:
        with self._lock:
            shares = self._shares(sender)
            now = self._clock()
            # The sender's own first: what it has too many costs the others nothing.
            for share, whose in zip(shares, ('this sender', 'senders that have just come'),
                                    strict=False):
                if reason := share.lacks(cost, now):
                    raise TooManyMessages('message', f'too many of {whose}: {reason}')
            if shares[0].in_hand and self._in_hand >= MOST_OF_ALL:
                raise TooManyMessages('message', 'too many of all senders: what is left is for'
                                      ' those that have nothing in hand')
            self._in_hand += 1
            for share in shares:
                share.take(cost)
            return shares

    def _shares(self, sender: str) -> list[_Share]:
        """Return a sender's own share, and that of all that are new, if it is one; locked."""
        now = self._clock()
        if (share := self._established.get(sender)) is not None:
            # So that it is not forgotten.
            self._established[sender] = share
            return [share]
        for table in (self._new, self._established):
            table.expire()
        share = self._new.get(sender)
        if share is None:
            share = _Share(RATE, BURST, MOST_AT_ONCE, now)
            if len(self._new) == _MOST_SENDERS:
                # Not remembered: it never counts as established, and takes nobody's place.
                return [share, self._newcomers]
        elif now - share.since >= ESTABLISHED_SECONDS and len(self._established) < _MOST_SENDERS:
            del self._new[sender]
            self._established[sender] = share
            return [share]
        self._new[sender] = share
        return [share, self._newcomers]


# What a host says wrong is told so often, and of so many hosts and reasons: a name costs nothing.
_TOLD_SECONDS = 3600
_MOST_TOLD = 1000
_LATE = 'not looked at, as a restart of this service, or a host that is late, has it'
_NOBODY = 'a sender that does not say who it is'


Refuse = Callable[[MessageRefused], None]


def pass_over(refusal: MessageRefused) -> None:
    """Hear of what is refused, and tell nobody."""


@contextlib.contextmanager
def left_out(refuse: Refuse) -> Iterator[None]:
    """Tell of what is refused within the block, and go on."""
    try:
        yield
    except MessageRefused as refusal:
        refuse(refusal)


class Refusals:
    """How many messages were refused, by method and field, since the service started.

    :param clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._lock = threading.Lock()  # guards what is below; nothing is called under it
        # Both parts of a key are names of the service's own, so there are a hundred at most.
        self._counts: dict[tuple[str, str], int] = {}
        self._told: cachetools.TTLCache[tuple[str, str, str], bool] = cachetools.TTLCache(
            _MOST_TOLD, _TOLD_SECONDS, timer=clock)

    def counts(self) -> dict[tuple[str, str], int]:
        """Return how many were refused, by method and field."""
        with self._lock:
            return dict(self._counts)

    def note(self, method: str, refusal: MessageRefused, host: str = '',
             is_harmless: bool = False) -> None:
        """Count a refusal, and log it if its like was not within the hour.

        :param method: of bootcache/rpcapi.py; empty for a message that is none.
        :param host: as the message says; empty if it does not.
        :param is_harmless: hosts that do not lie come to it, too.
        """
        key = method, refusal.field
        with self._lock:
            count = self._counts[key] = self._counts.get(key, 0) + 1
            self._told.expire()
            is_news = (host, *key) not in self._told
            room = self._told.maxsize - self._told.currsize
            if is_news and room > 0:
                self._told[host, *key] = True
        if is_news and room > 0:
            LOG.log(logging.INFO if is_harmless else logging.WARNING,
                    '%s: %s is %s: %s (number %d since the service started; told once an hour)',
                    f'host {host}' if host else _NOBODY, method or 'a message',
                    _LATE if is_harmless else 'refused', refusal, count)
        if is_news and room == 1:
            LOG.warning('of so many hosts messages are refused that no more are told of for an'
                        ' hour: whoever sends them has a password of [bootcache]transport_url')


# What stands in the place of a message that was not read, as it was too long.
TOO_LONG = 'message of too many bytes'
TOO_MANY_LONG = 'one of too many long messages'
# Messages that are read before a thread has time for them, unless the operator says otherwise:
# oslo.messaging has no bound.
MOST_AHEAD = 16
_RABBIT = 'oslo_messaging_rabbit'
_INSTEAD = {TOO_LONG: 'it has too many bytes', TOO_MANY_LONG: 'too many that are as long came'}


class Doorkeeper:
    """Lets messages through to the endpoints: a dispatcher around oslo.messaging's own.

    :param dispatcher: of the endpoints.
    :param refusals: counts what is refused.
    :param rates: how much each sender may send.
    """

    def __init__(self, dispatcher: messaging.RPCDispatcher, refusals: Refusals, rates: Rates):
        self._dispatcher = dispatcher
        self._refusals = refusals
        self._rates = rates

    def dispatch(self, incoming: Any) -> Any:
        """Have a message answered.

        :raises ExpectedException: if it is refused, or cannot be done; the sender is told why.
        """
        message = incoming.message
        method, said = message.get('method'), message.get('args')
        known = method if isinstance(method, str) and method in arguments.METHODS else ''
        host = _host(said)
        try:
            # The endpoints know by it who speaks, whatever host it names.
            incoming.ctxt[rpcapi.SENDER] = sender = _sender(incoming, host)
            with self._rates.taking(sender, _cost(said)):
                if known:
                    message['args'] = _read(known, said)
                return self._pass(message, known, incoming)
        except (RequestRefused, messaging.NoSuchMethod, messaging.UnsupportedVersion):
            # An operator's wish, or one of another version.
            raise messaging.ExpectedException from None
        except (MessageRefused, InvalidWorkingSet) as error:
            self._refusals.note(known, error if isinstance(error, MessageRefused)
                                else MessageRefused('extents', str(error)), host)
            raise messaging.ExpectedException from None
        except BootcacheError as error:
            # Not oslo.messaging's traceback, with each of a host's tries.
            LOG.warning('%s of %s is answered with an error: %s', known, host or 'an operator',
                        error)
            raise messaging.ExpectedException from None

    def _pass(self, message: Any, known: str, incoming: Any) -> Any:
        if message.get('method') in (TOO_LONG, TOO_MANY_LONG):
            raise MessageRefused('message', _INSTEAD[message['method']])
        if message.get('namespace') is not None:
            raise MessageRefused('namespace', f'{quoted(message["namespace"])} is not known')
        arguments.version('version', message.get('version', '1.0'))
        if incoming.client_timeout is not None:
            # None of the clients has it; oslo.messaging would begin a thread for it.
            raise MessageRefused('timeout', f'{quoted(incoming.client_timeout)} is not known')
        if not known:
            self._refusals.note('', MessageRefused(
                'method', f'{quoted(message.get("method"))} is not known'))
            # So that a client of another version knows what it has to do with.
            raise messaging.NoSuchMethod(quoted(message.get('method')))
        return self._dispatcher.dispatch(incoming)


def _read(method: str, said: Any) -> dict[str, Any]:
    return arguments.METHODS[method].read(
        arguments.mapping('arguments', {} if said is None else said, 100))


def _host(said: Any) -> str:
    try:
        return arguments.host_name('host', said['host'])
    except (MessageRefused, KeyError, TypeError, IndexError):
        return ''


def _sender(incoming: Any, host: str) -> str:
    """Return who a message is of: a process, by the secret that it made, or the host that it names.

    The queue for answers is no secret: oslo.messaging's queue manager names it by host and process.
    """
    try:
        return f'process {arguments.token(rpcapi.SENDER, incoming.ctxt[rpcapi.SENDER])}'
    except (MessageRefused, KeyError):
        return f'host {host}'


def _cost(said: Any) -> float:
    """Return how many messages one is as much work as."""
    extents = said.get('extents') if isinstance(said, dict) else None
    return 1.0 + (len(extents) / EXTENTS_OF_ONE if isinstance(extents, list) else 0.0)


def get_server(transport: messaging.Transport, name: str, endpoints: object,
               refusals: Refusals) -> Any:
    """Return the storage service's RPC server, not started yet.

    :param name: of this server on the message bus.
    :param endpoints: have a method for each of ``arguments.METHODS``.
    """
    if _RABBIT in transport.conf:
        # What the threads have not come to waits there, and not in this process.
        transport.conf.set_default('rabbit_qos_prefetch_count', MOST_AHEAD, _RABBIT)

    def behind_the_door(transport: Any, target: Any, dispatcher: Any, executor: Any) -> Any:
        return rpc_server.RPCServer(transport, target, Doorkeeper(dispatcher, refusals, Rates()),
                                    executor)

    return messaging.get_rpc_server(transport, rpcapi.target(server=name), [endpoints],
                                    executor='threading', server_cls=behind_the_door)


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
