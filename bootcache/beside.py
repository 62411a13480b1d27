"""A call in a thread of its own, for which nobody need wait to its end."""

import concurrent.futures
import threading
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar('Answer')


def begin(call: Callable[[], Answer], name: str) -> concurrent.futures.Future[Answer]:
    """Begin a call in a thread that ends with it, or with the process: a pool would wait for it.

    Where eventlet has replaced Python's threads it is one of eventlet's.

    :param name: of the thread.
    :returns: what comes of it.
    :raises RuntimeError: if no thread can be started.
    """
    outcome: concurrent.futures.Future[Answer] = concurrent.futures.Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except Exception as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return outcome
