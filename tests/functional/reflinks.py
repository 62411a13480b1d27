"""A file system with reflinks for tests: tools/reflinks.py, or none."""

import contextlib

import pytest

from tools import reflinks
from tools.reflinks import used

__all__ = ['used', 'xfs']


@contextlib.contextmanager
def xfs(directory, size=reflinks.BYTES):
    """Give one, as tools/reflinks.py has it; without loop devices the test is skipped."""
    if reason := reflinks.reason_without():
        pytest.skip(reason)
    with reflinks.xfs(directory, size) as place:
        yield place
