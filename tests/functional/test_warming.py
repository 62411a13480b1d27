"""Warming a host, and letting go, with real daemons; the RPC is a stand-in."""

import os
import threading
import time

import pytest
from compute_host import boot, compare
from functional_tools import until
from storage_node import IMAGE, MIB

from bootcache import exception
from bootcache.tier import Medium
from bootcache.workingset import Extent
from nova_bootcache.chains.hostwarmer import HostWarmer
from nova_bootcache.published import warmth
from nova_bootcache.published.warmth import Level

SET = Extent(4 * MIB, 300_000), Extent(0, 4096)


def stock():
    pytest.fail('the whole image is fetched')


def level(host):
    return warmth.decode(host.holdings.published()).level(warmth.image_key(IMAGE))


def test_a_warmed_host_fetches_nothing_for_its_first_server(hosts, node, directory):
    node.build(*SET)
    host = hosts()
    assert level(host) is Level.COLD
    assert HostWarmer(host, 0).cache_image(IMAGE, False, stock) is True
    assert level(host) is Level.DISK
    assert HostWarmer(host, 0).cache_image(IMAGE, False, stock) is False
    inode = os.stat(host.cache.path(IMAGE)).st_ino
    os.unlink(node.cache_path)
    assert boot(host, f'{directory}/disk') is True
    assert os.stat(host.cache.path(IMAGE)).st_ino == inode
    compare(f'{directory}/disk', node)
    assert [told.outcome for told in host.service.warmed] == ['cached', 'existing']


def test_a_paced_fetch_is_the_same_file(hosts, node):
    node.build(*SET)
    host = hosts()
    HostWarmer(host, 64 << 20).cache_image(IMAGE, False, stock)
    paced = host.cache.entry(IMAGE)
    host.cache.remove(IMAGE)
    HostWarmer(host, 0).cache_image(IMAGE, False, stock)
    assert host.cache.entry(IMAGE) == paced


def test_a_server_does_not_wait_for_a_paced_fetch(hosts, node, directory):
    """At a KiB a second the file would take minutes, and one request has all of it."""
    node.build(*SET)
    host = hosts()
    done = []
    warmer = threading.Thread(
        target=lambda: done.append(HostWarmer(host, 1 << 10).cache_image(IMAGE, False, stock)))
    warmer.start()
    until(lambda: level(host) is Level.ARRIVING, 'the fetch')
    began = time.monotonic()
    assert boot(host, f'{directory}/disk') is True
    paced = host.cache.entry(IMAGE).cache_image.bytes / (1 << 10)
    # It cannot be the paced fetch that ended: that takes at least its bytes at its rate.
    assert paced > 240 and time.monotonic() - began < paced
    warmer.join(30)
    assert done == [True] and level(host) is Level.DISK
    assert [name for name in os.listdir(host.cache.directory) if 'partial' in name] == []
    compare(f'{directory}/disk', node)


def test_what_the_storage_node_does_not_have_is_an_error(hosts, node):
    node.serve()
    host = hosts()
    with pytest.raises(exception.BootcacheError, match='has no cache image yet'):
        HostWarmer(host, 0).cache_image(IMAGE, False, stock)
    node.build(*SET)
    host.service.freeze()
    os.truncate(node.cache_path, 100)
    with pytest.raises(exception.BootcacheError):
        HostWarmer(host, 0).cache_image(IMAGE, False, stock)
    assert level(host) is Level.COLD and host.room.arriving() == []
    assert [told.outcome for told in host.service.warmed] == ['error', 'error']


# Letting go.

def test_what_is_withdrawn_goes_when_nobody_needs_it(hosts, node, directory):
    node.build(*SET)
    host = hosts()
    host.needs.note_unsettled([IMAGE])
    HostWarmer(host, 0).cache_image(IMAGE, False, stock)
    host.service.dropped = {IMAGE}
    host.holdings.exchange()
    assert host.cache.entry(IMAGE) is not None, 'a server needs it'
    host.needs.note_unsettled([])
    assert boot(host, f'{directory}/disk') is True
    host.holdings.exchange()
    assert host.cache.entry(IMAGE) is not None, 'a server is about to open it'
    with open(f'{directory}/disk', 'ab') as stream:
        # As if it had been opened, used, and closed.
        os.utime(stream.fileno())
    host.holdings.exchange()
    assert host.cache.entry(IMAGE) is None and os.listdir(host.cache.directory) == []
    assert host.gateway.daemon.exports() == {}
    # The next report says so, and it is not dropped again.
    host.holdings.exchange()
    assert host.service.used[-1][1].images == {}
    # A server that was stopped all the while gets it again.
    host.chains.keep_chain(IMAGE)
    compare(f'{directory}/disk', node)


def test_an_opened_cache_image_stays(hosts, node, daemons):
    node.build(*SET)
    host = hosts()
    host.needs.note_unsettled([])
    HostWarmer(host, 0).cache_image(IMAGE, False, stock)
    host.service.dropped = {IMAGE}
    reader = daemons('reader')
    reader.ensure_running()
    reader.add_nodes({'driver': 'qcow2', 'node-name': 'x', 'read-only': True, 'backing': None,
                     'file': {'driver': 'file', 'filename': host.cache.path(IMAGE)}})
    host.holdings.exchange()
    assert host.cache.entry(IMAGE) is not None
    reader.stop()
    host.holdings.exchange()
    assert host.cache.entry(IMAGE) is None


def test_memory_is_published_as_such(hosts, node, directory):
    node.build(*SET)
    os.mkdir('/dev/shm/' + os.path.basename(directory))
    try:
        host = hosts(compute_memory_directory='/dev/shm/' + os.path.basename(directory),
                     compute_memory_quota='64MiB', store_quota='8MiB')
        if Medium.MEMORY not in host.room.limits:
            pytest.skip('O_DIRECT does not work on tmpfs here')
        HostWarmer(host, 0).cache_image(IMAGE, False, stock)
        assert level(host) is Level.MEMORY
        host.cache.remove(IMAGE)
    finally:
        os.rmdir('/dev/shm/' + os.path.basename(directory))
