"""Cold boots and the tiers of a compute host."""

import dataclasses
import os
import subprocess
from unittest.mock import ANY

import pytest
from cold_boots import SET
from compute_host import boot, compare
from functional_tools import qemu_img
from storage_node import IMAGE, MIB

from bootcache import exception, steps
from bootcache.rpc.report import HeldImage
from bootcache.tier import Medium
from bootcache.workingset import Extent
from nova_bootcache.chains.hostwarmer import HostWarmer


def fill(host, medium, size):
    """Make room for a file in a tier."""
    with host.room.for_fetch('other', medium, size):
        pass


@pytest.fixture
def memory(directory):
    """A tmpfs."""
    path = f'{directory}/memory'
    os.mkdir(path)
    subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=16m', 'tmpfs', path], check=True)
    yield path
    subprocess.run(['umount', path], check=True)


def test_compute_memory_comes_first_and_is_lost_with_a_reboot(hosts, node, directory, memory):
    node.build(*SET)
    host = hosts(compute_memory_directory=memory, compute_memory_quota='8MiB')
    boot(host, f'{directory}/disk')
    assert host.cache.medium(IMAGE) is Medium.MEMORY
    assert os.path.realpath(host.cache.path(IMAGE)).startswith(memory)
    compare(f'{directory}/disk', node)
    for name in os.listdir(memory):
        os.unlink(f'{memory}/{name}')
    assert host.cache.entry(IMAGE) is None
    host.chains.keep_chain(IMAGE)
    compare(f'{directory}/disk', node)


def test_what_does_not_fit_memory_goes_to_disk(hosts, node, directory, memory):
    node.build(*SET)
    host = hosts(compute_memory_directory=memory, compute_memory_quota='1MiB')
    with host.room.for_fetch('other', Medium.MEMORY, 900_000):
        boot(host, f'{directory}/disk')
    assert host.cache.medium(IMAGE) is Medium.DISK


OTHERS = [IMAGE.replace('7', digit, 1) for digit in '1234']


def place(host, node, image, used):
    """Put another image's cache image into the tier, used last at a time."""
    path = host.cache.path(image)
    entry = host.cache.entry(IMAGE)
    with open(path, 'wb') as stream:
        stream.truncate(300_000)
    dataclasses.replace(entry, remote=dataclasses.replace(entry.remote, image_id=image)).save(
        f'{path}.json')
    os.utime(f'{path}.json', (used, used))


def test_the_least_recently_used_go_but_not_what_a_server_has_open(hosts, node, directory):
    node.build(*SET)
    host = hosts(compute_disk_quota='2MiB', store_quota='1MiB')
    boot(host, f'{directory}/disk')
    for number, image in enumerate(OTHERS):
        place(host, node, image, 1000 + number)
    # A qcow2 that a process has open, as QEMU has a backing file.
    qemu_img('create', '-q', '-f', 'qcow2', host.cache.path(OTHERS[0]), '1M')
    holder = subprocess.Popen(['qemu-io', '-r', '-f', 'qcow2', host.cache.path(OTHERS[0])],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        holder.stdin.write(b'read 0 512\n')
        holder.stdin.flush()
        holder.stdout.readline()
        fill(host, Medium.DISK, 900_000)
        # The content that disks of stopped servers stand on stays noted; the file goes.
        left = {image for image in (IMAGE, *OTHERS) if os.path.exists(host.cache.path(image))}
        assert OTHERS[0] in left and OTHERS[1] not in left and OTHERS[2] not in left
        assert IMAGE in left
    finally:
        holder.communicate(b'quit\n')


def test_pinned_ones_stay(hosts, node, directory):
    node.build(*SET)
    host = hosts(compute_disk_quota='1MiB', store_quota='1MiB')
    host.service.extra = {'pinned': True}
    boot(host, f'{directory}/disk')
    with pytest.raises(exception.BootcacheError, match='compute_disk_quota'):
        fill(host, Medium.DISK, 1_000_000)
    host.service.extra = {'pinned': False}
    boot(host, f'{directory}/again')
    with pytest.raises(exception.BootcacheError):
        # Their servers are about to open it.
        fill(host, Medium.DISK, 1_000_000)
    with open(f'{directory}/disk', 'ab') as disk:
        disk.write(b'as a guest that has run')
    os.unlink(f'{directory}/again')
    fill(host, Medium.DISK, 1_000_000)
    assert host.cache.entry(IMAGE) is None


def test_last_uses_are_told_once_a_change(hosts, node, directory):
    node.build(*SET)
    host = hosts()
    boot(host, f'{directory}/disk')
    host.holdings.exchange()
    host.holdings.exchange()
    (name, report), (_name, again) = host.service.used
    assert name == 'host-1' and list(report.images) == [IMAGE] and again is None
    assert report.images[IMAGE] == HeldImage(ANY, Medium.DISK, 0,
                                             os.stat(host.cache.path(IMAGE)).st_size)
    assert report.quotas == {Medium.DISK: 10 << 30}


def test_the_storage_node_is_asked_to_promote(hosts, node, directory):
    node.build(*SET)
    host = hosts()
    host.service.extra = {'has_memory': True, 'medium': 'disk'}
    boot(host, f'{directory}/disk')
    boot(host, f'{directory}/again')
    assert host.service.promoted == [IMAGE]


@pytest.fixture
def most(monkeypatch):
    """The most bytes that a host's disk tier has had, seen at each step of what is done."""
    found = {}

    def size(host):
        with os.scandir(host.cache.directory) as names:
            return sum(name.stat().st_blocks * 512 for name in names
                       if not name.name.endswith(('.json', '.tmp')))

    def look(_step):
        for host in found:
            found[host] = max(found[host], size(host))

    monkeypatch.setattr(steps, '_hook', look)
    return found


def stock():
    pytest.fail('the whole image is fetched')


def boot_older(host, node, directory):
    """Boot a server, and have the storage node make a newer cache image; return that."""
    node.build(Extent(3 * MIB, MIB))
    assert boot(host, f'{directory}/disk') is True
    node.build(Extent(3 * MIB, MIB), Extent(0, 300_000))
    return node.manifest.made.cache_image


def test_a_newer_cache_image_takes_no_room_that_the_older_one_still_has(
        hosts, node, directory, most, caplog):
    caplog.set_level('INFO')
    host = hosts(compute_disk_quota='2MiB', store_quota='1MiB')
    most[host] = 0
    newer = boot_older(host, node, directory)
    older = host.cache.entry(IMAGE).cache_image
    assert older.bytes + newer.bytes > 2 * MIB > newer.bytes
    assert boot(host, f'{directory}/again') is True
    compare(f'{directory}/again', node)
    assert host.cache.entry(IMAGE).cache_image == older, 'it is as right'
    assert 'has no room beside the older one' in caplog.text
    with open(f'{directory}/disk', 'ab') as disk:
        disk.write(b'as a guest that has run')
    os.unlink(f'{directory}/again')
    # No server has the older one open: it goes first.
    assert HostWarmer(host, 0).cache_image(IMAGE, False, stock) is True
    assert host.cache.entry(IMAGE).cache_image == newer
    assert newer.bytes <= most[host] <= 2 * MIB


def test_one_that_has_room_beside_it_takes_its_place_with_the_next_boot(
        hosts, node, directory, most):
    host = hosts(compute_disk_quota='4MiB', store_quota='1MiB')
    most[host] = 0
    newer = boot_older(host, node, directory)
    older = host.cache.entry(IMAGE).cache_image
    assert boot(host, f'{directory}/again') is True
    compare(f'{directory}/again', node)
    assert host.cache.entry(IMAGE).cache_image == newer
    assert older.bytes + newer.bytes <= most[host] <= 4 * MIB, 'both were there, and were counted'
