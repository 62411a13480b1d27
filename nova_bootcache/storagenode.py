"""A base on a storage node, and how this host connects to it."""

import dataclasses
from typing import Any

from oslo_log import log as logging

from bootcache import certificates, exception, qemuimg, tls
from bootcache.ceph.places import RbdOrigin

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Remote:
    """A base on a storage node.

    :ivar image_id: the image.
    :ivar host: of the exporter.
    :ivar port: of the exporter.
    :ivar export: the exporter's name for the base.
    :ivar image_hash: of its content, ``algorithm:hexadecimal`` of the image file as Glance has it;
        empty if it is not known.
    :ivar tls: whether the exporter speaks TLS, and with nobody without a certificate.
    :ivar rbd: where it is in Ceph as well; None if it is not, or the storage service does not tell.
    """

    image_id: str
    host: str
    port: int
    export: str
    image_hash: str = ''
    tls: bool = False
    rbd: RbdOrigin | None = None

    @classmethod
    def from_answer(cls, image_id: str, answer: dict[str, Any]) -> 'Remote':
        """Read it out of ``plan_boot``'s answer."""
        host, port = answer['server']
        return cls(image_id, str(host), int(port), str(answer['base_export']),
                   str(answer.get('image_hash', '')), bool(answer.get('tls', False)),
                   RbdOrigin.read(answer.get('rbd')))


@dataclasses.dataclass(frozen=True)
class Encryption:
    """Whether this host speaks TLS with exporters: it is the exporter that does, or does not.

    :ivar directory: of this host's certificate and of the CA's; None if it has none.
    :ivar allow_plain: whether a host that has one speaks with exporters without TLS as well.
    """

    directory: str | None = None
    allow_plain: bool = False

    def __str__(self) -> str:
        if self.directory is None:
            return f'without TLS only, as [bootcache]{tls.OPTION} is not set'
        return f'by TLS{", or without it," if self.allow_plain else ""} with the certificates in' \
            f' {self.directory}'

    def refusal(self, speaks_tls: bool) -> str:
        """Return why this host does not speak with an exporter, and the cure; empty if it does.

        :param speaks_tls: whether the exporter speaks TLS.
        """
        if speaks_tls and self.directory is None:
            return 'the storage node speaks TLS only, and this host has no certificate: set' \
                f' [bootcache]{tls.OPTION} in nova.conf'
        if not speaks_tls and self.directory is not None and not self.allow_plain:
            return 'the storage node does not speak TLS, and this host has a certificate' \
                f' ([bootcache]{tls.OPTION}): set the option in the storage service\'s' \
                ' configuration as well, or allow_plain_nbd in nova.conf until it is'
        return ''

    def name(self) -> str:
        """Return the name in this host's certificate; empty if it has none, or it is not known.

        It may be another one after a renewal.
        """
        if self.directory is None:
            return ''
        try:
            return certificates.distinguished_name(self.directory)
        except exception.ConfigurationError as error:
            LOG.debug('the storage service is not told the name in this host\'s certificate: %s',
                      error)
            return ''

    def credentials(self, speaks_tls: bool) -> str:
        """Return the id of the credentials to connect to an exporter with; empty for no TLS.

        :param speaks_tls: whether the exporter speaks TLS.
        :raises ConfigurationError: if this host does not speak with it; the message has the cure.
        """
        if reason := self.refusal(speaks_tls):
            raise exception.ConfigurationError(reason)
        if not speaks_tls or self.directory is None:
            return ''
        return tls.credentials_id(self.directory, tls.Endpoint.CLIENT)


# Where no certificates are configured.
PLAIN = Encryption()


def nbd_node(host: str, port: int, export: str, credentials: str = '') -> dict[str, Any]:
    """Return the block node of a file that an exporter serves.

    Here stands how hosts reach a storage node. A node that is frozen, not dead, is found out by the
    kernel. It does not reconnect: QEMU 7.2's exporter cuts a client off at a read error, and a
    client that reconnects would ask again without end. Whoever copies tries again later.

    :param port: TCP port.
    :param export: the exporter's name for the file.
    :param credentials: see :class:`Encryption`.
    """
    return {'driver': 'nbd', 'export': export, **qemuimg.open_timeout(),
            'server': {'type': 'inet', 'host': host, 'port': str(port), 'keep-alive': True},
            **({'tls-creds': credentials} if credentials else {})}


class TakenCertificates:
    """Has QEMU look at them.

    :param directory: ``[bootcache]tls_directory``; None if there is none.
    """

    def __init__(self, directory: str | None):
        self._directory = directory
        # The id of the files that QEMU has taken.
        self._taken = ''

    def look(self) -> None:
        """Look at the files that are there now, unless they are those that QEMU has taken.

        :raises CertificateExpired: if one is not valid any more, or not yet.
        :raises ConfigurationError: naming the option, the file and the cure.
        :raises Interrupted: if QEMU has not said so in time, as on a busy machine.
        """
        if self._directory is None:
            return
        # What was taken before may be no more what is there.
        taken, self._taken = self._taken, ''
        certificates.check_path(self._directory)
        found = tls.credentials_id(self._directory, tls.Endpoint.CLIENT)
        if found != taken:
            certificates.check(self._directory, tls.Endpoint.CLIENT)
        self._taken = found

    @property
    def are_right(self) -> bool:
        """Whether there are none, or QEMU has taken those that were looked at last."""
        return self._directory is None or bool(self._taken)
