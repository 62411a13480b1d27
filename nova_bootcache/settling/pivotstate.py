"""What a half-done move of a server's root disk leaves on disk, and what has to be done about it.

A server's directory then holds two overlays of the same content: the old one on the cache image
and the new one on the full base. ``disk`` is the valid one but for moments; the marker, written
before, says which phase it is and which inode is which, so that a crash at any moment is put right.
"""

import ctypes
import dataclasses
import enum
import errno
import json
import os
from typing import Any

from bootcache import exception, savefile

DISK = 'disk'
SPARE = 'disk.settle'
MARKER = 'disk.settle.json'
VERSION = 2
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


class PivotRefused(exception.BootcacheError):
    """The server is in no state to be moved; nothing was changed, and it can be tried later."""


class PivotFailed(exception.BootcacheError):
    """The move did not come off; the server runs on as before, and it can be tried later."""


class PivotConflict(exception.BootcacheError):
    """Which overlay is the valid one cannot be told; nothing was changed, an operator has to."""


class PivotPhase(enum.Enum):
    """How far it is."""

    COPYING = 'copying'    # the old overlay is valid
    PIVOTING = 'pivoting'  # the same; the guest is paused, or QEMU has not got the order yet
    PIVOTED = 'pivoted'    # the new overlay is valid, and durable
    REBASING = 'rebasing'  # a stopped server: one overlay, whose header is being rewritten


class Overlay(enum.Enum):
    """Which overlay has a name, or is run from."""

    OLD = 'old'
    NEW = 'new'
    OTHER = 'other'  # none of the two
    NONE = 'none'    # there is no such file; QEMU does not run, or does not tell


@dataclasses.dataclass(frozen=True)
class Marker:
    """The note beside the overlays.

    :ivar phase: how far it is.
    :ivar target: the disk's name in the guest, such as ``vda``.
    :ivar base: path of the full base.
    :ivar base_format: raw or qcow2.
    :ivar old_inode: of the overlay on the cache image.
    :ivar new_inode: of the overlay on the full base; None before it is made.
    :ivar suspends: whether the guest is, or will be, suspended by us.
    :ivar old_backing: path and format of what the old overlay is on.
    :ivar unanswered: for PIVOTING: QEMU was told, and did not answer in time; it may do it later.
    :ivar lands: both overlays are on one path, of which the old one has an earlier file.
    :ivar header: for REBASING: the old header cluster, in hexadecimal digits, without the zeros at
        its end.
    """

    phase: PivotPhase
    target: str
    base: str
    base_format: str
    old_inode: int
    new_inode: int | None = None
    suspends: bool = False
    old_backing: tuple[str, str] = ('', '')
    header: str = ''
    unanswered: bool = False
    lands: bool = False

    @classmethod
    def load(cls, directory: str) -> 'Marker | None':
        """Read a server's marker; None if there is none.

        :raises PivotConflict: if it cannot be read or is of another version.
        """
        path = os.path.join(directory, MARKER)
        try:
            with open(path) as stream:
                document: dict[str, Any] = json.load(stream)
            if document.pop('version') != VERSION:
                raise PivotConflict(f'{path} is of another version than {VERSION}; use the'
                                    ' bootcache that wrote it')
            return cls(**{**document, 'phase': PivotPhase(document['phase']),
                          'old_backing': tuple(document['old_backing'])})
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise PivotConflict(f'{path} cannot be read: {error}') from error

    def save(self, directory: str) -> None:
        """Replace the marker, durably; all changes of names before it are durable then, too.

        :raises OSError: if it cannot be written.
        """
        savefile.write_json(os.path.join(directory, MARKER), {
            'version': VERSION, **dataclasses.asdict(self), 'phase': self.phase.value})


@dataclasses.dataclass(frozen=True)
class Found:
    """What is there after a crash, once no block job is left.

    :ivar disk: which overlay is called ``disk``.
    :ivar spare: which overlay is called ``disk.settle``.
    :ivar running: whether QEMU runs.
    :ivar runs_from: which overlay QEMU runs from; NONE if it does not run or does not tell.
    :ivar new_ran_on: whether the new overlay was written to when the guest was paused, and the
        old one was not.
    """

    disk: Overlay
    spare: Overlay
    running: bool = False
    runs_from: Overlay = Overlay.NONE
    new_ran_on: bool = False


@dataclasses.dataclass(frozen=True)
class Recovery:
    """What to do.

    :ivar valid: the overlay that has to be called ``disk``; the other one goes.
    :ivar exchange: whether the names are to be exchanged for that.
    :ivar record_pivoted: whether the marker has to say so before the guest goes on.
    :ivar refusal: why nothing can be done; empty if something can.
    """

    valid: Overlay = Overlay.NONE
    exchange: bool = False
    record_pivoted: bool = False
    refusal: str = ''


def _valid(phase: PivotPhase, found: Found) -> tuple[Overlay, str]:
    if phase is PivotPhase.COPYING:
        if found.runs_from is Overlay.NEW:
            return Overlay.NONE, 'QEMU runs from the new overlay before that was complete'
        return Overlay.OLD, ''
    if phase is PivotPhase.PIVOTED:
        if found.runs_from is Overlay.OLD:
            return Overlay.NONE, 'QEMU runs from the old overlay after the new one took its place'
        return Overlay.NEW, ''
    # PIVOTING: QEMU knows whether it has pivoted. If it is gone, the guest was paused, and the
    # old overlay has all that it had written; the new one may not.
    if found.running:
        if found.runs_from is Overlay.NONE:
            return Overlay.NONE, 'libvirt does not tell which overlay QEMU runs from'
        return found.runs_from, ''
    if found.new_ran_on:
        return Overlay.NONE, ('somebody may have resumed the guest before the move was recorded, as'
                              ' the new overlay was written to since')
    return Overlay.OLD, ''


def decide_recovery(phase: PivotPhase, found: Found) -> Recovery:
    """Return what to do about a half-done pivot. Pure.

    :param phase: as the marker has it; not REBASING.
    """
    if found.spare is Overlay.NONE and found.disk is Overlay.OTHER:
        # Such as a directory that was restored from a backup: there is nothing to choose from.
        return Recovery(Overlay.OTHER)
    valid, refusal = _valid(phase, found)
    if refusal:
        return Recovery(refusal=refusal)
    record = found.running and phase is PivotPhase.PIVOTING and valid is Overlay.NEW
    if found.disk is valid:
        return Recovery(valid, record_pivoted=record)
    if found.spare is valid and found.disk is not Overlay.NONE:
        return Recovery(valid, exchange=True, record_pivoted=record)
    return Recovery(refusal=f'the {valid.value} overlay is valid, but neither {DISK} nor {SPARE}')


def which(directory: str, name: str, marker: Marker) -> Overlay:
    """Tell by its inode which overlay has a name."""
    try:
        inode = os.stat(os.path.join(directory, name)).st_ino
    except FileNotFoundError:
        return Overlay.NONE
    return {marker.old_inode: Overlay.OLD, marker.new_inode: Overlay.NEW}.get(inode, Overlay.OTHER)


def exchange(directory: str) -> None:
    """Exchange the names of the two overlays, in one step (Linux renameat2).

    :raises PivotRefused: if the file system cannot do that, as NFS cannot.
    :raises OSError: if it fails otherwise; nothing is changed then.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    one, two = (os.fsencode(os.path.join(directory, name)) for name in (DISK, SPARE))
    if libc.renameat2(_AT_FDCWD, one, _AT_FDCWD, two, _RENAME_EXCHANGE) == 0:
        return
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS):
        raise PivotRefused(f'the file system of {directory} cannot exchange two names; servers on'
                           ' it settle only while they are stopped')
    raise OSError(code, os.strerror(code), os.path.join(directory, SPARE))


def clean_up(directory: str) -> None:
    """Remove the overlay that is not valid, then the marker.

    :raises OSError: if it cannot be.
    """
    for name in (SPARE, MARKER):
        try:
            os.unlink(os.path.join(directory, name))
        except FileNotFoundError:
            continue
        savefile.fsync_directory(directory)
