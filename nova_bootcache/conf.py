"""Options of the compute driver, in nova.conf's group ``[bootcache]``."""

import dataclasses
import os
import socket

from oslo_config import cfg
from oslo_log import log as logging

from bootcache import conf as shared
from bootcache import exception, optionfault, tier
from bootcache.ceph.rights import RbdAccess
from bootcache.connectors import connectors
from bootcache.exchange import limits
from bootcache.rpc import transport
from bootcache.tier import TierLimits
from nova_bootcache.gateway import sharedstore
from nova_bootcache.storagenode import Encryption

LOG = logging.getLogger(__name__)

_MIB = 1 << 20
# Values of base_access.
EXPORTER, RBD = 'exporter', 'rbd'

opts = [
    cfg.BoolOpt('enabled',
                default=True,
                help="""
Whether new servers boot from cache images. If not, the driver is stock Nova's
for new servers; servers that were chained to a cache image go on as before.
"""),
    cfg.BoolOpt('require_download_policy',
                default=False,
                help="""
Whether Glance is asked, before a server boots from a cache image, if its user
may download the image (download_image in Glance's policy), as stock Nova comes
to know it when the host does not have the base. A server whose user may not
goes the stock way. Needed where that policy is another one than Glance's own,
by which whoever sees an image may download it.

It is asked by beginning the download, once a server, as Glance has no other way
to say it. A Glance that does not answer does not refuse.
"""),
    cfg.StrOpt('cache_directory',
               help="""
Directory of this host's cache images. It must be on the host itself, and
libvirt's QEMU must be able to read it. On a file system that hosts share (NFS,
CephFS, GlusterFS and others), or with Nova's instances on one, all servers of
the host go the stock way, and nova-compute's log says so when it starts.

Possible values:

* An absolute path.
* Unset: ``_bootcache`` in Nova's instances directory, beside ``_base``.

Related options:

* ``[DEFAULT]instances_path``
"""),
    cfg.StrOpt('compute_disk_quota',
               default='10GiB',
               help="""
Size of all cache images on this host's disk. When it is nearly reached, those
go that were used least recently; never one that a running server has open.
A newer cache image of an image comes beside the older one: where both have no
room, servers go on with the older one. What servers have open and what a newer
one has replaced is not counted; its space is free when they settle or stop.
The space is reserved in what the host reports to Placement, if the directory
is on the file system of Nova's instances.

Possible values:

* Bytes, or a number with a unit: 10GiB.

Related options:

* ``high_watermark`` and ``low_watermark``
"""),
    cfg.StrOpt('compute_memory_directory',
               help="""
Directory on a tmpfs for cache images in this host's memory. They are read
faster, and Nova's cache mode none does not keep servers from sharing them.
What does not fit goes onto the disk. Mount a tmpfs with a size of its own.

Possible values:

* An absolute path of a directory on a tmpfs.
* Unset: no cache images in memory.

Related options:

* ``compute_memory_quota``
"""),
    cfg.StrOpt('compute_memory_quota',
               default='1GiB',
               help="""
Size of all cache images in this host's memory. It is reserved in what the host
reports to Placement.

Possible values:

* Bytes, or a number with a unit: 1GiB. The tmpfs has to have that size.

Related options:

* ``compute_memory_directory``
"""),
    cfg.StrOpt('expand',
               default='auto',
               choices=[('auto', 'on disk up to the tier\'s low watermark, in memory up to half'
                                 ' of that'),
                        ('always', 'up to the tier\'s high watermark'),
                        ('never', 'they stay as they came')],
               help="""
Which compressed cache images this host expands, once each, so that servers do
not unpack them at every boot. One takes two to three times as much of its tier
then. It is done one at a time at the lowest priority, once no server was
started for settle_delay, and nothing is evicted for it: what has no room stays
compressed, as do images whose full base is on this host.

Related options:

* ``compression`` of the storage service
* ``low_watermark`` and ``high_watermark``
"""),
    cfg.StrOpt('store_quota',
               default='512MiB',
               help="""
Size of an image's growing store: what the servers of this host read of an
image that has no cache image yet. At the limit it stops to grow, and further
reads go to the storage node.

Possible values:

* Bytes, or a number with a unit, from 1MiB up.
"""),
    cfg.IntOpt('cold_wait',
               default=60,
               min=0,
               max=600,
               help="""
Seconds for which a server waits while the storage service prepares the base of
an image that it did not know before. After that it boots the stock way; and at
once if the base is not going to be there by then, as far as can be told.
"""),
    cfg.StrOpt('settle_bandwidth',
               default='50MiB',
               help="""
Bytes of data a second at which this host completes local bases and moves
running servers onto them, so that they depend on nothing of bootcache any
more. Holes are not counted.

Possible values:

* Bytes, or a number with a unit: 50MiB.
* 0: servers are never settled; what a boot does not read is read from the
  storage node on demand, for as long as the server lives.

Related options:

* ``settle_delay``
"""),
    cfg.StrOpt('landing_bandwidth',
               default='50MiB',
               help="""
Bytes a second at which a running server's own data, 1 GiB at most, is
copied so that it reads its cache image's file itself, where it began before
that was here and does not settle soon. 0: it goes on by the gateway.

Related options:

* ``settle_delay``
"""),
    cfg.IntOpt('settle_delay',
               default=60,
               min=0,
               help="""
Seconds from a server's start to its settling: boots have precedence. So they
have over expanding cache images.

Related options:

* ``expand``
"""),
    cfg.StrOpt('warm_bandwidth',
               default='0',
               help="""
Bytes a second at which this host fetches a cache image when it is warmed, by
Nova's API for precaching images or by the storage service. A server that
starts meanwhile does not wait for it: the fetch goes on at full speed then.

Possible values:

* Bytes, or a number with a unit: 20MiB. At least 64KiB.
* 0: no limit.

Related options:

* ``[image_cache]precache_concurrency`` of nova-conductor: how many hosts of an
  aggregate are warmed at the same time.
"""),
    cfg.IntOpt('report_interval',
               default=60,
               min=1,
               max=120,
               help="""
Seconds between two reports to the storage service of what this host holds, and
so the time after which it hears of what it is to let go of.
"""),
    cfg.StrOpt('gateway_run_dir',
               default='/run/bootcache',
               help="""
Directory of the gateway's monitor socket and pid file, and of the connectors
through which the gateway reads bases; an absolute path of at most 59 bytes.

A gateway that systemd started is adopted if its monitor is ``gateway.qmp`` in
here, and one that runs in another container if that shares this directory with
nova-compute's. So it is with ``bootcache-connectors``, whose socket is
``connectors.sock`` in here.

Related options:

* ``gateway_socket``
"""),
    cfg.BoolOpt('gateway_autostart',
                default=True,
                help="""
Whether the driver starts a gateway where none answers, and connectors where
no ``bootcache-connectors`` answers when nova-compute starts. Switch it off
where systemd runs bootcache-gateway.service and
bootcache-connectors.service, so that only one of them starts each.

What the driver starts runs as Nova's user and ends with nova-compute's control
group.

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

    # How this host reaches bases.
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


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the driver's options, the shared ones included."""
    shared.register_opts(conf)
    conf.register_opts(opts, group=shared.GROUP)


def check(conf: cfg.ConfigOpts) -> None:
    """Read each option, as oslo.config looks at a value when it is read, and check some by hand.

    :raises ConfigurationError: naming the option, its file and the cure.
    """
    group = conf[shared.GROUP]
    for name in group:
        try:
            group[name]
        except ValueError as error:
            raise exception.ConfigurationError(optionfault.told(error, conf)) from None
        except cfg.Error:
            # Which has what follows it, as of a password.
            raise exception.ConfigurationError(
                f'[{shared.GROUP}]{name}: a "$" in its value; write "$$" for it') from None
    shared.check_sockets(conf)
    shared.check_socket(conf, 'gateway_run_dir', connectors.LONGEST_SOCKET)
    if group.exchange_address:
        limits.read(conf)
    shared.warn_unused(conf, 'compute_memory_quota', 'compute_memory_directory')
    # Nothing is connected yet.
    transport.get_transport(conf).cleanup()


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return the options for oslo-config-generator."""
    return [(shared.GROUP, opts)]


@dataclasses.dataclass(frozen=True)
class Tiers:
    """The tiers of a compute host, checked.

    :ivar disk: limits of compute disk.
    :ivar memory_directory: of compute memory, None if there is none.
    :ivar memory: its limits.
    :ivar store_limit: bytes that a growing store may have.
    """

    disk: TierLimits
    memory_directory: str | None
    memory: TierLimits | None
    store_limit: int


def tiers(conf: cfg.ConfigOpts, cache_directory: str, direct_io: bool = True,
          base_directory: str | None = None) -> Tiers:
    """Check the tiers' options, their directories included.

    A memory tier in which O_DIRECT does not work is left out with a warning, where Nova's cache
    mode asks for it: the disk tier has the cache images then.

    :param cache_directory: of the disk tier.
    :param direct_io: whether servers' disks are opened with O_DIRECT.
    :param base_directory: Nova's ``_base``, whose files have the names of ours.
    :raises ConfigurationError: naming the option and the cure.
    """
    group = conf[shared.GROUP]
    marks = group.high_watermark, group.low_watermark
    disk = tier.parse_limits('compute_disk_quota', group.compute_disk_quota, *marks, _MIB)
    store = tier.parse_limits('store_quota', group.store_quota, *marks, sharedstore.MIN_LIMIT)
    if base_directory is not None and os.path.realpath(base_directory) \
            == os.path.realpath(cache_directory):
        raise exception.ConfigurationError(
            f'[bootcache]cache_directory={cache_directory} is Nova\'s own directory of bases, whose'
            ' files have the same names; name another one')
    if not os.path.isabs(cache_directory):
        tier.check_directory('cache_directory', cache_directory)
    tier.check_directory('cache_directory', cache_directory, make=True)
    directory = group.compute_memory_directory
    if directory is None:
        _check_store(store, disk)
        return Tiers(disk, None, None, store.quota)
    memory = tier.parse_limits('compute_memory_quota', group.compute_memory_quota, *marks, _MIB)
    tier.check_apart({'cache_directory': cache_directory, 'compute_memory_directory': directory})
    tier.check_directory('compute_memory_directory', directory,
                         memory=('compute_memory_quota', memory.quota))
    _check_store(store, max(disk, memory, key=lambda limits: limits.quota))
    if direct_io and not tier.direct_io_works(directory):
        LOG.warning('[bootcache]compute_memory_directory=%s: O_DIRECT does not work there, as on'
                    ' tmpfs before Linux 6.6, and servers\' disks are opened so; cache images stay'
                    ' on disk. Set [libvirt]disk_cachemodes=file=writeback to use it.', directory)
        return Tiers(disk, None, None, store.quota)
    return Tiers(disk, directory, memory, store.quota)


def _check_store(store: TierLimits, largest: TierLimits) -> None:
    if store.quota > largest.quota:
        raise exception.ConfigurationError(
            f'[bootcache]store_quota is {store.quota} bytes, more than the {largest.quota} of the'
            ' largest tier; lower it, or raise compute_disk_quota')


def encryption(conf: cfg.ConfigOpts) -> Encryption:
    """Return how this host connects to storage nodes."""
    group = conf[shared.GROUP]
    return Encryption(group.tls_directory or None, bool(group.allow_plain_nbd))


def bandwidth(conf: cfg.ConfigOpts, name: str) -> int:
    """Return the bytes a second of an option of which 0 is a value of its own.

    :param name: settle_bandwidth, landing_bandwidth or warm_bandwidth.
    :raises ConfigurationError: if it is not a size.
    """
    text = conf[shared.GROUP][name]
    if text.strip() == '0':
        return 0
    return tier.parse_limits(name, text, 100, 0, 1 << 16).quota


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
