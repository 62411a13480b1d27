"""The boots of a host's servers that are watched, to be reported."""

import collections
import contextlib
from collections.abc import Callable, Container, Iterator

from oslo_log import log as logging

from bootcache import ending, recording, rpcapi, workingset
from bootcache.bootend import RecordedStore
from bootcache.ending import BootJudge, ProfileJudge, ServerJudge
from bootcache.growingstore import Mark
from bootcache.locks import leaf
from bootcache.storekeeper import StoreKeeper
from bootcache.workingset import Extent
from nova_bootcache.asking.offer import Offered
from nova_bootcache.gateway import sharedstore
from nova_bootcache.gateway.hostneeds import HostNeeds
from nova_bootcache.gateway.sharedstore import SharedStore
from nova_bootcache.recording.bootreports import BootReports
from nova_bootcache.recording.bootwatch import BootWatch, Report
from nova_bootcache.recording.profilerecordings import ProfileRecording
from nova_bootcache.storagenode import Remote

LOG = logging.getLogger(__name__)

_REPORT_SECONDS = 20.0


class WatchedBoots:
    """Watches boots, and what Nova reads beside them.

    :ivar reports: what they read, on its way to the storage service.

    :param stores: the growing stores below them.
    :param needs: told whose boots are watched.
    :param api: gives the storage service's client.
    :param over: called when one is over, whatever it was.
    """

    def __init__(self, stores: StoreKeeper[SharedStore], needs: HostNeeds,
                 api: Callable[[], rpcapi.StorageAPI], over: Callable[[], None]):
        self.reports = BootReports(lambda *report: api().report_boot(*report))
        self._api = api
        self._stores = stores
        self._needs = needs
        self._over = over
        # By server id. Guarded by the lock, held for dictionary steps.
        self._watches: dict[str, BootWatch] = {}
        # How many disks of an image Nova is reading now, by image. Guarded likewise.
        self._copies: collections.Counter[str] = collections.Counter()
        self._lock = leaf('the lock of watched boots')

    def watch(self, server_id: str, hostname: str, store: SharedStore, remote: Remote,
              offered: Offered, console: Callable[[], str]) -> None:
        """Watch a server's boot from now on.

        :param hostname: this host's, for the storage service.
        :param store: below the server's chain.
        :param console: gives the end of the server's console.
        :raises RuntimeError: if no thread can be started; the boot is not watched.
        """
        assert offered.watch is not None

        def report(extents: list[Extent], ended_by: str, seconds: float, _line: str) -> None:
            if ended_by == ending.SHUTDOWN and not extents:
                # It may never have been started: that says nothing of what a boot reads.
                return
            # Also that nothing was missed: then no more is to be learned from such boots.
            self.reports.report(remote.image_id, offered.image_hash, hostname,
                                sharedstore.GRANULARITY, workingset.to_wire(extents), ended_by,
                                seconds, None, '', server_id)

        self._begin(server_id, store, self._begin_of(store), remote, offered.watch.marker,
                    ServerJudge(offered.watch.limits), console, lambda _bytes: None, report)

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
        assert offered.watch is not None

        def tell(recorded_bytes: int) -> None:
            try:
                self._api().boot_progress(remote.image_id, profile.token, recorded_bytes)
            except Exception as error:
                # Its record is what counts.
                LOG.info('bootcache: how far the profile boot of %s is cannot be told: %s',
                         remote.image_id, error)

        def report(extents: list[Extent], ended_by: str, seconds: float, line: str) -> None:
            if ended_by == ending.SHUTDOWN and not extents:
                # It did not start here, and Nova may start it on another host, or will say so.
                return
            self.reports.report(remote.image_id, offered.image_hash, hostname,
                                recording.GRANULARITY, workingset.to_wire(extents), ended_by,
                                seconds, profile.token, line)

        self._begin(server_id, profile.recording, profile.begin, remote, offered.watch.marker,
                    ProfileJudge(offered.watch.limits), console, tell, report)

    def _begin(self, server_id: str, store: RecordedStore, begin: Mark, remote: Remote,
               marker: str, judge: BootJudge, console: Callable[[], str],
               tell: Callable[[int], None], report: Report) -> None:
        watch = BootWatch(server_id, store, begin, remote, judge, marker, console, tell, report,
                          self._ended)
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
        """Say which servers' guests stand still now, and wait for their disks: it is no silence."""
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
        with self._lock:
            self._copies[image_id] += 1
            watches = [watch for watch in self._watches.values()
                       if watch.store.name == image_id]
        try:
            for watch in watches:
                watch.discard('Nova copies a disk of its image')
            store = self._stores.get(image_id)
            if store is not None:
                store.spoilt = True
            yield
        finally:
            with self._lock:
                self._copies[image_id] -= 1
                if not self._copies[image_id]:
                    del self._copies[image_id]

    def is_copied(self, image_id: str) -> bool:
        """Tell whether Nova reads a disk of an image just now."""
        with self._lock:
            return self._copies[image_id] > 0
