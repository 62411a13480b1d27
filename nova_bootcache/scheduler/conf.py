"""Options of nova-scheduler, in Nova's own group where operators look for weighers."""

from oslo_config import cfg

GROUP = 'filter_scheduler'
MULTIPLIER = 'bootcache_weight_multiplier'

opts = [
    cfg.FloatOpt(MULTIPLIER,
                 default=1.0,
                 help="""
Bootcache weight multiplier ratio.

How strongly nova-scheduler prefers hosts that hold the cache image of the
requested image, or for a snapshot that of its parent. The weight itself is
between 0 (cold) and 1 (in the host's memory).

Possible values:

* A positive number: warm hosts are preferred. The higher, the fewer hosts a
  storm of servers of one image lands on.
* 0: warmth does not count.
* A negative number: servers of one image are spread over cold hosts.

Related options:

* ``[filter_scheduler]weight_classes`` has to name
  ``nova_bootcache.scheduler.weights.BootCacheWeigher``.
* An aggregate's metadata ``bootcache_weight_multiplier`` has precedence.
"""),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the scheduler's options."""
    conf.register_opts(opts, group=GROUP)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return the options for oslo-config-generator."""
    return [(GROUP, opts)]
