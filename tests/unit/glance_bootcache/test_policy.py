"""What is to be done about an image: every action, in a table."""

import dataclasses
import itertools

import pytest

from bootcache.manifest import (
    CacheInfo,
    Made,
    Manifest,
    Standing,
    WorkingSetInfo,
)
from bootcache.properties import Policy
from bootcache.reasons import Cause, Reason
from glance_bootcache.images import policy
from glance_bootcache.images.policy import ImageAction, ImageDecision, ImageFacts

MIB = 1 << 20
IMAGE = ImageFacts('7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f', 'active', 'qcow2', 'bare', 5 * MIB,
                   'sha512:00', 0, 0, {})
SET = WorkingSetInfo('set', 900, 3, 4096, 'nova', 'marker', 12.5, 'login:')
CACHE = CacheInfo('cache', 1000, 900, 3, 'ab', 1 << 30, 65536, 512 * MIB, 'nbd://', 1.5, 1)
READY = Manifest(IMAGE.image_id, Standing.DONE, image_hash='sha512:00', made=Made(
    '/base', 'sha512:00', '', 'qcow2', 5 * MIB, 1 << 30, SET, CACHE, 'set'))
POLICY = Policy(512 * MIB, 'login:')


def decide(image=IMAGE, manifest=None, **options):
    return policy.decide(image, manifest, **{
        'default_quota': 512 * MIB, 'max_quota': 2048 * MIB, 'default_marker': 'login:',
        'build_snapshots': False, **options})


def image(properties=None, **changes):
    return dataclasses.replace(IMAGE, properties=properties or {}, **changes)


def manifest(standing=Standing.DONE, held=False, **made):
    return READY.standing_at(standing).wishing(held=held).making(**made)


RECORD = ImageDecision(ImageAction.RECORD, policy=POLICY)
NOTHING = ImageDecision(ImageAction.NOTHING, policy=POLICY)
HELD = ImageDecision(ImageAction.NOTHING)
SERVE = ImageDecision(ImageAction.SERVE, policy=POLICY)
OFF = ImageDecision(ImageAction.SKIP, Cause(Reason.MODE_OFF, 'bootcache_mode=off'),
                    Policy(512 * MIB, 'login:'))

# None could be made of 64 MiB.
TRIED = READY.standing_at(Standing.DONE, Cause(Reason.FAILED, 'there is no room')) \
    .wishing(quota=64 * MIB, boot_marker='login:')

TABLE = {
    'the quota was tried in vain': (
        image({'bootcache_quota': '64MiB'}), TRIED, ImageDecision(
            ImageAction.NOTHING, policy=Policy(64 * MIB, 'login:'))),
    'another quota is tried after that': (
        image({'bootcache_quota': '96MiB'}), TRIED, ImageDecision(
            ImageAction.REBUILD, policy=Policy(96 * MIB, 'login:'))),
    'the marker was tried in vain': (
        image({'bootcache_boot_marker': 'up'}), TRIED.wishing(quota=512 * MIB, boot_marker='up'),
        ImageDecision(ImageAction.NOTHING, policy=Policy(512 * MIB, 'up'))),
    'another marker is tried after that': (
        image({'bootcache_boot_marker': 'on'}), TRIED.wishing(quota=512 * MIB, boot_marker='up'),
        ImageDecision(ImageAction.RECORD, policy=Policy(512 * MIB, 'on'))),
    'new image': (IMAGE, None, RECORD),
    'raw image': (image(disk_format='raw'), None, RECORD),
    'ready': (IMAGE, READY, NOTHING),
    'restart while it is in hand': (IMAGE, manifest(Standing.WANTED), RECORD),
    'content changed': (image(image_hash='sha512:11'), READY, RECORD),
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
    'an older content is needed': (IMAGE, manifest(base_hash='sha512:11'), NOTHING),
    'an older content is needed, and the quota changed': (
        image({'bootcache_quota': '64MiB'}), manifest(base_hash='sha512:11'), ImageDecision(
            ImageAction.NOTHING, policy=Policy(64 * MIB, 'login:'))),
    'marker changed': (image({'bootcache_boot_marker': 'up'}), READY,
                       ImageDecision(ImageAction.RECORD, policy=Policy(512 * MIB, 'up'))),
    'quota changed': (image({'bootcache_quota': '64MiB'}), READY,
                      ImageDecision(ImageAction.REBUILD,
                                    policy=Policy(64 * MIB, 'login:'))),
    'quota said another way': (image({'bootcache_quota': '536870912'}), READY, NOTHING),
    'quota and marker changed': (
        image({'bootcache_quota': '64MiB', 'bootcache_boot_marker': 'up'}), READY,
        ImageDecision(ImageAction.RECORD, policy=Policy(64 * MIB, 'up'))),
    'another working set than its cache image was built from': (
        IMAGE, manifest(built_from='set-before'), ImageDecision(ImageAction.REBUILD,
                                                                policy=POLICY)),
    'the same one': (IMAGE, manifest(built_from='set'), NOTHING),
    'another working set, in vain': (
        IMAGE, manifest(built_from='set-before').standing_at(
            Standing.DONE, Cause(Reason.FAILED, 'there is no room')).wishing(
            quota=512 * MIB, boot_marker='login:'), NOTHING),
    'own state properties': (image({'bootcache_state': 'ready', 'bootcache_reason': 'x'}), READY,
                             NOTHING),
    'opted out': (image({'bootcache_mode': 'off'}), None, OFF),
    'opted out while ready': (image({'bootcache_mode': 'off'}), READY, OFF),
    'opted out while queued': (image({'bootcache_mode': 'off'}, status='queued'), None, OFF),
    'plain kernel id left empty': (image({'kernel_id': ''}), None, RECORD),
    'no volumes': (image({'block_device_mapping': '[]'}), None, RECORD),
}


SERVING_TABLE = {
    'a server boots an unknown image': ({'booting': True}, None, SERVE),
    'a server boots an image in hand': (
        {'booting': True}, manifest(Standing.WANTED), RECORD),
    'a server boots a served image': (
        {'booting': True}, manifest(cache_image=None), NOTHING),
    'a server boots a ready image': ({'booting': True}, READY, NOTHING),
    'a server boots a failed image': (
        {'booting': True}, manifest(Standing.FAILED, cache_image=None), NOTHING),
    'an operator wants no profile boots': ({'profile_boots': False}, None, SERVE),
    'nor after a restart': ({'profile_boots': False}, manifest(Standing.WANTED), SERVE),
    'but asks for one': ({'profile_boots': False, 'forced': True}, READY, RECORD),
    'a served image is looked at again': ({}, manifest(cache_image=None), NOTHING),
    'a lost working set without profile boots': (
        {'profile_boots': False}, manifest(working_set=None), NOTHING),
}


@pytest.mark.parametrize('name', SERVING_TABLE)
def test_serving_table(name):
    options, known, expected = SERVING_TABLE[name]
    assert decide(IMAGE, known, **options) == expected


@pytest.mark.parametrize('name', TABLE)
def test_table(name):
    given, known, expected = TABLE[name]
    assert decide(given, known) == expected


@pytest.mark.parametrize('known, expected', [
    # It was only created: nothing is to be waited for, as its data are told of.
    (None, ImageDecision(ImageAction.NOTHING)),
    # The hook, or a look in mid-import, has seen it before.
    (Manifest(IMAGE.image_id), ImageDecision(ImageAction.FAIL, Cause(Reason.NO_DATA))),
    (Manifest(IMAGE.image_id, Standing.FAILED, Cause(Reason.NO_DATA)),
     ImageDecision(ImageAction.FAIL, Cause(Reason.NO_DATA)))])
def test_an_import_that_has_failed(known, expected):
    assert decide(image(status='queued', image_hash=''), known) == expected


@pytest.mark.parametrize('status, known', [
    *itertools.product(['saving', 'uploading', 'importing'], [None, READY]), ('queued', READY)])
def test_wait_until_glance_has_it(status, known):
    decision = decide(image(status=status, disk_format='unset'), known)
    assert decision == ImageDecision(ImageAction.WAIT)


@pytest.mark.parametrize('status', ['deactivated', 'killed', 'deleted', 'pending_delete', 'other'])
def test_no_boot_from_an_image_that_is_not_active(status):
    decision = decide(image(status=status), READY)
    assert decision.action is ImageAction.SKIP and status in str(decision.cause)


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
@pytest.mark.parametrize('known, forced', [(None, False), (READY, False), (READY, True)])
def test_what_cannot_be_served_is_skipped_with_its_reason(changes, word, known, forced):
    decision = decide(dataclasses.replace(IMAGE, **changes), known, forced=forced)
    assert decision.action is ImageAction.SKIP and word in str(decision.cause)


def test_snapshots_where_the_operator_wants_them():
    snapshot = image({'image_type': 'snapshot'})
    decision = decide(snapshot, build_snapshots=True)
    assert decision.action is ImageAction.SKIP and decision.cause.reason is Reason.SNAPSHOT_UNUSED
    assert decide(snapshot, build_snapshots=True, booting=True) == SERVE
    assert decide(snapshot, build_snapshots=True, forced=True) == RECORD
    # Nothing of the one that there is is dropped.
    assert decide(snapshot, READY, build_snapshots=True) == NOTHING


@pytest.mark.parametrize('properties, name', [
    ({'bootcache_mode': 'on'}, 'bootcache_mode'), ({'bootcache_quota': 'all'}, 'bootcache_quota'),
    ({'bootcache_quota': '3GiB'}, 'bootcache_quota'),
    ({'bootcache_boot_marker': '('}, 'bootcache_boot_marker')])
@pytest.mark.parametrize('known', [None, READY])
def test_bad_properties_are_skipped_with_the_propertys_name(properties, name, known):
    decision = decide(image(properties), known)
    assert decision.action is ImageAction.SKIP and name in str(decision.cause)


@pytest.mark.parametrize('standing', Standing)
@pytest.mark.parametrize('held', [False, True])
def test_an_operator_gets_a_new_recording_whatever_is_there(standing, held):
    assert decide(IMAGE, manifest(standing, held), forced=True) == RECORD


@pytest.mark.parametrize(('profile_boots', 'expected'), [(True, RECORD), (False, SERVE)])
def test_content_that_could_not_be_taken_and_can_be_now(profile_boots, expected):
    known = manifest(Standing.FAILED, base_hash='sha512:11')
    assert decide(IMAGE, known, profile_boots=profile_boots) == NOTHING
    assert decide(IMAGE, known, profile_boots=profile_boots, again=True) == expected
    assert decide(image(status='deactivated'), known, again=True).action is ImageAction.SKIP


def test_an_operator_cannot_force_what_its_owner_opted_out():
    assert decide(image({'bootcache_mode': 'off'}), READY, forced=True).action is ImageAction.SKIP


def test_every_combination_gives_what_its_action_needs():
    for status, mode, quota, standing, held, cache, forced in itertools.product(
            ('queued', 'active', 'deactivated'), ('auto', 'off', 'x'), ('', '1MiB', '512MiB'),
            (None, *Standing), (False, True), (None, CACHE), (False, True)):
        known = None if standing is None else manifest(standing, held, cache_image=cache)
        given = image({'bootcache_mode': mode, **({'bootcache_quota': quota} if quota else {})},
                      status=status)
        decision = decide(given, known, forced=forced)
        assert bool(decision.cause) == (decision.action in (ImageAction.SKIP, ImageAction.FAIL))
        if decision.action in (ImageAction.RECORD, ImageAction.REBUILD, ImageAction.SERVE):
            assert decision.policy is not None
        if decision.action is ImageAction.REBUILD:
            assert known is not None and known.made.working_set is not None and not forced


@pytest.mark.parametrize('noted, base, new', [
    ('', '', True), ('sha512:00', 'sha512:00', False), ('sha512:11', 'sha512:11', True),
    # It failed before there was a base.
    ('sha512:00', '', True),
    # It was skipped since.
    ('', 'sha512:00', True), ('sha512:11', 'sha512:00', True), ('sha512:00', 'sha512:11', True)])
def test_content_that_is_new(noted, base, new):
    known = dataclasses.replace(manifest(base_hash=base), image_hash=noted)
    assert policy.has_new_content(IMAGE, known) is new
