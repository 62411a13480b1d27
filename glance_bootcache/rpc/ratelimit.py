"""How much one sender may send to the storage service.

A sender is a process: its messages have a secret that it has made, and that nobody else gets to
know. A message without a secret counts for the host that it names. Both are made up easily, so
senders of the last minutes share one limit: made-up senders take from new ones alone, and push out
nobody. A sender that is made up and kept for minutes has a share of its own.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import cachetools

from bootcache.exception import TooManyMessages

# What one sender may send: a host of which 20 servers a second start, and three times its usual
# share of the threads that answer (oslo.messaging has 64).
RATE = 20.0
BURST = 400.0
MOST_AT_ONCE = 24
# Of the threads that answer: the others are for senders with no message in hand.
MOST_OF_ALL = 56
# What the senders of the last minutes may send together: all hosts of a cloud that begins.
NEW_RATE = 200.0
NEW_BURST = 4000.0
# And so much for each host that is known: after a start of the service all of them are new, and
# each is asked for its report anew, which makes two messages within the minute.
KNOWN_RATE = 3 / 60
MOST_NEW_AT_ONCE = 48
ESTABLISHED_SECONDS = 600
# A sender that is silent for so long is a new one again.
_SILENT_SECONDS = 3600
_MOST_SENDERS = 20_000


class TokenBucket:
    """Fills by itself; not for several threads at once.

    :param rate: tokens a second.
    :param burst: tokens that it holds.
    :param now: monotonic seconds.
    """

    def __init__(self, rate: float, burst: float, now: float):
        self.rate = rate
        self._burst = burst
        self._left, self._at = burst, now

    def has(self, cost: float, now: float) -> bool:
        """Return whether so many tokens are there; of more than it holds, all of them."""
        self._left = min(self._burst, self._left + (now - self._at) * self.rate)
        self._at = now
        return self._left >= min(cost, self._burst)

    def take(self, cost: float) -> None:
        """Take so many tokens, which are there."""
        self._left -= min(cost, self._burst)


class _Share:
    """What a sender, or several, may send.

    :param bucket: tokens are messages.
    :param most: messages in hand.
    :param since: monotonic seconds.
    """

    def __init__(self, bucket: TokenBucket, most: int, since: float):
        self.bucket = bucket
        self.since = since
        self._most = most
        self.in_hand = 0

    def lacks(self, cost: float, now: float) -> str:
        """Return why a message is one too many; an empty string if it is not."""
        if self.in_hand >= self._most:
            return f'{self.in_hand} are being answered'
        return '' if self.bucket.has(cost, now) else f'more than {self.bucket.rate:g} a second'


class RateLimiter:
    """Bounds what each sender sends, and what all new ones send together.

    :param clock: monotonic seconds.
    :param hosts: compute hosts that are known as the service starts.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, hosts: int = 0):
        self._clock = clock
        self._lock = threading.Lock()  # guards what is below; nothing is called under it
        now = clock()
        self._newcomers = _Share(TokenBucket(NEW_RATE + KNOWN_RATE * hosts, NEW_BURST, now),
                                 MOST_NEW_AT_ONCE, now)
        self._in_hand = 0
        self._new = self._table()
        self._established = self._table()

    def _table(self) -> 'cachetools.TTLCache[str, _Share]':
        return cachetools.TTLCache(_MOST_SENDERS, _SILENT_SECONDS, timer=self._clock)

    @contextlib.contextmanager
    def admitted(self, sender: str, cost: float = 1.0) -> Iterator[None]:
        """Have a message of a sender in hand within the block.

        :param cost: how many messages it is as much work as.
        :raises TooManyMessages: if it is one too many.
        """
        shares = self._admit(sender, cost)
        try:
            yield
        finally:
            with self._lock:
                self._in_hand -= 1
                for share in shares:
                    share.in_hand -= 1

    def _admit(self, sender: str, cost: float) -> list[_Share]:
        with self._lock:
            shares = self._shares(sender)
            now = self._clock()
            # The sender's own first: its surplus costs the others nothing.
            for share, whose in zip(shares, ('this sender', 'senders that have just come'),
                                    strict=False):
                if reason := share.lacks(cost, now):
                    raise TooManyMessages('message', f'too many of {whose}: {reason}')
            if shares[0].in_hand and self._in_hand >= MOST_OF_ALL:
                raise TooManyMessages('message', 'too many of all senders: what is left is for'
                                      ' those that have nothing in hand')
            self._in_hand += 1
            for share in shares:
                share.bucket.take(cost)
                share.in_hand += 1
            return shares

    def _shares(self, sender: str) -> list[_Share]:
        """Return a sender's own share, and that of all new ones, if it is new; locked."""
        now = self._clock()
        if (share := self._established.get(sender)) is not None:
            # So that it is not forgotten.
            self._established[sender] = share
            return [share]
        for table in (self._new, self._established):
            table.expire()
        share = self._new.get(sender)
        if share is None:
            share = _Share(TokenBucket(RATE, BURST, now), MOST_AT_ONCE, now)
            if len(self._new) == _MOST_SENDERS:
                # Not remembered: it never counts as established, and takes nobody's place.
                return [share, self._newcomers]
        elif now - share.since >= ESTABLISHED_SECONDS and len(self._established) < _MOST_SENDERS:
            del self._new[sender]
            self._established[sender] = share
            return [share]
        self._new[sender] = share
        return [share, self._newcomers]
