"""Cache images that came compressed are expanded on their host, with real files and daemons."""

import contextlib
import dataclasses
import errno
import multiprocessing
import os
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest
from compute_host import boot, compare, fetched
from functional_tools import qemu_img, until
from storage_node import IMAGE, MIB, Node

from bootcache import exception, expansion, qemuimg, savefile, steps, tier
from bootcache.cachelayout import Compression
from bootcache.clusterplaces import ClusterPlaces
from bootcache.tier import Medium
from bootcache.workingset import Extent

# Not in order; with a hole, zeros, and an end that is no whole cluster.
SET = (Extent(3 * MIB, MIB), Extent(0, MIB), Extent(5 * MIB, MIB + 512), Extent(2 * MIB, 65536))
STEPS = [step.name for step in steps.TABLE if step.name.startswith(('expand', 'place'))]


@pytest.fixture
def node(storage_conf, directory, make_base):
    """A storage node whose image's data become smaller by compression."""
    node = Node(storage_conf, directory, make_base, 'text')
    node.build(*SET, compression=Compression.ZSTD)
    yield node
    node.exporter.stop()


@pytest.fixture(autouse=True)
def no_head_moves(monkeypatch):
    """Have this machine's disk be one from which the expanded one is faster, whatever it is."""
    monkeypatch.setattr(tier, 'spins', lambda directory: False)


@pytest.fixture
def host(hosts):
    return hosts(settle_delay=0)


def fetch(host, node, medium=Medium.DISK):
    """Have the host get the cache image, which nobody has used since."""
    info = node.manifest.made.cache_image
    entry = fetched(host.fetches, node.remote(), info, node.answer()['cache_export'], medium)
    path = host.cache.path(IMAGE)
    assert ClusterPlaces(path).compressed and not entry.expanded
    os.utime(f'{path}.json', (1000.0, 1000.0))
    return entry


def upkeep(host):
    """Have upkeep look once, and wait for what it begins."""
    host.expansions.look()
    if host.expansions._thread is not None:
        host.expansions._thread.join()


def is_expanded(host):
    """Tell whether the host's file is, by its tables and by its entry."""
    entry = host.cache.entry(IMAGE)
    assert entry is not None
    assert entry.file_sha256 == savefile.file_digest(host.cache.path(IMAGE))
    found = not ClusterPlaces(host.cache.path(IMAGE)).compressed
    assert entry.expanded is found
    return found


def files(host):
    """The names of all files of the tiers."""
    return sorted(name for directory in host.cache.directories.values()
                  for name in os.listdir(directory))


def alone(path):
    return qemuimg.file_node(path, 'qcow2')


def test_the_same_content_in_the_same_order_and_nothing_more(host, node, directory):
    entry = fetch(host, node)
    path = host.cache.path(IMAGE)
    shutil.copy(path, f'{directory}/compressed')
    before, about = expansion.layout(path), qemuimg.info(path, 'qcow2')
    assert [extent.offset for extent in before.data][:2] == [3 * MIB, 0] and before.zeros
    upkeep(host)
    assert is_expanded(host) and files(host) == sorted(
        [os.path.basename(path), os.path.basename(path) + '.json'])
    qemu_img('compare', alone(path), alone(f'{directory}/compressed'))
    qemu_img('check', alone(path))
    places = ClusterPlaces(path).places
    assert sorted(places, key=places.get) == [
        offset for extent in before.data for offset in range(extent.offset, extent.end, 4096)]
    assert expansion.layout(path).zeros == before.zeros
    assert os.path.getsize(path) <= before.expanded_bytes
    assert qemuimg.info(path, 'qcow2')['backing-filename'] == about['backing-filename']
    assert host.cache.entry(IMAGE).cache_image == entry.cache_image
    assert os.stat(f'{path}.json').st_mtime == pytest.approx(1000, abs=1), 'that is no use'
    assert boot(host, f'{directory}/disk') is True
    compare(f'{directory}/disk', node)


def test_it_is_done_once_and_holds_after_a_restart(host, hosts, node):
    fetch(host, node)
    upkeep(host)
    was = os.stat(host.cache.path(IMAGE))
    upkeep(host)
    again = hosts(settle_delay=0)
    upkeep(again)
    assert is_expanded(again) and os.stat(again.cache.path(IMAGE)).st_ino == was.st_ino
    # It is the one that the storage service has: nothing is fetched.
    fetched(again.fetches, node.remote(), node.manifest.made.cache_image,
            node.answer()['cache_export'])
    assert os.stat(again.cache.path(IMAGE)).st_ino == was.st_ino


def test_a_server_that_began_on_the_compressed_one_reads_on(host, node, directory, daemons):
    assert boot(host, f'{directory}/disk') is True
    path = host.cache.path(IMAGE)
    old = os.stat(path).st_ino
    server = daemons('server')
    server.ensure_running()
    server.add_nodes(
        {'driver': 'file', 'node-name': 'diskf', 'filename': f'{directory}/disk'},
        {'driver': 'qcow2', 'node-name': 'disk', 'file': 'diskf'})
    server.add_export('disk', 'disk', writable=True)
    os.utime(f'{path}.json', (1000.0, 1000.0))
    upkeep(host)
    assert is_expanded(host) and os.stat(path).st_ino != old
    qemu_img('compare', '-f', 'raw', '-F', 'qcow2',
             f'nbd+unix:///disk?socket={server.listener.path}', node.base)


def _expand_in(host, entry, told, step):
    """Be a nova-compute that waits at a step."""
    def stand(name):
        if name == step:
            told.send(name)
            threading.Event().wait()

    steps.install(stand)
    host.expansions.expand(entry)


@pytest.mark.parametrize('step', STEPS)
def test_killed_at_any_step_a_whole_file_or_none_is_there(hosts, host, node, directory, step):
    entry = fetch(host, node)
    here, there = multiprocessing.Pipe()
    fork = multiprocessing.get_context('fork')
    process = fork.Process(target=_expand_in, args=(host, entry, there, step))
    process.start()
    assert here.poll(60) and here.recv() == step
    process.kill()
    process.join()
    again = hosts(settle_delay=0)
    assert not [name for name in files(again) if name.endswith(('.partial', '.tmp'))]
    if step.startswith('expand'):
        assert again.cache.entry(IMAGE) == entry and not is_expanded(again)
    else:
        assert again.cache.entry(IMAGE) is None
        fetch(again, node)
    upkeep(again)
    assert is_expanded(again)
    assert boot(again, f'{directory}/disk') is True
    compare(f'{directory}/disk', node)


def test_qemu_io_ends_with_nova_compute(host, node, directory, monkeypatch):
    """Killed in the midst of it, a process that writes on would spoil the next try."""
    entry, path = fetch(host, node), f'{directory}/fifo'
    os.mkfifo(path)
    os.mkdir(f'{directory}/bin')
    real = shutil.which('qemu-io')
    with open(f'{directory}/bin/qemu-io', 'w') as stream:  # it never gets its orders
        stream.write(f'#!/bin/sh\necho $$ > {path}.new; mv {path}.new {path}.pid\n'
                     f'exec {real} "$@" < {path}\n')
    os.chmod(f'{directory}/bin/qemu-io', 0o755)
    monkeypatch.setenv('PATH', f'{directory}/bin:{os.environ["PATH"]}')
    fork = multiprocessing.get_context('fork')
    process = fork.Process(target=host.expansions.expand, args=(entry,))
    process.start()
    until(lambda: os.path.exists(f'{path}.pid'), 'qemu-io')
    pid = int(Path(f'{path}.pid').read_text())
    process.kill()
    process.join()
    until(lambda: _has_ended(pid), 'its end')
    assert not is_expanded(host)


def _has_ended(pid):
    # It may be reaped at any moment.
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0] in 'ZX'
    return True


# What stays compressed.

def no_room(monkeypatch, host):
    limits = host.room.limits
    disk = dataclasses.replace(limits[Medium.DISK], low=MIB)
    monkeypatch.setitem(limits, Medium.DISK, disk)


def full_medium(monkeypatch, host):
    def promise(key, medium, size):
        raise exception.NoRoom('0 bytes are free')

    monkeypatch.setattr(host.room, '_promise', promise)


@pytest.mark.parametrize('short', [no_room, full_medium])
def test_without_room_it_stays_as_it_is(host, node, monkeypatch, caplog, short):
    fetch(host, node)
    with monkeypatch.context() as patch:
        short(patch, host)
        upkeep(host)
        assert not is_expanded(host)
    assert not [record for record in caplog.records if record.levelname == 'WARNING']
    # Not before a while.
    upkeep(host)
    assert not is_expanded(host)
    host.expansions._no_room.forget(IMAGE)
    upkeep(host)
    assert is_expanded(host)


def test_while_it_is_made_both_files_have_their_room(host, node, monkeypatch):
    fetch(host, node)
    seen = []

    def look(path, target, wanted, check):
        seen.append(sum(item.bytes for item in host.room._items(Medium.DISK)))
        assert os.path.getsize(target) <= wanted.expanded_bytes

    monkeypatch.setattr(expansion, 'compare', look)
    before = os.path.getsize(host.cache.path(IMAGE))
    upkeep(host)
    after = os.path.getsize(host.cache.path(IMAGE))
    assert seen[0] >= before + after > 2 * before
    assert [item.bytes for item in host.room._items(Medium.DISK)] == [after]


def breaks(monkeypatch, how):
    """Have something go wrong: on the medium, in QEMU, or where nobody expects it."""
    fill = expansion.fill

    def spoil(path, target, wanted, check):
        fill(path, target, wanted, check)
        if how == 'other bytes':
            place = min(ClusterPlaces(target).places.values())
            with open(target, 'r+b') as stream:
                stream.seek(place)
                stream.write(b'another')
        elif how == 'a cluster too many':
            # It reads as the compressed one alone, and not as that on its base.
            subprocess.run(['qemu-io', '-c', f'write -q -z {4 * MIB} 4096', alone(target)],
                           check=True)
        else:
            raise OSError(errno.ENOSPC, 'no space left')

    if how == 'no qemu-io':
        monkeypatch.setenv('PATH', '/nonexistent')
    else:
        monkeypatch.setattr(expansion, 'fill', spoil)


@pytest.mark.parametrize('how', ['other bytes', 'a cluster too many', 'no space', 'no qemu-io'])
def test_what_goes_wrong_leaves_the_compressed_one_and_is_tried_later(host, node, monkeypatch,
                                                                     caplog, how):
    entry = fetch(host, node)
    with monkeypatch.context() as patch:
        breaks(patch, how)
        upkeep(host)
    assert host.cache.entry(IMAGE) == entry and not is_expanded(host)
    assert not [name for name in files(host) if name.endswith('.partial')]
    [line] = [record.getMessage() for record in caplog.records if record.levelname == 'WARNING']
    assert IMAGE in line and 'stays compressed' in line and 'expand=never' in line
    upkeep(host)
    assert not is_expanded(host), 'it is not time'
    host.expansions._backoff.forget(IMAGE)
    upkeep(host)
    assert is_expanded(host)


def test_a_medium_that_is_full_before_qemu_is_done(host, node, directory, monkeypatch):
    entry = fetch(host, node)
    limits = f'{directory}/bin'
    os.mkdir(limits)
    with open(f'{limits}/qemu-io', 'w') as stream:
        # As of a file system without room: writes beyond this fail.
        stream.write('#!/bin/sh\ntrap "" XFSZ; ulimit -f 2000; exec '
                     f'{shutil.which("qemu-io")} "$@"\n')
    os.chmod(f'{limits}/qemu-io', 0o755)
    with monkeypatch.context() as patch:
        patch.setenv('PATH', f'{limits}:{os.environ["PATH"]}')
        with pytest.raises(exception.BootcacheError, match=r'qemu-io failed \(exit 1\)'):
            host.expansions.expand(entry)
    assert host.cache.entry(IMAGE) == entry and not is_expanded(host)


def test_a_server_that_boots_has_precedence(host, node, directory, monkeypatch):
    fetch(host, node)
    fill = expansion.fill

    def meanwhile(path, target, wanted, check):
        with host.needs.making(IMAGE, f'{directory}/disk'):
            fill(path, target, wanted, check)

    with monkeypatch.context() as patch:
        patch.setattr(expansion, 'fill', meanwhile)
        upkeep(host)
    assert not is_expanded(host)
    # At once, as nothing failed.
    upkeep(host)
    assert is_expanded(host)


def test_one_whose_place_another_one_took_meanwhile_is_dropped(host, node, monkeypatch):
    fetch(host, node)
    compare_them = expansion.compare

    def meanwhile(path, target, wanted, check):
        compare_them(path, target, wanted, check)
        node.build(*SET[:2], compression=Compression.ZSTD)
        fetch(host, node)

    with monkeypatch.context() as patch:
        patch.setattr(expansion, 'compare', meanwhile)
        upkeep(host)
    assert not is_expanded(host)
    assert host.cache.entry(IMAGE).cache_image == node.manifest.made.cache_image
    upkeep(host)
    assert is_expanded(host)


def test_one_that_is_rotten_is_not_made_another_right_one_of(host, node, directory):
    entry = fetch(host, node)
    path = host.cache.path(IMAGE)
    assert host.cache.entry(IMAGE) == entry
    status, place = os.stat(path), min(ClusterPlaces(path).places.values())
    with open(path, 'r+b') as stream:
        stream.seek(place)
        stream.write(b'rotten')
    # As a disk does it: nothing else tells of it.
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert host.cache.entry(IMAGE) == entry
    with pytest.raises(exception.InvalidManifest):
        host.expansions.expand(entry)
    assert host.cache.entry(IMAGE) is None, 'it is known now'
    assert boot(host, f'{directory}/disk') is True
    compare(f'{directory}/disk', node)


def test_one_without_a_compressed_cluster_is_noted_and_stays(hosts, storage_conf, node, directory):
    """Nothing becomes smaller in an image that is compressed already."""
    host = hosts(settle_delay=0)
    node.build(Extent(2 * MIB, MIB), compression=Compression.ZSTD)
    info = node.manifest.made.cache_image
    fetched(host.fetches, node.remote(), info, node.answer()['cache_export'])
    was = os.stat(host.cache.path(IMAGE))
    os.utime(f'{host.cache.path(IMAGE)}.json', (1000.0, 1000.0))
    upkeep(host)
    assert host.cache.entry(IMAGE).expanded
    assert os.stat(host.cache.path(IMAGE)).st_ino == was.st_ino


@pytest.mark.parametrize(('expand', 'quota', 'expanded'), [
    ('auto', '64MiB', True), ('always', '64MiB', True), ('never', '64MiB', False),
    ('auto', '10MiB', False), ('always', '10MiB', True)])
def test_in_memory_it_is_expanded_while_much_is_free(hosts, node, directory, expand, quota,
                                                    expanded):
    memory = tempfile.mkdtemp(prefix='bc', dir='/dev/shm')
    try:
        host = hosts(settle_delay=0, compute_memory_directory=memory, expand=expand,
                     compute_memory_quota=quota, store_quota='1MiB')
        if Medium.MEMORY not in host.cache.directories:
            pytest.skip('O_DIRECT does not work on this tmpfs')
        fetch(host, node, Medium.MEMORY)
        upkeep(host)
        assert is_expanded(host) is expanded
        assert host.cache.medium(IMAGE) is Medium.MEMORY
        assert boot(host, f'{directory}/disk') is True
        compare(f'{directory}/disk', node)
    finally:
        shutil.rmtree(memory)


def test_on_a_disk_whose_head_moves_it_stays_compressed(host, node, monkeypatch):
    monkeypatch.setattr(tier, 'spins', lambda directory: True)
    fetch(host, node)
    upkeep(host)
    assert not is_expanded(host)
