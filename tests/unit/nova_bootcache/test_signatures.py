"""Servers whose image's signature is to be checked go the stock way, and so do their bases.

Nova's objects, its configuration and its image backend are real; the host is a stand-in that notes
what it is asked for.
"""

import types

import pytest
from neighbours import Neighbour
from nova import objects
from nova.objects import trusted_certs as nova_certs
from nova.virt.libvirt import imagebackend
from nova.virt.libvirt import utils as libvirt_utils

from bootcache import naming
from nova_bootcache.asking import placement
from nova_bootcache.cache.cachefiles import CacheFiles
from nova_bootcache.chains.chains import Chains
from nova_bootcache.novadriver import novaservers, signatures
from nova_bootcache.novadriver.imagebackend import BootCacheQcow2
from nova_bootcache.novadriver.novaservers import NovaServers

objects.register_all()
SERVER = '5f0d3e7a-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
CERTS = nova_certs.TrustedCerts(ids=['a'])
SIGNED = {'image_img_signature_hash_method': 'SHA-256', 'image_os_distro': 'debian'}


class Host:
    """Stands for the host; it serves whatever the placement does not refuse."""

    def __init__(self):
        self.cache, self.chains = Neighbour(self, CacheFiles), Neighbour(self, Chains)
        self.adopted, self.reasons = [], []

    def holds_path(self, path):
        return False

    def make_overlay(self, server, *_others, **_more):
        self.reasons.append(placement.stock_reason(server, True, False))
        return not self.reasons[-1]

    def adopt(self, image_id, path, server_id):
        self.adopted.append(path)
        return True


@pytest.fixture
def nova(monkeypatch, tmp_path):
    """A server in the making, on a host that has no base."""
    monkeypatch.setattr(imagebackend.CONF, 'instances_path', str(tmp_path))
    stock = []
    monkeypatch.setattr(imagebackend.Qcow2, 'cache',
                        lambda self, *_a, **_n: stock.append(self.path))
    (tmp_path / SERVER).mkdir()
    host = Host()

    def disk(certs=None, metadata=None):
        instance = objects.Instance(
            uuid=SERVER, image_ref=IMAGE, kernel_id='', vm_state='building', task_state='spawning',
            metadata={}, system_metadata=metadata or {}, trusted_certs=certs)
        return BootCacheQcow2.bound_to(host)(instance, 'disk')

    return types.SimpleNamespace(host=host, stock=stock, disk=disk,
                                 path=str(tmp_path / SERVER / 'disk'))


@pytest.fixture
def checks():
    """Nova checks the signature of each image."""
    imagebackend.CONF.set_override('verify_glance_signatures', True, 'glance')
    yield
    imagebackend.CONF.clear_override('verify_glance_signatures', 'glance')


@pytest.fixture
def default_certificates():
    """Nova checks each image with the certificates that the operator trusts."""
    imagebackend.CONF.set_override('enable_certificate_validation', True, 'glance')
    imagebackend.CONF.set_override('default_trusted_certificate_ids', ['a'], 'glance')
    yield
    imagebackend.CONF.clear_override('enable_certificate_validation', 'glance')
    imagebackend.CONF.clear_override('default_trusted_certificate_ids', 'glance')


def spawn(nova, disk, certs=None):
    disk.cache(None, 'base', 1 << 30, image_id=IMAGE, trusted_certs=certs)
    return nova.stock == [nova.path]


def test_a_server_of_an_unsigned_image_is_served(nova):
    assert not spawn(nova, nova.disk()) and nova.host.reasons == ['']


def test_trusted_certificates(nova):
    assert spawn(nova, nova.disk(CERTS), CERTS) and 'signature' in nova.host.reasons[0]


def test_a_signed_image(nova):
    assert spawn(nova, nova.disk(metadata=SIGNED)) and 'is signed' in nova.host.reasons[0]


def test_an_unsigned_image_where_nova_checks_all(nova, checks):
    """Stock Nova refuses it."""
    assert spawn(nova, nova.disk()) and 'signature is checked' in nova.host.reasons[0]


def test_an_unsigned_image_where_nova_has_certificates_of_its_own(nova, default_certificates):
    assert spawn(nova, nova.disk()) and 'signature is checked' in nova.host.reasons[0]


@pytest.fixture
def arrived(nova, monkeypatch, tmp_path):
    """Its disk came from another host; the base that it names is not here."""
    base = tmp_path / '_base' / naming.cache_file_name(IMAGE)
    monkeypatch.setattr(libvirt_utils, 'get_disk_backing_file', lambda *_a, **_n: str(base))
    (tmp_path / SERVER / 'disk').touch()
    return nova


def test_a_disk_that_arrives_stands_on_a_cache_image(arrived):
    arrived.disk().open_chain(arrived.path)
    assert arrived.host.adopted == [arrived.path]


@pytest.mark.parametrize('certs, metadata', [(CERTS, {}), (None, SIGNED)])
def test_a_signed_disk_that_arrives_gets_its_base_from_stock_nova(arrived, certs, metadata):
    arrived.disk(certs, metadata).open_chain(arrived.path)
    assert arrived.host.adopted == []


def test_a_disk_that_arrives_where_nova_checks_all(arrived, checks):
    arrived.disk().open_chain(arrived.path)
    assert arrived.host.adopted == []


@pytest.mark.parametrize('certs, metadata, needs', [
    (None, {'image_os_distro': 'debian'}, False), (CERTS, {}, True), (None, SIGNED, True)])
def test_which_bases_settling_leaves_to_stock_nova(monkeypatch, certs, metadata, needs):
    asked = []

    def get(context, uuid, expected_attrs):
        asked.extend(expected_attrs)
        return objects.Instance(uuid=uuid, system_metadata=metadata, trusted_certs=certs)

    monkeypatch.setattr(novaservers.objects.Instance, 'get_by_uuid', get)
    assert NovaServers(None).needs_stock_base(SERVER) is needs
    assert set(asked) == {'system_metadata', 'trusted_certs'}


def test_settling_completes_no_base_where_nova_checks_all(checks):
    assert NovaServers(None).needs_stock_base(SERVER)


def test_what_is_not_known_is_not_signed():
    assert not signatures.is_signed(None)
