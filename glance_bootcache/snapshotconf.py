"""Options of snapshots that share with their base, in the group ``[bootcache]``."""

from oslo_config import cfg

# Values of snapshot_exporters.
OWN, COMMON = 'own', 'common'

opts = [
    cfg.StrOpt('snapshot_exporters',
               default=OWN,
               choices=[(OWN, 'only hosts that have an exporter of their own, see export_ports'),
                        (COMMON, 'all hosts; each that reaches the exporter can learn the names of'
                                 ' snapshots under way there, and read and write them')],
               help="""
Which hosts may send snapshots of their servers to this storage node. A snapshot
is served for writing under a name that cannot be guessed; but QEMU tells whoever
it lets in all names. Those of other hosts go stock Nova's way.

Related options:

* ``export_ports``
* ``rbd_snapshot_pool``
* ``glance_store_dirs``
"""),
    cfg.IntOpt('snapshots_per_host',
               default=8, min=1, max=100,
               help="""
Snapshots that a host may send at a time. More go stock Nova's way.
"""),
    cfg.IntOpt('snapshot_idle',
               default=120, min=30, max=86400,
               help="""
Seconds after which a snapshot is given up of which its host has said nothing: it
tells every few seconds that it goes on.
"""),
    cfg.IntOpt('snapshot_depth',
               default=5, min=1, max=16,
               help="""
Snapshots that may stand on each other, as of a server that was made of a
snapshot. Each one more makes reads of what is in none of them slower. Of an image
that this many others are below, the storage service makes a copy that stands on
none, in the background and one after the other, if it is the base of servers; it
takes the space of a full image. Snapshots of these servers stand on the copy.
Until it is there they go stock Nova's way, and are full images each.
"""),
]
