"""How a growing store approaches its limit."""

from hypothesis import given
from hypothesis import strategies as st

from nova_bootcache import growingstore, growth

LIMITS = st.integers(growingstore.MIN_LIMIT, 1 << 40)


@given(LIMITS, st.integers(0, 1 << 41))
def test_what_is_left_lasts_for_a_look(limit, size):
    rate = growth.write_rate(limit, size)
    assert 65536 <= rate <= max(limit - size, 65536)


@given(LIMITS, st.integers(0, 1 << 41), st.integers(0, 1 << 41), st.integers(0, 1 << 41))
def test_a_store_takes_no_more_than_its_limit_and_what_is_free(limit, size, held, free):
    end = growth.horizon(limit, size, held, free)
    own = max(size, held)
    assert end <= limit and end >= min(limit, own)
    # What it takes anew leaves the spare bytes to others.
    assert end <= own or free - (end - own) >= growth.spare(limit)
    # With all the space there is, only the limit counts.
    assert growth.horizon(limit, size, held, 1 << 62) == min(
        limit, max(own, size + growth.AHEAD))


def test_a_store_on_a_full_medium_has_what_it_took_before():
    assert growth.horizon(1 << 30, 5 << 20, 20 << 20, 0) == 20 << 20
    assert growth.horizon(1 << 30, 5 << 20, 0, 0) == 5 << 20


@given(LIMITS)
def test_it_stops_before_its_limit_and_not_too_early(limit):
    reserve = growth.reserve(limit)
    # Within the reserve at least a third of a second passes at the rate in force when it begins.
    assert reserve >= growth.write_rate(limit, limit - reserve) * growingstore._LOOK_SECONDS
    assert reserve < limit / 2


def test_the_rate_falls_with_the_size():
    rates = [growth.write_rate(1 << 30, size) for size in range(0, 1 << 30, 1 << 24)]
    assert rates == sorted(rates, reverse=True) and rates[0] > rates[-1]


def test_a_map_is_cut_at_a_place_in_the_file():
    entries = [{'start': 0, 'length': 100, 'offset': 1000}, {'start': 500, 'length': 50},
               {'start': 900, 'length': 40, 'offset': 500}]
    assert growingstore._from(entries, 1030) == [
        {'start': 30, 'length': 70, 'offset': 1030}, {'start': 500, 'length': 50}]
