"""For which hosts a certificate is."""

import datetime
import ipaddress

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from bootcache import tls

KEY = ec.generate_private_key(ec.SECP256R1())
SERVER, CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
ANY = ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE


def make(common=('storage-1',), names=(), addresses=(), uses=(SERVER,), others=()):
    now = datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, one) for one in common])
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(
        KEY.public_key()).serial_number(1).not_valid_before(now).not_valid_after(
        now + datetime.timedelta(days=1))
    if names or addresses or others:
        builder = builder.add_extension(x509.SubjectAlternativeName([
            *map(x509.DNSName, names),
            *(x509.IPAddress(ipaddress.ip_address(one)) for one in addresses), *others]), False)
    if uses:
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), False)
    return builder.sign(KEY, hashes.SHA256())


@pytest.mark.parametrize('certificate, host, is_right', [
    (make(names=['storage-1']), '192.0.2.10', False),
    (make(names=['storage-1']), 'storage-1', True),
    (make(names=['storage-1']), 'STORAGE-1', True),
    (make(names=['storage-1']), 'storage-1.example.org', False),
    (make(addresses=['192.0.2.10']), '192.0.2.10', True),
    (make(addresses=['192.0.2.10']), '192.0.2.11', False),
    # An address that stands as a name.
    (make(names=['192.0.2.10']), '192.0.2.10', False),
    (make(common=['192.0.2.10']), '192.0.2.10', False),
    (make(addresses=['127.0.0.1']), '127.1', False),
    (make(addresses=['2001:db8::1']), '2001:DB8:0::1', True),
    (make(addresses=['2001:db8::1']), '2001:db8::2', False),
    (make(addresses=['fe80::1']), 'fe80::1%eth0', False),
    # The common name only where there is no other, only of a server's, and only if it is one.
    (make(), 'storage-1', True),
    (make(uses=()), 'storage-1', True),
    (make(uses=(ANY,)), 'storage-1', True),
    (make(uses=(CLIENT,)), 'storage-1', False),
    (make(uses=(CLIENT,), names=['storage-1']), 'storage-1', True),
    (make(common=['storage-1', 'other']), 'storage-1', False),
    (make(common=[]), 'storage-1', False),
    (make(names=['other']), 'storage-1', False),
    (make(addresses=['192.0.2.10']), 'storage-1', False),
    (make(others=[x509.RFC822Name('root@storage-1')]), 'storage-1', True),
    (make(names=['*.example.org']), 'storage-1.example.org', True),
    (make(names=['*.example.org']), 'example.org', False),
    (make(names=['*.example.org']), 'a.b.example.org', False),
    (make(names=['*-1.example.org']), 'storage-1.example.org', True),
    (make(names=['storage-*.example.org']), 'storage-1.example.org', False),
    (make(names=['*.org']), 'example.org', False),
    (make(common=['*.example.org']), 'storage-1.example.org', True),
    (make(names=['other', 'storage-1']), 'storage-1', True)])
def test_for_which_hosts_a_certificate_is(certificate, host, is_right):
    assert tls.is_for(certificate, host) is is_right


def test_what_a_certificate_is_for_is_told():
    assert tls.hosts_named(make(names=['storage-1'], addresses=['192.0.2.10'])) == [
        'storage-1', '192.0.2.10']
    assert tls.hosts_named(make(common=['one'])) == ['one']
    assert tls.hosts_named(make(common=[])) == []


def test_a_client_s_is_told_from_a_server_s():
    assert [tls.is_server(make(uses=uses))
            for uses in ((), (SERVER,), (CLIENT, SERVER), (ANY,), (CLIENT,))] == [
        True, True, True, True, False]
