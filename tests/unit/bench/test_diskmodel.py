"""A hard disk on paper."""

import pytest

from bench.replay.diskmodel import Disk, following

MB = 1_000_000


def disk(**more):
    return Disk(0.008, 100 * MB, **more)


def test_a_read_anywhere_costs_an_access_and_its_transfer():
    drive = disk()
    assert drive.read(0.0, 500 * MB, MB) == pytest.approx(0.018)
    assert drive.read(0.018, 100 * MB, MB) == pytest.approx(0.036)


def test_one_who_reads_on_costs_transfer_only_and_what_was_read_ahead_costs_nothing():
    drive = disk()
    first = drive.read(0.0, 500 * MB, MB)
    assert drive.read(first, 501 * MB, MB) == pytest.approx(first + 0.01)
    # It rests for a second: what follows is in the buffer by then, up to its limit.
    later = drive.read(first + 1, 502 * MB, 100_000)
    assert later - first - 1 < 0.001
    assert drive.read(later, 502 * MB + 100_000, 5 * MB) > later + 0.025


def test_a_short_gap_is_passed_over():
    drive = disk(ahead=0)
    first = drive.read(0.0, 500 * MB, MB)
    assert drive.read(first, 501 * MB + 100_000, MB) == pytest.approx(first + 0.011)


def test_readers_in_turn_cost_an_access_each_once_the_buffer_has_too_few_segments():
    for segments, cheap in ((4, True), (1, False)):
        drive, now = disk(segments=segments), 0.0
        for place in (100, 300):
            now = drive.read(now, place * MB, MB) + 1
        again = drive.read(now, 101 * MB, 4096)
        assert (again - now < 0.001) is cheap


def test_writes_are_cached_until_the_cache_is_full_and_a_flush_waits_for_all():
    drive = disk(pending=0.02)
    done = [drive.write(0.0, place * MB, 4096) for place in (900, 100, 700, 300)]
    assert done[0] < 0.001 and done[3] == pytest.approx(4 * 0.008 - 0.02, abs=0.001)
    assert drive.flush(0.0) == pytest.approx(4 * 0.008, abs=0.001)
    assert drive.read(0.0, 50 * MB, 4096) == pytest.approx(5 * 0.008, abs=0.001)


def test_the_head_goes_upwards_and_then_begins_below():
    assert following([500, 100, 300], 200) == 2
    assert following([50, 100], 200) == 0


def test_several_who_write_on_and_on_do_not_cost_an_access_for_each_piece():
    drive = disk()
    places = [100 * MB, 300 * MB]
    for _ in range(100):
        for index, place in enumerate(places):
            drive.write(0.0, place, 65536)
            places[index] += 65536
    apart = disk()
    for number in range(200):
        apart.write(0.0, (number * 7919 % 200) * 5 * MB, 65536)
    assert drive.flush(0.0) < 0.3 and apart.flush(0.0) > 1.5
