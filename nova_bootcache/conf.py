"""Options of the compute driver, in nova.conf's group ``[bootcache]``."""

from oslo_config import cfg

from bootcache import conf as shared

opts = [
    cfg.BoolOpt('enabled',
                default=True,
                help="""
Whether new servers boot from cache images. If not, the driver is stock Nova's
for new servers; servers that were chained to a cache image go on as before.
"""),
    cfg.StrOpt('cache_directory',
               help="""
Directory of this host's cache images. It must be on the host itself, and
libvirt's QEMU must be able to read it.

Possible values:

* An absolute path.
* Unset: ``_bootcache`` in Nova's instances directory, beside ``_base``.

Related options:

* ``[DEFAULT]instances_path``
"""),
    cfg.StrOpt('gateway_run_dir',
               default='/run/bootcache',
               help="""
Directory of the gateway's monitor socket and pid file. A gateway that systemd
started is adopted if its monitor is ``gateway.qmp`` in here.

Related options:

* ``gateway_socket``
"""),
    cfg.BoolOpt('gateway_autostart',
                default=True,
                help="""
Whether the driver starts a gateway where none answers. Switch it off where
systemd runs bootcache-gateway.service, so that only one of them starts it.

A gateway that the driver starts runs as Nova's user and ends with
nova-compute's control group.

Related options:

* ``gateway_group``
"""),
    cfg.StrOpt('gateway_group',
               help="""
Group that may connect to the socket of a gateway which the driver starts. It
has to be one of libvirt's QEMU processes, and Nova's user has to be a member.

Possible values:

* A group's name, such as kvm.
* Unset: the group of Nova's user. That is enough where QEMU runs as root or as
  Nova's user.
"""),
    cfg.IntOpt('reconnect_delay',
               default=10,
               min=0,
               max=60,
               help="""
Seconds for which reads of the base wait while the storage node is away, before
they fail.

Possible values:

* 0: they fail at once.
* Up to 60. A larger value also makes stopping the gateway take that long.
"""),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the driver's options, the shared ones included."""
    shared.register_opts(conf)
    conf.register_opts(opts, group=shared.GROUP)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return the options for oslo-config-generator."""
    return [(shared.GROUP, opts)]
