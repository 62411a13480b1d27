"""Looking at tenants' image files: first oslo.utils' inspector, then qemu-img under limits."""

import dataclasses
import struct

from oslo_utils.imageutils import format_inspector

from bootcache import exception, qemuimg

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
