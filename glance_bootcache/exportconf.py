"""Options of the exporters: where they serve, and whom."""

from oslo_config import cfg

opts = [
    cfg.HostAddressOpt('export_host',
                       default='127.0.0.1',
                       help="""
Address on which the exporter serves bases and cache images over NBD: IPv4, or
IPv6 without brackets. On one that is not of this machine alone the exporter
speaks TLS, or the service does not start unless ``allow_plain_nbd`` is set.

Related options:

* ``tls_directory``
* ``allow_plain_nbd``
"""),
    cfg.PortOpt('export_port',
                default=10810,
                help="""
TCP port on which the exporter serves NBD.
"""),
    cfg.HostAddressOpt('advertise_host',
                       help="""
Address that compute hosts are told to connect to.

Possible values:

* An address, IPv4 or IPv6, or host name that reaches the exporter from every
  compute host.
* Unset: the value of ``export_host``.
"""),
    cfg.PortOpt('advertise_port',
                help="""
TCP port that compute hosts are told to connect to.

Possible values:

* A port.
* Unset: the value of ``export_port``.
"""),
    cfg.MultiStrOpt('tls_client_names',
                    default=[],
                    help="""
Distinguished name of the clients' certificates that the exporter lets in. Each
``*`` stands for any characters, and each ``?`` for one. The option can be given
several times. It is read when the service starts, and holds for connections
that are made from then on.

Possible values:

* A name as in CN=compute-*.example.org; without the CN= it would be nobody's, and
  the service does not start. One of several parts has them in the
  order of the certificate, each written as RFC 4514 has it:
  O=Example,CN=compute-1. The exporter's log has the name of who is refused.
* None: all whose certificates the CA has signed.

Related options:

* ``tls_directory``
"""),
    cfg.StrOpt('export_ports',
               help="""
TCP ports of exporters of which each serves one compute host. A host is told of
the port of its own when it asks for an image. Only who has its certificate is
let in there, and what is served there is what the host has asked for, or needs;
``export_idle`` says for how long. A host that does not tell the name in its
certificate gets nothing: its servers go the stock way.

An exporter takes some megabytes of memory. It is started when its host asks for
the first time, and ends when it serves nothing any more. The host keeps its
port. More hosts than ports at a time: servers of those that come too late go the
stock way.

Possible values:

* The first and the last of them: 10820-11819. Below 1024 only where the service
  may listen there, which it may not as its unit starts it.
* Unset: all hosts share the exporter at ``export_port``, and each can read all
  that is served at that time.

Related options:

* ``tls_directory``
* ``export_idle``
"""),
]
