"""Servers whose image's signature is to be checked are served what was verified as Nova would do
it, or go the stock way.

Nova's objects, its configuration, its image backend, its check of signatures and certificates, and
cursive are real; the host, Glance and the key manager are stand-ins.
"""

import types

import pytest
import signing
from castellan.common import exception as castellan_exception
from cursive import signature_utils
from neighbours import Neighbour
from nova import context as nova_context
from nova import objects
from nova.image import glance
from nova.objects import trusted_certs as nova_certs
from nova.virt.libvirt import imagebackend
from nova.virt.libvirt import utils as libvirt_utils

from bootcache import naming
from bootcache import signatures as shared
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
CONTENT = b'the bytes of an image'
CONTEXT = nova_context.RequestContext('user', 'project', is_admin=False)
SIGNED = {'image_img_signature_hash_method': 'SHA-256', 'image_os_distro': 'debian'}


class Host:
    """Stands for the host; the storage service has verified the image by ``signature``."""

    def __init__(self):
        self.cache, self.chains = Neighbour(self, CacheFiles), Neighbour(self, Chains)
        self.adopted, self.reasons, self.signature = [], [], ''

    def holds_path(self, path):
        return False

    def make_overlay(self, server, *_others, as_user, **_more):
        try:
            self.reasons.append(
                placement.stock_reason(server, True, False)
                or placement.unverified_reason(server, self.signature, as_user.verifies_by))
        except Exception as error:
            # As Chains.make_overlay.
            self.reasons.append(f'{type(error).__name__}: {error}')
        return not self.reasons[-1]

    def adopt(self, image_id, path, server_id, guest_waits=False):
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
    imagebackend.CONF.set_override('default_trusted_certificate_ids', ['root'], 'glance')
    yield
    imagebackend.CONF.clear_override('enable_certificate_validation', 'glance')
    imagebackend.CONF.clear_override('default_trusted_certificate_ids', 'glance')


@pytest.fixture
def signed(nova, monkeypatch):
    """The image is signed by a certificate of a CA; Glance says so, and the key manager has both.

    The storage service has verified it by cursive: ``nova.host.signature``.
    """
    signing.use_key_manager(monkeypatch)
    nova.root = signing.Signer('root', is_ca=True)
    nova.signer = signing.Signer('signer', issuer=nova.root)
    nova.glance = nova.signer.sign(CONTENT)

    def show(self, context, image_id, include_locations=False, show_deleted=True):
        assert (context, image_id) == (CONTEXT, IMAGE)
        return {'id': image_id, 'properties': nova.glance}

    monkeypatch.setattr(glance.GlanceImageServiceV2, 'show', show)
    nova.host.signature = verified_by(nova.glance)
    yield nova
    signing.leave_key_manager()


def verified_by(image_properties):
    """Return what the storage service says of an image that it has verified."""
    signature, hash_method, key_type, certificate = (
        image_properties[name] for name in shared.PARTS)
    return shared.fingerprint(signature_utils.get_verifier(
        CONTEXT, certificate, hash_method, signature, key_type))


def spawn(nova, disk, certs=None):
    """Tell whether a server goes the stock way."""
    disk.cache(None, 'base', 1 << 30, image_id=IMAGE, trusted_certs=certs, context=CONTEXT)
    return nova.stock == [nova.path]


def trusting(*names):
    return nova_certs.TrustedCerts(ids=list(names))


def test_a_server_of_an_unsigned_image_is_served(nova):
    assert not spawn(nova, nova.disk()) and nova.host.reasons == ['']


def test_what_the_storage_service_has_not_verified_is_stock_novas(nova):
    assert spawn(nova, nova.disk(CERTS), CERTS)
    nova.stock.clear()
    assert spawn(nova, nova.disk(metadata=SIGNED))
    assert all('has not verified it' in reason for reason in nova.host.reasons)


def test_an_unsigned_image_where_nova_checks_all(nova, checks):
    """Stock Nova refuses it."""
    assert spawn(nova, nova.disk()) and 'signature' in nova.host.reasons[0]


def test_an_unsigned_image_where_nova_has_certificates_of_its_own(nova, default_certificates):
    assert spawn(nova, nova.disk()) and 'signature' in nova.host.reasons[0]


def test_a_signed_image_where_nova_checks_none(signed):
    signed.glance = None
    assert not spawn(signed, signed.disk(metadata=SIGNED))


def test_a_signed_image_where_nova_checks_all(signed, checks):
    assert not spawn(signed, signed.disk(metadata=SIGNED)), signed.host.reasons
    # As the server's user, who may not be allowed to.
    assert signing.DictionaryKeyManager.contexts[-1] is CONTEXT


def test_certificates_that_the_user_trusts(signed):
    certs = trusting('root')
    assert not spawn(signed, signed.disk(certs), certs), signed.host.reasons


def test_certificates_that_the_operator_trusts(signed, default_certificates):
    assert not spawn(signed, signed.disk()), signed.host.reasons


def untrusted(nova):
    return trusting(signing.Signer('stranger', is_ca=True).name)


def expired(nova):
    return trusting(signing.Signer('root', is_ca=True, days=-1).name)


def none_that_is_there(nova):
    return trusting('nobodys')


def the_signer_alone(nova):
    return trusting('signer')


@pytest.mark.parametrize('whom', [untrusted, expired, none_that_is_there, the_signer_alone])
def test_a_server_whose_certificates_do_not_validate_it_goes_to_stock_nova(signed, whom):
    """Who refuses it."""
    certs = whom(signed)
    assert spawn(signed, signed.disk(certs), certs)
    assert 'CertificateValidationFailed' in signed.host.reasons[0]


def test_where_validation_is_on_and_nobody_is_trusted(signed, checks):
    imagebackend.CONF.set_override('enable_certificate_validation', True, 'glance')
    try:
        assert spawn(signed, signed.disk(metadata=SIGNED))
    finally:
        imagebackend.CONF.clear_override('enable_certificate_validation', 'glance')
    assert 'CertificateValidationFailed' in signed.host.reasons[0]


def another_signature(nova):
    nova.glance = nova.signer.sign(CONTENT + b'x')


def another_key_of_that_name(nova):
    # Of the same name and issuer, so that it is as valid.
    signing.Signer('signer', issuer=nova.root)


def another_hash(nova):
    nova.glance = nova.signer.sign(CONTENT, 'SHA-512')


@pytest.mark.parametrize('change', [another_signature, another_key_of_that_name, another_hash])
def test_what_was_verified_by_something_else_does_not_count(signed, checks, change):
    change(signed)
    assert spawn(signed, signed.disk(metadata=SIGNED))
    assert 'is not the one by which' in signed.host.reasons[0]


def no_longer_signed(nova):
    nova.glance = {}


def no_certificate(nova):
    signing.DictionaryKeyManager.certificates.clear()


def no_key_manager(nova):
    signing.DictionaryKeyManager.fails = castellan_exception.KeyManagerError(reason='gone')


@pytest.mark.parametrize('change', [no_longer_signed, no_certificate, no_key_manager])
def test_what_nova_cannot_get_goes_to_stock_nova(signed, checks, change):
    change(signed)
    assert spawn(signed, signed.disk(metadata=SIGNED))
    assert 'SignatureVerificationError' in signed.host.reasons[0]


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
