"""Ways to a base that fail: which cases there are, and what has to come of each. Pure."""

import dataclasses
import enum
from collections.abc import Iterable, Sequence

from bench.faults.report import Outcome

NBD, TLS, CEPH = _BASES = 'nbd', 'tls', 'ceph'
# NBD, and what fails is what the storage service knows: no read may wait for that.
DATABASE = 'database'
WAYS = *_BASES, DATABASE
# Connections that were made with the former certificate go on.
RENEWED = 'certificate-renewed'
# What has to hold, in seconds: until a read is answered or its guest is paused, and until servers
# start; until a guest goes on after its way has returned.
MOST_SECONDS, ON_SECONDS = 25.0, 5.0
# What is away for longer than that keeps a read waiting for at least that.
REACHED_SECONDS = 3.0
# So long all of it may last before it is called hanging.
GIVEN_UP = 90.0


@dataclasses.dataclass(frozen=True)
class Case:
    """A way that fails.

    :ivar name: for people.
    :ivar seconds: for which the way is away; 0 where it returns as soon as something runs again.
    :ivar ways: of which it is tried.
    :ivar is_quick: whether it is in the short run.
    """

    name: str
    seconds: float
    ways: tuple[str, ...] = _BASES
    is_quick: bool = True

    @property
    def fails(self) -> bool:
        """Whether reads wait for it: what is started again at once keeps none."""
        return self.seconds > REACHED_SECONDS and self.name != RENEWED \
            and DATABASE not in self.ways


CASES = (
    Case('kill-supervisor', 0), Case('kill-connector', 0), Case('kill-gateway', 0),
    Case('kill-compute', 0), Case(RENEWED, 15, (TLS,)),
    Case('idle-flow-dropped', 35), Case('packets-dropped', 35), Case('mtu-black-hole', 35),
    Case('exporter-frozen-35s', 35), Case('reopen-under-a-read', 35),
    Case('name-unresolved', 35, (NBD, TLS)), Case('ceph-away', 35, (CEPH,)),
    Case('disk-hangs', 35), Case('exporter-frozen-200s', 200, _BASES, False),
    *(Case(name, 35, (DATABASE,)) for name in (
        'database-away', 'database-empty', 'database-restored', 'database-restored-restart',
        'database-corrupt', 'node-rebooted', 'two-services')),
    Case('database-away-600s', 600, (DATABASE,), False))


@dataclasses.dataclass(frozen=True)
class Figures:
    """What was seen of a guest for a while.

    :ivar reads: that were answered.
    :ivar unanswered: seconds, the longest until a read was answered or its guest paused.
    :ivar paused: seconds, the longest.
    :ivar pauses: how many.
    :ivar until_on: seconds from a moment until a read that ended after it; None if none did.
    :ivar errors: reads that the guest saw fail; one more if its QEMU has ended.
    :ivar wrong: bytes, of reads with another sum than that of the image.
    """

    reads: int = 0
    unanswered: float = 0.0
    paused: float = 0.0
    pauses: int = 0
    until_on: float | None = None
    errors: int = 0
    wrong: int = 0


class Event(enum.Enum):
    """What is told of a guest: by itself of its reads, by its QEMU of the rest."""

    BEGUN, ENDED = 'a read begins', 'a read has ended'
    STOPPED, RESUMED = 'it is paused', 'it goes on'


def figures_of(events: Iterable[tuple[float, Event]], now: float,
               since: float | None) -> Figures:
    """Return what was seen of a guest by what was told, without errors and wrong bytes. Pure.

    :param events: with their monotonic seconds, in any order.
    :param now: until when.
    :param since: the moment of ``until_on``.
    """
    begun: float | None = None
    stopped: float | None = None
    unanswered = paused = 0.0
    ends, pauses = [], 0
    found: list[tuple[float, Event | None]] = [*sorted(events, key=lambda one: one[0]), (now, None)]
    for moment, event in found:
        if stopped is not None:
            paused = max(paused, moment - stopped)
        elif begun is not None:
            unanswered = max(unanswered, moment - begun)
        if event is Event.BEGUN:
            begun = moment
        elif event is Event.ENDED:
            begun = None
            ends.append(moment)
        elif event is Event.STOPPED and stopped is None:
            stopped, pauses = moment, pauses + 1
        elif event is Event.RESUMED:
            # QEMU asks anew.
            stopped, begun = None, begun and moment
    later = [end - since for end in ends if since is not None and end > since]
    return Figures(len(ends), unanswered, paused, pauses, later[0] if later else None)


@dataclasses.dataclass(frozen=True)
class WayOutcome(Outcome):
    """What came of a case.

    :ivar way: by which the base is read: nbd, tls or ceph; or database.
    :ivar seconds_unanswered: the longest until a read was answered or its guest paused.
    :ivar seconds_until_on: the longest until a guest went on after the way's return.
    :ivar seconds_other: the longest start of a server of another image while the way was away.
    :ivar seconds_same: the same of the guests' image.
    """

    way: str = ''
    seconds_unanswered: float = 0.0
    seconds_until_on: float = 0.0
    seconds_other: float = 0.0
    seconds_same: float = 0.0


def chosen(names: Sequence[str], is_quick: bool) -> list[tuple[str, list[Case]]]:
    """Return the cases of each way that are asked for. Pure.

    :param names: of ways, or parts of cases' names; all are, where there are none.
    :raises ValueError: if there is no such name; it tells which there are.
    """
    for name in names:
        if name not in WAYS and not any(name in case.name for case in CASES):
            raise ValueError(f'{name}: neither a way ({", ".join(WAYS)}) nor a case'
                             f' ({", ".join(case.name for case in CASES)})')
    ways = [way for way in WAYS if way in names] or list(WAYS)
    parts = [name for name in names if name not in WAYS]
    found = [(way, [case for case in CASES if way in case.ways and (
        any(part in case.name for part in parts) if parts else case.is_quick or not is_quick)])
        for way in ways]
    return [(way, cases) for way, cases in found if cases]


def faults_of(case: Case, figures: Sequence[Figures], others: float, same: float) -> list[str]:
    """Return what is not as it has to be. Pure."""
    found = []
    if case.fails and max(one.unanswered for one in figures) < REACHED_SECONDS:
        found.append('no read has waited: nothing failed')
    if DATABASE in case.ways and (longest := max(one.paused for one in figures)) > MOST_SECONDS:
        found.append(f'a guest was paused for {longest:.1f} s, and its base was there')
    if (longest := max(one.unanswered for one in figures)) > MOST_SECONDS:
        found.append(f'a read waited for {longest:.1f} s, and its guest ran')
    on = [one.until_on for one in figures]
    if None in on:
        found.append(f'a guest does not go on {GIVEN_UP:.0f} s after the way\'s return')
    elif (latest := max(one for one in on if one is not None)) > ON_SECONDS:
        found.append(f'a guest went on {latest:.1f} s after the way\'s return')
    for seconds, what in (others, 'another'), (same, 'the same'):
        if seconds > MOST_SECONDS:
            found.append(f'a server of {what} image took {seconds:.1f} s to start')
    return found


def line(one: Outcome) -> str:
    """Return what is told of a case beside the line of its run."""
    assert isinstance(one, WayOutcome)
    return f'{one.way}: unanswered {one.seconds_unanswered} s, on after {one.seconds_until_on} s,' \
        f' servers {one.seconds_other} and {one.seconds_same} s'
