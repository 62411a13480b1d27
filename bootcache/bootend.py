"""Looking for the end of a boot: at what it reads, and at what its console says."""

import dataclasses
import time
from collections.abc import Callable

from oslo_log import log as logging

from bootcache import ending, exception, properties
from bootcache.ending import BootJudge, BootProgress
from bootcache.growingstore import GrowingStore, Mark

LOG = logging.getLogger(__name__)

# Of one look, in seconds of this thread's processor time. Under eventlet all of nova-compute stands
# still meanwhile; an expression that people write takes a hundredth of it.
LOOK_SECONDS = 0.05


class BootMarker:
    """Looks for a boot marker on one boot's console.

    A tenant writes the expression and the text. One that takes longer than LOOK_SECONDS for a look
    is given up for this boot, which then ends without it.

    :param marker: regular expression.
    :param whose: the boot, for the log: ``server ID`` or ``image ID``.
    :raises ValueError: if it cannot be used.
    """

    def __init__(self, marker: str, whose: str):
        self._marker = marker
        self._expression = properties.compile_marker(marker)
        self._whose = whose
        self.given_up = False

    def seen(self, console: Callable[[], str]) -> bool:
        """Tell whether one of a console's last 200 lines matches, by a line's first 1,024
        characters.

        :param console: gives the text; not asked once the marker is given up.
        """
        if self.given_up:
            return False
        spent = 0.0
        for line in ending.last_lines(console()):
            began = time.thread_time()
            try:
                # 0 would mean no limit.
                if self._expression.search(line, timeout=max(LOOK_SECONDS - spent, 0.001)):
                    return True
                spent += time.thread_time() - began
            except TimeoutError:
                spent = LOOK_SECONDS
            if spent >= LOOK_SECONDS:
                self.given_up = True
                LOG.warning('bootcache: the boot marker %r of %s takes more than %d ms a look and'
                            ' is given up: the boot ends without it; choose a simpler %s',
                            self._marker, self._whose, LOOK_SECONDS * 1000,
                            properties.BOOT_MARKER)
                return False
        return False


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

    def __init__(self, store: GrowingStore, begin: Mark, judge: BootJudge, marker: BootMarker,
                 console: Callable[[], str], began: float):
        self.recorded_bytes = 0
        self._store = store
        self._begin = begin
        self._judge = judge
        self._marker = marker
        self._console = console
        self._began = began
        # When it was seen last to be paused; and that it was.
        self._awake_since, self._stood = began, False
        self._seen_at: float | None = None
        self._seen_mark = begin

    def look(self, now: float, stands: bool = False) -> FoundEnd | None:
        """Return the boot's end, if it is there.

        :param now: monotonic seconds.
        :param stands: whether its guest is paused, and waits for its disk: that is no silence.
        :raises StorageDaemonError: if its store was taken out before it was over.
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
                    'its growing store was taken out before its boot was over, as when nova-compute'
                    ' or the gateway ends; the next boot is recorded')
            ended_by = ending.QUOTA
        if ended_by is None:
            return None
        is_short = ended_by == ending.MARKER and self._judge.counts_until_marker(progress)
        silent = progress.idle_seconds if ended_by == ending.SILENCE else 0.0
        return FoundEnd(ended_by, self._seen_mark if is_short else self._store.mark(),
                        progress.seconds - silent)
