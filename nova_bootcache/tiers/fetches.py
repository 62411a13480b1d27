"""Cache images that come to a host: fetched, verified, placed atomically; or made empty.

A compressed cache image that this host's QEMU cannot read is as right as any other, on another
host. So it is neither fetched nor mistrusted here: servers read from the base, as those of an image
that has none.
"""

import contextlib
import dataclasses
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from oslo_log import log as logging

from bootcache import cacheimage, exception, naming, qemuimg, savefile, steps
from bootcache.cachelayout import Compression
from bootcache.exchange import patience
from bootcache.exchange.client import Exchanged
from bootcache.locks import leaf
from bootcache.manifest import CacheInfo
from bootcache.tier import Medium
from bootcache.util.backoff import Backoff
from nova_bootcache.asking.client import Offered
from nova_bootcache.asking.placement import Trust
from nova_bootcache.cache.cachefiles import CacheEntry, CacheFiles, place
from nova_bootcache.metrics import BytesFrom, HostMetrics
from nova_bootcache.storagenode import PLAIN, Encryption, Remote, nbd_node
from nova_bootcache.tiers.differences import Differences
from nova_bootcache.tiers.exchanges import Exchanges
from nova_bootcache.tiers.room import Room

LOG = logging.getLogger(__name__)

_TRIED_BYTES = 64 << 10
# What was not found out, or was fetched in vain: all of it travels again.
_UNREADABLE_SECONDS, _LONGEST_UNREADABLE = 600.0, 86400.0
_CURE = ('install a QEMU that was built with {0} and start nova-compute anew, or set'
         ' [bootcache]compression to none on the storage node')


class Readable:
    """What this host's QEMU can read: asked once for each kind of compression."""

    def __init__(self) -> None:
        # Of kinds of compression that could not be looked into, and of files, by their digest.
        self._again = Backoff(_UNREADABLE_SECONDS, _LONGEST_UNREADABLE)
        # Several threads may find out the same at once.
        self._reads: dict[Compression, bool] = {}

    def find_out(self) -> None:
        """Ask for each kind now, so that no server waits for it."""
        for compression in Compression:
            if compression is not Compression.NONE:
                self._reads_kind(compression)

    def reads(self, info: CacheInfo) -> bool:
        """Tell whether a cache image can be read here, as far as that is known."""
        compression = info.compression
        if compression is Compression.NONE:
            return True
        return self._reads_kind(compression) and self._again.is_due(info.sha256)

    def _reads_kind(self, compression: Compression) -> bool:
        found = self._reads.get(compression)
        if found is not None:
            return found
        if not self._again.is_due(compression.value):
            return False
        try:
            with tempfile.TemporaryDirectory() as directory:
                qemuimg.create_standalone(os.path.join(directory, 'tried'), _TRIED_BYTES,
                                          _TRIED_BYTES, compression=compression.value)
        except (exception.Interrupted, OSError) as error:
            LOG.warning('it cannot be found out now whether this host\'s QEMU reads cache images'
                        ' that are compressed with %s (%s): servers of such images read from the'
                        ' base for %.0f s', compression.value, error,
                        self._again.postpone(compression.value))
            return False
        except exception.BootcacheError as error:
            self._reads[compression] = False
            LOG.error('this host\'s QEMU cannot read cache images that are compressed with %s, so'
                      ' that servers of such images read from the base: %s (%s)',
                      compression.value, _CURE.format(compression.value), error)
            return False
        self._reads[compression] = True
        return True

    def check(self, image_id: str, path: str, info: CacheInfo) -> None:
        """Check that this host's QEMU can open a cache image that came as it was built.

        One that it cannot open is not fetched again for a while.

        :raises BootcacheError: if it cannot, or did not in its time.
        """
        if info.compression is Compression.NONE:
            return
        try:
            qemuimg.info(path, 'qcow2')
        except exception.BootcacheError as error:
            cure = '' if isinstance(error, exception.Interrupted) \
                else f'; {_CURE.format(info.compression.value)}'
            raise exception.BootcacheError(
                f'the cache image of {image_id} cannot be opened here ({error}), and is not fetched'
                f' again for {self._again.postpone(info.sha256):.0f} s{cure}') from error
        self._again.forget(info.sha256)


_FIRST_SECONDS, _LONGEST_SECONDS = 60.0, 3600.0
_TIMES_AGAIN = 3
_DAY = 86400.0


class WrongFiles:
    """What became of fetches, by image and content; what the storage node builds anew is trusted.

    :param clock: gives monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._again = Backoff(_FIRST_SECONDS, _LONGEST_SECONDS, clock)
        self._given_up = Backoff(_DAY, _DAY, clock)

    def trust(self, image_id: str, sha256: str) -> Trust:
        """Return whether a cache image is to be fetched."""
        key = _key(image_id, sha256)
        if not self._given_up.is_due(key):
            return Trust.NONE
        return Trust.FULL if self._again.is_due(key) else Trust.PAUSED

    def note(self, remote: Remote, sha256: str, reason: str) -> None:
        """Note that one has come wrong."""
        key = _key(remote.image_id, sha256)
        if self._again.failures(key) < _TIMES_AGAIN:
            LOG.error('image %s: its cache image came wrong from %s:%d: %s. Servers read from the'
                      ' base; it is fetched again in %.0f s at the earliest', remote.image_id,
                      remote.host, remote.port, reason, self._again.postpone(key))
            return
        self._given_up.postpone(key)
        self._again.forget(key)
        LOG.error('image %s: its cache image came wrong from %s:%d for the %dth time: %s. Servers'
                  ' of it boot the stock way on this host for a day, or until the storage service'
                  ' has another one. Look at that node\'s disk, memory and network',
                  remote.image_id, remote.host, remote.port, _TIMES_AGAIN + 1, reason)

    def forget(self, image_id: str, sha256: str) -> None:
        """Note that one has come as it was built."""
        self._again.forget(_key(image_id, sha256))
        self._given_up.forget(_key(image_id, sha256))


def _key(image_id: str, sha256: str) -> str:
    return f'{image_id} {sha256}'


class Awaited:
    """Holds servers up while others give what they would read from the storage node else.

    What many cold hosts read from there meanwhile fills the link that the exchange's first copies
    wait for.
    """

    def __init__(self) -> None:
        self._lock = leaf('the lock of the list of awaited cache images')
        # By image: since when, in monotonic seconds, and what is set when it is over. Guarded by
        # the lock, held for dictionary steps.
        self._awaited: dict[str, tuple[float, threading.Event]] = {}

    def begin(self, image_id: str) -> None:
        """Have servers of an image wait from now on."""
        with self._lock:
            self._awaited[image_id] = time.monotonic(), threading.Event()

    def end(self, image_id: str) -> None:
        """Have them go on: it is here, or others do not give it."""
        with self._lock:
            known = self._awaited.pop(image_id, None)
        if known is not None:
            known[1].set()

    def is_overdue(self, image_id: str) -> bool:
        """Tell whether servers of an image have waited for as long as they may."""
        with self._lock:
            known = self._awaited.get(image_id)
        return known is not None and not patience.servers_wait(known[0], time.monotonic())

    def wait(self, image_id: str) -> None:
        """Wait until servers of an image are to go on; not at all if they are by now.

        However many there are, none of them waits for longer than ``patience.SERVERS_WAIT``.
        """
        with self._lock:
            known = self._awaited.get(image_id)
        if known is None:
            return
        since, over = known
        if not over.wait(patience.servers_wait(since, time.monotonic())):
            LOG.info('image %s: other hosts have not given all of its cache image within %.1f s; a'
                     ' server reads from the storage node meanwhile', image_id,
                     time.monotonic() - since)


# A boot waits for the fetch. One that is slow as many hosts fetch goes on: what a boot reads from
# the base would come by the same link. One from which nothing comes is given up.
GRACE_SECONDS = 30
_SLOWEST = 128 << 10
# An empty cache image is a header and its first tables.
_EMPTY_CLUSTER = 65536


class Fetches:
    """Brings cache images to this host, and makes empty ones.

    :param files: where they are put.
    :param room: of the tiers.
    :param wrong: which came as another file than was built.
    :param readable: which this host's QEMU can read.
    :param gateway_socket: has to be in every header.
    :param encryption: how this host connects to storage nodes.
    :param exchanges: bring cache images from other hosts; None if this host takes no part.
    :param metrics: count what comes.
    """

    def __init__(self, files: CacheFiles, room: Room, wrong: WrongFiles, readable: Readable,
                 gateway_socket: str, metrics: HostMetrics, encryption: Encryption = PLAIN,
                 exchanges: Exchanges | None = None):
        self._files = files
        self._metrics = metrics
        self._encryption = encryption
        self._room = room
        self._wrong = wrong
        self._readable = readable
        self._gateway_socket = gateway_socket
        self._exchanges = exchanges
        self._differences = Differences(files)

    def room_here(self, offered: Offered) -> int | None:
        """Return what a cache image takes that is made here of its parent's, in bytes.

        :returns: None if it is not, and all of it is fetched.
        """
        return self._differences.room(offered) if self._differences.applies(offered) else None

    def trust(self, image_id: str, info: CacheInfo) -> Trust:
        """Return whether a cache image that is offered is to be fetched."""
        trust = self._wrong.trust(image_id, info.sha256)
        return trust if trust is not Trust.FULL or self._readable.reads(info) else Trust.UNREADABLE

    def fetch_offered(self, offered: Offered, medium: Medium, rate: int = 0) -> CacheEntry:
        """Get the cache image that is offered, verify it, and put it into its place.

        Servers that run from an older one keep its inode. Two servers of one image that start
        together fetch once.

        :param medium: the tier.
        :param rate: bytes a second at most; 0 for a server that waits for it: no limit.
        :raises Cancelled: if it was paced, and a server came to wait for it.
        :raises BootcacheError: if it has no room, cannot be fetched or is not what was announced.
        :raises OSError: if the tier cannot be written.
        """
        remote, info = offered.remote, offered.cache_image
        assert remote is not None and info is not None
        if self._differences.applies(offered):
            try:
                return self._make(offered, medium, rate)
            except exception.Cancelled:
                raise
            except (exception.BootcacheError, OSError) as error:
                LOG.warning('image %s: its cache image cannot be made here of that of its parent'
                            ' %s, and all of it is fetched: %s', remote.image_id,
                            offered.difference and offered.difference.parent, error)
        partial = self._partial(remote.image_id, medium)

        def bring(seconds: float) -> None:
            begun = time.monotonic()
            others = self.ask_others(remote.image_id, info)
            if others is None or not self.exchange(others, remote, info, offered.cache_export,
                                                   partial, seconds, begun, rate):
                self._copy(remote, offered.cache_export, info.bytes, partial, rate)

        return self.receive(CacheEntry(remote, info, info.sha256, info.virtual_bytes,
                                       offered.pinned, offered.generation),
                            medium, partial, bring, rate)

    def _partial(self, image_id: str, medium: Medium) -> str:
        return os.path.join(self._files.directories[medium],
                            f'{naming.cache_file_name(image_id)}.partial')

    def _make(self, offered: Offered, medium: Medium, rate: int) -> CacheEntry:
        """Make a cache image of its parent's; raises as ``fetch_offered``."""
        remote, info, wanted = offered.remote, offered.cache_image, offered.difference
        assert remote is not None and info is not None and wanted is not None
        # All of it was read, since this process began: what is wrong would be right later.
        if self._files.entry(wanted.parent) is None:
            raise exception.BootcacheError('its parent\'s has gone, or is damaged')
        # It is used, and must not be what has to go for it.
        self._files.touch(wanted.parent)
        entry = CacheEntry(remote, info, '', info.virtual_bytes, offered.pinned,
                           offered.generation, expanded=True)
        path = self._files.difference_path(remote.image_id, medium)
        partial = self._partial(remote.image_id, medium)

        def make() -> CacheEntry:
            self._copy(remote, offered.difference_export, wanted.bytes, path, rate)
            self._differences.make(
                offered, path, partial, self._base_uri(remote.image_id),
                lambda: self._check_patience(remote.image_id) if rate else None, not rate)
            self._metrics.count_bytes(BytesFrom.LOCAL, info.bytes - wanted.bytes)
            return dataclasses.replace(entry, file_sha256=savefile.file_digest(partial))

        return self._put(entry, medium, make, (partial, path), rate,
                         self._room.for_fetch(remote.image_id, medium,
                                              self._differences.room(offered)),
                         f'made in compute {medium.value} of that of image {wanted.parent} and'
                         f' {wanted.bytes} bytes that differ,')

    def receive(self, wanted: CacheEntry, medium: Medium, partial: str,
                bring: Callable[[float], None], rate: int = 0,
                has_room: bool = False) -> CacheEntry:
        """Have a cache image brought, verify it, and put it into its place.

        :param wanted: what is noted of it when it is there.
        :param partial: the file that it is brought into; it is gone when this returns.
        :param bring: does so; told how many seconds that may take in all. In ``GRACE_SECONDS`` of
            these something has to come.
        :param rate: bytes a second at which it does at most; 0 for no limit.
        :param has_room: whether its room is kept by whoever calls, for as long as this takes.
        :returns: what is noted of it, or of the same one that was there before.
        :raises BootcacheError: if it has no room, or is not what was announced; what ``bring``
            raises.
        :raises OSError: if the directory cannot be written.
        """
        image_id, info = wanted.remote.image_id, wanted.cache_image
        assert info is not None

        def make() -> CacheEntry:
            bring(GRACE_SECONDS + info.bytes / _SLOWEST)
            steps.reached('fetch: copied')
            self._verify(partial, wanted.remote, info)
            steps.reached('fetch: verified')
            return dataclasses.replace(
                wanted, file_sha256=self._point_home(partial, image_id, info))

        return self._put(wanted, medium, make, (partial,), rate, contextlib.nullcontext()
                         if has_room else self._room.for_fetch(image_id, medium, info.bytes),
                         f'of {info.bytes} bytes fetched into compute {medium.value}')

    def _put(self, wanted: CacheEntry, medium: Medium, make: Callable[[], CacheEntry],
             paths: Sequence[str], rate: int, room: contextlib.AbstractContextManager[None],
             how: str) -> CacheEntry:
        """Have a cache image made and put it into its place, unless the same one is there.

        :param make: makes the first of the files, and returns what is to be noted of it.
        :param paths: of files that are gone when this returns.
        :param room: is kept meanwhile.
        :param how: it was made, for the log.
        """
        image_id, info = wanted.remote.image_id, wanted.cache_image
        assert info is not None
        with self._files.placing(image_id, gives_way=bool(rate)):
            self._files.check_content(wanted.remote, wanted.virtual_bytes, info)
            entry = self._files.entry(image_id)
            if entry is not None and entry.cache_image is not None \
                    and entry.cache_image.sha256 == info.sha256:
                return entry
            with self._metrics.fetch(), room:
                began = time.monotonic()
                try:
                    entry = make()
                    place(self._files, paths[0], entry, medium)
                finally:
                    for path in paths:
                        with contextlib.suppress(FileNotFoundError):
                            os.unlink(path)
            LOG.info('image %s: cache image %s in %.2f s', image_id, how,
                     time.monotonic() - began)
            return entry

    def _verify(self, path: str, remote: Remote, info: CacheInfo) -> None:
        try:
            cacheimage.verify(path, info.sha256, info.bytes)
        except exception.BootcacheError as error:
            self._wrong.note(remote, info.sha256, str(error))
            raise
        self._wrong.forget(remote.image_id, info.sha256)
        self._readable.check(remote.image_id, path, info)

    def _check_patience(self, image_id: str) -> None:
        if self._files.is_waited_for(image_id):
            raise exception.Cancelled(f'a server waits for the cache image of {image_id}')

    def _node(self, remote: Remote, export: str) -> dict[str, Any]:
        return {'driver': 'raw', 'file': nbd_node(
            remote.host, remote.port, export, self._encryption.credentials(remote.tls))}

    def asks_others(self, info: CacheInfo) -> bool:
        """Tell whether other hosts are asked for a cache image."""
        return self._exchanges is not None and self._exchanges.is_worth_it(info)

    def ask_others(self, image_id: str, info: CacheInfo) -> Exchanged | None:
        """Ask from which hosts a cache image can be had; those that ask later are told of this one.

        :returns: None if all of it is to come from the storage node.
        """
        if self._exchanges is None or not self._exchanges.is_worth_it(info):
            return None
        return self._exchanges.ask(image_id, info)

    def exchange(self, others: Exchanged, remote: Remote, info: CacheInfo, export: str,
                 partial: str, seconds: float, begun: float, rate: int = 0,
                 check: Callable[[], None] = lambda: None) -> bool:
        """Bring a cache image from other hosts, and from the storage node what these do not give.

        :param others: what ``ask_others`` has returned.
        :param export: the exporter's name for the file.
        :param partial: the file that it is brought into.
        :param seconds: that it may take.
        :param begun: since when it has been waited for, in monotonic seconds.
        :param rate: bytes a second at most; 0 for no limit.
        :param check: called several times a second where it is not paced.
        :returns: False if all of it is to come from the storage node.
        :raises Cancelled: if it was paced, and a server came to wait for it.
        :raises BootcacheError: if what others do not give cannot be copied either.
        :raises OSError: if the directory cannot be written.
        """
        assert self._exchanges is not None
        return self._exchanges.bring(
            remote, others, info, partial, self._node(remote, export), rate=rate,
            seconds=seconds, stalled=GRACE_SECONDS, begun=begun,
            # A header that names another place is rewritten: the file is not what others have.
            gives_on=info.backing_uri == self._base_uri(remote.image_id),
            check=(lambda: self._check_patience(remote.image_id)) if rate else check)

    def give(self, others: Exchanged, image_id: str, is_told: bool = False) -> None:
        """Give a cache image that is here to the hosts that were told of this one.

        :param others: what ``ask_others`` has returned.
        :param is_told: whether ``exchange`` has brought it, and told how.
        """
        entry = self._files.entry(image_id)
        # Not one that was expanded, or has another header.
        if self._exchanges is not None and entry is not None \
                and entry.file_sha256 == others.sha256:
            self._exchanges.give(image_id, others, self._files.path(image_id), is_told)

    def _copy(self, remote: Remote, export: str, size: int, path: str, rate: int) -> None:
        node = self._node(remote, export)
        if rate:
            qemuimg.copy_paced(node, path, length=size, rate=rate,
                               check=lambda: self._check_patience(remote.image_id),
                               seconds=GRACE_SECONDS + 2 * size / min(rate, _SLOWEST))
        else:
            qemuimg.copy_raw(node, path, seconds=GRACE_SECONDS + size / _SLOWEST,
                             stalled=GRACE_SECONDS)
        self._metrics.count_bytes(BytesFrom.STORAGE_NODE, size)

    def make_empty(self, remote: Remote, virtual_bytes: int) -> CacheEntry:
        """Make a cache image without data: the name that a whole one replaces later.

        SC13, Algorithm 1: "create Cache on C, chain Cache to Base".

        :param virtual_bytes: size of the base.
        :raises BootcacheError: if qemu-img refuses.
        :raises OSError: if the directory cannot be written.
        """
        image_id = remote.image_id
        with self._files.placing(image_id):
            self._files.check_content(remote, virtual_bytes)
            entry = self._files.entry(image_id)
            if entry is not None:
                return entry
            partial = f'{self._files.path(image_id)}.partial'
            try:
                qemuimg.create_overlay(partial, virtual_bytes, self._base_uri(image_id), 'raw',
                                       cluster_bytes=_EMPTY_CLUSTER, open_backing=False)
                entry = CacheEntry(remote, None, savefile.file_digest(partial), virtual_bytes)
                steps.reached('empty: made')
                place(self._files, partial, entry, Medium.DISK)
            finally:
                if os.path.exists(partial):
                    os.unlink(partial)
            return entry

    def _base_uri(self, image_id: str) -> str:
        return naming.nbd_unix_uri(self._gateway_socket,
                                   naming.export_name(naming.EXPORT_BASE, image_id))

    def _point_home(self, path: str, image_id: str, cache_image: CacheInfo) -> str:
        wanted = self._base_uri(image_id)
        if cache_image.backing_uri == wanted:
            return cache_image.sha256
        LOG.info('image %s: the header names %s; it is rewritten for this host\'s'
                 ' [bootcache]gateway_socket', image_id, cache_image.backing_uri)
        qemuimg.set_backing_pointer(path, wanted, 'raw')
        return savefile.file_digest(path)
