"""A file system that others fill while servers boot: their reads go on, kept or not."""

import os
import subprocess
import threading

import nbd
import pytest
from compute_host import boot, compare
from functional_tools import qemu_img, until
from storage_node import IMAGE, MIB, SIZE, content

from bootcache import naming
from bootcache.growingstore import GrowingStore
from bootcache.workingset import Extent
from nova_bootcache.gateway import arrivingimage, sharedstore

WATCH = {'quota': 64 * MIB, 'linger': 1, 'silence': 60, 'timeout': 100, 'marker': 'login:'}


@pytest.fixture
def medium(directory):
    """The file system of the host's cache images; what fills it, and a reader, go before it."""
    path = f'{directory}/host'
    os.mkdir(path)
    subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=48M', 'tmpfs', path], check=True)
    yield path
    subprocess.run(['umount', '-l', path], check=True)


@pytest.fixture
def small_host(medium, hosts):
    return hosts(compute_disk_quota='40MiB', store_quota='16MiB')


def fill(medium, left=0):
    """Other servers' disks take all space; gives the file."""
    path = f'{medium}/disk-of-another-server'
    status = os.statvfs(medium)
    with open(path, 'wb') as stream:
        stream.write(bytes(status.f_bavail * status.f_frsize - left))
    return path


def on_disk(store):
    """The bytes that a store's file has of its medium."""
    return os.stat(store.path).st_blocks * 512


def reader(host):
    """A server's own connection, as QEMU has it."""
    handle = nbd.NBD()
    handle.connect_uri(naming.nbd_unix_uri(host.gateway.socket_path, f'base-{IMAGE}'))
    return handle


def test_a_disk_that_fills_while_a_server_boots(small_host, node, medium, directory):
    data = content(node)
    small_host.service.watch = WATCH
    node.serve()
    assert boot(small_host, f'{directory}/one') is True
    store = small_host.below.stores.get(IMAGE)
    server = reader(small_host)
    assert server.pread(65536, 0) == data[:65536] and store.grows
    other = fill(medium)
    for offset in range(3 * MIB, 5 * MIB, 65536):
        assert server.pread(65536, offset) == data[offset:offset + 65536]
    until(lambda: not store.grows, 'the end of its growth')
    size = store.size()
    assert server.pread(SIZE, 0) == data and store.size() == size
    os.unlink(other)
    assert server.pread(SIZE, 0) == data
    server.shutdown()
    compare(f'{directory}/one', node)


def test_a_store_that_a_full_disk_stopped_gives_way_to_another(small_host, node, medium, directory):
    """Through that one boots would be seen to read nothing, and nothing would be learned."""
    small_host.service.watch = WATCH
    node.serve()
    assert boot(small_host, f'{directory}/one') is True
    store = small_host.below.stores.get(IMAGE)
    other = fill(medium)
    server = reader(small_host)
    for offset in range(3 * MIB, 5 * MIB, 65536):
        server.pread(65536, offset)
    until(lambda: not store.grows, 'the end of its growth')
    until(lambda: not small_host.needs.is_booting(IMAGE), 'the end of the boot')
    os.unlink(other)
    assert boot(small_host, f'{directory}/two') is True
    another = small_host.below.stores.get(IMAGE)
    assert another is not store and another.grows
    data = content(node)
    assert server.pread(SIZE, 0) == data
    server.shutdown()
    assert another.size() > 4 * MIB
    compare(f'{directory}/two', node)


def test_space_is_the_stores_own_before_anything_is_written(small_host, node, medium, directory):
    """Nobody looks: what was allocated at the last look has to do."""
    data = content(node)
    node.serve()
    assert boot(small_host, f'{directory}/one') is True
    store = small_host.below.stores.get(IMAGE)
    # As a host that is so busy that the next look is late.
    small_host.below.stores.remove(IMAGE)
    fill(medium)
    server = reader(small_host)
    assert server.pread(SIZE, 0) == data and store.grows
    server.shutdown()
    assert store.size() > 4 * MIB
    store.close()


@pytest.fixture
def large_clusters(directory):
    """An ext4 that gives out 4 MiB at a time, for the host's cache images."""
    path = f'{directory}/host'
    os.mkdir(path)
    with open(f'{directory}/ext4', 'wb') as stream:
        stream.truncate(256 * MIB)
    # An orphan file of such clusters is more than the kernel takes; e2fsprogs 1.47.2 makes one.
    subprocess.run(['mkfs.ext4', '-q', '-F', '-O', 'bigalloc,^orphan_file', '-C', str(4 * MIB),
                    f'{directory}/ext4'], check=True)
    subprocess.run(['mount', '-o', 'loop', f'{directory}/ext4', path], check=True)
    yield path
    subprocess.run(['umount', '-l', path], check=True)


@pytest.mark.parametrize('is_killed', [False, True])
def test_clusters_that_no_file_system_gives_back_are_not_waited_for(
        large_clusters, hosts, node, directory, monkeypatch, is_killed):
    """A part of one stays beyond the file's end; tables are written once."""
    host = hosts(store_quota='16MiB')
    data = content(node)
    node.serve()
    assert boot(host, f'{directory}/one') is True
    store = host.below.stores.get(IMAGE)
    server = reader(host)
    assert server.pread(MIB, 3 * MIB) == data[3 * MIB:4 * MIB]
    assert on_disk(store) >= 16 * MIB
    store.stop_growing()
    if is_killed:
        host.below.stop()
        host = hosts(store_quota='16MiB')
    written, write = [], GrowingStore.write_tables
    monkeypatch.setattr(GrowingStore, 'write_tables', lambda store: written.append(write(store)))
    for _round in range(3):
        host.upkeep.once()
    assert len(written) == 1 and store.size() + 2 * MIB < on_disk(store) < 12 * MIB
    assert server.pread(SIZE, 0) == data
    server.shutdown()


@pytest.mark.parametrize('is_killed', [False, True])
@pytest.mark.parametrize('in_memory', [True, False])
def test_a_store_that_stopped_gives_back_what_it_was_to_grow_into(
        request, hosts, node, directory, in_memory, is_killed):
    """It had all of its limit for as long as it was there."""
    if in_memory:
        request.getfixturevalue('medium')
    host = hosts(store_quota='16MiB')
    data = content(node)
    node.serve()
    assert boot(host, f'{directory}/one') is True
    store = host.below.stores.get(IMAGE)
    server = reader(host)
    assert server.pread(MIB, 3 * MIB) == data[3 * MIB:4 * MIB]
    host.upkeep.once()
    assert on_disk(store) == 16 * MIB and store.grows
    if is_killed:
        # Nobody looks at it any more, and it grows on.
        host.below.stores.stop()
        host = hosts(store_quota='16MiB')
    else:
        store.stop_growing()
    host.upkeep.once()
    assert MIB < store.size() <= on_disk(store) < store.size() + 65536
    assert server.pread(SIZE, 0) == data
    host.upkeep.once()
    assert on_disk(store) < store.size() + 65536
    # Its tables and what it has are whole.
    qemu_img('check', '-U', '-f', 'qcow2', store.path)
    node.kill()
    assert server.pread(MIB, 3 * MIB) == data[3 * MIB:4 * MIB]
    server.shutdown()


def test_a_full_disk_gets_no_store(small_host, node, medium, directory):
    """The server boots from the base, and nothing else is refused."""
    node.serve()
    fill(medium, left=MIB)
    assert boot(small_host, f'{directory}/one') is True
    assert small_host.below.stores.get(IMAGE) is None
    compare(f'{directory}/one', node)


def test_a_disk_that_fills_while_a_cache_image_arrives(small_host, node, medium, directory,
                                                       monkeypatch):
    data, real = content(node), arrivingimage.bring
    was_read = threading.Event()
    monkeypatch.setattr(arrivingimage, 'WORTH_BYTES', 0)
    # What servers ask for comes first.
    monkeypatch.setattr(arrivingimage, 'bring', lambda *what: was_read.wait(60) and real(*what))
    node.build(Extent(3 * MIB, MIB), Extent(0, MIB))
    assert boot(small_host, f'{directory}/one') is True
    assert small_host.needs.is_arriving(IMAGE)
    other = fill(medium)
    server = reader(small_host)
    try:
        assert server.pread(SIZE, 0) == data
    finally:
        was_read.set()
    assert small_host.arrivals.wait(IMAGE, 60)
    assert server.pread(SIZE, 0) == data
    server.shutdown()
    os.unlink(other)
    compare(f'{directory}/one', node)


@pytest.mark.parametrize('left', [MIB, 0])
def test_a_full_disk_refuses_a_cache_image_cleanly(small_host, node, medium, directory,
                                                   monkeypatch, left):
    """The server boots all the same: cold, or where there is no space at all the stock way."""
    monkeypatch.setattr(arrivingimage, 'WORTH_BYTES', 0)
    node.build(Extent(3 * MIB, MIB), Extent(0, MIB))
    other = fill(medium, left)
    assert boot(small_host, f'{directory}/one') is bool(left)
    assert not small_host.needs.is_arriving(IMAGE)
    if left:
        assert small_host.cache.entry(IMAGE).cache_image is None
        compare(f'{directory}/one', node)
    assert not [name for name in os.listdir(medium) if name.endswith(('.partial', '.tmp'))]
    os.unlink(other)
    assert boot(small_host, f'{directory}/two') is True
    assert small_host.arrivals.wait(IMAGE, 60)
    compare(f'{directory}/two', node)


def test_a_file_systems_space_is_held(medium):
    path = f'{medium}/file'
    with open(path, 'wb') as stream:
        stream.write(b'content')
    assert sharedstore.hold(path, MIB) is True
    assert os.stat(path).st_size == 7 and os.stat(path).st_blocks * 512 == MIB
    assert sharedstore.free_bytes(path) == 47 * MIB
    with pytest.raises(OSError, match='No space left'):
        sharedstore.hold(path, 49 * MIB)
    with pytest.raises(FileNotFoundError):
        sharedstore.hold(f'{medium}/none', MIB)


def test_a_cache_image_needs_its_room_once_while_it_arrives(small_host, node, medium, directory,
                                                            monkeypatch):
    """Its space is its own from the beginning: it is not asked for a second time."""
    monkeypatch.setattr(arrivingimage, 'WORTH_BYTES', 0)
    node.build(Extent(0, 5 * MIB))
    info = node.manifest.made.cache_image
    fill(medium, left=arrivingimage.room(info.bytes) + 2 * MIB)
    assert boot(small_host, f'{directory}/disk') is True
    assert small_host.arrivals.wait(IMAGE, 60)
    assert small_host.cache.entry(IMAGE).cache_image == info
    compare(f'{directory}/disk', node)
