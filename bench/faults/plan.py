"""What is run: which fault at which step, in which life. Pure."""

import dataclasses
import enum
from collections.abc import Sequence

from bench.faults.kinds import (
    FAULTS,
    HOST,
    LONG,
    LONG_SECONDS,
    READER,
    SELF,
    SEVERAL,
    STORAGE,
    Act,
    Fault,
)
from bootcache import steps
from bootcache.steps import Process

# Of a life that passes no named step: the fault comes while the guest reads.
READING = 'the guest reads'
# Of a life in which something goes wrong at one step after the other.
ONE_AFTER_THE_OTHER = 'one after the other'
# So often each is run in the full run, unless something else is asked for.
FULL_REPEATS = 2


class Life(enum.StrEnum):
    """What an image and its servers go through: the way on which a step is passed."""

    ARRIVE = 'arrive'    # recorded when registered; the server reads from what arrives
    FETCH = 'fetch'      # the same, with a cache image that is small and fetched before the boot
    COLD = 'cold'        # the first server's boot is recorded in a growing store
    EVICT = 'evict'      # as FETCH; then a second image needs the room
    EXPAND = 'expand'    # as FETCH, with compressed clusters; the host expands the cache image
    EXCHANGE = 'exchange'  # as ARRIVE; another host has asked for the cache image before
    CEPH = 'ceph'        # as FETCH, with the image in Ceph, where the host reads the base itself
    MOVE = 'move'        # as FETCH; then the storage node gets another address, and the guest reads


_AT = {Process.HOST: HOST, Process.STORAGE: STORAGE}

# By the beginning of a step's name: the life on whose way it is. The longest that fits counts.
_LIVES = {'': Life.FETCH, 'arrive': Life.ARRIVE, 'arrive: apart': Life.EXCHANGE,
          'arrive: exchanged': Life.EXCHANGE, 'promote': Life.ARRIVE, 'empty': Life.COLD,
          'grow': Life.COLD, 'evict: file': Life.EVICT, 'replace': Life.COLD,
          'connector': Life.MOVE, 'expand': Life.EXPAND, 'clone': Life.CEPH}
# Steps with a file that is checked before it is used, on this side of the check.
_CHECKED = {'build: named', 'fetch: copied', 'arrive: come', 'arrive: exchanged', 'settle: piece',
            'build: noted',             'expand: filled'}
# Where a full medium is found out: something is written next.
_WRITES = ('register: taken up', 'register: copied', 'record: kept', 'build: named',
           'build: served', 'fetch: copied', 'fetch: verified', 'arrive: begun', 'arrive: apart',
           'grow: opened', 'expand: begun', 'expand: compared', 'chain: made', 'settle: piece',
           'settle: marked')
# The same with not even a file of some bytes.
_NOTES = ('register: heard', 'register: copied', 'build: served', 'chain: made')
# While a base in Ceph is read: it is served, the disk is made, the full base is copied.
_IN_CEPH = READING, 'clone: made', 'gateway: nodes', 'chain: made', 'settle: piece'
_OF_CEPH = ('ceph-away', 'ceph-frozen', 'osd-killed', 'key-taken', 'kill-clones',
            'freeze-clones', 'kill-node-clones')
# Of several storage nodes: nodeplan.py has these.
_OF_SEVERAL = ('claim', 'give up')
# When the image is deleted already.
_AFTER_DELETION = ('retire', 'evict: base')

# The short run: lives in which something goes wrong at one step after the other. Each step has its
# kill in one of them but one, and there is a fault of most kinds. A server reads from what arrives
# only if the storage service has seen all of it since it started, and a host that is killed while
# it arrives fetches it: so nothing of that goes before a step of arriving.
_QUICK: tuple[tuple[Life, dict[str, str]], ...] = (
    (Life.FETCH, {
        **dict.fromkeys((
            'record: kept', 'build: read', 'build: filled', 'build: named', 'build: served',
            'build: noted', 'gateway: nodes', 'fetch: verified', 'place: entry gone',
            'place: file there', 'settle: piece', 'settle: verified', 'settle: marked',
            'settle: written', 'evict: base gone'), 'kill'),
        'fetch: copied': 'corrupt', 'chain: made': 'disk-full', READING: 'kill-exporter'}),
    (Life.ARRIVE, {
        **dict.fromkeys((
            'register: taken up', 'serve: nodes', 'arrive: held', 'arrive: landing',
            'retire: withdrawn'), 'kill')}),
    (Life.EVICT, {
        **dict.fromkeys((
            'register: heard', 'register: named', 'register: noted', 'fetch: copied', 'chain: made',
            'evict: file gone'), 'kill'),
        'register: copied': 'token-expired', 'place: file there': 'bus-away',
        READING: 'kill-gateway'}),
    (Life.COLD, {
        **dict.fromkeys((
            'register: copied', 'replace: written', 'empty: made', 'grow: made', 'grow: opened',
            'retire: forgotten'), 'kill'),
        'register: heard': 'disk-all-full', READING: 'kill-node'}),
    (Life.ARRIVE, {
        'arrive: begun': 'link-down', 'promote: copied': 'kill', 'arrive: come': 'kill'}),
    (Life.EXPAND, {
        **dict.fromkeys(('expand: begun', 'expand: filled', 'expand: compared'), 'kill')}),
    # A host that was killed at the one does not come to the other: what it lacks is fetched.
    (Life.EXCHANGE, {'arrive: apart': 'kill'}),
    (Life.EXCHANGE, {'arrive: exchanged': 'kill'}),
    (Life.MOVE, {'connector: opened': 'kill', 'connector: linked': 'kill'}),
    (Life.CEPH, {'clone: made': 'kill', READING: 'osd-killed', 'settle: piece': 'ceph-away'}),
)


# Where what lasts long is waited for.
_LONG: dict[str, tuple[str, ...]] = {
    'bus-away': ('register: taken up', 'chain: made', READING),
    'bus-frozen': ('register: taken up', 'chain: made', READING),
    'glance-away': ('register: copied',), 'token-expired': ('register: copied',),
    'disk-full': ('build: named', 'fetch: copied', 'settle: piece'), 'node-full': (READING,),
    'freeze-gateway': (READING, 'chain: made', 'settle: piece'),
    'freeze-host': (READING, 'settle: piece'), 'freeze-service': (READING, 'settle: piece')}


@dataclasses.dataclass(frozen=True)
class Strike:
    """A fault at a step.

    :ivar step: its name, or READING.
    :ivar fault: what goes wrong when it is reached.
    """

    step: str
    fault: Fault

    @property
    def process(self) -> str:
        """Who comes to the step: HOST, STORAGE or READER."""
        return next((_AT[one.process] for one in steps.TABLE if one.name == self.step), READER)

    @property
    def targets(self) -> tuple[str, ...]:
        """What the fault is done to."""
        return tuple(self.process if one == SELF else one for one in self.fault.on)


@dataclasses.dataclass(frozen=True)
class Row:
    """A run: a fault at a step, or several at several.

    :ivar step: its name, READING, or ONE_AFTER_THE_OTHER.
    :ivar fault: the fault's name, or SEVERAL.
    :ivar life: on whose way the steps are.
    :ivar strikes: what goes wrong; each once.
    """

    step: str
    fault: str
    life: Life
    strikes: tuple[Strike, ...]

    @property
    def grace(self) -> float:
        """Seconds for which all may take longer than in a run with a short fault."""
        return max((strike.fault.seconds for strike in self.strikes
                    if strike.fault.name in LONG), default=0.0)

    def has(self, act: Act) -> bool:
        """Tell whether something is done in it."""
        return any(strike.fault.act is act for strike in self.strikes)


def _row(step: str, fault: str, life: Life) -> Row:
    return Row(step, fault, life, (Strike(step, FAULTS[fault]),))


def quick() -> list[Row]:
    """Return the short run."""
    return [Row(ONE_AFTER_THE_OTHER, SEVERAL, life, tuple(
        Strike(step, FAULTS[fault]) for step, fault in script.items()))
        for life, script in _QUICK]


def life_of(step: str) -> Life:
    """Return the life on whose way a step is."""
    return _LIVES[max((key for key in _LIVES if step.startswith(key)), key=len)]


def _faults_at(step: str) -> list[str]:
    found = ['kill', 'kill-all', 'bus-away', 'bus-frozen', 'kill-exporter', 'freeze-exporter',
             'clock-forward', 'clock-back']
    process = next(one.process for one in steps.TABLE if one.name == step)
    if process is Process.STORAGE:
        found += ['kill-node', 'glance-away', 'token-expired']
    else:
        found += ['kill-gateway', 'kill-host', 'freeze-gateway', 'link-down', 'link-slow',
                  'read-errors', 'some-read-errors', 'reads-late', 'closed-again']
    if not step.startswith(_AFTER_DELETION):
        found.append('image-deleted')
    if step in _WRITES:
        found.append('disk-full')
    if step in _NOTES:
        found.append('disk-all-full')
    if step in _CHECKED:
        found.append('corrupt')
    return found


def rows() -> list[Row]:
    """Return all that is tried, each at one step."""
    found = [_row(step.name, name, life_of(step.name)) for step in steps.TABLE
             if not step.name.startswith(_OF_SEVERAL) for name in _faults_at(step.name)]
    # What is not as it was on the storage node while servers read what arrives.
    found += [_row(step, 'corrupt', Life.ARRIVE) for step in sorted(_CHECKED)
              if step.startswith('build')]
    found += [_row(step, name, Life.CEPH) for step in _IN_CEPH for name in _OF_CEPH]
    found += [_row(READING, name, Life.CEPH) for name in (
        'kill-gateway', 'kill-exporter', 'kill-host', 'kill-node', 'kill-all', 'image-deleted')]
    for life in (Life.ARRIVE, Life.FETCH, Life.COLD):
        found += [_row(READING, name, life) for name in (
            'kill-reader', 'kill-gateway', 'kill-exporter', 'kill-host', 'kill-node', 'kill-all',
            'freeze-exporter', 'freeze-gateway', 'freeze-host', 'freeze-service', 'link-down',
            'link-slow', 'bus-away', 'bus-frozen', 'node-full', 'image-deleted', 'read-errors',
            'some-read-errors', 'reads-late', 'closed-again')]
    return found


def long() -> list[Row]:
    """Return what lasts longer than the product's own limits: where somebody waits for it."""
    return [_row(step, f'{name}-{seconds:.0f}s', life_of(step) if step != READING else Life.COLD)
            for name, places in _LONG.items() for step in places for seconds in LONG_SECONDS]


def chosen(known: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """Return the rows that are asked for.

    :param names: of steps, parts of steps' names, or faults; all are, where there are none. A step
        and a fault: that fault at that step.
    :raises ValueError: if there is no such name; it tells which there are.
    """
    known_steps = {row.step for row in known}
    at: set[str] = set()
    what = {name for name in names if name in FAULTS}
    for name in names:
        fitting = {step for step in known_steps if name == step} \
            or {step for step in known_steps if step.partition(':')[0] == name} \
            or {step for step in known_steps if name in step}
        if name not in what and not fitting:
            raise ValueError(f'{name}: neither a step ({", ".join(sorted(known_steps))}) nor a'
                             f' fault ({", ".join(FAULTS)})')
        at |= set() if name in what else fitting
    return [row for row in known
            if (not at or row.step in at) and (not what or row.fault in what)]
