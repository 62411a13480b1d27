"""A small CA: certificates for the hosts of tests, demonstrations and small sites.

Its directory has the CA's key and certificate, one directory a host with the files that hosts have
in ``[bootcache]tls_directory``, and beside it the numbers of all certificates that the host got. A
site that has a CA needs none of this.
"""

import contextlib
import datetime
import ipaddress
import os
import secrets
from collections.abc import Iterable, Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from bootcache import exception, savefile, tls
from bootcache.exchange import members

_KEY = 'ca-key.pem'
# No host's name has an underscore.
_ISSUED = 'issued_'
_CA_DAYS = 3650
# Clocks of hosts differ.
_EARLIER = datetime.timedelta(hours=1)
_SERVER, _CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
_USES = {tls.Endpoint.SERVER.value: [_SERVER], tls.Endpoint.CLIENT.value: [_CLIENT],
         members.FILES: [_SERVER, _CLIENT]}


class SmallCA:
    """A CA in a directory.

    :param directory: made, with a key of its own, if there is none.
    :param may_make: whether it is; else it has to be there.
    :raises RequestRefused: if what is there is no CA of this kind, or none is to be made.
    :raises OSError: if it cannot be read or written.
    """

    def __init__(self, directory: str, may_make: bool = True):
        self._directory = directory
        has_key = os.path.exists(self._path(_KEY))
        if not os.path.exists(self._path(tls.CA)):
            if has_key and any(name.startswith(_ISSUED) for name in os.listdir(directory)):
                raise exception.RequestRefused(
                    f'{directory} has {_KEY}, and {tls.CA} is not there; put it back, as'
                    ' it is in each host\'s folder')
            if not may_make:
                raise exception.RequestRefused(
                    f'{directory} has no CA; name the folder with which the hosts\' certificates'
                    ' were made')
            os.makedirs(directory, mode=0o700, exist_ok=True)
            self._make()
        elif not has_key:
            raise exception.RequestRefused(
                f'{directory} has {tls.CA}, and not the key {_KEY} to it; put that there,'
                ' or name another folder: no certificate of a CA is written over')
        try:
            with open(self._path(_KEY), 'rb') as stream:
                key = serialization.load_pem_private_key(stream.read(), None)
            self._certificate = tls.read(self._path(tls.CA))
        except (ValueError, TypeError) as error:
            raise exception.RequestRefused(
                f'{directory} has no CA that can be used ({error}); name another directory'
            ) from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise exception.RequestRefused(f'{directory} has a CA that was not made by this'
                                           ' command; name another directory')
        self._key = key

    def _path(self, *names: str) -> str:
        return os.path.join(self._directory, *names)

    def _make(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        # Of two CAs of one name a client could not say which of them it lacks.
        name = _named(f'bootcache CA {secrets.token_hex(4)}')
        certificate = _builder(name, name, key.public_key(), _CA_DAYS, signs_others=True).sign(
            key, hashes.SHA256())
        savefile.write_text(self._path(_KEY), _key_pem(key), mode=0o600)
        # Last: with it the CA is there. A key alone that has signed nothing is made anew.
        savefile.write_text(self._path(tls.CA), _pem(certificate))

    def issue(self, name: str, others: Sequence[str] = (), days: int = 365) -> str:
        """Give a host certificates, as a server, as a client and to exchange; earlier ones go.

        :param name: of the host, and of its directory; the common name of all.
        :param others: addresses, and further names.
        :param days: for which they are valid; of less than 0, since which they are not any more.
        :returns: the directory with them.
        :raises OSError: if it cannot be written.
        """
        directory = self._path(name)
        os.makedirs(directory, mode=0o700, exist_ok=True)
        alternatives = x509.SubjectAlternativeName([_alternative(one) for one in (name, *others)])
        # Of no host: with it nobody is taken for an exporter.
        member = x509.SubjectAlternativeName([x509.DNSName(members.NAME)])
        savefile.write_text(os.path.join(directory, tls.CA), _pem(self._certificate))
        for files, uses in _USES.items():
            key = ec.generate_private_key(ec.SECP256R1())
            certificate = _builder(
                _named(name), self._certificate.subject, key.public_key(), days).add_extension(
                x509.ExtendedKeyUsage(uses), False).add_extension(
                member if files == members.FILES else alternatives, False).sign(
                self._key, hashes.SHA256())
            # One that is not noted could not be revoked once it is replaced.
            savefile.write_text(self._path(_ISSUED + name), ''.join(
                f'{serial:x}\n' for serial in (*self._issued(name), certificate.serial_number)))
            savefile.write_text(os.path.join(directory, f'{files}-key.pem'), _key_pem(key),
                                mode=0o600)
            savefile.write_text(os.path.join(directory, f'{files}-cert.pem'), _pem(certificate))
        return directory

    def earlier(self, name: str) -> list[str] | None:
        """Return the addresses and further names that a host's certificate is for.

        :returns: None if it got one that is not in its directory any more.
        :raises RequestRefused: if it cannot be read.
        """
        path = self._path(name, f'{tls.Endpoint.SERVER.value}-cert.pem')
        try:
            return [one for one in tls.hosts_named(tls.read(path)) if one != name]
        except FileNotFoundError:
            return None if os.path.exists(self._path(_ISSUED + name)) else []
        except ValueError as error:
            raise exception.RequestRefused(
                f'{path} is no certificate ({error}), and for what it was is not known; move'
                f' {self._path(name)} away, and name all addresses of the host') from error

    def _issued(self, name: str) -> dict[int, None]:
        """Return the numbers of all certificates that a host got, in their order."""
        serials: dict[int, None] = {}
        with contextlib.suppress(FileNotFoundError), open(self._path(_ISSUED + name)) as stream:
            serials.update((int(line, 16), None) for line in stream)
        # Where that file was lost these have to be revoked as well.
        for files in _USES:
            with contextlib.suppress(FileNotFoundError):
                serials[tls.read(self._path(name, f'{files}-cert.pem')).serial_number] = None
        return serials

    def revoke(self, names: Iterable[str]) -> str:
        """Revoke all certificates that hosts got, beside what was revoked before.

        :returns: the path of the list, which is to be in the servers' directories.
        :raises RequestRefused: if a host has none.
        :raises OSError: if the list cannot be read or written.
        """
        path = self._path(tls.REVOKED)
        serials: dict[int, None] = {}
        if os.path.exists(path):
            with open(path, 'rb') as stream:
                serials.update((entry.serial_number, None)
                               for entry in x509.load_pem_x509_crl(stream.read()))
        for name in names:
            issued = self._issued(name)
            if not issued:
                raise exception.RequestRefused(f'{name} has no certificate in {self._directory}')
            serials.update(issued)
        now = datetime.datetime.now(datetime.UTC)
        revoked = x509.CertificateRevocationListBuilder().issuer_name(
            self._certificate.subject).last_update(now - _EARLIER).next_update(
            # One that is older lets nobody in.
            now + datetime.timedelta(days=_CA_DAYS))
        for serial in serials:
            revoked = revoked.add_revoked_certificate(
                x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(
                    now - _EARLIER).build())
        savefile.write_text(path, revoked.sign(self._key, hashes.SHA256()).public_bytes(
            serialization.Encoding.PEM).decode())
        return path


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _builder(name: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int,
             signs_others: bool = False) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    end = now + datetime.timedelta(days=days)
    # Some QEMUs (10.0.2) refuse a certificate without key encipherment, whatever its key can do.
    usage = x509.KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=not signs_others,
        data_encipherment=False, key_agreement=False, key_cert_sign=signs_others,
        crl_sign=signs_others, encipher_only=False, decipher_only=False)
    return x509.CertificateBuilder().subject_name(name).issuer_name(issuer).public_key(
        key).serial_number(x509.random_serial_number()).not_valid_before(
        min(now, end) - _EARLIER).not_valid_after(end).add_extension(
        x509.BasicConstraints(signs_others, None), True).add_extension(usage, True)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                             serialization.NoEncryption()).decode()
