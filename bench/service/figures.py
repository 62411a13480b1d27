"""What a run of the services tells. Pure.

Of several storage nodes calls, CPU and cores are those of all services together.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from bench.service.player import UNANSWERED, Played, summed
from bench.service.stage import Usage
from bootcache.rpc.messages import BootAction

PLAN_BOOT, REPORTS, STORM, REGISTER = 'plan_boot', 'reports', 'storm', 'register'
# Of a CPU: a service's threads run Python one at a time.
_FULL_SHARE = 0.9


@dataclasses.dataclass(frozen=True)
class Run:
    """A play, and what was used meanwhile."""

    played: Played
    before: Usage
    after: Usage

    @property
    def calls(self) -> int:
        """How many calls were made."""
        return self.played.kinds.total()

    @property
    def seconds(self) -> float:
        """Wall-clock time between both usages."""
        return self.after.at - self.before.at

    @property
    def cpu_ms_per_call(self) -> float:
        """All services' CPU, user and system, for each call."""
        return 1000 * (self.after.service - self.before.service) / self.calls


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the value below or at which a share of the values is; None if there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


def full(run: Run, cpus: int) -> str:
    """Return what had no CPU left: a service, RabbitMQ, the machine, or nothing."""
    broker, machine = ((getattr(run.after, whose) - getattr(run.before, whose)) / run.seconds
                       for whose in ('broker', 'machine'))
    busiest = max(used / run.seconds for used in _used_by_each(run))
    return 'service (one CPU)' if busiest >= _FULL_SHARE else \
        'broker (one CPU)' if broker >= _FULL_SHARE else \
        'machine' if machine >= _FULL_SHARE * cpus else 'nothing'


def joined(runs: Sequence[Run]) -> Run:
    """Return several runs as if they were one, without the time between them."""
    def usage(whose: str) -> float:
        return sum(getattr(run.after, whose) - getattr(run.before, whose) for run in runs)

    services = tuple(map(sum, zip(*map(_used_by_each, runs), strict=True)))
    return Run(
        summed([run.played for run in runs], sum(run.played.seconds for run in runs)),
        Usage(0.0, (0.0,) * len(services), 0.0, 0.0, 0.0),
        Usage(usage('at'), services, usage('broker'), usage('database'), usage('machine')))


def _used_by_each(run: Run) -> list[float]:
    """Return each service's CPU seconds."""
    return [after - before for before, after in zip(run.before.services, run.after.services,
                                                    strict=True)]


def rate(run: Run) -> float:
    """Return calls a second, from the first one to the last answer."""
    return run.calls / run.played.seconds


def line(what: str, run: Run, *, database: str, images: int, hosts: int, cpus: int,
         **more: Any) -> dict[str, Any]:
    """Return an entry of ``runs``.

    :param images: that the services know.
    :param hosts: that call.
    :param cpus: of this machine.
    :param more: entries that other kinds of runs do not have, or have otherwise.
    """
    def cores(whose: str) -> float:
        return round((getattr(run.after, whose) - getattr(run.before, whose)) / run.seconds, 3)

    kinds = run.played.kinds
    p99 = percentile(run.played.latencies, 0.99)
    return {
        'what': what, 'database': database, 'nodes': len(run.after.services), 'images': images,
        'hosts': hosts,
        'calls': run.calls, 'calls_per_second': round(rate(run), 1),
        'cpu_ms_per_call': round(run.cpu_ms_per_call, 3), 'empty_call_cpu_ms': None,
        'p99_seconds': None if p99 is None else round(p99, 4),
        'cores': cores('service'), 'database_cores': cores('database'),
        'broker_cores': cores('broker'), 'machine_cores': cores('machine'),
        'full': full(run, cpus), 'refused': kinds['refused'], 'unanswered': kinds[UNANSWERED],
        'told_to_wait': kinds[BootAction.WAIT.value], 'answers': dict(kinds), **more}


def table(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Return lines of text for people."""
    names = ('what', 'database', 'nodes', 'images', 'hosts', 'calls_per_second', 'cpu_ms_per_call',
             'empty_call_cpu_ms', 'p99_seconds', 'cores', 'refused', 'unanswered',
             'told_to_wait', 'full')
    some = ('phase',)
    rows = [[*names, *some]] + [[*('' if run[name] is None else str(run[name]) for name in names),
                                 *(str(run.get(name, '')) for name in some)] for run in runs]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ['  '.join(map(str.ljust, row, widths)).rstrip() for row in rows]
