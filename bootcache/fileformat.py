"""What a file is, as Glance and Nova find it out before they open one: oslo.utils' inspector."""

from oslo_utils.imageutils import format_inspector
from oslo_utils.imageutils.format_inspector import FileInspector

from bootcache.exception import ImageRefused
from bootcache.reasons import Reason

# The inspector calls a raw image that has a partition table by the table's name.
RAW_NAMES = ('raw', 'gpt', 'mbr')


def inspect(path: str) -> FileInspector:
    """Return what tells a file's format, by ``str``, and whether it is safe to open.

    All of a raw file may be read.

    :raises ImageRefused: if it is of several formats, cut, or the inspector breaks on its content.
    :raises OSError: if it cannot be read.
    """
    try:
        return format_inspector.detect_file_format(path)
    except (OSError, MemoryError):
        # The machine's doing.
        raise
    except format_inspector.ImageFormatError as error:
        raise ImageRefused(f'the image cannot be read: {error}', Reason.UNREADABLE) from error
    except Exception as error:
        # The file's: as text that is none after 512 bytes, which oslo.utils takes for a VMDK's.
        raise ImageRefused('the image cannot be read: oslo.utils breaks on it'
                           f' ({type(error).__name__}: {error})', Reason.UNREADABLE) from error


def check_safe(inspector: FileInspector) -> None:
    """Refuse what reads other files, or says that it does.

    :param inspector: what ``inspect`` has returned.
    :raises ImageRefused: saying what there is.
    """
    try:
        inspector.safety_check()
    except format_inspector.SafetyCheckFailed as error:
        why = ', '.join(f'{name}: {failure}' for name, failure in error.failures.items())
        raise ImageRefused(f'the image is not safe to open: {why}', Reason.UNSAFE) from error
    except format_inspector.ImageFormatError as error:
        raise ImageRefused(f'the image cannot be read: {error}', Reason.UNREADABLE) from error
