"""How nova-compute is watched: metrics for Prometheus, by HTTP."""

from collections.abc import Callable

from oslo_config import cfg
from oslo_log import log as logging

from bootcache import conf as bootcache_conf
from bootcache.exception import ConfigurationError
from bootcache.http import metrics as shared_metrics
from bootcache.http.listener import HttpListener
from bootcache.http.metrics import Values
from bootcache.rpc.report import PausedGuests
from nova_bootcache.chains.computehost import ComputeHost
from nova_bootcache.metrics import tier
from nova_bootcache.settling.unsettled import Unsettled

LOG = logging.getLogger(__name__)


def sample(host: ComputeHost, unsettled: Unsettled, paused: Callable[[], PausedGuests]) -> None:
    """Add what is read when Prometheus asks to a compute host's metrics.

    :param unsettled: the servers that depend on bootcache.
    :param paused: returns the servers whose guests are paused.
    """
    gauge, limits = host.metrics.sampled.gauge, host.room.limits
    gauge('bootcache_build_info', 'Is 1; its label tells the version.', shared_metrics.version,
          ['version'])
    gauge('bootcache_tier_used_bytes', 'Bytes of the cache images in a tier, and of all that is'
          ' promised room there.',
          lambda: {(tier(medium),): host.room.used(medium) for medium in limits}, ['tier'])
    gauge('bootcache_tier_quota_bytes', 'Bytes that a tier may have.',
          lambda: {(tier(medium),): limits[medium].quota for medium in limits}, ['tier'])
    gauge('bootcache_guests_paused', 'Servers of this host whose guests are paused by an I/O'
          ' error.', lambda: {(): paused().servers})

    def servers() -> Values:
        report = unsettled.report()
        return {} if report is None else {(): report.servers}

    gauge('bootcache_servers_unsettled', 'Servers of this host that depend on bootcache; missing'
          ' while that is not known.', servers)
    gauge('bootcache_servers_unsettled_oldest_seconds', 'Seconds since the start of the server that'
          ' is to be settled and is not for longest; 0 if there is none.',
          lambda: {(): unsettled.oldest()})
    gauge('bootcache_certificate_end_timestamp_seconds', 'When a certificate of this host ends, by'
          ' its file.', lambda: {(name,): end for name, end in host.expiry.ends().items()},
          ['certificate'])


def listen(conf: cfg.ConfigOpts, host: ComputeHost) -> HttpListener | None:
    """Return what answers at ``[bootcache]metrics_port``; None if nothing does.

    A port that somebody has keeps no server from starting: it is logged.
    """
    if not conf[bootcache_conf.GROUP].metrics_port:
        return None
    try:
        return HttpListener(conf, {'/metrics': shared_metrics.app(host.metrics.registry)})
    except ConfigurationError as error:
        LOG.error('bootcache: nobody can watch this host: %s', error)
        return None
