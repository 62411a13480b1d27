"""Servers whose move hangs, at their QEMU or below: settling leaves each alone for a while.

Their moves stay as they are, begun or not, and other servers settle meanwhile. Where QEMU answers,
the move was given up, and is over as soon as QEMU has ended the copy; another one is begun later.
"""

from collections.abc import Callable, Collection

from oslo_log import log as logging

from bootcache import exception
from bootcache.pauses import GrowingPauses
from nova_bootcache import libvirtcalls

LOG = logging.getLogger(__name__)

# Its guest may stand still by our hand, so not for longer.
_PAUSE_SECONDS, _LONGEST_PAUSE = 10.0, 60.0
# Each try copies all anew, and others wait for it.
_STALLED_PAUSE, _LONGEST_STALLED = 60.0, 6 * 3600.0
_QEMU_CURE = f'{libvirtcalls.NO_ANSWER}: see what that waits for, or hard reboot the server'
_MANY_CURE = ('the QEMUs of other servers do not answer libvirt, and so it is not asked of this one'
              ' for now: see to those that hang')
_COPY_CURE = ('its own data cannot be copied to its full base, which is tried again: see the log'
              ' of nova-compute')


class HangingServers:
    """Knows them, and when each is tried again; any thread may tell and ask, one of a server.

    :param clock: gives monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]):
        # Those that do not answer or whose copy does not end; those whose copies came to no end.
        self._pauses = GrowingPauses(_PAUSE_SECONDS, _LONGEST_PAUSE, clock)
        self._stalls = GrowingPauses(_STALLED_PAUSE, _LONGEST_STALLED, clock)
        self._do_not_end: set[str] = set()
        # Those that wait as others hang, with the second from which on each is tried again.
        self._wait: dict[str, float] = {}
        self._clock = clock

    def __contains__(self, server_id: object) -> bool:
        """Tell whether a server's move hung, or waited for others', when it was tried last."""
        return server_id in self._pauses or server_id in self._stalls or server_id in self._wait

    def why(self, server_id: str) -> str:
        """Return at what a server's move hangs, with the cure; empty if it does not."""
        if server_id in self._stalls or server_id in self._do_not_end:
            return _COPY_CURE
        if server_id in self._pauses:
            return _QEMU_CURE
        return _MANY_CURE if server_id in self._wait else ''

    def is_time_to_end(self, server_id: str) -> bool:
        """Tell whether to try now to end what is half done for a server."""
        return self._pauses.is_time(server_id) \
            and self._clock() >= self._wait.get(server_id, 0.0)

    def is_time(self, server_id: str) -> bool:
        """Tell whether to try now to move a server."""
        return self._clock() >= self.due(server_id)

    def due(self, server_id: str) -> float:
        """Return the monotonic second from which on to try to move a server."""
        return max(self._pauses.due(server_id), self._stalls.due(server_id),
                   self._wait.get(server_id, 0.0))

    def first_due(self, server_id: str) -> float:
        """Return the monotonic second from which on to do something for a server; 0 for at once."""
        return self._pauses.due(server_id) or self._stalls.due(server_id) \
            or self._wait.get(server_id, 0.0)

    def note(self, server_id: str, error: exception.LibvirtHangs) -> None:
        """Leave a server alone for a while, and longer than the last time.

        One that was not asked, as others hang, is tried again soon; nothing is known of it.
        """
        if isinstance(error, exception.TooManyCalls) and server_id not in self._pauses:
            if not self._wait:
                LOG.warning('bootcache: servers of this host are not settled for now: %s',
                            f'{error}. {libvirtcalls.CURE}; "bootcache host list --unsettled" says'
                            f' of it: {libvirtcalls.NO_ANSWER}')
            self._wait[server_id] = self._clock() + _PAUSE_SECONDS
            return
        does_not_end = isinstance(error, exception.BlockJobStalls)
        if does_not_end:
            self._do_not_end.add(server_id)
        if server_id not in self._pauses and not (does_not_end and server_id in self._stalls):
            LOG.warning('bootcache: server %s is not settled, and is left alone until %s: %s',
                        server_id, 'its copy has ended' if does_not_end else 'its QEMU answers',
                        f'{error}. {libvirtcalls.CURE}')
        self._pauses.postpone(server_id)
        self._asked(server_id)

    def note_stall(self, server_id: str, error: exception.BlockJobStalls) -> None:
        """Try to move a server later, and later each time: a copy of it was given up."""
        LOG.warning('bootcache: server %s is not settled, and tried again in %.0f s: %s', server_id,
                    self._stalls.postpone(server_id), error)

    def answers(self, server_id: str) -> None:
        """Note that a server's QEMU has answered, or is no more, and nothing is half done."""
        if server_id in self._do_not_end:
            LOG.info('bootcache: the copy of server %s, which was given up, has ended', server_id)
        elif server_id in self._pauses:
            LOG.info('bootcache: the QEMU of server %s answers again, or has ended', server_id)
        self._pauses.forget(server_id)
        self._do_not_end.discard(server_id)
        self._asked(server_id)

    def has_moved(self, server_id: str) -> None:
        """Note that a running server was moved."""
        self._stalls.forget(server_id)

    def keep_only(self, server_ids: Collection[str]) -> None:
        """Forget all but some."""
        self._pauses.keep_only(server_ids)
        self._stalls.keep_only(server_ids)
        self._do_not_end.intersection_update(server_ids)
        for server_id in set(self._wait) - set(server_ids):
            self._asked(server_id)

    def _asked(self, server_id: str) -> None:
        if self._wait.pop(server_id, None) is not None and not self._wait:
            LOG.info('bootcache: no server of this host waits any more as others hang')
