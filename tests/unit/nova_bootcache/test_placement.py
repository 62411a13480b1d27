"""What a server's root disk is chained to: every combination of what decides it."""

import dataclasses
import itertools

import pytest

from bootcache.tier import Medium
from nova_bootcache.asking import placement
from nova_bootcache.asking.placement import (
    HeldHere,
    Host,
    Offer,
    PlanStep,
    Server,
    Storage,
    TierRoom,
    Trust,
    plan,
)

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'

# In the order in which they are told: the first that applies is the reason.
REASONS = ['enabled is off', 'not a root disk', 'not made from an image', 'kernel',
           'shelved', 'preallocate', 'full base']


def test_every_combination_of_obstacles():
    for obstacles in itertools.product((False, True), repeat=7):
        off, disk, image, kernel, unshelving, preallocates, stock = obstacles
        server = Server(None if image else IMAGE, 'disk.rescue' if disk else 'disk',
                        'kernel-id' if kernel else '', False, unshelving, preallocates)
        reason = placement.stock_reason(server, not off, stock)
        first = next((word for word, there in zip(REASONS, obstacles, strict=True) if there), '')
        assert bool(reason) == any(obstacles)
        assert first in reason


@pytest.mark.parametrize('name', ['disk.rescue', 'disk.eph0', 'disk.swap', 'disk.config', 'root',
                                  'disk.local', '', 'Disk'])
def test_only_the_root_disk(name):
    assert name in placement.stock_reason(Server(IMAGE, name, '', False, False, False), True, False)


@pytest.mark.parametrize('image', [None, ''])
def test_a_disk_without_an_image(image):
    assert placement.stock_reason(Server(image, 'disk', '', False, False, False), True, False)


@pytest.mark.parametrize('signed', [False, True])
@pytest.mark.parametrize('checks', [False, True])
@pytest.mark.parametrize('verified_by', ['', 'this', 'other'])
def test_what_was_not_verified_as_nova_would_is_not_served(signed, checks, verified_by):
    """Never less than stock: where Nova is to check it says by what, and is asked only there."""
    asked = []

    def wanted():
        asked.append(True)
        return 'this'

    server = Server(IMAGE, 'disk', '', checks, False, False, signed)
    reason = placement.unverified_reason(server, verified_by, wanted)
    if not signed and not checks:
        assert reason == ''
    else:
        assert bool(reason) == (verified_by != 'this' if checks else not verified_by)
    assert bool(asked) == (checks and bool(verified_by))


def test_what_nova_refuses_before_it_downloads_is_left_to_the_caller():
    def wanted():
        raise KeyError('not valid')

    with pytest.raises(KeyError):
        placement.unverified_reason(Server(IMAGE, 'disk', '', True, False, False), 'x', wanted)


EVERYTHING = [
    (Host(held, *rooms), Storage(offer, medium, has_memory, wants))
    for held in HeldHere for rooms in itertools.product(TierRoom, TierRoom, (False, True))
    for offer in Offer for medium in Medium
    for has_memory, wants in itertools.product((False, True), repeat=2)]
# The two ways of a tier.
FETCHES = {PlanStep.FETCH_TO_MEMORY, PlanStep.FETCH_TO_DISK}
ARRIVALS = {PlanStep.ARRIVE_IN_MEMORY: PlanStep.FETCH_TO_MEMORY,
            PlanStep.ARRIVE_ON_DISK: PlanStep.FETCH_TO_DISK}


def has_room(host):
    return {host.memory_room, host.disk_room} != {TierRoom.NONE}


def paper(host, storage):
    """Algorithm 1 as it is printed, over what the paper knows: where a cache is, and its medium."""
    steps = []
    if host.held is HeldHere.CURRENT:
        return [PlanStep.USE_LOCAL, PlanStep.SERVE_BASE, PlanStep.CHAIN]
    if storage.offer is Offer.CACHE:
        if storage.medium is Medium.DISK:
            steps.append(PlanStep.PROMOTE)
        # "Create NewCache on C, chain it to Cache": the empty one is the name that servers' chains
        # have from now on.
        return [*steps, PlanStep.MAKE_EMPTY, PlanStep.SERVE_BASE, PlanStep.ARRIVE_IN_MEMORY,
                PlanStep.CHAIN]
    return [PlanStep.MAKE_EMPTY, PlanStep.SERVE_BASE, PlanStep.GROW, PlanStep.CHAIN, PlanStep.WATCH]


def test_it_is_the_papers_algorithm_where_the_paper_speaks():
    """Room everywhere, memory on both sides, a storage side that answers."""
    for held, offer, medium in itertools.product(
            (HeldHere.NOTHING, HeldHere.CURRENT), (Offer.CACHE, Offer.COLD), Medium):
        if offer is Offer.COLD and held is HeldHere.CURRENT:
            continue  # a cache of the host's own making, which the paper copies back at shutdown
        host = Host(held, TierRoom.ARRIVAL, TierRoom.ARRIVAL, True)
        storage = Storage(offer, medium, has_memory=True, wants_report=offer is Offer.COLD)
        assert list(plan(host, storage)) == paper(host, storage)


def test_the_whole_input_space():
    assert len(EVERYTHING) == 5 * 18 * 6 * 2 * 4
    for host, storage in EVERYTHING:
        steps = plan(host, storage)
        assert len(set(steps)) == len(steps)
        if steps in ((PlanStep.STOCK,), (PlanStep.PROFILE,)):
            assert (steps == (PlanStep.PROFILE,)) == (storage.offer is Offer.PROFILE)
            continue
        # Whatever it is, the base is there before the overlay; only a boot can be watched then.
        assert steps.count(PlanStep.SERVE_BASE) == steps.count(PlanStep.CHAIN) == 1
        assert steps.index(PlanStep.SERVE_BASE) < steps.index(PlanStep.CHAIN)
        assert steps[-1] is (PlanStep.WATCH if PlanStep.WATCH in steps else PlanStep.CHAIN)
        assert PlanStep.STOCK not in steps and PlanStep.PROFILE not in steps
        assert storage.offer in (Offer.CACHE, Offer.COLD, Offer.AWAY)
        # There is something to chain to: here already, fetched, or made.
        sources = [step for step in steps
                   if step in FETCHES | {PlanStep.USE_LOCAL, PlanStep.MAKE_EMPTY}]
        assert len(sources) == 1 or (host.held is HeldHere.ARRIVING and sources == [])
        if PlanStep.USE_LOCAL in steps:
            assert host.held in (HeldHere.CURRENT, HeldHere.OLDER, HeldHere.EMPTY)
        if PlanStep.MAKE_EMPTY in steps:
            assert host.held is HeldHere.NOTHING
        coming = [step for step in steps if step in FETCHES or step in ARRIVALS]
        assert len(coming) <= 1
        for step in coming:
            assert storage.offer is Offer.CACHE and host.held is not HeldHere.CURRENT
            in_memory = step in (PlanStep.FETCH_TO_MEMORY, PlanStep.ARRIVE_IN_MEMORY)
            assert in_memory == (host.memory_room is not TierRoom.NONE)
            room = host.memory_room if in_memory else host.disk_room
            assert room is not TierRoom.NONE
            # It arrives where that is worth it, but for a boot that is watched.
            assert (step in ARRIVALS) == (room is TierRoom.ARRIVAL and PlanStep.WATCH not in steps)
            if step in ARRIVALS:
                # Servers read through the base's export meanwhile, by a name that is there.
                assert steps.index(sources[0]) < steps.index(PlanStep.SERVE_BASE) \
                    < steps.index(step) < steps.index(PlanStep.CHAIN)
                # A growing store would be in the same place.
                assert PlanStep.GROW not in steps and host.held is not HeldHere.ARRIVING
        if PlanStep.PROMOTE in steps:
            assert storage.has_memory and storage.medium is Medium.DISK
            assert steps.index(PlanStep.PROMOTE) < steps.index(coming[0])
        # What grows has room, what is watched grows, and both come before the server.
        assert PlanStep.GROW not in steps or host.store_room
        assert PlanStep.WATCH not in steps or (PlanStep.GROW in steps and storage.wants_report)
        if PlanStep.WATCH in steps:
            grow, watch, chain = map(steps.index, (PlanStep.GROW, PlanStep.WATCH, PlanStep.CHAIN))
            assert grow < chain < watch


def test_a_cache_image_that_is_here_is_used_whatever_the_storage_side_does():
    for host, storage in EVERYTHING:
        if host.held is HeldHere.CURRENT and storage.offer in (Offer.AWAY, Offer.CACHE, Offer.COLD):
            assert plan(host, storage)[0] is PlanStep.USE_LOCAL


def test_an_older_one_is_used_only_where_the_new_one_cannot_be_had():
    for host, storage in EVERYTHING:
        if host.held is HeldHere.OLDER and storage.offer in (Offer.AWAY, Offer.CACHE, Offer.COLD):
            new = storage.offer is Offer.CACHE and has_room(host)
            steps = set(plan(host, storage))
            assert bool(steps & (FETCHES | set(ARRIVALS))) == new
            # Also until the new one has arrived.
            assert (PlanStep.USE_LOCAL in steps) == (not steps & FETCHES)


def test_what_came_wrong_is_not_fetched_and_in_the_end_nothing_is_read_from_there():
    for host, storage in EVERYTHING:
        paused, unreadable, none = (dataclasses.replace(host, trust=trust) for trust in (
            Trust.PAUSED, Trust.UNREADABLE, Trust.NONE))
        assert plan(unreadable, storage) == plan(paused, storage)
        assert placement.plan_warming(unreadable, storage) \
            == placement.plan_warming(paused, storage)
        if storage.offer is not Offer.CACHE:
            assert plan(host, storage) == plan(paused, storage) == plan(none, storage)
            continue
        # As where it has no room: the base has all data.
        without = dataclasses.replace(host, memory_room=TierRoom.NONE, disk_room=TierRoom.NONE)
        assert plan(paused, storage) == plan(without, storage)
        assert placement.plan_warming(paused, storage) == placement.plan_warming(without, storage)
        # What is here was verified, and what is on its way is read already.
        is_here = host.held in (HeldHere.CURRENT, HeldHere.OLDER)
        if is_here or host.held is HeldHere.ARRIVING:
            assert plan(none, storage) == plan(without, storage)
        else:
            assert plan(none, storage) == (PlanStep.STOCK,)
        assert placement.plan_warming(none, storage) == (
            (PlanStep.USE_LOCAL,) if is_here else (PlanStep.STOCK,))


def test_a_refusal_is_a_refusal():
    for host, storage in EVERYTHING:
        stock = storage.offer in (Offer.STOCK, Offer.WAIT) or (
            storage.offer is Offer.AWAY and host.held is HeldHere.NOTHING)
        assert (plan(host, storage) == (PlanStep.STOCK,)) == stock


def test_a_cold_boot_grows_where_there_is_room_and_is_watched_where_it_is_wanted():
    for host, storage in EVERYTHING:
        if storage.offer is Offer.COLD and host.held in (HeldHere.NOTHING, HeldHere.EMPTY):
            steps = plan(host, storage)
            assert (PlanStep.GROW in steps) == host.store_room
            assert (PlanStep.WATCH in steps) == (host.store_room and storage.wants_report)
            assert (PlanStep.MAKE_EMPTY in steps) == (host.held is HeldHere.NOTHING)


# Before a server asks.

def test_warming_over_the_whole_input_space():
    for host, storage in EVERYTHING:
        steps = placement.plan_warming(host, storage)
        if storage.offer in (Offer.STOCK, Offer.PROFILE):
            assert steps == (PlanStep.STOCK,)
            continue
        if storage.offer is Offer.WAIT:
            assert steps == ()
            continue
        if host.held is HeldHere.ARRIVING:
            # It waits for what comes, as for one of which nothing is here.
            assert steps == placement.plan_warming(
                dataclasses.replace(host, held=HeldHere.EMPTY), storage)
            continue
        boot = plan(host, dataclasses.replace(storage, wants_report=False))
        # What a server would find, it finds; what would come for a boot, is fetched; no more.
        coming = [ARRIVALS.get(step, step) for step in boot
                  if step in FETCHES or step in ARRIVALS or step is PlanStep.PROMOTE]
        found = host.held in (HeldHere.CURRENT, HeldHere.OLDER) and PlanStep.USE_LOCAL in boot \
            and not coming
        assert list(steps) == ([PlanStep.USE_LOCAL] if found else coming), (host, storage)


def test_servers_that_come_while_it_arrives_read_from_it_and_wait_for_nothing():
    for host, storage in EVERYTHING:
        if host.held is HeldHere.ARRIVING and storage.offer in (Offer.AWAY, Offer.COLD,
                                                                Offer.CACHE):
            is_watched = storage.wants_report and host.store_room \
                and storage.offer is Offer.CACHE and has_room(host)
            steps = plan(host, storage)
            assert (steps == (PlanStep.SERVE_BASE, PlanStep.CHAIN)) == (not is_watched)
            # The growing store of one that is watched would be in the same place.
            assert bool(FETCHES & set(steps)) == (PlanStep.WATCH in steps) == is_watched


def test_servers_wait_for_other_hosts_only_where_it_arrives_and_there_are_some():
    """Then as the last step but one; all else of the plan is the same."""
    for host, storage in EVERYTHING:
        stock = plan(host, storage)
        asking = dataclasses.replace(host, asks_others=True)
        others = dataclasses.replace(storage, has_others=True)
        assert plan(asking, storage) == plan(host, others) == stock
        steps = plan(asking, others)
        arrives = bool(set(stock) & set(ARRIVALS)) or stock == (PlanStep.SERVE_BASE, PlanStep.CHAIN)
        assert steps == ((*stock[:-1], PlanStep.AWAIT, stock[-1]) if arrives else stock)
        if arrives:
            assert stock[-1] is PlanStep.CHAIN
        # Nobody waits while a host is warmed.
        assert placement.plan_warming(asking, others) == placement.plan_warming(host, storage)
