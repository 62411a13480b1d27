"""What others did not give of a cache image: which of it is copied at once."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from nova_bootcache.tiers.exchanges import joined


def parts(lengths):
    """Make parts of a file: each is a gap's and a part's length."""
    found, end = [], 0
    for gap, length in lengths:
        found.append((end + gap, length))
        end += gap + length
    return found


def covered(pieces):
    return {byte for offset, length in pieces for byte in range(offset, offset + length)}


def test_the_least_between_is_copied_as_well():
    assert joined([(0, 10), (20, 10), (31, 10), (90, 10)], 3) == [(0, 10), (20, 21), (90, 10)]
    assert joined([(0, 10), (20, 10), (31, 10), (90, 10)], 1) == [(0, 100)]
    assert joined([], 1) == []


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), max_size=40),
       st.integers(1, 10))
def test_all_of_it_is_there_in_order_and_in_few_parts(lengths, most):
    missing = parts(lengths)
    found = joined(missing, most)
    assert covered(missing) <= covered(found)
    assert len(found) == min(len(missing), most)
    assert all(sum(one) < two[0] for one, two in itertools.pairwise(found))
    if len(missing) <= most:
        assert found == missing
