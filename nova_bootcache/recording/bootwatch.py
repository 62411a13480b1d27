"""Watching a server's boot, to report what it read.

The paper copies the warmed cache to the storage node when the server shuts down (SC13, Algorithm
1); here extents travel, as soon as the boot is over, and the data stays where it is. A profile boot
is watched in the same way, in a store of its own.
"""

import threading
import time
from collections.abc import Callable

from oslo_log import log as logging

from bootcache import ending, exception, workingset
from bootcache.bootend import BootEnd, BootMarker, FoundEnd, RecordedStore
from bootcache.ending import BootJudge
from bootcache.growingstore import Mark
from bootcache.workingset import Extent
from nova_bootcache import storagenode
from nova_bootcache.storagenode import Remote

LOG = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
# report(extents, ended_by, seconds, the console's line where that tells what ended it)
Report = Callable[[list[Extent], str, float, str], None]


class BootWatch:
    """One server's boot, watched by a thread of its own until it is over.

    :ivar server_id: the server.
    :ivar store: the growing store below its chain.
    :ivar begin: the place in it at which the boot begins.
    :ivar is_lost: what was read was to be reported, and is not.

    :param remote: the base's place, which has to answer when the record is read.
    :param judge: tells when the boot is over.
    :param marker: regular expression that a console line of a finished boot matches.
    :param console: gives the end of the server's console, an empty text if there is none.
    :param tell: told at each look how many bytes have been read.
    :param report: told what was read.
    :param over: called at the end, whatever it was.
    """

    def __init__(self, server_id: str, store: RecordedStore, begin: Mark, remote: Remote,
                 judge: BootJudge, marker: str, console: Callable[[], str],
                 tell: Callable[[int], None], report: Report,
                 over: Callable[['BootWatch'], None]):
        self.server_id = server_id
        self.store = store
        self._remote = remote
        self._judge = judge
        self._marker = marker
        self._console = console
        self._tell = tell
        self._report = report
        self._over = over
        self.begin = begin
        self.is_lost = False
        self._shutdown = threading.Event()
        # Why nothing is reported; empty if it is.
        self._discarded = ''
        self._stands = False
        self._thread = threading.Thread(target=self._run, name='bootcache-boot', daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def end(self) -> None:
        """Say that the server is about to go: what was read until now is reported, soon."""
        self._shutdown.set()

    def stands_still(self, stands: bool) -> None:
        """Say whether its guest stands still now, and waits for its disk: that is no silence."""
        self._stands = stands

    def discard(self, why: str) -> None:
        """Say that what is read is not a boot's, or not this one's alone: nothing is reported.

        :param why: for the log.
        """
        self._discarded = why
        self._shutdown.set()

    def join(self, timeout: float) -> None:
        """Wait until the report is made.

        :param timeout: seconds, at most.
        """
        self._thread.join(timeout)

    def _run(self) -> None:
        began = time.monotonic()
        try:
            found = self._wait(began)
            if self._discarded:
                self._tell_discarded()
                return
            # While the storage node is away, reading the record would hold up all readers.
            storagenode.check_reachable(self._remote)
            extents = self.store.extents_between(self.begin, found.until)
            if self._discarded:
                self._tell_discarded()
                return
            read = workingset.total_bytes(extents)
            LOG.info('bootcache: server %s %s: its boot of %.0f s read %d bytes in %d extents for'
                     ' the first time on this host', self.server_id, ending.ENDS[found.ended_by],
                     found.seconds, read, len(extents))
            self._report(extents, found.ended_by, round(found.seconds, 1), self._judge.line)
        except exception.BootcacheError as error:
            self.is_lost = True
            LOG.warning('bootcache: what server %s read while it booted is lost: %s',
                        self.server_id, error)
        except Exception:
            self.is_lost = True
            LOG.exception('bootcache: what server %s read while it booted is lost', self.server_id)
        finally:
            self._over(self)

    def _tell_discarded(self) -> None:
        LOG.info('bootcache: what server %s read while it booted is not reported: %s',
                 self.server_id, self._discarded)

    def _wait(self, began: float) -> FoundEnd:
        end = BootEnd(self.store, self.begin, self._judge,
                      BootMarker(self._marker, f'server {self.server_id}'), self._console, began)
        while not self._shutdown.wait(_LOOK_SECONDS):
            found = end.look(time.monotonic(), self._stands)
            self._tell(end.recorded_bytes)
            if found is not None:
                return found
        return FoundEnd(ending.SHUTDOWN, self.store.mark(), time.monotonic() - began)
