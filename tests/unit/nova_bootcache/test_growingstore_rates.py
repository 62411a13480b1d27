"""How a growing store approaches its limit."""

from hypothesis import given
from hypothesis import strategies as st

from bootcache import growingstore, recorder
from nova_bootcache.gateway import sharedstore

LIMITS = st.integers(sharedstore.MIN_LIMIT, 1 << 40)


@given(LIMITS, st.integers(0, 1 << 41))
def test_what_is_left_lasts_for_a_look(limit, size):
    rate = sharedstore.write_rate(limit, size)
    assert 65536 <= rate <= max(limit - size, 65536)


@given(LIMITS, st.integers(0, 1 << 41), st.integers(0, 1 << 41), st.integers(0, 1 << 41))
def test_a_store_takes_no_more_than_its_limit_and_what_is_free(limit, size, held, free):
    end = sharedstore.horizon(limit, size, held, free)
    own = max(size, held)
    assert end <= limit and end >= min(limit, own)
    # What it takes anew leaves the spare bytes to others.
    assert end <= own or free - (end - own) >= sharedstore.spare(limit)
    # With all the space there is, only the limit counts.
    assert sharedstore.horizon(limit, size, held, 1 << 62) == min(
        limit, max(own, size + sharedstore.AHEAD))


@given(st.integers(0, 1 << 40))
def test_in_memory_it_has_what_its_pace_needs(grown):
    """That is memory which nobody else has."""
    beyond = sharedstore.ahead(grown, True)
    assert 64 << 20 <= beyond <= sharedstore.AHEAD == sharedstore.ahead(grown, False)
    # More than it would write until a look that is late.
    assert beyond >= min(sharedstore.AHEAD, 20 * grown)


def test_a_store_on_a_full_medium_has_what_it_took_before():
    assert sharedstore.horizon(1 << 30, 5 << 20, 20 << 20, 0) == 20 << 20
    assert sharedstore.horizon(1 << 30, 5 << 20, 0, 0) == 5 << 20


@given(LIMITS)
def test_it_stops_before_its_limit_and_not_too_early(limit):
    reserve = sharedstore.reserve(limit)
    # Within the reserve at least a third of a second passes at the rate in force when it begins.
    assert reserve >= sharedstore.write_rate(limit, limit - reserve) * growingstore.LOOK_SECONDS
    assert reserve < limit / 2


def test_the_rate_falls_with_the_size():
    rates = [sharedstore.write_rate(1 << 30, size) for size in range(0, 1 << 30, 1 << 24)]
    assert rates == sorted(rates, reverse=True) and rates[0] > rates[-1]


def test_a_record_is_the_part_of_the_map_between_two_places():
    """A cluster of zeros has none: nobody knows whose it is, unless the store was new."""
    data = {'start': 1000, 'length': 300, 'data': True, 'zero': False, 'offset': 500}
    zeros = {'start': 5000, 'length': 100, 'data': False, 'zero': True, 'present': True}

    def told(begin, end, with_zeros=False):
        return [(entry['start'], entry['length'], entry.get('offset')) for entry in
                recorder.between([data, zeros], begin, end, with_zeros)]

    assert told(0, 10_000) == [(1000, 300, 500)]
    assert told(600, 10_000) == [(1100, 200, 600)]
    assert told(0, 600) == [(1000, 100, 500)]
    assert told(550, 700) == [(1050, 150, 550)]
    assert told(0, 500) == told(800, 10_000) == told(800, 500) == []
    assert told(0, 600, with_zeros=True) == [(1000, 100, 500), (5000, 100, None)]
