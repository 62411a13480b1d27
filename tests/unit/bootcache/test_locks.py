"""Locks know their turn: a mistake is told when it is made, not when threads wait for good."""

import gc
import threading

import pytest

from bootcache import locks
from bootcache.locks import KeyedLocks, OrderedLock


def test_in_their_order_they_are_taken():
    with OrderedLock(1, 'outer'), OrderedLock(2, 'inner'), OrderedLock(locks.LEAF, 'leaf'):
        pass


@pytest.mark.parametrize('ranks', [(2, 1), (1, 1), (1, 3, 2)])
def test_out_of_their_order_it_is_told(ranks, locks_in_their_turn):
    *first, last = (OrderedLock(rank, f'lock {number}') for number, rank in enumerate(ranks))
    for lock in first:
        lock.acquire()
    try:
        with pytest.raises(AssertionError, match=f'lock {len(ranks) - 1} is taken by a thread that'
                                                 f' has lock {len(ranks) - 2}'):
            last.acquire()
        locks_in_their_turn.clear()
    finally:
        for lock in first:
            lock.release()
    # Nothing is left of it.
    with OrderedLock(0, 'any'):
        pass


def test_a_thread_may_take_its_own_again_and_others_wait():
    lock, found = OrderedLock(2, 'one'), []
    with lock, OrderedLock(3, 'another'), lock:
        pass
    with lock:
        other = threading.Thread(target=lambda: found.extend((lock.acquire(0), lock.acquire(0.01))))
        other.start()
        other.join()
    assert found == [False, False]
    other = threading.Thread(target=lambda: found.append(lock.acquire(0)))
    other.start()
    other.join()
    assert found[-1] is True


def test_what_one_thread_has_is_no_matter_of_another():
    with OrderedLock(2, 'outer'):
        found = []

        def take():
            with OrderedLock(1, 'inner'):
                found.append(True)

        other = threading.Thread(target=take)
        other.start()
        other.join()
    assert found == [True]


def test_each_key_has_one_lock_while_somebody_needs_it():
    keyed = KeyedLocks(1, 'image')
    with keyed.of('a') as lock:
        assert keyed.of('a') is lock and keyed.of('b') is not lock
        assert lock.name == 'image a' and lock.rank == 1
    del lock
    gc.collect()
    assert len(keyed._locks) == 0


def test_without_tests_it_is_logged_once(monkeypatch, caplog):
    monkeypatch.undo()
    locks.complain('one is taken by a thread that has another')
    locks.complain('one is taken by a thread that has another')
    assert len(caplog.records) == 1 and 'one is taken' in caplog.text
    # The names of images may be in it: there is an end to that.
    for number in range(1000):
        locks.complain(f'number {number} is taken by a thread that has another')
    assert len(caplog.records) == len(locks._told) == locks._MOST_TOLD
    locks._told.clear()
