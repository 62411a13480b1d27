"""The warming of one aggregate's hosts for one image: plain values, and what follows from them.

Nova is asked for the aggregate; each host then reports by itself what came of it. Hosts that report
an error, or nothing, are asked again, by asking Nova for the aggregate again: those that are warm
answer ``existing`` at once. Nothing here does I/O, and time is handed in.
"""

import dataclasses
import enum
from collections.abc import Iterable, Mapping
from typing import Any

from bootcache.manifest import ImageState, Manifest, Standing
from bootcache.rpc.messages import WarmOutcome
from bootcache.util.backoff import pause_seconds

_BACKOFF_SECONDS = 30.0
_LONGEST_BACKOFF_SECONDS = 600.0
_WARM = (WarmOutcome.CACHED, WarmOutcome.EXISTING)
_LONGEST_REASON = 500
# A job that waits for its next attempt is looked at as often, if no host reports: what else warms
# hosts takes longer.
_LOOK_SECONDS = 30.0
# Each host reports within a minute, whatever it is busy with; one that does not is not there.
_SILENT_SECONDS = 180.0
_CURE = 'is its nova-compute up, and does it run bootcache\'s driver?'


@dataclasses.dataclass
class HostOutcome:
    """How far one host is.

    :ivar outcome: that is known of it.
    :ivar reason: of the last error; empty if there was none, or it is warm.
    :ivar attempts: how many times Nova was asked to warm it.
    """

    outcome: WarmOutcome = WarmOutcome.WAITING
    reason: str = ''
    attempts: int = 0

    @property
    def is_final(self) -> bool:
        """Whether another attempt would change nothing."""
        return self.outcome in (*_WARM, WarmOutcome.UNSUPPORTED)

    def report(self, outcome: WarmOutcome, reason: str) -> None:
        """Take the host's report, or what stands for one; a host that is warm stays as it is."""
        if self.outcome not in _WARM:
            self.outcome = outcome
            self.reason = '' if outcome in _WARM else reason[:_LONGEST_REASON]


class WarmPhase(enum.Enum):
    """Where a job is."""

    WAITING = 'waiting'   # for its turn, or for the next attempt
    ASKED = 'asked'       # hosts are at work
    DONE = 'done'


@dataclasses.dataclass
class WarmJob:
    """One image's warming on one aggregate. Times are monotonic seconds.

    :ivar hosts: by name; empty until Nova has told which they are.
    :ivar reason: why Nova cannot be asked, or why the job has ended without hosts; else empty.
    :ivar attempts: how many times Nova was asked, or refused.
    :ivar unanswered: how many times in a row Nova did not answer.
    :ivar due: when Nova is to be asked (again).
    :ivar asked_at: when it was asked last.
    :ivar heard_at: when it was asked last, or a host reported, whichever was later.
    :ivar looked_at: when ``look`` was called last.
    :ivar ended_at: when the job was done.
    """

    image_id: str
    aggregate: str
    due: float
    phase: WarmPhase = WarmPhase.WAITING
    hosts: dict[str, HostOutcome] = dataclasses.field(default_factory=dict)
    reason: str = ''
    attempts: int = 0
    unanswered: int = 0
    asked_at: float = 0.0
    heard_at: float = 0.0
    looked_at: float = 0.0
    ended_at: float = 0.0

    def ask(self, hosts: Iterable[str], now: float) -> None:
        """Note that Nova is about to be asked; hosts that have left the aggregate are left out."""
        self.phase, self.reason = WarmPhase.ASKED, ''
        self.attempts += 1
        self.asked_at = self.heard_at = now
        self.hosts = {name: self.hosts.get(name, HostOutcome()) for name in hosts}
        for known in self.hosts.values():
            if not known.is_final:
                known.outcome = WarmOutcome.WAITING
                known.attempts += 1

    def report(self, host: str, outcome: WarmOutcome, reason: str, now: float) -> bool:
        """Take a host's report.

        :returns: False if the host is none of the job's.
        """
        if host not in self.hosts:
            return False
        self.hosts[host].report(outcome, reason)
        self.heard_at = now
        return True

    def is_to_be_looked_at(self, now: float) -> bool:
        """Return whether its hosts may be other than at the last look: a look walks all of them."""
        return self.phase is WarmPhase.ASKED or (
            self.phase is WarmPhase.WAITING and bool(self.hosts)
            and (self.heard_at >= self.looked_at or now - self.looked_at >= _LOOK_SECONDS))

    def look(self, holding: Mapping[str, int], generation: int, now: float) -> None:
        """Count hosts as warm that hold the image, as their report of it may have been lost.

        :param holding: by host, the generation held, of hosts that reported since Nova was asked.
        :param generation: the image's.
        """
        self.looked_at = now
        for name, known in self.hosts.items():
            if not known.is_final and holding.get(name, -1) >= generation:
                self.report(name, WarmOutcome.CACHED, '', now)

    def close(self, now: float, timeout: float, attempts: int,
              seen: Mapping[str, float]) -> list[str]:
        """End the attempt of a job that is to be looked at, if all hosts have reported, or none did
        for a time.

        :param timeout: seconds without a report.
        :param attempts: how many there may be.
        :param seen: by host, when it was last heard of at all. One that is silent is not waited
            for: others' images wait for their turn.
        :returns: names of the hosts that are not warm, if the attempt is over by this.
        """
        is_asked = self.phase is WarmPhase.ASKED
        for name, known in self.hosts.items():
            if not is_asked or known.outcome != WarmOutcome.WAITING:
                continue
            if now - max(self.asked_at, seen.get(name, 0.0)) >= _SILENT_SECONDS:
                known.report(WarmOutcome.ERROR, f'not heard of for {_SILENT_SECONDS:g} s; {_CURE}')
            elif now - self.heard_at >= timeout:
                known.report(WarmOutcome.ERROR, f'no report within {timeout:g} s; {_CURE}')
        # While it waits for the next attempt, a host may have been warmed otherwise.
        if any(known.outcome == WarmOutcome.WAITING if is_asked else not known.is_final
               for known in self.hosts.values()):
            return []
        cold = [name for name, known in self.hosts.items() if known.outcome not in _WARM]
        self.unanswered = 0
        if any(not self.hosts[name].is_final for name in cold) and self.attempts < attempts:
            self.postpone(now, self.attempts)
        else:
            self.end(now, '' if self.hosts else f'aggregate {self.aggregate} has no hosts')
        return cold

    def refused(self, reason: str, now: float, attempts: int) -> None:
        """Nova was asked, and refused; it counts as an attempt."""
        self._was_not_asked()
        self.attempts += 1
        self.reason = reason[:_LONGEST_REASON]
        if self.attempts < attempts:
            self.postpone(now, self.attempts)
        else:
            self.end(now, self.reason)

    def not_answered(self, reason: str, now: float) -> None:
        """Nova was asked, and did not answer; it counts as no attempt."""
        self._was_not_asked()
        self.unanswered += 1
        self.reason = f'Nova does not answer: {reason}'[:_LONGEST_REASON]
        self.postpone(now, self.unanswered)

    def _was_not_asked(self) -> None:
        """Take back what ``ask`` counted."""
        if self.phase is WarmPhase.ASKED:
            self.attempts -= 1
            for known in self.hosts.values():
                known.attempts -= not known.is_final

    def postpone(self, now: float, times: int) -> None:
        """Wait longer each time before Nova is asked again."""
        self.phase, self.due = WarmPhase.WAITING, now + backoff(times)

    def end(self, now: float, reason: str) -> None:
        """Nothing more is done."""
        self.phase, self.ended_at, self.reason = WarmPhase.DONE, now, reason
        for known in self.hosts.values():
            if known.outcome == WarmOutcome.WAITING:
                known.report(WarmOutcome.ERROR, known.reason or reason)

    def describe(self) -> dict[str, Any]:
        """Return it as plain values: see GetWarming."""
        return {'aggregate': self.aggregate, 'done': self.phase is WarmPhase.DONE,
                'reason': self.reason,
                'hosts': {name: {'outcome': known.outcome, 'reason': known.reason,
                                 'attempts': known.attempts}
                          for name, known in sorted(self.hosts.items())}}


def backoff(times: int) -> float:
    """Return how many seconds to wait after so many attempts in a row.

    :param times: one or more.
    """
    return pause_seconds(times, _BACKOFF_SECONDS, _LONGEST_BACKOFF_SECONDS)


def may_start(jobs: Iterable[WarmJob], now: float, concurrency: int) -> list[WarmJob]:
    """Return the jobs whose turn it is, the longest waiting first."""
    jobs = list(jobs)
    free = concurrency - sum(job.phase is WarmPhase.ASKED for job in jobs)
    due = [job for job in jobs if job.phase is WarmPhase.WAITING and job.due <= now]
    return sorted(due, key=lambda job: job.due)[:max(free, 0)]


def why_not_warm(image_id: str, manifest: Manifest | None) -> str:
    """Return why no host can be warmed for an image, with the cure; empty if they can be."""
    build = f'"bootcache image build {image_id}"'
    if manifest is None:
        return f'image {image_id} is not known to the storage service; {build} records it'
    what = f'image {image_id} has no cache image: it is {manifest.state.value}'
    if manifest.state is ImageState.SKIPPED:
        return f'{what}: {manifest.reason}'
    if manifest.made.cache_image is not None and not manifest.has_older_base:
        return ''
    if manifest.standing is Standing.FAILED:
        return f'{what}: {manifest.reason}; {build} tries again'
    if manifest.standing is Standing.WANTED:
        return f'{what}; "bootcache image show {image_id} --wait" waits for it'
    return f'{what}; it gets one with the next boot of a server, or by {build}'
