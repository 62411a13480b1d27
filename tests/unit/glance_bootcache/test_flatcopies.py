"""Copies of deep snapshots: which command of Ceph's fills one, and what follows from its end."""

import subprocess

import pytest
from fakes_clock import Clock

from bootcache.ceph.places import RbdClone, RbdOrigin
from bootcache.ceph.rbd import RbdAbsent, RbdInUse
from bootcache.util import backoff
from glance_bootcache.snapshots import flatcopies
from glance_bootcache.snapshots.flatcopies import FlatCopies
from glance_bootcache.storage.nodefiles import FileKind, FileState
from tools import storedimages

POOL = 'snapshots'
IMAGES = [f'7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5{number}' for number in range(2)]
BASES = [RbdClone('bootcache', 'storage', f'base-{image}-0a1b2c3d') for image in IMAGES]


class Pool:
    """Images by name, each with its parent; a copy is filled by a shell that ends as it is told."""

    def __init__(self):
        self.origins = {image: RbdOrigin('f-1', POOL, image, 'snap', f'id-{image}', '1')
                        for image in IMAGES}
        self.parents = dict.fromkeys(IMAGES)
        self.frozen, self.trashed, self.open = set(), [], set()
        self.commands = []

    def clones(self, pool, namespace):
        assert (pool, namespace) == (POOL, '')
        return [RbdClone(POOL, '', name) for name in self.parents]

    def origin(self, clone):
        if clone in BASES:
            return self.origins[IMAGES[BASES.index(clone)]]
        if clone.name not in self.parents:
            raise RbdAbsent(clone.path)
        return self.parents[clone.name]

    def depth(self, _origin, most):
        return most

    def clone_into(self, parent, clone, _object_size):
        if parent.image not in self.parents:
            raise RbdAbsent(parent.image)
        self.parents[clone.name] = self.origins[parent.image]

    def flattening(self, clone, said):
        process = subprocess.Popen(['sh', '-c', 'read line; eval "$line"'], stdin=subprocess.PIPE,
                                   stderr=said)
        self.commands.append((clone.name, process))
        return process

    def freeze(self, clone):
        assert self.parents[clone.name] is None, 'it stands on something still'
        self.frozen.add(clone.name)

    def thaw(self, clone):
        if clone.name not in self.parents:
            raise RbdAbsent(clone.path)
        self.frozen.discard(clone.name)

    def trash(self, clone):
        if clone.name in self.open:
            raise RbdInUse(clone.path)
        assert clone.name not in self.frozen
        del self.parents[clone.name]
        self.trashed.append(clone.name)

    def end(self, number, line='exit 0'):
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


@pytest.fixture
def rows(storage_conf, database, clock):
    """Of a service that was started just now."""
    def rows():
        rows = storedimages.opened(storage_conf, database).files
        rows._clock = clock.time
        rows.retire_left()
        return rows

    found = rows()
    for image, base in zip(IMAGES, BASES, strict=True):
        found.begin(image, FileKind.CLONE, base.path)
        found.change(image, ready=[base.path])
    rows.known = found
    return rows


@pytest.fixture
def started(pool, rows):
    """What a service that was started just now has."""
    return lambda: FlatCopies(pool, POOL, rows(), 4)


def copies(pool):
    return [name for name in pool.parents if name not in IMAGES]


def parents(copies_of, pool):
    """The names of what snapshots of each image are made of."""
    found = [copies_of.parent(pool.origins[image]) for image in IMAGES]
    return [parent and parent.image for parent in found]


@pytest.fixture
def single(pool, rows):
    """A pool with one deep base."""
    rows.known.change(IMAGES[1], retiring=[BASES[1].path])
    return pool


def test_snapshots_stand_on_a_copy_when_it_is_complete(single, started, clock, caplog):
    copies_of = started()
    copies_of.go_on()
    [name] = copies(single)
    assert name.startswith('flat-') and not copies_of.is_due()
    assert parents(copies_of, single) == [None, None]
    single.end(0)
    assert copies_of.is_due()
    copies_of.go_on()
    assert copies(single) == [name] and single.frozen == {name} and len(single.commands) == 1
    assert parents(copies_of, single) == [name, None]
    clock.now += 60
    later = started()
    later.go_on()
    assert parents(later, single) == [name, None] and len(single.commands) == 1
    assert 'cannot be made' not in caplog.text and single.trashed == []


def test_one_that_an_earlier_service_was_making_is_made_anew(single, started, clock):
    """Its command has outlived it, and has it open for a while."""
    started().go_on()
    [begun] = copies(single)
    single.open.add(begun)
    successor = started()
    successor.go_on()
    assert sorted(copies(single)) == sorted(name for name, _process in single.commands)
    single.end(0)
    single.end(1)
    single.open.clear()
    clock.now += 60
    successor.go_on()
    assert copies(single) == [single.commands[1][0]] and single.trashed == [begun]
    assert parents(successor, single) == [*copies(single), None]


def test_one_that_fails_is_tried_again_later_and_holds_up_no_other(pool, started, clock, caplog):
    copies_of = started()
    copies_of.go_on()
    pool.end(0, 'echo "rbd: the pool is full" >&2; exit 28')
    copies_of.go_on()
    assert 'the next try is in 600 s' in caplog.text and '(exit 28): rbd: the pool is full' \
        in caplog.text
    (failed, _process), (other, _process) = pool.commands
    assert copies(pool) == [other] and pool.trashed == [failed]
    pool.end(1)
    clock.now += 599
    copies_of.go_on()
    assert len(pool.commands) == 2
    clock.now += 1
    copies_of.go_on()
    assert len(pool.commands) == 3
    pool.end(2)
    copies_of.go_on()
    assert sorted(parents(copies_of, pool)) == sorted(copies(pool)) and len(copies(pool)) == 2
    assert caplog.text.count('cannot be made') == 1


def test_one_goes_with_the_last_base_and_others_of_the_pool_stay(pool, started, rows, caplog):
    """They are another storage service's, also those of the same images."""
    foreign = [f'flat-id-{IMAGES[0]}-1-0a1b2c3d', 'flat-x-1', 'flattening-x-1', 'volume']
    for name in foreign:
        pool.parents[name] = None
    copies_of = started()
    copies_of.go_on()
    pool.end(0)
    copies_of.go_on()
    complete, under_way = (name for name, _process in pool.commands)
    for image, base in zip(IMAGES, BASES, strict=True):
        rows.known.change(image, retiring=[base.path])
    copies_of.go_on()
    assert copies(pool) == foreign and sorted(pool.trashed) == sorted([complete, under_way])
    assert pool.commands[1][1].poll() is not None
    [line] = [line for line in caplog.messages if 'of no row' in line]
    assert line.startswith('2 copies of snapshots in Ceph') and foreign[0] in line


def test_what_glance_has_deleted_is_not_copied(single, started, rows):
    del single.parents[IMAGES[0]]
    copies_of = started()
    for _round in range(3):
        copies_of.go_on()
    assert copies(single) == [] and single.commands == []
    assert list(rows.known.named(FileKind.COPY, FileState.MAKING, FileState.READY)) == []


def test_a_ceph_that_is_away_as_a_command_ends_is_asked_again(single, started):
    copies_of, freeze = started(), single.freeze
    copies_of.go_on()
    single.end(0)
    single.freeze = lambda clone: 1 // 0
    with pytest.raises(ZeroDivisionError):
        copies_of.go_on()
    single.freeze = freeze
    assert copies_of.is_due()
    copies_of.go_on()
    assert parents(copies_of, single) == [*copies(single), None] and len(single.commands) == 1
