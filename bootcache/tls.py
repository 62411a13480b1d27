"""TLS by certificates, as QEMU has it: who opens a node, and who serves one, names its files.

The files are those that QEMU and libvirt know, in one directory. QEMU reads them when its object
is made, and not again: an object's id is made of their content, so that renewed files are another
object. The id also tells the directory, so that whoever opens a node by it (qemu-img on its command
line, a storage daemon over QMP) can make the object first.
"""

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

from bootcache import certifiedhosts, exception

OPTION = 'tls_directory'
_PREFIX = 'tls-'
CA, REVOKED = 'ca-cert.pem', 'ca-crl.pem'
_DIGITS = 16
_ADMITTED = 'admitted'


class Endpoint(enum.Enum):
    """Which end of a connection; its value is what QEMU and the files' names call it."""

    SERVER = 'server'
    CLIENT = 'client'


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
    path = os.path.join(directory, f'{Endpoint.SERVER.value}-cert.pem')
    with open(path, 'rb') as stream:
        certificate = x509.load_pem_x509_certificate(stream.read())
    if certifiedhosts.is_for(certificate, host):
        return ''
    known = certifiedhosts.names(certificate)
    if host in known:
        return (f'[bootcache]{OPTION}={directory}: {path} names {host}, but not where those look'
                f' who connect to it; make one with subjectAltName={certifiedhosts.entry(host)}'
                ' ("openssl x509 -noout -ext subjectAltName -in FILE" shows what it has)')
    names = ', '.join(known) or 'no address and no name'
    return (f'[bootcache]{OPTION}={directory}: {path} is for {names}, not for {host}, which hosts'
            ' connect to; make one for it, or name the certificate\'s in'
            ' [bootcache]advertise_host')


def _cure(directory: str, name: str, endpoint: Endpoint, error: OSError) -> str:
    if isinstance(error, PermissionError):
        return f'let user {_user()} read it, and enter its folder'
    if name == REVOKED:
        return 'it is to be the CA\'s list of revoked certificates, or not to be there'
    if not os.path.isdir(directory):
        return f'make that folder, and put {CA}, {endpoint.value}-cert.pem and' \
            f' {endpoint.value}-key.pem there, for user {_user()} to read'
    what = 'the CA\'s certificate' if name == CA \
        else f'the {endpoint.value}\'s certificate and key'
    return f'put {what} there, as {name}, for user {_user()} to read'


def _user() -> str:
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
