"""Where in Ceph a base is, as hosts are told it: nothing else gets into commands."""

import dataclasses

import pytest

from bootcache.ceph.places import RbdOrigin

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
SAID = {'fsid': '5b1a4c1e-0000-4000-8000-000000000001', 'pool': 'images', 'image': IMAGE,
        'snapshot': 'snap', 'id': '10d6a5e8f3', 'snapshot_id': '4'}
ORIGIN = RbdOrigin(**SAID)


def test_what_is_told_is_read():
    assert RbdOrigin.read(dataclasses.asdict(ORIGIN)) == ORIGIN
    assert RbdOrigin.read({**SAID, 'later': 1}) == ORIGIN
    assert str(ORIGIN.parent) == f'images/{IMAGE}@snap'


@pytest.mark.parametrize('field', SAID)
@pytest.mark.parametrize('value', [None, 1, '', '-x', '--conf=/x', 'a/b', 'a b', 'a@b', 'a\nb',
                                   'x' * 129, ['images']])
def test_what_is_no_name_is_no_place(field, value):
    assert RbdOrigin.read({**SAID, field: value}) is None
    assert RbdOrigin.read({name: said for name, said in SAID.items() if name != field}) is None


@pytest.mark.parametrize('said', [None, '', [], 7, 'rbd'])
def test_what_is_no_mapping_is_none(said):
    assert RbdOrigin.read(said) is None


def test_each_has_one_clone_in_a_namespace():
    clone = ORIGIN.clone(IMAGE, 'bootcache', 'host-1')
    assert clone == ORIGIN.clone(IMAGE, 'bootcache', 'host-1') and clone.image_id == IMAGE
    others = {dataclasses.replace(ORIGIN, **{field: 'other'}).clone(IMAGE, 'bootcache', 'host-1')
              for field in SAID}
    assert len(others | {clone}) == len(SAID) + 1
