"""How a growing store approaches its limit."""

from hypothesis import given
from hypothesis import strategies as st

from nova_bootcache import growingstore

LIMITS = st.integers(growingstore.MIN_LIMIT, 1 << 40)


@given(LIMITS, st.integers(0, 1 << 41))
def test_what_is_left_lasts_for_a_look(limit, size):
    rate = growingstore.write_rate(limit, size)
    assert 65536 <= rate <= max(limit - size, 65536)


@given(LIMITS)
def test_it_stops_before_its_limit_and_not_too_early(limit):
    reserve = growingstore.reserve(limit)
    # Within the reserve at least a third of a second passes at the rate in force when it begins.
    assert reserve >= growingstore.write_rate(limit, limit - reserve) * growingstore._LOOK_SECONDS
    assert reserve < limit / 2


def test_the_rate_falls_with_the_size():
    rates = [growingstore.write_rate(1 << 30, size) for size in range(0, 1 << 30, 1 << 24)]
    assert rates == sorted(rates, reverse=True) and rates[0] > rates[-1]


def test_a_map_is_cut_at_a_place_in_the_file():
    entries = [{'start': 0, 'length': 100, 'offset': 1000}, {'start': 500, 'length': 50},
               {'start': 900, 'length': 40, 'offset': 500}]
    assert growingstore._from(entries, 1030) == [
        {'start': 30, 'length': 70, 'offset': 1030}, {'start': 500, 'length': 50}]
