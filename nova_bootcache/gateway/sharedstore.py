"""The growing store that a host's servers share: what they read of a base, kept in the gateway.

SC13 section 3.2 and figure 5: a cache that fills while the first server boots, and stops to grow at
its quota. It lies between the gateway's export and the storage node, so that all servers of the
host share it; its map, in the order of the file, is what they read for the first time.

The quota is kept by dropping the copy-on-read filter (blockdev-reopen: a millisecond, readers do
not notice). As a medium that runs full is a read error in the guest, what may be written before the
next look is the store's already (fallocate), whoever fills the medium meanwhile; and writes are
slowed down the nearer the end of that is, so that whoever watches has the time to drop the filter.
"""

import contextlib
import ctypes
import errno
import os
import shutil

from oslo_log import log as logging

from bootcache import exception, naming, steps, tier
from bootcache.growingstore import LOOK_SECONDS, GrowingStore
from bootcache.locks import OrderedLock
from nova_bootcache.gateway.daemon import Gateway
from nova_bootcache.gateway.graph import FILTER, REMOTE, STORE, Store
from nova_bootcache.locks import Rank

LOG = logging.getLogger(__name__)

_FALLOC_FL_KEEP_SIZE = 1
_FALLOC_FL_PUNCH_HOLE = 2
_ZEROS = 1 << 20
# A page of a tmpfs may be so large, and a file's last one be its own.
_LARGEST_PAGE = 2 << 20
# What a file system answers that cannot promise space, as NFS before 4.2 cannot.
_UNABLE = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


def hold(path: str, size: int) -> bool:
    """Give a file the blocks of its first bytes: to write there cannot fail for want of space.

    Its length and content stay as they are. It takes a millisecond, in a tmpfs 0.3 s a GiB.

    :param size: bytes.
    :returns: False if the file system cannot do that.
    :raises OSError: if it has no room, or the file is gone.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        return _allocate(fd, path, _FALLOC_FL_KEEP_SIZE, 0, size)
    finally:
        os.close(fd)


def clear(path: str, offset: int, length: int) -> None:
    """Have a place in a file be zeros, without blocks where the file system can do that.

    :param offset: in bytes, as is the length; what is beyond the file's end is left out.
    :raises OSError: if the file cannot be written.
    """
    with open(path, 'r+b') as stream:
        end = min(offset + length, os.fstat(stream.fileno()).st_size)
        if end <= offset or _allocate(stream.fileno(), path,
                                      _FALLOC_FL_KEEP_SIZE | _FALLOC_FL_PUNCH_HOLE, offset,
                                      end - offset):
            return
        stream.seek(offset)
        for begin in range(offset, end, _ZEROS):
            stream.write(bytes(min(_ZEROS, end - begin)))


def _allocate(fd: int, path: str, mode: int, offset: int, length: int) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate64(ctypes.c_int(fd), ctypes.c_int(mode), ctypes.c_int64(offset),
                        ctypes.c_int64(length)) == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNABLE:
        return False
    raise OSError(code, os.strerror(code), path)


def has_ahead(path: str) -> bool:
    """Tell whether a file has space beyond its end that it was given by ``hold``.

    :returns: False also if it is gone.
    """
    with contextlib.suppress(FileNotFoundError):
        status = os.stat(path)
        return status.st_blocks * 512 >= status.st_size + _LARGEST_PAGE
    return False


def give_back(path: str) -> None:
    """Give back a file's space beyond its end; length, content and time of it stay as they are.

    Nobody may write to it meanwhile: what makes it longer would be lost.

    :raises OSError: if the file is gone.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        # To the length that it has: file systems free what is beyond it.
        os.ftruncate(fd, status.st_size)
        os.utime(fd, ns=(status.st_atime_ns, status.st_mtime_ns))
    finally:
        os.close(fd)


def free_bytes(path: str) -> int:
    """Return the bytes that are free on the file system of a file.

    :raises OSError: if its directory is gone.
    """
    return shutil.disk_usage(os.path.dirname(path)).free


_MOST_RESERVE = 32 << 20
_LEAST_RESERVE = 384 << 10
# Space that a store that grows has for itself beyond what is in it. In memory it is taken from
# everybody, and cleared: there it is what two seconds need, at the pace of the last look.
AHEAD = 256 << 20
_LEAST_AHEAD_IN_MEMORY, _SECONDS_AHEAD_IN_MEMORY = 64 << 20, 2


def reserve(limit: int) -> int:
    """Return the bytes before a limit at which a store stops to grow."""
    return min(_MOST_RESERVE, max(_LEAST_RESERVE, limit // 8))


def spare(limit: int) -> int:
    """Return the bytes of its medium that a store leaves to others: below it stops to grow.

    :param limit: of the store, in bytes.
    """
    return reserve(limit) // 4


def ahead(grown: int, is_in_memory: bool) -> int:
    """Return the bytes beyond what is in it that a store is to have for itself.

    :param grown: bytes by which it has grown since the look before.
    :param is_in_memory: whether it lies on a tmpfs.
    """
    if not is_in_memory:
        return AHEAD
    return min(AHEAD, max(_LEAST_AHEAD_IN_MEMORY,
                          round(grown / LOOK_SECONDS) * _SECONDS_AHEAD_IN_MEMORY))


def horizon(limit: int, size: int, held: int, free: int, beyond: int = AHEAD) -> int:
    """Return how large a store may become until the next look, in bytes of its file.

    :param size: of the store now.
    :param held: size up to which the medium's space is the store's already.
    :param free: bytes of the medium that are nobody's.
    :param beyond: bytes beyond its size that it is to have, see :func:`ahead`.
    """
    own = max(size, held)
    return min(limit, max(own, min(size + beyond, own + free - spare(limit))))


def write_rate(limit: int, size: int) -> int:
    """Return the bytes a second with which a store may grow: the rest lasts a look's time.

    :param limit: size that the store may have until the next look, see :func:`horizon`.
    :param size: of the store, in bytes.
    """
    rest = max(limit - size, 0)
    # Powers of two, so that it changes a few times only.
    return max(1 << 16, 1 << max(rest - 1, 1).bit_length() - 1)


# What cache images have by default: the record is rounded to it anyway when one is built.
GRANULARITY = 65536
# Between tries to have it stop to grow: while its base does not answer it hardly does.
_STOP_AGAIN_SECONDS = 1.0
# A store smaller than that holds nothing worth it beside its tables.
MIN_LIMIT = 1 << 20


class SharedStore(GrowingStore):
    """One image's growing store in the gateway, within a limit.

    :ivar name: the image's id.
    :ivar path: of the store's file; made new, removed at the end.
    :ivar limit: bytes that the file may have.
    :ivar gave_back: whether it gave back the space that it does not need: what stays beyond its
        end is the file system's, which may give out megabytes at a time.
    :ivar spoilt: what is read through it is not boots' alone, or not kept, or what a boot read was
        not told: it tells nothing of boots any more, and gives way to another one.

    :param gateway: where its nodes live.
    :param virtual_bytes: size of its base.
    """

    def __init__(self, gateway: Gateway, image_id: str, virtual_bytes: int, path: str, limit: int):
        super().__init__(
            gateway.daemon, image_id, naming.node_name(REMOTE, image_id), virtual_bytes, path,
            GRANULARITY, lambda: gateway.check_base(image_id))
        self.limit = limit
        self.gave_back = self.spoilt = False
        self._gateway = gateway
        self._rate = 0
        # In monotonic seconds.
        self._stop_again_at = 0.0
        # Sizes of the file: up to which the medium's space is its own, and at the last look.
        self._held = self._looked_at = 0
        self._is_in_memory = False
        # Guards the store's nodes.
        self._lock = OrderedLock(Rank.STORE, f'the lock of the growing store of {image_id}')

    def open(self) -> None:
        """Put the store between the gateway's export of the base and the storage node.

        :raises BootcacheError: if qemu-img or the gateway refuses, or the base cannot be read now;
            it is read directly then.
        """
        self._looked_at = size = self.create()
        self._is_in_memory = tier.is_memory(os.path.dirname(self.path))
        if size + reserve(self.limit) >= self.limit:
            os.unlink(self.path)
            raise exception.StorageDaemonError(
                f'a growing store of {self.limit} bytes has no room beside its own tables')
        if not (end := self._take_room(size)):
            os.unlink(self.path)
            raise exception.StorageDaemonError(
                f'the file system of {self.path} has no room for a growing store')
        try:
            steps.reached('grow: made')
            self._rate = write_rate(end, size)
            with self._gateway.daemon.session():
                self._gateway.check_base(self.name)
                self.add_nodes(self._rate)
                self._gateway.read_from(self.name, FILTER)
        except exception.BootcacheError:
            with contextlib.suppress(exception.BootcacheError):
                self.close()
            raise
        steps.reached('grow: opened')
        self.grows = True

    def is_there(self) -> bool:
        """Tell whether the gateway still has it; one that was restarted has not.

        :raises StorageDaemonError: if the gateway does not answer.
        """
        return self.node(STORE) in self._gateway.daemon.nodes()

    def look(self, now: float) -> bool:
        """Note the store's size, and keep its limit.

        :param now: monotonic seconds.
        :returns: whether it still grows.
        :raises StorageDaemonError: if the gateway does not answer.
        """
        super().look(now)
        if not self._lock.acquire(0):
            # Somebody changes it, which takes seconds where storage hangs: others are looked at.
            return self.grows
        try:
            if self.grows:
                self._keep_limit(self._samples[-1].file_bytes, now)
            return self.grows
        finally:
            self._lock.release()

    def _take_room(self, size: int) -> int:
        """Take the medium's space for what may come until the next look.

        :returns: how large the file may become until then, 0 if it has to stop to grow.
        """
        try:
            free = free_bytes(self.path)
            grown, self._looked_at = size - self._looked_at, size
            end = horizon(self.limit, size, self._held, free, ahead(grown, self._is_in_memory))
            if end > self._held and hold(self.path, end):
                self._held = end
        except OSError as error:
            # Somebody was faster, or has a quota of his own there.
            LOG.info('image %s: no more room for its growing store: %s', self.name, error)
            return 0
        return end if free >= spare(self.limit) and end > size + reserve(self.limit) else 0

    def _keep_limit(self, size: int, now: float) -> None:
        end = self._take_room(size)
        if not end:
            if now < self._stop_again_at:
                return
            self._stop_again_at = now + _STOP_AGAIN_SECONDS
            self.is_full = True
            if is_early := size + reserve(self.limit) < self.limit:
                # It does not tell what boots read from now on; another one may have room later.
                self.spoilt = True
            self.stop_growing()
            if is_early:
                LOG.warning('image %s: its growing store stops to grow, as the file system of %s'
                            ' is full', self.name, self.path)
            LOG.info('image %s: its growing store has %d of %d bytes and stops to grow',
                     self.name, size, self.limit)
        elif (rate := write_rate(end, size)) != self._rate:
            self.slow_down(rate)
            self._rate = rate

    def stop_growing(self) -> None:
        """Drop the copy-on-read filter; what is in the store goes on being read from there.

        :raises StorageDaemonError: if the gateway refuses, or the base cannot be read now.
        """
        with self._lock:
            # Where that is refused it grows, and goes on being looked at.
            self._gateway.change(self.name, store=Store.STAYS)
            self.grows = False

    def give_back(self) -> None:
        """Give back the medium's space beyond what is in it, when it does not grow any more.

        :raises StorageDaemonError: if the gateway refuses, or the base cannot be read now.
        :raises OSError: if its file is gone.
        """
        with self._lock:
            # They may lie beyond the file's end. Nobody writes to it after that.
            super().write_tables()
            give_back(self.path)
            self.gave_back = True
        LOG.info('image %s: its growing store, which does not grow any more, gave back the space'
                 ' beyond its %d bytes', self.name, self.size())

    def write_tables(self) -> None:
        """Have its tables written to its file, alone; raises as ``GrowingStore.write_tables``."""
        with self._lock:
            super().write_tables()

    def close(self) -> None:
        """Take the store out from below the export, and remove it; readers do not notice.

        While the base cannot be read it stays: what it has is all that servers can read.

        :raises StorageDaemonError: if the gateway does not answer, or the base cannot be read now.
        """
        with self._lock:
            self._gateway.change(self.name, store=Store.GOES)
            self.grows = False
        # If that was refused it may still be written to, and goes on being counted.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
