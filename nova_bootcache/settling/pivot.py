"""Moves a running server's root disk from its cache image to the full base, or to a newer one.

A cache image that has come has the name of the empty one that its servers began on: both overlays
are on one path then, and QEMU's lock tells which of them it runs from.

By libvirt's block copy of the overlay alone (shallow) into a new overlay on the full base. The copy
has to go to the path that the domain's definition names, or the definition would name another file
afterwards; so the names of the two overlays are exchanged while libvirt opens or closes the copy,
and back at once. What a crash leaves, ``recover`` puts right; it has to be called before anything
else is done with a server's disk.

Where QEMU does not answer, libvirt may do at any later time what it was told: all stays as it is
until that is over, and ``recover`` is for it as well. Until then the server can only be ended. So
it is with a copy that does not end, as what QEMU reads or writes for it is not answered; but its
guest goes on meanwhile, and may end: ``disk`` is not the valid overlay then before ``recover``.

All but ``Pivot.wait_ready`` need Nova's lock of the server.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import libvirt
from oslo_log import log as logging

from bootcache import exception, fileformat, qemuimg, savefile, tier
from bootcache.util import threads
from nova_bootcache import libvirtcalls
from nova_bootcache.cache.cachefiles import is_same_name
from nova_bootcache.settling import pivotstate, rebase
from nova_bootcache.settling.livedisk import POLL_SECONDS, LiveDisk
from nova_bootcache.settling.pivotstate import (
    DISK,
    MARKER,
    SPARE,
    Found,
    Marker,
    Overlay,
    PivotConflict,
    PivotFailed,
    PivotPhase,
    PivotRefused,
)

LOG = logging.getLogger(__name__)

# A disk or a link that is slow for a while is no reason to copy all anew.
STALLED_SECONDS = 120.0
# What QEMU copies at once, after which it waits for as long as that takes at the rate.
_BURST = 16 << 20
# A guest may write a lot for some minutes, as when it installs something.
OUTRUN_SECONDS = 600.0


@dataclasses.dataclass(frozen=True)
class Progress:
    """What was seen of a copy so far.

    :ivar rate: bytes a second that are copied at most; 0 for no limit.
    :ivar moved: monotonic second since which no byte was copied.
    :ivar nearer: monotonic second since which there were never fewer bytes left.
    :ivar copied: bytes.
    :ivar least_left: bytes that were left to copy when they were fewest; None until one is copied,
        as QEMU does not know before how many there are.
    """

    rate: int
    moved: float
    nearer: float
    copied: int = 0
    least_left: int | None = None

    @classmethod
    def begun(cls, rate: int, now: float) -> Progress:
        """Return that of a copy of which nothing was seen yet."""
        return cls(rate, now, now)

    def seen(self, copied: int, left: int, now: float) -> Progress:
        """Return what is known once somebody has looked.

        :param copied: bytes so far.
        :param left: bytes, of which a guest that writes makes more.
        """
        if copied == self.copied:
            return self
        is_nearer = self.least_left is None or left < self.least_left
        return Progress(self.rate, now, now if is_nearer else self.nearer, copied,
                        left if is_nearer else self.least_left)

    def why_in_vain(self, now: float) -> str:
        """Return why the copy is to be given up, with the cure; empty if it is not."""
        still, longer = now - self.moved, now - self.nearer
        if still >= STALLED_SECONDS + (3 * _BURST / self.rate if self.rate else 0):
            return (f'nothing of its own data was copied for {still:.0f} s. See whether the storage'
                    " node answers, and the disk of Nova's instances")
        if longer >= OUTRUN_SECONDS and self.least_left is not None:
            return (f'its guest has written as fast as it was copied for {longer:.0f} s. Raise'
                    ' [bootcache]settle_bandwidth; while it is stopped it settles at once')
        return ''


# For so long a pivot may last before it is noted as unanswered, with the call before it. What is
# written to the new overlay later is the guest's.
_PIVOT_SECONDS = libvirtcalls.JOB_END_SECONDS + 2 * libvirtcalls.SECONDS
# What guests may write between two looks at what is free.
_MARGIN_BYTES = 256 << 20
_SECTOR = 512


class Pivot:
    """Moves one running server.

    :param find_domain: returns the server's libvirt domain, or None if there is none; called anew
        each time, as connections come and go.
    :param directory: the server's, with its ``disk``.
    :param base: path of the full base, which reads the same bit for bit; or the same path as
        ``cache_image``, by which there is another file than the one that QEMU has open.
    :param base_format: raw or qcow2, see ``base_format``.
    :param cache_image: path of what ``disk`` is on.
    :param rate: bytes a second that are copied; 0 for no limit.
    :param target: the disk's name in the guest.
    :param keep_free: bytes of the directory's file system that have to stay free: a guest that
        writes while it is copied has two overlays grow, which others' servers have beside them.
    """

    def __init__(self, find_domain: Callable[[], Any], directory: str, base: str, base_format: str,
                 cache_image: str, rate: int, target: str = 'vda', keep_free: int = 0):
        self._find_domain = find_domain
        self._directory = directory
        self._path = os.path.join(directory, DISK)
        self._cache_image = cache_image
        self._base = base
        self._lands = is_same_name(base, cache_image)
        self._base_format = base_format
        self._rate = rate
        self._target = target
        self._keep_free = keep_free
        self._given_up = threading.Event()

    def begin(self) -> None:
        """Start to copy. The guest goes on; ``disk`` is the other file for some 15 ms.

        :raises PivotRefused: if the server cannot be moved now.
        :raises LibvirtHangs: if QEMU does not answer.
        :raises BootcacheError: if libvirt or QEMU refuses. All is as before then.
        """
        if Marker.load(self._directory) is not None:
            raise PivotRefused(f'{self._path}: an earlier move has to be put right first')
        with self._errors():
            disk = self._disk()
            disk.check(self._cache_image)
            self._check_room(os.stat(self._path).st_blocks * _SECTOR)
            if self._lands and not tier.is_open(self._path):
                raise PivotRefused(f'{self._path}: QEMU has no lock of it, by which it is told'
                                   ' later which overlay it runs from')
            virtual_bytes = disk.virtual_bytes()
            marker = Marker(PivotPhase.COPYING, self._target, self._base, self._base_format,
                            os.stat(self._path).st_ino, lands=self._lands)
        try:
            with self._errors():
                marker.save(self._directory)
                marker = dataclasses.replace(marker, new_inode=self._make(virtual_bytes))
                marker.save(self._directory)
                with _exchanged(self._directory):
                    disk.copy(self._rate)
        except BaseException:
            self._put_right()
            raise
        LOG.info('%s: its own data is being copied into an overlay on %s', self._path, self._base)

    def wait_ready(self, cancelled: threading.Event) -> None:
        """Wait until ``finish`` can be called. Needs no lock.

        :param cancelled: ends the waiting; ``abort`` has to be called then.
        :raises Cancelled: if it was set, or somebody else called ``abort``.
        :raises PivotRefused: if there is too little room by now; ``abort`` has to be called.
        :raises PivotFailed: if the job failed or the server stopped; the same.
        :raises BlockJobStalls: if it comes no nearer to its end for long; the same.
        :raises LibvirtHangs: if QEMU does not answer; the same.
        """
        state: str | None = 'copying'
        progress = Progress.begun(self._rate, time.monotonic())
        while state != 'yes':
            cancelled.wait(POLL_SECONDS)
            try:
                with self._errors():
                    self._check_room()
                    disk = self._disk()
                    copied, left = disk.ask_qemu()
                    state = disk.job()
                if state is None:
                    raise PivotFailed(
                        f'{self._path}: its block job failed; see QEMU\'s log of the domain, and'
                        ' whether the gateway reaches the storage node')
                progress = progress.seen(copied, left, time.monotonic())
                if state != 'yes' and (why := progress.why_in_vain(time.monotonic())):
                    raise exception.BlockJobStalls(f'{self._path} is not moved now: {why}')
            except (PivotFailed, exception.LibvirtHangs):
                if not cancelled.is_set() and not self._given_up.is_set():
                    raise
            if cancelled.is_set() or self._given_up.is_set():
                raise exception.Cancelled(f'{self._path} is not moved now')

    def finish(self) -> None:
        """Let QEMU go on with the new overlay. The guest is paused for some 40 ms.

        A guest that a user paused stays paused.

        :raises Cancelled: if ``abort`` was called meanwhile.
        :raises LibvirtHangs: if QEMU does not answer.
        :raises BootcacheError: if it did not come off. All is as before ``begin`` then.
        """
        marker = Marker.load(self._directory)
        if marker is None:
            raise exception.Cancelled(f'{self._path} is not moved now')
        try:
            with self._errors():
                self._pivot(marker)
        except BaseException as error:
            # The same as after a crash of ours; it may turn out that the move came off.
            if self._put_right() is not Overlay.NEW or not isinstance(error, PivotFailed):
                raise
            LOG.warning('%s; it was moved all the same', error)
        LOG.info('%s is on %s now', self._path, self._base)

    def abort(self) -> Overlay | None:
        """Give it up at any point: the server goes on as before. See ``recover``."""
        self._given_up.set()
        return recover(self._directory, self._find_domain())

    def _pivot(self, marker: Marker) -> None:
        disk = self._disk()
        if marker.phase is not PivotPhase.COPYING or disk.job() != 'yes':
            raise PivotFailed(f'{self._path}: it cannot be finished in phase {marker.phase.value},'
                              f' with its block job {disk.job()}')
        # What the guest wrote faster than the rate would be copied while it is paused.
        disk.catch_up()
        suspends = not disk.paused()
        marker = dataclasses.replace(marker, phase=PivotPhase.PIVOTING, suspends=suspends)
        marker.save(self._directory)
        # Until the next record the guest does not write: both overlays are right.
        if suspends:
            disk.suspend()
        try:
            disk.pivot()
        except exception.LibvirtHangs:
            # From now on QEMU may do it, and somebody may let the guest go on: see _new_ran_on.
            with contextlib.suppress(OSError):
                dataclasses.replace(marker, unanswered=True).save(self._directory)
            raise
        pivotstate.exchange(self._directory)
        dataclasses.replace(marker, phase=PivotPhase.PIVOTED).save(self._directory)
        if suspends:
            disk.resume()
        pivotstate.clean_up(self._directory)

    def _check_room(self, coming: int = 0) -> None:
        space = os.statvfs(self._directory)
        least = self._keep_free + _MARGIN_BYTES
        if space.f_bavail * space.f_frsize - coming < least:
            raise PivotRefused(
                f'{self._path}: a copy of its own data would leave less than {least} bytes free;'
                f' free some space on {self._directory}, of which [DEFAULT]reserved_host_disk_mb is'
                ' not taken')

    def _make(self, virtual_bytes: int) -> int:
        """Make the new overlay; return its inode.

        On a full base as Nova's libvirt_utils.create_image does, else as the old one is.
        """
        spare = os.path.join(self._directory, SPARE)
        cluster_bytes, subclusters = 65536, False
        if self._lands:
            old = qemuimg.info(self._path, 'qcow2')
            cluster_bytes = old['cluster-size']
            subclusters = bool(old['format-specific']['data'].get('extended-l2'))
        elif self._base_format == 'qcow2':
            cluster_bytes = qemuimg.info(self._base, 'qcow2')['cluster-size']
        qemuimg.create_overlay(spare, virtual_bytes, self._base, self._base_format,
                               cluster_bytes=cluster_bytes, subclusters=subclusters)
        status = os.stat(self._path)
        os.chmod(spare, status.st_mode & 0o777)
        # libvirt does it where Nova's user may not.
        with contextlib.suppress(PermissionError):
            os.chown(spare, status.st_uid, status.st_gid)
        return os.stat(spare).st_ino

    def _disk(self) -> LiveDisk:
        domain = self._find_domain()
        if domain is None or not domain.isActive():
            raise PivotFailed(f'{self._path}: its domain does not run')
        return LiveDisk(domain, self._target, self._path)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (libvirt.libvirtError, OSError) as error:
            raise PivotFailed(f'{self._path}: {error}') from error

    def _put_right(self) -> Overlay | None:
        try:
            return self.abort()
        except exception.LibvirtHangs:
            # Whoever called is told so.
            return None
        except Exception as error:
            LOG.error('%s: what is half done stays until the server is next looked after: %s',
                      self._path, error)
            return None


def base_format(path: str) -> str:
    """Return a full base's format, as Nova itself finds it out each time (oslo.utils' inspector).

    :raises PivotRefused: if it is neither raw nor qcow2, or unsafe.
    """
    try:
        inspector = threads.run_native(lambda: fileformat.inspect(path))
        fileformat.check_safe(inspector)
    except (exception.ImageRefused, OSError) as error:
        raise PivotRefused(f'base {path} cannot be used: {error}') from error
    found = {'qcow2': 'qcow2', 'raw': 'raw', 'gpt': 'raw'}.get(str(inspector))
    if found is None:
        raise PivotRefused(f'base {path} is {inspector}, and neither raw nor qcow2')
    return found


def is_under_way(directory: str) -> bool:
    """Tell whether a move was begun, or left by a crash."""
    return os.path.exists(os.path.join(directory, MARKER))


def recover(directory: str, domain: Any) -> Overlay | None:
    """Put right what a move left that did not end: by a crash, or as it is given up.

    It may itself be killed at any point and be called again.

    :param directory: the server's.
    :param domain: its libvirt domain; None if it has none.
    :returns: which overlay ``disk`` is now; None if there was nothing to do.
    :raises PivotConflict: if which one is valid cannot be told; an operator has to look.
    :raises PivotFailed: if libvirt does not do what it has to; it can be tried again.
    :raises BlockJobStalls: if the copy does not end for now.
    :raises LibvirtHangs: if QEMU does not answer, or libvirt is still at what it was told before.
    """
    marker = Marker.load(directory)
    if marker is None:
        return None
    try:
        disk = LiveDisk(domain, marker.target, os.path.join(directory, DISK)) \
            if domain is not None and domain.isActive() else None
        valid = rebase.recover_header(directory, marker, running=disk is not None) \
            if marker.phase is PivotPhase.REBASING else _recover(directory, marker, disk)
    except (libvirt.libvirtError, OSError) as error:
        raise PivotFailed(f'{directory}: a half-done move cannot be put right: {error}') from error
    LOG.info('%s: a move in phase %s was put right; %s is the %s overlay', directory,
             marker.phase.value, DISK, valid.value)
    return valid


def _recover(directory: str, marker: Marker, disk: LiveDisk | None) -> Overlay:
    if disk is not None:
        disk.ask_qemu()
        disk.end_job(lambda: _names_of_job(directory, marker))
        if not disk.runs():
            disk = None
    runs_from = Overlay.NONE
    if disk is not None and marker.lands:
        runs_from = _open_one(directory, marker)
    elif disk is not None and (backing := disk.backing()) is not None:
        runs_from = Overlay.NEW if backing == marker.base else Overlay.OLD
    decision = pivotstate.decide_recovery(marker.phase, Found(
        *_names(directory, marker), disk is not None, runs_from, _new_ran_on(directory, marker)))
    if decision.refusal:
        raise PivotConflict(
            f'{directory}: {decision.refusal}. Keep the right one of {DISK} and {SPARE} (see'
            f' qemu-img info -U) as {DISK}; remove the other one and {MARKER}')
    if decision.exchange:
        pivotstate.exchange(directory)
    if decision.record_pivoted:
        # Once the guest goes on, the new overlay is the only right one.
        dataclasses.replace(marker, phase=PivotPhase.PIVOTED).save(directory)
    elif decision.exchange:
        savefile.fsync_directory(directory)
    if disk is not None and marker.suspends:
        disk.resume()
    pivotstate.clean_up(directory)
    return decision.valid


def _open_one(directory: str, marker: Marker) -> Overlay:
    """Tell by its lock from which overlay QEMU runs, which has ended its copy.

    :raises PivotFailed: if that is not the one or the other just now.
    """
    found = [overlay for name, overlay in zip((DISK, SPARE), _names(directory, marker), strict=True)
             if tier.is_open(os.path.join(directory, name))]
    if len(found) != 1:
        raise PivotFailed(f'{directory}: QEMU runs, and has {len(found) or "none"} of {DISK} and'
                          f' {SPARE} open: a hard reboot of the server ends that')
    return found[0]


def _names(directory: str, marker: Marker) -> tuple[Overlay, Overlay]:
    return (pivotstate.which(directory, DISK, marker), pivotstate.which(directory, SPARE, marker))


@contextlib.contextmanager
def _exchanged(directory: str) -> Iterator[None]:
    pivotstate.exchange(directory)
    try:
        yield
    except exception.LibvirtHangs:
        # It opens or closes the copy by this name when QEMU answers.
        raise
    except BaseException:
        pivotstate.exchange(directory)
        raise
    pivotstate.exchange(directory)


def _names_of_job(directory: str, marker: Marker) -> contextlib.AbstractContextManager[None]:
    """Give the copy the job's path: when the job ends, libvirt takes its rights back from that.

    It must not be the overlay which QEMU goes on with.
    """
    if _names(directory, marker) == (Overlay.OLD, Overlay.NEW):
        return _exchanged(directory)
    return contextlib.nullcontext()


def _new_ran_on(directory: str, marker: Marker) -> bool:
    def written(name: str) -> float:
        return os.stat(os.path.join(directory, name)).st_mtime

    names = dict(zip(_names(directory, marker), (DISK, SPARE), strict=True))
    if Overlay.OLD not in names or Overlay.NEW not in names:
        return False
    # While the job lasts, what is written to one is written to the other; and as it ends, what the
    # new one does not have yet. If it may have ended at any later time, that is not told from what
    # a guest wrote that went on since.
    since = max(written(MARKER), written(names[Overlay.OLD]))
    return written(names[Overlay.NEW]) - since > (0 if marker.unanswered else _PIVOT_SECONDS)
