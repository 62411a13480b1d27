"""TLS by certificates, as QEMU has it: who opens a node, and who serves one, names its files.

The files are those that QEMU and libvirt know, in one directory. QEMU reads them when its object
is made, and not again: an object's id is made of their content, so that renewed files are another
object. The id also tells the directory, so that whoever opens a node by it (qemu-img on its command
line, a storage daemon over QMP) can make the object first.

A client compares the certificate with what it was told to connect to, not with what that resolves
to: an address with the addresses in the certificate, a name with its names.
"""

import ctypes
import dataclasses
import enum
import hashlib
import json
import os
import pwd
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from bootcache import exception


def hosts_named(certificate: x509.Certificate) -> list[str]:
    """Return the addresses and names that a certificate is for.

    :raises ValueError: if they cannot be read.
    """
    try:
        alternative = certificate.extensions.get_extension_for_class(
            x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        found = []
    else:
        found = [*alternative.get_values_for_type(x509.DNSName),
                 *map(str, alternative.get_values_for_type(x509.IPAddress))]
    return found or [str(one.value) for one in certificate.subject.get_attributes_for_oid(
        NameOID.COMMON_NAME)]


def is_server(certificate: x509.Certificate) -> bool:
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


_X509_FMT_PEM = 1


class _Datum(ctypes.Structure):
    _fields_ = [('data', ctypes.c_char_p), ('size', ctypes.c_uint)]


def is_for(certificate: x509.Certificate, host: str) -> bool:
    """Tell whether a client that connects to a host takes a certificate for that host's.

    GnuTLS itself says so, by which QEMU's clients compare.

    :param host: address or name, as clients have it.
    :raises OSError: if GnuTLS is not there.
    :raises ValueError: if it does not take the certificate for one.
    """
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    library, handle = ctypes.CDLL('libgnutls.so.30'), ctypes.c_void_p()
    if library.gnutls_x509_crt_init(ctypes.byref(handle)):
        raise OSError('GnuTLS has no memory')
    try:
        if library.gnutls_x509_crt_import(handle, ctypes.byref(_Datum(pem, len(pem))),
                                          _X509_FMT_PEM):
            raise ValueError('GnuTLS cannot read the certificate')
        return bool(library.gnutls_x509_crt_check_hostname(handle, host.encode()))
    finally:
        library.gnutls_x509_crt_deinit(handle)


OPTION = 'tls_directory'
_PREFIX = 'tls-'
CA, REVOKED = 'ca-cert.pem', 'ca-crl.pem'
_DIGITS = 16
_ADMITTED = 'admitted'


class Endpoint(enum.Enum):
    """Which end of a connection; its value is what QEMU and the files' names call it."""

    SERVER = 'server'
    CLIENT = 'client'


def certificate_path(directory: str, endpoint: Endpoint) -> str:
    """Return the path of the certificate in a directory."""
    return os.path.join(directory, f'{endpoint.value}-cert.pem')


def read(path: str) -> x509.Certificate:
    """Return the first certificate in a file.

    :raises OSError: if it cannot be read.
    :raises ValueError: if it has none.
    """
    with open(path, 'rb') as stream:
        return x509.load_pem_x509_certificate(stream.read())


def credentials_id(directory: str, endpoint: Endpoint) -> str:
    """Return the id of the object that has a directory's files as they are now.

    :raises ConfigurationError: if one of them cannot be read.
    """
    digest = hashlib.sha256()
    for name in (CA, f'{endpoint.value}-cert.pem', f'{endpoint.value}-key.pem', REVOKED):
        path = os.path.join(directory, name)
        try:
            with open(path, 'rb') as stream:
                digest.update(hashlib.sha256(stream.read()).digest())
        except OSError as error:
            if name == REVOKED and isinstance(error, FileNotFoundError):
                continue
            raise exception.ConfigurationError(
                f'[bootcache]{OPTION}={directory}: {path} cannot be read ({error.strerror});'
                f' {_cure(directory, name, endpoint, error)}') from None
    return f'{_PREFIX}{digest.hexdigest()[:_DIGITS]}-{os.fsencode(directory).hex()}'


def mismatch(directory: str, host: str) -> str:
    """Return why clients that connect to a host do not take a server's certificate, with the cure.

    :param host: address or name.
    :returns: empty if they take it.
    :raises OSError: if it cannot be read.
    :raises ValueError: if it cannot be compared.
    """
    path = certificate_path(directory, Endpoint.SERVER)
    certificate = read(path)
    if is_for(certificate, host):
        return ''
    known = hosts_named(certificate)
    if host in known:
        kind = 'IP' if re.fullmatch('[0-9.]+|.*:.*', host) else 'DNS'
        return (f'[bootcache]{OPTION}={directory}: {path} names {host}, but not where those look'
                f' who connect to it; make one with subjectAltName={kind}:{host}'
                ' ("openssl x509 -noout -ext subjectAltName -in FILE" shows what it has)')
    names = ', '.join(known) or 'no address and no name'
    return (f'[bootcache]{OPTION}={directory}: {path} is for {names}, not for {host}, which hosts'
            ' connect to; make one for it, or name the certificate\'s in'
            ' [bootcache]advertise_host')


def _cure(directory: str, name: str, endpoint: Endpoint, error: OSError) -> str:
    if isinstance(error, PermissionError):
        return f'let user {user()} read it, and enter its folder'
    if name == REVOKED:
        return 'it is to be the CA\'s list of revoked certificates, or not to be there'
    if not os.path.isdir(directory):
        return f'make that folder, and put {CA}, {endpoint.value}-cert.pem and' \
            f' {endpoint.value}-key.pem there, for user {user()} to read'
    what = 'the CA\'s certificate' if name == CA else f'the {endpoint.value}\'s certificate and key'
    return f'put {what} there, as {name}, for user {user()} to read'


def user() -> str:
    """Return the name of the user as whom this process runs, or the number of one without."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def is_credentials(object_id: str) -> bool:
    """Tell whether an object is one of certificates."""
    return re.fullmatch(f'{_PREFIX}[0-9a-f]{{{_DIGITS}}}-([0-9a-f][0-9a-f])*',
                        object_id) is not None


def credentials(object_id: str, endpoint: Endpoint) -> dict[str, Any]:
    """Return the object of an id, as QMP and command lines have it; the other end is verified."""
    directory = os.fsdecode(bytes.fromhex(object_id.rpartition('-')[2]))
    return {'qom-type': 'tls-creds-x509', 'id': object_id, 'dir': directory,
            'endpoint': endpoint.value, 'verify-peer': True}


def admitted(names: Iterable[str]) -> dict[str, Any]:
    """Return the object that tells which clients are let in, of those whose certificate is valid.

    :param names: distinguished names, in which ``*`` and ``?`` stand for others; none for all.
    """
    rules = [{'match': name, 'policy': 'allow', 'format': 'glob'} for name in names]
    return {'qom-type': 'authz-list', 'id': _ADMITTED, 'policy': 'deny' if rules else 'allow',
            'rules': rules}


@dataclasses.dataclass(frozen=True)
class Admission:
    """Who is let in by a daemon that serves NBD.

    :ivar directory: of the server's certificate and the CA's, by which clients are verified.
    :ivar names: as :func:`admitted` has them.
    :ivar host: address or name that clients connect to, for which the certificate has to be; empty
        if that is not known.
    """

    directory: str
    names: tuple[str, ...] = ()
    host: str = ''

    def arguments(self) -> tuple[list[str], str]:
        """Return a daemon's arguments that make the objects, and what names them to its server.

        :raises ConfigurationError: if a file cannot be read, or clients would not take the
            certificate.
        """
        try:
            reason = mismatch(self.directory, self.host) if self.host else ''
        except (OSError, ValueError):
            reason = ''  # It is told of where the files are checked, or as they are read.
        if reason:
            raise exception.ConfigurationError(reason)
        objects = (credentials(credentials_id(self.directory, Endpoint.SERVER), Endpoint.SERVER),
                   admitted(self.names))
        return [word for wanted in objects for word in ('--object', json.dumps(wanted))], \
            f',tls-creds={objects[0]["id"]},tls-authz={objects[1]["id"]}'


def objects_of(node: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the objects that a block node needs, and the nodes within it."""
    if object_id := node.get('tls-creds'):
        yield credentials(str(object_id), Endpoint.CLIENT)
    for inner in node.values():
        if isinstance(inner, Mapping):
            yield from objects_of(inner)
