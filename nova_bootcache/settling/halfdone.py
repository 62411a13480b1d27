"""What a move of a server left half done, by a crash or as something hung, and its end."""

import os
from collections.abc import Callable

import libvirt
from oslo_log import log as logging

from bootcache import exception
from bootcache.locks import KeyedLocks
from bootcache.pauses import GrowingPauses
from nova_bootcache.settling import pivot
from nova_bootcache.settling.hanging import HangingServers
from nova_bootcache.settling.localservers import Nova
from nova_bootcache.settling.pivotstate import PivotFailed

LOG = logging.getLogger(__name__)

_PAUSE_SECONDS, _LONGEST_PAUSE = 10.0, 600.0


class HalfDone:
    """Ends it, in one thread at a time for each server.

    :param nova: what it needs of Nova.
    :param steps: by server, which make beginning, ending and giving up a move one step.
    :param hanging: servers at which it hung.
    :param clock: gives monotonic seconds.
    """

    def __init__(self, nova: Nova, steps: KeyedLocks, hanging: HangingServers,
                 clock: Callable[[], float]):
        self._nova = nova
        self._steps = steps
        self._hanging = hanging
        # What could not be ended for another reason, which an operator may have to see to.
        self._failed = GrowingPauses(_PAUSE_SECONDS, _LONGEST_PAUSE, clock)

    def is_due(self, directory: str) -> bool:
        """Tell whether something was left in a server's directory, and is to be ended now."""
        server_id = server_of(directory)
        return pivot.is_under_way(directory) and self._hanging.is_time_to_end(server_id) \
            and self._failed.is_time(server_id)

    def end(self, directory: str) -> None:
        """End what was left in a server's directory, if anything was.

        Its QEMU is asked however many others hang: Nova works on the server, or its guest waits.

        :raises LibvirtHangs: if its QEMU does not answer; it can be once that has ended.
        :raises BootcacheError: if that is not possible, or which of two disks is the right one
            cannot be told.
        """
        server_id = server_of(directory)
        # Nova takes no lock for some of its work, and to do it twice would exchange names twice.
        with self._steps.of(server_id):
            if not pivot.is_under_way(directory):
                return
            try:
                domain = self._nova.bounded_domain(server_id, urgent=True)
            except libvirt.libvirtError as error:
                raise PivotFailed(f'{directory}: a half-done move cannot be put right, as libvirt'
                                  f' does not tell of its server: {error}') from error
            pivot.recover(directory, domain)

    def end_in_turn(self, directory: str) -> None:
        """Do so for the thread that settles, which tries again after pauses."""
        server_id = server_of(directory)
        try:
            self.end(directory)
            self._hanging.answers(server_id)
            self._failed.forget(server_id)
        except exception.LibvirtHangs as error:
            self._hanging.note(server_id, error)
        except Exception:
            LOG.exception('bootcache: what settling left in %s cannot be ended, and is tried again'
                          ' in %.0f s; the server cannot be started until it is', directory,
                          self._failed.postpone(server_id))

    def end_for_nova(self, server_id: str) -> None:
        """Do so before Nova works on a server: what hung at the last try may be over by now.

        Where it cannot be ended Nova goes on; what must not then, looks for itself.
        """
        try:
            self.end(self._nova.directory(server_id))
        except exception.LibvirtHangs as error:
            LOG.info('bootcache: the settling of server %s stays half done: %s', server_id, error)
        except Exception:
            LOG.exception('bootcache: the settling of server %s cannot be ended', server_id)


def server_of(directory: str) -> str:
    """Return the id of the server whose directory it is."""
    return os.path.basename(directory).removesuffix('_resize')
