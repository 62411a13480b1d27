"""Child processes that do one thing in a namespace and tell what came of it."""

import contextlib
import multiprocessing
import signal
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any

from bench.replay import netns

# Everything that is large is imported before, and shared with the parent.
_CONTEXT = multiprocessing.get_context('fork')


class ChildError(Exception):
    """A child failed; its own words."""


class Child:
    """A process in a namespace that serves calls of its functions until it is closed.

    :param name: of the namespace.
    :param make: called in the child; what it returns has the methods that are called.
    """

    def __init__(self, name: str, make: Callable[[], Any]):
        self.name = name
        self._pipe, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_serve, args=(name, make, theirs, self._pipe))
        self._process.start()
        theirs.close()

    def send(self, method: str, *arguments: Any) -> None:
        """Ask for a call."""
        self._pipe.send((method, arguments))

    def result(self, seconds: float) -> Any:
        """Wait for what the call gives.

        :raises ChildError: if it failed, or took longer than that.
        """
        if not self._pipe.poll(seconds):
            raise ChildError(f'{self.name}: no answer after {seconds:.0f} s')
        try:
            worked, value = self._pipe.recv()
        except EOFError:
            raise ChildError(f'{self.name}: it ended') from None
        if not worked:
            raise ChildError(f'{self.name}: {value}')
        return value

    def call(self, method: str, *arguments: Any, seconds: float = 600) -> Any:
        """Call a method and wait."""
        self.send(method, *arguments)
        return self.result(seconds)

    def close(self) -> None:
        """End it."""
        # Children that were made later have this end of the pipe as well: closing it says nothing.
        with contextlib.suppress(OSError):
            self._pipe.send(None)
        self._pipe.close()
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _serve(name: str, make: Callable[[], Any], pipe: Any, other_end: Any) -> None:
    netns.die_with_parent()
    # The parent ends it, also when somebody interrupts all of the terminal's processes.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    other_end.close()
    netns.enter(name)
    try:
        served = make()
    except Exception:
        pipe.send((False, traceback.format_exc()))
        return
    while True:
        try:
            asked = pipe.recv()
        except (EOFError, OSError):
            return
        if asked is None:
            return
        method, arguments = asked
        try:
            answer = True, getattr(served, method)(*arguments)
        except Exception:
            answer = False, traceback.format_exc()
        pipe.send(answer)


def results(children: Iterable[Child], seconds: float) -> list[Any]:
    """Return what all of them give, within a time.

    :raises ChildError: of the first that failed.
    """
    deadline = time.monotonic() + seconds
    return [child.result(max(0.0, deadline - time.monotonic())) for child in children]
