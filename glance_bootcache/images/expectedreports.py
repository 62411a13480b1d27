"""Boots that hosts were asked to report: only their reports are looked at, and each once."""

import dataclasses
import threading
from collections.abc import Callable

# Whoever can write to the message bus can ask for any server on any host.
_MOST_BOOTS = 10_000
_MOST_OF_ONE = 100
_LONGEST_NAME = 255


@dataclasses.dataclass(frozen=True)
class ExpectedBoot:
    """A boot whose report is expected.

    :ivar server_id: the server, as its host named it.
    :ivar began: monotonic seconds.
    :ivar until: monotonic seconds.
    :ivar owner: the server's project; empty if it is not known.
    """

    server_id: str
    began: float
    until: float
    owner: str = ''


class ExpectedReports:
    """What is expected of each host, by image; forgotten with a restart.

    :param clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]):
        self._clock = clock
        self._began = clock()
        self._lock = threading.Lock()  # guards the dictionary
        self._boots: dict[tuple[str, str], list[ExpectedBoot]] = {}

    def expect(self, image_id: str, host: str, server_id: str, seconds: float,
               owner: str = '') -> None:
        """Expect a report for some seconds; where too many are expected, the oldest are not."""
        now, key = self._clock(), (image_id, host[:_LONGEST_NAME])
        with self._lock:
            # Of many no report ever comes: servers go the stock way, or hosts are lost.
            self._boots = {key: later for key, boots in self._boots.items()
                           if (later := [boot for boot in boots if boot.until > now])}
            self._boots[key] = [*self._boots.pop(key, []), ExpectedBoot(
                server_id[:_LONGEST_NAME], now, now + seconds,
                owner[:_LONGEST_NAME])][-_MOST_OF_ONE:]
            while sum(map(len, self._boots.values())) > _MOST_BOOTS:
                del self._boots[next(iter(self._boots))]

    def take(self, image_id: str, host: str, server_id: str = '') -> ExpectedBoot | None:
        """Return the boot that a host was asked to report; each counts once.

        :param server_id: the server that booted; empty if the host does not say: then it is
            taken for the one that was asked for first.
        """
        now, key = self._clock(), (image_id, host[:_LONGEST_NAME])
        with self._lock:
            later = [boot for boot in self._boots.pop(key, []) if boot.until > now]
            found = next((boot for boot in later
                          if server_id[:_LONGEST_NAME] in ('', boot.server_id)), None)
            if found is not None:
                later.remove(found)
            if later:
                self._boots[key] = later
        return found

    def put_back(self, image_id: str, host: str, boot: ExpectedBoot) -> None:
        """Expect a report again that could not be written: its host sends it again."""
        key = (image_id, host[:_LONGEST_NAME])
        with self._lock:
            self._boots[key] = [boot, *self._boots.get(key, [])][:_MOST_OF_ONE]

    def may_be_forgotten(self, seconds: float) -> bool:
        """Tell whether what comes now may have been asked for before a restart.

        :param seconds: for which a report is expected.
        """
        return self._clock() < self._began + seconds

    def hosts(self, image_id: str) -> set[str]:
        """Return the hosts of which a report about an image is expected."""
        now = self._clock()
        with self._lock:
            return {host for (image, host), boots in self._boots.items()
                    if image == image_id and any(boot.until > now for boot in boots)}
