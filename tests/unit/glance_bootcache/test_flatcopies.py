"""Copies of deep snapshots: which command of Ceph's fills one, and what follows from its end."""

import subprocess

import pytest
from fakes_clock import Clock

from bootcache.ceph.places import RbdClone, RbdOrigin
from bootcache.ceph.rbd import RbdAbsent
from bootcache.util import backoff
from glance_bootcache.snapshots import flatcopies
from glance_bootcache.snapshots.flatcopies import FlatCopies

POOL, BASES = 'snapshots', ('bootcache', 'storage')
IMAGES = [f'7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5{number}' for number in range(2)]
NO_PARENT = 'echo "rbd: flatten error: (22) Invalid argument; image has no parent" >&2; exit 22'


class Pool:
    """Images by name, each with its parent; a copy is filled by a shell that ends as it is told."""

    def __init__(self):
        self.origins = {image: RbdOrigin('f-1', POOL, image, 'snap', f'id-{image}', '1')
                        for image in IMAGES}
        self.parents = dict.fromkeys(IMAGES)
        self.bases = {origin.clone(image, *BASES): origin for image, origin in self.origins.items()}
        self.frozen = set()
        self.commands = []

    def clones(self, pool, namespace):
        return list(self.bases) if (pool, namespace) == BASES else [
            RbdClone(POOL, '', name) for name in self.parents]

    def origin(self, clone):
        if clone in self.bases:
            return self.bases[clone]
        if clone.name not in self.parents:
            raise RbdAbsent(clone.path)
        return self.parents[clone.name]

    def depth(self, _origin, most):
        return most

    def clone_into(self, parent, clone, _object_size):
        self.parents[clone.name] = self.origins[parent.image]

    def flattening(self, clone, said):
        process = subprocess.Popen(['sh', '-c', 'read line; eval "$line"'], stdin=subprocess.PIPE,
                                   stderr=said)
        self.commands.append((clone.name, process))
        return process

    def freeze(self, clone):
        assert self.parents[clone.name] is None, 'it stands on something still'
        self.frozen.add(clone.name)

    def rename(self, clone, to):
        assert clone.name in self.frozen
        self.parents[to.name] = self.parents.pop(clone.name)

    def end(self, number, line):
        """Have a command end: fill its copy before, where it ends well."""
        name, process = self.commands[number]
        if line == 'exit 0':
            self.parents[name] = None
        process.communicate(f'{line}\n'.encode())


@pytest.fixture
def clock(monkeypatch):
    clock = Clock(100.0)
    made = backoff.Backoff
    monkeypatch.setattr(flatcopies, 'Backoff', lambda first: made(first, clock=clock))
    return clock


@pytest.fixture
def pool():
    pool = Pool()
    yield pool
    for _name, process in pool.commands:
        process.kill()
        process.communicate()


def service(pool):
    return FlatCopies(pool, POOL, BASES, 4)


def copies(pool):
    return [name for name in pool.parents if name not in IMAGES]


@pytest.fixture
def single(pool):
    """A pool with one deep base."""
    image = IMAGES[1]
    del pool.bases[pool.origins[image].clone(image, *BASES)]
    return pool


def test_a_copy_is_filled_frozen_and_named(single, clock, caplog):
    copies_of = service(single)
    copies_of.go_on()
    assert [name.split('-')[0] for name in copies(single)] == ['flattening']
    assert not copies_of.is_due()
    single.end(0, 'exit 0')
    assert copies_of.is_due()
    copies_of.go_on()
    assert copies(single) == [copies_of.parent(single.origins[IMAGES[0]]).image]
    assert copies(single)[0].startswith('flat-') and len(single.commands) == 1
    assert 'cannot be made' not in caplog.text


@pytest.mark.parametrize('ended', [0, 1])
def test_one_that_the_earlier_service_s_command_has_completed_is_named_at_once(single, clock,
                                                                               caplog, ended):
    """That command has outlived its service; whichever of the two ends later says that it fails."""
    service(single).go_on()
    successor = service(single)
    successor.go_on()
    assert len(single.commands) == 2
    single.end(ended, 'exit 0')
    single.end(1 - ended, NO_PARENT)
    successor.go_on()
    assert [name.split('-')[0] for name in copies(single)] == ['flat']
    assert 'cannot be made' not in caplog.text and len(single.commands) == 2


def test_one_that_fails_is_tried_again_later_and_holds_up_no_other(pool, clock, caplog):
    copies_of = service(pool)
    copies_of.go_on()
    pool.end(0, 'echo "rbd: the pool is full" >&2; exit 28')
    copies_of.go_on()
    assert 'the next try is in 600 s' in caplog.text and '(exit 28): rbd: the pool is full' \
        in caplog.text
    (failed, _process), (other, _process) = pool.commands
    assert failed != other
    pool.end(1, 'exit 0')
    clock.now += 599
    copies_of.go_on()
    assert len(pool.commands) == 2
    clock.now += 1
    copies_of.go_on()
    assert [name for name, _process in pool.commands] == [failed, other, failed]
    # The earlier one, which was given up, has come to its end after all.
    pool.parents[failed] = None
    pool.end(2, NO_PARENT)
    copies_of.go_on()
    assert sorted(name.split('-')[0] for name in copies(pool)) == ['flat', 'flat']
    assert caplog.text.count('cannot be made') == 1


def test_one_that_is_completed_while_the_next_try_waits_is_named(single, clock, caplog):
    copies_of = service(single)
    copies_of.go_on()
    single.end(0, 'exit 1')
    copies_of.go_on()
    assert 'cannot be made' in caplog.text
    single.parents[single.commands[0][0]] = None
    clock.now += 60
    assert copies_of.is_due()
    copies_of.go_on()
    assert [name.split('-')[0] for name in copies(single)] == ['flat'] and len(single.commands) == 1
