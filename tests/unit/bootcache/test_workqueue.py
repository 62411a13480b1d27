"""Keys are worked on by one thread at a time each, when they are due, and none is lost."""

import collections
import threading

import pytest
from fakes_clock import Clock
from hypothesis import given
from hypothesis import strategies as st
from waiting import until

from bootcache.util import workqueue
from bootcache.util.workqueue import WorkQueue


class Worked:
    """A queue whose work waits at a gate, where there is one, and raises what it is told to."""

    def __init__(self, workers=2):
        self.clock = Clock()
        self.queue = WorkQueue(self.work, workers, 'test', self.failed, self.clock)
        self.done, self.errors = [], []
        self.gates, self.raises = {}, {}
        self.at_once = collections.Counter()
        self.most_at_once = collections.Counter()
        self.lock = threading.Lock()

    def work(self, key):
        with self.lock:
            self.at_once[key] += 1
            self.most_at_once[key] = max(self.most_at_once[key], self.at_once[key])
        try:
            if key in self.gates:
                assert self.gates[key].wait(20)
            if self.raises.get(key):
                raise self.raises[key].pop(0)
        finally:
            with self.lock:
                self.at_once[key] -= 1
                self.done.append(key)

    def failed(self, key, error):
        self.errors.append((key, error))

    def close(self, key):
        """Have the work of a key wait until the gate is opened."""
        return self.gates.setdefault(key, threading.Event())

    def later(self, seconds):
        self.clock.sleep(seconds)
        self.queue.wake()
        self.idle()

    def idle(self):
        until(self.queue.is_idle, 'the end of all that is due')


@pytest.fixture
def make():
    made = []

    def make(workers=2):
        made.append(Worked(workers))
        made[-1].queue.start()
        return made[-1]

    yield make
    for worked in made:
        for gate in worked.gates.values():
            gate.set()
        worked.queue.stop()


@pytest.fixture
def worked(make):
    return make()


def test_each_key_is_worked_on(worked):
    for key in 'abc':
        worked.queue.add(key)
    worked.idle()
    assert sorted(worked.done) == ['a', 'b', 'c']


def test_a_key_that_waits_is_worked_on_once_however_often_it_is_added(make):
    worked = make(workers=1)
    gate = worked.close('other')
    worked.queue.add('other')
    until(lambda: worked.at_once['other'])
    for _time in range(100):
        worked.queue.add('one')
    assert len(worked.queue.ages()) == 1
    gate.set()
    worked.idle()
    assert worked.done == ['other', 'one']


def test_a_key_that_is_added_while_it_is_worked_on_is_worked_on_once_more(worked):
    gate = worked.close('one')
    worked.queue.add('one')
    until(lambda: worked.at_once['one'])
    for _time in range(3):
        worked.queue.add('one')
    # Another thread is free, and takes other keys meanwhile.
    worked.queue.add('two')
    until(lambda: worked.done == ['two'])
    assert worked.at_once['one'] == 1 and not worked.queue.is_idle()
    gate.set()
    worked.idle()
    assert worked.done == ['two', 'one', 'one'] and worked.most_at_once['one'] == 1


def test_a_key_is_due_when_the_time_has_come_and_not_before(worked):
    worked.queue.add('one', 10)
    worked.later(9)
    assert worked.done == [] and worked.queue.is_idle()
    worked.later(1)
    assert worked.done == ['one']
    worked.later(1000)
    assert worked.done == ['one']


@pytest.mark.parametrize('first, second, due', [(10, 5, 5), (5, 10, 5), (10, 0, 0)])
def test_a_key_is_due_at_the_earliest_of_its_times(worked, first, second, due):
    worked.queue.add('one', first)
    worked.queue.add('one', second)
    for second in range(11):
        worked.later(1 if second else 0)
        assert worked.done == (['one'] if second >= due else [])


def test_a_key_that_is_due_later_while_it_is_worked_on_is_not_lost(worked):
    gate = worked.close('one')
    worked.queue.add('one')
    until(lambda: worked.at_once['one'])
    worked.queue.add('one', 10)
    gate.set()
    worked.idle()
    assert worked.done == ['one']
    worked.later(10)
    assert worked.done == ['one', 'one']


def test_keys_are_taken_in_the_order_in_which_they_were_due(make):
    worked = make(workers=1)
    gate = worked.close('first')
    worked.queue.add('first')
    until(lambda: worked.at_once['first'])
    for key, after in (('c', 3), ('a', 1), ('b', 2), ('now', 0)):
        worked.queue.add(key, after)
    worked.clock.sleep(3)
    gate.set()
    worked.idle()
    assert worked.done == ['first', 'now', 'a', 'b', 'c']


def test_what_failed_is_worked_on_again_with_growing_pauses(worked):
    errors = [RuntimeError(number) for number in range(3)]
    worked.raises['one'] = list(errors)
    worked.queue.add('one')
    worked.idle()
    assert worked.errors == [('one', errors[0])]
    for pause, tries in ((5, 2), (10, 3), (20, 4)):
        worked.later(pause - 1)
        assert len(worked.done) == tries - 1
        worked.later(1)
        assert len(worked.done) == tries
    assert worked.errors == [('one', error) for error in errors]
    worked.later(3600)
    assert len(worked.done) == 4
    # Pauses begin with the first one again.
    worked.raises['one'] = [RuntimeError('new')]
    worked.queue.add('one')
    worked.idle()
    worked.later(5)
    assert len(worked.done) == 6


def test_an_error_does_not_keep_a_key_from_what_is_heard_of_it(worked):
    worked.raises['one'] = [RuntimeError()]
    worked.queue.add('one')
    worked.idle()
    worked.queue.add('one')
    worked.idle()
    assert worked.done == ['one', 'one']


def test_the_threads_outlive_what_cannot_be_told_of_an_error(make):
    worked = make(workers=1)

    def failed(key, error):
        raise OSError('the log is full')

    worked.queue._failed = failed
    worked.raises['one'] = [RuntimeError()]
    worked.queue.add('one')
    worked.queue.add('two')
    worked.idle()
    assert worked.done == ['one', 'two']


def test_keys_that_wait_keep_no_other_key_from_it(worked):
    for number in range(30_000):
        worked.queue.add(f'waits {number}', 3600)
    worked.queue.add('one')
    worked.idle()
    assert worked.done == ['one']


def test_ages_are_those_of_keys_that_are_due(make):
    worked = make(workers=1)
    gate = worked.close('busy')
    worked.queue.add('busy')
    until(lambda: worked.at_once['busy'])
    worked.queue.add('old')
    worked.queue.add('later', 50)
    worked.clock.sleep(20)
    worked.queue.add('new')
    assert sorted(worked.queue.ages()) == [0, 20]
    gate.set()
    worked.idle()
    assert worked.queue.ages() == []


def test_stopping_waits_for_what_is_worked_on_and_begins_nothing(make):
    worked = make(workers=1)
    gate = worked.close('one')
    worked.queue.add('one')
    until(lambda: worked.at_once['one'])
    worked.queue.add('two')
    stopped = threading.Thread(target=worked.queue.stop)
    stopped.start()
    until(lambda: not worked.queue.ages())
    worked.queue.add('three')
    assert stopped.is_alive()
    gate.set()
    stopped.join(20)
    assert not stopped.is_alive() and worked.done == ['one']


def test_what_was_done_earlier_than_it_was_due_takes_no_memory(worked, monkeypatch):
    monkeypatch.setattr(workqueue, '_MOST_PASSED', 5)
    worked.queue.add('other', 7)
    for number in range(100):
        worked.queue.add('one', 10)
        worked.queue.add('one')
        until(lambda number=number: len(worked.done) > number)
    assert len(worked.queue._ordered) <= 10
    worked.idle()
    worked.later(10)
    assert worked.done == ['one'] * 100 + ['other']


@given(st.lists(st.tuples(st.sampled_from('abc'), st.integers(0, 3), st.integers(0, 3)),
                max_size=30))
def test_nothing_that_is_added_is_lost(events):
    """Each key is worked on at the latest when its earliest time has come."""
    worked = Worked(workers=3)
    worked.queue.start()
    try:
        for key, after, passes in events:
            before = worked.done.count(key)
            worked.queue.add(key, after)
            if not after:
                worked.idle()
                assert worked.done.count(key) > before
            worked.later(passes)
        worked.later(3)
        assert set(worked.done) == {key for key, _after, _passes in events}
        assert all(most == 1 for most in worked.most_at_once.values())
        done = len(worked.done)
        worked.later(1000)
        assert len(worked.done) == done, 'and none is worked on for nothing'
    finally:
        worked.queue.stop()


def test_who_waits_for_one_key_is_not_woken_in_a_worker_s_place():
    """It began to wait before the worker."""
    worked = threading.Event()
    queue = WorkQueue(lambda key: worked.set(), 1, 'queue', lambda key, error: None)
    queue.add('late', 1000)
    waits = threading.Thread(target=queue.wait, args=('late', 1000))
    waits.start()
    until(lambda: len(queue._changed._waiters) == 1)
    queue.start()
    until(lambda: len(queue._changed._waiters) == 2)
    try:
        queue.add('now')
        assert worked.wait(20)
    finally:
        queue.stop()
        waits.join()
