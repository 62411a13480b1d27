"""What came of a soak: its judgement, and its part of faults-report/report.json."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.faults import census, growth
from bench.faults.growth import ALLOWANCES, Course, Kind, Verdict
from bench.faults.kinds import HOST, STORAGE

# Steps that tell that tiers were too small: without them nothing was tried.
WANTED = ('evict: file gone', 'promote: copied', 'fetch: copied', 'arrive: landing',
          'settle: written', 'retire: forgotten')
# What collections may hold more than before the first image: none of the rounds', and each fiftieth
# round one.
_LEFT_BEHIND, _ROUNDS_OF_ONE = 5, 50
_MEMORY = (Kind.RSS, Kind.BYTES)


@dataclasses.dataclass(frozen=True)
class Sample:
    """What was held at a time.

    :ivar rounds: that were done by then.
    :ivar held: by process and directory, then by kind; of a process also ``collections``, and
        ``passed``: how often it passed each step.
    :ivar queues: of the message bus, with the messages that wait.
    """

    rounds: int
    held: Mapping[str, Mapping[str, Any]]
    queues: Mapping[str, int]

    def figures(self) -> dict[tuple[str, Kind], float]:
        """Return the figures that are not to grow, by who holds and what."""
        found: dict[tuple[str, Kind], float] = {
            (name, kind): held[kind] for name, held in self.held.items()
            for kind in Kind if kind in held}
        found['message bus', Kind.QUEUES] = len(self.queues)
        found['message bus', Kind.MESSAGES] = sum(self.queues.values())
        return found

    def passed(self) -> dict[str, int]:
        """Return how often each step was passed."""
        return {step: count for held in self.held.values()
                for step, count in held.get('passed', {}).items()}

    def line(self) -> str:
        """Return a line that tells how far it is."""
        told = ', '.join(f'{name} {self.held[name]["rss"] / growth.MIB:.0f} MiB'
                         f' {self.held[name]["descriptors"]} fds {self.held[name]["threads"]} thr'
                         for name in (STORAGE, 'exporter', HOST, 'gateway'))
        return f'{self.rounds:4} rounds  {told}'


@dataclasses.dataclass
class Soaked:
    """A soak: what was done, what was held, what is left.

    :ivar quotas: bytes, by tier.
    :ivar rounds: how many images were registered and deleted.
    :ivar boots: servers that came up.
    :ivar stock: times that a server was told to go the stock way.
    :ivar refusals: what tiers had no room for, by tier, as the logs tell.
    :ivar tiers: the most bytes that were seen in each tier.
    :ivar looks: how often all of them were measured.
    :ivar begin: before the first image.
    :ivar end: when all are gone.
    :ivar left: what is still there.
    :ivar trouble: why it did not come to its end; empty if it did.
    """

    quotas: Mapping[str, int]
    rounds: int = 0
    seconds: float = 0.0
    boots: int = 0
    settled: int = 0
    stock: int = 0
    wrong: int = 0
    errors: int = 0
    waited: float = 0.0
    refusals: Mapping[str, int] = dataclasses.field(default_factory=dict)
    tiers: dict[str, int] = dataclasses.field(default_factory=dict)
    looks: int = 0
    begin: Sample | None = None
    samples: Sequence[Sample] = ()
    end: Sample | None = None
    left: Sequence[str] = ()
    trouble: str = ''

    def note_tiers(self, measured: Mapping[str, int | None]) -> None:
        """Note what the tiers have now; None is not known."""
        self.looks += all(size is not None for size in measured.values())
        for name, size in measured.items():
            self.tiers[name] = max(size or 0, self.tiers.get(name, 0))

    # The judgement.

    def over(self) -> dict[str, int]:
        """Return by how many bytes tiers were over their quotas."""
        return {name: size - self.quotas[name] for name, size in self.tiers.items()
                if size > self.quotas[name]}

    def verdicts(self) -> dict[tuple[str, Kind], Verdict]:
        """Return what each figure did."""
        series: dict[tuple[str, Kind], list[float]] = {}
        for sample in self.samples:
            for name, value in sample.figures().items():
                series.setdefault(name, []).append(value)
        return {name: growth.judge(values, ALLOWANCES[name[1]]) for name, values in series.items()}

    def collections(self) -> dict[str, tuple[int, int]]:
        """Return the collections that hold more than before the first image."""
        if self.begin is None or self.end is None:
            return {}
        allowed = _LEFT_BEHIND + self.rounds // _ROUNDS_OF_ONE
        return {f'{name}: {collection}': counts for name in (STORAGE, HOST)
                for collection, counts in growth.collections_left(
                    self.begin.held[name]['collections'], self.end.held[name]['collections'],
                    census.BOUNDED, allowed).items()}

    def passed(self) -> dict[str, int]:
        """Return how often each step was passed."""
        return self.end.passed() if self.end is not None else {}

    def complaints(self) -> list[str]:
        """Return all that is not as it has to be."""
        found = [self.trouble] if self.trouble else []
        found += [f'left: {one}' for one in self.left]
        found += [f'{value} {what}' for value, what in (
            (self.wrong, 'wrong bytes'), (self.errors, 'guest errors')) if value]
        found += [f'{name} was {size} bytes over its quota' for name, size in self.over().items()]
        found += [f'{name} grows in {kind}: {_told(kind, verdict)}'
                  for (name, kind), verdict in self.verdicts().items()
                  if verdict.course is Course.GROWS]
        found += [f'{name} had {before} and has {after}'
                  for name, (before, after) in self.collections().items()]
        if self.end is not None:
            found += [f'{count} messages wait in {name}'
                      for name, count in self.end.queues.items() if count]
        return found + [f'never passed: {step}' for step in WANTED if step not in self.passed()]

    def holds(self) -> bool:
        """Tell whether all is as it has to be."""
        return not self.complaints()

    # The report.

    def to_json(self) -> dict[str, Any]:
        """Return it for the report."""
        names = ('rounds', 'boots', 'settled', 'stock', 'wrong', 'errors', 'looks', 'trouble')
        return {
            **{name: getattr(self, name) for name in names}, 'ok': self.holds(),
            'seconds': round(self.seconds, 1), 'seconds_waited': round(self.waited, 2),
            'refusals': dict(self.refusals), 'left': list(self.left),
            'complaints': self.complaints(), 'passed': self.passed(),
            'tiers': {name: {'quota': quota, 'most': self.tiers.get(name, 0)}
                      for name, quota in self.quotas.items()},
            'figures': [{'of': name, 'kind': kind.value, 'course': verdict.course.value,
                         'medians': list(verdict.medians), 'grown': verdict.grown,
                         'allowed': verdict.allowed,
                         'samples': [sample.figures()[name, kind] for sample in self.samples
                                     if (name, kind) in sample.figures()]}
                        for (name, kind), verdict in self.verdicts().items()],
            'end': {} if self.end is None else {
                f'{name} {kind.value}': value
                for (name, kind), value in self.end.figures().items()}}

    def table(self) -> list[str]:
        """Return it as lines for people."""
        lines = [f'{self.rounds} registrations and deletions, {self.boots} boots,'
                 f' {self.settled} settled, {self.stock} times stock,'
                 f' {self.seconds:.0f} s']
        lines += [f'{name:20} at most {self.tiers.get(name, 0) / growth.MIB:6.1f} MiB of'
                  f' {quota / growth.MIB:6.1f}' for name, quota in self.quotas.items()]
        lines += [f'{name:20} {kind:12} {_told(kind, verdict)}  {verdict.course.value}'
                  for (name, kind), verdict in self.verdicts().items()]
        lines += [f'NOT RIGHT: {one}' for one in self.complaints()]
        return lines


def _told(kind: Kind, verdict: Verdict) -> str:
    if not verdict.medians:
        return ''
    unit, name = (growth.MIB, ' MiB') if kind in _MEMORY else (1, '')
    return (f'{verdict.medians[1] / unit:.1f} -> {verdict.medians[-1] / unit:.1f}{name}'
            f' ({verdict.allowed / unit:.1f} more allowed)')


def add(directory: Path, name: str, part: Mapping[str, Any]) -> None:
    """Put a part into the report; what else is there stays.

    :param directory: of report.json.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / 'report.json'
    document = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**document, name: part}, indent=1) + '\n')
