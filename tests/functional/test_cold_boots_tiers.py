"""Cold boots and the tiers of a compute host."""

import dataclasses
import os
import subprocess

import pytest
from cold_boots import SET
from compute_host import boot, compare
from functional_tools import qemu_img
from storage_node import IMAGE

from bootcache import exception
from bootcache.tier import Medium


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
    assert name == 'host-1' and list(report['images']) == [IMAGE] and again is None
    assert report['images'][IMAGE][1:] == ['disk', 0, os.stat(host.cache.path(IMAGE)).st_size]
    assert report['quotas'] == {'disk': 10 << 30}


def test_the_storage_node_is_asked_to_promote(hosts, node, directory):
    node.build(*SET)
    host = hosts()
    host.service.extra = {'has_memory': True, 'medium': 'disk'}
    boot(host, f'{directory}/disk')
    boot(host, f'{directory}/again')
    assert host.service.promoted == [IMAGE]
