"""Calls to libvirt on a connection of their own, for whose answers nobody waits for long.

libvirt waits for a QEMU's monitor without a limit, and its client (9.0) loses answers of calls on a
connection on which another one waits. So each call has the connection for itself while it lasts.
One that is not answered in time is left with it, and the next one gets a new connection: libvirt's
Python closes the old one when the call has returned.

A call that was left may do its work whenever QEMU answers: whoever made it finds out what it did.
"""

import concurrent.futures
from collections.abc import Callable
from typing import Any, TypeVar

import libvirt

from bootcache import exception
from bootcache.locks import leaf
from bootcache.util import threads

# A guest that is well answers in milliseconds, and in seconds while it waits for its requests.
SECONDS = 5.0
# The end of a block job waits until what is under way is on the medium.
JOB_END_SECONDS = 30.0
# Each has one of the threads by which libvirtd serves the host, 20 by default, and Nova needs some:
# guests that are paused and servers that settle are asked by so many each, that QEMUs do not
# answer, and that libvirt does not.
MOST, _MOST_OF_LIBVIRT = 5, 2
NO_ANSWER = 'its QEMU does not answer libvirt'
_LIBVIRT_HANGS = 'libvirt does not answer'
CURE = ('See what the QEMU process that does not answer waits for, as a disk or a network file'
        ' system of the host; a hard reboot of its server ends that process')

Answer = TypeVar('Answer')


class LibvirtCalls:
    """Makes calls to libvirt; any thread may ask.

    :param connect: opens a connection.
    """

    def __init__(self, connect: Callable[[], Any]):
        self._connect = connect
        # One that is open, and not in use; calls without an answer, with the servers whose QEMU has
        # to answer. Guarded by the lock.
        self._connection: Any = None
        self._left: list[tuple[str, concurrent.futures.Future[Any]]] = []
        self._lock = leaf('the lock of the calls to libvirt')

    def ask(self, call: Callable[[Any], Answer]) -> Answer:
        """Ask what libvirt knows by itself, however many QEMUs do not answer.

        :param call: gets the connection, in another thread.
        :raises LibvirtHangs: if there is no answer in time.
        :raises TooManyCalls: if too many of these calls have none.
        :raises Exception: what the call raises, or opening a connection.
        """
        return self._ask(call, '', SECONDS)

    def ask_qemu(self, server_id: str, call: Callable[[Any], Answer],
                 seconds: float | None = None, urgent: bool = False) -> Answer:
        """Ask what a guest's QEMU has to answer, unless it is known not to.

        :param call: gets its domain, in another thread.
        :param seconds: to wait at most; ``SECONDS`` without a number.
        :param urgent: whether to ask however many others do not answer; one call a server.
        :raises LibvirtHangs: as for :meth:`ask`.
        :raises Exception: what the call raises, or opening a connection.
        """
        state, _details, milliseconds = self.ask_known(
            server_id, lambda domain: domain.controlInfo(0))
        waits = state == libvirt.VIR_DOMAIN_CONTROL_OCCUPIED and milliseconds >= SECONDS * 1000
        # One of ours may wait for another one's end, of anybody's. If nothing is done with the
        # domain its answer was lost.
        with self._lock:
            is_left = any(of == server_id and not outcome.done() for of, outcome in self._left)
        if waits or (is_left and state != libvirt.VIR_DOMAIN_CONTROL_OK):
            raise exception.LibvirtHangs(NO_ANSWER)
        return self._ask(lambda connection: call(connection.lookupByUUIDString(server_id)),
                         server_id, SECONDS if seconds is None else seconds, urgent)

    def ask_known(self, server_id: str, call: Callable[[Any], Answer]) -> Answer:
        """Ask what libvirt knows by itself of a guest.

        :param call: gets its domain, in another thread.
        :raises LibvirtHangs: as for :meth:`ask`.
        :raises Exception: what the call raises, or opening a connection.
        """
        return self.ask(lambda connection: call(connection.lookupByUUIDString(server_id)))

    def find(self, server_id: str, urgent: bool = False) -> 'BoundedDomain | None':
        """Return a server's domain, None if it has none.

        :param urgent: as for :meth:`ask_qemu`, of all its calls.
        :raises LibvirtHangs: as for :meth:`ask`.
        :raises libvirtError: if libvirt does not tell.
        """
        try:
            self.ask_known(server_id, lambda domain: domain)
        except libvirt.libvirtError as error:
            if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
                return None
            raise
        return BoundedDomain(self, server_id, urgent)

    def _ask(self, call: Callable[[Any], Answer], about: str, seconds: float,
             urgent: bool = False) -> Answer:
        with self._lock:
            self._left = [left for left in self._left if not left[1].done()]
            alike = [of for of, _outcome in self._left if bool(of) == bool(about)]
            if len(alike) >= (MOST if about else _MOST_OF_LIBVIRT) \
                    and not (urgent and about not in alike):
                raise exception.TooManyCalls(f'{MOST} calls to libvirt have no answer yet, and no'
                                             ' more are made until one has'
                                             if about else _LIBVIRT_HANGS)
            # It comes back with the answer, and only then.
            known, self._connection = self._connection, None

        def on_own_connection() -> tuple[Any, Answer]:
            connection = known if known is not None and _is_open(known) else self._connect()
            return connection, call(connection)

        outcome = threads.daemon_thread(on_own_connection, 'bootcache-libvirt')
        concurrent.futures.wait([outcome], seconds)
        if not outcome.done():
            with self._lock:
                self._left.append((about, outcome))
            raise exception.LibvirtHangs(NO_ANSWER if about else _LIBVIRT_HANGS)
        connection, answer = outcome.result()
        with self._lock:
            self._connection = connection
        return answer


def _is_open(connection: Any) -> bool:
    """Tell whether libvirt answers on a connection, as Nova does: it may have been restarted."""
    try:
        connection.getLibVersion()
    except libvirt.libvirtError:
        return False
    return True


# What libvirt knows of a domain by itself; and what its QEMU has to answer, within so many seconds.
# Of libvirt 11 a description as well.
_KNOWN = frozenset({'ID', 'hasManagedSaveImage', 'isActive', 'state'})
_OF_QEMU = {'XMLDesc': None, 'blockCopy': None, 'blockInfo': None, 'blockJobAbort': JOB_END_SECONDS,
            'blockJobInfo': None, 'blockJobSetSpeed': None, 'jobInfo': None, 'resume': None,
            'suspend': None}


class BoundedDomain:
    """A server's domain with libvirt's methods, of which none waits for long.

    Each of them raises LibvirtHangs if there is no answer in time, and libvirt's own errors.

    :param calls: to libvirt.
    :param server_id: the server.
    :param urgent: whether its QEMU is asked however many others do not answer.
    """

    def __init__(self, calls: LibvirtCalls, server_id: str, urgent: bool = False):
        self._calls = calls
        self._server_id = server_id
        self._urgent = urgent

    def chain_figures(self) -> dict[str, Any]:
        """Return the same as the function of that name, within the bound."""
        return self._calls.ask_qemu(self._server_id, chain_figures, urgent=self._urgent)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call_on(domain: Any, arguments: tuple[Any, ...]) -> Any:
            return getattr(domain, name)(*arguments)

        if name in _KNOWN:
            return lambda *arguments: self._calls.ask_known(
                self._server_id, lambda domain: call_on(domain, arguments))
        if name not in _OF_QEMU:
            raise AttributeError(f'{name} is no call to libvirt of which a bound is known')
        return lambda *arguments: self._calls.ask_qemu(
            self._server_id, lambda domain: call_on(domain, arguments), _OF_QEMU[name],
            self._urgent)


def chain_figures(domain: Any) -> dict[str, Any]:
    """Return libvirt's figures of a domain's disks, and of what is below them, as QEMU has it open.

    :param domain: libvirt's, or one whose calls are bounded.
    """
    if isinstance(domain, BoundedDomain):
        return domain.chain_figures()
    (_domain, found), = domain.connect().domainListGetStats(
        [domain], libvirt.VIR_DOMAIN_STATS_BLOCK, libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_BACKING)
    return dict(found)
