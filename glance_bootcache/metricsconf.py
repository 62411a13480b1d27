"""Options of what is told to Prometheus, in the group ``[bootcache]``."""

from oslo_config import cfg

opts = [
    cfg.PortOpt('metrics_port',
                default=0,
                help="""
TCP port at which the storage service tells Prometheus how files came to hosts that
asked for them by exchange. It needs the Python package ``prometheus_client``.

Possible values:

* A port that nobody has.
* 0: nothing listens.
"""),
    cfg.StrOpt('metrics_address',
               default='127.0.0.1',
               help="""
Address at which ``metrics_port`` is. There is no encryption, and no password.

Possible values:

* An IPv4 or IPv6 address of this host.
"""),
]
