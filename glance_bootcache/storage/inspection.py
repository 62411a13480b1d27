"""Looking at tenants' image files under limits: look.py, in a process of its own, then qemu-img.

bootcache never has QEMU guess a raw image's format. Stock Nova does, and refuses an image of which
QEMU and oslo.utils' inspector think differently; the inspector does not know all that QEMU does.
"""

import dataclasses
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from oslo_concurrency import processutils
from oslo_log import log as logging

from bootcache import confined, exception, limited, qemuimg
from bootcache.limited import Limits
from bootcache.reasons import Reason

LOG = logging.getLogger(__name__)

FORMATS = ('qcow2', 'raw')
# Version of what is accepted here: one more with each change by which a file that was accepted and
# can do harm is refused. What was built by other rules is revoked, and its base looked at again.
RULES = 1
# Of a disk, where no operator says otherwise: [bootcache]max_virtual_size.
MAX_VIRTUAL_BYTES = 16 << 40
# What a look at the tables may take: they are read by Python, some 30 MB of them a second, and a
# hundredth of a usual file are tables. Nothing is written.
_LOOK = 'glance_bootcache.storage.look'
_LOOK_SECONDS = 30
_LOOK_RATE = 256 << 20
_LOOK_MEMORY = 512 << 20
_LOOK_FILES = 64
_LONGEST_ERROR = 300
# What the reading of a base may take: a slow CPU unpacks several times as much in that time. Data
# of more than that many times the file's size is not paid for: a few bytes can stand for a TiB.
_GRACE_SECONDS = 60
_STORED_RATE = 4 << 20
_DATA_RATE = 64 << 20
_MOST_RATIO = 64
_WAITING = 5


@dataclasses.dataclass(frozen=True)
class Inspected:
    """An image file that may be opened.

    :ivar image_format: qcow2 or raw.
    :ivar virtual_bytes: size of the base.
    """

    image_format: str
    virtual_bytes: int


def inspect(path: str, disk_format: str,
            max_virtual_bytes: int = MAX_VIRTUAL_BYTES) -> Inspected:
    """Decide whether an image file may be opened as the format that Glance says it has.

    :param disk_format: the Glance image's.
    :param max_virtual_bytes: that the disk may have.
    :raises ImageRefused: if it is of another format, refers to other files, is encrypted, is
        damaged, or takes more time or memory to look at than a header deserves.
    :raises Interrupted: if the look does not come to its end, for whatever reason: it is to be
        taken again, later each time.
    """
    if disk_format not in FORMATS:
        raise exception.ImageRefused(disk_format, Reason.DISK_FORMAT)
    _look(path, disk_format, max_virtual_bytes)
    try:
        details = qemuimg.info(path, disk_format, confine=True)
    except exception.Interrupted:
        raise
    except exception.BootcacheError as error:
        raise exception.ImageRefused(str(error)) from error
    if details.get('backing-filename') or details.get('full-backing-filename'):
        raise exception.ImageRefused('the image has a backing file', Reason.BACKING_FILE)
    specific = details.get('format-specific', {}).get('data', {})
    if specific.get('data-file'):
        raise exception.ImageRefused('the image has an external data file', Reason.DATA_FILE)
    if details.get('encrypted'):
        raise exception.ImageRefused('the image is encrypted', Reason.ENCRYPTED)
    virtual_bytes = details['virtual-size']
    if virtual_bytes <= 0 or virtual_bytes % 512:
        raise exception.ImageRefused(f'the image has {virtual_bytes} bytes, not whole sectors',
                                     Reason.PARTIAL_SECTOR)
    if virtual_bytes > max_virtual_bytes:
        raise exception.ImageRefused(
            f'the image is a disk of {virtual_bytes} bytes; [bootcache]max_virtual_size is'
            f' {max_virtual_bytes}', Reason.TOO_LARGE)
    return Inspected(disk_format, virtual_bytes)


def _look(path: str, disk_format: str, max_virtual_bytes: int) -> None:
    """Have look.py look at a file: a process under limits, as tenants say what it reads."""
    try:
        allowed = _LOOK_SECONDS + os.stat(path).st_size // _LOOK_RATE
    except OSError as error:
        raise exception.Interrupted(f'the image cannot be read: {error}') from error
    limits = Limits(allowed, _LOOK_MEMORY, _LOOK_FILES, file_bytes=0)
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    started: list[Any] = []
    try:
        out, _err = processutils.execute(
            # -P: not what lies where the service was started.
            *limited.command(limits, sys.executable, '-P', '-B', '-W', 'ignore', '-m', _LOOK,
                             os.path.abspath(path), disk_format, str(max_virtual_bytes),
                             confined.filter_program().hex()),
            cwd='/', timeout=_WAITING * allowed, on_execute=started.append,
            # This tree's, wherever the service was started.
            env_variables={**os.environ, 'PYTHONPATH': root})
        found = json.loads(out)
        reason, detail = Reason(found['reason']), str(found['detail'])
    except subprocess.TimeoutExpired as error:
        for process in started:
            process.kill()
            process.wait()
        raise exception.Interrupted(
            f'the look at the image was not done after {_WAITING * allowed} s') from error
    except processutils.ProcessExecutionError as error:
        if limited.took_too_long(error.exit_code):
            raise exception.ImageRefused(
                f'the image is not safe to open: to look at it takes more than {allowed} s of CPU'
                ' time', Reason.UNSAFE) from error
        # Short of memory, stopped, upgraded meanwhile, a bug of ours: of the image all of that says
        # nothing. One that makes the look crash each time costs little, as the pauses grow.
        last = (error.stderr or '').strip().rpartition('\n')[2]
        LOG.warning('%s: the look at it failed: %s', path, error.stderr)
        raise exception.Interrupted('the look at the image did not come to its end (exit'
                                    f' {error.exit_code}): {last[:_LONGEST_ERROR]}') from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise exception.Interrupted(f'the image could not be looked at: {error}') from error
    if reason is not Reason.NONE:
        raise exception.ImageRefused(detail, reason)


def cpu_seconds(stored_bytes: int, virtual_bytes: int) -> int:
    """Return the CPU time that the reading of a base may take. Pure.

    :param stored_bytes: size of the image file.
    :param virtual_bytes: size of the base.
    """
    data = min(virtual_bytes, _MOST_RATIO * stored_bytes)
    return _GRACE_SECONDS + stored_bytes // _STORED_RATE + data // _DATA_RATE


def read_through(path: str, inspected: Inspected, stored_bytes: int,
                 check: Callable[[], None]) -> None:
    """Read all of a base once, as servers would: none of them is to meet what cannot be read.

    QEMU's NBD server cuts off a client that meets such a place, and a gateway connects and asks
    again, without end. A raw file was read when its hash was computed; reading is all there is.

    :param stored_bytes: size of the image file.
    :param check: called several times a second; what it raises ends the reading.
    :raises ImageRefused: if a part of it cannot be read, or takes more than it may.
    :raises Interrupted: if it is not done in time, or others end it.
    """
    if inspected.image_format != 'raw':
        read_all(path, inspected, stored_bytes, check)


def read_all(path: str, inspected: Inspected, stored_bytes: int,
             check: Callable[[], None]) -> None:
    """Read all of a base, of any format, within the limits of ``read_through``; as that one."""
    began, allowed = time.monotonic(), cpu_seconds(stored_bytes, inspected.virtual_bytes)
    qemuimg.read_all(path, inspected.image_format, inspected.virtual_bytes, cpu_seconds=allowed,
                     # The CPUs, and the disk, have other work, which goes first.
                     seconds=_WAITING * allowed, check=check)
    LOG.info('%s: all of the base was read in %.1f s', path, time.monotonic() - began)


# So many bytes QEMU looks at.
PROBED_BYTES = 512
_BEGINNINGS = (
    (b'QFI\xfb', 'qcow2'), (b'QED\0', 'qed'), (b'KDMV', 'vmdk'), (b'COWD', 'vmdk'),
    (b'conectix', 'vhd'), (b'vhdxfile', 'vhdx'), (b'LUKS\xba\xbe', 'luks'),
    (b'WithoutFreeSpace', 'parallels'), (b'WithouFreSpacExt', 'parallels'),
    (b'Bochs Virtual HD Image', 'bochs'), (b'#!/bin/sh\n#V2.0 Format\nmodprobe cloop', 'cloop'))
_VDI_OFFSET, _VDI = 64, b'\x7f\x10\xda\xbe'
# Comments and blank lines, then the version: the text of a VMDK, which names other files.
_VMDK_TEXT = re.compile(rb'(?:#[^\n]*\n| *\r?\n)*version=[123]\r?\n')


def taken_for(first: bytes) -> str:
    """Return the format, or an empty string for a raw image.

    :param first: the first ``PROBED_BYTES`` of it.
    """
    for begin, name in _BEGINNINGS:
        if first.startswith(begin):
            return name
    if first[_VDI_OFFSET:].startswith(_VDI):
        return 'vdi'
    return 'vmdk' if _VMDK_TEXT.match(first) else ''
