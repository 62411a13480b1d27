"""Which storage nodes work, by the clock of the one that looks."""

import dataclasses

import pytest
from fakes_clock import Clock

from bootcache.rpc.messages import NodeWish
from glance_bootcache.nodes.membership import Membership, NodeRecord, NodeState

OWN, OTHER, THIRD, FOURTH = 1, 2, 3, 4


class Cloud:
    """Storage nodes that beat each five seconds, as one of them sees them."""

    def __init__(self, *numbers):
        self.clock = Clock()
        self.membership = Membership(OWN, self.clock)
        self.rows = {number: NodeRecord(number, f'storage-{number}', 100) for number in numbers}
        self.look()

    def look(self):
        self.membership.observe(list(self.rows.values()))

    def change(self, number, **changes):
        self.rows[number] = dataclasses.replace(self.rows[number], **changes)

    def pass_by(self, seconds, *beating):
        """Let seconds pass, of which this node sees each fifth; some others beat."""
        while seconds > 0:
            self.clock.now += min(5, seconds)
            seconds -= 5
            for number in beating:
                self.change(number, beat=self.rows[number].beat + 1)
            self.look()

    def states(self):
        return {node.record.number: node.state.value for node in self.membership.nodes()}


@pytest.fixture
def two():
    return Cloud(OWN, OTHER)


@pytest.mark.parametrize('seconds, state', [
    (0, 'up'), (19, 'up'), (20, 'away'), (599, 'away'), (600, 'out'), (100_000, 'out')])
def test_a_node_whose_beat_stands_still_is_away_and_then_out(two, seconds, state):
    two.pass_by(seconds)
    assert two.states() == {OWN: 'up', OTHER: state}
    node = two.membership.node(OTHER)
    assert node.silent_seconds == seconds and node.takes_images is (state == 'up')


def test_one_that_beats_again_is_up(two):
    two.pass_by(700)
    assert two.states()[OTHER] == 'out'
    two.pass_by(5, OTHER)
    assert two.states()[OTHER] == 'up' and two.membership.node(OTHER).silent_seconds == 0
    # A smaller number is a beat as well: its database was put back.
    two.pass_by(30)
    two.change(OTHER, beat=1)
    two.look()
    assert two.states()[OTHER] == 'up'


def test_its_own_beat_says_nothing_about_this_node(two):
    """Whoever looks has just beaten, or judges nobody."""
    two.pass_by(1000, OTHER)
    assert two.states() == {OWN: 'up', OTHER: 'up'}
    assert two.membership.node(OWN).silent_seconds == 0


def test_what_else_a_row_says_is_no_beat(two):
    two.pass_by(15)
    two.change(OTHER, free_bytes=5, rpc='2.1')
    two.pass_by(5)
    assert two.states()[OTHER] == 'away' and two.membership.node(OTHER).record.free_bytes == 5


def test_a_row_that_is_new_is_up(two):
    two.pass_by(300, OTHER)
    two.rows[THIRD] = NodeRecord(THIRD, 'a', 1)
    two.look()
    assert [node.record.number for node in two.membership.nodes()] == [THIRD, OWN, OTHER], \
        'by name'
    assert two.states()[THIRD] == 'up'
    two.pass_by(20, OTHER)
    assert two.states() == {OWN: 'up', OTHER: 'up', THIRD: 'away'}


def test_one_that_was_gone_begins_anew(two):
    two.pass_by(700)
    row = two.rows.pop(OTHER)
    two.look()
    assert two.membership.node(OTHER) is None and two.states() == {OWN: 'up'}
    two.rows[OTHER] = row
    two.look()
    assert two.states()[OTHER] == 'up'


@pytest.mark.parametrize('seconds, is_blind', [(12, False), (12.1, True), (10_000, True)])
def test_after_a_time_without_a_look_all_clocks_begin_anew(two, seconds, is_blind):
    """A database that was away finds everybody's beat where it was."""
    two.pass_by(15)
    two.clock.now += seconds
    assert two.membership.may_judge is not is_blind
    assert two.states()[OTHER] == ('up' if is_blind else 'away'), 'nobody is judged meanwhile'
    two.look()
    assert two.membership.may_judge
    assert two.states()[OTHER] == ('up' if is_blind else 'away')
    two.pass_by(19)
    assert two.states()[OTHER] == ('up' if is_blind else 'away')
    two.pass_by(1)
    assert two.states()[OTHER] == 'away'


def test_a_node_that_did_not_work_itself_judges_nobody_until_it_looks_again(two):
    two.pass_by(700)
    assert two.states()[OTHER] == 'out'
    two.membership.forget_clocks()
    assert not two.membership.may_judge and two.states()[OTHER] == 'up'
    two.look()
    assert two.membership.may_judge
    two.pass_by(19)
    assert two.states()[OTHER] == 'up'
    two.pass_by(1)
    assert two.states()[OTHER] == 'out'


def test_a_node_that_is_gone_is_out_though_this_one_does_not_work_now_and_then(two):
    for _minute in range(11):
        assert two.states()[OTHER] != 'out'
        two.pass_by(60)
        two.membership.forget_clocks()
        two.clock.now += 1000  # That counts for nobody.
        two.look()
    assert two.membership.node(OTHER).silent_seconds == 660
    two.pass_by(20)
    assert two.states()[OTHER] == 'out'
    # One beat, and all is as if nothing had been.
    two.rows[OTHER] = dataclasses.replace(two.rows[OTHER], beat=two.rows[OTHER].beat + 1)
    two.look()
    assert two.membership.node(OTHER).silent_seconds == 0


def test_nothing_is_known_before_the_first_look():
    membership = Membership(OWN, Clock())
    assert membership.nodes() == [] and membership.node(OWN) is None
    assert membership.takes_images
    assert not (membership.may_judge or membership.are_several or membership.are_most_away)


def test_there_are_several_as_soon_as_there_is_another_row(two):
    assert two.membership.are_several
    del two.rows[OTHER]
    two.look()
    assert not two.membership.are_several


@pytest.mark.parametrize('wish', NodeWish)
def test_whose_images_others_are_to_take_over_takes_none(two, wish):
    two.change(OTHER, wish=wish)
    two.look()
    assert two.membership.takes_images and not two.membership.node(OTHER).takes_images
    assert two.membership.node(OTHER).state is NodeState.UP
    two.change(OWN, wish=wish)
    two.look()
    assert not two.membership.takes_images and not two.membership.node(OWN).takes_images


@pytest.mark.parametrize('others, away, are_most', [
    # Of one other nobody can tell which of both is cut off.
    ((OTHER,), (OTHER,), False),
    ((OTHER, THIRD), (OTHER,), False), ((OTHER, THIRD), (OTHER, THIRD), True),
    ((OTHER, THIRD, FOURTH), (OTHER,), False), ((OTHER, THIRD, FOURTH), (OTHER, FOURTH), True)])
@pytest.mark.parametrize('seconds', [20, 600])
def test_whether_most_of_the_others_are_away(others, away, are_most, seconds):
    cloud = Cloud(OWN, *others)
    cloud.pass_by(seconds, *set(others) - set(away))
    assert cloud.membership.are_most_away is are_most
    cloud.membership.forget_clocks()
    assert not cloud.membership.are_most_away, 'nobody is judged'
