"""Options of bases in Ceph, in the group ``[bootcache]``."""

from oslo_config import cfg

opts = [
    cfg.StrOpt('rbd_store_pool',
               help="""
Pool in which Glance's RBD store keeps its images. The storage service then
downloads no raw image that is there: it makes a clone of its own of the image's
snapshot, which takes no space, and reads that. The content is checked against
Glance's hash first, as that of a download is. See the page about Ceph.

Possible values:

* The name of a pool.
* Unset: all bases are found in ``glance_store_dirs``, or downloaded. Those that
  are clones already stay so.

Related options:

* ``rbd_store_pool`` of glance-api.conf.
* ``rbd_clone_pool``
* ``rbd_store_user``
"""),
    cfg.StrOpt('rbd_clone_pool',
               default='bootcache',
               help="""
Pool in which the storage service keeps its clones.

Related options:

* ``rbd_clone_namespace``
"""),
    cfg.StrOpt('rbd_clone_namespace',
               default='storage',
               help="""
RBD namespace, within that pool, of this storage service's clones. It is of this
one alone: clones there that none of its images needs are removed.

Possible values:

* The name of a namespace; "rbd namespace create" makes it.
"""),
    cfg.StrOpt('rbd_store_user',
               default='bootcache',
               help="""
Ceph user as whom the storage service reads Glance's pool, without ``client.``.
It may read that pool, and write nowhere but in its own namespace: the service
does not start with one that can delete Glance's images.
"""),
    cfg.StrOpt('rbd_store_ceph_conf',
               default='/etc/ceph/ceph.conf',
               help="""
Path of Ceph's configuration file. It says where the user's keyring is, or leaves
it at ``/etc/ceph/ceph.client.USER.keyring``. The user of the storage service has
to be able to read both.
"""),
    cfg.StrOpt('rbd_snapshot_pool',
               help="""
Pool in which snapshots of servers are made whose image is read in Ceph. They
share with the image what they have in common: only what differs is sent and
stored. Glance is told where they are, and owns them from then on. See the page
about snapshots.

Possible values:

* The name of a pool that holds nothing else. Both Glance's Ceph user and this
  service's need "profile rbd" of it; it has to be another one than
  ``rbd_store_pool``, as this service may delete nothing there.
* Unset: snapshots are made in stock Nova's way, each a full image.

Related options:

* ``rbd_store_pool``
* ``snapshot_depth``
"""),
]
