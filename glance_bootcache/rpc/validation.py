"""RPC dispatcher that validates messages and rate-limits senders before endpoints run.

oslo.messaging logs an endpoint's error with all of its text, each time, and passes on any
arguments. Here a message is read before, and a rejected one is counted in one place and told to the
sender.
"""

import contextlib
import time
from typing import Any

import oslo_messaging as messaging
from oslo_log import log as logging
from oslo_messaging.rpc import server as rpc_server

from bootcache.exception import (
    BootcacheError,
    InvalidWorkingSet,
    MessageRefused,
    RequestRefused,
    TooManyMessages,
)
from bootcache.quoting import quoted
from bootcache.rpc import fields, transport
from bootcache.rpc.fields import OutOfBounds
from bootcache.rpc.messages import MESSAGES, SENDER
from glance_bootcache.metrics import CallOutcome, ServiceMetrics
from glance_bootcache.nodes import routing
from glance_bootcache.nodes.routing import ALONE, HERE, NODE, Alone
from glance_bootcache.rpc import messagesize
from glance_bootcache.rpc.ratelimit import RateLimiter
from glance_bootcache.rpc.rejected import RejectedMessages

LOG = logging.getLogger(__name__)

# Extents of a boot that are as much work as a message.
EXTENTS_OF_ONE = 10_000
# Messages that are read before a thread has time for them, unless the operator says otherwise:
# oslo.messaging has no bound.
MOST_AHEAD = 16
_RABBIT = 'oslo_messaging_rabbit'
# Until RabbitMQ gives no more messages to a storage node that is silent, within twice that: hosts
# wait for each of them, and it gives a node its share until then.
_SILENT_SECONDS, _BEATS = 10, 3


class ValidatingDispatcher:
    """Passes messages on to the endpoints, each as one object of bootcache.rpc.messages.

    :param dispatcher: oslo.messaging's, of the endpoints.
    :param rejected: counts rejected messages.
    :param limiter: bounds what each sender sends; None of what other storage nodes hand on.
    :param metrics: count the messages.
    :param nodes: answers what another storage node is to answer.
    """

    def __init__(self, dispatcher: messaging.RPCDispatcher, rejected: RejectedMessages,
                 limiter: RateLimiter | None, metrics: ServiceMetrics,
                 nodes: Alone = ALONE):
        self._dispatcher = dispatcher
        self._rejected = rejected
        self._limiter = limiter
        self._metrics = metrics
        self._nodes = nodes

    def dispatch(self, incoming: Any) -> Any:
        """Have a message answered.

        :raises ExpectedException: if it is rejected, or cannot be done; the sender is told why.
        """
        method, arguments = incoming.message.get('method'), incoming.message.get('args')
        known = method if isinstance(method, str) and method in MESSAGES else ''
        host = _host(arguments)
        began, outcome = time.monotonic(), CallOutcome.FAILED
        try:
            # Endpoints know the sender by it, whatever host the message names.
            with self._admitted(incoming, arguments, host):
                answer = self._answer(incoming, known)
            outcome = CallOutcome.ANSWERED
            return answer
        except RequestRefused:
            # An operator's wish.
            outcome = CallOutcome.REFUSED
            raise messaging.ExpectedException from None
        except (messaging.NoSuchMethod, messaging.UnsupportedVersion):
            # A client of another version.
            outcome = CallOutcome.REJECTED
            raise messaging.ExpectedException from None
        except (MessageRefused, InvalidWorkingSet) as error:
            outcome = CallOutcome.TOO_MANY if isinstance(error, TooManyMessages) \
                else CallOutcome.REJECTED
            self._rejected.record(known, error if isinstance(error, MessageRefused)
                                  else MessageRefused('extents', str(error)), host)
            raise messaging.ExpectedException from None
        except BootcacheError as error:
            # Not oslo.messaging's traceback, with each of a host's tries.
            LOG.warning('%s of %s is answered with an error: %s', known, host or 'an operator',
                        error)
            raise messaging.ExpectedException from None
        finally:
            self._metrics.count_call(known, outcome, time.monotonic() - began)

    def _admitted(self, incoming: Any, arguments: Any, host: str
                  ) -> contextlib.AbstractContextManager[None]:
        if self._limiter is None:
            # Of the sender the other node tells.
            return contextlib.nullcontext()
        incoming.ctxt.pop(NODE, None)
        incoming.ctxt[SENDER] = sender = _sender(incoming, host)
        return self._limiter.admitted(sender, _cost(arguments))

    def _answer(self, incoming: Any, known: str) -> Any:
        message = incoming.message
        if message.get('method') in (messagesize.TOO_LONG, messagesize.TOO_MANY_LONG):
            raise MessageRefused('message', messagesize.REASONS[message['method']])
        if message.get('namespace') is not None:
            raise MessageRefused('namespace', f'{quoted(message["namespace"])} is not known')
        try:
            fields.VERSION(message.get('version', '1.0'))
        except OutOfBounds as error:
            raise MessageRefused('version', str(error)) from None
        if incoming.client_timeout is not None:
            # No client of ours has it; oslo.messaging would begin a thread for it.
            raise MessageRefused('timeout', f'{quoted(incoming.client_timeout)} is not known')
        if not known:
            self._rejected.record('', MessageRefused(
                'method', f'{quoted(message.get("method"))} is not known'))
            # A client of another version knows by it what it has to do with.
            raise messaging.NoSuchMethod(quoted(message.get('method')))
        parsed = MESSAGES[known].parse(message.get('args'))
        if (answer := self._nodes.answer(parsed, incoming.ctxt)) is not HERE:
            return answer
        message['args'] = {'message': parsed}
        return fields.plain(self._dispatcher.dispatch(incoming))


def _host(arguments: Any) -> str:
    try:
        return str(fields.HOST_NAME(arguments['host']))
    except (OutOfBounds, KeyError, TypeError, IndexError):
        return ''


def _sender(incoming: Any, host: str) -> str:
    """Return whose a message is: a process's, by the secret that it made, or the named host's.

    The queue for answers is no secret: oslo.messaging's queue manager names it by host and process.
    """
    try:
        return f'process {fields.TOKEN(incoming.ctxt[SENDER])}'
    except (OutOfBounds, KeyError):
        return f'host {host}'


def _cost(arguments: Any) -> float:
    """Return how many messages one is as much work as."""
    extents = arguments.get('extents') if isinstance(arguments, dict) else None
    return 1.0 + (len(extents) / EXTENTS_OF_ONE if isinstance(extents, list) else 0.0)


def get_server(bus: messaging.Transport, name: str, endpoints: object,
               rejected: RejectedMessages, metrics: ServiceMetrics, hosts: int = 0,
               nodes: Alone = ALONE, for_nodes: bool = False) -> Any:
    """Return an RPC server of the storage service, not started yet.

    :param bus: as of :func:`bootcache.rpc.transport.get_transport`.
    :param name: of this server on the message bus.
    :param endpoints: have a method for each of ``MESSAGES``.
    :param hosts: as of ``RateLimiter``.
    :param nodes: answers what another storage node is to answer.
    :param for_nodes: whether it takes what other storage nodes hand on, and not what hosts send.
    """
    if _RABBIT in bus.conf:
        # What the threads have not come to waits there, and not in this process.
        bus.conf.set_default('rabbit_qos_prefetch_count', MOST_AHEAD, _RABBIT)
        bus.conf.set_default('heartbeat_timeout_threshold', _SILENT_SECONDS, _RABBIT)
        bus.conf.set_default('heartbeat_rate', _BEATS, _RABBIT)

    def server_class(bus: Any, target: Any, dispatcher: Any, executor: Any) -> Any:
        return rpc_server.RPCServer(
            bus, target, ValidatingDispatcher(
                dispatcher, rejected, None if for_nodes else RateLimiter(hosts=hosts), metrics,
                nodes), executor)

    where = routing.target if for_nodes else transport.target
    return messaging.get_rpc_server(bus, where(server=name), [endpoints],
                                    executor='threading', server_cls=server_class)
