"""Options of warming, in the group ``[bootcache]``."""

from oslo_config import cfg

from bootcache import conf as shared
from bootcache.exception import ConfigurationError

opts = [
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
]

_NONE = 'none'


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
