"""Options of how many hosts get full bases from the storage node, in the group ``[bootcache]``."""

from oslo_config import cfg

opts = [
    cfg.IntOpt('settle_slots',
               default=4,
               min=1,
               max=1000,
               help="""
How many hosts get full bases from this storage node at the same time, to settle
their servers: by exchange or by copies. The others wait, and come again; those
that get all of a base from other hosts do not wait. A host takes at most its
``settle_bandwidth``, so settling takes the product of both of this storage node's
link.

Related options:

* ``settle_bandwidth`` of the compute hosts.
* ``exchange_upload_rate``: a bound in bytes a second of what the storage node
  gives by exchange.
"""),
]
