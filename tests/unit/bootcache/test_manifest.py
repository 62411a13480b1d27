"""Manifests: what is written is what is read, and nothing damaged is taken for one."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootcache import exception
from bootcache.manifest import IN_HAND, CacheInfo, ImageState, Manifest, WorkingSetInfo

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
CACHE = CacheInfo('cache-1.qcow2', 1000, 900, 3, 'ab' * 32, 1 << 30, 65536, 1 << 29,
                  'nbd+unix:///base-x?socket=/run/s', 1.5, 1)
SET = WorkingSetInfo('working-set-1.json', 900, 3, 4096, 'nova', 'marker', 12.5, 'login:')
FULL = Manifest(IMAGE, ImageState.READY, '', 'sha512:00', 'qcow2', 5, 1 << 30, '/base', False, SET,
                CACHE, '2026-01-01T00:00:00+00:00')


@given(st.builds(Manifest, st.just(IMAGE), st.sampled_from(ImageState), st.text(), st.text(),
                 st.sampled_from(['', 'raw', 'qcow2']), st.integers(0), st.integers(0), st.text(),
                 st.booleans(), st.sampled_from([None, SET]), st.sampled_from([None, CACHE]),
                 st.text()))
def test_round_trip_through_json(manifest):
    assert Manifest.from_json(json.loads(json.dumps(manifest.to_json()))) == manifest


def test_round_trip_through_a_file(tmp_path):
    path = str(tmp_path / 'manifest.json')
    FULL.save(path)
    assert Manifest.load(path) == FULL
    assert Manifest.load(path).state is ImageState.READY


def test_what_is_in_hand():
    rest = {ImageState.READY, ImageState.FAILED, ImageState.SKIPPED, ImageState.SERVED}
    assert frozenset(ImageState) - rest == IN_HAND


@pytest.mark.parametrize('change', [
    {'version': 0}, {'version': 2}, {'version': '1'}, {'version': None}, {'state': 'done'},
    {'state': None}, {'surprise': 1}, {'cache_image': 'x'},
    {'cache_image': {}},
    {'cache_image': {**CACHE.to_dict(), 'more': 1}}, {'working_set': [1]},
    {'working_set': {'file': 'x'}}])
def test_a_damaged_document_is_refused(change):
    with pytest.raises(exception.InvalidManifest):
        Manifest.from_json({**FULL.to_json(), **change})


@pytest.mark.parametrize('missing', ['version', 'image_id'])
def test_a_document_without_its_core_is_refused(missing):
    document = FULL.to_json()
    del document[missing]
    with pytest.raises(exception.InvalidManifest):
        Manifest.from_json(document)


@pytest.mark.parametrize('document', [None, [], 'x', 5, {}])
def test_no_document_is_refused(document):
    with pytest.raises(exception.InvalidManifest):
        Manifest.from_json(document)


@pytest.mark.parametrize('key', sorted(CACHE.to_dict()))
def test_a_cache_image_is_described_whole(key):
    document = CACHE.to_dict()
    assert CacheInfo.from_dict(document) == CACHE
    del document[key]
    with pytest.raises(exception.InvalidManifest):
        CacheInfo.from_dict(document)


@pytest.mark.parametrize('keep', range(0, 400, 37))
def test_a_truncated_file_is_refused(tmp_path, keep):
    path = tmp_path / 'manifest.json'
    FULL.save(str(path))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(exception.InvalidManifest):
        Manifest.load(str(path))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(exception.InvalidManifest):
        Manifest.load(str(tmp_path / 'none'))
