"""When settling has a reason to ask Nova for this host's servers: its conductor has others, too.

The disks on the host tell: as long as none stands on a cache image that did not at the last look,
and nothing waits, there is nothing to be found.
"""

from collections.abc import Callable, Iterable

# So often Nova is asked in any case: what is known of it here is derived.
LONGEST_SECONDS = 600


def is_due(now: float, last: float | None, has_changed: bool, waits: bool) -> bool:
    """Tell whether Nova is to be asked. Pure.

    :param now: monotonic seconds.
    :param last: when it was asked last; None if it never was.
    :param has_changed: other disks stand on cache images than then.
    :param waits: something can be done now, or could not be done then.
    """
    return last is None or has_changed or waits or now - last >= LONGEST_SECONDS


class Occasions:
    """Knows which disks stood on cache images at the last look.

    :param directories: gives those of all servers that have one on this host.
    :param is_chained: tells whether the disk of a directory stands on a cache image.
    """

    def __init__(self, directories: Callable[[], Iterable[str]],
                 is_chained: Callable[[str], bool]):
        self._directories = directories
        self._is_chained = is_chained
        self._last: float | None = None
        self._disks: frozenset[str] = frozenset()

    def look(self, now: float, waits: bool, work: Callable[[], None]) -> None:
        """Do the work if there is a reason; what changes meanwhile is another one.

        :param now: monotonic seconds.
        :param waits: as for :func:`is_due`.
        :param work: asks Nova, and does what can be done.
        :raises Exception: the work's; it is due again then.
        """
        disks = frozenset(filter(self._is_chained, self._directories()))
        if is_due(now, self._last, disks != self._disks, waits):
            self._last = None
            work()
            self._last, self._disks = now, disks
