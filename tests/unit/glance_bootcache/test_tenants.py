"""What tenants are told: nothing but the sentences of a closed list."""


import pytest

from bootcache import exception, properties
from bootcache.manifest import ImageState
from bootcache.reasons import NO_CAUSE, Cause, Reason
from glance_bootcache.glance import tenants
from glance_bootcache.imagefacts import ImageFacts
from glance_bootcache.images import policy
from glance_bootcache.storage import inspection

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
TELLING = [
    'compute host cn-17.example.org stopped reporting; was nova-compute restarted?',
    'the older cache image serves, as compute host cn-17 did not report the working set',
    '/var/lib/bootcache/images/x/base-1.qcow2 does not have Glance\'s sha512',
    'Nova refused a profile boot: 401 at http://keystone.internal:5000',
    'qemu-img: Could not open \'/var/lib/glance/images/1\': Permission denied',
    'unexpected error: [Errno 28] No space left on device: \'/var/lib/bootcache\'',
]


def cause_of(**given):
    """What properties.parse says of properties that it refuses."""
    with pytest.raises(exception.InvalidProperty) as refused:
        properties.parse(given, default_quota=1 << 20, max_quota=1 << 30, default_marker='login:')
    return refused.value.cause


def skip_cause(disk_format='qcow2', container_format='bare', stored_bytes=1, **given):
    """Why an image is skipped."""
    return policy.skip_cause(ImageFacts(IMAGE, 'active', disk_format, container_format,
                                            stored_bytes, '', 0, 0, given), False)


@pytest.mark.parametrize('state', tenants.GENERAL)
@pytest.mark.parametrize('reason', TELLING)
def test_nothing_of_the_cloud_is_told(state, reason):
    assert tenants.told(state, Cause(Reason.FAILED, reason)) == tenants.GENERAL[state]


@pytest.mark.parametrize('state', tenants.GENERAL)
def test_without_a_reason_there_is_none(state):
    assert tenants.told(state, NO_CAUSE) == ''


def test_the_sentences_are_short_and_plain():
    for sentence in tenants.SENTENCES:
        assert len(sentence) <= 255 and '/' not in sentence and '[' not in sentence


@pytest.mark.parametrize('cause, told', [
    (cause_of(bootcache_mode='sometimes'), 'bootcache_mode has to be one of: auto, off'),
    (cause_of(bootcache_quota='plenty'), 'bootcache_quota has to be a size'),
    (cause_of(bootcache_quota='9TiB'), 'bootcache_quota has to be a size'),
    (cause_of(bootcache_boot_marker='(['), 'bootcache_boot_marker has to be'),
    (cause_of(bootcache_settle='perhaps'), 'bootcache_settle has to be one of: yes, no'),
    (cause_of(bootcache_require='wram'), 'bootcache_require has to be one of: driver, warm'),
    (Cause(Reason.MODE_OFF), 'bootcache_mode=off'),
    (skip_cause(disk_format='vmdk'), 'its disk_format is not served'),
    (skip_cause(container_format='ova'), 'its container_format is not served'),
    (skip_cause(stored_bytes=0), 'no data of its own'),
    (skip_cause(kernel_id='x'), 'images with a kernel'),
    (skip_cause(os_encrypt_format='x'), 'images with a kernel'),
    (skip_cause(img_signature='x'), 'signed images are not served'),
    (Cause(Reason.SIGNATURE_INVALID), 'its signature is not right'),
    (skip_cause(image_type='snapshot'), 'snapshots of servers'),
    (Cause(Reason.EVICTED_BY_OPERATOR), 'an operator of the cloud'),
])
def test_what_the_owner_can_mend_is_told(cause, told):
    sentence = tenants.told(ImageState.SKIPPED, cause)
    assert told in sentence and sentence != tenants.GENERAL[ImageState.SKIPPED]


def test_what_inspection_finds_is_told(tmp_path):
    file = tmp_path / 'image'
    file.write_bytes(b'QFI\xfb' + bytes(1020))
    with pytest.raises(exception.ImageRefused) as refused:
        inspection.inspect(str(file), 'raw')
    assert tenants.told(ImageState.SKIPPED, refused.value.cause) \
        == 'its content is not what disk_format says'
