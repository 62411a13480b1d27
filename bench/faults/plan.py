"""What is run: which fault at which step, in which life. Pure."""

import dataclasses
import enum
from collections.abc import Sequence

from bootcache import steps
from bootcache.steps import Process

# Of a life that passes no named step: the fault comes while the guest reads.
READING = 'the guest reads'


class Life(enum.StrEnum):
    """What an image and its servers go through: the way on which a step is passed."""

    ARRIVE = 'arrive'    # recorded when registered; the server reads from what arrives
    FETCH = 'fetch'      # the same, with a cache image that is small and fetched before the boot
    COLD = 'cold'        # the first server's boot is recorded in a growing store
    EVICT = 'evict'      # as FETCH; then a second image needs the room


class Act(enum.StrEnum):
    """What is done to something."""

    KILL = 'kill'        # kill -9
    FREEZE = 'freeze'    # SIGSTOP, for a while
    LINK = 'link'        # the storage node's link is down, for a while
    FULL = 'full'        # the file system of the process at the step is full, for a while
    CORRUPT = 'corrupt'  # a byte of the file that the step is about is another
    BUS = 'bus'          # the message bus is away, or frozen, for a while


@dataclasses.dataclass(frozen=True)
class Fault:
    """Something that goes wrong.

    :ivar name: for people.
    :ivar act: what is done.
    :ivar on: to what: process names as stage.py has them, a state of the bus, or nothing.
    :ivar seconds: after which what is away, frozen or full is not any more.
    """

    name: str
    act: Act
    on: tuple[str, ...] = ()
    seconds: float = 0.0


HOST, STORAGE, GATEWAY, EXPORTER, READER = 'host', 'storage', 'gateway', 'exporter', 'reader'
_AT = {Process.HOST: HOST, Process.STORAGE: STORAGE}
_SECONDS = 3.0

FAULTS = {fault.name: fault for fault in (
    Fault('kill', Act.KILL, ('self',)),
    Fault('kill-gateway', Act.KILL, (GATEWAY,)),
    Fault('kill-exporter', Act.KILL, (EXPORTER,)),
    Fault('kill-reader', Act.KILL, (READER,)),
    Fault('kill-host', Act.KILL, (HOST, GATEWAY, READER)),
    Fault('kill-node', Act.KILL, (STORAGE, EXPORTER)),
    Fault('kill-all', Act.KILL, (HOST, GATEWAY, READER, STORAGE, EXPORTER)),
    Fault('freeze-exporter', Act.FREEZE, (EXPORTER,), _SECONDS),
    Fault('freeze-gateway', Act.FREEZE, (GATEWAY,), _SECONDS),
    Fault('link-down', Act.LINK, (), _SECONDS),
    Fault('disk-full', Act.FULL, ('self',), _SECONDS),
    Fault('corrupt', Act.CORRUPT, ('self',)),
    Fault('bus-away', Act.BUS, ('away',), _SECONDS),
    Fault('bus-frozen', Act.BUS, ('frozen',), _SECONDS),
)}

# By the beginning of a step's name: the life on whose way it is. The longest that fits counts.
_LIVES = {'': Life.FETCH, 'arrive': Life.ARRIVE, 'promote': Life.ARRIVE, 'empty': Life.COLD,
          'grow': Life.COLD, 'evict: file': Life.EVICT, 'replace': Life.COLD}
# Steps with a file that is checked before it is used, on this side of the check.
_CHECKED = {'build: named', 'fetch: copied', 'arrive: come', 'settle: piece',
            'build: noted', 'place: file there'}
# Where a full medium is found out: something is written next.
_WRITES = ('register: taken up', 'register: copied', 'record: kept', 'build: named',
           'build: served', 'fetch: copied', 'fetch: verified', 'arrive: begun', 'grow: opened',
           'chain: made', 'settle: piece', 'settle: marked')
# Kept short: what has gone wrong in runs, and one of each kind.
_QUICK = {('kill', name) for name in (
    'register: named', 'build: filled', 'build: served', 'place: entry gone', 'arrive: begun',
    'arrive: landing', 'grow: opened', 'chain: made', 'settle: marked', 'retire: withdrawn')} | {
    ('kill-gateway', READING), ('kill-exporter', READING), ('link-down', 'arrive: begun'),
    ('corrupt', 'fetch: copied'), ('disk-full', 'chain: made'), ('kill-all', 'place: file there')}


@dataclasses.dataclass(frozen=True)
class Row:
    """A fault at a step.

    :ivar step: its name, or READING.
    :ivar fault: what goes wrong when it is reached.
    :ivar life: on whose way it is.
    """

    step: str
    fault: Fault
    life: Life

    @property
    def process(self) -> str:
        """Who comes to the step: HOST, STORAGE or READER."""
        return next((_AT[one.process] for one in steps.TABLE if one.name == self.step), READER)

    @property
    def targets(self) -> tuple[str, ...]:
        """What the fault is done to."""
        return tuple(self.process if one == 'self' else one for one in self.fault.on)

    @property
    def is_quick(self) -> bool:
        """Whether it is part of the short run."""
        return (self.fault.name, self.step) in _QUICK


def life_of(step: str) -> Life:
    """Return the life on whose way a step is."""
    return _LIVES[max((key for key in _LIVES if step.startswith(key)), key=len)]


def _faults_at(step: str) -> list[str]:
    found = ['kill', 'kill-all', 'bus-away', 'bus-frozen']
    process = next(one.process for one in steps.TABLE if one.name == step)
    if process is Process.STORAGE:
        found += ['kill-exporter', 'kill-node', 'freeze-exporter']
    else:
        found += ['kill-gateway', 'kill-host', 'kill-exporter', 'freeze-exporter',
                  'freeze-gateway', 'link-down']
    if step in _WRITES:
        found.append('disk-full')
    if step in _CHECKED:
        found.append('corrupt')
    return found


def rows() -> list[Row]:
    """Return all that is tried."""
    found = [Row(step.name, FAULTS[name], life_of(step.name)) for step in steps.TABLE
             for name in _faults_at(step.name)]
    # What is not as it was on the storage node while servers read what arrives.
    found += [Row(step, FAULTS['corrupt'], Life.ARRIVE) for step in sorted(_CHECKED)
              if step.startswith('build')]
    for life in (Life.ARRIVE, Life.FETCH, Life.COLD):
        found += [Row(READING, FAULTS[name], life) for name in (
            'kill-reader', 'kill-gateway', 'kill-exporter', 'kill-host', 'kill-node', 'kill-all',
            'freeze-exporter', 'freeze-gateway', 'link-down')]
    return found


def chosen(known: Sequence[Row], names: Sequence[str], quick: bool) -> list[Row]:
    """Return the rows that are asked for.

    :param names: of steps, of the part before their colon, or of faults; all are, where there are
        none. A step and a fault: that fault at that step.
    :param quick: only those of the short run, where no name is given.
    :raises ValueError: if there is no such name; it tells which there are.
    """
    if not names:
        seen: set[tuple[str, str]] = set()
        return [row for row in known if not quick or (row.is_quick and (
            (row.fault.name, row.step) not in seen
            and not seen.add((row.fault.name, row.step))))]  # type: ignore[func-returns-value]
    places = {row.step for row in known} | {row.step.partition(':')[0] for row in known}
    for name in names:
        if name not in FAULTS and name not in places:
            raise ValueError(f'{name}: neither a step ({", ".join(sorted(places))}) nor a fault'
                             f' ({", ".join(FAULTS)})')
    at = [name for name in names if name not in FAULTS]
    what = [name for name in names if name in FAULTS]
    return [row for row in known
            if (not at or row.step in at or row.step.partition(':')[0] in at)
            and (not what or row.fault.name in what)]
