"""Options of the exchange between hosts, in the group ``[bootcache]``; each host has its own."""

from oslo_config import cfg

opts = [
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
