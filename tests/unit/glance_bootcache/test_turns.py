"""Whose image is recorded next."""

import collections
import itertools
import threading

import pytest
from fakes_manager import until
from hypothesis import given
from hypothesis import strategies as st

from glance_bootcache.images import turns
from glance_bootcache.images.policy import Step
from glance_bootcache.images.running import Running
from glance_bootcache.images.turns import Turns, WaitingImage, most_in_hand, next_turn
from glance_bootcache.profileboot.job import ImageJob

OWNERS = st.sampled_from(['a', 'b', 'c', 'd'])


def waiting(*owners):
    """Images of these owners, in the order in which they came."""
    return [WaitingImage(f'{owner}{came}', owner, came) for came, owner in enumerate(owners)]


@pytest.mark.parametrize(('owners', 'running', 'last', 'places', 'expected'), [
    ('', {}, {}, 1, None),
    ('ab', {}, {}, 1, 'a0'),
    ('ab', {'c': 1}, {}, 1, None),
    # Turns: whoever had none comes before whoever had one.
    ('aab', {}, {'a': 0}, 1, 'b2'),
    ('aab', {}, {'a': 0, 'b': 1}, 1, 'a0'),
    ('aa', {'a': 1}, {'a': 0}, 2, 'a0'),
    ('aab', {'a': 1}, {'a': 0}, 2, 'b2'),
    # Beyond the places there is room for owners that have none in hand, and for no others.
    ('aa', {'a': 2}, {'a': 0}, 2, None),
    ('aab', {'a': 2}, {'a': 0}, 2, 'b2'),
    ('c', {'a': 2, 'b': 1}, {}, 3, 'c0'),
    ('d', {'a': 2, 'b': 1, 'c': 1}, {}, 3, None),
    # The one with fewer in hand, whenever its last turn was.
    ('ab', {'a': 1}, {'a': 0, 'b': 1}, 3, 'b1')])
def test_next(owners, running, last, places, expected):
    found = next_turn(waiting(*owners), running, last, places)
    assert (found and found.image_id) == expected


@given(st.lists(OWNERS, max_size=20), st.dictionaries(OWNERS, st.integers(0, 3)),
       st.dictionaries(OWNERS, st.integers(0, 9)), st.integers(1, 5))
def test_what_always_holds(owners, running, last, places):
    images = waiting(*owners)
    found = next_turn(images, running, last, places)
    in_hand = sum(running.values())
    allowed = set(owners) if in_hand < places else {
        owner for owner in owners if not running.get(owner, 0)}
    assert (found is not None) == bool(in_hand < most_in_hand(places) and allowed)
    if found is not None:
        assert found.owner in allowed
        # Nobody's later image before an earlier one.
        assert all(image.came >= found.came for image in images if image.owner == found.owner)
        assert all(running.get(found.owner, 0) <= running.get(owner, 0) for owner in allowed)


@given(st.lists(OWNERS, min_size=1, max_size=40), st.integers(1, 4), st.data())
def test_nobody_waits_longer_than_a_round(owners, places, data):
    """Images end in any order; between two turns of an owner that waits, others have one each."""
    images, running, last = waiting(*owners), collections.Counter(), {}
    turn, since = 0, dict.fromkeys(owners, 0)
    while images or +running:
        while (image := next_turn(images, running, last, places)) is not None:
            images.remove(image)
            running[image.owner] += 1
            assert running[image.owner] <= places
            assert running.total() <= most_in_hand(places)
            last[image.owner] = turn
            turn += 1
            since[image.owner] = 0
            for owner in {one.owner for one in images} - {image.owner}:
                since[owner] += 1
                if running[owner] == 0:
                    assert since[owner] <= places + len(since), (owner, since)
        assert +running, 'a place is free, and somebody waits for ever'
        running[data.draw(st.sampled_from(sorted((+running).elements())))] -= 1


class Work:
    """Work that goes on until it is told to end."""

    def __init__(self, places):
        self.turns = Turns(places)
        self.begun = []
        self.gates = collections.defaultdict(threading.Event)

    def add(self, image_id, owner):
        def work():
            self.begun.append(image_id)
            assert self.gates[image_id].wait(20)

        self.turns.submit(image_id, owner, work)

    def end(self, image_id):
        self.gates[image_id].set()


@pytest.fixture
def make():
    made = []

    def make(places):
        made.append(Work(places))
        return made[-1]

    yield make
    for work in made:
        work.turns.shutdown(wait=False)
        for image_id in work.begun:
            work.end(image_id)


def test_a_guest_that_does_not_end_holds_up_no_other_owner(make):
    work = make(2)
    for number in range(4):
        work.add(f'a{number}', 'a')
    work.add('b0', 'b')
    work.add('c0', 'c')
    until(lambda: sorted(work.begun) == ['a0', 'a1', 'b0'])
    work.end('b0')
    until(lambda: work.begun[3:] == ['c0'])
    work.end('c0')
    work.add('d0', 'd')
    until(lambda: work.begun[4:] == ['d0'])
    # All this while the first two go on, and their owner's others wait.
    assert work.turns.is_waiting('a2') and work.turns.is_waiting('a3')
    work.end('d0')
    work.end('a0')
    until(lambda: work.begun[5:] == ['a2'])


def test_with_one_place_owners_take_turns(make):
    work = make(1)
    for image_id in ('a0', 'a1', 'a2', 'b0', 'b1'):
        work.add(image_id, image_id[0])
        work.end(image_id)
    until(lambda: len(work.begun) == 5)
    assert work.begun[0] == 'a0' and sorted(work.begun) == ['a0', 'a1', 'a2', 'b0', 'b1']


def test_work_that_fails_gives_its_place_up(make):
    work = make(1)
    work.turns.submit('x', 'a', lambda: 1 // 0)
    work.add('y', 'a')
    until(lambda: work.begun == ['y'])


def test_what_does_not_have_to_wait_any_more(make):
    work = make(1)
    work.add('a0', 'a')
    until(lambda: work.begun == ['a0'])
    work.add('a1', 'a')
    assert work.turns.is_waiting('a1') and not work.turns.is_waiting('a0')
    assert work.turns.take_out('a1') is not None and work.turns.take_out('a1') is None
    assert work.turns.take_out('a0') is None
    work.end('a0')
    work.add('a2', 'a')
    until(lambda: work.begun == ['a0', 'a2'])


def test_owners_of_long_ago_are_forgotten(make, monkeypatch):
    monkeypatch.setattr(turns, '_MOST_OWNERS', 3)
    work = make(1)
    for number in range(10):
        work.add(f'x{number}', f'owner-{number}')
        work.end(f'x{number}')
    until(lambda: len(work.begun) == 10)
    assert len(work.turns._last) == 3


@pytest.mark.parametrize('places', [2, 3, 5])
def test_two_hundred_images_that_never_end_beside_one_of_another_owner(places):
    """It is begun at once, whatever the others have in hand and waiting; and so is its next."""
    images, running, last = waiting(*'a' * 200), collections.Counter(), {}
    for turn in itertools.count():
        image = next_turn(images, running, last, places)
        if image is None:
            break
        images.remove(image)
        running['a'] += 1
        last['a'] = turn
    assert len(images) == 200 - places
    for number in range(3):
        other = WaitingImage('other', 'b', 200 + number)
        assert next_turn([*images, other], running, last, places) == other
        last['b'] = 1000 + number


@pytest.mark.parametrize('name', ['submit', 'take_out'])
def test_a_step_waits_for_its_turn_as_soon_as_it_is_known(monkeypatch, name):
    """Who gave up a step between the two gave up nothing, or the work of the image's next step."""
    running, held, call = Running(1), [], getattr(Turns, name)
    monkeypatch.setattr(Turns, name, lambda *arguments: (
        held.append(running._lock.locked()), call(*arguments))[1])
    end = threading.Event()
    for image in ('busy', 'one', 'two'):
        running.start(ImageJob(image, Step.RECORD), 'a', lambda: end.wait(20), lambda: None)
    assert running.cancel('two') and not running.cancel('busy')
    assert running.images() == {'busy', 'one'}
    end.set()
    until(lambda: not running.images())
    running.stop()
    assert held and all(held)
