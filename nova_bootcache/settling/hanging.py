"""Servers whose move hangs, at their QEMU or below: settling leaves each alone for a while.

Their moves stay as they are, begun or not, and other servers settle meanwhile. Where QEMU answers,
the move was given up, and is over as soon as QEMU has ended the copy; another one is begun later.
"""

import os
from collections.abc import Callable, Collection

import libvirt
from oslo_log import log as logging

from bootcache import exception
from bootcache.locks import KeyedLocks
from bootcache.util.backoff import Backoff
from nova_bootcache import libvirtcalls
from nova_bootcache.settling import pivot
from nova_bootcache.settling.localservers import Nova
from nova_bootcache.settling.pivotstate import PivotFailed

LOG = logging.getLogger(__name__)

# Its guest may be paused by us, so not for longer.
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
        self._backoff = Backoff(_PAUSE_SECONDS, _LONGEST_PAUSE, clock)
        self._stalls = Backoff(_STALLED_PAUSE, _LONGEST_STALLED, clock)
        self._do_not_end: set[str] = set()
        # Those that wait as others hang.
        self._waiting = Backoff(_PAUSE_SECONDS, clock=clock)
        self._clock = clock

    def __contains__(self, server_id: object) -> bool:
        """Tell whether a server's move hung, or waited for others', when it was tried last."""
        return server_id in self._backoff or server_id in self._stalls or server_id in self._waiting

    def why(self, server_id: str) -> str:
        """Return at what a server's move hangs, with the cure; empty if it does not."""
        if server_id in self._stalls or server_id in self._do_not_end:
            return _COPY_CURE
        if server_id in self._backoff:
            return _QEMU_CURE
        return _MANY_CURE if server_id in self._waiting else ''

    def is_time_to_end(self, server_id: str) -> bool:
        """Tell whether to try now to end what is half done for a server."""
        return self._backoff.is_due(server_id) and self._waiting.is_due(server_id)

    def is_time(self, server_id: str) -> bool:
        """Tell whether to try now to move a server."""
        return self._clock() >= self.due(server_id)

    def due(self, server_id: str) -> float:
        """Return the monotonic second from which on to try to move a server."""
        return max(self._backoff.due_at(server_id), self._stalls.due_at(server_id),
                   self._waiting.due_at(server_id))

    def note(self, server_id: str, error: exception.LibvirtHangs) -> None:
        """Leave a server alone for a while, and longer than the last time.

        One that was not asked, as others hang, is tried again soon; nothing is known of it.
        """
        if isinstance(error, exception.TooManyCalls) and server_id not in self._backoff:
            if not self._waiting.known():
                LOG.warning('bootcache: servers of this host are not settled for now: %s',
                            f'{error}. {libvirtcalls.CURE}; "bootcache host list --unsettled" says'
                            f' of it: {libvirtcalls.NO_ANSWER}')
            self._waiting.postpone(server_id)
            return
        does_not_end = isinstance(error, exception.BlockJobStalls)
        if does_not_end:
            self._do_not_end.add(server_id)
        if server_id not in self._backoff and not (does_not_end and server_id in self._stalls):
            LOG.warning('bootcache: server %s is not settled, and is left alone until %s: %s',
                        server_id, 'its copy has ended' if does_not_end else 'its QEMU answers',
                        f'{error}. {libvirtcalls.CURE}')
        self._backoff.postpone(server_id)
        self._asked(server_id)

    def note_stall(self, server_id: str, error: exception.BlockJobStalls) -> None:
        """Try to move a server later, and later each time: a copy of it was given up."""
        LOG.warning('bootcache: server %s is not settled, and tried again in %.0f s: %s', server_id,
                    self._stalls.postpone(server_id), error)

    def answers(self, server_id: str) -> None:
        """Note that a server's QEMU has answered, or is no more, and nothing is half done."""
        if server_id in self._do_not_end:
            LOG.info('bootcache: the copy of server %s, which was given up, has ended', server_id)
        elif server_id in self._backoff:
            LOG.info('bootcache: the QEMU of server %s answers again, or has ended', server_id)
        self._backoff.forget(server_id)
        self._do_not_end.discard(server_id)
        self._asked(server_id)

    def has_moved(self, server_id: str) -> None:
        """Note that a running server was moved."""
        self._stalls.forget(server_id)

    def keep_only(self, server_ids: Collection[str]) -> None:
        """Forget all but some."""
        self._backoff.keep_only(server_ids)
        self._stalls.keep_only(server_ids)
        self._do_not_end.intersection_update(server_ids)
        for server_id in self._waiting.known() - set(server_ids):
            self._asked(server_id)

    def _asked(self, server_id: str) -> None:
        if self._waiting.forget(server_id) and not self._waiting.known():
            LOG.info('bootcache: no server of this host waits any more as others hang')


_END_AGAIN_SECONDS, _LONGEST_END_AGAIN = 10.0, 600.0


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
        self._failed = Backoff(_END_AGAIN_SECONDS, _LONGEST_END_AGAIN, clock)

    def is_due(self, directory: str) -> bool:
        """Tell whether something was left in a server's directory, and is to be ended now."""
        server_id = server_of(directory)
        return pivot.is_under_way(directory) and self._hanging.is_time_to_end(server_id) \
            and self._failed.is_due(server_id)

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
