"""Processes of a stage: they wait at a step until the harness has done its fault there."""

import contextlib
import logging
import os
import select
import signal
from collections.abc import Callable, Iterable
from typing import Any

from bench.faults.clock import Clock
from bench.replay import children
from bootcache import steps

LOG = logging.getLogger(__name__)


class Gate:
    """Has a process wait when it comes to a step, once. Made before the process is.

    :param armed: names of the steps.
    """

    def __init__(self, armed: Iterable[str] = ()) -> None:
        self._reached = os.pipe()
        self._go = os.pipe()
        self._names = list(armed)
        self._armed = set(self._names)

    # In the process.

    def __call__(self, step: str) -> None:
        """Take a step, as ``steps.install`` wants it."""
        if step in self._armed:
            # Of several threads that come to it, one waits.
            with contextlib.suppress(KeyError):
                self._armed.remove(step)
                os.write(self._reached[1], bytes([self._names.index(step)]))
                os.read(self._go[0], 1)

    # In the harness.

    def reached(self) -> str | None:
        """Return the step at which the process stands; each once."""
        if select.select([self._reached[0]], [], [], 0)[0]:
            return self._names[os.read(self._reached[0], 1)[0]]
        return None

    def go_on(self) -> None:
        """Let it go on."""
        os.write(self._go[1], b'.')

    def close(self) -> None:
        """Close the pipes."""
        for fd in (*self._reached, *self._go):
            os.close(fd)


class Worker(children.Child):
    """A process of a stage, in a network namespace.

    :param namespace: of the network.
    :param make: called in it.
    :param clock: of its machine.
    :param armed: names of the steps at which it waits.
    """

    def __init__(self, namespace: str, make: Callable[[], Any], clock: Clock,
                 armed: Iterable[str] = ()):
        self.gate = Gate(armed)
        self.has_ended = False

        def begin() -> Any:
            steps.install(self.gate)
            clock.install()
            try:
                return make()
            except BaseException:
                LOG.exception('it cannot be started')
                logging.shutdown()
                # As a service that fails: threads of it are no reason to stay.
                os._exit(1)

        super().__init__(namespace, begin)

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process.pid is not None
        return int(self._process.pid)

    def has_answer(self) -> bool:
        """Tell whether ``result`` would not wait."""
        return bool(self._pipe.poll(0))

    def kill(self) -> None:
        """End it by kill -9; what it started goes on."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._process.join()
        self.has_ended = True

    def close(self) -> None:
        """End it."""
        if not self.has_ended:
            self.kill()
        self._pipe.close()
        self.gate.close()
