"""When a boot is over. Pure.

A boot marker ends most boots. Where none was seen, silence is all there is: the guest may be up,
and its console says nothing; or it waits for a disk whose driver it lacks, when its loader has read
all that it reads. Guests wait for their disk for a minute or three, and then say so, or switch
themselves off.
"""

import dataclasses
from collections.abc import Callable

from bootcache import properties

# What ends a boot.
MARKER, SILENCE, QUOTA, TIMEOUT = 'marker', 'silence', 'quota', 'timeout'
# Its server was stopped, moved or deleted, or was paused for long: it was cut short.
SHUTDOWN = 'shutdown'
# It was none: the guest's console says that it does not come up; it read next to nothing.
STUCK, NOTHING = 'stuck', 'nothing'

# What is known by what ended a boot. Only a marker tells that a guest is up.
ENDS = {MARKER: 'has booted, as its marker was seen',
        SILENCE: 'has read nothing new for a while, so that its boot counts as over',
        QUOTA: 'has read as much as a cache image or its growing store may have',
        TIMEOUT: 'is not known to have booted; its boot counts as over',
        STUCK: 'does not come up, as its console says',
        NOTHING: 'has read next to nothing; its boot is given up',
        SHUTDOWN: 'was stopped, moved or deleted before its boot was known to be over, or stood'
                  ' still for long'}

# Nothing new for this long after the marker: the boot's tail has been read.
_QUIET_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class BootLimits:
    """When to end a boot.

    :ivar quota: bytes; more than that would not fit the cache image.
    :ivar linger: seconds after the marker, at most.
    :ivar silence: seconds without a first read that end a boot without a marker.
    :ivar timeout: seconds in all.
    """

    quota: int
    linger: float
    silence: float
    timeout: float


@dataclasses.dataclass(frozen=True)
class BootProgress:
    """How far a boot is.

    :ivar seconds: since its disk was made.
    :ivar recorded_bytes: by which its growing store has grown.
    :ivar idle_seconds: since the store grew last, and its guest was not paused.
    :ivar marker_age: seconds since the marker was seen, or None.
    :ivar stood: whether its guest was paused meanwhile, and waited for its disk.
    """

    seconds: float
    recorded_bytes: int
    idle_seconds: float
    marker_age: float | None
    stood: bool = False


def ended_by(progress: BootProgress, limits: BootLimits) -> str | None:
    """Return what ends the boot now (marker, quota, silence or timeout), or None."""
    if progress.marker_age is not None and progress.recorded_bytes and (
            progress.marker_age >= limits.linger
            or (progress.idle_seconds >= _QUIET_SECONDS and progress.marker_age >= _QUIET_SECONDS)):
        return MARKER
    if progress.recorded_bytes >= limits.quota:
        return QUOTA
    if progress.marker_age is None and progress.recorded_bytes \
            and progress.idle_seconds >= limits.silence:
        return SILENCE
    if progress.seconds >= limits.timeout:
        return TIMEOUT
    return None


def doubt(ended_by: str) -> str:
    """Return why a boot that was recorded may be none, or a part of one, with the cure; empty if
    its marker was seen.

    :param ended_by: what ended it.
    """
    if ended_by == MARKER or ended_by not in ENDS:
        return ''
    return (f'its boot marker was not seen: the guest that was recorded {ENDS[ended_by]}. A'
            f' {properties.BOOT_MARKER} that it prints when it is up makes sure')


# A kernel alone has megabytes. With less, silence is that of a guest which has not got so far.
LEAST_BYTES = 1 << 20
# A guest that may still say its marker, or that there is no disk, is waited for so many times as
# long. Its console may be empty until then, as kernels are told to be quiet. One that has not got
# to its kernel and has said nothing is waited for longer, as its host may have too much to do.
_PATIENCE, _LONGEST_PATIENCE = 3, 5
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


def last_lines(console: str) -> list[str]:
    """Return the first 1,024 characters of each of a console's last 200 lines."""
    return [line[:1024] for line in console.splitlines()[-200:]]


def upset(console: str) -> str:
    """Return the line by which a console says that its guest does not come up; empty if none does.

    To be asked where no marker was seen: a guest that is up may have said such a thing before.

    :param console: the end of it; the last 200 lines count.
    """
    for line in reversed(last_lines(console)):
        if any(sign in line for sign in _SIGNS):
            return ''.join(filter(str.isprintable, line)).strip()[:200]
    return ''


class ServerJudge:
    """Tells when the boot of somebody's server is over.

    :ivar line: empty: see ``ProfileJudge``.

    :param limits: when it ends.
    """

    line = ''

    def __init__(self, limits: BootLimits):
        self.limits = limits

    def ended_by(self, progress: BootProgress, console: Callable[[], str],
                 marks: bool) -> str | None:
        """Return what ends the boot now, or None.

        :param console: gives the end of the guest's console; asked where no marker was seen.
        :param marks: whether the guest's marker is looked for still.
        """
        # At least one byte: a boot that misses nothing ends as well.
        read = max(1, progress.recorded_bytes)
        ended = ended_by(dataclasses.replace(progress, recorded_bytes=read), self.limits)
        if ended == SILENCE and not progress.recorded_bytes and not console():
            # It need not have begun: Nova waits for its network, five minutes by default.
            ended = TIMEOUT if progress.seconds >= self.limits.timeout else None
        # The limit is of the time that a boot takes by itself.
        return SHUTDOWN if ended == TIMEOUT and progress.stood else ended

    def counts_until_marker(self, progress: BootProgress) -> bool:
        """Tell whether what was read after the marker may be what a tenant does with a server.

        Of a boot that had not become quiet nobody knows which of its reads these are.
        """
        return progress.idle_seconds < min(_QUIET_SECONDS, self.limits.linger)


class ProfileJudge:
    """Tells when a profile boot is over, and whether it was one.

    :ivar line: the console's that tells that it is stuck; empty if it is not.

    :param limits: when it ends.
    """

    def __init__(self, limits: BootLimits):
        self.limits = limits
        self.line = ''
        self._silent_at: float | None = None

    def ended_by(self, progress: BootProgress, console: Callable[[], str],
                 marks: bool) -> str | None:
        """Return what ends the boot now, or None: see ``ServerJudge``."""
        ended = ended_by(progress, self.limits)
        if progress.marker_age is None and ended in (SILENCE, TIMEOUT) \
                and (line := upset(console())):
            self.line = line
            return STUCK
        if ended == SILENCE and progress.recorded_bytes < LEAST_BYTES and not console().strip() \
                and progress.idle_seconds >= self.limits.silence * _LONGEST_PATIENCE:
            return NOTHING
        if ended == SILENCE and not self._is_enough(progress, marks):
            ended = TIMEOUT if progress.seconds >= self.limits.timeout else None
        least = LEAST_BYTES if progress.marker_age is None else 1
        return NOTHING if ended == TIMEOUT and progress.recorded_bytes < least else ended

    def counts_until_marker(self, progress: BootProgress) -> bool:
        """Return False: nobody does anything with its server."""
        return False

    def _is_enough(self, progress: BootProgress, may_say_more: bool) -> bool:
        if progress.recorded_bytes < LEAST_BYTES:
            return False
        if self._silent_at is None:
            # What is read from now on does not begin it anew: that is bounded so.
            self._silent_at = progress.seconds
        patience = self.limits.silence * (_PATIENCE - 1) if may_say_more else 0
        return progress.seconds - self._silent_at >= patience


BootJudge = ServerJudge | ProfileJudge
