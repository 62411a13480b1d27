"""One disk of a domain that runs, and the block copy of it, as libvirt tells and does."""

import contextlib
import dataclasses
import time
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree
from xml.sax import saxutils

import libvirt

from bootcache import exception
from nova_bootcache import libvirtcalls
from nova_bootcache.cache.cachefiles import is_same_name
from nova_bootcache.settling.pivotstate import PivotFailed, PivotRefused

POLL_SECONDS = 0.2
_PATIENCE_SECONDS = 30.0
# With a job that somebody was patient with before.
_ENDING_SECONDS = 5.0
_ENDING_POLL_SECONDS = 0.02
# What may be left to copy when the guest is paused: a fraction of a second's worth.
_MOST_BACKLOG = 32 << 20
_BACKLOG_SECONDS = 10


@dataclasses.dataclass(frozen=True)
class OpenFiles:
    """Bytes on the medium of files that a QEMU has open, whatever has their names by now.

    :ivar own: of its overlay.
    :ivar backing: of what that is on.
    """

    own: int
    backing: int


class LiveDisk:
    """A disk.

    libvirt's own errors pass through all methods, and those of a domain whose calls are bounded.

    :param domain: that runs.
    :param target: the disk's name in the guest, such as ``vda``.
    :param path: that the domain's definition has for it.
    """

    def __init__(self, domain: Any, target: str, path: str):
        self.domain = domain
        self._target = target
        self._path = path

    def _element(self) -> ElementTree.Element:
        root = ElementTree.fromstring(self.domain.XMLDesc(0))
        for disk in root.iterfind('./devices/disk'):
            if disk.find(f"./target[@dev='{self._target}']") is not None:
                return disk
        raise PivotRefused(f'{self._path}: its domain has no disk {self._target}')

    def runs(self) -> bool:
        """Tell whether QEMU still runs."""
        return bool(self.domain.isActive())

    def ask_qemu(self) -> tuple[int, int]:
        """Return how many bytes of a copy are copied, and left; of none that is zeros.

        QEMU answers that: a copy looks as if it went on if it hangs.

        :raises LibvirtHangs: if it does not.
        """
        found = self.domain.blockJobInfo(self._target, 0) or {}
        copied = int(found.get('cur', 0))
        return copied, int(found.get('end', 0)) - copied

    def virtual_bytes(self) -> int:
        """Return the size that the guest sees."""
        return int(self.domain.blockInfo(self._target)[0])

    def backing(self) -> str | None:
        """Return the path of what the overlay is on, None if libvirt does not tell."""
        source = self._element().find('./backingStore/source')
        return None if source is None else source.get('file')

    def open_files(self, backing: str) -> OpenFiles:
        """Return what QEMU has open of the overlay, and of what it is on.

        :param backing: path of that.
        :raises PivotRefused: if libvirt does not tell.
        """
        figures = libvirtcalls.chain_figures(self.domain)
        # From above, all with the name of the disk.
        chain = [f'block.{number}' for number in range(int(figures.get('block.count', 0)))
                 if figures.get(f'block.{number}.name') == self._target]
        try:
            own, below = chain[:2]
            if figures[f'{own}.path'] == self._path \
                    and is_same_name(figures[f'{below}.path'], backing):
                return OpenFiles(int(figures[f'{own}.physical']),
                                 int(figures[f'{below}.physical']))
        except (KeyError, ValueError):
            # It leaves out what QEMU does not answer.
            pass
        raise PivotRefused(f'{self._path}: libvirt does not tell what its QEMU has open of it')

    def job(self) -> str | None:
        """Return how far a copy to the disk's own path is, None if there is none.

        ``copying``; ``yes`` once both are equal; ``pivot`` and ``abort`` while it ends.
        """
        # Nova's own is_job_complete looks here, too: blockJobInfo says "done" before it is.
        mirror = self._element().find('./mirror')
        source = None if mirror is None else mirror.find('./source')
        if mirror is None or source is None or source.get('file') != self._path:
            return None
        return mirror.get('ready', 'copying')

    def paused(self) -> bool:
        """Tell whether the guest is paused because somebody wanted it to.

        :raises PivotRefused: if it neither runs nor does that.
        """
        state, reason = self.domain.state(0)
        if state == libvirt.VIR_DOMAIN_PAUSED and reason == libvirt.VIR_DOMAIN_PAUSED_USER:
            return True
        if state != libvirt.VIR_DOMAIN_RUNNING:
            raise PivotRefused(f'{self._path}: its domain is in state {state}, reason {reason}: it'
                               ' neither runs nor was paused by a user')
        return False

    def check(self, cache_image: str) -> None:
        """Refuse a server that cannot be moved now.

        :param cache_image: path of what the disk has to be on.
        :raises PivotRefused: with the reason.
        """
        self.paused()
        if self.domain.hasManagedSaveImage(0):
            raise PivotRefused(f'{self._path}: its domain has a saved memory image')
        if self.domain.jobInfo()[0] != libvirt.VIR_DOMAIN_JOB_NONE:
            raise PivotRefused(f'{self._path}: libvirt is busy with its domain')
        disk = self._element()
        if self.domain.blockJobInfo(self._target, 0) or disk.find('./mirror') is not None:
            raise PivotRefused(f'{self._path}: another block job runs')
        source, driver = disk.find('./source'), disk.find('./driver')
        if source is None or source.get('file') != self._path \
                or driver is None or driver.get('type') != 'qcow2':
            raise PivotRefused(f'{self._path} is not what its domain has as {self._target}')
        if not is_same_name(self.backing() or '', cache_image):
            raise PivotRefused(f'{self._path} is on {self.backing()}, not on the cache image'
                               f' {cache_image}')

    def copy(self, rate: int) -> None:
        """Start to copy the overlay into the file that has the disk's path now.

        :param rate: bytes a second; 0 for no limit.
        """
        xml = (f"<disk type='file'><driver type='qcow2'/>"
               f"<source file={saxutils.quoteattr(self._path)}/></disk>")
        # Transient: a job of a domain that is defined needs it.
        flags = (libvirt.VIR_DOMAIN_BLOCK_COPY_SHALLOW | libvirt.VIR_DOMAIN_BLOCK_COPY_REUSE_EXT
                 | libvirt.VIR_DOMAIN_BLOCK_COPY_TRANSIENT_JOB)
        parameters = {libvirt.VIR_DOMAIN_BLOCK_COPY_BANDWIDTH: rate} if rate else {}
        self.domain.blockCopy(self._target, xml, parameters, flags)

    def catch_up(self) -> None:
        """Lift the rate and wait until little is left to copy; the guest goes on.

        :raises PivotFailed: if the guest writes faster than that.
        """
        self.domain.blockJobSetSpeed(self._target, 0, 0)
        deadline = time.monotonic() + _BACKLOG_SECONDS
        while self.ask_qemu()[1] > _MOST_BACKLOG:
            if time.monotonic() > deadline:
                raise PivotFailed(f'{self._path}: the guest writes faster than the copy follows; it'
                                  ' can be tried again when it writes less')
            time.sleep(POLL_SECONDS)

    def pivot(self) -> None:
        """Let QEMU go on with the copy, which is complete and on the medium then."""
        self.domain.blockJobAbort(self._target, libvirt.VIR_DOMAIN_BLOCK_JOB_ABORT_PIVOT)

    def end_job(self, names: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
        """End the copy, if there is one, without a pivot.

        QEMU ends it when all is answered that it has under way. libvirt is not told to wait for
        that: nobody else could do anything with the domain meanwhile.

        :param names: what it gives is entered while libvirt closes the copy.
        :raises BlockJobStalls: if it does not end for now. It ends at any later time.
        :raises PivotFailed: if it ends in another way, and does not for now.
        """
        state = self.job()
        deadline = time.monotonic() + (_ENDING_SECONDS if state == 'abort' else _PATIENCE_SECONDS)
        while self.runs() and (state := self.job()) is not None:
            if state == 'abort':
                self._wait_for_abort(deadline)
            elif time.monotonic() > deadline:
                raise PivotFailed(f'{self._path}: its block job does not end; see QEMU\'s log')
            elif state == 'pivot':
                time.sleep(POLL_SECONDS)
            else:
                with names():
                    # It may end by itself just now, or QEMU may; the next round tells.
                    with contextlib.suppress(libvirt.libvirtError):
                        self.domain.blockJobAbort(self._target,
                                                  libvirt.VIR_DOMAIN_BLOCK_JOB_ABORT_ASYNC)
                    self._wait_for_abort(deadline)

    def _wait_for_abort(self, deadline: float) -> None:
        while self.runs() and self.job() == 'abort':
            if time.monotonic() > deadline:
                raise exception.BlockJobStalls(
                    f'{self._path}: its block job does not end, as something that it reads or'
                    ' writes is not answered')
            time.sleep(_ENDING_POLL_SECONDS)

    def suspend(self) -> None:
        """Pause the guest, until ``resume``.

        :raises PivotRefused: if it has just been paused by an error. libvirt leaves it so,
            and whoever sees to such guests lets it go on at any moment.
        """
        self.domain.suspend()
        state, reason = self.domain.state(0)
        # Of one whose QEMU has ended the next step tells.
        if state == libvirt.VIR_DOMAIN_PAUSED and reason != libvirt.VIR_DOMAIN_PAUSED_USER:
            raise PivotRefused(f'{self._path}: its guest has just been paused, for reason'
                               f' {reason}')

    def resume(self) -> None:
        """Let the guest go on, if it is paused."""
        if self.domain.state(0)[0] == libvirt.VIR_DOMAIN_PAUSED:
            self.domain.resume()
