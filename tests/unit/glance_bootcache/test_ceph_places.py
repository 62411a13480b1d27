"""Where in Ceph a base is."""

import os
import time

import pytest

from bootcache.cacheimage import Base
from bootcache.ceph import places
from bootcache.ceph.places import RbdClone, RbdSnapshot
from bootcache.manifest import Made, Manifest
from glance_bootcache.images.cephbases import CephBases
from glance_bootcache.storage.nodefiles import FileKind
from tools import storedimages

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
USUAL = RbdSnapshot('images', IMAGE, 'snap')


def test_the_usual_place_where_glance_shows_none():
    assert places.snapshots(IMAGE, {}, 'images') == [USUAL]


def test_what_glance_shows_is_tried_first():
    shown = {'locations': [{'url': 'rbd://f-1/images/golden/v%2F2'}],
             'direct_url': f'rbd://f-1/images/{IMAGE}/snap'}
    assert places.snapshots(IMAGE, shown, 'images') == [RbdSnapshot('images', 'golden', 'v/2'),
                                                        USUAL]


@pytest.mark.parametrize('url', [
    'rbd://f-1/volumes/volume-1/snap', 'rbd://golden', 'rbd://f-1/images//snap',
    'rbd://f-1/images/a/b/c', 'rbd://f-1/images/volumes%2Fvolume-1/snap',
    'rbd://f-1/images/a%40other/snap', 'rbd://f-1/images/--pool/snap',
    'file:///images/a/snap', '', 'rbd', 7, None])
def test_other_pools_and_what_is_no_place_in_ceph_are_left_alone(url):
    assert places.snapshots(IMAGE, {'direct_url': url, 'locations': [{'url': url}, url]},
                            'images') == [USUAL]


def test_a_thousand_locations_are_not_tried():
    shown = {'locations': [{'url': f'rbd://f-1/images/x{number}/snap'} for number in range(1000)]}
    assert len(places.snapshots(IMAGE, shown, 'images')) < 10


@pytest.mark.parametrize('locations', ['rbd://f-1/images/a/snap', {'url': 'x'}, 7, [[]]])
def test_locations_that_are_none(locations):
    assert places.snapshots(IMAGE, {'locations': locations}, 'images') == [USUAL]


def test_a_clone_is_told_from_a_file():
    clone = RbdClone('bootcache', 'storage', f'base-{IMAGE}-0a1b2c3d')
    assert places.is_clone(clone.path) and places.clone_of(clone.path) == clone
    assert clone.image_id == IMAGE
    assert not places.is_clone(f'/var/lib/bootcache/images/{IMAGE}/base-1.img')


@pytest.mark.parametrize('name', [f'base-{IMAGE}', IMAGE, f'base-{IMAGE}-0a1b2c3d.old',
                                  f'base-{IMAGE.upper()}-0a1b2c3d', 'other'])
def test_what_others_have_made_is_nobodys_base(name):
    assert RbdClone('bootcache', 'storage', name).image_id is None


def test_its_nodes_name_no_file():
    clone = RbdClone('p', 'n', 'c')
    nodes = Base(clone.path, 'raw', 512, places.protocol(clone, '/c', 'u')).nodes('b-1')
    assert nodes == [
        {'driver': 'rbd', 'pool': 'p', 'namespace': 'n', 'image': 'c', 'conf': '/c', 'user': 'u',
         'node-name': 'b-1f', 'read-only': True},
        {'driver': 'raw', 'node-name': 'b-1', 'read-only': True, 'file': 'b-1f'}]


def test_no_file_is_removed_for_a_clone(storage_conf, database):
    store = storedimages.opened(storage_conf, database)
    path = RbdClone('p', 'n', f'base-{IMAGE}-0a1b2c3d').path
    storedimages.put(store, Manifest(IMAGE, made=Made(base_path=path, image_format='raw')))
    same_name = store.path(IMAGE, path.rpartition('/')[2])
    with open(same_name, 'w'):
        pass
    storedimages.put(store, Manifest(IMAGE))
    assert os.path.exists(same_name)
    asked = []

    def remove(image, clone):
        asked.append((image, clone))
        return len(asked) > 1

    for _round in range(3):
        store.files.remove_retired_of(FileKind.CLONE, remove)
    assert asked == [(IMAGE, path)] * 3, 'its making may not have been answered, and comes yet'
    store.files._clock = lambda: time.time() + 601
    for _round in range(3):
        store.files.remove_retired_of(FileKind.CLONE, remove)
    assert asked == [(IMAGE, path)] * 4 and store.files.named(FileKind.CLONE) == {}


def test_what_cannot_be_removed_keeps_nothing_else_from_it(storage_conf, database):
    store, asked = storedimages.opened(storage_conf, database), []
    for number in range(3):
        store.files.begin(IMAGE, FileKind.SERVER, f'server-{number}')
        store.files.abandon(IMAGE, f'server-{number}')

    def remove(_image, name):
        asked.append(name)
        raise ConnectionError(name)

    with pytest.raises(ConnectionError):
        store.files.remove_retired_of(FileKind.SERVER, remove)
    assert sorted(asked) == ['server-0', 'server-1', 'server-2']
    assert not os.path.exists(store.directory(IMAGE)), 'it is no file'


def test_without_the_option_nobody_asks_ceph(storage_conf):
    bases = CephBases(storage_conf)
    bases._rbd = None
    assert bases.obtain(None, None, None, None) is None
    bases.remove_retired(None)
