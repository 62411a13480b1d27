"""When a fetch by exchange that stalls is helped, and when it is left: pure.

A fetch stalls as its peers have gone, have nothing yet, or were taken for liars: of a piece
with a wrong block it is not always known who sent that. One that hardly moves is left as well:
peers that give a block now and then would hold up a server for as long as they like.
"""

import dataclasses
import enum

# Seconds in which nothing new has come. The last has to be less than 5: plain copying begins then.
RECONNECT_AFTER = 1.0
START_OVER_AFTER = 2.5
GIVE_UP_AFTER = 4.5
# Bytes a second: a copy that is slower is given up as well.
_SLOWEST = 128 << 10
# Seconds after which the reserve is asked in any case: that one is as fast as a copy.
RESERVE_AFTER = 30.0
# Seconds for which servers wait for a file that others give, however well it comes: an exchange may
# make a boot faster, and has it begin less than 5 seconds later.
SERVERS_WAIT = 4.5


class Help(enum.Enum):
    """What is done for a fetch."""

    NONE = 'none'
    # Those that are known are connected to again, and those in reserve.
    RECONNECT = 'reconnect'
    # What is there is looked at again, and everybody believed again.
    START_OVER = 'start over'
    GIVE_UP = 'give up'


@dataclasses.dataclass(frozen=True)
class Stillness:
    """What was seen of a fetch.

    :ivar since: when something new came last, in monotonic seconds.
    :ivar done: bytes that had come by then.
    :ivar helped: what was done for it since then.
    :ivar marked: when as much as is to come in so many seconds had come; None for ``since``.
    :ivar marked_done: bytes that had come by then.
    """

    since: float
    done: int = 0
    helped: Help = Help.NONE
    marked: float | None = None
    marked_done: int = 0


def least_bytes(rate: int) -> int:
    """Return how much is to come before a fetch is given up, at least. Pure.

    :param rate: bytes a second at which it comes at most; 0 for no limit.
    """
    return max(1, int(GIVE_UP_AFTER * (min(_SLOWEST, rate // 2) if rate else _SLOWEST)))


def servers_wait(since: float, now: float) -> float:
    """Return for how many seconds servers still wait for a file that others give. Pure.

    :param since: when the first one began to, in monotonic seconds, as is ``now``.
    """
    return max(0.0, since + SERVERS_WAIT - now)


def look(watch: Stillness, done: int, now: float, least: int = 1) -> tuple[Help, Stillness]:
    """Return what is to be done now, and what was seen. Pure.

    :param done: bytes that have come, each piece verified.
    :param now: monotonic seconds.
    :param least: bytes that are to come in the seconds after which it is given up.
    """
    marked = watch.since if watch.marked is None else watch.marked
    if done >= watch.marked_done + least:
        watch = dataclasses.replace(watch, marked=now, marked_done=done)
    elif now - marked >= GIVE_UP_AFTER:
        return Help.GIVE_UP, watch
    else:
        watch = dataclasses.replace(watch, marked=marked)
    if done > watch.done:
        return Help.NONE, dataclasses.replace(watch, since=now, done=done, helped=Help.NONE)
    still = now - watch.since
    if still >= GIVE_UP_AFTER:
        return Help.GIVE_UP, watch
    if still >= START_OVER_AFTER and watch.helped is not Help.START_OVER:
        return Help.START_OVER, dataclasses.replace(watch, helped=Help.START_OVER)
    if still >= RECONNECT_AFTER and watch.helped is Help.NONE:
        return Help.RECONNECT, dataclasses.replace(watch, helped=Help.RECONNECT)
    return Help.NONE, watch
