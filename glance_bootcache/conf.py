"""Options of the storage service and of the Glance hook, in the group ``[bootcache]``."""

import socket

from keystoneauth1 import loading as ks_loading
from oslo_config import cfg

from bootcache import cachelayout, properties, tier
from bootcache import conf as shared
from bootcache.exception import ConfigurationError
from glance_bootcache import (
    bootconf,
    exportconf,
    metricsconf,
    rbdconf,
    slotconf,
    snapshotconf,
    tenantconf,
    warmconf,
)

AUTH_GROUP = 'service_auth'

opts = [
    cfg.StrOpt('state_dir',
               default='/var/lib/bootcache',
               help="""
Directory of the storage service's state: one directory an image, with its
manifest, working set and cache image. Its cache images are the storage disk
tier.

Related options:

* ``storage_disk_quota``
"""),
    cfg.StrOpt('run_dir',
               default='/run/glance-bootcache',
               help="""
Directory for the exporter's monitor socket, pid file and log. Unix socket paths
end at 107 bytes, so keep it short.
"""),
    cfg.ListOpt('glance_store_dirs',
                default=[],
                help="""
Directories in which Glance's file store keeps its images, if the storage
service runs where it can read them. A base found there is served as it is;
all others are downloaded through Glance's API into ``state_dir``. Either way
the bytes are checked against Glance's hash first.

Snapshots of servers of these images share with them what they have in common,
where the file system has reflinks and hosts may send any. See the page about
Glance's file store.

Related options:

* ``export_ports``
* ``snapshot_exporters``
* ``rbd_store_pool``: for images in Ceph.
* ``filesystem_store_datadir`` of glance-api.conf.
"""),
    cfg.StrOpt('default_quota',
               default='512MiB',
               help="""
Size that a cache image may have, where the image has no ``bootcache_quota``.

Possible values:

* Bytes, or a number with a unit: 512MiB.

Related options:

* ``max_quota``
"""),
    cfg.StrOpt('max_quota',
               default='2GiB',
               help="""
Upper bound on an image's ``bootcache_quota``.

Possible values:

* Bytes, or a number with a unit: 2GiB.
"""),
    cfg.StrOpt('storage_disk_quota',
               default='100GiB',
               help="""
Size that all cache images in ``state_dir`` may have together. When they come
near it, those that were booted from the longest time ago are evicted; pinned
ones stay. Bases are not counted.

Possible values:

* Bytes, or a number with a unit: 100GiB. At least ``max_quota``.

Related options:

* ``max_quota``
* ``high_watermark``
* ``low_watermark``
"""),
    cfg.StrOpt('storage_memory_directory',
               help="""
Directory in memory into which the cache images that compute hosts ask for are
copied, and from which they are served then. They lie in ``state_dir`` as well.

Possible values:

* An absolute path on a tmpfs that is larger than ``storage_memory_quota``. The
  directory has to be there; only the storage service may use it.
* Unset: cache images are served from ``state_dir``.

Related options:

* ``storage_memory_quota``
"""),
    cfg.StrOpt('storage_memory_quota',
               default='4GiB',
               help="""
Size that all cache images in ``storage_memory_directory`` may have together.
One that does not fit is served from ``state_dir``.

Possible values:

* Bytes, or a number with a unit: 4GiB.

Related options:

* ``storage_memory_directory``
* ``high_watermark``
* ``low_watermark``
"""),
    cfg.IntOpt('cluster_size',
               default=cachelayout.DEFAULT_CLUSTER_BYTES,
               choices=[(4096, 'the smallest files, if not compressed'),
                        (16384, 'the smallest files, if compressed'),
                        (32768, 'between those'),
                        (65536, 'fewer misses and cheaper reads')],
               help="""
Cluster size of cache images, in bytes.
"""),
    cfg.StrOpt('compression',
               default=cachelayout.DEFAULT_COMPRESSION.value,
               choices=[('zstd', 'half as large or less, if not compressed already'),
                        ('none', 'as they are in the image')],
               help="""
How the clusters of cache images are stored. With zstd less travels to compute
hosts, and each tier holds more; whoever reads one unpacks it, at the cost of
half a second of CPU time for the 100 MB of a boot. Compute hosts expand theirs,
see ``expand`` there.

Cache images that are there stay as they are, and are built anew from their
working sets, one at a time while nothing else is in hand, and where they have
room beside all that is there: nothing is evicted for that. A compute host that
has one does not fetch it again for that. One whose QEMU was built without zstd
fetches none of them: its servers read from the base, and its log says so.
Quotas of images bound a cache image as if nothing was compressed.

Related options:

* ``default_quota``
* ``max_quota``
"""),
    cfg.BoolOpt('build_snapshots',
                default=True,
                help="""
Whether images that are snapshots of servers (image_type=snapshot or backup) get
a cache image. If not, their state becomes skipped, and servers boot from them
the stock way.

One costs nothing until a server boots from it: it is taken up then, and its
first servers wait for its base as those of any image that is not known yet.
There is no profile boot of it: its working set is that of the image that its
server was made of, if this service has one and the snapshot's project may see
that image. Else its first server's boot is recorded.
"""),
    cfg.IntOpt('concurrent_builds',
               default=2,
               min=1,
               max=64,
               help="""
How many images are recorded at the same time, each as a server in the service
project, and how many are built.

Owners of images (projects) take turns. All places but one are for any owner's
images, so that an image that does not end to boot holds up no other owner's; it
does if there is but one place, until ``profile_timeout``.
"""),
    cfg.IntOpt('poll_interval',
               default=30,
               min=1,
               help="""
Seconds between two looks at images whose import was announced but that are not
active yet, and at exports that wait for their last reader.
"""),
    cfg.IntOpt('show_state_after',
               default=300,
               min=-1,
               help="""
Seconds for which an image has to be active, and unchanged, before its owner
sees in its property ``bootcache_state`` that it is ready, has failed or is
skipped. Operators see its state at once, by ``bootcache image show``.

Possible values:

* -1: never. What was set before is taken away.
* 0: within ``poll_interval``.

Related options:

* ``poll_interval``
"""),
    cfg.IntOpt('deletion_delay',
               default=300,
               min=0,
               help="""
Seconds for which Glance has to answer that it does not have an image before
what there is of it is removed. It is given out no more from the first such
answer on, and again as soon as Glance has it.

That is so if Glance notified the deletion. If it did not, its list of images
must also show at least half of the other known private and shared ones, and at
most a tenth of all images, or five, are removed within a day. Of those that are
left over by that ``bootcache image delete`` removes what there is.
"""),
    cfg.IntOpt('export_idle',
               default=900,
               min=60,
               help="""
Seconds after which an image's base is not served any more if nobody has asked
for it, no compute host is connected to it, and none has reported that it needs
it. It is served again, within milliseconds, when somebody asks.
"""),
    cfg.StrOpt('max_virtual_size',
               default='16TiB',
               help="""
Upper bound on the size that an image's disk has. An image with a larger one is
skipped: whoever opens a qcow2 keeps a table in memory that grows with it.

Possible values:

* Bytes, or a number with a unit: 16TiB.
"""),
    cfg.StrOpt('notification_topic',
               default='bootcache_images',
               help="""
Topic of Glance's notifications: one on which nobody else listens.

Possible values:

* One of the topics that Glance is told to send to.
* ``notifications``, where others listen as well: see ``notification_pool``.

Related options:

* ``topics`` in ``[oslo_messaging_notifications]`` of glance-api.conf.
* ``notification_pool``
"""),
    cfg.StrOpt('notification_pool',
               help="""
Pool in which the storage service listens, for a topic that others listen to as
well: they and this service get every message then. The pool's queue is filled
whether or not this service runs, and so is the topic's own queue, if nobody
else empties it; a topic of its own is better.

Possible values:

* The name of a queue.
* Unset: none. On the topic ``notifications``: bootcache-images.

Related options:

* ``notification_topic``
"""),
]


_ALL = [*opts, *exportconf.opts, *rbdconf.opts, *snapshotconf.opts, *tenantconf.opts,
        *bootconf.opts, *warmconf.opts, *metricsconf.opts, *slotconf.opts]

default_opts = [
    cfg.HostAddressOpt('host',
                       default=socket.gethostname(),
                       sample_default='<your_hostname>',
                       help="""
Name of this storage service on the message bus.
"""),
]


def auth_opts() -> list[cfg.Opt]:
    """Return the options of the credentials, for sample configurations."""
    return [*ks_loading.get_auth_common_conf_options(),
            *ks_loading.get_auth_plugin_conf_options('v3password'),
            *ks_loading.get_session_conf_options(), *ks_loading.get_adapter_conf_options()]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the storage side's options, the shared ones included."""
    shared.register_opts(conf)
    conf.register_opts(_ALL, group=shared.GROUP)
    ks_loading.register_auth_conf_options(conf, AUTH_GROUP)
    ks_loading.register_session_conf_options(conf, AUTH_GROUP)
    ks_loading.register_adapter_conf_options(conf, AUTH_GROUP)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return the options for oslo-config-generator."""
    return [('DEFAULT', default_opts), (shared.GROUP, _ALL),
            (AUTH_GROUP, auth_opts())]


def check(conf: cfg.ConfigOpts) -> None:
    """Check values that belong together.

    :raises ConfigurationError: naming the option and the cure.
    """
    group = conf[shared.GROUP]
    sizes = {}
    for name in ('default_quota', 'max_quota', 'max_virtual_size'):
        try:
            sizes[name] = properties.parse_size(group[name])
        except ValueError:
            raise ConfigurationError(f'[bootcache]{name}={group[name]!r} is not a size;'
                                     ' give bytes or a unit, as in 512MiB') from None
    if not sizes['max_virtual_size']:
        raise ConfigurationError(f'[bootcache]max_virtual_size={group.max_virtual_size} is below 1'
                                 ' byte, so no image is served; raise it')
    if sizes['default_quota'] < properties.MIN_QUOTA:
        raise ConfigurationError(f'[bootcache]default_quota={group.default_quota} is below'
                                 f' {properties.MIN_QUOTA} bytes; raise it')
    if sizes['default_quota'] > sizes['max_quota']:
        raise ConfigurationError(f'[bootcache]default_quota={group.default_quota} is over'
                                 f' max_quota={group.max_quota}; raise max_quota or lower'
                                 ' default_quota')
    try:
        properties.compile_marker(group.boot_marker)
    except ValueError as error:
        raise ConfigurationError(f'[bootcache]boot_marker: {error}') from None
    disk_limits(conf)
    memory_limits(conf)
    warmconf.aggregates(conf)


def disk_limits(conf: cfg.ConfigOpts) -> tier.TierLimits:
    """Return the limits of the storage disk tier; the largest cache image fits it.

    :raises ConfigurationError: naming the option and the cure.
    """
    group = conf[shared.GROUP]
    return tier.parse_limits('storage_disk_quota', group.storage_disk_quota, group.high_watermark,
                             group.low_watermark, minimum=properties.parse_size(group.max_quota),
                             why=f', the size of one cache image by max_quota={group.max_quota}')


def memory_limits(conf: cfg.ConfigOpts) -> tier.TierLimits:
    """Return the limits of the storage memory tier.

    :raises ConfigurationError: naming the option and the cure.
    """
    group = conf[shared.GROUP]
    return tier.parse_limits('storage_memory_quota', group.storage_memory_quota,
                             group.high_watermark, group.low_watermark,
                             minimum=properties.MIN_QUOTA)


def check_tiers(conf: cfg.ConfigOpts) -> None:
    """Check the tiers' directories; only where the storage service itself is about to run.

    :raises ConfigurationError: naming the option and the cure.
    """
    group = conf[shared.GROUP]
    tier.check_directory('state_dir', group.state_dir, make=True, mode=0o750)
    memory = group.storage_memory_directory
    if memory is None:
        return
    tier.check_apart({'state_dir': group.state_dir, 'storage_memory_directory': memory})
    tier.check_directory('storage_memory_directory', memory, memory=True)
    tier.check_memory('storage_memory_directory', memory, 'storage_memory_quota',
                      memory_limits(conf).quota)
