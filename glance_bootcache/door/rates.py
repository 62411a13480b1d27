"""How much one sender may ask for, so that the others are answered: no messages are signed, and one
password is all that it takes to send any.

A sender is a process: its messages have a secret that it has made, which nobody else gets to know.
What has none is counted by the host that it names. Either is made up easily, so senders that were
not heard of for long share a limit of their own: whoever makes up names takes from those alone who
have just come, and pushes out nobody. Who keeps made-up ones up for minutes has as many shares.
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
