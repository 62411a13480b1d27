"""Manifests: what is derived, and who writes what."""

import dataclasses

import pytest

from bootcache.manifest import (
    IN_HAND,
    CacheInfo,
    ImageState,
    Made,
    Manifest,
    Standing,
    Wished,
    WorkingSetInfo,
)
from bootcache.reasons import Cause, Reason

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
CACHE = CacheInfo('cache-1.qcow2', 1000, 900, 3, 'ab' * 32, 1 << 30, 65536, 1 << 29,
                  'nbd+unix:///base-x?socket=/run/s', 1.5, 1)
SET = WorkingSetInfo('working-set-1.json', 900, 3, 4096, 'nova', 'marker', 12.5, 'login:')
FULL = Manifest(IMAGE, Standing.DONE, Cause(Reason.FAILED, 'no room'), 'sha512:00',
                Wished(quota=1 << 29, name='Debian'),
                Made('/base', 'sha512:00', 'base-x', 'qcow2', 5, 1 << 30, SET, CACHE),
                '2026-01-01T00:00:00+00:00')

@pytest.mark.parametrize(('standing', 'cache_image', 'state'), [
    (Standing.WANTED, None, 'pending'), (Standing.WANTED, CACHE, 'pending'),
    (Standing.DONE, None, 'served'), (Standing.DONE, CACHE, 'ready'),
    (Standing.FAILED, CACHE, 'failed'), (Standing.SKIPPED, None, 'skipped')])
def test_the_state_is_derived(standing, cache_image, state):
    assert Manifest(IMAGE, standing, made=Made(cache_image=cache_image)).state is ImageState(state)


def test_who_writes_a_part_leaves_the_other():
    wished = FULL.wishing(pinned=True)
    assert wished.wished.pinned and wished.made is FULL.made
    made = FULL.making(cache_image=None)
    assert made.made.cache_image is None and made.wished is FULL.wished


@pytest.mark.parametrize(('image_hash', 'base_hash', 'base_path', 'older'), [
    ('a', 'a', '/base', False), ('b', 'a', '/base', True), ('b', 'a', '', False),
    ('', 'a', '/base', False)])
def test_an_older_base(image_hash, base_hash, base_path, older):
    manifest = Manifest(IMAGE, image_hash=image_hash, made=Made(base_path, base_hash))
    assert manifest.has_older_base == older


def test_an_image_with_an_older_base_is_not_ready():
    """No server gets its cache image."""
    assert dataclasses.replace(FULL, image_hash='sha512:11').state is ImageState.FAILED


def test_what_is_in_hand():
    rest = {ImageState.READY, ImageState.FAILED, ImageState.SKIPPED, ImageState.SERVED}
    assert frozenset(ImageState) - rest == IN_HAND
