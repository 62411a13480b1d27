"""Bases in a real Ceph, where the real RBD store of Glance has put them."""

import contextlib
import dataclasses
import json
import os
import subprocess
import threading
import uuid

import pytest
from encrypted import look
from functional_tools import until
from glance_rbd import (
    CAPS,
    MIB,
    READ_ONLY,
    SIZE,
    clones,
    content_of,
    files,
    go_on,
    obtained,
    served,
)

from bootcache import cacheimage, exception, qemuimg
from bootcache import conf as bootcache_conf
from bootcache.ceph import places, rbd
from bootcache.ceph.places import RbdClone
from bootcache.ceph.rbd import Rbd
from bootcache.connectors import connectors
from bootcache.workingset import Extent
from glance_bootcache import startchecks
from glance_bootcache.ceph.basenode import base_of
from glance_bootcache.images.cephbases import CephBases
from glance_bootcache.storage import inspection
from tools.ceph.cluster import CephError


def test_a_base_is_served_from_ceph_and_takes_no_space(ceph_conf, glance_store, ceph_image,
                                                       ceph_exporter):
    path, facts = ceph_image
    manifest = obtained(ceph_conf, facts)
    clone = places.clone_of(manifest.made.base_path)
    assert clone.image_id == facts.image_id and clones(glance_store, facts) == [clone.name]
    ceph_exporter.ensure(manifest, None)
    assert served(ceph_conf, manifest.made.base_export) == content_of(path)
    assert served(ceph_conf, ceph_exporter.ensure_stored(manifest)) == content_of(path)
    assert Rbd(str(glance_store.ceph.conf), 'bootcache').size(clone) == SIZE
    used = json.loads(glance_store.ceph.run('rbd', 'du', '--format', 'json',
                                            f'bootcache/storage/{clone.name}'))
    assert used['images'][0]['used_size'] == 0


def test_a_cache_image_is_built_from_ceph(ceph_conf, ceph_image, directory):
    path, facts = ceph_image
    manifest = obtained(ceph_conf, facts)
    built = cacheimage.build(
        base_of(manifest, ceph_conf, virtual_bytes=SIZE), [Extent(9 * MIB, MIB), Extent(0, 65536)],
        f'{directory}/cache.qcow2', quota=64 * MIB, cluster_bytes=65536, backing_uri=None)
    qemuimg.set_backing_pointer(built.path, path, 'raw')
    assert subprocess.run(['qemu-img', 'compare', '-q', '-f', 'qcow2', '-F', 'raw', built.path,
                           path]).returncode == 0
    assert built.data_bytes == MIB + 65536


def test_glance_deletes_an_image_while_it_is_read(ceph_conf, glance_store, ceph_image,
                                                  ceph_exporter, monkeypatch):
    path, facts = ceph_image
    manifest = obtained(ceph_conf, facts)
    ceph_exporter.ensure(manifest, None)
    glance_store.delete(facts.image_id)
    listed = glance_store.ceph.run('rbd', 'trash', 'ls', 'images')
    assert facts.image_id in listed
    # What is read for the first time comes from Ceph, too.
    assert served(ceph_conf, manifest.made.base_export) == content_of(path)

    rows = files(ceph_conf)
    rows.abandon(facts.image_id, manifest.made.base_path)
    CephBases(ceph_conf).remove_retired(rows)
    assert clones(glance_store, facts), 'one that is open stays'
    # The exporter may hear a little later that its reader has left, and Ceph of the clone's end.
    until(lambda: ceph_exporter.retire(facts.image_id, with_base=True), 'nobody reads it', 60)
    ceph_exporter.keep_open([manifest])
    CephBases(ceph_conf).remove_retired(rows)
    assert clones(glance_store, facts), 'one that was opened just now may be read soon'
    monkeypatch.setattr(connectors, '_FRESH_SECONDS', 0)

    def gone():
        ceph_exporter.keep_open([manifest])
        CephBases(ceph_conf).remove_retired(rows)
        return clones(glance_store, facts) == []

    # The exporter's own connection to it may end a little after its node.
    until(gone, 'the clone that nobody reads is removed', 120)

    def purged():
        with contextlib.suppress(CephError):
            glance_store.ceph.run('rbd', 'trash', 'purge', '--no-progress', 'images')
        return facts.image_id not in glance_store.ceph.run('rbd', 'trash', 'ls', 'images')

    until(purged, 'the image that nothing needs is purged', 120)


def test_what_qemu_would_do_with_the_image_itself(ceph_conf, glance_store, ceph_image):
    # The reason for the clone: the key that reads is refused, and one that is not keeps Glance from
    # deleting the image.
    _path, facts = ceph_image

    def node(user):
        return {'driver': 'rbd', 'pool': 'images', 'image': facts.image_id, 'snapshot': 'snap',
                'conf': str(glance_store.ceph.conf), 'user': user}

    with pytest.raises(exception.BootcacheError, match='Operation not permitted'):
        look(node('bootcache'))
    look(node('glance'))


@pytest.mark.parametrize('change, why', [
    ({'image_hash': 'sha512:' + 'ab' * 64}, "does not have Glance's sha512"),
    ({'stored_bytes': SIZE - 512}, f'has {SIZE} bytes, not {SIZE - 512}'),
    ({'disk_format': 'qcow2'}, 'disk_format is qcow2'),
    ({'properties': {'img_signature': 'x'}}, 'a signature is verified on a file'),
    ({'image_id': '11111111-2222-3333-4444-555555555555'}, 'pool images has no such image')])
def test_what_is_not_as_glance_says_is_got_another_way(ceph_conf, glance_store, ceph_image, caplog,
                                                       change, why):
    _path, facts = ceph_image
    caplog.set_level('INFO')
    assert obtained(ceph_conf, dataclasses.replace(facts, **change)) is None
    assert why in caplog.text
    assert clones(glance_store, facts) == []


def test_it_is_where_glance_shows_it_to_be(ceph_conf, glance_store, ceph_image):
    path, facts = ceph_image
    elsewhere = dataclasses.replace(facts, image_id=str(uuid.uuid4()))
    assert obtained(ceph_conf, elsewhere) is None
    for shown in ({'direct_url': glance_store.url(facts.image_id)},
                  {'locations': [{'url': 'file:///etc/passwd'},
                                 {'url': glance_store.url(facts.image_id), 'metadata': {}}]}):
        manifest = obtained(ceph_conf, dataclasses.replace(elsewhere, properties=shown))
        assert places.clone_of(manifest.made.base_path).image_id == elsewhere.image_id
        with CephBases(ceph_conf).looked_at(manifest.made.base_path, os.path.dirname(path),
                                            go_on) as file:
            assert content_of(file)[:4 * MIB] == content_of(path)[:4 * MIB]


def test_a_look_sees_what_is_no_raw_image(ceph_conf, glance_store, make_base, directory):
    inner = make_base(f'{directory}/inner', 8 * MIB, [(0, MIB, 'data')], 'qcow2')
    facts = glance_store.add(str(uuid.uuid4()), inner)
    try:
        manifest = obtained(ceph_conf, facts)
        with CephBases(ceph_conf).looked_at(manifest.made.base_path, directory, go_on) as file:
            assert os.path.getsize(file) == facts.stored_bytes
            with pytest.raises(exception.ImageRefused, match='the content is qcow2'):
                inspection.inspect(file, 'raw')
        assert not os.path.exists(file)
    finally:
        glance_store.delete(facts.image_id)


def test_a_job_that_is_cancelled_leaves_no_clone(ceph_conf, glance_store, ceph_image):
    _path, facts = ceph_image
    cancelled = threading.Event()

    def check():
        if cancelled.is_set():
            raise exception.Cancelled('the image was deleted')

    with pytest.raises(exception.Cancelled):
        CephBases(ceph_conf).obtain(facts, files(ceph_conf), check,
                                    lambda count: cancelled.set())
    assert clones(glance_store, facts) == []


def test_clones_that_nothing_needs_are_removed_and_others_stay(ceph_conf, glance_store, ceph_image):
    _path, facts = ceph_image
    kept = obtained(ceph_conf, facts).made.base_path
    left = obtained(ceph_conf, facts).made.base_path
    other = f'other-{facts.image_id}'
    glance_store.ceph.run('rbd', 'create', '--size', '1M', f'bootcache/storage/{other}')
    bases = CephBases(ceph_conf)
    rows = files(ceph_conf)
    rows.abandon(facts.image_id, left)
    bases.remove_retired(rows)
    assert set(clones(glance_store, facts)) == {places.clone_of(kept).name, other}
    assert bases.serves(facts, kept) and not bases.serves(facts, left)
    signed = dataclasses.replace(facts, properties={'img_signature': 'x'})
    assert not bases.serves(signed, kept) and bases.serves(signed, '/dev/null')


def test_all_of_a_clone_can_be_read(ceph_conf, ceph_image):
    _path, facts = ceph_image
    path = obtained(ceph_conf, facts).made.base_path
    CephBases(ceph_conf).read_all(path, go_on)
    with pytest.raises(exception.Interrupted, match='No such file'):
        CephBases(ceph_conf).read_all(f'{path}0', go_on)


def test_a_key_as_the_page_has_it_is_accepted(ceph_conf):
    startchecks.check_ceph(ceph_conf)


@pytest.mark.parametrize('osd, why', [
    ('profile rbd', 'can delete what is in pool images'),
    ('profile rbd pool=images, profile rbd pool=bootcache namespace=storage', 'can delete'),
    # With this one QEMU opens Glance's snapshots, and whoever has it deletes their headers.
    (f'allow rw pool=images object_prefix rbd_header., {CAPS}', 'can delete'),
    (READ_ONLY, 'not permitted'),
    ('profile rbd pool=bootcache namespace=storage, allow r pool=bootcache',
     None)])
def test_keys_that_may_too_much_or_too_little(ceph_conf, glance_store, ceph_image, osd, why,
                                              caplog):
    name = f'tried-{uuid.uuid4()}'
    glance_store.ceph.make_user(name, osd)
    ceph_conf.set_override('rbd_store_user', name, bootcache_conf.GROUP)
    if why is None:
        # It cannot see the pool: images are downloaded, and the log says why.
        assert obtained(ceph_conf, ceph_image[1]) is None
        assert 'look at the caps of client.' in caplog.text
        return
    with pytest.raises(exception.ConfigurationError, match=why) as caught:
        startchecks.check_ceph(ceph_conf)
    assert CAPS in str(caught.value) and ceph_image[1].image_id
    assert glance_store.ceph.run('rbd', 'info', f'images/{ceph_image[1].image_id}')


@pytest.mark.parametrize('option, value, why', [
    ('rbd_store_user', 'nobody', 'unable to find a keyring'),
    ('rbd_store_ceph_conf', '/nonexistent', 'cannot be read'),
    ('rbd_store_pool', 'no-pool', "no such pool .*error opening pool '?no-pool"),
    ('rbd_clone_namespace', 'nowhere', 'rbd namespace create bootcache/nowhere')])
def test_what_is_wrong_in_the_configuration(ceph_conf, option, value, why):
    ceph_conf.set_override(option, value, bootcache_conf.GROUP)
    with pytest.raises(exception.ConfigurationError, match=why):
        startchecks.check_ceph(ceph_conf)


def test_a_spoiled_keyring_ends_it(ceph_conf, glance_store):
    name = f'tried-{uuid.uuid4()}'
    glance_store.ceph.make_user(name, CAPS)
    ceph_conf.set_override('rbd_store_user', name, bootcache_conf.GROUP)
    keyring = glance_store.ceph.directory / f'ceph.client.{name}.keyring'
    keyring.write_text(keyring.read_text().split(' = ')[0] + ' = nothing\n')
    with pytest.raises(exception.ConfigurationError, match='make it again by') as caught:
        startchecks.check_ceph(ceph_conf)
    assert f'ceph auth get client.{name}' in str(caught.value)
    assert 'needs pool' not in str(caught.value)


def test_another_ones_key_ends_it(ceph_conf, glance_store):
    one, other = (f'tried-{uuid.uuid4()}' for _user in range(2))
    for name in one, other:
        glance_store.ceph.make_user(name, CAPS)
    folder = glance_store.ceph.directory
    (folder / f'ceph.client.{one}.keyring').write_text(
        (folder / f'ceph.client.{other}.keyring').read_text().replace(other, one))
    ceph_conf.set_override('rbd_store_user', one, bootcache_conf.GROUP)
    with pytest.raises(exception.ConfigurationError, match=f'refuses the key of client.{one}'):
        startchecks.check_ceph(ceph_conf)


def test_a_keyring_of_another_user_is_named(monkeypatch, tmp_path):
    """Ceph says of it that there is none."""
    there = tmp_path / 'keyring'
    there.write_text('')
    monkeypatch.setattr(rbd.os, 'access', lambda path, mode: path != str(there))
    error = rbd._fault('rbd ls', 2, '2026 -1 auth: unable to find a keyring on'
                       f' {tmp_path}/no,{there},/none: (2) No such file or directory', 'one')
    assert isinstance(error, rbd.RbdNoKey)
    assert f'{there} cannot be read by this service' in str(error)


def test_what_a_manifest_calls_a_clone():
    clone = RbdClone('bootcache', 'storage', 'base-x')
    assert places.clone_of(clone.path) == clone and clone.image_id is None
