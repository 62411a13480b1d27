"""Looking at tenants' image files: first oslo.utils' inspector, then qemu-img under limits."""

import dataclasses
import struct
import time
from collections.abc import Callable

from oslo_log import log as logging
from oslo_utils.imageutils import format_inspector

from bootcache import exception, qemuimg

LOG = logging.getLogger(__name__)

FORMATS = ('qcow2', 'raw')
# The inspector calls a raw image that has a partition table by the table's name.
_RAW_NAMES = ('raw', 'gpt', 'mbr')
# Of a disk, where no operator says otherwise: [bootcache]max_virtual_size.
MAX_VIRTUAL_BYTES = 16 << 40
# Whoever opens a qcow2 keeps these tables in memory as long as it is open, and a file of some
# kilobytes can ask for 40 MiB. 16 TiB with qcow2's usual clusters of 64 KiB take 0.4 MiB.
_MOST_TABLE_BYTES = 4 << 20
_MOST_SNAPSHOTS = 64
# Of the header of any version: cluster bits, bytes of the disk, encryption, entries of the L1
# table, its offset, the refcount table's offset and clusters, and the number of snapshots.
_HEADER = struct.Struct('>20xIQIIQQII')
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


def _check_header(path: str, max_virtual_bytes: int) -> None:
    """Look how much a qcow2 asks of whoever opens it.

    :raises ImageRefused: if that is too much.
    :raises OSError: if it cannot be read.
    """
    with open(path, 'rb') as stream:
        header = stream.read(_HEADER.size)
    if len(header) < _HEADER.size:
        raise exception.ImageRefused('the image is too short for a qcow2')
    bits, size, _crypt, l1_entries, _l1, _refcounts, clusters, snapshots = _HEADER.unpack(header)
    _check_size(size, max_virtual_bytes)
    # 2 MiB is the largest cluster.
    tables = 8 * l1_entries + (clusters << min(bits, 21))
    if tables > _MOST_TABLE_BYTES or snapshots > _MOST_SNAPSHOTS:
        raise exception.ImageRefused(
            f'the image has tables of {tables} bytes and {snapshots} snapshots, which whoever opens'
            f' it keeps in memory; {_MOST_TABLE_BYTES} bytes and {_MOST_SNAPSHOTS} snapshots are'
            ' served. "qemu-img convert -O qcow2" makes one with small tables')


def _check_size(virtual_bytes: int, max_virtual_bytes: int) -> None:
    if virtual_bytes > max_virtual_bytes:
        raise exception.ImageRefused(
            f'the image is a disk of {virtual_bytes} bytes; [bootcache]max_virtual_size is'
            f' {max_virtual_bytes}')


def inspect(path: str, disk_format: str,
            max_virtual_bytes: int = MAX_VIRTUAL_BYTES) -> Inspected:
    """Decide whether an image file may be opened as the format that Glance says it has.

    :param disk_format: the Glance image's.
    :param max_virtual_bytes: that the disk may have.
    :raises ImageRefused: if it is of another format, refers to other files, is encrypted, is
        damaged, or takes more time or memory to look at than a header deserves.
    """
    if disk_format not in FORMATS:
        raise exception.ImageRefused(f'disk_format {disk_format} is not served; use qcow2 or raw')
    try:
        inspector = format_inspector.detect_file_format(path)
        found = str(inspector)
        if found != disk_format and not (disk_format == 'raw' and found in _RAW_NAMES):
            raise exception.ImageRefused(
                f'the content is {found}, but disk_format says {disk_format}')
        if disk_format == 'qcow2':
            inspector.safety_check()
            _check_header(path, max_virtual_bytes)
    except format_inspector.SafetyCheckFailed as error:
        raise exception.ImageRefused(f'the image is not safe to open: {error}') from error
    except (format_inspector.ImageFormatError, OSError) as error:
        raise exception.ImageRefused(f'the image cannot be read: {error}') from error
    try:
        details = qemuimg.info(path, disk_format)
    except exception.BootcacheError as error:
        raise exception.ImageRefused(str(error)) from error
    if details.get('backing-filename') or details.get('full-backing-filename'):
        raise exception.ImageRefused('the image has a backing file')
    specific = details.get('format-specific', {}).get('data', {})
    if specific.get('data-file'):
        raise exception.ImageRefused('the image has an external data file')
    if details.get('encrypted'):
        raise exception.ImageRefused('the image is encrypted')
    virtual_bytes = details['virtual-size']
    if virtual_bytes <= 0 or virtual_bytes % 512:
        raise exception.ImageRefused(f'the image has {virtual_bytes} bytes, not whole sectors')
    _check_size(virtual_bytes, max_virtual_bytes)
    return Inspected(disk_format, virtual_bytes)


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
    :raises BootcacheError: if it is not done in time.
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
