"""The message bus, opened without waiting for ever.

oslo.messaging makes the queue for answers with a client's first call, and tries that until it has
it, whatever the call's limits say. A service whose bus is away would hang in its first question.
"""

import contextlib
import threading
from collections.abc import Callable

import oslo_messaging as messaging

_CLIENTS_OWN_SECONDS = 1


class BusOpening:
    """Opens the bus for one client, beside whoever waits for it.

    :param first_call: makes a call with a limit in seconds; what comes of it is of no concern.
    """

    def __init__(self, first_call: Callable[[int], object]):
        self._first_call = first_call
        self._opened = threading.Event()
        # Guards the thread; held for its start only.
        self._lock = threading.Lock()
        self._opener: threading.Thread | None = None

    def wait(self, seconds: float) -> None:
        """Wait until calls can be made.

        Where nobody serves, opening alone takes a second.

        :raises MessageDeliveryFailure: if that takes longer; it goes on being tried.
        """
        if self._opened.is_set():
            return
        with self._lock:
            if self._opener is None or not self._opener.is_alive():
                self._opener = threading.Thread(target=self._open, name='bootcache-bus',
                                                daemon=True)
                self._opener.start()
        if not self._opened.wait(seconds):
            raise messaging.MessageDeliveryFailure(
                f'the message bus could not be reached within {seconds:g} s;'
                ' see [bootcache]transport_url')

    def _open(self) -> None:
        # Nobody serves, or somebody refuses, whatever with: the bus is there.
        with contextlib.suppress(Exception):
            self._first_call(_CLIENTS_OWN_SECONDS)
        self._opened.set()
