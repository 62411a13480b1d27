"""Servers that boot from a cache image with compressed clusters, with real daemons."""

import pytest
from compute_host import boot, compare
from functional_tools import qemu_img, read_base
from storage_node import IMAGE, MIB, content

from bootcache import cachelayout, exception, qemuimg
from bootcache.cachelayout import Compression
from bootcache.workingset import Extent
from nova_bootcache.gateway import arrivingimage

SET = Extent(3 * MIB, MIB), Extent(0, MIB), Extent(5 * MIB, 300_000)


@pytest.fixture
def compressed(node):
    node.build(*SET, compression=Compression.ZSTD)
    assert node.manifest.made.cache_image.compression is Compression.ZSTD
    return node


def holds(host, node):
    """The host has the file as it was built, and all that reads it finds it in order."""
    entry = host.cache.entry(IMAGE)
    assert entry is not None and entry.cache_image == node.manifest.made.cache_image
    qemu_img('check', qemuimg.file_node(host.cache.path(IMAGE), 'qcow2'))


def test_a_server_boots_from_one_that_was_fetched(hosts, compressed, directory):
    host = hosts()
    assert boot(host, f'{directory}/disk') is True
    holds(host, compressed)
    compare(f'{directory}/disk', compressed)


@pytest.mark.parametrize('is_known', [True, False], ids=['this version', 'an earlier one'])
def test_a_server_boots_from_one_that_arrives(hosts, compressed, directory, monkeypatch, is_known):
    """An earlier version knows nothing of names: to it the file is as any other."""
    if not is_known:
        monkeypatch.setattr(cachelayout, 'compression_of', lambda file: Compression.NONE)
    monkeypatch.setattr(arrivingimage, 'WORTH_BYTES', 0)
    host, data = hosts(), content(compressed)
    assert boot(host, f'{directory}/disk') is True
    for extent in SET:
        assert read_base(host, IMAGE, extent.offset, extent.length) \
            == data[extent.offset:extent.end]
    assert host.arrivals.wait(IMAGE, 60)
    holds(host, compressed)
    compare(f'{directory}/disk', compressed)


def test_a_host_that_has_the_same_data_as_it_is_keeps_that(hosts, node, directory):
    host = hosts()
    node.build(*SET)
    assert boot(host, f'{directory}/disk') is True
    before = host.cache.entry(IMAGE).cache_image
    node.build(*SET, compression=Compression.ZSTD)
    now = node.manifest.made.cache_image
    assert now.sha256 != before.sha256 and before.has_data_of(now)
    assert boot(host, f'{directory}/second') is True
    assert host.cache.entry(IMAGE).cache_image == before
    compare(f'{directory}/second', node)


def test_a_host_whose_qemu_cannot_open_it_does_not_use_it(hosts, compressed, directory,
                                                          monkeypatch):
    host = hosts()
    real = qemuimg.info

    def refuse(path, image_format):
        if path.endswith('.partial'):
            raise exception.BootcacheError('qemu-img info failed: unknown compression type')
        return real(path, image_format)

    monkeypatch.setattr(qemuimg, 'info', refuse)
    with pytest.raises(exception.BootcacheError, match='compression to none on the storage node'):
        host.fetches.fetch(compressed.remote(), compressed.manifest.made.cache_image,
                           compressed.answer()['cache_export'])
    assert host.cache.entry(IMAGE) is None
    # A server of the image boots all the same.
    boot(host, f'{directory}/disk')
    assert host.cache.known(IMAGE) is None or host.cache.known(IMAGE).cache_image is None
