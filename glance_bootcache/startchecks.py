"""What has to be right before the storage service works: each error is one line, with the cure.

What cannot become right by itself ends the service: an address that this machine does not have, a
password that Keystone refuses. What may come later, as a Keystone that does not answer yet, is
told, and waited for while the service serves.

Servers that run read their bases meanwhile: before the exporter only that is checked which it needs
itself, and all else when the bases are served.
"""

import http
import importlib.util
import os
import re
import tempfile
from typing import Any

from keystoneauth1 import exceptions as ks_exceptions
from novaclient import client as nova_client
from novaclient import exceptions as nova_exceptions
from oslo_config import cfg
from oslo_log import log as logging

from bootcache import certificates, listening, qemuimg, scratch, tier, tls
from bootcache import conf as bootcache_conf
from bootcache.cachelayout import Compression
from bootcache.ceph import rights
from bootcache.ceph.rights import RbdAccess
from bootcache.exception import (
    BootcacheError,
    ConfigurationError,
    Interrupted,
    ServiceAway,
)
from glance_bootcache import away
from glance_bootcache import conf as glance_conf
from glance_bootcache.conf import AUTH_GROUP
from glance_bootcache.glance import images
from glance_bootcache.profileboot import throughnova
from glance_bootcache.storage import clients

LOG = logging.getLogger(__name__)

_ANSWER_SECONDS = 30
# Where everybody may listen, unless the kernel is told otherwise.
_UNPRIVILEGED = 1024
_ANY_ADDRESS = ('0.0.0.0', '::')
# The begin of a distinguished name without "=": what stands for any characters stands for it too.
_ANY_PART = re.compile(r'[A-Z0-9.]*[*?]')
_AWAY = (ks_exceptions.ConnectFailure, ks_exceptions.ConnectTimeout,
         ks_exceptions.UnknownConnectionError, ks_exceptions.HttpServerError,
         ks_exceptions.DiscoveryFailure, ks_exceptions.RequestTimeout)


def check_place(conf: cfg.ConfigOpts) -> None:
    """Check what the exporter needs of this machine: a directory, an address, certificates.

    :raises ConfigurationError: naming the option and the cure.
    """
    scratch.check_parent()
    group = conf[bootcache_conf.GROUP]
    glance_conf.check_run_dir(conf)
    tier.check_directory('run_dir', group.run_dir, make=True)
    _check_address(group)
    _check_admission(group)
    _check_ports(group)


def check_stores(conf: cfg.ConfigOpts) -> None:
    """Check the directories of Glance's file store, from which bases are linked.

    :raises ConfigurationError: naming the option and the cure.
    """
    for path in filter(None, conf[bootcache_conf.GROUP].glance_store_dirs):
        if not os.path.isdir(path) or not os.access(path, os.R_OK | os.X_OK):
            raise ConfigurationError(
                f'[bootcache]glance_store_dirs: {path} is not a directory that this service\'s user'
                ' may read; name the filesystem_store_datadir of glance-api.conf, give the user'
                ' the right to it, or leave the option out: images are downloaded then')


def check_ceph(conf: cfg.ConfigOpts) -> None:
    """Check that bases can be read in Ceph, and by a user who can delete nothing of Glance's.

    A Ceph that does not answer is told of in the log: bases are downloaded meanwhile.

    :raises ConfigurationError: naming the option and the cure.
    """
    group = conf[bootcache_conf.GROUP]
    if not group.rbd_store_pool:
        if group.rbd_snapshot_pool:
            LOG.warning('[bootcache]rbd_snapshot_pool=%s without rbd_store_pool: no base is read in'
                        ' Ceph that is not yet, and snapshots of servers on others go stock Nova\'s'
                        ' way; name Glance\'s pool in rbd_store_pool', group.rbd_snapshot_pool)
        return
    if group.rbd_snapshot_pool:
        _check_snapshots(group)
    try:
        rights.check(RbdAccess(
            group.rbd_store_pool, group.rbd_clone_pool, group.rbd_clone_namespace,
            group.rbd_store_user, group.rbd_store_ceph_conf,
            f'rbd_store_pool={group.rbd_store_pool}', 'rbd_store_user', 'rbd_store_ceph_conf',
            'leave the option out: images are downloaded then'))
    except Interrupted as error:
        LOG.warning('Ceph does not answer (%s): bases are downloaded until it does', error)


def _check_snapshots(group: Any) -> None:
    if group.rbd_snapshot_pool == group.rbd_store_pool:
        raise ConfigurationError(
            f'[bootcache]rbd_snapshot_pool={group.rbd_snapshot_pool} is Glance\'s own pool, where'
            ' this service may delete nothing; make a pool for snapshots, and give client.'
            f'{group.rbd_store_user} and Glance\'s user "profile rbd" of it')
    if group.snapshot_exporters == glance_conf.OWN and not group.export_ports:
        LOG.warning('all snapshots go stock Nova\'s way: hosts have no exporters of their own; set'
                    ' [bootcache]export_ports, or snapshot_exporters = common if hosts may read and'
                    ' write each other\'s snapshots under way')


def check_compression(conf: cfg.ConfigOpts) -> None:
    """Check that this machine's QEMU can store clusters as the option says.

    :raises ConfigurationError: naming the option and the cure.
    """
    compression = conf[bootcache_conf.GROUP].compression
    if compression == Compression.NONE:
        return
    with tempfile.TemporaryDirectory() as directory:
        try:
            qemuimg.create_standalone(os.path.join(directory, 'tried'), 65536, 65536,
                                      compression=compression)
        except BootcacheError as error:
            raise ConfigurationError(
                f'[bootcache]compression={compression}: this machine\'s qemu-img cannot do that'
                f' ({error}); install a QEMU that was built with it, or set the option to none'
            ) from error


def check_signatures(conf: cfg.ConfigOpts) -> None:
    """Check that there is the library that verifies signatures, if they are to be.

    :raises ConfigurationError: naming the option and the cure.
    """
    if conf[bootcache_conf.GROUP].verify_signatures and not all(
            importlib.util.find_spec(name) for name in ('cursive', 'castellan')):
        raise ConfigurationError(
            '[bootcache]verify_signatures = true, and cursive is not installed, by which Nova and'
            ' Glance verify signatures; install it (python3-cursive), or set the option to false')


def _check_address(group: Any) -> None:
    try:
        # Any port: on its own one the exporter of an earlier process may listen.
        listening.listen(group.export_host, 0).close()
    except OSError as error:
        raise ConfigurationError(
            f'[bootcache]export_host={group.export_host} is no address of this machine that a'
            f' service can listen on ({error.strerror or error}); "ip address" shows those that it'
            ' has, and it should be the one in the storage network') from error
    if group.export_host in _ANY_ADDRESS and not group.advertise_host:
        raise ConfigurationError(
            f'[bootcache]export_host={group.export_host} is no address that compute hosts can'
            ' connect to; name in [bootcache]advertise_host the one by which they reach this node')


def _check_admission(group: Any) -> None:
    for name in group.tls_client_names:
        if '=' not in name and not _ANY_PART.match(name):
            raise ConfigurationError(
                f'[bootcache]tls_client_names={name} is no distinguished name, and would let nobody'
                f' in; give it as in CN={name or "compute-1"}')
    if group.tls_directory:
        try:
            certificates.check(group.tls_directory, tls.Endpoint.SERVER,
                               group.advertise_host or group.export_host)
        except Interrupted as error:
            # One that runs has taken them, if they are not others.
            LOG.warning('certificates are not checked now, but when the exporter is started: %s',
                        error)
    elif group.tls_client_names:
        raise ConfigurationError(
            '[bootcache]tls_client_names names clients\' certificates, and the exporter asks for'
            ' none: name the directory of its own in [bootcache]tls_directory')
    elif not group.allow_plain_nbd and not certificates.is_loopback(group.export_host):
        raise ConfigurationError(
            f'[bootcache]export_host={group.export_host} can be reached by others, and whoever'
            ' reaches it without TLS can read all images: name a directory of certificates in'
            ' [bootcache]tls_directory ("bootcache ca" makes some), or set allow_plain_nbd = true'
            ' if nobody but compute hosts reaches that address')


def _check_ports(group: Any) -> None:
    try:
        ports = clients.read_ports(group.export_ports)
    except ValueError as error:
        raise ConfigurationError(
            f'[bootcache]export_ports={group.export_ports} is no range of TCP ports; give the first'
            ' and the last of them, as in 10820-11819') from error
    if ports and not group.tls_directory:
        raise ConfigurationError(
            '[bootcache]export_ports is for exporters that tell hosts apart by their certificates:'
            ' name the directory of their own in [bootcache]tls_directory')
    if group.export_port in ports:
        raise ConfigurationError(
            f'[bootcache]export_ports={group.export_ports} has export_port={group.export_port} in'
            ' it, which all hosts share where that is unset; take others')
    for option, first, like in (('export_ports', ports[0] if ports else _UNPRIVILEGED,
                                 '10820-11819'), ('export_port', group.export_port, '10810')):
        if first >= _UNPRIVILEGED:
            continue
        try:
            listening.listen(group.export_host, first).close()
        except PermissionError as error:
            raise ConfigurationError(
                f'[bootcache]{option}={group[option]} begins below {_UNPRIVILEGED}, where this'
                f' process may not listen; take another, as {like}') from error
        except OSError as error:
            # An exporter of an earlier process listens there, or somebody else: its start tells.
            LOG.debug('port %d: %s', first, error)


def check_cloud(conf: cfg.ConfigOpts) -> None:
    """Check the credentials, and what profile boots need of Nova: flavor and availability zone.

    Keystone or Nova that do not answer are told of in the log.

    :raises ConfigurationError: naming the option and the cure.
    """
    auth = conf[AUTH_GROUP]
    if not auth.auth_type:
        raise ConfigurationError(
            f'[{AUTH_GROUP}]auth_type is not set; give the credentials of the storage service\'s'
            ' user there: auth_type = password, auth_url, username, password, project_name,'
            ' user_domain_name, project_domain_name')
    who = 'Keystone'
    try:
        session = images.session(conf)
        session.timeout = session.timeout or _ANSWER_SECONDS
        session.get_token()
        who = 'Nova'
        _check_nova(conf, session)
    except (ks_exceptions.ClientException, nova_exceptions.ClientException) as error:
        if fault := _fault(auth, who, error):
            raise ConfigurationError(f'[{AUTH_GROUP}]{fault}') from error
        told = str(error)
        if who == 'Keystone':
            told = f'{getattr(auth, "auth_url", "")}: {told}'
            if isinstance(error, ks_exceptions.DiscoveryFailure):
                # Another service that answers at this URL comes here as well.
                told += ('; if Keystone is up, that is not where it is: correct'
                         f' [{AUTH_GROUP}]auth_url, as in http://controller:5000/v3')
        LOG.warning('%s does not answer (%s): no image is recorded until it does, and the'
                    ' credentials, flavor and availability zone are not checked; all else is'
                    ' served', who, told)


def _fault(auth: Any, who: str, error: Exception) -> str:
    """Return what is wrong with the credentials, with the cure; empty if it may pass by itself.

    :param who: was asked, Keystone or Nova, by a token of Keystone's.
    """
    user = str(getattr(auth, 'username', None) or getattr(auth, 'user_id', None) or '(unset)')
    if isinstance(error, nova_exceptions.ClientException):
        return f': Nova refuses user {user}: {error}; it needs the role admin in its project' \
            ' ("openstack role add")' if error.code in (401, 403) else ''
    if isinstance(error, _AWAY) or away.status(error) == http.HTTPStatus.TOO_MANY_REQUESTS:
        return ''
    if who == 'Nova' and isinstance(error, ks_exceptions.EndpointNotFound):
        return (f'region_name={auth.region_name}: Keystone\'s catalogue has no compute service'
                f' there ({error}); "openstack endpoint list --service nova" shows the regions')
    if isinstance(error, (ks_exceptions.Unauthorized, ks_exceptions.Forbidden)):
        return (f': Keystone at {auth.auth_url} refuses user {user}; correct username, password,'
                ' project_name and the domains ("openstack token issue" tries them)')
    if isinstance(error, (ks_exceptions.NotFound, ks_exceptions.EndpointNotFound)):
        return (f'auth_url={auth.auth_url} is not where Keystone answers; it is a URL that ends in'
                ' /v3 as a rule, as in http://controller:5000/v3')
    return f': {error}; correct the credentials'


def _check_nova(conf: cfg.ConfigOpts, session: Any) -> None:
    group = conf[bootcache_conf.GROUP]
    nova = nova_client.Client(throughnova.API_VERSION, session=session,
                              region_name=conf[AUTH_GROUP].region_name)
    flavors = throughnova.flavors_of(nova)
    try:
        throughnova.choose_flavor(flavors, group.profile_flavor, throughnova.MIN_RAM, 0, 0)
    except ServiceAway as error:
        if group.profile_flavor:
            raise ConfigurationError(
                f'[bootcache]profile_flavor: {error}; Nova has:'
                f' {_some(flavor.name for flavor in flavors)}') from error
        # One may be made later.
        LOG.warning('no image can be recorded: %s', error)
    zone = (group.profile_availability_zone or '').partition(':')[0]
    if not zone:
        return
    zones = [entry.zoneName for entry in nova.availability_zones.list(detailed=False)]
    if zone not in zones:
        raise ConfigurationError(
            f'[bootcache]profile_availability_zone={zone}: Nova has no such zone with a compute'
            f' host in it, only: {_some(zones)}; put the hosts with bootcache\'s driver into it'
            ' ("openstack aggregate create --zone"), or correct the option')


def _some(names: Any) -> str:
    return ', '.join(sorted(names))[:500] or 'none'
