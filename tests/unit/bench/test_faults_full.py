"""A file system that is filled while others write to it; its space is made up."""

import errno
import types

import pytest

from bench.faults import spoiledfiles


@pytest.fixture
def space(monkeypatch):
    """A file system; ``space.others`` take so much, one after the other, before we do."""
    space = types.SimpleNamespace(free=100, others=[], taken=0, error=errno.ENOSPC)

    def allocate(_descriptor, offset, length):
        assert offset == 0
        if space.others:
            space.free -= space.others.pop(0)
        if length > space.free:
            raise OSError(space.error, 'no')
        space.free, space.taken = space.free - length, length

    monkeypatch.setattr(spoiledfiles.os, 'statvfs', lambda path: types.SimpleNamespace(
        f_bavail=space.free, f_frsize=1))
    monkeypatch.setattr(spoiledfiles.os, 'posix_fallocate', allocate)
    return space


@pytest.mark.parametrize('others, taken', [([], 90), ([30, 20, 1], 40), ([95], 0)])
def test_it_is_filled_whoever_else_takes_space(space, tmp_path, others, taken):
    space.others = list(others)
    spoiledfiles.fill(tmp_path / 'filler', 10)
    assert space.taken == taken and space.free == 100 - sum(others) - taken


def test_that_has_an_end(space, tmp_path):
    space.free, space.others = 1000, [1] * 1000
    with pytest.raises(OSError, match='no'):
        spoiledfiles.fill(tmp_path / 'filler', 0)
    assert len(space.others) == 1000 - spoiledfiles._FILL_TRIES


def test_another_error_is_told_at_once(space, tmp_path):
    space.error, space.others = errno.EIO, [1] * 10
    with pytest.raises(OSError, match='no'):
        spoiledfiles.fill(tmp_path / 'filler', 0)
    assert len(space.others) == 9
