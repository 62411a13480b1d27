"""Guests that do not come up: told from such as only do not say that they are up. Pure.

A boot marker ends most profile boots. Where none was seen, silence is all there is: the guest may
be up, and its console says nothing; or it waits for a disk whose driver it lacks, when its loader
has read all that it reads. Guests wait for their disk for a minute or three, and then say so, or
switch themselves off.
"""

from collections.abc import Callable

from bootcache import ending, exception, properties
from glance_bootcache.decisions import READ_NOTHING, STUCK

# A kernel alone has megabytes. With less, silence is that of a guest which has not got so far.
LEAST_BYTES = 1 << 20
# A guest that may still say its marker, or that there is no disk, is waited for so many times as
# long. Its console may be empty until then, as kernels are told to be quiet.
_PATIENCE = 3
_MOST_LINES = 200
_LINE_CHARACTERS = 1024
# What a console says of a guest that does not get on by itself. Each is looked for in a line's text
# as it is; they are the words of: Linux; initramfs-tools; dracut and systemd; mkinitcpio; Alpine;
# FreeBSD; GRUB; SeaBIOS; OVMF.
_SIGNS = (
    'Kernel panic - not syncing',
    'VFS: Unable to mount root fs', 'VFS: Cannot open root device',
    'Gave up waiting for root', 'Dropping to a shell!',
    'Entering emergency mode', 'You are in emergency mode', 'Give root password for maintenance',
    'You are now being dropped into an emergency shell',
    'initramfs emergency recovery shell launched',
    'mountroot>',
    'grub rescue>',
    'No bootable device', 'Boot failed: not a bootable disk',
    'No bootable option or device was found',
)


def upset(console: str) -> str:
    """Return the line by which a console says that its guest does not come up; empty if none does.

    To be asked where no marker was seen: a guest that is up may have said such a thing before.

    :param console: the end of it; the last 200 lines count.
    """
    for line in reversed(console.splitlines()[-_MOST_LINES:]):
        line = line[:_LINE_CHARACTERS]
        if any(sign in line for sign in _SIGNS):
            return ''.join(filter(str.isprintable, line)).strip()[:200]
    return ''


class Judge:
    """Tells when a profile boot is over, and whether it was one.

    :param limits: when it ends.
    """

    def __init__(self, limits: ending.BootLimits):
        self._limits = limits
        self._silent_at: float | None = None

    def ended_by(self, progress: ending.BootProgress, console: Callable[[], str],
                 marks: bool) -> str | None:
        """Return what ends the boot now, as ``ending.ended_by`` does, or None.

        :param console: gives the end of the guest's console; asked where no marker was seen.
        :param marks: whether the guest's marker is looked for still.
        :raises ProfileBootFailed: if the guest does not come up; with the cure.
        """
        ended_by = ending.ended_by(progress, self._limits)
        if progress.marker_age is None and ended_by in ('silence', 'timeout') \
                and (line := upset(console())):
            raise exception.ProfileBootFailed(
                f'{STUCK}: its console says {line!r}, and what it read is not a boot; it may lack'
                ' the driver of its disk (hw_disk_bus). If it is up all the same, give it a'
                f' {properties.BOOT_MARKER} that it prints then')
        if ended_by == 'silence' and not self._is_enough(progress, marks):
            ended_by = 'timeout' if progress.seconds >= self._limits.timeout else None
        least = LEAST_BYTES if progress.marker_age is None else 1
        if ended_by == 'timeout' and progress.recorded_bytes < least:
            raise exception.ProfileBootFailed(
                f'{READ_NOTHING} from its disk but {progress.recorded_bytes} bytes in'
                f' {self._limits.timeout:.0f} s')
        return ended_by

    def seconds_left(self, progress: ending.BootProgress) -> float:
        """Return the seconds until silence, or the time limit, may end a boot at the earliest."""
        silence = self._limits.silence
        enough = progress.seconds + silence - progress.idle_seconds if self._silent_at is None \
            else self._silent_at + silence * (_PATIENCE - 1)
        return min(enough, self._limits.timeout) - progress.seconds

    def _is_enough(self, progress: ending.BootProgress, may_say_more: bool) -> bool:
        if progress.recorded_bytes < LEAST_BYTES:
            return False
        if self._silent_at is None:
            # What is read from now on does not begin it anew: that is bounded so.
            self._silent_at = progress.seconds
        patience = self._limits.silence * (_PATIENCE - 1) if may_say_more else 0
        return progress.seconds - self._silent_at >= patience
