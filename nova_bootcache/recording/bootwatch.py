"""Watching a server's boot, to report what it read from the base for the first time.

The paper copies the warmed cache to the storage node when the server shuts down (SC13, Algorithm
1); here extents travel, as soon as the boot is over, and the data stays where it is.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

from oslo_log import log as logging

from bootcache import ending, exception, workingset
from bootcache.bootmarker import BootMarker
from nova_bootcache import storagenode
from nova_bootcache.asking.offer import Watch
from nova_bootcache.gateway import growingstore
from nova_bootcache.gateway.growingstore import GrowingStore, Mark
from nova_bootcache.storagenode import Remote

LOG = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
# What ended a boot, beside ending.ended_by's: its server was stopped, moved or deleted.
SHUTDOWN = 'shutdown'
# What is known by that. Only a marker tells that a guest is up.
_ENDS = {'marker': 'has booted, as its marker was seen,',
         'silence': 'has read nothing new for a while, so that its boot counts as over,',
         'quota': 'has read as much as a cache image may have',
         'timeout': 'is not known to have booted; its boot counts as over',
         SHUTDOWN: 'was stopped, moved or deleted before its boot was known to be over,'}
# report(granularity, extents as lists, ended_by, seconds)
Report = Callable[[int, list[list[Any]], str, float], None]


class BootWatch:
    """One server's boot, watched by a thread of its own until it is over.

    :param server_id: the server.
    :param store: the growing store below its chain.
    :param remote: the base's place, which has to answer when the record is read.
    :param watch: when the boot is over.
    :param console: gives the end of the server's console, an empty text if there is none.
    :param report: told what was read.
    :param over: called at the end, whatever it was.
    """

    def __init__(self, server_id: str, store: GrowingStore, remote: Remote, watch: Watch,
                 console: Callable[[], str], report: Report, over: Callable[['BootWatch'], None]):
        self.server_id = server_id
        self.store = store
        self._remote = remote
        self._watch = watch
        self._console = console
        self._report = report
        self._over = over
        self._begin = store.mark()
        self._shutdown = threading.Event()
        self._is_discarded = False
        self._thread = threading.Thread(target=self._run, name='bootcache-boot', daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def end(self) -> None:
        """Say that the server is about to go: what was read until now is reported, soon."""
        self._shutdown.set()

    def discard(self) -> None:
        """Say that what is read from now on is not the boot's: nothing is reported."""
        self._is_discarded = True
        self._shutdown.set()

    def join(self, timeout: float) -> None:
        """Wait until the report is made.

        :param timeout: seconds, at most.
        """
        self._thread.join(timeout)

    def _run(self) -> None:
        began = time.monotonic()
        try:
            ended_by, until = self._wait(began)
            seconds = time.monotonic() - began
            if self._is_discarded:
                self._tell_discarded()
                return
            # While the storage node is away, reading the record would hold up all readers.
            storagenode.check_reachable(self._remote)
            extents = self.store.extents_between(self._begin, until)
            if self._is_discarded:
                self._tell_discarded()
                return
            read = workingset.total_bytes(extents)
            LOG.info('bootcache: server %s %s after %.0f s; %d bytes in %d extents were read for'
                     ' the first time on this host', self.server_id,
                     _ENDS.get(ended_by, ended_by), seconds, read, len(extents))
            if ended_by == SHUTDOWN and not extents:
                # It may never have been started: that says nothing of what a boot reads.
                return
            # Also that nothing was missed: then no more is to be learned from such boots.
            self._report(growingstore.GRANULARITY, workingset.to_wire(extents), ended_by,
                         round(seconds, 1))
        except exception.BootcacheError as error:
            LOG.warning('bootcache: what server %s read while it booted is lost: %s',
                        self.server_id, error)
        except Exception:
            LOG.exception('bootcache: what server %s read while it booted is lost', self.server_id)
        finally:
            self._over(self)

    def _tell_discarded(self) -> None:
        LOG.info('bootcache: what server %s read while it booted is not reported: Nova copies a'
                 ' disk of its image', self.server_id)

    def _wait(self, began: float) -> tuple[str, Mark]:
        """Wait for the boot's end; return what ended it, and up to where its reads count."""
        marker = BootMarker(self._watch.marker, f'server {self.server_id}')
        seen_at: float | None = None
        seen_mark = self._begin
        while not self._shutdown.wait(_LOOK_SECONDS):
            now = time.monotonic()
            if seen_at is None and marker.seen(self._console):
                seen_at, seen_mark = now, self.store.mark()
            # At least one byte: a boot that misses nothing ends as well.
            grown = max(1, self.store.size() - self._begin.file_bytes)
            idle = now - max(began, self.store.idle_since())
            progress = ending.BootProgress(now - began, grown, idle,
                                           None if seen_at is None else now - seen_at)
            ended_by = ending.ended_by(progress, self._watch.limits)
            if ended_by is None and not self.store.grows:
                ended_by = 'quota'
            if ended_by == 'marker' and not ending.was_quiet(progress, self._watch.limits):
                return ended_by, seen_mark
            if ended_by is not None:
                return ended_by, self.store.mark()
        return SHUTDOWN, self.store.mark()
