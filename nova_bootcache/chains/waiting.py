"""What keeps a server's disk from being opened, and passes: the server waits, and does not fail."""

import time
from collections.abc import Callable
from typing import TypeVar

import oslo_messaging as messaging
from oslo_log import log as logging

from bootcache import exception

LOG = logging.getLogger(__name__)

_AGAIN_SECONDS = 1.0
Result = TypeVar('Result')


def passes(error: BaseException | None) -> bool:
    """Tell whether an error is of a kind that passes by itself. Pure.

    A gateway that is busy or starts anew, a storage node or storage service that is away: they
    come back. So do certificates, which are renewed while all runs: of the configuration nothing
    else is looked at so late. An image with another content does not get the older one again by
    itself.
    """
    return isinstance(error, (exception.StorageDaemonError, exception.StorageServiceAway,
                              exception.ConfigurationError, messaging.MessagingException))


def patiently(work: Callable[[], Result], seconds: float, what: str,
              is_wanted: Callable[[], bool]) -> Result:
    """Do what may not be possible just now, again until it is.

    :param seconds: after which it is not tried again.
    :param what: that waits, for the log.
    :param is_wanted: tells before each further try whether to go on.
    :raises Exception: the work's, if it does not pass, or not in time.
    """
    deadline = time.monotonic() + seconds
    has_told = False
    while True:
        try:
            return work()
        except Exception as error:
            left = deadline - time.monotonic()
            if left <= 0 or not passes(error):
                raise
            if not has_told:
                LOG.warning('bootcache: %s waits, for %.0f s at most: %s', what, left, error)
                has_told = True
            time.sleep(min(_AGAIN_SECONDS, left))
            if not is_wanted():
                raise
