"""What came of the runs: faults-report/report.json, and a table. Pure but for writing it."""

import contextlib
import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of one run.

    :ivar step: at which the fault came.
    :ivar fault: its name.
    :ivar life: what was under way.
    :ivar ok: all came to its end: image, boot, settling, deletion; and none of what follows.
    :ivar seconds: of the run.
    :ivar seconds_waited: for which the guest was paused at its longest wait.
    :ivar guest_errors: requests of the guest that came to no end.
    :ivar wrong_bytes: that the guest read.
    :ivar leftovers: what was still there at the end.
    :ivar pauses: requests that QEMU refused for a while: a guest with rerror=stop is paused.
    :ivar stock: servers that were told to go the stock way, for a while or for good.
    :ivar unreached: steps at which something was to go wrong, and that nobody came to.
    :ivar trouble: why it did not come to its end; empty if it did.
    """

    step: str
    fault: str
    life: str
    seconds: float
    seconds_waited: float = 0.0
    guest_errors: int = 0
    wrong_bytes: int = 0
    leftovers: tuple[str, ...] = ()
    pauses: int = 0
    stock: int = 0
    unreached: tuple[str, ...] = ()
    trouble: str = ''

    @property
    def failed_boot(self) -> bool:
        """Whether something did not come to its end, or the fault was not tried at all."""
        return bool(self.trouble or self.unreached)

    @property
    def is_wrong(self) -> bool:
        """Whether something is not as it has to be in what was tried."""
        return bool(self.trouble or self.guest_errors or self.wrong_bytes or self.leftovers)

    @property
    def ok(self) -> bool:
        """Whether all is as it has to be."""
        return not (self.is_wrong or self.unreached)

    def to_json(self) -> dict[str, Any]:
        """Return it for the report."""
        return {**dataclasses.asdict(self), 'ok': self.ok, 'leftovers': len(self.leftovers),
                'left': list(self.leftovers), 'unreached': list(self.unreached)}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> 'Outcome':
        """Return what ``to_json`` gave."""
        fields = {field.name: document[field.name] for field in dataclasses.fields(cls)}
        return cls(**{**fields, 'leftovers': tuple(document['left']),
                      'unreached': tuple(document['unreached'])})


def summary(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """Return the sums."""
    found = list(outcomes)
    return {'runs': len(found), 'failed_boots': sum(one.failed_boot for one in found),
            'guest_errors': sum(one.guest_errors for one in found),
            'wrong_bytes': sum(one.wrong_bytes for one in found),
            'leftovers': sum(len(one.leftovers) for one in found)}


def holds(sums: dict[str, int]) -> bool:
    """Tell whether all is zero that has to be, of at least one run."""
    return sums['runs'] > 0 and not any(value for name, value in sums.items() if name != 'runs')


def line(one: Outcome) -> str:
    """Return a run's line of the table."""
    told = f'{"ok" if one.ok else "FAILED":6} {one.step:20} {one.fault:16} {one.life:7}' \
           f' {one.seconds:6.1f} s  waited {one.seconds_waited:5.1f} s'
    for count, what in ((one.pauses, 'pauses'), (one.stock, 'stock'),
                        (one.guest_errors, 'guest errors'), (one.wrong_bytes, 'wrong bytes')):
        told += f', {count} {what}' if count else ''
    if one.leftovers:
        told += f'; left: {", ".join(one.leftovers)}'
    if one.unreached:
        told += f'; not reached: {", ".join(one.unreached)}'
    return told + (f'; {one.trouble}' if one.trouble else '')


JOURNAL = 'runs.jsonl'


def note(directory: Path, outcome: Outcome) -> None:
    """Note what came of a run as soon as it has ended: ``noted`` has it in a later process."""
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / JOURNAL, 'a') as stream:
        stream.write(json.dumps(outcome.to_json()) + '\n')


def noted(directory: Path) -> list[Outcome]:
    """Return what was noted; a line that a crash left half is none."""
    found = []
    with contextlib.suppress(FileNotFoundError), open(directory / JOURNAL) as stream:
        for written in stream:
            with contextlib.suppress(ValueError, KeyError):
                found.append(Outcome.from_json(json.loads(written)))
    return found


REPORT = 'report.json'


def write(directory: Path, outcomes: Sequence[Outcome], file: str = REPORT,
          **setting: Any) -> dict[str, int]:
    """Write the report, and return its sums."""
    directory.mkdir(parents=True, exist_ok=True)
    sums = summary(outcomes)
    (directory / file).write_text(json.dumps(
        {'setting': setting, 'summary': sums, 'runs': [one.to_json() for one in outcomes]},
        indent=1) + '\n')
    return sums
