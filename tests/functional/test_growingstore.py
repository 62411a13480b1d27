"""The growing store below real servers' reads, in a real gateway, on real and on full media."""

import contextlib
import os
import subprocess
from concurrent import futures

import pytest
from bare_gateway import bare_gateway
from functional_tools import frozen, qemu_img, until
from storage_node import IMAGE, MIB, SIZE, content

from bootcache import exception, naming
from bootcache.connectors.starter import Starter
from bootcache.growingstore import StoreKeeper
from nova_bootcache.gateway import graph
from nova_bootcache.gateway.graph import Store
from nova_bootcache.gateway.sharedstore import SharedStore


@pytest.fixture
def gateway(node, directory):
    node.serve()
    gateway = bare_gateway(f'{directory}/gw', f'{directory}/gw/sock')
    gateway.start()
    yield gateway
    gateway.daemon.stop()
    Starter(f'{directory}/gw').kill_all()


@pytest.fixture
def keeper(gateway):
    keeper = StoreKeeper()
    yield keeper
    keeper.stop()


def uri(gateway):
    return naming.nbd_unix_uri(gateway.socket_path, f'base-{IMAGE}')


def make(gateway, node, directory, limit=64 * MIB):
    gateway.ensure_base(node.remote())
    store = SharedStore(gateway, IMAGE, SIZE, f'{directory}/{IMAGE}.store', limit)
    store.open()
    return store


def pread(gateway, offset, length):
    import nbd
    handle = nbd.NBD()
    handle.connect_uri(uri(gateway))
    try:
        return handle.pread(length, offset)
    finally:
        handle.shutdown()


def test_what_was_read_once_is_read_without_the_storage_node(gateway, node, keeper, directory):
    wanted = content(node)
    store = make(gateway, node, directory)
    keeper.add(store)
    assert pread(gateway, 3 * MIB, MIB) == wanted[3 * MIB:4 * MIB]
    node.kill()
    with pytest.raises(exception.StorageNodeAway):
        store.close()
    assert pread(gateway, 3 * MIB, MIB) == wanted[3 * MIB:4 * MIB]
    node.serve()

    def closes():
        with contextlib.suppress(exception.StorageNodeAway):
            store.close()
            return True

    until(closes, 'that the base can be read')
    assert not os.path.exists(store.path)


def test_nothing_is_changed_while_reads_wait_for_the_base(gateway, node, directory):
    """It would wait for them, and servers of all other images for that."""
    store = make(gateway, node, directory)
    with futures.ThreadPoolExecutor(1) as pool:
        with frozen(node.exporter.common._daemon.pid()):
            reading = pool.submit(pread, gateway, 5 * MIB, 4096)
            for change in store.stop_growing, store.give_back, store.close:
                with pytest.raises(exception.StorageNodeAway):
                    change()
            assert gateway.daemon.answers() and store.grows
        assert reading.result(60) == content(node)[5 * MIB:5 * MIB + 4096]
    store.close()


def test_the_record_is_in_the_order_of_the_first_reads(gateway, node, keeper, directory):
    store = make(gateway, node, directory)
    keeper.add(store)
    begin = store.mark()
    for offset in (5 * MIB, 0, 3 * MIB, 5 * MIB):
        pread(gateway, offset, 65536)
    until(lambda: store.mark().file_bytes > begin.file_bytes, 'growth')
    middle = store.mark()
    pread(gateway, 4 * MIB, 65536)
    end = store.mark()
    pread(gateway, 4 * MIB + 65536, 65536)
    # What came after the second mark is not told.
    assert [(extent.offset, extent.length) for extent in store.extents_between(begin, middle)] \
        == [(5 * MIB, 65536), (0, 65536), (3 * MIB, 65536)]
    assert [extent.offset for extent in store.extents_between(middle, end)] == [4 * MIB]
    assert [extent.offset for extent in store.extents_between(end, end)] == []


def test_block_status_does_not_hide_the_base(gateway, node, keeper, directory):
    """Whoever copies by it, as a snapshot does, copies all of the base."""
    store = make(gateway, node, directory)
    keeper.add(store)
    pread(gateway, 3 * MIB, 65536)
    for _state in ('growing', 'stopped'):
        qemu_img('compare', '-f', 'raw', '-F', 'qcow2', uri(gateway), node.base)
        store.stop_growing()
    store.close()
    qemu_img('compare', '-f', 'raw', '-F', 'qcow2', uri(gateway), node.base)


def test_two_readers_fetch_once(gateway, node, keeper, directory):
    store = make(gateway, node, directory)
    keeper.add(store)
    pread(gateway, 3 * MIB, 2 * MIB)
    size = store.size()
    pread(gateway, 3 * MIB, 2 * MIB)
    assert store.size() == size


def test_a_base_is_served_on_when_the_store_comes_and_goes(gateway, node, keeper, directory):
    """A reader stays connected all the time."""
    import nbd
    wanted = content(node)
    gateway.ensure_base(node.remote())
    handle = nbd.NBD()
    handle.connect_uri(uri(gateway))
    for _round in range(5):
        store = SharedStore(gateway, IMAGE, SIZE, f'{directory}/{IMAGE}.store', 64 * MIB)
        store.open()
        keeper.add(store)
        assert handle.pread(MIB, 3 * MIB) == wanted[3 * MIB:4 * MIB]
        store.stop_growing()
        assert handle.pread(MIB, 3 * MIB) == wanted[3 * MIB:4 * MIB]
        assert handle.pread(65536, 5 * MIB) == wanted[5 * MIB:5 * MIB + 65536]
        keeper.remove(IMAGE)
        store.close()
        assert handle.pread(MIB, 3 * MIB) == wanted[3 * MIB:4 * MIB]
    handle.shutdown()
    assert gateway.daemon.nodes() == {naming.node_name(kind, IMAGE) for kind in 'gn'}
    assert gateway.remove_base(IMAGE) and gateway.daemon.nodes() == set()


@pytest.fixture
def small_tmpfs(directory):
    """A tmpfs of one size after the other."""
    mounted = []

    def mount(size):
        path = f'{directory}/tmpfs'
        os.makedirs(path, exist_ok=True)
        subprocess.run(['mount', '-t', 'tmpfs', '-o', f'size={size}', 'tmpfs', path], check=True)
        mounted.append(path)
        return path

    yield mount
    for path in mounted:
        subprocess.run(['umount', path], check=True)


@pytest.mark.parametrize('limit', [MIB, MIB + 300_000, 2 * MIB, 5 * MIB])
def test_a_full_quota_is_no_error_for_the_reader(gateway, node, keeper, directory, small_tmpfs,
                                                 limit):
    """The medium has just the quota; the reader reads all of the base as fast as it can."""
    medium = small_tmpfs(limit)
    gateway.ensure_base(node.remote())
    store = SharedStore(gateway, IMAGE, SIZE, f'{medium}/{IMAGE}.store', limit)
    store.open()
    keeper.add(store)
    wanted = content(node)
    for offset in range(0, SIZE, 65536):
        assert pread(gateway, offset, min(65536, SIZE - offset)) == wanted[offset:offset + 65536]
    until(lambda: not store.grows, 'the end of the growth')
    assert store.size() <= limit
    assert pread(gateway, 0, SIZE) == wanted
    store.close()


def test_too_little_for_a_store(gateway, node, directory):
    gateway.ensure_base(node.remote())
    store = SharedStore(gateway, IMAGE, SIZE, f'{directory}/{IMAGE}.store', 300_000)
    with pytest.raises(exception.StorageDaemonError, match='no room'):
        store.open()
    assert not os.path.exists(store.path)


def test_what_an_earlier_process_left_stops_growing_and_goes(gateway, node, directory):
    store = make(gateway, node, directory)
    wanted = content(node)
    pread(gateway, 3 * MIB, MIB)
    gateway.change(IMAGE, store=Store.STAYS)
    gateway.change(IMAGE, store=Store.STAYS)
    size = os.path.getsize(store.path)
    assert pread(gateway, 0, SIZE) == wanted
    assert os.path.getsize(store.path) == size
    gateway.change(IMAGE, store=Store.GOES)
    gateway.change(IMAGE, store=Store.GOES)
    assert pread(gateway, 0, SIZE) == wanted


def test_what_another_process_removes_at_the_same_time_is_no_error(gateway, node, directory,
                                                                   monkeypatch):
    """As one that ends while the next one begins."""
    make(gateway, node, directory)
    wanted, reconcile = content(node), graph.reconcile
    another = bare_gateway(f'{directory}/gw', f'{directory}/gw/sock')

    def meanwhile(*arguments):
        steps = reconcile(*arguments)
        monkeypatch.setattr(graph, 'reconcile', reconcile)
        with futures.ThreadPoolExecutor(1) as elsewhere:
            elsewhere.submit(another.change, IMAGE, store=Store.GOES).result()
        return steps

    monkeypatch.setattr(graph, 'reconcile', meanwhile)
    gateway.change(IMAGE, store=Store.GOES)
    assert graph.reconcile is reconcile
    assert gateway.daemon.nodes() == {naming.node_name(kind, IMAGE) for kind in 'gn'}
    assert pread(gateway, 0, SIZE) == wanted


def test_a_dead_gateway_ends_the_watching(gateway, node, directory):
    lost = []
    keeper = StoreKeeper(lambda store, error: lost.append(store.name))
    store = make(gateway, node, directory, MIB)
    keeper.add(store)
    gateway.daemon.stop()
    with open(store.path, 'ab') as stream:
        stream.truncate(MIB)
    until(lambda: lost == [IMAGE], 'the news')
    assert keeper.get(IMAGE) is None
    keeper.stop()
