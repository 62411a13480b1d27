"""The state on disk: what a crash leaves is swept, what is damaged counts as none."""

import contextlib
import errno
import os
import resource

import pytest
from fakes_hosts import holding
from fakes_manager import FakeTiers

from bootcache import savefile, steps
from bootcache.manifest import CacheInfo, Made, Manifest, Standing, Wished, WorkingSetInfo
from bootcache.workingset import Extent, WorkingSet
from glance_bootcache.hosts.holdings import Hosts
from glance_bootcache.hosts.orders import Orders
from glance_bootcache.storage.store import ImageStore

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
OTHER = '00000000-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
THIRD = '11111111-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
SET = WorkingSet(IMAGE, 'sha512:00', 8192, 4096, (Extent(4096, 4096), Extent(0, 4096)))


@pytest.fixture
def store(tmp_path):
    return ImageStore(str(tmp_path / 'state'))


def names(store, image=IMAGE):
    return sorted(os.listdir(store.directory(image)))


def fill(store):
    """An image with a base, a working set and a cache image."""
    store.save(Manifest(IMAGE))
    for name in ('base-1.img', 'cache-1.qcow2'):
        with open(store.path(IMAGE, name), 'w') as stream:
            stream.write(name)
    file = store.save_working_set(IMAGE, SET)
    manifest = Manifest(IMAGE, Standing.DONE, made=Made(base_path=store.path(IMAGE,
        'base-1.img'), working_set=WorkingSetInfo(file, 8192, 2, 4096, 'nova', 'marker', 1.0,
        'login:'), cache_image=CacheInfo('cache-1.qcow2', 13, 8192, 2, 'ab', 8192, 4096, 1 << 20,
        'nbd:', 1.0, 1)))
    store.save(manifest)
    return manifest


def test_an_image_comes_back(store):
    manifest = fill(store)
    assert store.load(IMAGE) == manifest
    assert store.load_working_set(manifest) == SET
    assert store.manifests() == [manifest]
    assert names(store) == ['base-1.img', 'cache-1.qcow2', 'manifest.json',
                            manifest.made.working_set.file]


def test_of_a_difference_that_is_damaged_it_is_told_once(store, caplog):
    """Each answer to Prometheus looks at it."""
    manifest = fill(store)
    with open(store.path(IMAGE, 'cache-1.difference.json'), 'w') as stream:
        stream.write('{')
    for _look in range(3):
        assert store.load_difference(manifest) is None
    assert caplog.text.count('its difference is not given out') == 1


def test_nothing_is_known_of_an_unknown_image(store):
    assert store.load(IMAGE) is None and store.manifests() == []
    assert store.load_working_set(Manifest(IMAGE)) is None


def test_a_new_manifest_removes_what_only_the_last_one_named(store):
    """What is being written meanwhile has no manifest yet, and stays."""
    manifest = fill(store)
    with open(store.path(IMAGE, 'cache-2.qcow2.partial'), 'w'):
        pass
    store.save(manifest.making(cache_image=None))
    assert names(store) == ['base-1.img', 'cache-2.qcow2.partial', 'manifest.json',
                            manifest.made.working_set.file]


def test_sweeping_removes_what_a_crash_left(store):
    manifest = fill(store)
    for name in ('cache-2.qcow2', 'cache-1.qcow2.partial', 'manifest.json.abc.tmp',
                 'working-set-0.json', 'base-0.img'):
        with open(store.path(IMAGE, name), 'w'):
            pass
    store.save(manifest.making(cache_image=None))
    store.sweep(store.load(IMAGE))
    assert names(store) == ['base-1.img', 'manifest.json', manifest.made.working_set.file]


def test_a_base_outside_is_not_touched(store, tmp_path):
    outside = tmp_path / 'glance' / IMAGE
    outside.parent.mkdir()
    outside.write_text('base')
    manifest = Manifest(IMAGE, made=Made(base_path=str(outside)))
    store.save(manifest)
    store.sweep(manifest)
    store.save(Manifest(IMAGE))
    store.remove(IMAGE)
    assert outside.read_text() == 'base'


@pytest.mark.parametrize('content', ['', '{', '[]', '{"version": 99}'])
def test_a_damaged_manifest_counts_as_none(store, content):
    fill(store)
    with open(store.path(IMAGE, 'manifest.json'), 'w') as stream:
        stream.write(content)
    assert store.load(IMAGE) is None
    assert store.manifests() == []


def test_a_damaged_working_set_counts_as_none(store):
    manifest = fill(store)
    with open(store.path(IMAGE, manifest.made.working_set.file), 'w') as stream:
        stream.write('{"version": 1}')
    assert store.load_working_set(manifest) is None


def test_removing_leaves_the_others(store):
    fill(store)
    store.save(Manifest(OTHER))
    store.remove(IMAGE)
    assert not os.path.exists(store.directory(IMAGE))
    assert [manifest.image_id for manifest in store.manifests()] == [OTHER]
    store.remove(IMAGE)


def test_the_manifest_goes_first(store, monkeypatch):
    """A crash right after it leaves files that nobody names, and no half-true state."""
    fill(store)

    def crash(path):
        raise KeyboardInterrupt

    monkeypatch.setattr(savefile, 'fsync_directory', crash)
    with pytest.raises(KeyboardInterrupt):
        store.remove(IMAGE)
    assert 'manifest.json' not in names(store) and 'cache-1.qcow2' in names(store)
    assert store.manifests() == []


def test_a_failed_save_leaves_the_old_state_and_its_files(store, monkeypatch):
    manifest = fill(store)
    before = names(store)

    def refuse(source, target):
        raise OSError('no')

    monkeypatch.setattr(os, 'rename', refuse)
    with pytest.raises(OSError):
        store.save(Manifest(IMAGE))
    assert store.load(IMAGE) == manifest and names(store) == before


def test_strange_directories_are_left_alone(store, tmp_path):
    fill(store)
    (tmp_path / 'state' / 'images' / 'lost+found').mkdir()
    assert [manifest.image_id for manifest in store.manifests()] == [IMAGE]


@pytest.mark.parametrize('image', ['..', '../x', '', 'x', '/etc'])
def test_only_image_ids_become_paths(store, image):
    for call in (store.directory, store.load, store.remove):
        with pytest.raises(ValueError):
            call(image)


def test_names_are_new_each_time(store):
    made = {store.new_name('cache', '.qcow2') for _ in range(200)}
    assert len(made) == 200
    assert all(name.startswith('cache-') and name.endswith('.qcow2') for name in made)


# What is read is remembered, and never of an earlier file.

def test_each_save_is_read(store):
    for generation in range(50):
        store.save(Manifest(IMAGE, wished=Wished(generation=generation)))
        assert store.load(IMAGE).wished.generation == generation
        assert ImageStore(os.path.dirname(os.path.dirname(store.directory(IMAGE)))).load(
            IMAGE).wished.generation == generation


def test_what_another_wrote_is_read(store):
    """A manifest of the same size, put into place by rename within the same moment."""
    store.save(Manifest(IMAGE, wished=Wished(generation=1)))
    assert store.load(IMAGE).wished.generation == 1
    before = os.stat(store.path(IMAGE, 'manifest.json'))
    Manifest(IMAGE, wished=Wished(generation=2)).save(store.path(IMAGE, 'manifest.json'))
    os.utime(store.path(IMAGE, 'manifest.json'), ns=(before.st_atime_ns, before.st_mtime_ns))
    assert store.load(IMAGE).wished.generation == 2


def test_a_removed_manifest_is_not_remembered(store):
    store.save(Manifest(IMAGE))
    assert store.load(IMAGE) is not None
    store.remove(IMAGE)
    assert store.load(IMAGE) is None and store.is_damaged(IMAGE) is False


@contextlib.contextmanager
def no_descriptors():
    """This process can open no file in the block."""
    limits, held = resource.getrlimit(resource.RLIMIT_NOFILE), []
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, limits[1]))
    try:
        with pytest.raises(OSError, match='Too many open files'):
            while True:
                held.append(os.dup(0))
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_one_that_cannot_be_read_for_a_moment_is_not_damaged(store):
    manifest = fill(store)
    with no_descriptors():
        for call in (store.load, store.is_damaged, lambda image: store.change(image, str)):
            with pytest.raises(OSError, match='Too many open files'):
                call(IMAGE)
        with pytest.raises(OSError, match='Too many open files'):
            store.save(Manifest(IMAGE))
    assert store.load(IMAGE) == manifest and store.manifests() == [manifest]


def test_one_that_cannot_be_read_keeps_nobody_from_the_others(store, caplog, database):
    manifest, other = fill(store), Manifest(OTHER)
    store.save(other)
    assert store.manifests() == [other, manifest]
    path = store.path(IMAGE, 'manifest.json')
    os.rename(path, f'{path}.away')
    os.symlink(path, path)
    # Who goes through all of them goes by what it was.
    assert store.manifests() == [other, manifest]
    again = ImageStore(store._directory)
    assert again.manifests() == [other] and again.manifests() == [other]
    assert caplog.text.count('symbolic links') == 1
    table = Hosts(again, FakeTiers(None, again), Orders(database))
    assert table.report('one', holding(IMAGE, OTHER)).drop == ()
    os.rename(f'{path}.away', path)
    assert again.manifests() == [other, manifest]


def test_damage_is_told_from_absence(store):
    store.save(Manifest(IMAGE))
    assert store.is_damaged(IMAGE) is False
    with open(store.path(IMAGE, 'manifest.json'), 'w') as stream:
        stream.write('{')
    assert store.load(IMAGE) is None and store.is_damaged(IMAGE) is True
    store.save(Manifest(IMAGE))
    assert store.load(IMAGE) is not None and store.is_damaged(IMAGE) is False


def test_changes(store):
    assert store.change(IMAGE, lambda manifest: pytest.fail('there is none')) is None
    store.save(Manifest(IMAGE, updated_at='then'))
    assert store.change(IMAGE, lambda manifest: manifest).updated_at == 'then'
    changed = store.change(IMAGE, lambda manifest: manifest.wishing(pinned=True))
    assert changed.wished.pinned and changed.updated_at != 'then' and store.load(IMAGE) == changed


def test_what_a_crash_left_of_a_forgotten_image_goes_with_the_next_start(store, monkeypatch):
    fill(store)
    for image in (OTHER, THIRD):
        store.save(Manifest(image))

    def killed(_step):
        raise KeyboardInterrupt

    monkeypatch.setattr(steps, '_hook', killed)
    with pytest.raises(KeyboardInterrupt):
        store.remove(IMAGE)
    monkeypatch.undo()
    # Nothing follows from one that is damaged.
    with open(store.path(THIRD, 'manifest.json'), 'w') as stream:
        stream.write('{')
    os.mkdir(os.path.join(store._images, 'lost+found'))
    assert 'base-1.img' in names(store)
    # Nor from one that cannot be looked at.
    lstat = os.lstat

    def stale(path, *arguments, **named):
        if path == store.path(OTHER, 'manifest.json'):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        return lstat(path, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, 'lstat', stale)
        store.sweep_forgotten()
    assert sorted(os.listdir(store._images)) == sorted([OTHER, THIRD, 'lost+found'])
