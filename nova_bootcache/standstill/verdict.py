"""What becomes of a guest that stands still: it waits, goes on, or is left alone. Pure."""

import dataclasses
import enum

from bootcache import exception
from nova_bootcache import libvirtcalls


class Verdict(enum.Enum):
    """What is done with it now."""

    LEAVE = 'it is not ours to let it go on'
    WAIT = 'it waits'
    GO_ON = 'it goes on'


@dataclasses.dataclass(frozen=True)
class StandingGuest:
    """A guest that stands still.

    :ivar is_by_error: libvirt had it stop as a disk gave an error; not a user, nor a move.
    :ivar is_to_wait: the disk was made to stop it by this driver, see novadriver/errorpolicy.py.
        Stock Nova's stop as well where the host's disk is full, and whoever sees to that lets them
        go on.
    :ivar runs: Nova has the server run on this host, or is about to start it; false where its user
        paused it, or Nova moves it.
    """

    is_by_error: bool
    is_to_wait: bool
    runs: bool

    @property
    def waits(self) -> bool:
        """Whether it waits for what is below its disk, and is to go on by itself."""
        return self.is_by_error and self.is_to_wait and self.runs


def verdict(guest: StandingGuest, obstacle: str, is_time: bool) -> Verdict:
    """Return what is done with it.

    :param obstacle: why what is below its disk cannot be read; empty if it can, as far as is known.
    :param is_time: whether it is to be tried again by now.
    """
    if not guest.waits:
        return Verdict.LEAVE
    return Verdict.WAIT if obstacle or not is_time else Verdict.GO_ON


def why(obstacle: str, is_full: bool, was_tried: bool) -> str:
    """Return what a server waits for.

    :param obstacle: as for :func:`verdict`.
    :param is_full: libvirt says that the host has no space for what the guest writes.
    :param was_tried: it went on, and stood still again at once.
    """
    if obstacle:
        return obstacle
    if is_full:
        return 'the host has no space for what it writes to its disk'
    if was_tried:
        return 'its disk gives errors each time it goes on, though its base is there'
    return 'what is below its disk could not be read; it can be now'


def cure(error: Exception | None, is_full: bool) -> str:
    """Return what an operator can do about one that waits for long.

    :param error: that keeps its base from being read, or it from going on; None if there is none.
    :param is_full: as for :func:`why`.
    """
    if isinstance(error, exception.LibvirtHangs):
        return libvirtcalls.CURE
    if isinstance(error, exception.StorageNodeAway):
        return ('Bring the storage node back, or have the storage service serve the image at'
                ' another address: the host finds it by itself')
    if isinstance(error, exception.StorageDaemonError):
        return ('See why the gateway does not serve it: its log is in [bootcache]gateway_run_dir,'
                ' and "systemctl status bootcache-gateway" tells of its unit')
    if error is not None:
        return ('Have the storage service serve the image again, with the same content; see'
                ' "bootcache image show" of it')
    if is_full:
        return 'Make room on the file system of its disk'
    return ('See QEMU\'s log of the server, and the kernel\'s on this host and on the storage node:'
            ' a disk of theirs may be ill')
