"""For which hosts a certificate is, compared with what GnuTLS itself says, which QEMU asks."""

import ctypes
import datetime
import ipaddress

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hypothesis import given, settings
from hypothesis import strategies as st

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


class Datum(ctypes.Structure):
    _fields_ = [('data', ctypes.c_char_p), ('size', ctypes.c_uint)]


def gnutls_says(certificate, host):
    """What QEMU's client asks: ``gnutls_x509_crt_check_hostname``."""
    library = ctypes.CDLL('libgnutls.so.30')
    handle = ctypes.c_void_p()
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    assert library.gnutls_x509_crt_init(ctypes.byref(handle)) == 0
    try:
        assert library.gnutls_x509_crt_import(handle, ctypes.byref(Datum(pem, len(pem))), 1) == 0
        return library.gnutls_x509_crt_check_hostname(handle, host.encode()) != 0
    finally:
        library.gnutls_x509_crt_deinit(handle)


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
def test_what_gnutls_takes_is_taken_and_nothing_else(certificate, host, is_right):
    assert gnutls_says(certificate, host) is is_right
    assert tls.is_for(certificate, host) is is_right


def test_a_common_name_beside_a_uri_is_taken_by_some_only_and_so_not_by_us():
    """GnuTLS 3.7 takes it, 3.8.9 does not."""
    certificate = make(others=[x509.UniformResourceIdentifier('nbd://storage-1')])
    assert not tls.is_for(certificate, 'storage-1')


LABELS = st.sampled_from(['a', 'b1', '*', '*a', 'a*', 'A', '', '-', '10', '0', '127', '1'])
NAMES = st.lists(LABELS, min_size=1, max_size=4).map('.'.join).filter(bool)
ADDRESSES = st.sampled_from(['127.0.0.1', '10.0.0.1', '::1', '2001:db8::a', '0.0.0.10'])


@settings(max_examples=300, deadline=None)
@given(st.lists(NAMES, max_size=2), st.lists(NAMES, max_size=2), st.lists(ADDRESSES, max_size=2),
       st.sampled_from([(), (SERVER,), (CLIENT,), (CLIENT, SERVER), (ANY,)]),
       st.one_of(NAMES, ADDRESSES))
def test_gnutls_and_we_agree_on_any_names(common, names, addresses, uses, host):
    certificate = make(common, names, addresses, uses)
    assert tls.is_for(certificate, host) is gnutls_says(certificate, host)


def test_what_a_certificate_is_for_is_told():
    assert tls.hosts_named(make(names=['storage-1'], addresses=['192.0.2.10'])) == [
        'storage-1', '192.0.2.10']
    assert tls.hosts_named(make(common=['one'])) == ['one']
    assert tls.hosts_named(make(common=[])) == []


def test_a_client_s_is_told_from_a_server_s():
    assert [tls.is_server(make(uses=uses))
            for uses in ((), (SERVER,), (CLIENT, SERVER), (ANY,), (CLIENT,))] == [
        True, True, True, True, False]


def test_a_name_that_is_not_of_ascii_is_not_judged():
    with pytest.raises(ValueError, match='ASCII'):
        tls.is_for(make(), 'störage-1')
