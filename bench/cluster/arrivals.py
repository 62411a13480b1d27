"""Arrivals of a real cloud: a file of batches, the lives beside it, and a window with a storm.

A line of the file has an interval's first second and its servers, batch by batch, a letter for each
server's flavor: ``300 a,a,|,b,|,``. The file of lives has the same with lives for letters: ``U3``
ended after those of bin 3, ``C3`` was still there at the end. The bins' file has a line for each
number of seconds, a multiple of the interval, and the bin that it is in.
"""

import collections
import dataclasses
import gzip
import itertools
import math
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

OPTION = '--arrivals'
# The cloud that the file's servers are taken to be those of: a smaller one has a share of them.
HOSTS = 10_000
_DAY = 86400


class ArrivalsError(Exception):
    """A file cannot be used: the message names the option and the file."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """Servers of one tenant that come in one interval.

    :ivar at: the first second of the interval.
    :ivar lives: the shortest and the longest life of each server, in seconds; infinite for one
        that outlives the file.
    """

    at: int
    lives: tuple[tuple[float, float], ...]


@dataclasses.dataclass(frozen=True)
class Trace:
    """All of a file.

    :ivar interval: seconds.
    :ivar end: the second after the last interval.
    """

    interval: int
    end: int
    batches: tuple[Batch, ...]


@dataclasses.dataclass(frozen=True)
class Arrivals:
    """What comes to a cloud in a window; the batches' times count from its beginning.

    :ivar storm: number of the largest batch, which comes at the first second of its interval.
    :ivar share: of the other batches, how many come: each by chance.
    :ivar times: how many times those of the file come, for the report.
    """

    interval: int
    seconds: int
    batches: tuple[Batch, ...]
    storm: int
    share: float
    times: float = 1.0


def read(path: Path) -> Trace:
    """Read a file of arrivals, ``NAME.txt`` or ``NAME.txt.gz``, with what is beside it:
    ``NAME.c*.txt`` (or ``.gz``) has the lives, and ``interval_map.txt`` with the name up to its
    first dot the bins.

    :raises ArrivalsError: if one of the files is not there, or is not such a file.
    """
    ending = next((end for end in ('.txt.gz', '.txt') if path.name.endswith(end)), None)
    if ending is None:
        raise ArrivalsError(f'{OPTION} {path}: its name ends neither with .txt nor with .txt.gz')
    name = path.name.removesuffix(ending)
    intervals = list(_lines(path))
    found = sorted(path.parent.glob(f'{name}.c*{ending}'))
    if len(found) != 1:
        raise ArrivalsError(f'{OPTION} {path}: {len(found)} files of lives are beside it,'
                            f' {name}.c*{ending}: one is needed')
    lives = list(_lines(found[0]))
    bins = _bins(path.parent / f'{name.split(".")[0]}.interval_map.txt')
    if [at for at, _batches in intervals] != [at for at, _batches in lives]:
        raise ArrivalsError(f'{OPTION} {path}: {found[0].name} has other intervals')
    if len(intervals) < 2:
        raise ArrivalsError(f'{OPTION} {path}: has fewer than two intervals')
    batches = []
    for (at, servers), (_at, ends) in zip(intervals, lives, strict=True):
        if [len(batch) for batch in servers] != [len(batch) for batch in ends]:
            raise ArrivalsError(f'{OPTION} {path}: the batches of {at} are others in'
                                f' {found[0].name}')
        batches += [Batch(at, tuple(_life(end, bins, found[0]) for end in batch))
                    for batch in ends]
    if not batches:
        raise ArrivalsError(f'{OPTION} {path}: has no servers')
    interval = min(later[0] - sooner[0]
                   for sooner, later in itertools.pairwise(intervals))
    if interval <= 0:
        raise ArrivalsError(f'{OPTION} {path}: its intervals are not in their order')
    return Trace(interval, intervals[-1][0] + interval, tuple(batches))


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.name.endswith('.gz') else data).decode('ascii')
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ArrivalsError(f'{OPTION} {path}: cannot be read: {error}') from error


def _lines(path: Path) -> Iterator[tuple[int, list[list[str]]]]:
    for number, line in enumerate(_text(path).splitlines(), 1):
        at, _blank, rest = line.partition(' ')
        if not at.isdecimal():
            raise ArrivalsError(f'{OPTION} {path}: line {number} does not begin with seconds')
        batches = ([one for one in batch.split(',') if one] for batch in rest.split('|'))
        yield int(at), [batch for batch in batches if batch]


def _bins(path: Path) -> dict[str, tuple[float, float]]:
    """Return the shortest and the longest life of each bin: between two of its multiples any life
    is as likely, and one that is told as a multiple may be half an interval longer or shorter."""
    found: dict[str, list[int]] = collections.defaultdict(list)
    for number, line in enumerate(_text(path).splitlines(), 1):
        words = line.split()
        if len(words) != 2 or not all(word.isdecimal() for word in words):
            raise ArrivalsError(f'{OPTION} {path}: line {number} is not seconds and a bin')
        found[words[1]].append(int(words[0]))
    known = sorted(at for times in found.values() for at in times)
    if len(known) < 2:
        raise ArrivalsError(f'{OPTION} {path}: has fewer than two lines')
    half = (known[1] - known[0]) / 2
    return {name: (max(0.0, min(times) - half), max(times) + half)
            for name, times in found.items()}


def _life(end: str, bins: dict[str, tuple[float, float]], path: Path) -> tuple[float, float]:
    if end[0] not in 'UC' or end[1:] not in bins:
        raise ArrivalsError(f'{OPTION} {path}: "{end}" is not U or C with a bin of its bins')
    # It outlives any window, which is at most as long as the file.
    return bins[end[1:]] if end[0] == 'U' else (math.inf, math.inf)


def window(trace: Trace, path: Path, before: int, after: int, hosts: int,
           times: float = 1.0) -> Arrivals:
    """Return what comes to a cloud from some seconds before the largest batch until some after it.

    A cloud of 10,000 hosts has all that the file has, a smaller one a share of its batches. What is
    more than that comes from the same hours of other days. No batch has more servers than there are
    hosts.

    :param path: of the file, for the error.
    :param before: seconds, and ``after``, likewise: whole intervals.
    :param times: how many times the file's servers come.
    :raises ArrivalsError: if the file has not as many days.
    """
    largest = max(trace.batches, key=lambda batch: len(batch.lives))
    first = largest.at - before
    wanted = times * hosts / HOSTS
    days = _days(trace, first, before + after, max(1, math.ceil(wanted)), path)
    chosen = []
    for day in days:
        begin = first + day * _DAY
        chosen += [(batch is largest, Batch(batch.at - begin, batch.lives[:hosts]))
                   for batch in trace.batches if begin <= batch.at < begin + before + after]
    chosen.sort(key=lambda one: one[1].at)
    return Arrivals(trace.interval, before + after, tuple(batch for _is_it, batch in chosen),
                    [is_it for is_it, _batch in chosen].index(True), wanted / len(days), times)


def _days(trace: Trace, first: int, seconds: int, count: int, path: Path) -> Sequence[int]:
    """Return the days that have the window, counted from that of the storm, nearest first."""
    most = (trace.end - trace.batches[0].at) // _DAY + 1
    days = [day for day in sorted(range(-most, most + 1), key=lambda day: (abs(day), day))
            if trace.batches[0].at <= first + day * _DAY
            and first + day * _DAY + seconds <= trace.end]
    if len(days) < count or days[0] != 0:
        raise ArrivalsError(f'{OPTION} {path}: has the hours around its largest batch on'
                            f' {len(days)} days, and {count} are needed')
    return days[:count]
