"""Whether certificates can be used, and where none are needed: what is checked at start."""

import ipaddress
import os
import socket

from cryptography import x509
from cryptography.x509.oid import NameOID
from oslo_log import log as logging

from bootcache import certifiedhosts, exception, qemuimg, tls

LOG = logging.getLogger(__name__)

# Of these GnuTLS and cryptography have the same short names.
_KNOWN_PARTS = {NameOID.COMMON_NAME, NameOID.LOCALITY_NAME, NameOID.STATE_OR_PROVINCE_NAME,
                NameOID.ORGANIZATION_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME, NameOID.COUNTRY_NAME,
                NameOID.DOMAIN_COMPONENT, NameOID.USER_ID}


def check_path(directory: str) -> None:
    """Check that the directory of certificates is one for every process.

    :raises ConfigurationError: naming the option and the cure.
    """
    if not os.path.isabs(directory):
        raise exception.ConfigurationError(
            f'[bootcache]{tls.OPTION}={directory} is no absolute path; give one, as in'
            ' /etc/pki/bootcache')


def check(directory: str, endpoint: tls.Endpoint, host: str = '') -> None:
    """Check that QEMU takes a directory's files: they are there, fit each other, and are valid now.

    :param host: of a server, what clients connect to: they have to take its certificate as well.
    :raises CertificateExpired: if one is not valid any more, or not yet.
    :raises ConfigurationError: naming the option, the file and the cure.
    :raises Interrupted: if QEMU has not said so in time, as on a busy machine.
    """
    check_path(directory)
    try:
        qemuimg.check_object(tls.credentials(tls.credentials_id(directory, endpoint), endpoint))
    except (exception.ConfigurationError, exception.Interrupted):
        raise
    except exception.BootcacheError as error:
        says = f'[bootcache]{tls.OPTION}={directory}: {error}'
        if 'has expired' in says:
            raise exception.CertificateExpired(f'{says}; renew it') from error
        if 'is not yet active' in says:
            raise exception.CertificateExpired(
                f'{says}; "date" shows whether this machine\'s clock is right') from error
        raise exception.ConfigurationError(f'{says}; {_cure(says, endpoint)}') from error
    if host:
        _check_host(directory, host)


def _cure(says: str, endpoint: tls.Endpoint) -> str:
    if tls.REVOKED in says:
        return f'{tls.REVOKED} has to be the CA\'s list of revoked certificates, in PEM ("openssl' \
            ' crl -noout -text -in FILE" shows one): put that there, or take the file away'
    return f'put {tls.CA} there, and {endpoint.value}-cert.pem and {endpoint.value}-key.pem of' \
        ' that CA ("openssl x509 -noout -text -in FILE" shows one)'


def _check_host(directory: str, host: str) -> None:
    path = os.path.join(directory, f'{tls.Endpoint.SERVER.value}-cert.pem')
    try:
        reason = tls.mismatch(directory, host)
        with open(path, 'rb') as stream:
            serves = certifiedhosts.serves(x509.load_pem_x509_certificate(stream.read()))
    except (OSError, ValueError) as error:
        # QEMU has taken it.
        LOG.warning('[bootcache]%s=%s: whether %s is for %s, which hosts connect to, is not known:'
                    ' %s', tls.OPTION, directory, path, host, error)
        return
    if reason:
        raise exception.ConfigurationError(reason)
    if not serves:
        LOG.warning('[bootcache]%s=%s: %s is not one of a server (by its extended key usage); this'
                    ' QEMU lets that pass, another may not: put the server\'s there', tls.OPTION,
                    directory, path)


def distinguished_name(directory: str) -> str:
    """Return the name in a client's certificate, as QEMU compares it.

    The parts are written as RFC 4514 has them, but in the order in which the certificate has them.

    :raises ConfigurationError: if it cannot be read, or has parts of which it is not known how QEMU
        writes them.
    """
    path = os.path.join(directory, f'{tls.Endpoint.CLIENT.value}-cert.pem')
    try:
        with open(path, 'rb') as stream:
            subject = x509.load_pem_x509_certificate(stream.read()).subject
    except (OSError, ValueError) as error:
        raise exception.ConfigurationError(
            f'[bootcache]{tls.OPTION}={directory}: {path} cannot be read ({error})') from error
    if unknown := [part.rfc4514_string() for part in subject.rdns
                   if {one.oid for one in part} - _KNOWN_PARTS or len(list(part)) > 1]:
        raise exception.ConfigurationError(
            f'[bootcache]{tls.OPTION}={directory}: the subject of {path} has parts that are not'
            f' usual ({", ".join(unknown)})')
    return ','.join(part.rfc4514_string() for part in subject.rdns)


def is_loopback(host: str) -> bool:
    """Tell whether an address, or all addresses of a name, are of this machine alone."""
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return all(ipaddress.ip_address(address.partition('%')[0]).is_loopback for address in found)
