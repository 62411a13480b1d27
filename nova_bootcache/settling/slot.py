"""A host's leave to get a full base from the storage node, so that few do at the same time."""

import time
from collections.abc import Callable

from nova_bootcache.asking.client import HostsClient

# The storage service takes it back from a host from which it hears nothing for a minute.
_TELL_SECONDS = 15.0


class StorageSlot:
    """Taken before bytes come from the storage node, and given back when they have come.

    :param storage: the storage service.
    :param clock: monotonic seconds.
    """

    def __init__(self, storage: HostsClient, clock: Callable[[], float] = time.monotonic):
        self._storage = storage
        self._clock = clock
        # When it was told last that it is used; None where there is none.
        self._told: float | None = None

    def take(self) -> None:
        """Take it, if this host has none.

        :raises NoSlot: if others have all of them.
        :raises MessagingException: if the storage service does not answer.
        """
        if self._told is None:
            self._storage.take_slot()
            self.was_given()

    def was_given(self) -> None:
        """Note that the storage service has given it with another answer."""
        self._told = self._clock()

    def keep(self) -> None:
        """Tell now and then that it is used; cheap."""
        if self._told is not None and self._clock() - self._told >= _TELL_SECONDS:
            self._told = self._clock()
            self._storage.hold_slot(True)

    def give_back(self) -> None:
        """Let another host have it, if this one has it."""
        if self._told is not None:
            self._told = None
            self._storage.hold_slot(False)
