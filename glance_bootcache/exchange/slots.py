"""Which hosts may get full bases from the storage node now, and which come next: soft state.

A host that has a slot says so while it uses it, and one that waits asks again. Of one from which
neither is heard nothing is kept. A host is here the process that speaks, as ratelimit.py has it:
whoever names others has one place, and gives back no other's. A slot counts for the host that was
given it here: after a restart of the service there can be more hosts at it, until those of before
have done.
"""

import threading
import time
from collections.abc import Callable

# A host tells every 15 s that it uses its slot.
HELD_SECONDS = 60.0
# What takes longer goes on, and counts no more: names that are made up would never give one back.
LONGEST_SECONDS = 3600.0
# One that waits is told when to ask again: later where it is not its turn for long, that many do
# not ask all the time. It may be at a try to get the base from other hosts when that is.
AGAIN_SECONDS = 10.0
_PLACES_A_SECOND = 20
GRACE_SECONDS = 120.0
# Whoever can write to the message bus can make up senders as well.
_MOST_HOSTS = 20_000


class Slots:
    """The hosts that have a slot, and those that wait, in the order in which they began to.

    :param most: hosts that have one at the same time.
    :param clock: monotonic seconds.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic):
        self._most = most
        self._clock = clock
        self._lock = threading.Lock()  # guards both, for steps in memory
        # Until when each has it, or its place; and until when it may have it at most.
        self._held: dict[str, float] = {}
        self._longest: dict[str, float] = {}
        self._waiting: dict[str, float] = {}

    def take(self, host: str, waits: bool = True) -> float:
        """Give a host a slot, if it has one or it is its turn; else it waits from now on.

        :param waits: False if it can do without one.
        :returns: 0 if it has one now; else the seconds in which it is to ask again.
        """
        with self._lock:
            now = self._clock()
            self._forget(now)
            if host not in self._held:
                place = next((place for place, other in enumerate(self._waiting) if other == host),
                             len(self._waiting))
                if place >= self._most - len(self._held):
                    again = max(AGAIN_SECONDS, place / _PLACES_A_SECOND)
                    if waits and place < _MOST_HOSTS:
                        self._waiting[host] = now + again + GRACE_SECONDS
                    return again
                self._waiting.pop(host, None)
                self._longest[host] = now + LONGEST_SECONDS
            self._held[host] = min(now + HELD_SECONDS, self._longest[host])
            return 0.0

    def hold(self, host: str, holds: bool) -> None:
        """Hear that a host uses its slot, or needs none any more.

        :param holds: False for the latter.
        """
        with self._lock:
            now = self._clock()
            self._forget(now)
            if not holds:
                self._held.pop(host, None)
                self._waiting.pop(host, None)
            elif host in self._held:
                self._held[host] = min(now + HELD_SECONDS, self._longest[host])

    def _forget(self, now: float) -> None:
        for hosts in self._held, self._waiting:
            for host in [host for host, until in hosts.items() if until <= now]:
                del hosts[host]
        self._longest = {host: self._longest[host] for host in self._held}
