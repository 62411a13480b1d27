"""When a profile boot is over. Pure."""

import dataclasses

# Nothing new for this long after the marker: the boot's tail has been read.
_QUIET_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class BootLimits:
    """When to end a profile boot.

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
    """How far a profile boot is.

    :ivar seconds: since its server was asked for.
    :ivar recorded_bytes: size of the growing store; 0 if the recording has not begun.
    :ivar idle_seconds: since the store grew last.
    :ivar marker_age: seconds since the marker was seen, or None.
    """

    seconds: float
    recorded_bytes: int
    idle_seconds: float
    marker_age: float | None


def was_quiet(progress: BootProgress, limits: BootLimits) -> bool:
    """Tell whether a boot that a marker ended had become quiet by then.

    If not, nobody knows which of the reads after the marker were the boot's, and which are what a
    tenant does with a server that is up.
    """
    return progress.idle_seconds >= min(_QUIET_SECONDS, limits.linger)


def ended_by(progress: BootProgress, limits: BootLimits) -> str | None:
    """Return what ends the boot now (marker, quota, silence or timeout), or None."""
    if progress.marker_age is not None and progress.recorded_bytes and (
            progress.marker_age >= limits.linger
            or (progress.idle_seconds >= _QUIET_SECONDS and progress.marker_age >= _QUIET_SECONDS)):
        return 'marker'
    if progress.recorded_bytes >= limits.quota:
        return 'quota'
    if progress.marker_age is None and progress.recorded_bytes \
            and progress.idle_seconds >= limits.silence:
        return 'silence'
    if progress.seconds >= limits.timeout:
        return 'timeout'
    return None
