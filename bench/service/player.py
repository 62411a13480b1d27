"""A process that plays many hosts: it writes oslo.messaging's envelope with kombu.

Each host has a reply queue and a secret of its own, so that the service's rate limiter sees as many
senders as there are hosts; all of a player's hosts share one connection.
"""

import collections
import contextlib
import dataclasses
import heapq
import itertools
import json
import multiprocessing
import secrets
import socket
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent import futures
from multiprocessing.managers import BaseManager
from typing import Any

import kombu

from bench.replay.netns import die_with_parent
from bench.service import methods
from bench.service.methods import Call, Work
from bootcache.rpc.messages import VERSION
from bootcache.rpc.transport import EXCHANGE, TOPIC

_VERSION_KEY, _MESSAGE_KEY, _ENVELOPE = 'oslo.version', 'oslo.message', '2.0'
# Longer than any client of the service waits.
_PATIENCE_SECONDS = 60.0
UNANSWERED = 'unanswered'


@dataclasses.dataclass
class Played:
    """What came of a play.

    :ivar seconds: from the first message to the last answer.
    :ivar latencies: seconds from each message to its answer, of those that were not refused; of a
        host that is to ask again from its first message to the last answer.
    :ivar kinds: how many answers there were of each kind, ``unanswered`` among them.
    """

    seconds: float = 0.0
    latencies: list[float] = dataclasses.field(default_factory=list)
    kinds: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)


def summed(plays: Sequence[Played], seconds: float) -> Played:
    """Return several plays as one.

    :param seconds: how long all of them took.
    """
    return Played(seconds, [latency for one in plays for latency in one.latencies],
                  sum((one.kinds for one in plays), collections.Counter[str]()))


class Player:
    """Hosts that share a connection.

    :param url: of RabbitMQ, as for ``transport_url``.
    :param hosts: names.
    """

    def __init__(self, url: str, hosts: Sequence[str]):
        self._hosts = list(hosts)
        self._contexts = [methods.context(secrets.token_hex(16)) for _host in hosts]
        self._waiting: dict[str, tuple[float, Call]] = {}
        self._answers: collections.deque[tuple[float, Call, Any, str | None]] = collections.deque()
        self._connection = kombu.Connection(url.replace('rabbit://', 'amqp://') + '/')
        channel = self._connection.channel()
        exchange = kombu.Exchange(EXCHANGE, 'topic', durable=False)
        # As oslo.messaging's clients do: the service may not have been started.
        exchange(channel).declare()
        self._producer = kombu.Producer(channel, exchange)
        name = uuid.uuid4().hex
        self._queues = [f'reply_{name}_{number}' for number in range(len(hosts))]
        self._consumer = kombu.Consumer(
            channel, [kombu.Queue(queue, exclusive=True, auto_delete=True, durable=False)
                      for queue in self._queues],
            on_message=self._on_message, no_ack=True)
        self._consumer.consume()

    def close(self) -> None:
        """End the connection, and the queues with it."""
        self._connection.release()

    def call(self, call: Call, patience: float = _PATIENCE_SECONDS, node: str = ''
             ) -> tuple[Any, float]:
        """Call, and wait.

        :param node: name of the storage node that is to answer; any if empty.
        :returns: the answer, and how many seconds it took.
        :raises TimeoutError: if the service does not answer.
        :raises RuntimeError: if it refuses.
        """
        message_id = self._send(call, f'{TOPIC}.{node}' if node else TOPIC)
        deadline = time.monotonic() + patience
        while not self._answers:
            if time.monotonic() >= deadline:
                del self._waiting[message_id]
                raise TimeoutError(f'{call.method}: no answer within {patience:g} s')
            self._drain(0.1)
        seconds, _call, answer, failure = self._answers.popleft()
        if failure is not None:
            raise RuntimeError(f'{call.method}: {failure}')
        return answer, seconds

    def play(self, work: Work, at_once: int | None = None) -> Played:
        """Make all calls, each as soon as it is due.

        :param at_once: how many may wait for answers; None for any number.
        """
        played, calls = Played(), work.calls(self._hosts)
        # With the monotonic seconds at which each is due; the earliest one is the first.
        follow_ups: list[tuple[float, int, Call]] = []
        numbers = itertools.count()
        upcoming = next(calls, None)
        began = last = time.monotonic()
        while upcoming is not None or follow_ups or self._waiting:
            now = time.monotonic()
            if follow_ups and follow_ups[0][0] <= now:
                self._send(heapq.heappop(follow_ups)[-1])
                wait = 0.0
            elif upcoming is not None and upcoming.due <= now - began \
                    and (at_once is None or len(self._waiting) < at_once):
                self._send(upcoming)
                upcoming, wait = next(calls, None), 0.0
            elif upcoming is not None and upcoming.due > now - began:
                wait = upcoming.due - (now - began)
            else:
                wait = 1.0
            if follow_ups:
                wait = min(wait, max(0.0, follow_ups[0][0] - now))
            self._drain(min(wait, 1.0))
            while self._answers:
                seconds, call, answer, failure = self._answers.popleft()
                counts_as = methods.kind(answer, failure)
                played.kinds[counts_as] += 1
                last = time.monotonic()
                again = None if failure is not None else work.follow_up(call, answer, seconds)
                if again is not None:
                    heapq.heappush(follow_ups, (last + again.due, next(numbers), again))
                if failure is None and not (again and again.waited):
                    played.latencies.append(call.waited + seconds)
            self._give_up(played, now)
        played.seconds = last - began
        return played

    def _give_up(self, played: Played, now: float) -> None:
        # The first one is the oldest.
        while self._waiting:
            message_id, (sent, _call) = next(iter(self._waiting.items()))
            if now - sent < _PATIENCE_SECONDS:
                return
            del self._waiting[message_id]
            played.kinds[UNANSWERED] += 1

    def _send(self, call: Call, topic: str = TOPIC) -> str:
        message_id = uuid.uuid4().hex
        message = {
            'method': call.method, 'args': call.arguments, 'version': VERSION,
            '_unique_id': uuid.uuid4().hex, '_msg_id': message_id,
            '_reply_q': self._queues[call.sender], '_timeout': None,
            **{f'_context_{key}': value for key, value in self._contexts[call.sender].items()}}
        self._waiting[message_id] = time.monotonic(), call
        self._producer.publish(
            {_VERSION_KEY: _ENVELOPE, _MESSAGE_KEY: json.dumps(message)},
            routing_key=topic, serializer='json', delivery_mode='transient')
        return message_id

    def _drain(self, seconds: float) -> None:
        with contextlib.suppress(socket.timeout):
            self._connection.drain_events(timeout=seconds)

    def _on_message(self, message: Any) -> None:
        answer = json.loads(message.decode()[_MESSAGE_KEY])
        sent = self._waiting.pop(answer['_msg_id'], None)
        if sent is not None:
            failure = answer['failure'] and json.loads(answer['failure'])['class']
            self._answers.append((time.monotonic() - sent[0], sent[1], answer['result'], failure))


class _Process(BaseManager):
    """A player's process."""


_Process.register('Player', Player)


class Hosts:
    """Hosts that several players share; ``Players.hosts`` makes them.

    :param players: which take turns with the hosts.
    """

    def __init__(self, players: Sequence[Any]):
        self._players = players

    def play(self, works: Sequence[Work], at_once: int | None = None) -> Played:
        """Have each player do its work with its hosts, all at the same time, and sum up.

        :param works: one for each player.
        :param at_once: how many of all players' calls may wait for answers.
        """
        count = len(self._players)
        with futures.ThreadPoolExecutor(count) as pool:
            played = list(pool.map(
                lambda player, work: player.play(work, at_once and max(1, at_once // count)),
                self._players, works))
        return summed(played, max(one.seconds for one in played))


class Players:
    """Processes that play hosts; ``started`` starts them.

    :ivar count: of processes.
    """

    def __init__(self, url: str, managers: Sequence[_Process]):
        self._url, self._managers, self.count = url, managers, len(managers)

    @contextlib.contextmanager
    def hosts(self, kind: str, count: int) -> Iterator[Hosts]:
        """Have new hosts until the end of the block.

        :param kind: with which their names begin.
        :param count: how many.
        """
        names = [f'{kind}-{number}' for number in range(count)]
        with futures.ThreadPoolExecutor(self.count) as pool:
            made = list(pool.map(
                lambda number: self._managers[number].Player(  # type: ignore[attr-defined]
                    self._url, names[number::self.count]), range(min(count, self.count))))
        try:
            yield Hosts(made)
        finally:
            for player in made:
                player.close()


@contextlib.contextmanager
def started(url: str, count: int) -> Iterator[Players]:
    """Start processes that play hosts; they end with the block.

    :param url: of RabbitMQ.
    :param count: of processes.
    """
    with contextlib.ExitStack() as stack:
        managers = []
        for _player in range(count):
            managers.append(_Process(ctx=multiprocessing.get_context('spawn')))
            managers[-1].start(die_with_parent)
            stack.callback(managers[-1].shutdown)
        yield Players(url, managers)
