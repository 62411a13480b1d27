"""A tier: a directory that holds cache images under a quota, on a disk or in memory.

SC13 section 6 places caches on compute hosts' disks and in storage nodes' memory; section 3.4 asks
for an eviction policy such as LRU, at the node or cloud level. The policy here is pure and the same
for every tier; what it needs to know of directories and files is asked by the functions below it.
"""

import contextlib
import dataclasses
import enum
import errno
import mmap
import os
import tempfile
from collections.abc import Iterable, Mapping

from bootcache import filelocks, properties
from bootcache.exception import ConfigurationError

# A block for O_DIRECT; a page is a multiple of every device's block size.
_BLOCK = mmap.PAGESIZE
# QEMU's image lock (block/file-posix.c): from byte 100 on one byte for each permission that is
# held, from 200 on one for each that is not shared; 64 of either are more than there are.
_LOCK_AREAS = ((100, 64), (200, 64))


class Medium(enum.StrEnum):
    """What a tier lies on."""

    DISK = 'disk'
    MEMORY = 'memory'


# The policy.

@dataclasses.dataclass(frozen=True)
class TierLimits:
    """How much a tier may hold, in bytes.

    :ivar quota: never exceeded.
    :ivar high: eviction begins when there would be more than this.
    :ivar low: eviction goes on down to this.
    :raises ValueError: unless 0 <= low <= high <= quota.
    """

    quota: int
    high: int
    low: int

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high <= self.quota:
            raise ValueError(f'{self} is not in order: 0 <= low <= high <= quota')

    @classmethod
    def from_percent(cls, quota: int, high_percent: int, low_percent: int) -> 'TierLimits':
        """Return limits whose watermarks are percentages of the quota.

        :param quota: bytes.
        :raises ValueError: unless 0 <= low <= high <= 100.
        """
        return cls(quota, quota * high_percent // 100, quota * low_percent // 100)


@dataclasses.dataclass(frozen=True)
class Item:
    """A cache image in a tier.

    :ivar key: tells it from the tier's others.
    :ivar bytes: the file's size.
    :ivar last_used: when a server last began to boot from it, in seconds since the epoch.
    :ivar pinned: an operator wants it to stay.
    :ivar busy: a server has it open, or it is being fetched.
    """

    key: str
    bytes: int
    last_used: float
    pinned: bool = False
    busy: bool = False


@dataclasses.dataclass(frozen=True)
class Eviction:
    """What makes room in a tier.

    :ivar fits: whether what comes in fits the quota after the eviction.
    :ivar evict: keys of the items to evict, in that order.
    """

    fits: bool
    evict: tuple[str, ...]


def make_room(items: Iterable[Item], limits: TierLimits, incoming: int = 0) -> Eviction:
    """Plan what a tier evicts: least recently used first (SC13 section 3.4). Pure.

    Nothing goes while all of it stays within the high watermark. Beyond that, items go until the
    rest is within the low watermark, or none is left that may go: pinned and busy ones stay. What
    cannot fit the quota evicts nothing.

    :param incoming: bytes of what is to come in beside the items.
    """
    held = list(items)
    used = sum(item.bytes for item in held) + incoming
    if used <= limits.high:
        return Eviction(True, ())
    evict = []
    for item in sorted(held, key=lambda item: (item.last_used, item.key)):
        if used <= limits.low:
            break
        if not item.pinned and not item.busy:
            evict.append(item.key)
            used -= item.bytes
    if used > limits.quota:
        return Eviction(False, ())
    return Eviction(True, tuple(evict))


# Files and directories.

def is_open(path: str) -> bool:
    """Tell whether a QEMU process has an image open, also as a read-only backing file.

    QEMU's own image lock is asked, so this holds across restarts and for processes of others. Not
    seen are a QEMU that awaits an incoming migration, as it locks only when the server arrives,
    and opening without locks (``qemu-img -U``); both keep what they have open if it is unlinked.

    :returns: False also if there is no such file.
    :raises OSError: if the file cannot be read, or its file system knows no such locks.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return any(filelocks.lock_holder(fd, *area) is not None for area in _LOCK_AREAS)
    finally:
        os.close(fd)


def direct_io_works(directory: str) -> bool:
    """Tell whether files in a directory can be written and read past the page cache (O_DIRECT).

    Nova tests its instances path like this; its cache mode ``none`` opens every image of a chain
    so, and kernels before 6.6 refuse it on tmpfs.

    :raises OSError: if no file can be made there.
    """
    fd, path = tempfile.mkstemp(prefix='.direct-', dir=directory)
    os.close(fd)
    try:
        with mmap.mmap(-1, _BLOCK) as block:  # aligned, as O_DIRECT wants it
            block.write(b'x' * _BLOCK)
            fd = os.open(path, os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC)
            try:
                return os.pwrite(fd, block, 0) == os.preadv(fd, [block], 0) == _BLOCK
            finally:
                os.close(fd)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
            return False
        raise
    finally:
        os.unlink(path)


def file_system(directory: str) -> str:
    """Return the type of the file system that a directory lies on, as the kernel names it.

    :returns: an empty string if the kernel does not list it, as for a subvolume of btrfs.
    :raises OSError: if the directory does not exist.
    """
    device = os.stat(directory).st_dev
    wanted = f'{os.major(device)}:{os.minor(device)}'
    with open('/proc/self/mountinfo') as stream:
        for line in stream:
            # "36 35 98:0 /root /mount/point options optional... - type source options"
            left, _dash, right = line.partition(' - ')
            if left.split()[2] == wanted:
                return right.split()[0]
    return ''


def is_memory(directory: str) -> bool:
    """Tell whether a directory lies in memory: on a tmpfs or ramfs.

    :raises OSError: if it does not exist.
    """
    return file_system(directory) in ('tmpfs', 'ramfs')


# Configurations. Options are given by their names in the group [bootcache].

def _refused(option: str, value: object, reason: str) -> ConfigurationError:
    return ConfigurationError(f'[bootcache]{option}={value}: {reason}')


def check_directory(option: str, path: str, *, make: bool = False, mode: int = 0o755,
                    memory: tuple[str, int] | None = None) -> None:
    """Check that a tier's directory can be used, by making a file in it.

    :param make: make it if it is missing.
    :param mode: of what is made.
    :param memory: it is to lie in memory, on a tmpfs that is large enough: the name of its quota's
        option, and bytes. What is below a tmpfs that is not mounted need not be writable, and is
        not to be made so.
    :raises ConfigurationError: if it is not absolute, missing, no directory, not writable, or not
        such a tmpfs.
    """
    if not os.path.isabs(path):
        raise _refused(option, path, 'is not an absolute path; give one that begins with /')
    try:
        if make:
            os.makedirs(path, mode=mode, exist_ok=True)
        if not os.path.isdir(path):
            raise _refused(option, path, 'is not a directory; name another path'
                           if os.path.lexists(path) else 'does not exist; make the directory'
                           + (', and mount a tmpfs there' if memory else ''))
        if memory and not is_memory(path):
            raise _refused(option, path, 'does not lie in memory; mount a tmpfs there')
        with tempfile.TemporaryFile(prefix='.check-', dir=path):
            pass
    except FileExistsError:
        raise _refused(option, path, 'is not a directory; name another path') from None
    except OSError as error:
        raise _refused(option, path, f'cannot be written ({error.strerror}); give the service\'s'
                       ' user the right to, or name another directory') from error
    if memory:
        status = os.statvfs(path)
        size, (quota_option, quota) = status.f_blocks * status.f_frsize, memory
        # A tmpfs without a limit says 0.
        if 0 < size < quota:
            raise _refused(quota_option, quota, f'is over the {size} bytes of the tmpfs at {path};'
                           ' lower it, or mount the tmpfs with a larger size')


def check_apart(paths: Mapping[str, str]) -> None:
    """Check that no tier lies in another one, or in the same directory; links are followed.

    :param paths: the tiers' directories, by their options' names.
    :raises ConfigurationError: naming both options.
    """
    seen: list[tuple[str, str]] = []
    for option, path in paths.items():
        real = os.path.realpath(path)
        for other, there in seen:
            if os.path.commonpath([real, there]) in (real, there):
                raise _refused(option, path, f'overlaps with [bootcache]{other}={paths[other]};'
                               ' give each a directory of its own, beside the other')
        seen.append((option, real))


def parse_limits(option: str, quota_text: str, high_percent: int, low_percent: int,
                 minimum: int, why: str = '') -> TierLimits:
    """Read a tier's limits from its options.

    :param option: the quota's.
    :param quota_text: bytes, or a number with a unit.
    :param high_percent: value of ``high_watermark``.
    :param low_percent: value of ``low_watermark``.
    :param minimum: bytes that the quota has to have at least.
    :param why: it has to, for the message; empty where no other option says so.
    :raises ConfigurationError: if they make no sense.
    """
    quota: int | None = None
    with contextlib.suppress(ValueError):
        quota = properties.parse_size(quota_text)
    if quota is None:
        raise _refused(option, quota_text, 'is not a size; give bytes or a unit, as in 4GiB')
    if quota < minimum:
        raise _refused(option, quota_text, f'is below {minimum} bytes{why}; raise it')
    if not 0 < high_percent <= 100:
        raise _refused('high_watermark', high_percent, 'is not a percentage; give 1 to 100')
    if not 0 <= low_percent < high_percent:
        raise _refused('low_watermark', low_percent, f'is not below high_watermark={high_percent};'
                       ' lower it')
    return TierLimits.from_percent(quota, high_percent, low_percent)


def spins(directory: str) -> bool:
    """Tell whether a directory is on a disk that the kernel takes for one with a head that moves.

    :returns: False where it does not tell, as for a file system without a disk of its own.
    """
    try:
        device = os.stat(directory).st_dev
        place = f'/sys/dev/block/{os.major(device)}:{os.minor(device)}'
        # A partition has no queue of its own.
        for queue in ('queue', '../queue'):
            path = os.path.join(os.path.realpath(place), queue, 'rotational')
            if os.path.exists(path):
                with open(path) as stream:
                    return stream.read().strip() == '1'
    except OSError:
        pass
    return False
