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
    GetImage,
    ListImages,
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


@dataclasses.dataclass(frozen=True)
class Call:
    """A message to the service.

    :ivar sender: number of the player's host that sends it.
    :ivar due: seconds after the start of the play.
    """

    sender: int
    method: str
    arguments: dict[str, Any]
    due: float = 0.0


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

    def follow_up(self, call: Call, answer: Any) -> Call | None:
        """Return the call that an answer leads to, None if none."""
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


@dataclasses.dataclass(frozen=True)
class Reports(Work):
    """Hosts report what they hold, each once in a period, evenly spread over it.

    A host says that nothing has changed, but for each of 144 times, and answers ``resend``.

    :ivar images: ids of all images; a host holds some of them.
    :ivar held: how many images a host holds.
    :ivar now: seconds since the epoch, when images were used last.
    :ivar seconds: for which they report.
    :ivar period: seconds between a host's reports.
    :ivar knows: whether the service has heard these hosts; if not, they report all first.
    """

    images: Sequence[str]
    held: int
    now: float
    seconds: float
    period: float = 60.0
    knows: bool = True

    def calls(self, hosts: Sequence[str]) -> Iterator[Call]:
        for turn in itertools.count():
            for sender, host in enumerate(hosts):
                due = (turn + sender / len(hosts)) * self.period
                if due >= self.seconds:
                    return
                is_news = (turn == 0 and not self.knows) or (turn + sender) % _CHANGED_EVERY == 1
                yield _call(sender, ReportHoldings(
                    host, self._report(sender, turn) if is_news else None), due)

    def follow_up(self, call: Call, answer: Any) -> Call | None:
        if isinstance(answer, dict) and answer.get('resend'):
            return dataclasses.replace(call, arguments={
                **call.arguments, 'report': plain(self._report(call.sender, 0))})
        return None

    def _report(self, sender: int, turn: int) -> HostReport:
        first = sender * self.held
        held = [self.images[(first + number) % len(self.images)] for number in range(self.held)]
        return HostReport(
            {image_id: HeldImage(self.now + turn, Medium.DISK, 0, _IMAGE_BYTES)
             for image_id in held}, {Medium.DISK: _QUOTA_BYTES}, frozenset(held[:5]),
            UnsettledServers(0, ()), PausedGuests(0, ()), BasesRead(0, ()), VERSION)
