"""Calls to libvirt on a connection of their own, for whose answers nobody waits for long.

libvirt waits for a QEMU's monitor without a limit, and its client (9.0) loses answers of calls on a
connection on which another one waits. So each call has the connection for itself while it lasts.
One that is not answered in time is left with it, and the next one gets a new connection: libvirt's
Python closes the old one when the call has returned.
"""

import concurrent.futures
from collections.abc import Callable
from typing import Any, TypeVar

import libvirt

from bootcache import beside, exception

# A guest that is well answers in milliseconds, and in seconds while it waits for its requests.
SECONDS = 5.0
# Each has one of the threads by which libvirtd serves the host, 20 by default, and Nova needs some.
MOST = 5
NO_ANSWER = 'its QEMU does not answer libvirt'

Answer = TypeVar('Answer')


class LibvirtCalls:
    """Makes calls to libvirt, one after the other; for one thread.

    :param connect: opens a connection.
    """

    def __init__(self, connect: Callable[[], Any]):
        self._connect = connect
        self._connection: Any = None
        # Calls without an answer, with the servers whose QEMU has to answer.
        self._left: list[tuple[str, concurrent.futures.Future[Any]]] = []

    def ask(self, call: Callable[[Any], Answer]) -> Answer:
        """Ask what libvirt knows by itself.

        :param call: gets the connection, in another thread.
        :raises LibvirtHangs: if there is no answer in time, or too many calls have none.
        :raises Exception: what the call raises, or opening a connection.
        """
        return self._ask(call, '')

    def ask_qemu(self, server_id: str, call: Callable[[Any], Answer]) -> Answer:
        """Ask what a guest's QEMU has to answer, unless it is known not to.

        :param call: gets its domain, in another thread.
        :raises LibvirtHangs: as for :meth:`ask`.
        :raises Exception: what the call raises, or opening a connection.
        """
        def domain(connection: Any) -> Any:
            return connection.lookupByUUIDString(server_id)

        state, _details, milliseconds = self.ask(
            lambda connection: domain(connection).controlInfo(0))
        waits = state == libvirt.VIR_DOMAIN_CONTROL_OCCUPIED and milliseconds >= SECONDS * 1000
        # One of ours may wait for another one's end, of anybody's. If nothing is done with the
        # domain its answer was lost.
        is_left = any(of == server_id and not outcome.done() for of, outcome in self._left)
        if waits or (is_left and state != libvirt.VIR_DOMAIN_CONTROL_OK):
            raise exception.LibvirtHangs(NO_ANSWER)
        return self._ask(lambda connection: call(domain(connection)), server_id)

    def _ask(self, call: Callable[[Any], Answer], about: str) -> Answer:
        self._left = [left for left in self._left if not left[1].done()]
        if len(self._left) >= MOST:
            raise exception.LibvirtHangs(f'{MOST} calls to libvirt have no answer yet, and no more'
                                         ' are made until one has')
        # It comes back with the answer, and only then.
        known, self._connection = self._connection, None

        def on_own_connection() -> tuple[Any, Answer]:
            connection = self._connect() if known is None else known
            return connection, call(connection)

        outcome = beside.begin(on_own_connection, 'bootcache-libvirt')
        concurrent.futures.wait([outcome], SECONDS)
        if not outcome.done():
            self._left.append((about, outcome))
            raise exception.LibvirtHangs(NO_ANSWER if about else 'libvirt does not answer')
        self._connection, answer = outcome.result()
        return answer
