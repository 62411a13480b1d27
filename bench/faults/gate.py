"""Processes of a stage: they stand still at a step until the harness has done its fault there."""

import contextlib
import logging
import os
import select
import signal
from collections.abc import Callable
from typing import Any

from bench.replay import children
from bootcache import steps

LOG = logging.getLogger(__name__)


class Gate:
    """Has a process stand still the next time it comes to a step. Made before the process is."""

    def __init__(self) -> None:
        self._reached = os.pipe()
        self._go = os.pipe()
        self._armed = ''

    # In the process.

    def arm(self, step: str) -> None:
        """Stand still at a step, once; empty: at none."""
        self._armed = step

    def __call__(self, step: str) -> None:
        """Take a step, as ``steps.install`` wants it."""
        if step == self._armed:
            self._armed = ''
            os.write(self._reached[1], b'.')
            os.read(self._go[0], 1)

    # In the harness.

    def is_reached(self) -> bool:
        """Tell whether the process stands at the step; True once."""
        if select.select([self._reached[0]], [], [], 0)[0]:
            os.read(self._reached[0], 1)
            return True
        return False

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
    :param make: called in it; gets its gate.
    """

    def __init__(self, namespace: str, make: Callable[[Gate], Any]):
        self.gate = Gate()
        self.has_ended = False

        def begin() -> Any:
            steps.install(self.gate)
            try:
                return make(self.gate)
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
