"""Options of how a compute host reaches bases, in nova.conf's group ``[bootcache]``."""

import socket

from oslo_config import cfg

from bootcache import conf as shared
from bootcache.ceph.rights import RbdAccess

EXPORTER, RBD = 'exporter', 'rbd'

opts = [
    cfg.IntOpt('reconnect_delay',
               default=10,
               min=0,
               max=20,
               help="""
Seconds for which reads of the base wait in the gateway while the storage node
is away. A server that reads then stands still, and goes on by itself when the
storage node is back; other readers, such as a snapshot, see an error.

Possible values:

* 0: they do not wait there.
* Up to 20. A larger value also makes stopping the gateway take that long.
"""),
    cfg.StrOpt('base_access',
               default=EXPORTER,
               choices=[(EXPORTER, 'from the storage node, by NBD'),
                        (RBD, 'from Ceph, where the image is in Glance\'s RBD store')],
               help="""
How this host's servers read what their cache image lacks. With rbd the host
makes a clone of its own of the image's snapshot in Ceph, which takes no space,
and reads that: from all OSDs, and past the storage node. It needs a key of its
own for that; see the page about Ceph. Where Ceph is away, does not have the
image, or the storage service does not say where, servers read through the
exporter, as they do for the cache image in any case.

Related options:

* ``base_rbd_pool``
* ``rbd_store_pool`` of the storage service
"""),
    cfg.StrOpt('base_rbd_pool',
               default='images',
               help="""
Pool in which Glance's RBD store keeps its images. This host reads from no other
one, whatever the storage service says.

Related options:

* ``rbd_store_pool`` of glance-api.conf.
"""),
    cfg.StrOpt('base_rbd_clone_pool',
               default='bootcache',
               help="""
Pool in which this host keeps its clones.

Related options:

* ``base_rbd_namespace``
"""),
    cfg.StrOpt('base_rbd_namespace',
               help="""
RBD namespace, within that pool, of this host's clones. It is of this host
alone: clones there that none of its servers needs are removed.

Possible values:

* The name of a namespace; "rbd namespace create" makes it.
* Unset: this host's name, as ``[DEFAULT]host`` has it.
"""),
    cfg.StrOpt('base_rbd_user',
               help="""
Ceph user as whom this host reads Glance's pool, without ``client.``. It may
read that pool, and write nowhere but in its own namespace: nova-compute does
not start with one that can delete Glance's images, or others' clones. With one
that may too little, servers read through the exporter, and the log says so.

Possible values:

* The name of a user.
* Unset: ``bootcache.`` and this host's name.
"""),
    cfg.StrOpt('base_rbd_ceph_conf',
               default='/etc/ceph/ceph.conf',
               help="""
Path of Ceph's configuration file. It says where the user's keyring is, or leaves
it at ``/etc/ceph/ceph.client.USER.keyring``. The user of nova-compute has to be
able to read both.
"""),
]


def ceph(conf: cfg.ConfigOpts) -> RbdAccess:
    """Return how this host reaches Ceph.

    :param conf: Nova's; what is not configured is named after its host.
    """
    group = conf[shared.GROUP]
    hostname = conf.host if 'host' in conf else socket.gethostname()
    return RbdAccess(
        group.base_rbd_pool, group.base_rbd_clone_pool, group.base_rbd_namespace or hostname,
        group.base_rbd_user or f'bootcache.{hostname}', group.base_rbd_ceph_conf,
        'base_access=rbd', 'base_rbd_user', 'base_rbd_ceph_conf',
        'set the option to exporter: servers read from the storage node then')
