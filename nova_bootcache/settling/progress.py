"""Whether a block copy comes nearer to its end, by what QEMU says of it. Pure."""

from __future__ import annotations

import dataclasses

# A disk or a link that is slow for a while is no reason to copy all anew.
STALLED_SECONDS = 120.0
# What QEMU copies at once, after which it waits for as long as that takes at the rate.
_BURST = 16 << 20
# A guest may write a lot for some minutes, as when it installs something.
OUTRUN_SECONDS = 600.0


@dataclasses.dataclass(frozen=True)
class Progress:
    """What was seen of a copy so far.

    :ivar rate: bytes a second that are copied at most; 0 for no limit.
    :ivar moved: monotonic second since which no byte was copied.
    :ivar nearer: monotonic second since which there were never fewer bytes left.
    :ivar copied: bytes.
    :ivar least_left: bytes that were left to copy when they were fewest; None until one is copied,
        as QEMU does not know before how many there are.
    """

    rate: int
    moved: float
    nearer: float
    copied: int = 0
    least_left: int | None = None

    @classmethod
    def begun(cls, rate: int, now: float) -> Progress:
        """Return that of a copy of which nothing was seen yet."""
        return cls(rate, now, now)

    def seen(self, copied: int, left: int, now: float) -> Progress:
        """Return what is known once somebody has looked.

        :param copied: bytes so far.
        :param left: bytes, of which a guest that writes makes more.
        """
        if copied == self.copied:
            return self
        is_nearer = self.least_left is None or left < self.least_left
        return Progress(self.rate, now, now if is_nearer else self.nearer, copied,
                        left if is_nearer else self.least_left)

    def why_in_vain(self, now: float) -> str:
        """Return why the copy is to be given up, with the cure; empty if it is not."""
        still, longer = now - self.moved, now - self.nearer
        if still >= STALLED_SECONDS + (3 * _BURST / self.rate if self.rate else 0):
            return (f'nothing of its own data was copied for {still:.0f} s. See whether the storage'
                    " node answers, and the disk of Nova's instances")
        if longer >= OUTRUN_SECONDS and self.least_left is not None:
            return (f'its guest has written as fast as it was copied for {longer:.0f} s. Raise'
                    ' [bootcache]settle_bandwidth; while it is stopped it settles at once')
        return ''
