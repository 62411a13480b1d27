"""Exporter and compute host by TLS: who has no certificate, or another CA's, gets nothing."""

import contextlib
import logging
import os
import shutil
import threading

import nbd
import pytest
from compute_host import boot, compare, fetched
from encrypted import opens
from encrypted import storage_conf as storage_conf  # the fixture
from functional_tools import until
from storage_node import IMAGE, MIB, content

from bootcache import exception, savefile, tls
from bootcache.manifest import CacheInfo
from bootcache.workingset import Extent
from nova_bootcache.asking.placement import Offer
from nova_bootcache.settling import fullbase
from nova_bootcache.storagenode import Encryption, nbd_node

SET = Extent(4 * MIB, 300_000), Extent(0, 4096)


@pytest.mark.parametrize('way', ['read', 'list'])
def test_a_client_without_tls_gets_nothing(node, way):
    node.serve()
    handle, got = nbd.NBD(), []
    handle.set_export_name(f'base-{IMAGE}')
    handle.set_opt_mode(way == 'list')
    with pytest.raises(nbd.Error):
        handle.connect_tcp('127.0.0.1', str(node.conf.export_port))
        if way == 'list':
            handle.opt_list(lambda name, _description: got.append(name))
        else:
            got.append(bytes(handle.pread(512, 0)))
        pytest.fail(f'it got {got}')


def test_who_has_the_ca_s_certificate_reads_and_nobody_else(node, ca, other_ca, directory):
    node.serve()
    right = ca.issue('compute-1')
    opens(node, right)
    with pytest.raises(exception.BootcacheError, match='issuer'):
        opens(node, other_ca.issue('compute-1'))
    # It trusts the exporter, and has a certificate of another CA to show.
    mixed = f'{directory}/mixed'
    shutil.copytree(other_ca.issue('compute-1'), mixed)
    # QEMU looks at its own files first; a client that lies does not.
    handle = nbd.NBD()
    handle.set_tls(nbd.TLS_REQUIRE)
    shutil.copy(f'{right}/ca-cert.pem', f'{mixed}/ca-cert.pem')
    handle.set_tls_certificates(mixed)
    handle.set_export_name(f'base-{IMAGE}')
    with pytest.raises(nbd.Error):
        handle.connect_tcp('127.0.0.1', str(node.conf.export_port))
        handle.pread(512, 0)
    # So does one that shows none.
    for kind in 'cert', 'key':
        os.unlink(f'{mixed}/client-{kind}.pem')
    handle = nbd.NBD()
    handle.set_tls(nbd.TLS_REQUIRE)
    handle.set_tls_certificates(mixed)
    with pytest.raises(nbd.Error):
        handle.connect_tcp('127.0.0.1', str(node.conf.export_port))
        handle.pread(512, 0)
    opens(node, right)


def test_an_exporter_with_another_ca_s_certificate_is_not_read(node, storage_conf, other_ca, hosts):
    """As one that has taken the exporter's address."""
    node.serve()
    host = hosts(tls_directory=other_ca.issue('compute-1'))
    with pytest.raises(exception.BootcacheError, match='issuer'):
        host.gateway.ensure_base(node.remote())


def test_an_exporter_with_another_host_s_certificate_is_not_read(node, storage_conf, ca, certified,
                                                                 monkeypatch):
    # As one of an earlier version that does not look, or of who pretends to be the exporter.
    monkeypatch.setattr(tls, 'is_for', lambda certificate, host: True)
    shutil.copytree(ca.issue('compute-2', ['127.0.0.2']), storage_conf.bootcache.tls_directory,
                    dirs_exist_ok=True)
    node.serve()
    with pytest.raises(exception.BootcacheError, match='does not match the hostname'):
        certified().gateway.ensure_base(node.remote())


def test_a_whole_boot_by_tls(node, certified, directory):
    """A cold one, one from a cache image that is fetched, and the full base."""
    node.serve()
    host = certified()
    assert node.answer()['tls'] is True
    assert boot(host, f'{directory}/cold')
    compare(f'{directory}/cold', node)
    node.build(*SET)
    entry = fetched(host.fetches, node.remote(), CacheInfo(**node.answer()['cache_image']),
                    node.answer()['cache_export'])
    assert entry.file_sha256 == node.manifest.made.cache_image.sha256
    assert boot(host, f'{directory}/warm')
    compare(f'{directory}/warm', node)
    host.chains.reach_base(IMAGE)
    assert host.cache.entry(IMAGE).remote.tls


def test_a_cache_image_arrives_by_tls(node, certified, directory):
    node.build(*SET)
    host = certified()
    assert boot(host, f'{directory}/disk')
    compare(f'{directory}/disk', node)
    until(lambda: not host.needs.is_arriving(IMAGE), 'the cache image')
    assert host.cache.entry(IMAGE).cache_image is not None


def test_a_profile_boot_records_by_tls(node, certified, directory):
    node.serve()
    host = certified()
    assert boot(host, f'{directory}/profile', token='token')
    compare(f'{directory}/profile', node)
    host.recordings.finish('server-profile')


def test_a_paced_fetch_is_by_tls(node, certified):
    node.build(*SET)
    host = certified()
    entry = fetched(host.fetches, node.remote(), CacheInfo(**node.answer()['cache_image']),
                    node.answer()['cache_export'], rate=64 * MIB)
    assert entry.file_sha256 == node.manifest.made.cache_image.sha256


def test_a_host_without_certificates_goes_the_stock_way(node, hosts, directory, caplog):
    caplog.set_level(logging.INFO)
    node.build(*SET)
    host = hosts()
    offered = host.storage.ask_patiently(IMAGE)
    assert offered.storage.offer is Offer.STOCK and 'set [bootcache]tls_directory' in offered.reason
    assert not boot(host, f'{directory}/disk')
    lines = [line for line in caplog.messages if 'storage node speaks TLS' in line]
    assert len(lines) == 1 and 'goes the stock way' in lines[0]


def test_a_host_with_certificates_is_not_led_to_an_exporter_without(directory):
    """As somebody may try who can write to the message bus."""
    host = Encryption(directory)
    assert 'does not speak TLS' in host.refusal(False)
    assert not Encryption(directory, allow_plain=True).refusal(False)
    with pytest.raises(exception.ConfigurationError, match='allow_plain_nbd'):
        host.credentials(False)


def test_settling_completes_the_full_base_by_tls(node, certified, directory):
    node.serve()
    host = certified()
    stored = node.exporter.ensure_stored(node.manifest)
    target = f'{directory}/full'
    assert fullbase.complete(
        nbd_node('127.0.0.1', node.conf.export_port, stored, host.encryption.credentials(True)),
        os.path.getsize(node.base), f'sha256:{savefile.file_digest(node.base)}', 'qcow2', target,
        raw=True, rate=0, keep_free=0, cancelled=threading.Event(),
        lock=contextlib.nullcontext())
    with open(target, 'rb') as stream:
        assert stream.read() == content(node)

