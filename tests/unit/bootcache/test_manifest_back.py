"""Manifests that the first readers of version 2 understand: they refuse what they do not know."""

import dataclasses

import pytest

from bootcache.manifest import CacheInfo, Made, Manifest, WorkingSetInfo

# The entries of made that they know.
KNOWN = {'base_path', 'base_hash', 'base_export', 'image_format', 'stored_bytes', 'virtual_bytes',
         'working_set', 'cache_image'}
SET = WorkingSetInfo('set-1.json', 1, 1, 4096, 'profile', 'marker', 1.0, 'x', 1)
CACHE = CacheInfo('cache-1.qcow2', 1, 1, 1, 'ab', 1, 4096, 1, 'nbd:', 1.0, 1)
IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'


@pytest.mark.parametrize('made', [
    Made(), Made(working_set=SET), Made(working_set=SET, cache_image=CACHE, built_from=SET.file)],
    ids=['nothing', 'recorded', 'built'])
def test_what_is_usual_is_not_written(made):
    manifest = Manifest(IMAGE, made=made)
    assert set(manifest.to_json()['made']) == KNOWN
    assert Manifest.from_json(manifest.to_json()) == manifest


@pytest.mark.parametrize('built_from', ['set-0.json', ''])
def test_a_cache_image_that_is_behind_says_so(built_from):
    manifest = Manifest(IMAGE, made=Made(working_set=SET, cache_image=CACHE, built_from=built_from))
    assert manifest.to_json()['made']['built_from'] == built_from
    assert Manifest.from_json(manifest.to_json()) == manifest


def test_one_that_an_earlier_version_built_is_behind_as_soon_as_another_working_set_comes():
    document = Manifest(IMAGE, made=Made(working_set=SET, cache_image=CACHE,
                                         built_from=SET.file)).to_json()
    found = Manifest.from_json(document)
    assert not found.made.is_behind
    later = found.making(working_set=dataclasses.replace(SET, file='set-2.json', version=2))
    assert later.made.is_behind and Manifest.from_json(later.to_json()).made.is_behind
