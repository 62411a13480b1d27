"""The storage node's tiers with a real exporter: switches under readers, crashes, leftovers."""

import contextlib
import hashlib
import os
import shutil
import threading
import time

import pytest
from functional_tools import until
from tiers_house import MIB, Readers, flip
from tiers_house import house as house  # the fixture
from tiers_house import memory as memory  # likewise

from bootcache import cacheimage, exception, naming, savefile, tier
from bootcache.cacheimage import Base
from bootcache.manifest import CacheInfo, Made, Manifest, Standing
from bootcache.storagedaemon import StorageDaemon, TcpListener
from bootcache.tier import Medium
from glance_bootcache.storage.nodefiles import FileKind
from glance_bootcache.storage.tiers import Content

LONG_AGO = 1_000_000


# Switching.

def test_readers_do_not_notice_switches(house):
    manifest = house.image(1)
    disk, memory = house.disk_path(manifest), house.memory_path(manifest)
    with Readers(house, manifest) as readers:
        for _ in range(15):
            readers.go_on()
            assert house.promote(manifest) is Medium.MEMORY
            assert house.served_from(manifest) == memory
            assert tier.is_open(memory) and not tier.is_open(disk)
            readers.go_on()
            house.tiers.demote(manifest.image_id)
            assert house.tiers.medium(manifest.image_id) is Medium.DISK
            assert house.served_from(manifest) == disk
            assert tier.is_open(disk) and os.listdir(house.memory) == []
        readers.go_on()
    assert readers.errors == [] and min(readers.reads) >= 90
    house.check(manifest, disk)


def test_many_images_at_once(house):
    manifests = [house.image(number, MIB) for number in range(6)]
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(Readers(house, manifest, 1)) for manifest in manifests]
        for manifest in manifests * 3:
            house.tiers.promote(manifest)
        house.settle()
        for reader in readers:
            reader.go_on()
        assert len(os.listdir(house.memory)) == 6
        for manifest in manifests[::2]:
            house.tiers.demote(manifest.image_id)
        for reader in readers:
            reader.go_on()
    assert [reader.errors for reader in readers] == [[]] * 6
    assert sorted(os.listdir(house.memory)) == sorted(
        os.path.basename(house.memory_path(manifest)) for manifest in manifests[1::2])


def test_requests_that_come_together_copy_once(house, monkeypatch):
    manifest, verified = house.image(1), []
    verify = cacheimage.verify
    monkeypatch.setattr(cacheimage, 'verify',
                        lambda *arguments: (verified.append(1), verify(*arguments)))
    threads = [threading.Thread(target=house.tiers.promote, args=(manifest,)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert house.promote(manifest) is Medium.MEMORY and len(verified) == 1
    house.check(manifest, house.memory_path(manifest))


def test_a_daemon_that_somebody_else_filled(house, directory):
    """What is named as ours is ours; a top node of another kind is refused, and serves on."""
    manifest, other = house.image(1), house.image(2)
    house.exporter.stop()
    daemon = StorageDaemon('exporter', house.conf.bootcache.run_dir,
                           TcpListener('127.0.0.1', house.conf.bootcache.export_port))
    daemon.ensure_running()
    export = f'cache-{manifest.image_id}-{manifest.made.cache_image.sha256[:16]}'
    node = naming.node_name('c', export)
    daemon.add_nodes(*Base(house.disk_path(manifest), 'raw', 0).nodes(node))
    daemon.add_export(export, node)
    foreign = house.exporter.cache_export(other)
    daemon.add_nodes({'driver': 'file', 'node-name': 'x', 'filename': house.disk_path(other),
                      'read-only': True})
    daemon.add_export(foreign, 'x')
    house.restart(manifest, other)
    assert house.promote(manifest) is Medium.MEMORY
    house.check(manifest, house.memory_path(manifest))
    assert house.promote(other) is Medium.DISK
    house.check(other, house.disk_path(other))
    assert os.listdir(house.memory) == [os.path.basename(house.memory_path(manifest))]
    assert house.exporter.retire(manifest.image_id, with_base=True)


def test_a_crash_between_two_steps_of_a_switch(house):
    """The service died when the new file was open already, or the old one still."""
    manifest = house.image(1)
    top = naming.node_name('c', house.exporter.cache_export(manifest))
    house.exporter.common._daemon.add_nodes({
        'driver': 'file', 'node-name': f'{top}m', 'filename': house.disk_path(manifest),
        'read-only': True})
    assert house.promote(manifest) is Medium.MEMORY
    house.check(manifest, house.memory_path(manifest))
    house.exporter.common._daemon.add_nodes({
        'driver': 'file', 'node-name': f'{top}f', 'filename': house.disk_path(manifest),
        'read-only': True})
    house.tiers.demote(manifest.image_id)
    house.check(manifest, house.disk_path(manifest))
    assert house.exporter.common._daemon.nodes() & {top, f'{top}f', f'{top}m'} in ({top, f'{top}f'},
                                                                            {top, f'{top}m'})


# What is not promoted.

@pytest.mark.parametrize('damage', ['flip', 'truncate', 'grow', 'remove'])
def test_a_damaged_file_on_the_disk_is_not_promoted(house, damage, caplog):
    manifest = house.image(1)
    path = house.disk_path(manifest)
    if damage == 'flip':
        flip(path)
    elif damage == 'remove':
        os.unlink(path)
    else:
        os.truncate(path, MIB if damage == 'truncate' else 3 * MIB)
    assert house.promote(manifest) is Medium.DISK
    assert os.listdir(house.memory) == [] and house.served_from(manifest) == path
    assert manifest.image_id in caplog.text
    assert house.promote(manifest) is Medium.DISK
    # The next boot has it built again, see tests/unit/glance_bootcache/test_damage.py.
    assert house.tiers.check(manifest) is Content.WRONG and house.tiers.is_damaged(manifest)


def test_without_a_memory_tier(house):
    manifest = house.image(1)
    house.conf.clear_override('storage_memory_directory', 'bootcache')
    house.restart(manifest)
    assert house.promote(manifest) is Medium.DISK
    house.check(manifest, house.disk_path(manifest))


# Room.

def test_the_least_recently_used_leaves_memory(house):
    house.conf.set_override('storage_memory_quota', '5MiB', 'bootcache')
    house.restart()
    first, second, third, large = *map(house.image, (1, 2, 3)), house.image(4, 6 * MIB)
    house.tiers.note_use(first.image_id, LONG_AGO + 1)
    house.tiers.note_use(second.image_id, LONG_AGO)
    assert house.promote(first) is house.promote(second) is Medium.MEMORY
    with Readers(house, second, 2) as readers:
        readers.go_on()
        assert house.promote(third) is Medium.MEMORY
        readers.go_on()
    assert readers.errors == []
    assert house.tiers.medium(second.image_id) is Medium.DISK
    house.check(second, house.disk_path(second))
    house.check(first, house.memory_path(first))
    assert house.promote(large) is Medium.DISK and len(os.listdir(house.memory)) == 2
    # What is being fetched right now does not make room.
    house.tiers.note_use(first.image_id, time.time())
    house.tiers.note_use(third.image_id, time.time())
    assert house.promote(second) is Medium.DISK and len(os.listdir(house.memory)) == 2


# Crashes and restarts.

def test_the_exporter_s_crash(house):
    manifest = house.image(1)
    house.promote(manifest)
    house.kill()
    house.exporter.start()
    house.serve(manifest)
    house.check(manifest, house.memory_path(manifest))
    house.tiers.demote(manifest.image_id)
    house.check(manifest, house.disk_path(manifest))
    # Promoted while it is away: served from memory when it is back.
    house.kill()
    assert house.promote(manifest) is Medium.MEMORY
    house.serve(manifest)
    house.check(manifest, house.memory_path(manifest))


@pytest.mark.parametrize('damage', ['flip', 'remove', 'replace'])
def test_memory_is_damaged_while_the_exporter_is_away(house, damage):
    manifest = house.image(1)
    house.promote(manifest)
    house.kill()
    path = house.memory_path(manifest)
    if damage == 'flip':
        flip(path)
    else:
        os.unlink(path)
        if damage == 'replace':
            savefile.write_json(path, {})
    house.serve(manifest)
    house.check(manifest, house.disk_path(manifest))
    assert house.tiers.medium(manifest.image_id) is Medium.DISK
    assert house.promote(manifest) is Medium.MEMORY
    house.check(manifest, path)


def test_memory_is_damaged_while_it_is_served(house):
    """A name that is the same is not the same file: the exporter went on with the damaged one."""
    manifest = house.image(1)
    house.promote(manifest)
    flip(house.memory_path(manifest))
    assert house.tiers.medium(manifest.image_id) is Medium.DISK
    # It is read until the next promotion.
    assert house.tiers.check(manifest) is Content.UNREAD
    assert house.promote(manifest) is Medium.MEMORY
    house.check(manifest, house.memory_path(manifest))
    assert house.tiers.check(manifest) is Content.RIGHT


def test_a_new_service_takes_memory_over(house):
    manifests = [house.image(number) for number in range(5)]
    good, damaged, gone, replaced, disk = manifests
    for manifest in manifests[:4]:
        house.promote(manifest)
    with Readers(house, good) as readers:
        readers.go_on()
        house.tiers.stop()
        flip(house.memory_path(damaged))
        newer = house.image(9)
        with open(f'{house.memory}/notes', 'w') as stream:
            stream.write('of somebody else')
        shutil.copy(house.disk_path(disk), f'{house.memory_path(disk)}.partial')
        # A stale one: of the same image's build before last.
        shutil.copy(house.disk_path(disk), f'{house.memory}/{disk.image_id}-{"0" * 64}.qcow2')
        house.exporter.retire(gone.image_id, with_base=True)
        house.exporter.retire(replaced.image_id, with_base=True)
        house.restart(good, damaged, disk, newer)
        readers.go_on()
    assert readers.errors == []
    assert sorted(os.listdir(house.memory)) == sorted(
        ['notes', os.path.basename(house.memory_path(good))])
    house.check(good, house.memory_path(good))
    house.check(damaged, house.disk_path(damaged))
    house.check(disk, house.disk_path(disk))
    assert house.tiers.medium(good.image_id) is Medium.MEMORY
    assert house.tiers.medium(damaged.image_id) is Medium.DISK


def test_a_new_service_without_memory_returns_to_the_disk(house):
    manifest = house.image(1)
    house.promote(manifest)
    with Readers(house, manifest) as readers:
        readers.go_on()
        house.conf.clear_override('storage_memory_directory', 'bootcache')
        house.restart(manifest)
        readers.go_on()
    assert readers.errors == []
    house.check(manifest, house.disk_path(manifest))


def test_a_new_exporter_and_a_new_service(house):
    manifest = house.image(1)
    house.promote(manifest)
    house.tiers.stop()
    house.kill()
    house.restart(manifest)
    house.check(manifest, house.memory_path(manifest))


def test_a_replaced_cache_image_leaves_memory(house):
    manifest = house.image(1)
    house.promote(manifest)
    with open(house.disk_path(manifest), 'rb') as stream:
        data = stream.read()[::-1]
    name = house.store.begin_file(manifest.image_id, FileKind.CACHE_IMAGE, '.qcow2')
    with open(house.store.path(manifest.image_id, name), 'wb') as stream:
        stream.write(data)
    info = CacheInfo(**{**vars(manifest.made.cache_image), 'file': name,
                                'sha256': hashlib.sha256(data).hexdigest()})
    newer = Manifest(manifest.image_id, Standing.DONE, made=Made(image_format='qcow2',
        virtual_bytes=4 * MIB, base_path=manifest.made.base_path,
        base_export=manifest.made.base_export, cache_image=info))
    house.serve(newer)
    house.tiers.forget(manifest.image_id)
    assert os.listdir(house.memory) == []
    house.content[manifest.image_id] = data
    house.check(newer, house.disk_path(newer))
    assert house.promote(newer) is Medium.MEMORY
    house.check(newer, house.memory_path(newer))
    house.exporter.retire(newer.image_id, with_base=True)
    house.tiers.forget(newer.image_id)
    assert os.listdir(house.memory) == [] and house.exporter.common._daemon.nodes() == set()


# What else the exporter has for tiers and for settling.

def test_a_cache_image_that_is_fetched_is_not_withdrawn(house):
    manifest = house.image(1)
    house.promote(manifest)
    with Readers(house, manifest) as readers:
        readers.go_on()
        assert not house.withdraw(manifest)
        readers.go_on()
    assert readers.errors == []
    until(lambda: house.withdraw(manifest), 'the end of the readers')
    assert house.served_from(manifest) is None
    assert not [export for export in house.exporter.common._asked_at if export.startswith('cache-')]
    assert house.withdraw(manifest)
    # It leaves memory with that, as an eviction has it.
    house.tiers.forget(manifest.image_id)
    house.serve(manifest)
    house.check(manifest, house.disk_path(manifest))


def test_the_stored_file_is_served_as_it_is(house):
    manifest = house.image(1)
    export = house.exporter.ensure_stored(manifest)
    assert export == house.exporter.ensure_stored(manifest) == f'stored-{manifest.image_id}'
    with open(manifest.made.base_path, 'rb') as stream:
        stored = stream.read()
    assert stored[:4] == b'QFI\xfb' and len(stored) % 512
    # A block device ends with a whole sector.
    assert house.read(export) == stored + bytes(-len(stored) % 512)
    # A new cache image, and retiring what hosts may still need, leave it alone.
    house.withdraw(manifest)
    house.serve(manifest)
    assert not house.exporter.retire(manifest.image_id, with_base=False)
    reader = house.connect(export)
    assert not house.exporter.retire(manifest.image_id, with_base=True)
    assert reader.pread(4, 0) == b'QFI\xfb'
    reader.shutdown()
    until(lambda: house.exporter.retire(manifest.image_id, with_base=True), 'the reader\'s end')
    assert house.exporter.common._daemon.nodes() == set()


def test_a_stored_file_that_is_missing(house):
    manifest = house.image(1)
    os.unlink(manifest.made.base_path)
    with pytest.raises(exception.StorageDaemonError):
        house.exporter.ensure_stored(manifest)
    with pytest.raises(exception.StorageDaemonError, match='no stored file'):
        house.exporter.ensure_stored(Manifest(manifest.image_id))

