"""Options of the storage service and of the Glance hook, in the group ``[bootcache]``."""

import socket

from keystoneauth1 import loading as ks_loading
from oslo_config import cfg

from bootcache import cachelayout, properties, tier
from bootcache import conf as shared
from bootcache.connectors import connectors
from bootcache.exception import ConfigurationError
from bootcache.exchange import limits
from glance_bootcache import bootconf

AUTH_GROUP = 'service_auth'
# Values of snapshot_exporters.
OWN, COMMON = 'own', 'common'
_NONE = 'none'
# Of an exporter of one host.
_LONGEST_SOCKET = 'exporter-65535.qmp'

opts = [
    cfg.StrOpt('state_dir',
               default='/var/lib/bootcache',
               help="""
Directory of the storage service's state: one directory an image, with its
base and cache image. Its cache images are the storage disk tier.

Related options:

* ``storage_disk_quota``
"""),
    cfg.StrOpt('run_dir',
               default='/run/glance-bootcache',
               help="""
Directory for the exporter's monitor socket, pid file and log; with
``rbd_store_pool`` of the connectors through which it reads bases as well. An
absolute path of at most 59 bytes then, and of 88 without.
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
"""),
    cfg.StrOpt('storage_memory_quota',
               default='4GiB',
               help="""
Size that all cache images in ``storage_memory_directory`` may have together.
One that does not fit is served from ``state_dir``.

Possible values:

* Bytes, or a number with a unit: 4GiB.

Related options:

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

Owners of images (projects) take turns. Where all places are taken, half as many
again are for owners who have no image in hand, one each: an image that does not
end to boot holds up no other owner's; it does if there is but one place, until
``profile_timeout``. The service project needs quota for all of them: for three
servers, if this is 2.
"""),
    cfg.IntOpt('poll_interval',
               default=30,
               min=1,
               help="""
Seconds between two looks at images whose import was announced but that are not
active yet, and at exports that wait for their last reader. An image that has
not changed for longer is looked at after as long as that, an hour at most:
when it becomes active, a notification tells.
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

    # Of the exporters: where they serve, and whom.
    cfg.HostAddressOpt('export_host',
                       default='127.0.0.1',
                       help="""
Address on which the exporter serves bases and cache images over NBD: IPv4, or
IPv6 without brackets. On one that is not of this machine alone the exporter
speaks TLS, or the service does not start unless ``allow_plain_nbd`` is set.

Related options:

* ``tls_directory``
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
let in there, and what is served there is what the host needs, or has asked for in
the last 15 minutes. A host that does not tell the name in its
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
"""),

    # Of bases in Ceph.
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
RBD namespace, within that pool, of the clones of all storage nodes that have
one database, and of no others.

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

* ``snapshot_depth``
"""),

    # Of snapshots that share with their base.
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

    # Of what tenants may have served, and how much of it.
    cfg.BoolOpt('verify_signatures',
                default=False,
                help="""
Whether the storage service verifies the signatures of images that have one
(img_signature and its like), and serves them. If not, signed images are
skipped, and their servers go the stock way.

The certificate comes from the key manager, as Nova and Glance get it: with the
credentials in ``[service_auth]``, whose user has to be allowed to read it. With
Barbican a certificate's owner allows that ("openstack acl user add").

Compute hosts where Nova checks signatures, and servers with trusted
certificates, have Nova's own code get signature and certificate, and validate
the certificate, at each server's start. They are served if the storage service
has verified the bytes by just these, and go the stock way otherwise.

Related options:

* ``backend`` in ``[key_manager]``, and ``[barbican]`` or ``[vault]``: castellan's.
* ``verify_glance_signatures`` in ``[glance]`` of nova.conf on compute hosts.
"""),
    cfg.IntOpt('changes_per_hour',
               default=1000,
               min=0,
               help="""
How many images of one owner (project) are taken up within an hour: registered,
changed in their content, or in properties by which their cache images are made
anew. Others of the owner's wait, pending, until the hour is over; nothing is
lost. Their servers boot as ever. What an operator orders, a server that boots
needs, or is done again after a restart or an upgrade, is not counted.

Owners take turns whatever this is: it bounds what one of them costs.

Possible values:

* A number of images.
* 0: any number.

Related options:

* ``concurrent_builds``
"""),

    # Of warming.
    cfg.ListOpt('warm_on_register',
                default=[],
                help="""
Host aggregates whose hosts get the cache image of an image as soon as it is
ready for the first time, before any server asks for it. Each host fetches it
once; what later boots add to it, hosts fetch with a boot. Snapshots and
backups of servers are left out: most of them are booted once.

Possible values:

* Names of aggregates, as ``openstack aggregate list`` shows them, separated by
  commas. A name with a comma in it cannot be given.
* Empty, or ``none``: no host is warmed unless somebody asks for it.

Related options:

* ``warm_concurrency``
* ``[image_cache]precache_concurrency`` of nova-conductor: how many hosts of an
  aggregate fetch at the same time.
* ``warm_bandwidth`` of the compute hosts: the rate at which each one fetches.
"""),
    cfg.IntOpt('warm_concurrency',
               default=1,
               min=1,
               max=64,
               help="""
How many aggregates are warmed at the same time, where one aggregate that is
warmed for two images counts twice. The others wait.

Related options:

* ``[image_cache]precache_concurrency`` of nova-conductor: how many hosts of an
  aggregate fetch at the same time.
* ``warm_bandwidth`` of the compute hosts: the rate at which each one fetches.
"""),
    cfg.IntOpt('warm_timeout',
               default=600,
               min=1,
               max=86400,
               help="""
Seconds that a host which is to be warmed is waited for, since Nova was asked or
another host of the aggregate reported, whichever was later. It has to be longer
than the fetch of one cache image takes.

A host from which nothing at all is heard for 180 seconds is not waited for any
longer, whatever this says: with bootcache's driver each reports every minute.

Related options:

* ``warm_attempts``
* ``warm_bandwidth`` of the compute hosts.
"""),
    cfg.IntOpt('warm_attempts',
               default=3,
               min=1,
               max=100,
               help="""
How many times Nova is asked to warm a host, if the host reports an error or
does not report. There are 30 seconds between the first two attempts, and twice
as many before each further one, up to ten minutes.

Related options:

* ``warm_timeout``
"""),

    # Of how many hosts get full bases from the storage node.
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

_ALL = [*opts, *bootconf.opts]

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
            raise ConfigurationError(f'[bootcache]{name}={group[name]}: is not a size;'
                                     ' give bytes or a unit, as in 4GiB') from None
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
        raise ConfigurationError(f'[bootcache]boot_marker: {error}; give a regular'
                                 ' expression that fits within a line of the console') from None
    disk_limits(conf)
    memory_limits(conf)
    aggregates(conf)
    shared.check_sockets(conf)
    if group.exchange_address:
        limits.read(conf)


def check_run_dir(conf: cfg.ConfigOpts) -> None:
    """Check that the paths of the sockets in ``run_dir`` are not too long.

    :raises ConfigurationError: naming the option and the cure.
    """
    shared.check_socket(conf, 'run_dir', connectors.LONGEST_SOCKET
                        if conf[shared.GROUP].rbd_store_pool else _LONGEST_SOCKET)


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
        shared.warn_unused(conf, 'storage_memory_quota', 'storage_memory_directory')
        return
    tier.check_apart({'state_dir': group.state_dir, 'storage_memory_directory': memory})
    tier.check_directory('storage_memory_directory', memory,
                         memory=('storage_memory_quota', memory_limits(conf).quota))


def aggregates(conf: cfg.ConfigOpts) -> list[str]:
    """Return the names of the aggregates that are warmed when an image is registered.

    :raises ConfigurationError: naming the option and the cure.
    """
    names = list(dict.fromkeys(conf[shared.GROUP].warm_on_register))
    if names == [_NONE]:
        return []
    for name in names:
        if name == _NONE or not name or len(name) > 255:
            raise ConfigurationError(
                f'[bootcache]warm_on_register: {name[:40]!r} among {len(names)} names is no'
                ' aggregate; give names of aggregates, or nothing but none')
    return names
