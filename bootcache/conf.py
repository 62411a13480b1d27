"""Options that both sides read, all in the group ``[bootcache]``."""

import os

from oslo_config import cfg
from oslo_log import log as logging

from bootcache import listening
from bootcache.exception import ConfigurationError

LOG = logging.getLogger(__name__)

GROUP = 'bootcache'

opts = [
    cfg.StrOpt('gateway_socket',
               default='/run/bootcache/gateway.sock',
               help="""
Path of the unix socket on which a compute host's gateway serves bases to the
host's servers. It is written into the header of every cache image, so it
should be the same on all hosts and on the storage service; where a host's
differs, the host rewrites the header after it has verified the file.

Possible values:

* An absolute path of at most 107 bytes.
"""),
    cfg.StrOpt('transport_url',
               secret=True,
               help="""
The message bus over which compute hosts, the Glance hook and the command line
reach the storage service.

Possible values:

* An oslo.messaging URL, such as rabbit://user:password@host:5672/.
* Unset: ``transport_url`` of the section DEFAULT.
"""),
    cfg.StrOpt('tls_directory',
               help="""
Directory of the certificates with which compute hosts and exporters know each
other, in files that have QEMU's and libvirt's names. On a storage node they are
ca-cert.pem, server-cert.pem and server-key.pem: the exporter then speaks TLS
only, and only with clients that have a certificate of that CA. On a compute
host they are ca-cert.pem, client-cert.pem and client-key.pem. Who is not to be
let in any more can be in ca-crl.pem.

The exporter's certificate has to be one for the address or name that compute
hosts are told to connect to; the storage service does not start with another,
and leaves one that was put in its place alone. Renewed files are noticed: the
exporter takes them within ``poll_interval`` seconds (of exporters of single
hosts 200 do in that time), the connections of compute hosts in about ten.

Possible values:

* An absolute path. Where libvirt migrates servers by TLS, /etc/pki/qemu or
  /etc/pki/libvirt-migrate has such files; the user that runs this has to be
  able to read them.
* Unset: no TLS. A compute host's servers go the stock way then if the exporter
  speaks TLS.

Related options:

* ``export_host`` and ``advertise_host``
* ``tls_client_names``
* ``allow_plain_nbd``
"""),
    cfg.BoolOpt('allow_plain_nbd',
                default=False,
                help="""
Whether the exporter may be reached over a network without TLS. Whoever reaches
it then can read all that it serves.

On a storage node without ``tls_directory`` it has to be set where
``export_host`` is not an address of the machine alone. On a compute host with
``tls_directory`` it says whether exporters that do not speak TLS are used all
the same; that is needed while certificates are handed out, and opens the door
to who can pretend to be the storage service.
"""),
    cfg.IntOpt('rpc_timeout',
               default=10,
               min=1,
               max=300,
               help="""
Seconds to wait for an answer of the storage service. A compute host that gets
none uses the cache image that it has, or boots the server the stock way; a
server that boots waits for no more than 5 seconds.

After two questions without an answer nobody asks for 10 seconds, and then one
does: whoever else would ask goes on at once as if there was no answer.

Related options:

* ``rpc_response_timeout`` of oslo.messaging does not apply here.
"""),
    cfg.PortOpt('metrics_port',
                default=0,
                help="""
TCP port at which a service is watched by HTTP: glance-bootcache answers
``/metrics`` for Prometheus and ``/healthcheck``, which is 200 while message bus,
database and exporter answer and else 503; nova-compute answers ``/metrics``.

glance-bootcache does not start where it cannot listen there. nova-compute does,
and its log says why nobody can watch it.

Possible values:

* A port that nobody has.
* 0: nothing listens.

Related options:

* ``metrics_address``
"""),
    cfg.StrOpt('metrics_address',
               default='127.0.0.1',
               help="""
Address at which ``metrics_port`` is. There is no encryption, and no password:
give one that only those reach who may know how many images and servers there
are.

Possible values:

* An IPv4 or IPv6 address of this host, or a name of it.
* ``0.0.0.0`` or ``::``: all its addresses.

Related options:

* ``metrics_port``
"""),
    cfg.IntOpt('high_watermark',
               default=95,
               min=1,
               max=100,
               help="""
How full a tier (a directory of cache images) may become, in percent of its
quota, before the least recently used cache images are evicted. Those that a
server has open and those that are pinned stay.

Related options:

* ``low_watermark``
"""),
    cfg.IntOpt('low_watermark',
               default=85,
               min=0,
               max=99,
               help="""
Down to which percentage of a tier's quota cache images are evicted, once there
would be more than ``high_watermark``.

Possible values:

* A percentage below ``high_watermark``.
"""),

    # Of the exchange between hosts; each host has its own.
    cfg.StrOpt('exchange_address',
               help="""
Address of this host in the storage network, at which ``bootcache-exchange`` meets
that of other hosts: they give pieces of cache images and full bases to each
other, so that not all of them come from the storage node.

Possible values:

* An IPv4 or IPv6 address of this host; not that of all its interfaces.
* Unset: this host exchanges nothing, and copies from the storage node.

Related options:

* ``exchange_networks`` and ``tls_directory``, without which
  ``bootcache-exchange`` does not start.
"""),
    cfg.PortOpt('exchange_port',
                default=10811,
                min=1,
                help="""
TCP port of ``bootcache-exchange``, at ``exchange_address``. It has to be the same
on all hosts.
"""),
    cfg.ListOpt('exchange_networks',
                default=[],
                help="""
Networks of the hosts that take part. Connections with any other address are
neither made nor taken; hosts of these have to have a certificate as well.

Possible values:

* Networks, separated by commas, as in 10.1.0.0/16, fd00:1::/64.
"""),
    cfg.StrOpt('exchange_socket',
               default='/run/bootcache-exchange/control.sock',
               help="""
Path of the unix socket by which nova-compute, or the storage service, tells
this host's ``bootcache-exchange`` what to fetch and to give. Who may write to it
is the user that it runs as.

Possible values:

* An absolute path of at most 107 bytes. Files of the process are beside it.
"""),
    cfg.StrOpt('exchange_upload_rate',
               default='0',
               help="""
Bytes a second that this host gives to others at most, all together.

Possible values:

* Bytes, or a number with a unit: 50MiB. At least 64KiB.
* 0: no limit.
"""),
    cfg.IntOpt('exchange_linger',
               default=900,
               min=0,
               max=86400,
               help="""
Seconds for which this host gives to others what it got, or has. Meanwhile the
space of a file that is removed or replaced is not free.

Possible values:

* 0: it gives nothing. With a storage node that gives nothing all hosts copy.
* Up to 86400, a day.
"""),
    cfg.StrOpt('exchange_rack',
               default='',
               help="""
The rack, or whatever else hosts have in common that are near to each other in
the network: hosts of the same name get from each other first. It is read by
nova-compute.

Possible values:

* A name of at most 255 characters.
* Empty: this host is as near to all others.
"""),
    cfg.IntOpt('exchange_connections',
               default=50,
               min=4,
               max=1000,
               help="""
How many connections with other hosts there are at the same time, at most. Each
takes about 100 KiB of memory.
"""),
    cfg.IntOpt('exchange_files',
               default=20,
               min=1,
               max=500,
               help="""
How many files are fetched and given at the same time, at most. One more is not
fetched this way, and of those that are given the oldest is given no longer.
"""),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the shared options."""
    conf.register_opts(opts, group=GROUP)


def check_socket(conf: cfg.ConfigOpts, option: str, name: str = '') -> None:
    """Check an option that is a unix socket's path, or a directory of such.

    :param name: the longest name of a socket in the directory.
    :raises ConfigurationError: naming the option and the cure.
    """
    path, most = conf[GROUP][option], listening.PATH_BYTES - len(name and f'/{name}')
    if not os.path.isabs(path) or len(os.fsencode(path)) > most:
        raise ConfigurationError(f'[{GROUP}]{option}={path} is no absolute path of at most'
                                 f' {most} bytes; give one that begins with /')


def check_sockets(conf: cfg.ConfigOpts) -> None:
    """Check the paths of the sockets of gateway and exchange.

    :raises ConfigurationError: as of ``check_socket``.
    """
    check_socket(conf, 'gateway_socket')
    check_socket(conf, 'exchange_socket')


def warn_unused(conf: cfg.ConfigOpts, option: str, needed: str) -> None:
    """Warn of an option that is set and does nothing, as another one is not set."""
    if not conf[GROUP][needed] and conf.get_location(option, GROUP).location.is_user_controlled:
        LOG.warning('[%s]%s is set and does nothing, as %s is not set; set both, or neither', GROUP,
                    option, needed)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return the options for oslo-config-generator."""
    return [(GROUP, opts)]
