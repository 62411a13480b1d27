"""Whether what is held grows with what was done: the judgement of a soak. Pure.

Samples are taken while nothing is under way, and with as many images as before: what is held then
ought to be the same each time. The first fifth of them is not looked at, as caches, pools and heaps
fill then. The median of the last fifth is compared with that of the second one: a median, as single
samples see what upkeep does just then.

Three things make them differ, and are no leak, so each kind of figure has an allowance:

* memory: an allocator keeps what was needed at one time, and pieces of what is free are not given
  back. So 8 MiB. A leak of 30 KiB a round is more than that in 500 rounds.
* Python's own count of the blocks that are allocated, which does not know of such pieces: 6,000. A
  leak of 21 objects a round is more than that in 500.
* what is of the twelve images that are there: which of them are in a tier at a sample, and are
  served, is a matter of their turns. So one export, three nodes and two files of each, and the
  bytes of one base. A leak of one a round is 300.

Threads, descriptors, queues and messages come back to what they were, but for a few of a pool that
may be there or not.

More than that, in one step, is no leak either: a pool that was made larger once. It counts as such
if nine tenths of it came between two neighbouring fifths, and is three times the allowance at most.
"""

import dataclasses
import enum
import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

_PARTS = 5
# Fewer do not tell: two of a fifth at least.
LEAST_SAMPLES = 2 * _PARTS
_ONE_STEP = 0.9
_LARGEST_STEP = 3
MIB = 1 << 20


class Kind(enum.StrEnum):
    """What is counted."""

    RSS = 'rss'                  # bytes of memory, the kernel's VmRSS
    BLOCKS = 'blocks'            # that Python has allocated
    DESCRIPTORS = 'descriptors'
    THREADS = 'threads'
    EXPORTS = 'exports'
    NODES = 'nodes'              # block nodes
    FILES = 'files'
    BYTES = 'bytes'              # that files take
    QUEUES = 'queues'
    MESSAGES = 'messages'


# How much more each kind of figure may be in the end.
ALLOWANCES: Mapping[Kind, int] = {
    Kind.RSS: 8 * MIB, Kind.BLOCKS: 6000, Kind.DESCRIPTORS: 4, Kind.THREADS: 4,
    Kind.EXPORTS: 12, Kind.NODES: 36, Kind.FILES: 24, Kind.BYTES: 24 * MIB, Kind.QUEUES: 0,
    Kind.MESSAGES: 3}


class Course(enum.StrEnum):
    """What a figure does."""

    SHORT = 'too short to tell'
    STEADY = 'steady'
    STEP = 'one step'
    GROWS = 'grows'


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What came of a figure.

    :ivar course: what it does.
    :ivar medians: of the five fifths.
    :ivar allowed: by how much the last may be more than the second.
    """

    course: Course
    medians: tuple[float, ...] = ()
    allowed: float = 0.0

    @property
    def grown(self) -> float:
        """By how much it is."""
        return self.medians[-1] - self.medians[1] if self.medians else 0.0


def fifths(series: Sequence[float]) -> tuple[float, ...]:
    """Return the medians of a series' fifths, in their order; it has five values at least."""
    size = len(series) / _PARTS
    return tuple(statistics.median(series[math.floor(size * part):math.floor(size * (part + 1))])
                 for part in range(_PARTS))


def judge(series: Sequence[float], allowed: float) -> Verdict:
    """Return whether a series grows.

    :param series: samples, in their order.
    :param allowed: by how much it may.
    """
    if len(series) < LEAST_SAMPLES:
        return Verdict(Course.SHORT)
    medians = fifths(series)
    grown = medians[-1] - medians[1]
    if grown <= allowed:
        return Verdict(Course.STEADY, medians, allowed)
    rises = [later - earlier for earlier, later in itertools.pairwise(medians[1:])]
    is_step = max(rises) >= _ONE_STEP * grown and grown <= _LARGEST_STEP * allowed
    return Verdict(Course.STEP if is_step else Course.GROWS, medians, allowed)


def collections_left(before: Mapping[str, int], after: Mapping[str, int], bounded: Iterable[str],
                     allowed: int) -> dict[str, tuple[int, int]]:
    """Return the collections that hold more when all is deleted than when nothing was there.

    :param before: how many each held, by name, before the first image.
    :param after: the same when the last one is gone.
    :param bounded: names, or how they begin, of those that keep what is gone for a while, and have
        a bound.
    :param allowed: how many more are none of the rounds'.
    """
    known = tuple(bounded)
    return {name: (before.get(name, 0), count) for name, count in sorted(after.items())
            if count > before.get(name, 0) + allowed and not name.startswith(known)}
