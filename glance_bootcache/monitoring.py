"""How the storage service is watched: metrics for Prometheus and ``/healthcheck``, by HTTP."""

import time
from collections import Counter
from collections.abc import Callable

import sqlalchemy as sa
from oslo_config import cfg

from bootcache import certificates, tls
from bootcache import conf as bootcache_conf
from bootcache.http import metrics as shared_metrics
from bootcache.http.listener import HttpListener
from bootcache.http.metrics import Values
from bootcache.manifest import ImageState
from bootcache.rpc import transport
from bootcache.rpc.messages import ExchangeWay
from bootcache.tier import Medium
from glance_bootcache import health
from glance_bootcache.db.engine import Database
from glance_bootcache.db.models import HostRow
from glance_bootcache.exchange.offers import Given
from glance_bootcache.health import HealthChecks
from glance_bootcache.hosts.holdings import Hosts
from glance_bootcache.images.running import Running
from glance_bootcache.metrics import ServiceMetrics
from glance_bootcache.nodes.homes import Homes
from glance_bootcache.nodes.membership import Membership, NodeState
from glance_bootcache.nodes.standbys import Standbys
from glance_bootcache.rpc.rejected import RejectedMessages
from glance_bootcache.snapshots.snapshotjobs import SnapshotJobs
from glance_bootcache.storage.exporters import Exporters
from glance_bootcache.storage.store import ImageStore
from glance_bootcache.storage.tiers import StorageTiers

# Of nodes that are switched off as an operator wants.
_DRAINED = 'drained'
# By the names that Given has for them.
_GIVERS = {'hosts': 'exchanged_bytes', 'storage_node': 'storage_bytes',
           'exporter': 'copied_bytes'}


def checks(conf: cfg.ConfigOpts, database: Database, exporters: Exporters) -> HealthChecks:
    """Return what finds out whether message bus, database and exporters answer.

    :param conf: configuration of the storage service.
    """
    # The question takes the way of all: by the bus to this service, and back.
    ask_bus = health.bus_check(transport.get_transport(conf), transport.target(server=conf.host))

    def ask_database() -> None:
        database.read(lambda connection: connection.execute(sa.select(HostRow.id).limit(1)))

    return HealthChecks({health.BUS: ask_bus, health.DATABASE: ask_database,
                         health.EXPORTER: exporters.check})


def sample(metrics: ServiceMetrics, conf: cfg.ConfigOpts, *, store: ImageStore, running: Running,
           tiers: StorageTiers, hosts: Hosts, given: Given, rejected: RejectedMessages,
           snapshots: SnapshotJobs, database: Database, health_checks: HealthChecks,
           membership: Membership, homes: Homes, standbys: Standbys) -> None:
    """Add what is read when Prometheus asks to the storage service's metrics.

    :param conf: configuration of the storage service.
    """
    gauge, counter = metrics.sampled.gauge, metrics.sampled.counter
    manifests = metrics.sampled.once(lambda: store.manifests())
    sums = metrics.sampled.once(lambda: hosts.sums())
    expiry = certificates.configured(conf[bootcache_conf.GROUP], tls.Endpoint.SERVER)
    gauge('bootcache_build_info', 'Is 1; its label tells the version.', shared_metrics.version,
          ['version'])
    gauge('bootcache_backend_up', 'Whether the message bus, the database and the exporter answer.',
          lambda: {(name,): float(not failure)
                   for name, failure in health_checks.failures().items()}, ['backend'])

    def images() -> Values:
        counts = Counter(running.state(manifest) for manifest in manifests())
        return {(state.value,): counts[state] for state in ImageState}

    gauge('bootcache_images', 'Images by state.', images, ['state'])
    gauge('bootcache_queue_images', 'Images that wait for their turn, by the step that is next.',
          lambda: {(step,): len(since) for step, since in running.waiting_since().items()},
          ['step'])

    def oldest() -> Values:
        now = time.monotonic()
        return {(step,): now - min(since, default=now)
                for step, since in running.waiting_since().items()}

    gauge('bootcache_queue_oldest_seconds', 'Seconds for which the image waits that has waited for'
          ' longest; 0 if none does.', oldest, ['step'])
    gauge('bootcache_tier_used_bytes', 'Bytes of the cache images in a tier.',
          lambda: _by_tier(tiers.used(manifests())), ['tier'])
    gauge('bootcache_tier_quota_bytes', 'Bytes that a tier may have.',
          lambda: _by_tier(tiers.quotas()), ['tier'])
    gauge('bootcache_hosts', 'Compute hosts that have reported within a day: those that report, and'
          ' those that are silent.', lambda: {('reporting',): sums().reporting,
                                              ('silent',): sums().silent}, ['state'])
    gauge('bootcache_reported_guests_paused', 'Servers of all reporting hosts whose guests are'
          ' paused by an I/O error.', lambda: {(): sums().paused})
    gauge('bootcache_reported_servers_unsettled', 'Servers of all reporting hosts that depend on'
          ' bootcache.', lambda: {(): sums().unsettled})
    gauge('bootcache_certificate_end_timestamp_seconds', 'When a certificate of this service ends,'
          ' by its file.', lambda: {(name,): end for name, end in expiry.ends().items()},
          ['certificate'])
    gauge('bootcache_reported_certificate_end_timestamp_seconds', 'When the first certificate of'
          ' the reporting hosts ends.', lambda: _known(sums().certificates_end))
    gauge('bootcache_snapshots', 'Snapshots that hosts send, by step; those that are over are'
          ' remembered for a while.',
          lambda: {(step,): count for step, count in snapshots.counts().items()}, ['step'])
    gauge('bootcache_storage_nodes', 'Storage nodes by state, as this one sees them; none where'
          ' there is one alone.', lambda: _nodes(membership), ['state'])
    gauge('bootcache_images_without_standby', 'Images of this storage node whose base hosts need'
          ' and no other node has or can read; none where there is one node alone.',
          lambda: {(): standbys.missing} if membership.are_several else {})
    counter('bootcache_images_taken_over', 'Images that this storage node has taken over from'
            ' others.', lambda: {(): homes.taken_over})
    counter('bootcache_database_errors', 'Queries and changes that the database did not make, in'
            ' the end.', lambda: {(): database.errors})
    counter('bootcache_database_retries', 'Queries and changes that were made again, as the'
            ' database asked for that.', lambda: {(): database.retries})
    counter('bootcache_rejected_messages', 'RPC messages that were rejected, by the field that is'
            ' wrong.', lambda: {key: float(count) for key, count in rejected.counts().items()},
            ['method', 'field'])
    counter('bootcache_exchange_files', 'Files that came to hosts that asked for them by exchange,'
            ' by how they came.', _given(given, {way: f'{way}_files' for way in ExchangeWay}),
            ['way'])
    counter('bootcache_exchange_bytes', 'Bytes of the files that hosts asked for by exchange, by'
            ' who gave them.', _given(given, _GIVERS), ['giver'])


def _nodes(membership: Membership) -> Values:
    if not membership.are_several:
        return {}
    counts = Counter(_DRAINED if node.record.wish else node.state.value
                     for node in membership.nodes())
    return {(state,): counts[state] for state in (*(one.value for one in NodeState), _DRAINED)}


def _by_tier(values: dict[Medium, int]) -> Values:
    return {(f'storage_{medium.value}',): value for medium, value in values.items()}


def _known(value: float | None) -> Values:
    return {} if value is None else {(): value}


def _given(given: Given, names: dict[str, str]) -> Callable[[], Values]:
    def read() -> Values:
        totals = given.totals()
        return {(str(label),): totals[name] for label, name in names.items()}

    return read


def listen(conf: cfg.ConfigOpts, metrics: ServiceMetrics, health_checks: HealthChecks
           ) -> HttpListener:
    """Return what answers at ``[bootcache]metrics_port``.

    :raises ConfigurationError: if nothing can listen there, or the plugins are not installed.
    """
    return HttpListener(conf, {'/metrics': shared_metrics.app(metrics.registry),
                               '/healthcheck': health_checks.app()})
