"""Profile boots that were none: what their images' owners and operators are told. Pure."""

from bootcache import ending, exception, properties
from bootcache.reasons import Reason

_LONGEST_LINE = 200


def check(ended_by: str, line: str, recorded_bytes: int) -> None:
    """Check that what ended a profile boot was a boot's end.

    :param ended_by: as of bootcache/ending.py.
    :param line: of the guest's console, where that tells that it does not come up.
    :param recorded_bytes: that it had read.
    :raises ProfileBootFailed: if the guest does not come up; with the cure.
    """
    if ended_by == ending.STUCK:
        raise exception.ProfileBootFailed(
            f'the guest does not come up: its console says {_said(line)}, and what it read is not a'
            ' boot; it may lack the driver of its disk (hw_disk_bus). If it is up all the same,'
            f' give it a {properties.BOOT_MARKER} that it prints then', Reason.STUCK)
    if ended_by == ending.NOTHING:
        raise exception.ProfileBootFailed(
            f'the profile boot read nothing from its disk but {recorded_bytes} bytes, and was given'
            ' up; it may have no boot loader for the firmware of its server (hw_firmware_type)',
            Reason.READ_NOTHING)


def switched_off(line: str) -> exception.ProfileBootFailed:
    """Return the error of a guest that ended before its marker was seen.

    :param line: of its console, where that tells that it does not come up; else empty.
    """
    return exception.ProfileBootFailed(
        'the guest switched itself off before its boot marker was seen'
        + (f', and its console says {_said(line)}' if line else '')
        + ': what it read is not a boot; it may lack the driver of its disk (hw_disk_bus), or need'
        f' a {properties.BOOT_MARKER} that it prints before it ends', Reason.SWITCHED_OFF)


def _said(line: str) -> str:
    return repr(''.join(filter(str.isprintable, line))[:_LONGEST_LINE])
