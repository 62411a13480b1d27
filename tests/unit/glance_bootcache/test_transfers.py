"""When a base that is being downloaded will be here."""

import types

import pytest

from glance_bootcache.storage import transfers
from glance_bootcache.storage.transfers import Transfer, Transfers, seconds_left, seconds_to_turn


@pytest.mark.parametrize('done, elapsed, usual, left', [
    (0, 0.0, None, None),            # it has only begun, and there was none before
    (50, 1.9, None, None),
    (50, 1.9, 10.0, 95.0),           # by the last one's rate
    (100, 2.0, 1000.0, 18.0),        # by its own
    (0, 100.0, 1000.0, None),        # it stalls, or is no download
    (1000, 10.0, None, 0.0),
    (2000, 10.0, None, 0.0)])        # more than Glance has said
def test_the_seconds_that_a_download_takes(done, elapsed, usual, left):
    assert seconds_left(Transfer(1000, 5000.0, done), 5000.0 + elapsed, usual) == left


@pytest.mark.parametrize('left, expected', [
    ([], None), ([30.0], None), ([30.0, 20.0], 20.0), ([30.0, None], None),
    ([30.0, 20.0, 40.0], 20.0)])
def test_the_seconds_until_a_turn_comes(left, expected):
    assert seconds_to_turn(left, 2) == expected


def test_downloads_from_begin_to_end(monkeypatch):
    clock = types.SimpleNamespace(now=5000.0)
    monkeypatch.setattr(transfers, 'time', types.SimpleNamespace(monotonic=lambda: clock.now))
    known = Transfers()
    assert known.seconds_left('a', 2) is None
    with known.of('a', 1000) as arrived:
        arrived(100)
        assert known.seconds_left('a', 2) is None
        clock.now += 10
        assert known.seconds_left('a', 2) == 90
        with known.of('b', 10_000):
            assert known.seconds_left('b', 2) is None
            assert known.seconds_left('c', 2) is None, 'nobody knows when the turn comes'
            clock.now += 10
            arrived(100)
            assert known.seconds_left('a', 1) == 80
    # The next one is known from its begin, and who waits for a turn waits at least for that.
    with known.of('b', 1000):
        assert known.seconds_left('b', 1) == known.seconds_left('c', 1) == 100
        assert known.seconds_left('c', 2) is None
    assert known.seconds_left('b', 1) is None


def test_a_download_that_fails_is_over(monkeypatch):
    known = Transfers()
    with pytest.raises(OSError, match='broken'), known.of('a', 1000):
        raise OSError('broken')
    assert known._transfers == {}
