"""Calls in threads that nobody waits for without end, and long work where eventlet is in use."""

import concurrent.futures
import importlib
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar('Result')


def daemon_thread(call: Callable[[], Result], name: str) -> concurrent.futures.Future[Result]:
    """Begin a call in a thread that ends with it, or with the process: a pool would wait for it.

    Where eventlet has replaced Python's threads the thread is one of eventlet's.

    :param name: of the thread.
    :returns: the result to come; ``result(seconds)`` of it is a call with a deadline.
    :raises RuntimeError: if no thread can be started.
    """
    outcome: concurrent.futures.Future[Result] = concurrent.futures.Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except Exception as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return outcome


def is_green() -> bool:
    """Return whether this process's threads are eventlet's; eventlet itself is not imported."""
    patcher = sys.modules.get('eventlet.patcher')
    return patcher is not None and bool(patcher.is_monkey_patched('thread'))


def run_native(work: Callable[[], Result]) -> Result:
    """Do work that takes long without a wait of Python's own, as hashing and fsync do.

    Under eventlet a native thread does the work, and other green threads go on; else the caller's.

    :param work: takes no locks, and waits for no other thread.
    :raises Exception: what the work raises.
    """
    if not is_green():
        return work()
    # Eventlet is there, as it is in use; it is no requirement.
    result: Result = importlib.import_module('eventlet.tpool').execute(work)
    return result
