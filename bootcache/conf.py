"""Options that both sides read, all in the group ``[bootcache]``."""

from oslo_config import cfg

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
    cfg.IntOpt('rpc_timeout',
               default=10,
               min=1,
               max=300,
               help="""
Seconds to wait for an answer of the storage service. A compute host that gets
none uses the cache image that it has, or boots the server the stock way.

Related options:

* ``rpc_response_timeout`` of oslo.messaging does not apply here.
"""),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the shared options."""
    conf.register_opts(opts, group=GROUP)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return the options for oslo-config-generator."""
    return [(GROUP, opts)]
