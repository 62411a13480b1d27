"""This host's certificate, by which other hosts know that it may exchange files."""

import dataclasses
import os

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from bootcache import exception, tls

# How its files begin.
FILES = 'exchange'
CERTIFICATE, KEY = f'{FILES}-cert.pem', f'{FILES}-key.pem'
# That a member's certificate has as a DNS name, and no other's. A torrent's name as well, with
# which libtorrent compares it.
NAME = 'bootcache-exchange'


@dataclasses.dataclass(frozen=True)
class Members:
    """The files of this host; they are read anew for each file that is exchanged.

    :ivar directory: ``[bootcache]tls_directory``.
    """

    directory: str

    def ca(self) -> str:
        """Return the CA's certificate, in PEM.

        :raises ConfigurationError: if it cannot be read.
        """
        return self._read(tls.CA).decode()

    def check(self) -> None:
        """Check that this host's certificate can be used.

        :raises ConfigurationError: naming the file and the cure.
        """
        path = os.path.join(self.directory, CERTIFICATE)
        try:
            certificate = x509.load_pem_x509_certificate(self._read(CERTIFICATE))
            key = serialization.load_pem_private_key(self._read(KEY), None)
            issuer = x509.load_pem_x509_certificate(self._read(tls.CA))
            names = certificate.extensions.get_extension_for_class(
                x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)
        except (ValueError, TypeError, x509.ExtensionNotFound) as error:
            raise exception.ConfigurationError(
                f'[bootcache]{tls.OPTION}: {path}, its key and {tls.CA} cannot be used ({error});'
                ' make them by "bootcache ca"') from error
        if certificate.issuer != issuer.subject:
            raise exception.ConfigurationError(
                f'[bootcache]{tls.OPTION}: {path} is not of the CA in {tls.CA}')
        if certificate.public_key() != key.public_key():
            raise exception.ConfigurationError(
                f'[bootcache]{tls.OPTION}: {path} and {KEY} do not fit each other')
        if NAME not in names:
            raise exception.ConfigurationError(
                f'[bootcache]{tls.OPTION}: {path} does not have the DNS name {NAME}, by'
                ' which members are known; make one that has')

    def introduction(self) -> tuple[str, str, str]:
        """Return what libtorrent needs so that a file's peers know this host: certificate and key,
        in PEM, and parameters of Diffie and Hellman's, of which TLS 1.3 needs none.

        :raises ConfigurationError: if a file cannot be read.
        """
        return self._read(CERTIFICATE).decode(), self._read(KEY).decode(), ''

    def _read(self, name: str) -> bytes:
        path = os.path.join(self.directory, name)
        try:
            with open(path, 'rb') as stream:
                return stream.read()
        except OSError as error:
            raise exception.ConfigurationError(
                f'[bootcache]{tls.OPTION}={self.directory}: {path} cannot be read'
                f' ({error.strerror}); put this host\'s there, as "bootcache ca" makes'
                ' them') from None
