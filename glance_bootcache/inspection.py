"""Looking at tenants' image files: first oslo.utils' inspector, then qemu-img under limits."""

import dataclasses

from oslo_utils.imageutils import format_inspector

from bootcache import exception, qemuimg

FORMATS = ('qcow2', 'raw')
# The inspector calls a raw image that has a partition table by the table's name.
_RAW_NAMES = ('raw', 'gpt', 'mbr')


@dataclasses.dataclass(frozen=True)
class Inspected:
    """An image file that may be opened.

    :ivar image_format: qcow2 or raw.
    :ivar virtual_bytes: size of the base.
    """

    image_format: str
    virtual_bytes: int


def inspect(path: str, disk_format: str) -> Inspected:
    """Decide whether an image file may be opened as the format that Glance says it has.

    :param disk_format: the Glance image's.
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
    return Inspected(disk_format, virtual_bytes)
