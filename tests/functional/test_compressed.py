"""Servers that boot from a cache image with compressed clusters, with real daemons."""

import os
import shutil

import pytest
from compute_host import boot, compare
from functional_tools import qemu_img, read_base
from storage_node import IMAGE, MIB, content

from bootcache import qemuimg
from bootcache.cachelayout import Compression
from bootcache.workingset import Extent
from nova_bootcache.asking.placement import Trust
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


def test_a_server_boots_from_one_that_arrives(hosts, compressed, directory, monkeypatch):
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


@pytest.fixture
def old_qemu(directory, monkeypatch):
    """Puts a QEMU before the real one, that fails as one without zstd does, or hangs."""
    def put(fails):
        os.mkdir(f'{directory}/old')
        with open(f'{directory}/old/qemu-img', 'w') as stream:
            stream.write(f'#!/bin/sh\ncase "$*" in {fails} esac\nexec {real} "$@"\n')
            os.chmod(stream.name, 0o755)
        monkeypatch.setenv('PATH', f'{directory}/old:{os.environ["PATH"]}')

    real = shutil.which('qemu-img')
    return put


WITHOUT_ZSTD = "*compression_type=zstd*) echo \"Invalid parameter 'zstd'\" >&2; exit 1;;"
CANNOT_OPEN = '*info*.partial*) echo "unknown compression type: 1" >&2; exit 1;;'
IS_KILLED = '*info*.partial*) kill -KILL $$;;'


def boots_from_the_base(host, node, directory, number):
    """A server boots cold: the host does not mistrust what it cannot read."""
    path = f'{directory}/disk-{number}'
    assert boot(host, path) is True
    assert host.cache.entry(IMAGE).cache_image is None
    compare(path, node)


def test_a_host_whose_qemu_lacks_zstd_fetches_nothing(hosts, compressed, directory, old_qemu,
                                                      caplog):
    old_qemu(WITHOUT_ZSTD)
    caplog.set_level('INFO')
    host = hosts()
    for number in range(6):
        boots_from_the_base(host, compressed, directory, number)
        assert host.below.stores.get(IMAGE) is not None
    assert 'came wrong' not in caplog.text and 'cannot be fetched' not in caplog.text
    told = [record.getMessage() for record in caplog.records if record.levelname == 'ERROR']
    assert len(told) == 1 and 'install a QEMU that was built with zstd' in told[0]
    # One that is not compressed is fetched.
    compressed.build(SET[0])
    assert boot(host, f'{directory}/warm') is True
    holds(host, compressed)


@pytest.mark.parametrize('fails, cure', [
    (CANNOT_OPEN, 'compression to none on the storage node'), (IS_KILLED, 'exit -9')])
def test_one_that_is_right_and_cannot_be_opened_is_not_fetched_all_the_time(
        hosts, compressed, directory, old_qemu, caplog, fails, cure):
    old_qemu(fails)
    host = hosts()
    boots_from_the_base(host, compressed, directory, 'first')
    assert cure in caplog.text
    caplog.clear()
    for number in range(4):
        boots_from_the_base(host, compressed, directory, number)
        assert host.below.stores.get(IMAGE) is not None
    assert not caplog.text
    assert host.fetches.trust(IMAGE, compressed.manifest.made.cache_image) is Trust.UNREADABLE
