"""The message bus, without waiting for ever.

oslo.messaging makes the queue for answers with a client's first call, and tries that until it has
it, whatever the call's limits say. A service whose bus is away would hang in its first question.
With a bus that hangs, as a machine that is frozen, a call takes a multiple of its limit.
"""

import concurrent.futures
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

import oslo_messaging as messaging
from oslo_config import cfg

from bootcache import conf as bootcache_conf
from bootcache.util.threads import daemon_thread

Answer = TypeVar('Answer')

_CLIENTS_OWN_SECONDS = 1
# oslo.messaging lets errors of the libraries through by which it reaches RabbitMQ.
_TRANSPORTS = ('kombu', 'amqp')


def named(conf: cfg.ConfigOpts) -> str:
    """Return user and addresses of the message bus, without the password."""
    url = messaging.TransportURL.parse(conf, conf[bootcache_conf.GROUP].transport_url)
    return ', '.join(f'{host.username or "(no user)"}@{host.hostname}:{host.port}'
                     for host in url.hosts) or str(url.transport)


def is_refusal(error: Exception) -> bool:
    """Tell whether an error is RabbitMQ's own answer: to a user, a virtual host, or a queue."""
    return isinstance(error, messaging.MessageDeliveryFailure) or is_transports(error)


def is_transports(error: BaseException | None) -> bool:
    """Tell whether an error is of a library by which oslo.messaging reaches RabbitMQ."""
    return type(error).__module__.partition('.')[0] in _TRANSPORTS


def within(seconds: float, call: Callable[[], Answer]) -> Answer:
    """Make a call in a thread of its own, and wait for it for so long.

    :param call: is given up then, not ended: its own limits end it.
    :raises MessagingTimeout: if it takes longer.
    :raises MessageDeliveryFailure: if the bus cannot be reached.
    :raises Exception: what the call raises else.
    """
    outcome = daemon_thread(call, 'bootcache-ask')
    try:
        return outcome.result(seconds)
    except concurrent.futures.TimeoutError:
        raise messaging.MessagingTimeout(f'no answer within {seconds:g} s') from None
    except Exception as error:
        if isinstance(error, OSError) or is_transports(error):
            raise messaging.MessageDeliveryFailure(
                f'the message bus of transport_url fails: {error!r}') from error
        raise


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
