"""Waiting for what other threads do."""

import time

PATIENCE = 20


def until(condition, what='the condition'):
    """Wait until something is so."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f'{what} did not come about'
        time.sleep(0.002)
