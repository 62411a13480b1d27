"""Messages that one storage node hands on to another, over an exchange of their own.

Compute hosts may write to the exchange ``bootcache``, and not to this one: what comes here was read
and counted by another node. It is handed on once.
"""

import threading
import time
import zlib
from collections.abc import Mapping
from typing import Any

import cachetools
import oslo_messaging as messaging
from oslo_log import log as logging

from bootcache import exception
from bootcache.rpc.fields import plain
from bootcache.rpc.messages import (
    SENDER,
    BootAction,
    ForgetHost,
    HoldSlot,
    ImageRegistered,
    Message,
    PlanBoot,
    PlanCause,
    ReportHoldings,
    TakeSlot,
)
from bootcache.util.backoff import CircuitBreaker
from glance_bootcache.metrics import ServiceMetrics
from glance_bootcache.nodes.homes import Homes, NodeAway
from glance_bootcache.nodes.membership import Membership, NodeState
from glance_bootcache.snapshots.records import Records

LOG = logging.getLogger(__name__)

EXCHANGE = TOPIC = 'bootcache-nodes'
# Key of a message's context: the node that hands it on.
NODE = 'storage_node'
# Within what a host waits for, of all that it asks.
_ANSWER_SECONDS = 3.0
# Of the threads that answer: a node that does not answer holds up so many. The others wait for them
# in a storm, and for so long.
_MOST_AT_ONCE, _PLACE_SECONDS = 16, 1.0
_SILENT_CALLS, _SILENCE_SECONDS = 2, 5.0
_MOST_NODES = 1000
# What all nodes are told.
_TOLD = ReportHoldings, ForgetHost

# What ``Routing.answer`` returns of a message that this node answers itself.
HERE = object()


def target(**extra: Any) -> messaging.Target:
    """Return where storage nodes' messages to each other are."""
    return messaging.Target(exchange=EXCHANGE, topic=TOPIC, version='2.0', **extra)


class Alone:
    """The routing of a storage node that is the only one: it answers all itself."""

    def answer(self, message: Message[Any], context: Mapping[str, Any]) -> Any:
        """Return HERE: see ``Routing``."""
        return HERE

    def moved(self) -> frozenset[str]:
        """Return no images."""
        return frozenset()

    def tell_others(self, message: ReportHoldings | ForgetHost, context: Mapping[str, Any]
                    ) -> None:
        """Tell nobody."""


ALONE = Alone()


class Routing(Alone):
    """Hands messages on to the node that works on what they are about.

    :param bus: as of :func:`bootcache.rpc.transport.get_transport`.
    :param own: this node's name.
    :param metrics: count the boots that wait for a node.
    """

    def __init__(self, bus: messaging.Transport, own: str, homes: Homes, records: Records,
                 membership: Membership, metrics: ServiceMetrics):
        self._client = messaging.get_rpc_client(bus, target())
        self._own = own
        self._homes = homes
        self._records = records
        self._membership = membership
        self._metrics = metrics
        self._places = threading.BoundedSemaphore(_MOST_AT_ONCE)
        self._lock = threading.Lock()  # guards the breakers, for steps in memory
        self._breakers: cachetools.LRUCache[str, CircuitBreaker] = cachetools.LRUCache(_MOST_NODES)

    def answer(self, message: Message[Any], context: Mapping[str, Any]) -> Any:
        """Return the answer of the node that works on what a message is about; HERE for this node.

        :param context: the message's; one that was handed on already is not handed on again.
        :raises BootcacheError: if that node refuses, or nobody can answer now.
        """
        if not self._membership.are_several:
            return HERE
        if isinstance(message, _TOLD) and context.get(NODE) == self._own:
            # What this node has told all comes to itself, too.
            return None
        try:
            name = self._node_for(message)
            if name is None:
                return HERE
            if NODE in context:
                raise NodeAway(f'the storage node {name} has just begun to work on it; ask again')
            return self._hand_on(message, context, name)
        except (NodeAway, exception.DatabaseAway) as error:
            if not isinstance(message, PlanBoot):
                raise
            # Its server waits, or goes the stock way when its patience ends.
            plan = {'action': BootAction.WAIT, 'cause': PlanCause.NODE_AWAY, 'reason': str(error),
                    'ready_in': None}
            self._metrics.count_plan(plan)
            return plan

    def _node_for(self, message: Message[Any]) -> str | None:
        """Return the name of the node that is to answer; None for this one."""
        if snapshot_id := getattr(message, 'snapshot_id', None):
            number = self._records.node_of(snapshot_id)
            if number is not None and number != self._membership.own:
                node = self._membership.node(number)
                if node is None:
                    raise NodeAway('the storage node that makes the snapshot is gone')
                return node.record.name
            if number is not None:
                return None
        image_id = getattr(message, 'image_id', None)
        if isinstance(message, (TakeSlot, HoldSlot)):
            return self._node_of_slots(message.host)
        # Of an image that Glance imports nobody else knows yet, or its home looks at its row.
        return None if image_id is None or isinstance(message, ImageRegistered) \
            else self._homes.route(image_id)

    def _node_of_slots(self, host: str) -> str | None:
        """Return the name of the node that has a host's slot: each time the same one, while the
        same nodes work."""
        names = [node.record.name for node in self._membership.nodes()
                 if node.state is NodeState.UP]
        name = max(names, key=lambda name: zlib.crc32(f'{name} {host}'.encode()),
                   default=self._own)
        return None if name == self._own else name

    def _hand_on(self, message: Message[Any], context: Mapping[str, Any], name: str) -> Any:
        breaker = self._breaker(name)
        if not self._places.acquire(timeout=_PLACE_SECONDS):
            raise NodeAway(f'{_MOST_AT_ONCE} messages are being handed on')
        try:
            if not breaker.may_ask():
                raise NodeAway(f'the storage node {name} has not answered just now')
            client = self._client.prepare(server=name, timeout=_ANSWER_SECONDS, retry=1,
                                          version=message.since)
            deliver = client.cast if message.is_cast else client.call
            told = {SENDER: context[SENDER], NODE: self._own}
            try:
                answer = deliver(told, message.method, **plain(message))
            except (messaging.MessagingTimeout, messaging.MessageDeliveryFailure) as error:
                breaker.failed()
                raise NodeAway(f'the storage node {name} does not answer; ask again after 20 s,'
                               ' when another one takes over what it works on') from error
            except messaging.RemoteError as error:
                breaker.answered()
                raise _raised_there(error) from None
            breaker.answered()
            return answer
        finally:
            self._places.release()

    def _breaker(self, name: str) -> CircuitBreaker:
        with self._lock:
            return self._breakers.setdefault(
                name, CircuitBreaker(_SILENT_CALLS, _SILENCE_SECONDS, time.monotonic))

    def moved(self) -> frozenset[str]:
        """Return the images that have got another home since hosts heard of theirs."""
        return self._homes.moved()

    def tell_others(self, message: ReportHoldings | ForgetHost, context: Mapping[str, Any]
                    ) -> None:
        """Tell all other nodes what was said here of a host; nobody waits for it."""
        if not self._membership.are_several or NODE in context:
            return
        try:
            self._client.prepare(fanout=True, retry=0, version=message.since).cast(
                {SENDER: context[SENDER], NODE: self._own}, message.method, **plain(message))
        except messaging.MessagingException as error:
            # They ask for all of it when they hear of the host next.
            LOG.info('host %s: other storage nodes are not told what it holds: %s', message.host,
                     error)


def _raised_there(error: messaging.RemoteError) -> exception.BootcacheError:
    """Return what another node has raised, as if it was raised here."""
    value = str(error.value)
    if error.exc_type == exception.RequestRefused.__name__:
        return exception.RequestRefused(value)
    if error.exc_type == exception.MessageRefused.__name__:
        field, _colon, why = value.partition(': ')
        return exception.MessageRefused(field, why)
    return exception.BootcacheError(value)
