"""Whom the exporter lets in, and where: a daemon that runs is kept unless it does otherwise."""

import fnmatch
from collections.abc import Sequence

from oslo_config import cfg
from oslo_log import log as logging

from bootcache import certificates, exception, tls
from bootcache import conf as bootcache_conf
from bootcache.storagedaemon import StorageDaemon
from bootcache.util.logthrottle import LogThrottle
from glance_bootcache.storage.clients import Client

LOG = logging.getLogger(__name__)


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
    # No other characters stand for others.
    return not names or any(fnmatch.fnmatchcase(certificate, name.replace('[', '[[]'))
                            for name in names)


def end_other(daemon: StorageDaemon, admission: tls.Admission | None, only: bool,
              throttle: LogThrottle) -> bool:
    """End an exporter that lets in others than it is to, or listens elsewhere.

    QEMU reads certificates once. So another daemon takes the place of one that has earlier ones, or
    none, or listens elsewhere: gateways connect again, and what their servers read meanwhile waits.
    Names of clients can be changed while it runs; but one that was another client's has what that
    one asked for. One goes on as it is while the files that it would be started with cannot be
    used.

    :param daemon: the exporter's; by who has it alone.
    :param admission: who is to be let in.
    :param only: whether that is one client alone.
    :returns: whether it was ended, and another one is to serve the same clients.
    :raises StorageDaemonError: if it does not answer.
    """
    if not daemon.answers():
        return False
    serves_again = True
    try:
        wanted = set() if admission is None else {
            tls.credentials_id(admission.directory, tls.Endpoint.SERVER)}
        if not daemon.has_listener():
            how = f'at {daemon.listener}'
        elif daemon.credentials() != wanted:
            how = 'without TLS' if admission is None \
                else f'with the certificates that are in {admission.directory} now'
        elif admission is None or _name_clients(daemon, admission, only):
            throttle.forget(daemon.name)
            return False
        else:
            how, serves_again = 'as it was that of another client', False
        if admission is not None:
            certificates.check(admission.directory, tls.Endpoint.SERVER, admission.host)
    except (exception.ConfigurationError, exception.Interrupted) as error:
        if throttle.is_new(daemon.name, str(error)):
            LOG.error('the exporter goes on with the certificates that it was started with: %s',
                      error)
        return False
    LOG.warning('%s is started anew, %s; what servers read of their bases meanwhile waits',
                daemon.name, how)
    daemon.stop()
    return serves_again


def _name_clients(daemon: StorageDaemon, admission: tls.Admission, only: bool) -> bool:
    """Have the names of who is let in be those of now; return whether they may be changed."""
    wanted = tls.admitted(admission.names)
    path = f'/objects/{wanted["id"]}'
    # In this order nobody is let in meanwhile whom neither of both lets in.
    names = ('policy', 'rules') if wanted['policy'] == 'deny' else ('rules', 'policy')
    with daemon.session() as session:
        changed = [name for name in names if wanted[name] != session.execute(
            'qom-get', path=path, property=name)]
        if changed and only:
            return False
        for name in changed:
            session.execute('qom-set', path=path, property=name, value=wanted[name])
    return True
