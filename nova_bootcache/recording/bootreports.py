"""Reports of what boots read, on their way to the storage service: one that it misses comes again.

A report that was taken and not answered is not counted twice: the storage service takes one for
each that it asked for, and knows by the server which one it is.
"""

import collections
import time
from collections.abc import Callable
from typing import Any

import oslo_messaging as messaging
from oslo_log import log as logging

from bootcache.locks import leaf
from bootcache.pauses import GrowingPauses

LOG = logging.getLogger(__name__)

# What is not told by then is of little use: other servers have booted.
_KEPT_SECONDS = 3600
_MOST = 32
# Between two tries; each may hold up the rest of the host's upkeep.
_FIRST_PAUSE, _LONGEST_PAUSE = 10, 300
_SERVICE = 'service'
# The arguments of rpcapi.StorageAPI.report_boot.
Report = tuple[Any, ...]


class BootReports:
    """Sends one host's reports, in their order.

    :param send: sends one: ``report_boot`` of the storage service's client.
    """

    def __init__(self, send: Callable[..., None]):
        self._send = send
        # Those that are to be sent again, until when in monotonic seconds. Guarded by the lock,
        # held for steps of the queue.
        self._left: collections.deque[tuple[float, Report]] = collections.deque()
        self._lock = leaf('the lock of reports')
        self._pauses = GrowingPauses(_FIRST_PAUSE, _LONGEST_PAUSE, lambda: time.monotonic())

    def report(self, *report: Any) -> None:
        """Send a report; where the storage service does not answer, later.

        :param report: the arguments of ``report_boot``.
        :raises Exception: what the storage service answers, where it refuses.
        """
        if self._try(report):
            # What is left follows with the next round.
            self._pauses.forget(_SERVICE)
        else:
            self._pauses.wait(_SERVICE)
            with self._lock:
                self._left.append((time.monotonic() + _KEPT_SECONDS, report))
                lost = self._left.popleft() if len(self._left) > _MOST else None
            if lost is not None:
                self._lose(lost[1], f'more than {_MOST} wait to be sent')

    def send_again(self) -> None:
        """Send what is left, until the storage service does not answer again.

        To be called now and then: each time that it does not answer it is asked later.
        """
        while self._pauses.is_time(_SERVICE):
            with self._lock:
                found = self._left[0] if self._left else None
            if found is None:
                return
            until, report = found
            try:
                if time.monotonic() > until:
                    self._lose(report, 'the storage service does not answer')
                elif not self._try(report):
                    self._pauses.postpone(_SERVICE)
                    return
                else:
                    self._pauses.forget(_SERVICE)
            except messaging.MessagingException as error:
                self._lose(report, str(error))
            with self._lock:
                if self._left and self._left[0] is found:
                    self._left.popleft()

    def _try(self, report: Report) -> bool:
        try:
            self._send(*report)
        except (messaging.MessagingTimeout, messaging.MessageDeliveryFailure, OSError) as error:
            # OSError is the storage service's own: it cannot write it, as its disk is full.
            LOG.info('image %s: what a boot read is told later: %s', report[0], error)
            return False
        return True

    @staticmethod
    def _lose(report: Report, why: str) -> None:
        LOG.warning('image %s: what a boot read is not told: %s', report[0], why)
