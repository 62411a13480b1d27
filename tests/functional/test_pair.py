"""Exporter and gateway, storage node and compute host, as a real pair on one machine."""

import os
import signal
import threading

import nbd
import pytest
from bare_gateway import bare_gateway
from compute_host import fetched
from functional_tools import qemu_img, until
from storage_node import IMAGE, MIB, SIZE, content

from bootcache import exception, naming, qemuimg, savefile
from bootcache.connectors.starter import Starter
from bootcache.manifest import CacheInfo, Made, Manifest
from bootcache.tier import Medium, TierLimits
from bootcache.workingset import Extent
from nova_bootcache.cache.cachefiles import CacheFiles
from nova_bootcache.gateway.below import Below
from nova_bootcache.gateway.hostneeds import HostNeeds
from nova_bootcache.metrics import HostMetrics
from nova_bootcache.tiers.fetches import Fetches, Readable, WrongFiles
from nova_bootcache.tiers.room import Room

LIMITS = TierLimits(64 * MIB, 60 * MIB, 50 * MIB)
OTHER = '00000000-1f2b-4c3d-8e9f-0a1b2c3d4e5f'


@pytest.fixture
def gateway(storage_conf, directory):
    gateway = bare_gateway(f'{directory}/gateway', storage_conf.bootcache.gateway_socket)
    yield gateway
    gateway.daemon.stop()
    Starter(f'{directory}/gateway').kill_all()


@pytest.fixture
def cache(directory):
    cache = CacheFiles(f'{directory}/host')
    cache.prepare()
    return cache


def fetches(cache, socket):
    """The host's, without a gateway: what is fetched needs none."""
    needs = HostNeeds()
    room = Room(cache, Below(None, cache, needs), needs, {Medium.DISK: LIMITS}, HostMetrics())
    return Fetches(cache, room, WrongFiles(), Readable(), socket, HostMetrics())


def fetch(cache, node, socket=None):
    answer = node.answer()
    return fetched(fetches(cache, socket or node.conf.gateway_socket), node.remote(),
                   CacheInfo(**answer['cache_image']), answer['cache_export'])


def connect(gateway, export):
    handle = nbd.NBD()
    handle.set_export_name(export)
    handle.connect_unix(gateway.socket_path)
    return handle


SET = Extent(4 * MIB, 300_000), Extent(0, 4096)


def test_a_server_s_chain_is_the_base(node, gateway, cache, directory):
    node.build(*SET)
    export = gateway.ensure_base(node.remote())
    assert export == f'base-{IMAGE}'
    entry = fetch(cache, node)
    assert cache.entry(IMAGE) == entry
    assert entry.file_sha256 == node.manifest.made.cache_image.sha256
    overlay = f'{directory}/disk'
    qemuimg.create_overlay(overlay, SIZE, cache.path(IMAGE), 'qcow2', cluster_bytes=128 << 10,
                           subclusters=True)
    qemu_img('compare', '-f', 'qcow2', '-F', 'qcow2', overlay, node.base)
    # A flavor's larger disk reads as zeros behind the base.
    large = f'{directory}/large'
    qemuimg.create_overlay(large, SIZE + MIB, cache.path(IMAGE), 'qcow2', cluster_bytes=128 << 10,
                           subclusters=True)
    qemu_img('compare', '-f', 'qcow2', '-F', 'qcow2', large, node.base)
    assert sorted(os.listdir(cache.directory)) == sorted(
        [naming.cache_file_name(IMAGE), f'{naming.cache_file_name(IMAGE)}.json'])


def test_a_header_for_another_socket_is_rewritten(node, gateway, directory, storage_conf):
    storage_conf.set_override('gateway_socket', '/run/elsewhere.sock', 'bootcache')
    node.build(*SET)
    cache = CacheFiles(f'{directory}/host')
    cache.prepare()
    gateway.ensure_base(node.remote())
    entry = fetch(cache, node, gateway.socket_path)
    assert entry.file_sha256 == savefile.file_digest(cache.path(IMAGE)) \
        != node.manifest.made.cache_image.sha256
    assert cache.entry(IMAGE) == entry
    qemu_img('compare', '-f', 'qcow2', '-F', 'qcow2', cache.path(IMAGE), node.base)


@pytest.mark.parametrize('damage', ['flip', 'truncate', 'grow'])
def test_a_damaged_file_is_not_taken(node, cache, damage):
    node.build(*SET)
    size = os.path.getsize(node.cache_path)
    with open(node.cache_path, 'r+b') as stream:
        if damage == 'flip':
            stream.seek(size - 100)
            byte = stream.read(1)
            stream.seek(size - 100)
            stream.write(bytes([byte[0] ^ 1]))
        else:
            stream.truncate(size - 4096 if damage == 'truncate' else size + 4096)
    # Opened again, as the daemon knows the old size.
    node.kill()
    node.serve()
    with pytest.raises(exception.BootcacheError):
        fetch(cache, node)
    assert os.listdir(cache.directory) == [] and cache.entry(IMAGE) is None


def test_a_failed_fetch_keeps_the_older_one(node, cache):
    entry = fetch(cache, node.build(*SET))
    node.build(SET[0])
    with open(node.cache_path, 'r+b') as stream:
        stream.write(b'bad')
    with pytest.raises(exception.BootcacheError):
        fetch(cache, node)
    assert cache.entry(IMAGE) == entry


def test_a_storage_node_that_is_away_leaves_nothing(node, cache):
    node.build(*SET)
    answer = node.answer()
    node.exporter.stop()
    with pytest.raises(exception.BootcacheError):
        fetched(fetches(cache, node.conf.gateway_socket), node.remote(),
                node.manifest.made.cache_image, answer['cache_export'])
    assert os.listdir(cache.directory) == []


def test_a_newer_one_takes_the_place_and_readers_keep_theirs(node, cache):
    fetch(cache, node.build(*SET))
    with open(cache.path(IMAGE), 'rb') as reader:
        old = savefile.file_digest(cache.path(IMAGE))
        entry = fetch(cache, node.build(SET[0]))
        assert savefile.file_digest(f'/proc/self/fd/{reader.fileno()}') == old
    assert cache.entry(IMAGE) == entry and entry.file_sha256 != old
    # Of the older one only the base is still served.
    assert node.exports == {f'base-{IMAGE}', node.answer()['cache_export']}


def test_servers_that_start_together_fetch_once(node, cache, monkeypatch):
    node.build(*SET)
    copies, entries = [], []
    real = qemuimg.copy_raw
    monkeypatch.setattr(qemuimg, 'copy_raw',
                        lambda *names, **limits: copies.append(1) or real(*names, **limits))
    threads = [threading.Thread(target=lambda: entries.append(fetch(cache, node)))
               for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(copies) == 1 and len(entries) == 4
    assert all(entry == entries[0] for entry in entries)


def test_asking_again_changes_nothing(node, gateway):
    node.build(*SET)
    exports = node.exports
    node.serve()
    assert node.exports == exports
    for _ in range(2):
        gateway.ensure_base(node.remote())
    assert gateway.daemon.exports() == {f'base-{IMAGE}': naming.node_name('g', IMAGE)}


def test_a_gateway_that_was_killed_is_filled_again(node, gateway):
    node.build(*SET)
    gateway.ensure_base(node.remote())
    os.kill(gateway.daemon.pid(), signal.SIGKILL)
    until(lambda: gateway.daemon.pid() is None, 'the end of the gateway')
    gateway.start()
    assert gateway.daemon.exports() == {}
    export = gateway.ensure_base(node.remote())
    handle = connect(gateway, export)
    assert handle.pread(4096, 4 * MIB) == content(node)[4 * MIB:4 * MIB + 4096]
    handle.shutdown()


def test_what_a_crash_between_two_steps_left_is_replaced(node, gateway):
    node.build(*SET)
    gateway.start()
    gateway.connections.connect(node.remote())
    gateway.daemon.add_nodes(
        gateway.linked_node(naming.node_name('n', IMAGE), node.remote().export))
    assert connect(gateway, gateway.ensure_base(node.remote())).get_size() == SIZE
    node.exporter.common._daemon.remove_export(f'base-{IMAGE}', disconnect=True)
    # As the next process does, and upkeep.
    node.exporter.start()
    node.serve()
    assert f'base-{IMAGE}' in node.exports


def test_a_read_waits_for_an_exporter_that_restarts(node, gateway):
    node.build(*SET)
    handle = connect(gateway, gateway.ensure_base(node.remote()))
    wanted = content(node)
    assert handle.pread(4096, 0) == wanted[:4096]
    node.kill()
    got = []
    reader = threading.Thread(target=lambda: got.append(handle.pread(4096, 5 * MIB)))
    reader.start()
    node.serve()
    reader.join(60)
    assert got == [wanted[5 * MIB:5 * MIB + 4096]]
    handle.shutdown()


def test_without_an_exporter_no_base_is_promised(node, gateway):
    node.build(*SET)
    remote = node.remote()
    node.exporter.stop()
    with pytest.raises(exception.StorageDaemonError):
        gateway.ensure_base(remote)
    assert gateway.daemon.exports() == {} and gateway.daemon.nodes() == set()


def test_a_base_with_a_server_stays(node, gateway):
    node.build(*SET)
    handle = connect(gateway, gateway.ensure_base(node.remote()))
    assert gateway.remove_base(IMAGE) is False
    assert node.exporter.retire(IMAGE, with_base=True) is False
    # Its cache image goes at once, its base stays for who reads it.
    assert node.exports == {f'base-{IMAGE}'}
    assert handle.pread(4096, 0) == content(node)[:4096]
    handle.shutdown()
    assert until(lambda: gateway.remove_base(IMAGE), 'the server to be gone')
    assert gateway.daemon.nodes() == set()
    # As upkeep has it, some time after the base was opened last.
    os.utime(gateway.connections.socket(node.remote().export), (0, 0), follow_symlinks=False)
    gateway.connections.reconcile({})
    assert until(lambda: node.exporter.retire(IMAGE, with_base=True), 'the gateway to be gone')
    assert node.exports == set() and node.exporter.common._daemon.nodes() == set()


def test_removing_what_is_not_there(node, gateway):
    assert gateway.remove_base(IMAGE) is True
    # An exporter that is away may be needed again by whoever reads the base.
    with pytest.raises(exception.StorageDaemonError):
        node.exporter.retire(IMAGE, with_base=True)
    gateway.start()
    node.exporter.start()
    assert gateway.remove_base(IMAGE) is True
    assert node.exporter.retire(IMAGE, with_base=True) is True
    assert node.exporter.retire(IMAGE, with_base=False) is False


def test_retiring_one_image_leaves_the_other(node):
    node.build(*SET)
    node.exporter.ensure(Manifest(OTHER, made=Made(image_format='qcow2', virtual_bytes=SIZE,
        base_path=node.base, base_export=f'base-{OTHER}')), None)
    assert node.exporter.retire(IMAGE, with_base=True) is True
    assert node.exports == {f'base-{OTHER}'}


def test_nobody_writes_to_what_is_exported(node):
    node.build(*SET)
    for export in node.exports:
        handle = nbd.NBD()
        handle.set_export_name(export)
        handle.connect_tcp(node.conf.export_host, str(node.conf.export_port))
        assert handle.is_read_only()
        handle.shutdown()


def test_a_file_that_is_gone_is_told(node):
    node.build(*SET)
    node.kill()
    os.unlink(node.base)
    with pytest.raises(exception.StorageDaemonError):
        node.serve()
