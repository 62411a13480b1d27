"""Bases that are being downloaded, and when they will be here: so that no server waits in vain."""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Collection, Iterator

# Less says little of a download's rate.
_LEAST_SECONDS = 2.0


@dataclasses.dataclass
class Transfer:
    """One download.

    :ivar total: bytes in all.
    :ivar began: monotonic seconds.
    :ivar done: bytes that have come.
    """

    total: int
    began: float
    done: int = 0


def seconds_left(transfer: Transfer, now: float, usual_rate: float | None) -> float | None:
    """Return the seconds that a download still takes, at its own rate; None if nobody knows. Pure.

    :param now: monotonic seconds.
    :param usual_rate: bytes a second of the last download, for one that has only begun.
    """
    elapsed = now - transfer.began
    rate = transfer.done / elapsed if elapsed >= _LEAST_SECONDS else usual_rate
    if not rate:
        return None
    return max(0.0, (transfer.total - transfer.done) / rate)


def seconds_to_turn(left: Collection[float | None], slots: int) -> float | None:
    """Return the seconds until one of the downloads under way is over, if all slots are taken.

    Pure. None if a slot is free, or nobody knows.

    :param left: seconds that each of them still takes.
    :param slots: how many may be under way.
    """
    known = [seconds for seconds in left if seconds is not None]
    return min(known) if known and len(known) == len(left) >= slots else None


class Transfers:
    """The downloads of this storage service."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards all below; held for dictionary steps
        self._transfers: dict[str, Transfer] = {}
        self._usual_rate: float | None = None

    @contextlib.contextmanager
    def of(self, image_id: str, total: int) -> Iterator[Callable[[int], None]]:
        """Note a download from its begin to its end; gives what is to be told of each piece."""
        transfer = Transfer(total, time.monotonic())
        with self._lock:
            self._transfers[image_id] = transfer

        def arrived(count: int) -> None:
            # By one thread only.
            transfer.done += count

        try:
            yield arrived
        finally:
            elapsed = time.monotonic() - transfer.began
            with self._lock:
                del self._transfers[image_id]
                if transfer.done and elapsed >= _LEAST_SECONDS:
                    self._usual_rate = transfer.done / elapsed

    def seconds_left(self, image_id: str, slots: int) -> float | None:
        """Return the seconds until an image is here, at least; None if nobody knows.

        :param slots: how many downloads may be under way; others wait for their turn.
        """
        now = time.monotonic()
        with self._lock:
            left = {key: seconds_left(transfer, now, self._usual_rate)
                    for key, transfer in self._transfers.items()}
        if image_id in left:
            return left.pop(image_id)
        return seconds_to_turn(left.values(), slots)
