"""The asyncio loop in which this process speaks QMP, whatever threads its services have."""

import asyncio
import os
import sys
import threading
import time
from typing import Any

from bootcache import green


class _Outcome:
    """What became of a coroutine in the loop's thread; filled there, waited for elsewhere."""

    def __init__(self, threads: Any):
        self.done = threads.Event()
        self.task: asyncio.Task[Any] | None = None

    def start(self, loop: asyncio.AbstractEventLoop, coroutine: Any) -> None:
        self.task = loop.create_task(coroutine)
        self.task.add_done_callback(lambda _task: self.done.set())


class LoopThread:
    """One asyncio loop in a native thread, for all daemons of this process.

    Under eventlet everything that is shared with that thread is native too, and whoever waits does
    so by short green sleeps: a green lock that a native thread releases wakes nobody.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the making of the loop
        self._pid = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, coroutine: Any, timeout: float) -> Any:
        """Run a coroutine, and return what it returns.

        :param timeout: seconds.
        :raises TimeoutError: if it takes longer; it is cancelled.
        """
        native, is_green = _threads()
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                self._start(native)
        assert self._loop is not None
        outcome = _Outcome(native)
        self._loop.call_soon_threadsafe(outcome.start, self._loop, coroutine)
        if not is_green:
            outcome.done.wait(timeout)
        deadline = time.monotonic() + timeout
        while is_green and not outcome.done.is_set() and time.monotonic() < deadline:
            time.sleep(0.001)
        if not outcome.done.is_set():
            self._loop.call_soon_threadsafe(lambda: outcome.task and outcome.task.cancel())
            raise TimeoutError
        assert outcome.task is not None
        return outcome.task.result()

    def _start(self, native: Any) -> None:
        self._loop = asyncio.new_event_loop()
        native.Thread(target=self._loop.run_forever, name='bootcache-qmp', daemon=True).start()
        self._pid = os.getpid()


def _threads() -> tuple[Any, bool]:
    """Return the module of native threads, and whether eventlet has put green ones in its place."""
    if green.is_used():
        return sys.modules['eventlet.patcher'].original('threading'), True
    return threading, False


LOOP = LoopThread()
