"""Looking for the end of a boot: at what it reads, and at what its console says."""

import dataclasses
from collections.abc import Callable
from typing import Protocol

from bootcache import ending, exception
from bootcache.bootmarker import BootMarker
from bootcache.ending import BootJudge, BootProgress
from bootcache.growingstore import Mark


class RecordedStore(Protocol):
    """What is asked of a boot's growing store: see bootcache/growingstore.py."""

    grows: bool
    is_full: bool

    def mark(self) -> Mark:
        """Return the present place in its growth."""

    def size(self) -> int:
        """Return its size in bytes."""

    def idle_since(self) -> float:
        """Return the monotonic time at which it grew last."""


@dataclasses.dataclass(frozen=True)
class FoundEnd:
    """How a boot ended.

    :ivar ended_by: as of bootcache/ending.py.
    :ivar until: up to where its reads count.
    :ivar seconds: from its begin to its end: where silence ended it, to when that began.
    """

    ended_by: str
    until: Mark
    seconds: float


class BootEnd:
    """Looks at one boot until it is over.

    :ivar recorded_bytes: by which its store has grown, at the last look.

    :param store: below its disk.
    :param begin: the place in that at which the boot began.
    :param judge: tells when it is over.
    :param marker: the boot marker.
    :param console: gives the end of the guest's console, an empty text if there is none.
    :param began: monotonic seconds.
    """

    def __init__(self, store: RecordedStore, begin: Mark, judge: BootJudge, marker: BootMarker,
                 console: Callable[[], str], began: float):
        self.recorded_bytes = 0
        self._store = store
        self._begin = begin
        self._judge = judge
        self._marker = marker
        self._console = console
        self._began = began
        # When it was seen last to stand still; and that it was.
        self._awake_since, self._stood = began, False
        self._seen_at: float | None = None
        self._seen_mark = begin

    def look(self, now: float, stands: bool = False) -> FoundEnd | None:
        """Return the boot's end, if it is there.

        :param now: monotonic seconds.
        :param stands: whether its guest stands still, and waits for its disk: that is no silence.
        :raises StorageDaemonError: if what it reads is not kept any more, though it may be kept.
        """
        if stands:
            self._awake_since, self._stood = now, True
        if self._seen_at is None and self._marker.seen(self._console):
            self._seen_at, self._seen_mark = now, self._store.mark()
        self.recorded_bytes = max(0, self._store.size() - self._begin.file_bytes)
        progress = BootProgress(
            now - self._began, self.recorded_bytes,
            now - max(self._awake_since, self._store.idle_since()),
            None if self._seen_at is None else now - self._seen_at, self._stood)
        ended_by = self._judge.ended_by(progress, self._console, not self._marker.given_up)
        if ended_by is None and not self._store.grows:
            if not self._store.is_full:
                raise exception.StorageDaemonError(
                    'its boot was not over when its growing store was taken out, as nova-compute or'
                    ' the gateway ended; the next boot is recorded')
            ended_by = ending.QUOTA
        if ended_by is None:
            return None
        is_short = ended_by == ending.MARKER and self._judge.counts_until_marker(progress)
        silent = progress.idle_seconds if ended_by == ending.SILENCE else 0.0
        return FoundEnd(ended_by, self._seen_mark if is_short else self._store.mark(),
                        progress.seconds - silent)
