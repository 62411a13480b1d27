"""Calls of the storage service's RPC, and the meaning of its answers.

All that this benchmark knows of methods and arguments is here; bootcache/rpc/messages.py has them.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from bootcache.rpc.fields import plain
from bootcache.rpc.messages import (
    NO_IMAGE,
    SENDER,
    VERSION,
    BootAction,
    GetImage,
    ListImages,
    ListNodes,
    Message,
    PlanBoot,
    ReportHoldings,
)
from bootcache.rpc.report import BasesRead, HeldImage, HostReport, PausedGuests, UnsettledServers
from bootcache.tier import Medium

EMPTY_CALL = 'get_image of no image'
# An image's share of a host's disk tier, and the tier's quota.
_IMAGE_BYTES, _QUOTA_BYTES = 60 << 20, 20 << 30
# A host of which ten servers a day boot reports another last use every 144 minutes.
_CHANGED_EVERY = 144
_REFUSED = 'TooManyMessages'
# The rate limiter's, of all senders together that came within ten minutes, after a burst of 4,000.
NEW_SENDERS_RATE = 200.0
# Of their calls so many may be answered at a time.
NEW_SENDERS_AT_ONCE = 48
# nova-compute's, of a boot that is to wait; and for how long it asks again here.
_ASK_AGAIN_SECONDS, _WAIT_SECONDS = 1.0, 120.0


@dataclasses.dataclass(frozen=True)
class Call:
    """A message to the service.

    :ivar sender: number of the player's host that sends it.
    :ivar due: seconds after the start of the play; of a call that an answer leads to, after that.
    :ivar waited: seconds since its host has asked first, if it asks again.
    """

    sender: int
    method: str
    arguments: dict[str, Any]
    due: float = 0.0
    waited: float = 0.0


def _call(sender: int, message: Message[Any], due: float = 0.0) -> Call:
    return Call(sender, message.method, plain(message), due)


def context(secret: str) -> dict[str, str]:
    """Return the context of a process's messages.

    :param secret: 32 hexadecimal digits, by which the rate limiter knows the process.
    """
    return {SENDER: secret}


def kind(answer: Any, failure: str | None) -> str:
    """Return what an answer counts as.

    :param failure: the name of the service's error, None if there is none.
    """
    if failure is not None:
        return 'refused' if failure == _REFUSED else failure
    return str(answer.get('action', 'answer')) if isinstance(answer, dict) else 'answer'


def empty_call(sender: int = 0) -> Call:
    """Return the cheapest call: the service looks for an image that is not there."""
    return _call(sender, GetImage(NO_IMAGE))


def list_images(listing: ListImages) -> Call:
    """Return the call of a page of the images."""
    return _call(0, listing)


def list_nodes() -> Call:
    """Return the call for the storage nodes, as the one that answers sees them."""
    return _call(0, ListNodes())


def working(listed: Sequence[dict[str, Any]]) -> set[str]:
    """Return the names of the storage nodes of a list that work."""
    return {node['name'] for node in listed if node['state'] == 'up'}


def served(listed: Sequence[dict[str, Any]]) -> int:
    """Return how many images of a list have a base."""
    return sum(image['state'] in ('served', 'ready') for image in listed)


class Work:
    """Calls that one player makes."""

    def calls(self, hosts: Sequence[str]) -> Iterator[Call]:
        """Yield the calls in the order of their ``due``.

        :param hosts: names of the player's hosts.
        """
        raise NotImplementedError

    def follow_up(self, call: Call, answer: Any, seconds: float) -> Call | None:
        """Return the call that an answer leads to, None if none.

        :param seconds: from the call to the answer.
        """
        return None


@dataclasses.dataclass(frozen=True)
class Empty(Work):
    """Empty calls; hosts take turns.

    :ivar count: of calls.
    """

    count: int

    def calls(self, hosts: Sequence[str]) -> Iterator[Call]:
        return (empty_call(number % len(hosts)) for number in range(self.count))


@dataclasses.dataclass(frozen=True)
class Boots(Work):
    """Each call plans a boot; hosts take turns, and so do images.

    A host that is to wait asks again, as nova-compute does.

    :ivar count: of calls.
    :ivar images: ids.
    :ivar first: index of the image that comes first.
    """

    count: int
    images: Sequence[str]
    first: int = 0

    def calls(self, hosts: Sequence[str]) -> Iterator[Call]:
        for number in range(self.count):
            sender = number % len(hosts)
            yield _call(sender, PlanBoot(
                self.images[(self.first + number) % len(self.images)], hosts[sender],
                f'{hosts[sender]}-{number}', owner='project'))

    def follow_up(self, call: Call, answer: Any, seconds: float) -> Call | None:
        is_to_wait = isinstance(answer, dict) and answer.get('action') == BootAction.WAIT
        return dataclasses.replace(
            call, due=_ASK_AGAIN_SECONDS, waited=call.waited + seconds + _ASK_AGAIN_SECONDS
        ) if is_to_wait and call.waited < _WAIT_SECONDS else None


@dataclasses.dataclass(frozen=True)
class Reports(Work):
    """Hosts report what they hold, each once in a period, evenly spread over it.

    A host says that nothing has changed, but for each of 144 times, and answers ``resend``. Its
    reports are numbered, as storage nodes tell each other of them.

    :ivar images: ids of all images; a host holds some of them.
    :ivar held: how many images a host holds.
    :ivar now: seconds since the epoch, when images were used last.
    :ivar seconds: for which they report.
    :ivar period: seconds between a host's reports.
    :ivar knows: whether the service has heard these hosts; if not, they report all first.
    :ivar turn: how many periods these hosts have reported for before.
    """

    images: Sequence[str]
    held: int
    now: float
    seconds: float
    period: float = 60.0
    knows: bool = True
    turn: int = 0

    def calls(self, hosts: Sequence[str]) -> Iterator[Call]:
        for turn in itertools.count(self.turn):
            for sender, host in enumerate(hosts):
                due = (turn - self.turn + sender / len(hosts)) * self.period
                if due >= self.seconds:
                    return
                is_news = (turn == self.turn and not self.knows) or _has_changed(sender, turn)
                yield _call(sender, ReportHoldings(
                    host, self._report(sender, turn) if is_news else None,
                    _number(sender, turn)), due)

    def follow_up(self, call: Call, answer: Any, seconds: float) -> Call | None:
        if isinstance(answer, dict) and answer.get('resend'):
            return dataclasses.replace(call, due=0.0, arguments={
                **call.arguments, 'report': plain(self._report(call.sender, 0))})
        return None

    def _report(self, sender: int, turn: int) -> HostReport:
        first = sender * self.held
        held = [self.images[(first + number) % len(self.images)] for number in range(self.held)]
        return HostReport(
            {image_id: HeldImage(self.now + turn, Medium.DISK, 0, _IMAGE_BYTES)
             for image_id in held}, {Medium.DISK: _QUOTA_BYTES}, frozenset(held[:5]),
            UnsettledServers(0, ()), PausedGuests(0, ()), BasesRead(0, ()), VERSION)


def _has_changed(sender: int, turn: int) -> bool:
    """Return whether a host's report of a period is another one than before."""
    return (turn + sender) % _CHANGED_EVERY == 1


def _number(sender: int, turn: int) -> int:
    """Return the number of a host's report: how many others it had up to a period, and 1."""
    return 1 + sum(_has_changed(sender, before) for before in range(turn + 1))
