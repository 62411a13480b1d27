"""Cache images leave storage disk: nobody waits meanwhile, and no file goes that is served.

The neighbours are stand-ins, see test_controller.py; tests/functional/test_withdrawal.py has a real
exporter.
"""

import contextlib
import dataclasses
import os
import threading

import pytest
from fakes_manager import in_hand, until

from bootcache import exception, locks, properties, tier
from bootcache.manifest import Standing
from bootcache.rpc.messages import PlanBoot
from bootcache.tier import Eviction, Item, TierLimits
from glance_bootcache.images import policy
from glance_bootcache.locks import ServiceRank
from tools import storedimages

IMAGE, OTHER = (f'{number}a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f' for number in (7, 8))


@pytest.fixture
def ready(house):
    for image in (IMAGE, OTHER):
        house.images.put(image)
        house.changed(image)
    house.settle()
    return house


def path(house, image=IMAGE):
    return house.store.cache_path(house.store.load(image))


def test_nobody_waits_for_an_exporter_that_does_not_answer(ready):
    """A lock was held over it: all of the service waited for 40 s."""
    begun, go_on, file = threading.Event(), threading.Event(), path(ready)

    def hang(manifest):
        begun.set()
        assert go_on.wait(20)
        raise exception.StorageDaemonBusy('exporter: no answer')

    ready.exporter.on_withdrawal = hang
    refused = []

    def evict():
        try:
            ready.disk_room.evict(IMAGE)
        except exception.StorageDaemonError as error:
            refused.append(error)

    thread = threading.Thread(target=evict)
    thread.start()
    try:
        assert begun.wait(20)
        for image in (IMAGE, OTHER):
            assert ready.hosts.plan_boot(PlanBoot(image, 'host', 'server'))['action'] == 'cache'
            ready.controller.let_go(image)
    finally:
        go_on.set()
        thread.join(20)
    assert len(refused) == 1 and path(ready) == file and os.path.exists(file)


def test_the_file_goes_while_it_is_withdrawn_and_so_does_its_copy(ready):
    """In the block nobody has it served anew."""
    file, seen = path(ready), []

    @contextlib.contextmanager
    def withdrawn(manifest):
        yield True
        seen.append((os.path.exists(file), IMAGE in ready.tiers.forgotten, locks.held()))

    ready.exporter.withdrawn, ready.tiers.forgotten = withdrawn, []
    assert ready.disk_room.evict(IMAGE)
    assert seen == [(False, True, [])] and ready.state(IMAGE) == 'served'


@pytest.mark.parametrize('what', ['a job', 'a newer one', 'a job that has replaced it'])
def test_what_is_taken_in_hand_meanwhile_stays(ready, what):
    """The withdrawal may take a minute, and the image is anybody's meanwhile."""
    newer, steps = path(ready, IMAGE) + '.newer', contextlib.ExitStack()

    def change(manifest):
        if 'job' in what:
            steps.enter_context(in_hand(ready, IMAGE))
        if what != 'a job':
            with open(newer, 'w'):
                pass
            info = dataclasses.replace(manifest.made.cache_image, file=os.path.basename(newer))
            storedimages.put(ready.store, manifest.making(cache_image=info))

    ready.exporter.on_withdrawal, ready.tiers.forgotten = change, []
    with steps:
        assert not ready.disk_room.evict(IMAGE)
        assert path(ready) is not None and os.path.exists(path(ready))
        assert ready.tiers.forgotten == [], 'its copy in memory stays, too'


@pytest.mark.parametrize('gone', ['cache image', 'image'])
def test_what_is_gone_meanwhile_is_gone(ready, gone):
    def change(manifest):
        if gone == 'image':
            ready.store.remove(IMAGE)
        else:
            storedimages.put(ready.store, manifest.making(cache_image=None))

    ready.exporter.on_withdrawal = change
    assert ready.disk_room.evict(IMAGE)


def test_one_that_is_fetched_or_in_hand_stays(ready):
    ready.exporter.fetching.add(IMAGE)
    assert not ready.disk_room.evict(IMAGE)
    ready.exporter.fetching.clear()
    asked = []
    ready.exporter.on_withdrawal = asked.append
    with in_hand(ready, IMAGE):
        assert not ready.disk_room.evict(IMAGE) and asked == []
    assert ready.disk_room.evict(IMAGE)
    until(lambda: ready.state(IMAGE) == 'served', 'what is shown')


def test_whoever_calls_another_service_with_a_lock_is_told(ready, locks_in_their_turn):
    """The tests' own tool: all stand-ins of this folder's fakes complain."""
    lock = locks.OrderedLock(ServiceRank.TIERS, 'the tiers')
    with lock, pytest.raises(AssertionError, match='the tiers'):
        ready.images.get(IMAGE)
    assert len(locks_in_their_turn) == 1
    locks_in_their_turn.clear()


def test_two_that_are_built_at_the_same_time_count_for_each_other(ready, monkeypatch):
    """Each was found to have room before, and both together were over the quota."""
    room, planned, ended = ready.disk_room, [], []
    quota = 100

    def plan(_manifests, incoming, _busy):
        planned.append(incoming)
        return Eviction(incoming <= quota, ())

    monkeypatch.setattr(ready.tiers, 'plan_disk', plan)

    def build(size):
        with room.kept(OTHER, size):
            ended.append(size)

    with room.kept(IMAGE, 60):
        with room.kept(OTHER, 40):
            assert planned == [60, 100]
        waits = threading.Thread(target=build, args=(41,))
        waits.start()
        until(lambda: planned[-1] == 101, 'that it looks for room')
    waits.join(20)
    assert ended == [41] and planned[-1] == 41
    with pytest.raises(exception.BuildFailed, match='storage_disk_quota'), room.kept(IMAGE, 101):
        pass
    with room.kept(IMAGE, 100):
        assert planned[-1] == 100, 'nothing is kept for what has failed'


@pytest.fixture
def full(ready, monkeypatch):
    """A storage disk tier for 100 bytes, with both images' cache images of 40; IMAGE's is older."""
    limits = TierLimits(100, 100, 100)

    def plan(manifests, incoming=0, busy=()):
        return tier.make_room([Item(manifest.image_id, 40, int(manifest.image_id == OTHER),
                                    manifest.wished.pinned, manifest.image_id in busy)
                               for manifest in manifests if manifest.made.cache_image is not None],
                              limits, incoming)

    monkeypatch.setattr(ready.tiers, 'plan_disk', plan)
    return ready


def test_the_older_one_counts_while_a_newer_one_is_built(full):
    """Both lie there until the newer one is noted: 120 bytes before, of 100."""
    room, older = full.disk_room, path(full)
    with room.kept(IMAGE, 40):
        assert path(full, OTHER) is None, 'it goes, though it was used later'
        assert path(full) == older and os.path.exists(older), 'it is given out meanwhile'


@pytest.mark.parametrize('error', [exception.BuildFailed('ill'), RuntimeError('ill')], ids=repr)
@pytest.mark.parametrize('had_room', [False, True])
def test_a_build_that_cost_the_older_one_is_tried_again_by_itself(full, monkeypatch, error,
                                                                  had_room):
    """The image had one that served, and is not left without any; else the older one serves on."""
    full.store.change(OTHER, lambda manifest: manifest.wishing(pinned=True))

    def building():
        raise error

    full.qemu.building = building
    # Another quota than it was built with.
    monkeypatch.setattr(properties, 'MIN_QUOTA', 1)
    full.images.put(IMAGE, quota='20' if had_room else '60')
    full.changed(IMAGE)
    full.settle()
    manifest = full.store.load(IMAGE)
    assert policy.is_put_off(manifest) is not had_room and 'ill' in manifest.reason
    if had_room:
        assert manifest.standing is Standing.DONE and os.path.exists(path(full))
        return
    monkeypatch.setattr(full.tiers, 'plan_disk', lambda *_arguments: Eviction(True, ()))
    full.qemu.building = lambda: None
    full.later(3600)
    full.settle()
    assert os.path.exists(path(full)) and full.state(IMAGE) == 'ready'


@pytest.mark.parametrize('what', ['other', 'both', 'fetched', 'too large'])
def test_the_older_one_goes_first_where_there_is_no_room_for_both(full, what):
    room, older = full.disk_room, path(full)
    full.store.change(OTHER, lambda manifest: manifest.wishing(pinned=True))
    if what == 'both':
        full.store.change(IMAGE, lambda manifest: manifest.wishing(pinned=True))
    elif what == 'fetched':
        full.exporter.fetching.add(IMAGE)
    with in_hand(full, IMAGE):
        if what == 'other':
            with room.kept(IMAGE, 60):
                assert path(full) is None and not os.path.exists(older)
                assert full.tiers.forgotten[-1] == IMAGE, 'nor is it in memory'
        else:
            says = 'has no room; raise' if what == 'too large' else 'beside the older one'
            with pytest.raises(exception.BuildFailed, match=says), \
                    room.kept(IMAGE, 61 if what == 'too large' else 60):
                pass
            assert path(full) == older and os.path.exists(older), 'nothing is gained by it'
        assert path(full, OTHER) is not None
