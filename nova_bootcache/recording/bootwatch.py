"""Watching a server's boot, to report what it read.

The paper copies the warmed cache to the storage node when the server shuts down (SC13, Algorithm
1); here extents travel, as soon as the boot is over, and the data stays where it is. A profile boot
is watched in the same way, in a store of its own.
"""

import collections
import contextlib
import threading
import time
from collections.abc import Callable, Container, Iterator

import oslo_messaging as messaging
from oslo_log import log as logging

from bootcache import ending, exception, recording, workingset
from bootcache.bootend import BootEnd, BootMarker, FoundEnd
from bootcache.ending import BootJudge, BootLimits, ProfileJudge, ServerJudge
from bootcache.growingstore import GrowingStore, Mark, StoreKeeper
from bootcache.locks import UsageCounts, leaf
from bootcache.rpc.messages import Message, ReportBoot, ReportProgress
from bootcache.util.backoff import Backoff
from bootcache.workingset import Extent
from nova_bootcache.asking.client import Offered
from nova_bootcache.gateway import sharedstore
from nova_bootcache.gateway.hostneeds import HostNeeds
from nova_bootcache.gateway.sharedstore import SharedStore
from nova_bootcache.metrics import HostMetrics
from nova_bootcache.recording.profilerecordings import ProfileRecording
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

    :param judge: tells when the boot is over.
    :param marker: regular expression that a console line of a finished boot matches.
    :param console: gives the end of the server's console, an empty text if there is none.
    :param tell: told at each look how many bytes have been read.
    :param report: told what was read.
    :param over: called at the end, whatever it was.
    """

    def __init__(self, server_id: str, store: GrowingStore, begin: Mark,
                 judge: BootJudge, marker: str, console: Callable[[], str],
                 tell: Callable[[int], None], report: Report,
                 over: Callable[['BootWatch'], None]):
        self.server_id = server_id
        self.store = store
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
        """Say whether its guest is paused now, and waits for its disk: that is no silence."""
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


# What is not told by then is of little use: other servers have booted.
_KEPT_SECONDS = 3600
_MOST = 32
# Between two tries; each may hold up the rest of the host's upkeep.
_FIRST_PAUSE, _LONGEST_PAUSE = 10, 300
_SERVICE = 'service'


class BootReports:
    """Sends one host's reports, in their order.

    :param send: sends a report to the storage service.
    """

    def __init__(self, send: Callable[[ReportBoot], None]):
        self._send = send
        # Those that are to be sent again, until when in monotonic seconds. Guarded by the lock,
        # held for steps of the queue.
        self._left: collections.deque[tuple[float, ReportBoot]] = collections.deque()
        self._lock = leaf('the lock of reports')
        self._backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE, lambda: time.monotonic())

    def report(self, report: ReportBoot) -> None:
        """Send a report; where the storage service does not answer, later.

        :raises Exception: what the storage service answers, where it refuses.
        """
        if self._try(report):
            # What is left follows with the next round.
            self._backoff.forget(_SERVICE)
        else:
            self._backoff.delay_first(_SERVICE)
            with self._lock:
                self._left.append((time.monotonic() + _KEPT_SECONDS, report))
                lost = self._left.popleft() if len(self._left) > _MOST else None
            if lost is not None:
                self._lose(lost[1], f'more than {_MOST} wait to be sent')

    def send_again(self) -> None:
        """Send what is left, until the storage service does not answer again.

        To be called now and then: each time that it does not answer it is asked later.
        """
        while self._backoff.is_due(_SERVICE):
            with self._lock:
                found = self._left[0] if self._left else None
            if found is None:
                return
            until, report = found
            try:
                if time.monotonic() > until:
                    self._lose(report, 'the storage service does not answer')
                elif not self._try(report):
                    self._backoff.postpone(_SERVICE)
                    return
                else:
                    self._backoff.forget(_SERVICE)
            except messaging.MessagingException as error:
                self._lose(report, str(error))
            with self._lock:
                if self._left and self._left[0] is found:
                    self._left.popleft()

    def _try(self, report: ReportBoot) -> bool:
        try:
            self._send(report)
        except (messaging.MessagingTimeout, messaging.MessageDeliveryFailure, OSError) as error:
            # OSError is the storage service's own: it cannot write it, as its disk is full.
            LOG.info('image %s: what a boot read is told later: %s', report.image_id, error)
            return False
        return True

    @staticmethod
    def _lose(report: ReportBoot, why: str) -> None:
        LOG.warning('image %s: what a boot read is not told: %s', report.image_id, why)


_REPORT_SECONDS = 20.0


class WatchedBoots:
    """Watches boots, and what Nova reads beside them.

    :ivar reports: what they read, on its way to the storage service.

    :param stores: the growing stores below them.
    :param needs: told whose boots are watched.
    :param send: sends a message to the storage service.
    :param over: called when one is over, whatever it was.
    :param metrics: observe the seconds of boots.
    """

    def __init__(self, stores: StoreKeeper[SharedStore], needs: HostNeeds,
                 send: Callable[[Message[None]], None], over: Callable[[], None],
                 metrics: HostMetrics):
        self.reports = BootReports(send)
        self._send = send
        self._stores = stores
        self._needs = needs
        self._over = over
        self._metrics = metrics
        # By server id. Guarded by the lock, held for dictionary steps.
        self._watches: dict[str, BootWatch] = {}
        self._lock = leaf('the lock of watched boots')
        # Disks that Nova is reading now, by image.
        self._copies = UsageCounts('disks that Nova reads')

    def watch(self, server_id: str, hostname: str, store: SharedStore, remote: Remote,
              offered: Offered, console: Callable[[], str]) -> None:
        """Watch a server's boot from now on.

        :param hostname: this host's, for the storage service.
        :param store: below the server's chain.
        :param console: gives the end of the server's console.
        :raises RuntimeError: if no thread can be started; the boot is not watched.
        """
        self._begin(server_id, hostname, store, self._begin_of(store), remote, offered,
                    ServerJudge, console)

    def _begin_of(self, store: SharedStore) -> Mark:
        """Return where a boot begins in a store that other boots may be watched in.

        What they have read until now this one does not read there any more. Whichever of them
        reports first tells of all, as nobody knows which one does.
        """
        begin = store.mark()
        with self._lock:
            earlier = [watch.begin for watch in self._watches.values() if watch.store is store]
        return min(earlier, key=lambda mark: mark.file_bytes) if earlier else begin

    def watch_profile(self, server_id: str, hostname: str, profile: ProfileRecording,
                      remote: Remote, offered: Offered, console: Callable[[], str]) -> None:
        """Watch a profile boot from now on; its end is what the storage service waits for.

        :raises RuntimeError: if no thread can be started.
        """
        def tell(recorded_bytes: int) -> None:
            try:
                self._send(ReportProgress(remote.image_id, profile.token, recorded_bytes))
            except Exception as error:
                # Its record is what counts.
                LOG.info('bootcache: how far the profile boot of %s is cannot be told: %s',
                         remote.image_id, error)

        self._begin(server_id, hostname, profile.recording, profile.begin, remote, offered,
                    ProfileJudge, console, tell, profile.token)

    def _begin(self, server_id: str, hostname: str, store: GrowingStore, begin: Mark,
               remote: Remote, offered: Offered, judge: Callable[[BootLimits], BootJudge],
               console: Callable[[], str], tell: Callable[[int], None] = lambda _bytes: None,
               token: str | None = None) -> None:
        assert offered.watch is not None

        def report(extents: list[Extent], ended_by: str, seconds: float, line: str) -> None:
            if ended_by == ending.SHUTDOWN and not extents:
                # It may never have been started: that says nothing of what a boot reads. Nova may
                # start a profile boot on another host, or will say so.
                return
            if ended_by != ending.SHUTDOWN:
                self._metrics.observe_guest(seconds)
            # Also that nothing was missed: then no more is to be learned from such boots.
            self.reports.report(ReportBoot(
                remote.image_id, offered.image_hash, hostname,
                sharedstore.GRANULARITY if token is None else recording.GRANULARITY,
                workingset.to_wire(extents), ended_by, seconds, token, line,
                server_id if token is None else ''))

        watch = BootWatch(server_id, store, begin, judge(offered.watch.limits),
                          offered.watch.marker, console, tell, report, self._ended)
        with self._lock:
            self._watches[server_id] = watch
        self._needs.begin_boot(store.name)
        try:
            watch.start()
        except BaseException:
            self._forget(watch)
            raise

    def _ended(self, watch: BootWatch) -> None:
        store = self._stores.get(watch.store.name)
        if watch.is_lost and store is watch.store:
            # The next boot would be seen to read the rest only, and that be taken for all.
            store.spoilt = True
        self._forget(watch)
        self._over()

    def _forget(self, watch: BootWatch) -> None:
        with self._lock:
            # The server's next boot may be watched by now.
            if self._watches.get(watch.server_id) is watch:
                del self._watches[watch.server_id]
        self._needs.end_boot(watch.store.name)

    def discard(self, server_id: str, why: str) -> None:
        """Report nothing of a server's boot: it would take the reads of another one.

        :param why: for the log.
        """
        watch = self._watch_of(server_id)
        if watch is not None:
            watch.discard(why)

    def stand_still(self, server_ids: Container[str]) -> None:
        """Say which servers' guests are paused now, and wait for their disks: it is no silence."""
        with self._lock:
            watches = list(self._watches.values())
        for watch in watches:
            watch.stands_still(watch.server_id in server_ids)

    def server_goes(self, server_id: str) -> None:
        """Report what a watched boot read until now, as its server is stopped, moved or deleted."""
        watch = self._watch_of(server_id)
        if watch is not None:
            watch.end()
            watch.join(_REPORT_SECONDS)

    def _watch_of(self, server_id: str) -> BootWatch | None:
        with self._lock:
            return self._watches.get(server_id)

    @contextlib.contextmanager
    def copying(self, image_id: str | None) -> Iterator[None]:
        """Nova reads a disk of an image, which is no boot: to snapshot, migrate or rescue a server.

        Boots that are watched are not reported, as the copy's reads are in the same growing store;
        nor is what is in the store until another one takes its place.
        """
        image_id = image_id or ''
        with self._copies.of(image_id):
            with self._lock:
                watches = [watch for watch in self._watches.values()
                           if watch.store.name == image_id]
            for watch in watches:
                watch.discard('Nova copies a disk of its image')
            store = self._stores.get(image_id)
            if store is not None:
                store.spoilt = True
            yield

    def is_copied(self, image_id: str) -> bool:
        """Tell whether Nova reads a disk of an image just now."""
        return image_id in self._copies
