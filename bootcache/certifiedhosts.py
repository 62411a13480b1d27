"""For which hosts a server's certificate is: what QEMU's client compares, as GnuTLS does. Pure.

A client compares the certificate with what it was told to connect to, not with what that resolves
to: an address with the addresses in the certificate (RFC 2818, 3.1), a name with its names (RFC
6125, 6.4).
"""

import socket

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


def names(certificate: x509.Certificate) -> list[str]:
    """Return the addresses and names that a certificate is for.

    :raises ValueError: if they cannot be read.
    """
    alternative = _alternative(certificate)
    found = [] if alternative is None else [
        *alternative.get_values_for_type(x509.DNSName),
        *map(str, alternative.get_values_for_type(x509.IPAddress))]
    return found or _common_names(certificate)


def entry(host: str) -> str:
    """Return what a certificate's subjectAltName has to have for a host, as openssl takes it.

    :param host: address or name.
    """
    return f'{"DNS" if _packed(host) is None else "IP"}:{host}'


def serves(certificate: x509.Certificate) -> bool:
    """Tell whether a certificate is one for servers: its extended key usage does not exclude it.

    QEMU 7.2 refuses one that is not only if that extension is critical.

    :raises ValueError: if it cannot be read.
    """
    try:
        uses = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return True
    return any(use in (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE)
               for use in uses)


def is_for(certificate: x509.Certificate, host: str) -> bool:
    """Tell whether a client that connects to a host takes the certificate for that host's.

    :param host: address or name, as clients have it.
    :raises ValueError: if what is to be compared cannot be read, or is no name of ASCII.
    """
    if not host.isascii():
        raise ValueError(f'{host} is not in ASCII')
    alternative = _alternative(certificate)
    if (address := _packed(host)) is not None:
        return alternative is not None and address in {
            one.packed for one in alternative.get_values_for_type(x509.IPAddress)
            if not hasattr(one, 'netmask')}
    named = [] if alternative is None else alternative.get_values_for_type(x509.DNSName)
    if named:
        return any(_matches(one, host) for one in named)
    # It names a host in a certificate of a server only, and only where nothing else does. That a
    # URI does is what GnuTLS 3.8.9 says, as RFC 6125, 6.4.4; earlier ones let that pass.
    others = [] if alternative is None else [
        one for kind in (x509.IPAddress, x509.UniformResourceIdentifier)
        for one in alternative.get_values_for_type(kind)]
    common = _common_names(certificate) if serves(certificate) and not others else []
    return len(common) == 1 and _matches(common[0], host)


def _alternative(certificate: x509.Certificate) -> x509.SubjectAlternativeName | None:
    try:
        return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None


def _common_names(certificate: x509.Certificate) -> list[str]:
    return [str(one.value)
            for one in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]


def _packed(host: str) -> bytes | None:
    """Return an address's bytes; None for a name."""
    try:
        return socket.inet_pton(socket.AF_INET6 if ':' in host else socket.AF_INET, host)
    except OSError:
        return None


def _matches(name: str, host: str) -> bool:
    name, host = name.lower(), host.lower()
    if not name.isascii() or not name.isprintable():
        return False
    if not name.startswith('*'):
        return name == host
    # It stands for a part of the first label, and not for those of a whole top-level domain.
    rest = name[1:]
    if rest.count('.') < 2 or rest.endswith('.'):
        return False
    return host.endswith(rest) and '.' not in host[:len(host) - len(rest)]
