"""A base's file that is another one than was verified, with the real exporter."""

import dataclasses
import hashlib
import os
import shutil

import nbd
import pytest
from functional_tools import until
from glance_files import ALWAYS, configured
from storage_node import IMAGE, SIZE
from test_read_errors import service  # noqa: F401

from bootcache import exception, savefile
from bootcache.cacheimage import Base
from bootcache.manifest import ImageState, Made, Manifest, Standing
from glance_bootcache.ceph.basenode import base_of
from glance_bootcache.filestore.snapshots import FileSnapshots
from glance_bootcache.storage import serving
from tools import storedimages

EXPORT = f'base-{IMAGE}'


@pytest.fixture
def verified(node, service):  # noqa: F811
    """The node's image as the storage service has it, served."""
    with open(node.base, 'rb') as stream:
        digest = hashlib.file_digest(stream, 'sha256').hexdigest()
    manifest = storedimages.put(service.store, Manifest(IMAGE, Standing.DONE, made=Made(
        image_format='qcow2', virtual_bytes=SIZE, stored_bytes=os.path.getsize(node.base),
        base_path=node.base, base_export=EXPORT, base_hash=f'sha256:{digest}',
        base_file=savefile.signature(node.base))))
    service.tiers.serve(manifest)
    return manifest


def replace(path, change=lambda stream: None):
    """Have another file be in its place, as after a restore."""
    shutil.copy2(path, f'{path}.new')
    with open(f'{path}.new', 'r+b') as stream:
        change(stream)
    os.rename(f'{path}.new', path)


def other_byte(stream):
    stream.seek(-1, os.SEEK_END)
    last = stream.read(1)
    stream.seek(-1, os.SEEK_END)
    stream.write(bytes([last[0] ^ 1]))


def is_served(node):
    return node.exporter.common.runs and EXPORT in node.exports


def first_bytes(node):
    """Return what a host reads that connects now."""
    handle = nbd.NBD()
    handle.set_export_name(EXPORT)
    handle.connect_tcp('127.0.0.1', str(node.conf.export_port))
    read = bytes(handle.pread(4096, 0))
    handle.shutdown()
    return read


def write_over(path, old, new):
    """Write a base's first bytes over in place, as cp and rsync --inplace do."""
    with open(path, 'r+b') as stream:
        at = stream.read().find(old)
        assert at > 0
        stream.seek(at)
        stream.write(new)


def test_one_that_is_the_same_is_served_at_once(node, service, verified, monkeypatch):  # noqa: F811
    node.kill()
    monkeypatch.setattr(savefile, 'file_digest', None)
    service.hash_changed()
    service.tiers.serve(service.store.load(IMAGE))
    assert EXPORT in node.exports


@pytest.mark.parametrize('change', ['another file', 'another time'])
def test_one_that_may_be_another_is_hashed_first(node, service, verified, change):  # noqa: F811
    node.kill()
    if change == 'another file':
        replace(node.base)
    else:
        os.utime(node.base, ns=(1, 1))
    with pytest.raises(exception.StorageDaemonError, match='hashed again first'):
        service.tiers.serve(service.store.load(IMAGE))
    service.hash_changed()
    # With no need to ask; and it is known what it is.
    until(lambda: is_served(node), 'the export')
    manifest = service.store.load(IMAGE)
    assert manifest.made.base_file == savefile.signature(node.base)
    assert manifest.made == verified.making(base_file=manifest.made.base_file).made \
        and manifest.state is ImageState.SERVED


def test_one_that_is_another_is_refused(node, service, verified):  # noqa: F811
    node.kill()
    replace(node.base, other_byte)
    service.hash_changed()
    until(lambda: service.store.load(IMAGE).state is ImageState.FAILED, 'the end of the base')
    manifest = service.store.load(IMAGE)
    assert not manifest.made.base_path
    assert 'does not have the sha256' in manifest.reason and node.base in manifest.reason
    assert os.path.exists(node.base) and not is_served(node)


def test_one_that_is_read_goes_on_meanwhile(node, service, verified):  # noqa: F811
    """The exporter has the file of before open."""
    replace(node.base)
    service.tiers.serve(service.store.load(IMAGE))
    service.hash_changed()
    until(lambda: service.store.load(IMAGE) != verified, 'the end of the hashing')
    assert is_served(node)


@pytest.mark.parametrize('standing', [Standing.DONE, Standing.SKIPPED])
def test_one_that_is_written_over_in_place_is_cut_off(node, service, verified,  # noqa: F811
                                                      standing):
    """The exporter has that very file open. A right one, of the same export, is served anew."""
    node.exporter.ensure_stored(storedimages.put(service.store, verified.standing_at(standing)))
    right = first_bytes(node)
    wrong = bytes(255 - byte for byte in right)
    write_over(node.base, right, wrong)
    assert first_bytes(node) == wrong, 'nothing is shown'
    service.hash_changed()
    until(lambda: not node.exports, 'the end of the exports')
    if standing is Standing.DONE:
        until(lambda: service.store.load(IMAGE).state is ImageState.FAILED, 'the end of the base')
        good = f'{node.base}.good'
        shutil.copy(node.base, good)
        write_over(good, wrong, right)
        until(lambda: IMAGE not in node.exporter._suspended, 'that it may be served')
        service.tiers.serve(storedimages.put(service.store,
            verified.making(base_path=good, base_file=savefile.signature(good))))
        assert first_bytes(node) == right


def test_one_in_whose_place_another_came_is_read_to_the_end(node, service,  # noqa: F811
                                                            verified):
    """The exporter has the file of before open, which is right, and servers run from it."""
    right = first_bytes(node)
    replace(node.base, other_byte)
    service.hash_changed()
    until(lambda: service.store.load(IMAGE).state is ImageState.FAILED, 'the end of the base')
    assert first_bytes(node) == right


def test_one_that_is_away_is_no_other(node, service, verified):  # noqa: F811
    """As a file system that is not mounted yet."""
    node.kill()
    os.rename(node.base, f'{node.base}.away')
    service.hash_changed()
    with pytest.raises(exception.StorageDaemonError, match='No such file'):
        service.tiers.serve(service.store.load(IMAGE))
    os.rename(f'{node.base}.away', node.base)
    service.tiers.serve(service.store.load(IMAGE))
    assert EXPORT in node.exports


def test_one_that_cannot_be_looked_at_keeps_no_other_from_being_served(
        node, service, verified, caplog):  # noqa: F811
    """As one in a directory that was taken from this service's user, or on a stale mount."""
    node.kill()
    others = []
    for first in 'f0':
        path = shutil.copy2(node.base, f'{node.base}.{first}')
        others.append(storedimages.put(service.store, dataclasses.replace(
            verified, image_id=first + IMAGE[1:]).making(
            base_path=path, base_export=f'base-{first}', base_file=savefile.signature(path))))
    os.rename(node.base, f'{node.base}.away')
    os.symlink(node.base, node.base)
    serving.serve_all(service.store.manifests(), service.tiers.serve)
    service.hash_changed()
    assert node.exports == {'base-f', 'base-0'}
    assert f'image {IMAGE}: its base cannot be served' in caplog.text
    assert service.store.load(IMAGE) == verified
    os.rename(f'{node.base}.away', node.base)
    serving.serve_all(service.store.manifests(), service.tiers.serve)
    assert node.exports == {'base-f', 'base-0', EXPORT}


def test_nothing_else_is_made_of_it(node, verified, directory):
    assert isinstance(base_of(verified, node.exporter._conf), Base)
    conf = configured(f'{directory}/snapshots', os.path.dirname(node.base))
    replace(node.base, other_byte)
    with pytest.raises(exception.StorageDaemonError, match='hashed again first'):
        base_of(verified, node.exporter._conf)
    assert 'hashed again first' in FileSnapshots(conf, ALWAYS).refusal(verified)
