"""Long work beside eventlet: where its green threads are in place, one that computes stops all."""

import importlib
import sys
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar('Result')


def is_used() -> bool:
    """Tell whether this process's threads are eventlet's; eventlet itself is not imported."""
    patcher = sys.modules.get('eventlet.patcher')
    return patcher is not None and bool(patcher.is_monkey_patched('thread'))


def aside(work: Callable[[], Result]) -> Result:
    """Do work that takes long without a wait of Python's own, as hashing and fsync do.

    Under eventlet it is done in a native thread, and the caller's others go on; else right here.

    :param work: takes no locks, and waits for no other thread.
    :raises Exception: what the work raises.
    """
    if not is_used():
        return work()
    # It is there, as it is in use; we do not require it.
    result: Result = importlib.import_module('eventlet.tpool').execute(work)
    return result
