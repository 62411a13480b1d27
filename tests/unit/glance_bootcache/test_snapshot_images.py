"""Snapshots of servers as images: nothing until a server boots, then their parent's working set.

The neighbours are stand-ins, see test_controller.py.
"""

import dataclasses

import pytest

from bootcache.manifest import Goal, Manifest, Standing
from bootcache.reasons import Cause, Reason
from bootcache.rpc.messages import PlanBoot, ReportBoot
from bootcache.workingset import Extent, WorkingSet
from glance_bootcache import snapshotrules
from glance_bootcache.images import policy
from glance_bootcache.images.policy import Facts, Settings, Step
from tools import storedimages

PARENT = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
CHILD = '8a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
MIB = 1 << 20


def put(house, child=CHILD, content=b'1' * MIB, owner='one', parent=PARENT, **properties):
    """Register a snapshot, as Nova does."""
    house.images.put(child, content, owner=owner)
    facts = dataclasses.replace(house.images.images[child][1], properties={
        'image_type': 'snapshot', 'base_image_ref': parent, **properties})
    house.images.images[child] = content, facts


@pytest.fixture
def parent(house):
    """An image with a cache image."""
    house.images.put(PARENT)
    house.changed(PARENT)
    house.settle()
    assert house.state(PARENT) == 'ready' and len(house.boots.jobs) == 1
    return house


def ask(house, image=CHILD, server='server'):
    answer = house.hosts.plan_boot(PlanBoot(image, 'host', server))
    house.settle()
    return answer


@pytest.mark.parametrize('kind', ['snapshot', 'backup'])
def test_a_snapshot_costs_nothing_until_a_server_boots(parent, kind):
    put(parent, image_type=kind)
    for _notification in range(3):
        parent.changed(CHILD)
        parent.settle()
    manifest = parent.store.load(CHILD)
    assert (manifest.standing, manifest.cause.reason) \
        == (Standing.SKIPPED, Reason.SNAPSHOT_UNUSED)
    assert not manifest.made.base_path and len(parent.boots.jobs) == 1
    parent.restart()
    parent.recover()
    parent.settle()
    assert not parent.store.load(CHILD).made.base_path
    # Nor does its owner see anything on it: it is taken up by itself.
    assert CHILD not in dict(parent.images.shown)


def test_servers_of_one_without_a_hash_do_not_wait_for_what_does_not_come(parent):
    """As Glance has those that were registered by their location, until it has read them."""
    put(parent)
    content, facts = parent.images.images[CHILD]
    parent.images.images[CHILD] = content, dataclasses.replace(facts, image_hash='')
    parent.changed(CHILD)
    parent.settle()
    assert parent.store.load(CHILD).cause.reason is Reason.SNAPSHOT_UNUSED
    ask(parent)
    assert parent.store.load(CHILD).cause.reason not in (Reason.NONE, Reason.SNAPSHOT_UNUSED)
    assert ask(parent)['action'] == 'stock'


@pytest.mark.parametrize('is_known', [True, False])
def test_with_the_first_server_it_has_its_parents_working_set(parent, is_known):
    put(parent)
    if is_known:
        parent.changed(CHILD)
        parent.settle()
    assert ask(parent)['action'] == 'wait'
    assert parent.state(CHILD) == 'ready' and len(parent.boots.jobs) == 1, 'no profile boot'
    manifest = parent.store.load(CHILD)
    info = manifest.made.working_set
    assert (info.recorded_by, info.version, info.ended_by) == ('parent', 1, 'marker')
    working_set = parent.store.load_working_set(manifest)
    assert working_set.image_hash == manifest.made.base_hash and working_set.image_id == CHILD
    assert [(extent.offset, extent.length) for extent in working_set.extents] \
        == [(65536, 4096), (0, 4096)]
    assert ask(parent)['action'] == 'cache'
    # Its own properties change nothing of it.
    parent.changed(CHILD)
    parent.settle()
    assert parent.state(CHILD) == 'ready' and len(parent.boots.jobs) == 1


def test_its_own_first_boots_extend_it(parent):
    put(parent)
    ask(parent)
    for server in ('one', 'two'):
        assert ask(parent, server=server)['watch']
        manifest = parent.store.load(CHILD)
        parent.hosts.report_boot(ReportBoot(CHILD, manifest.made.base_hash, 'host', 65536, [[131072,
            65536, 0.1]], 'marker', 1.0, server_id=server))
        parent.settle()
    manifest = parent.store.load(CHILD)
    assert manifest.made.working_set.version == 2
    assert [extent.offset for extent in parent.store.load_working_set(manifest).extents] \
        == [65536, 0, 131072]
    assert parent.store.load(PARENT).made.working_set.version == 1


@pytest.mark.parametrize('seconds, action', [(snapshotrules.BUILD_SECONDS, 'wait'), (0.0, 'cold')])
def test_servers_wait_for_its_cache_image_not_for_ever(parent, monkeypatch, seconds, action):
    monkeypatch.setattr(snapshotrules, 'BUILD_SECONDS', seconds)
    put(parent)
    answers = []
    parent.qemu.building = lambda: answers.append(
        parent.hosts.plan_boot(PlanBoot(CHILD, 'host', 'server')))
    ask(parent)
    (answer,) = answers
    assert answer['action'] == action
    assert ('being built' in answer.get('reason', '')) is (action == 'wait')
    # Who does not wait can read the base at once.
    assert answer['base_export'] and answer['server']


@pytest.mark.parametrize('what', ['unknown parent', 'no parent', 'not its parent\'s', 'itself',
                                  'not ready'])
def test_without_a_parent_its_first_boot_is_recorded(parent, what):
    put(parent, **{'unknown parent': {'parent': '9a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'},
                   'no parent': {'parent': '../7a5c'}, 'itself': {'parent': CHILD},
                   'not its parent\'s': {'owner': 'another'}, 'not ready': {}}[what])
    if what == 'not ready':
        parent.store.change(PARENT, lambda known: known.standing_at(Standing.WANTED))
    ask(parent)
    assert parent.state(CHILD) == 'served' and len(parent.boots.jobs) == 1
    answer = ask(parent)
    assert answer['action'] == 'cold' and answer['watch']


@pytest.mark.parametrize('visibility, shares', [
    ('public', True), ('community', True), ('shared', False), ('private', False), ('', False)])
def test_only_what_the_project_may_see_is_its_parent(visibility, shares):
    known = Manifest(PARENT, Standing.DONE).wishing(visibility=visibility, owner='one').making(
        base_hash='sha512:00', working_set=object())
    assert snapshotrules.may_be_parent(known, 'another') is shares
    assert snapshotrules.may_be_parent(known, 'one')
    assert not snapshotrules.may_be_parent(known.wishing(visibility='private', owner=''), '')
    assert not snapshotrules.may_be_parent(None, 'one')


def test_a_snapshot_of_which_an_operator_wants_a_profile_boot(parent):
    put(parent)
    parent.build(CHILD)
    parent.settle()
    assert parent.state(CHILD) == 'ready' and len(parent.boots.jobs) == 2
    assert parent.store.load(CHILD).made.working_set.recorded_by == 'nova'


def test_with_the_option_off_none_is_taken_up(parent):
    parent.conf.set_override('build_snapshots', False, 'bootcache')
    parent.restart()
    put(parent)
    assert ask(parent)['action'] == 'wait'
    assert ask(parent) == {'action': 'stock', 'cause': 'snapshots-off',
                           'reason': f'the image is skipped: {Cause(Reason.SNAPSHOTS_OFF)}'}
    # As an earlier version left it: with the next start it is taken up with its first server.
    parent.conf.set_override('build_snapshots', True, 'bootcache')
    parent.restart()
    parent.recover()
    parent.settle()
    assert ask(parent)['action'] == 'wait'
    assert parent.state(CHILD) == 'ready'


def test_one_that_an_operator_deleted_stays_so(parent):
    put(parent)
    ask(parent)
    parent.evict(CHILD)
    parent.settle()
    assert ask(parent)['action'] == 'stock'
    assert parent.state(CHILD) == 'skipped' and parent.store.load(CHILD).wished.held


def test_a_restart_goes_on_with_one_that_was_taken_up(parent):
    put(parent)
    taken = policy.taken_up(Manifest(CHILD), parent.images.get(CHILD), 1.0)
    storedimages.put(parent.store, dataclasses.replace(taken, goal=Goal.SERVE))
    parent.restart()
    parent.recover()
    parent.settle()
    assert parent.state(CHILD) == 'ready' and len(parent.boots.jobs) == 1


def test_what_lies_beyond_its_end_is_left_out():
    parents = WorkingSet(PARENT, 'sha512:00', 4 * MIB, 4096, (
        Extent(3 * MIB, 4096), Extent(0, 8192, 0.5)))
    child = Manifest(CHILD).making(virtual_bytes=MIB, base_hash='sha512:01')
    assert snapshotrules.inherited(parents, child) == WorkingSet(
        CHILD, 'sha512:01', MIB, 4096, (Extent(0, 8192, 0.5),))


def test_the_decision_is_the_same_however_often_it_is_asked_for(parent):
    put(parent)
    image = parent.images.get(CHILD)
    settings = Settings(MIB, MIB, 'login:')
    later = policy.decide(None, Facts(image), settings)
    assert later.step is None and later.record.cause.reason is Reason.SNAPSHOT_UNUSED
    assert policy.decide(later.record, Facts(image), settings) == later
    begun = policy.decide(later.record, Facts(image, boots=True), settings)
    assert (begun.step, begun.record.goal) == (Step.GET_BASE, Goal.SERVE)
    assert policy.decide(begun.record, Facts(image), settings).step is Step.GET_BASE
