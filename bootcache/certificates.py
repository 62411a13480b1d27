"""Whether certificates can be used, and where none are needed: what is checked at start."""

import datetime
import ipaddress
import os
import re
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from cryptography import x509
from cryptography.x509.oid import NameOID
from oslo_log import log as logging

from bootcache import exception, qemuimg, tls
from bootcache.exchange import members
from bootcache.util.logthrottle import LogThrottle

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
    path = tls.certificate_path(directory, tls.Endpoint.SERVER)
    try:
        reason = tls.mismatch(directory, host)
        serves = tls.is_server(tls.read(path))
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
    path = tls.certificate_path(directory, tls.Endpoint.CLIENT)
    try:
        subject = tls.read(path).subject
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


WARN_SECONDS = 30 * 86400
AGAIN_SECONDS = 86400
_PEM = rb'-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----'


class Expiry:
    """Tells of certificates in a directory that end soon, or have.

    What cannot be read is nothing to it: who uses the files tells of that.

    :param directory: ``[bootcache]tls_directory``; None if there is none.
    :param files: names of those that are in use.
    :param clock: seconds since the epoch.
    """

    def __init__(self, directory: str | None, files: Sequence[str],
                 clock: Callable[[], float] = time.time):
        self._directory = directory
        self._files = files
        self._clock = clock
        self._throttle = LogThrottle(LOG, AGAIN_SECONDS, clock)

    def look(self) -> None:
        """Look at all of them."""
        now = self._clock()
        for name, end in self.ends().items():
            if end - now <= WARN_SECONDS \
                    and self._throttle.is_new(name, 'expired' if end <= now else 'ends'):
                self._tell(name, end, now)

    def ends(self) -> dict[str, float]:
        """Return when those that can be read end, or have ended, by file name.

        :returns: seconds since the epoch.
        """
        if self._directory is None:
            return {}
        return {name: end for name in self._files
                if (end := _end(os.path.join(self._directory, name))) is not None}

    def earliest(self) -> float | None:
        """Return when the first of them ends, or has ended, in seconds since the epoch.

        :returns: None if there is none that can be read.
        """
        return min(self.ends().values(), default=None)

    def _tell(self, name: str, end: float, now: float) -> None:
        path = os.path.join(self._directory or '', name)
        when = datetime.datetime.fromtimestamp(end, datetime.UTC).strftime('%Y-%m-%d %H:%M UTC')
        if end <= now:
            LOG.error('[bootcache]%s=%s: %s has expired, on %s: connections that are there go on,'
                      ' and none is made by it any more; renew it, in the same place',
                      tls.OPTION, self._directory, path, when)
            return
        hours = int(end - now) // 3600
        LOG.warning('[bootcache]%s=%s: %s ends on %s, in %s: no connection is made by it from then'
                    ' on; renew it before, in the same place, and restart nothing', tls.OPTION,
                    self._directory, path, when,
                    f'{hours // 24} days' if hours >= 48 else f'{hours} hours')


def configured(group: Any, endpoint: tls.Endpoint) -> Expiry:
    """Return what tells of the certificates that a service's options name.

    :param group: the options.
    :param endpoint: which end of NBD connections the service is.
    """
    return Expiry(group.tls_directory or None, [
        tls.CA, f'{endpoint.value}-cert.pem',
        *[members.CERTIFICATE] * bool(group.exchange_address)])


def _end(path: str) -> float | None:
    """Return when a file's certificates are of no more use, in seconds since the epoch.

    The first of a chain to end ends it. Of several CAs, as during a change, one is enough.
    """
    try:
        with open(path, 'rb') as stream:
            ends = [_until(x509.load_pem_x509_certificate(pem))
                    for pem in re.findall(_PEM, stream.read(), re.DOTALL)]
    except (OSError, ValueError):
        return None
    if not ends:
        return None
    return max(ends) if os.path.basename(path) == tls.CA else min(ends)


def _until(certificate: x509.Certificate) -> float:
    # Before 42.0 cryptography had it without a time zone only.
    end: datetime.datetime = certificate.not_valid_after_utc \
        if hasattr(certificate, 'not_valid_after_utc') \
        else getattr(certificate, 'not_valid_after').replace(tzinfo=datetime.UTC)  # noqa: B009
    return end.timestamp()
