"""Who gets pieces of a file from whom: few of those before it, neighbours first."""

import pytest
from fakes_clock import Clock
from hypothesis import given
from hypothesis import strategies as st

from bootcache.exchange import patience
from glance_bootcache.exchange import offers
from glance_bootcache.exchange.offers import Lines, Member

STORAGE = '192.0.2.1', 10811


def member(number, rack=''):
    return Member(f'host-{number}', (f'10.0.{number >> 8}.{number & 255}', 10811), rack, 1e9)


def numbers(peers):
    """The hosts' numbers; 's' is the storage node."""
    return ['s' if peer == STORAGE else int(peer[0].split('.')[2]) << 8 | int(peer[0].split('.')[3])
            for peer in peers]


@pytest.mark.parametrize('before, rack, told', [
    ([], '', ['s']),
    ([member(1)], '', [1, 's']),
    ([member(1), member(2)], '', [2, 1]),
    ([member(1), member(2), member(3)], '', [3, 2]),
    # Of its own rack first, and of others where there are not enough.
    ([member(1, 'a'), member(2, 'b'), member(3, 'b')], 'a', [1, 3]),
    ([member(1, 'a'), member(2, 'a'), member(3, 'b')], 'a', [2, 1]),
    ([member(1, 'a'), member(2, 'b')], 'c', [2, 1]),
    # To have none is to be near to nobody.
    ([member(1), member(2, 'b')], '', [2, 1])])
def test_a_host_is_told_of_few_that_came_before(before, rack, told):
    assert numbers(offers.predecessors(before, rack, STORAGE)) == told


def line_of(racks):
    """What each of some hosts is told, in the order in which they ask."""
    before, told = [], []
    for number, rack in enumerate(racks, 1):
        told.append(numbers(offers.predecessors(before, rack, STORAGE)))
        before.append(member(number, rack))
    return told


@given(st.lists(st.sampled_from(['', 'a', 'b', 'c']), min_size=1, max_size=60))
def test_whatever_the_racks_nobody_depends_on_one_and_few_on_the_storage_node(racks):
    told = line_of(racks)
    assert [peers.count('s') for peers in told] == [1, 1, *[0] * len(racks)][:len(racks)]
    for number, peers in enumerate(told, 1):
        assert len(set(peers)) == len(peers) == (1 if number == 1 else offers.PREDECESSORS)
        assert all(peer == 's' or peer < number for peer in peers)


@given(st.lists(st.sampled_from(['a', 'b', 'c']), min_size=3, max_size=60))
def test_a_file_comes_into_a_rack_few_times(racks):
    crossings = dict.fromkeys(racks, 0)
    for rack, peers in zip(racks, line_of(racks), strict=True):
        crossings[rack] += sum(peer == 's' or racks[peer - 1] != rack for peer in peers)
    # The first host of a rack gets all from outside, the second one half.
    assert max(crossings.values()) <= 3


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def lines(clock):
    return Lines(100, STORAGE, clock)


def join(lines, number, file='file', rack=''):
    found = member(number)
    return numbers(lines.join(file, found.host, found.peer, rack))


def test_a_host_hears_whether_others_were_told_of_a_file_just_now(lines, clock):
    assert not lines.tell('file', 'one')
    # It boots another server.
    assert not lines.tell('file', 'one')
    assert lines.tell('file', 'two') and lines.tell('file', 'one')
    assert not lines.tell('other', 'two')
    clock.now += 3
    assert lines.tell('file', 'two')
    clock.now += 3
    # Of the first one it is too long ago; of itself it heard before.
    assert not lines.tell('file', 'two')
    assert lines.tell('file', 'three')


@given(st.lists(st.tuples(st.sampled_from('abcd'), st.integers(0, 3)), max_size=30))
def test_what_is_kept_of_who_was_told_is_enough_to_know_it(asked):
    clock = Clock()
    lines, told = Lines(100, STORAGE, clock), {}
    for host, later in asked:
        clock.now += later
        assert lines.tell('file', host) == any(
            clock.now < until for name, until in told.items() if name != host)
        told[host] = clock.now + patience.SERVERS_WAIT
        assert len(lines._told['file']) <= 2


def test_each_file_has_its_own_line(lines):
    assert [join(lines, number) for number in (1, 2, 3)] == [['s'], [1, 's'], [2, 1]]
    assert join(lines, 3, 'other') == ['s']


def test_who_asks_again_comes_to_the_end_and_is_never_told_of_itself(lines):
    for number in 1, 2, 3:
        join(lines, number)
    assert join(lines, 1) == [3, 2]
    assert join(lines, 4) == [1, 3]


def test_who_gives_no_longer_is_not_told_of(lines, clock):
    join(lines, 1)
    clock.now += 60
    join(lines, 2)
    clock.now += 60
    assert join(lines, 3) == [2, 's']


def test_the_storage_node_is_left_alone_where_the_one_before_has_all(lines, clock):
    join(lines, 1)
    assert lines.has_come('file', 'host-1', gives=True) == {'10.0.0.1': 'host-1'}
    assert join(lines, 2) == [1]
    # It gives from then on for as long as one that has just asked.
    clock.now += 99
    lines.has_come('file', 'host-2', gives=True)
    clock.now += 99
    assert join(lines, 3) == [2]


def test_who_does_not_give_leaves_the_line(lines):
    join(lines, 1)
    join(lines, 2)
    lines.has_come('file', 'host-2', gives=False)
    assert join(lines, 3) == [1, 's']
    assert lines.has_come('file', 'host-2', gives=True) is None
    assert lines.has_come('other', 'host-1', gives=True) is None


def test_an_address_is_of_one_host(lines):
    """One that was renamed, or one that takes another's: what comes is verified in any case."""
    lines.join('file', 'earlier', member(1).peer, '')
    assert lines.join('file', 'later', member(1).peer, '') == (STORAGE,)
