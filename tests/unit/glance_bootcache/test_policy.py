"""What is to be done about an image: every case in a table, and what holds of all of them."""

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootcache import exception
from bootcache.manifest import (
    Availability,
    CacheInfo,
    Goal,
    Made,
    Manifest,
    Standing,
    Wished,
    WorkingSetInfo,
)
from bootcache.reasons import NO_CAUSE, Cause, Reason
from glance_bootcache.images import policy
from glance_bootcache.images.policy import Decision, Facts, ImageFacts, Settings, Step
from glance_bootcache.storage import inspection

MIB = 1 << 20
IMAGE = ImageFacts('7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f', 'active', 'qcow2', 'bare', 5 * MIB,
                   'sha512:00', 0, 0, {})
SET = WorkingSetInfo('set', 900, 3, 4096, 'nova', 'marker', 12.5, 'login:')
CACHE = CacheInfo('cache', 1000, 900, 3, 'ab', 1 << 30, 65536, 512 * MIB, 'nbd://', 1.5, 1)
READY = Manifest(IMAGE.image_id, Standing.DONE, image_hash='sha512:00', made=Made(
    '/base', 'sha512:00', '', 'qcow2', 5 * MIB, 1 << 30, SET, CACHE, 'set'))
SETTINGS = Settings(512 * MIB, 2048 * MIB, 'login:', build_snapshots=False)


def decide(image=IMAGE, record=None, settings=None, **facts):
    return policy.decide(record, Facts(image, **facts),
                         dataclasses.replace(SETTINGS, **settings or {}))


def image(properties=None, **changes):
    return dataclasses.replace(IMAGE, properties=properties or {}, **changes)


def manifest(standing=Standing.DONE, held=False, goal=Goal.NONE, **made):
    return READY.standing_at(standing, goal=goal).wishing(held=held).making(**made)


@dataclasses.dataclass(frozen=True)
class Wish:
    """What is wanted of an image, with which quota and marker; no goal for nothing more."""

    goal: Goal = Goal.NONE
    quota: int = 512 * MIB
    boot_marker: str = 'login:'


def check(decision, known, wish):
    """Check a decision about an image whose base is not at hand."""
    record = decision.record
    assert Wish(record.goal, record.wished.quota, record.wished.boot_marker) == wish
    if wish.goal:
        assert (decision.step, record.cause, record.wished.held) == (
            Step.GET_BASE, NO_CAUSE, False)
        assert record.image_hash and record.standing is (
            known.standing if wish.goal is Goal.BUILD else Standing.WANTED)
    else:
        assert decision.step is policy.retirement(known)
        assert (record.standing, record.cause, record.made) == (
            known.standing, known.cause, known.made)


def is_skipped(decision):
    """Return the cause for which an image is skipped, in words."""
    record = decision.record
    assert record.standing is Standing.SKIPPED and not record.goal
    assert record.made.cache_image is None and record.made.working_set is None
    return str(record.cause)


RECORD, SERVE, BUILD, NOTHING = map(Wish, (Goal.RECORD, Goal.SERVE, Goal.BUILD, Goal.NONE))
HELD = Wish(quota=0, boot_marker='')

# None could be made of 64 MiB.
TRIED = READY.standing_at(Standing.DONE, Cause(Reason.FAILED, 'there is no room')) \
    .wishing(quota=64 * MIB, boot_marker='login:')

TABLE = {
    'the quota was tried in vain': (
        image({'bootcache_quota': '64MiB'}), TRIED, Wish(quota=64 * MIB)),
    'another quota is tried after that': (
        image({'bootcache_quota': '96MiB'}), TRIED, Wish(Goal.BUILD, 96 * MIB)),
    'the marker was tried in vain': (
        image({'bootcache_boot_marker': 'up'}), TRIED.wishing(quota=512 * MIB, boot_marker='up'),
        Wish(boot_marker='up')),
    'another marker is tried after that': (
        image({'bootcache_boot_marker': 'on'}), TRIED.wishing(quota=512 * MIB, boot_marker='up'),
        Wish(Goal.RECORD, boot_marker='on')),
    'new image': (IMAGE, None, RECORD),
    'raw image': (image(disk_format='raw'), None, RECORD),
    'ready': (IMAGE, READY, NOTHING),
    'restart while it is recorded': (IMAGE, manifest(Standing.WANTED, goal=Goal.RECORD), RECORD),
    'restart while it is built': (IMAGE, manifest(Standing.WANTED, goal=Goal.BUILD), BUILD),
    'restart while it is built, and the working set is lost': (
        IMAGE, manifest(Standing.WANTED, goal=Goal.BUILD, working_set=None), RECORD),
    'wanted, and nothing was begun': (IMAGE, manifest(Standing.WANTED), RECORD),
    'content changed': (image(image_hash='sha512:11'), READY, RECORD),
    'content changed while it is recorded': (
        image(image_hash='sha512:11'), manifest(Standing.WANTED, goal=Goal.RECORD), RECORD),
    'content changed while its base is got for a server': (
        image(image_hash='sha512:11'), manifest(Standing.WANTED, goal=Goal.SERVE), SERVE),
    'content changed after a failure': (
        image(image_hash='sha512:11'), manifest(Standing.FAILED, cache_image=None), RECORD),
    'failed': (IMAGE, manifest(Standing.FAILED, cache_image=None), NOTHING),
    'refused': (IMAGE, manifest(Standing.SKIPPED, cache_image=None), NOTHING),
    'skipped by a property that is right now': (
        IMAGE, Manifest(IMAGE.image_id, Standing.SKIPPED, Cause(Reason.MODE_OFF)), RECORD),
    'held': (IMAGE, manifest(Standing.SKIPPED, held=True, cache_image=None), HELD),
    'held and content changed': (image(image_hash='sha512:11'),
                                 manifest(Standing.SKIPPED, held=True), HELD),
    'working set lost': (IMAGE, manifest(working_set=None), RECORD),
    'cache image evicted': (IMAGE, manifest(cache_image=None), NOTHING),
    'base lost': (IMAGE, manifest(base_path=''), RECORD),
    'an older content is needed': (IMAGE, manifest(base_hash='sha512:11'), NOTHING),
    'an older content is needed, and the quota changed': (
        image({'bootcache_quota': '64MiB'}), manifest(base_hash='sha512:11'), Wish(
            quota=64 * MIB)),
    'marker changed': (image({'bootcache_boot_marker': 'up'}), READY,
                       Wish(Goal.RECORD, boot_marker='up')),
    'quota changed': (image({'bootcache_quota': '64MiB'}), READY, Wish(Goal.BUILD, 64 * MIB)),
    'quota said another way': (image({'bootcache_quota': '536870912'}), READY, NOTHING),
    'quota and marker changed': (
        image({'bootcache_quota': '64MiB', 'bootcache_boot_marker': 'up'}), READY,
        Wish(Goal.RECORD, 64 * MIB, 'up')),
    'another working set than its cache image was built from': (
        IMAGE, manifest(built_from='set-before'), BUILD),
    'the same one': (IMAGE, manifest(built_from='set'), NOTHING),
    'another working set, in vain': (
        IMAGE, manifest(built_from='set-before').standing_at(
            Standing.DONE, Cause(Reason.FAILED, 'there is no room')).wishing(
            quota=512 * MIB, boot_marker='login:'), NOTHING),
    'own state properties': (image({'bootcache_state': 'ready', 'bootcache_reason': 'x'}), READY,
                             NOTHING),
    'plain kernel id left empty': (image({'kernel_id': ''}), None, RECORD),
    'no volumes': (image({'block_device_mapping': '[]'}), None, RECORD),
}


SERVING_TABLE = {
    'a server boots an unknown image': ({'boots': True}, None, SERVE),
    'a server boots an image in hand': (
        {'boots': True}, manifest(Standing.WANTED, goal=Goal.RECORD), RECORD),
    'a server boots a served image': ({'boots': True}, manifest(cache_image=None), NOTHING),
    'a server boots a ready image': ({'boots': True}, READY, NOTHING),
    'a server boots a failed image': (
        {'boots': True}, manifest(Standing.FAILED, cache_image=None), NOTHING),
    'an operator wants no profile boots': ({'profile_boots': False}, None, SERVE),
    'nor after a restart': ({'profile_boots': False}, manifest(Standing.WANTED), SERVE),
    'but asks for one': ({'profile_boots': False}, policy.requested(READY), RECORD),
    'a served image is looked at again': ({}, manifest(cache_image=None), NOTHING),
    'a lost working set without profile boots': (
        {'profile_boots': False}, manifest(working_set=None), NOTHING),
}


@pytest.mark.parametrize('name', SERVING_TABLE)
def test_serving_table(name):
    options, known, wish = SERVING_TABLE[name]
    settings = {key: value for key, value in options.items() if key == 'profile_boots'}
    check(decide(IMAGE, known, settings, boots=options.get('boots', False)), known, wish)


@pytest.mark.parametrize('name', TABLE)
def test_table(name):
    given, known, wish = TABLE[name]
    check(decide(given, known), known, wish)


@pytest.mark.parametrize('known', [None, READY])
@pytest.mark.parametrize('status', ['active', 'queued'])
def test_opted_out(known, status):
    decision = decide(image({'bootcache_mode': 'off'}, status=status), known)
    assert is_skipped(decision) == 'bootcache_mode=off'
    assert decision.record.wished.availability is Availability.OFF
    assert decision.step is (None if known is None else Step.RETIRE)


def test_an_image_that_was_only_created_is_not_kept():
    """Its data are told of when they are there."""
    assert decide(image(status='queued', image_hash='')) == Decision(None)


@pytest.mark.parametrize('known', [
    # The hook, or a look in mid-import, has seen it before.
    Manifest(IMAGE.image_id), Manifest(IMAGE.image_id, Standing.FAILED, Cause(Reason.NO_DATA))])
def test_an_import_that_has_failed(known):
    decision = decide(image(status='queued', image_hash=''), known)
    assert (decision.record.standing, decision.record.cause, decision.step, decision.waits) == (
        Standing.FAILED, Cause(Reason.NO_DATA), None, False)


@pytest.mark.parametrize('status, known', [
    *itertools.product(['saving', 'uploading', 'importing'], [None, READY]), ('queued', READY)])
def test_wait_until_glance_has_it(status, known):
    decision = decide(image(status=status, disk_format='unset'), known)
    assert decision == Decision(known or Manifest(IMAGE.image_id), waits=True)


@pytest.mark.parametrize('status', ['deactivated', 'killed', 'deleted', 'pending_delete', 'other'])
def test_no_boot_from_an_image_that_is_not_active(status):
    assert status in is_skipped(decide(image(status=status), READY))


@pytest.mark.parametrize('changes, word', [
    *(({'disk_format': name}, name) for name in ('iso', 'vmdk', 'vhd', 'vhdx', 'vdi', 'ami', 'aki',
                                                 'ploop', 'unset')),
    *(({'container_format': name}, name) for name in ('ovf', 'ova', 'docker', 'compressed')),
    ({'stored_bytes': 0}, 'no data'),
    *(({'properties': {name: 'x'}}, name) for name in (
        'kernel_id', 'ramdisk_id', 'block_device_mapping', 'cinder_encryption_key_id',
        'os_encrypt_format')),
    *(({'properties': {f'img_signature{name}': 'x'}}, 'signed') for name in (
        '', '_hash_method', '_key_type', '_certificate_uuid')),
    ({'properties': {'image_type': 'snapshot'}}, 'build_snapshots')])
@pytest.mark.parametrize('known', [None, READY, policy.requested(READY)],
                         ids=['unknown', 'ready', 'requested'])
def test_what_cannot_be_served_is_skipped_with_its_reason(changes, word, known):
    assert word in is_skipped(decide(dataclasses.replace(IMAGE, **changes), known))


def test_snapshots_where_the_operator_wants_them():
    snapshot, builds = image({'image_type': 'snapshot'}), {'build_snapshots': True}
    decision = decide(snapshot, None, builds)
    is_skipped(decision)
    assert decision.record.cause.reason is Reason.SNAPSHOT_UNUSED
    check(decide(snapshot, None, builds, boots=True), None, SERVE)
    # A host asks for one that is known already.
    known = policy.asked_for(decision.record)
    check(decide(snapshot, known, builds), known, SERVE)
    known = policy.requested(Manifest(IMAGE.image_id))
    check(decide(snapshot, known, builds), known, RECORD)
    # Nothing of the one that there is is dropped.
    check(decide(snapshot, READY, builds), READY, NOTHING)


def test_what_cannot_come_is_not_waited_for():
    deleted = policy.deleted(READY)
    assert policy.requested(deleted) is deleted
    queued = dataclasses.replace(IMAGE, status='queued')
    assert not decide(queued, policy.requested(Manifest(IMAGE.image_id))).record.wished.requested


@pytest.mark.parametrize('properties, name', [
    ({'bootcache_mode': 'on'}, 'bootcache_mode'), ({'bootcache_quota': 'all'}, 'bootcache_quota'),
    ({'bootcache_quota': '3GiB'}, 'bootcache_quota'),
    ({'bootcache_boot_marker': '('}, 'bootcache_boot_marker')])
@pytest.mark.parametrize('known', [None, READY])
def test_bad_properties_are_skipped_with_the_propertys_name(properties, name, known):
    assert name in is_skipped(decide(image(properties), known))


@pytest.mark.parametrize('standing', Standing)
@pytest.mark.parametrize('held', [False, True])
@pytest.mark.parametrize('goal', Goal)
def test_an_operator_gets_a_new_recording_whatever_is_there(standing, held, goal):
    known = policy.requested(manifest(standing, held, goal))
    check(decide(IMAGE, known), known, RECORD)


@pytest.mark.parametrize('availability', [Availability.MISSING, Availability.DELETION_NOTIFIED])
def test_a_cache_image_that_is_to_be_built_is_when_glance_has_the_image_again(availability):
    record = manifest(goal=Goal.BUILD, cache_image=None).wishing(availability=availability)
    decision = decide(record=record, has_base=True)
    assert decision.step is Step.BUILD
    assert decision.record.wished.availability is Availability.ACTIVE


@pytest.mark.parametrize('goal', [Goal.RECORD, Goal.SERVE])
def test_content_that_could_not_be_taken_is_tried_while_it_is_wanted(goal):
    known = manifest(Standing.FAILED, goal=goal, base_hash='sha512:11')
    decision = decide(IMAGE, known)
    assert (decision.step, decision.record.goal) == (Step.GET_BASE, goal)
    is_skipped(decide(image(status='deactivated'), known))


def test_an_operator_cannot_force_what_its_owner_opted_out():
    decision = decide(image({'bootcache_mode': 'off'}), policy.requested(READY))
    is_skipped(decision)
    assert not decision.record.wished.requested, 'nor is it kept for later'


@pytest.mark.parametrize('goal, has_base, has_hosts, working_set, step', [
    *((goal, False, hosts, SET, Step.GET_BASE)
      for goal, hosts in itertools.product([Goal.SERVE, Goal.RECORD, Goal.BUILD], [False, True])),
    (Goal.SERVE, True, False, SET, Step.GET_BASE),
    (Goal.RECORD, True, True, None, Step.RECORD), (Goal.RECORD, True, False, None, None),
    (Goal.BUILD, True, False, SET, Step.BUILD), (Goal.BUILD, True, True, None, Step.RECORD),
    (Goal.BUILD, True, False, None, None)])
def test_the_next_step_towards_a_goal(goal, has_base, has_hosts, working_set, step):
    known = manifest(Standing.WANTED, goal=goal, working_set=working_set)
    decision = decide(IMAGE, known, has_base=has_base, has_hosts=has_hosts)
    assert decision.step is step
    assert decision.record.cause.reason is (Reason.NONE if step else Reason.NO_HOST)


def test_a_host_that_comes_ends_the_waiting():
    for known, reason in ((None, Reason.NO_HOST),
                          (policy.requested(READY), Reason.NO_HOST_REQUESTED)):
        waits = decide(IMAGE, known, has_base=True, has_hosts=False)
        assert (waits.step, waits.record.cause, waits.waits) == (None, Cause(reason), False)
        begun = decide(IMAGE, waits.record, has_base=True)
        assert (begun.step, begun.record.cause) == (Step.RECORD, NO_CAUSE)


def test_an_owner_who_changes_too_many_waits():
    waits = decide(may_change=False)
    assert (waits.step, waits.waits, waits.record.goal) == (None, True, Goal.NONE)
    assert waits.record.cause.reason is Reason.TOO_MANY_CHANGES
    begun = decide(IMAGE, waits.record)
    assert begun.is_change and (begun.step, begun.record.goal) == (Step.GET_BASE, Goal.RECORD)
    # What an operator orders, and a server needs, waits for nobody.
    for known, boots in ((policy.requested(waits.record), False), (None, True)):
        decision = decide(IMAGE, known, boots=boots, may_change=False)
        assert decision.step is Step.GET_BASE and not decision.is_change


@pytest.mark.parametrize('noted, base, new', [
    ('', '', True), ('sha512:00', 'sha512:00', False), ('sha512:11', 'sha512:11', True),
    # It failed before there was a base.
    ('sha512:00', '', True),
    # It was skipped since.
    ('', 'sha512:00', True), ('sha512:11', 'sha512:00', True), ('sha512:00', 'sha512:11', True)])
def test_content_that_is_new(noted, base, new):
    known = dataclasses.replace(manifest(base_hash=base), image_hash=noted)
    assert policy.has_new_content(IMAGE, known) is new


# What holds of every image.

def possible(record):
    """Return a record without what contradicts itself."""
    if record.wished.held or record.standing is Standing.SKIPPED:
        record = dataclasses.replace(record, goal=Goal.NONE)
    return record if record.made.base_path else record.making(cache_image=None)


def at_hand(case):
    """Return a case in which only a base that there is may be at hand."""
    record, facts, settings = case
    is_there = record is not None and record.made.base_path != '' \
        and record.made.base_hash == facts.image.image_hash
    return record, dataclasses.replace(facts, has_base=facts.has_base and is_there), settings


HASHES = st.sampled_from(['', 'sha512:00', 'sha512:11'])
QUOTAS = st.sampled_from([0, 64 * MIB, 512 * MIB])
MARKERS = st.sampled_from(['', 'login:', 'up'])
PROPERTIES = st.fixed_dictionaries({}, optional={
    'bootcache_mode': st.sampled_from(['auto', 'off', 'x']),
    'bootcache_quota': st.sampled_from(['64MiB', '512MiB', '9TiB']),
    'bootcache_boot_marker': st.sampled_from(['up', '(']),
    'image_type': st.sampled_from(['snapshot', 'backup', 'base']),
    'kernel_id': st.sampled_from(['', 'x']), 'os_hidden': st.booleans(),
    'img_signature': st.just('x')})
IMAGES = st.builds(
    ImageFacts, st.just(IMAGE.image_id),
    st.sampled_from(['active'] * 5 + ['queued', 'importing', 'deactivated', 'killed']),
    st.sampled_from(['qcow2', 'raw', 'iso']), st.just('bare'), st.sampled_from([0, 5 * MIB]),
    HASHES, st.just(0), st.just(0), PROPERTIES,
    st.sampled_from(['', 'public', 'shared', 'private', 'new']), st.sampled_from(['', 'one']))
RECORDS = st.builds(
    Manifest, st.just(IMAGE.image_id), st.sampled_from(Standing),
    st.builds(Cause, st.sampled_from(Reason), st.sampled_from(['', 'x'])), HASHES,
    st.builds(Wished, st.booleans(), st.booleans(), st.booleans(), QUOTAS, MARKERS, st.booleans(),
              st.integers(0, 9), st.sampled_from(['', 'public', 'private']), st.booleans(),
              availability=st.sampled_from(Availability)),
    st.builds(Made, st.sampled_from(['', '/base']), HASHES,
              working_set=st.sampled_from([None, SET, dataclasses.replace(SET, boot_marker='up')]),
              cache_image=st.sampled_from([None, CACHE, dataclasses.replace(CACHE, quota=64)]),
              built_from=st.sampled_from(['', 'set']), look_rules=st.sampled_from([0, 1]),
              signed_as=st.sampled_from(['', 'x']), signature=st.sampled_from(['', 'x'])),
    taken_up_at=st.sampled_from([0.0, 5.0]), goal=st.sampled_from(Goal)).map(possible)
CASES = st.tuples(
    st.none() | RECORDS,
    st.builds(Facts, IMAGES, *([st.booleans()] * 4), st.sampled_from([0.0, 7.0])),
    st.builds(Settings, st.just(512 * MIB), st.just(2048 * MIB), st.just('login:'),
              *([st.booleans()] * 3))).map(at_hand)
ERRORS = st.sampled_from([
    exception.ImageRefused('x'), exception.BuildFailed('x'), exception.StorageNodeFull('x'),
    exception.BuildFailed('', Reason.OLDER_CONTENT_IN_USE), exception.Interrupted('x'),
    exception.ServiceAway('x'), OSError(28, 'No space left on device'), RuntimeError('x')])


@given(CASES)
def test_what_holds_of_every_decision(case):
    known, facts, settings = case
    decision = policy.decide(known, facts, settings)
    record, step, image = decision.record, decision.step, facts.image
    if record is None:
        assert known is None and step is None
        return
    assert record.image_id == image.image_id and not record.is_missing
    assert known is None or record.wished.generation >= known.wished.generation
    if record.standing is Standing.SKIPPED:
        assert step is (Step.RETIRE if record.made.base_path else None)
        assert not policy.gives_out(record)
    else:
        assert step is not Step.RETIRE
    if step not in (None, Step.RETIRE):
        assert image.status == 'active' and record.goal and not record.wished.held
        # What it writes is taken.
        assert policy.is_same_work(record, record)
    if step is Step.RECORD:
        assert facts.has_base and facts.has_hosts and record.goal is Goal.RECORD
    if step is Step.BUILD:
        assert facts.has_base and record.made.working_set is not None
    if record.goal and step is None and image.status == 'active':
        assert record.cause.reason in (Reason.NO_HOST, Reason.NO_HOST_REQUESTED)
        assert not facts.has_hosts
    if decision.is_change:
        assert facts.may_change and not facts.boots
    if image.status == 'active' and record.wished.requested:
        assert record.goal is not Goal.NONE, 'what an operator wants is wanted'


@given(CASES)
def test_deciding_again_changes_nothing(case):
    known, facts, settings = case
    decision = policy.decide(known, facts, settings)
    again = policy.decide(decision.record, facts, settings)
    assert (again.record, again.step, again.waits) == (
        decision.record, decision.step, decision.waits)


def after(step, record, image):
    """Return a record when a step has succeeded, as imagework.py and retiring.py write it."""
    if step is Step.RETIRE:
        return record.making(base_path='')
    if step is Step.GET_BASE:
        if record.made.base_hash != image.image_hash:
            record = record.making(working_set=None, cache_image=None)
        record = record.making(base_path='/base', base_hash=image.image_hash,
                               look_rules=inspection.RULES, signature='x')
        return record.standing_at(Standing.DONE) if record.goal is Goal.SERVE else record
    if step is Step.RECORD:
        return dataclasses.replace(record, goal=Goal.BUILD).making(
            working_set=dataclasses.replace(
                SET, boot_marker=record.wished.boot_marker)).wishing(requested=False)
    return record.making(cache_image=dataclasses.replace(CACHE, quota=record.wished.quota),
                         built_from=record.made.working_set.sha256).standing_at(Standing.DONE)


@given(CASES)
def test_steps_that_succeed_come_to_an_end(case):
    known, facts, settings = case
    record, done = known, []
    facts = dataclasses.replace(facts, may_change=True)
    while True:
        decision = policy.decide(record, facts, settings)
        if decision.step is None:
            break
        assert len(done) < 3, (done, decision)
        done.append(decision.step)
        record = after(decision.step, decision.record, facts.image)
        facts = dataclasses.replace(facts, boots=False, has_base=decision.step in (
            Step.GET_BASE, Step.RECORD, Step.BUILD))
    if decision.record is not None and not decision.waits and facts.has_hosts:
        assert not decision.record.goal


@given(RECORDS, ERRORS, st.booleans())
def test_what_holds_of_every_failure(known, error, is_without_older):
    record = policy.failed(known, error, is_without_older)
    assert record.cause
    if record.standing is Standing.WANTED:
        assert policy.is_put_off(record) and record.goal is known.goal
    if isinstance(error, exception.ImageRefused):
        assert record.standing is Standing.SKIPPED and not policy.gives_out(record)
        assert record.made.working_set is None, 'as of each image that is skipped'
    else:
        assert record.made == known.made, 'nothing that was made is lost'
        if known.made.cache_image is not None:
            assert record.standing is (
                Standing.FAILED if known.has_older_base else Standing.DONE)


@given(CASES, ERRORS)
def test_a_failure_is_for_good_or_its_record_says_that_it_is_tried_again(case, error):
    known, facts, settings = case
    decision = policy.decide(known, facts, settings)
    if decision.step in (None, Step.RETIRE):
        return
    record = policy.failed(decision.record, error)
    again = policy.decide(record, dataclasses.replace(facts, boots=False), settings)
    # One that waits for its owner's hour is decided again, too.
    assert bool(record.goal) == (again.step not in (None, Step.RETIRE) or again.waits)
