"""Servers whose QEMU does not answer libvirt: settling leaves each alone for a while.

Their moves stay as they are, begun or not, and other servers settle meanwhile.
"""

from collections.abc import Callable, Collection

from oslo_log import log as logging

from bootcache import exception
from bootcache.pauses import GrowingPauses
from nova_bootcache import libvirtcalls

LOG = logging.getLogger(__name__)

# Its guest may stand still by our hand, so not for longer.
_PAUSE_SECONDS, _LONGEST_PAUSE = 10.0, 60.0


class HangingServers:
    """Knows them, and when each is tried again; for one thread, any may look who is one.

    :param clock: gives monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]):
        self._pauses = GrowingPauses(_PAUSE_SECONDS, _LONGEST_PAUSE, clock)

    def __contains__(self, server_id: object) -> bool:
        """Tell whether a server's QEMU did not answer when it was asked last."""
        return server_id in self._pauses

    def is_time(self, server_id: str) -> bool:
        """Tell whether to try a server now."""
        return self._pauses.is_time(server_id)

    def first_due(self, server_ids: Collection[str]) -> float:
        """Return the monotonic second from which on to try one of some servers."""
        return min((self._pauses.due(server_id) for server_id in server_ids), default=0.0)

    def note(self, server_id: str, error: exception.LibvirtHangs) -> None:
        """Leave a server alone for a while, and longer than the last time."""
        if server_id not in self._pauses:
            LOG.warning('bootcache: server %s is not settled, and is left alone until its QEMU'
                        ' answers: %s', server_id, f'{error}. {libvirtcalls.CURE}')
        self._pauses.postpone(server_id)

    def answers(self, server_id: str) -> None:
        """Note that a server's QEMU has answered, or is no more."""
        if server_id in self._pauses:
            LOG.info('bootcache: the QEMU of server %s answers again, or has ended', server_id)
        self._pauses.forget(server_id)

    def keep_only(self, server_ids: Collection[str]) -> None:
        """Forget all but some."""
        self._pauses.keep_only(server_ids)
