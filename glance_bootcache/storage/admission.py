"""Whom the exporter lets in, and where: a daemon that runs is kept unless it does otherwise."""

import re
from collections.abc import Sequence

from oslo_config import cfg
from oslo_log import log as logging

from bootcache import certificates, exception, tls
from bootcache import conf as bootcache_conf
from bootcache.storagedaemon import StorageDaemon
from glance_bootcache.storage.clients import Client

LOG = logging.getLogger(__name__)

_ANOTHERS = 'as it was that of another client'


def configured(conf: cfg.ConfigOpts, only: Client | None = None) -> tls.Admission | None:
    """Return who is to be let in; None for anybody, without TLS.

    :param only: the one client of an exporter that others have nothing to do with.
    """
    group = conf[bootcache_conf.GROUP]
    if not group.tls_directory:
        return None
    return tls.Admission(group.tls_directory,
                         (only.certificate,) if only else tuple(group.tls_client_names),
                         group.advertise_host or group.export_host)


def is_named(certificate: str, names: Sequence[str]) -> bool:
    """Tell whether the name in a certificate is one of those that are let in. Pure.

    :param names: as the option tls_client_names has them; none for all.
    """
    patterns = (''.join({'*': '.*', '?': '.'}.get(one, re.escape(one)) for one in name)
                for name in names)
    return not names or any(re.fullmatch(pattern, certificate) for pattern in patterns)


class KeptAdmission:
    """Sees to it that the exporter lets in whom it is to, also when certificates are renewed.

    QEMU reads certificates once. So another daemon takes the place of one that has earlier ones, or
    none, or listens elsewhere: gateways connect again, and what their servers read meanwhile waits.
    Names of clients can be changed while it runs; but one that was another client's has what that
    one asked for.

    :param daemon: the exporter's.
    :param admission: who is to be let in.
    :param only: whether that is one client alone.
    """

    def __init__(self, daemon: StorageDaemon, admission: tls.Admission | None, only: bool = False):
        self._daemon = daemon
        self._admission = admission
        self._only = only
        self._named_for: int | None = None
        self._told = ''

    def keep(self) -> bool:
        """End a daemon that lets in others than it is to, or elsewhere; by who has it alone.

        One goes on as it is while the files that it would be started with cannot be used.

        :returns: whether it was ended, and another one is to serve the same clients.
        :raises StorageDaemonError: if it does not answer.
        """
        if not self._daemon.answers():
            return False
        try:
            wanted = set() if self._admission is None else {
                tls.credentials_id(self._admission.directory, tls.Endpoint.SERVER)}
            if not self._daemon.has_listener():
                how = f'at {self._daemon.listener}'
            elif self._daemon.credentials() == wanted:
                self._told = ''
                if self._name_clients():
                    return False
                how = _ANOTHERS
            elif self._admission is None:
                how = 'without TLS'
            else:
                how = f'with the certificates that are in {self._admission.directory} now'
            if self._admission is not None:
                certificates.check(self._admission.directory, tls.Endpoint.SERVER,
                                   self._admission.host)
        except (exception.ConfigurationError, exception.Interrupted) as error:
            if str(error) != self._told:
                LOG.error('the exporter goes on with the certificates that it was started with:'
                          ' %s', error)
                self._told = str(error)
            return False
        LOG.warning('%s is started anew, %s; what servers read of their bases meanwhile waits',
                    self._daemon.name, how)
        self._daemon.stop()
        return how != _ANOTHERS

    def _name_clients(self) -> bool:
        """Have the names of who is let in be those of now; return whether they may be changed."""
        pid = self._daemon.pid()
        if self._admission is None or pid == self._named_for:
            return True
        wanted = tls.admitted(self._admission.names)
        path = f'/objects/{wanted["id"]}'
        with self._daemon.session() as session:
            if self._only and wanted['rules'] != session.execute(
                    'qom-get', path=path, property='rules'):
                return False
            # In this order nobody is let in meanwhile whom neither of both lets in.
            first, second = ('policy', 'rules') if wanted['policy'] == 'deny' \
                else ('rules', 'policy')
            for name in (first, second):
                session.execute('qom-set', path=path, property=name, value=wanted[name])
        self._named_for = pid
        return True
