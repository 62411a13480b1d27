"""One compute host: its parts, wired together."""

import contextlib
import functools

from oslo_config import cfg
from oslo_log import log as logging

from bootcache import certificates, exception, listening, tls
from bootcache import conf as bootcache_conf
from bootcache.connectors import probe, supervisor
from bootcache.connectors.connectors import Connectors
from bootcache.connectors.starter import PROGRAM, Starter
from bootcache.tier import Medium
from nova_bootcache import conf as nova_conf
from nova_bootcache.asking.client import ExchangeAsking, HostsClient
from nova_bootcache.cache.cachefiles import CacheFiles
from nova_bootcache.chains.chains import Chains
from nova_bootcache.chains.chainstores import Parts
from nova_bootcache.chains.serving import Serving
from nova_bootcache.gateway.below import Below
from nova_bootcache.gateway.connections import BaseConnections
from nova_bootcache.gateway.daemon import Gateway
from nova_bootcache.gateway.hostclones import HostClones
from nova_bootcache.gateway.hostneeds import HostNeeds
from nova_bootcache.metrics import HostMetrics
from nova_bootcache.recording.bootwatch import WatchedBoots
from nova_bootcache.recording.profilerecordings import ProfileRecordings
from nova_bootcache.storagenode import TakenCertificates
from nova_bootcache.tiers.arrivals import Arrivals
from nova_bootcache.tiers.exchanges import Exchanges
from nova_bootcache.tiers.expansions import Expand, Expansions
from nova_bootcache.tiers.fetches import Fetches, Readable, WrongFiles
from nova_bootcache.tiers.room import Room

LOG = logging.getLogger(__name__)


class ComputeHost:
    """The parts of one compute host; see nova_bootcache/chains/chainstores.py for what each is.

    :ivar encryption: how it connects to storage nodes.
    :ivar certificates: whether QEMU takes this host's.
    :ivar expiry: tells of certificates that end.
    :ivar serving: whether new servers are served.
    :ivar clones: of bases, in Ceph.
    :ivar connections: by which bases are read.
    :ivar chains: makes and keeps servers' chains.
    :ivar expansions: expands cache images that came compressed.
    :ivar metrics: of boots, fetches and tiers.

    :param conf: Nova's configuration, with the driver's options registered.
    :param cache_directory: of the host's cache images.
    :param direct_io: whether servers' disks are opened with O_DIRECT.
    :param base_directory: Nova's own directory of bases.
    :raises ConfigurationError: if the options of tiers, certificates or Ceph make no sense.
    """

    def __init__(self, conf: cfg.ConfigOpts, cache_directory: str, direct_io: bool = True,
                 base_directory: str | None = None):
        group = conf[bootcache_conf.GROUP]
        tiers = nova_conf.tiers(conf, cache_directory, direct_io, base_directory)
        limits = {Medium.DISK: tiers.disk}
        if tiers.memory_directory is not None:
            assert tiers.memory is not None
            limits[Medium.MEMORY] = tiers.memory
        probe.check()
        self.report_interval = int(group.report_interval)
        self.encryption = nova_conf.encryption(conf)
        self.certificates = TakenCertificates(self.encryption.directory)
        # Upkeep tells of those, and looks again: new servers go the stock way meanwhile.
        with contextlib.suppress(exception.CertificateExpired, exception.Interrupted):
            self.certificates.look()
        self.expiry = certificates.configured(group, tls.Endpoint.CLIENT)
        self.storage = HostsClient(conf, self.encryption)
        self.cache = CacheFiles(cache_directory, tiers.memory_directory)
        self.clones = HostClones(nova_conf.ceph(conf), group.base_access == nova_conf.RBD)
        self.clones.check()
        run_dir = group.gateway_run_dir
        starts = group.gateway_autostart and not listening.is_served(
            supervisor.socket_path(run_dir))
        self._starter = Starter(run_dir) if starts else None
        do = self._starter.do if self._starter else functools.partial(supervisor.ask, run_dir)
        self._supervisor_path = '' if self._starter else supervisor.socket_path(run_dir)
        self.connections = BaseConnections(Connectors(run_dir, do), self.encryption,
                                           self.clones)
        self.gateway = Gateway(run_dir, group.gateway_socket, self.connections,
                               group.gateway_autostart, group.gateway_group)
        self.needs = HostNeeds()
        self.below = Below(self.gateway, self.cache, self.needs)
        self.metrics = HostMetrics()
        self.room = Room(self.cache, self.below, self.needs, limits, self.metrics)
        self._readable = Readable()
        self.exchange_asking = ExchangeAsking(conf, self.storage)
        self.fetches = Fetches(self.cache, self.room, WrongFiles(), self._readable,
                               group.gateway_socket, self.metrics, self.encryption,
                               Exchanges(conf, self.exchange_asking, self.metrics))
        self.arrivals = Arrivals(self.cache, self.fetches, self.room, self.below, self.gateway,
                                 self.needs, self.metrics)
        self.boots = WatchedBoots(self.below.stores, self.needs, self.storage.send,
                                  self.drop_useless_stores, self.metrics)
        self.expansions = Expansions(self.cache, self.room, self.needs, Expand(group.expand),
                                     group.settle_delay, base_directory)
        self.recordings = ProfileRecordings(self.gateway, cache_directory)
        self.serving = Serving(group, self.needs, self.boots, cache_directory)
        parts = Parts(
            self.storage, self.cache, self.gateway, self.needs, self.below, self.room, self.fetches,
            self.arrivals, self.boots, self.recordings, self.metrics)
        self.chains = Chains(group, parts, self.serving, tiers.store_limit)
        self.connections.find = self.chains.find_base

    def start(self, hostname: str) -> None:
        """Bring up the gateway, and end what an earlier process left in it.

        A gateway that does not come up is logged: new servers then boot the stock way.
        """
        self.storage.start(hostname)
        try:
            # What looks like a leftover may be another host's.
            if not self.serving.refusal:
                self.cache.prepare()
        except OSError as error:
            LOG.error('bootcache: the tiers cannot be cleaned: %s', error)
        self._readable.find_out()
        self.connections.start(entry.remote for entry in self.cache.entries())
        try:
            if self._starter:
                self._starter.listen()
            self.gateway.start()
            # Whoever was at work on it is gone.
            self.reconcile()
        except exception.BootcacheError as error:
            LOG.error('bootcache: the gateway is not ready, and servers that need it boot the'
                      ' stock way until it is: %s', error)

    def ensure_ready(self) -> None:
        """See to it that chains can be opened; a gateway that does not run may be started.

        :raises StorageDaemonError: if the gateway does not answer, or nobody starts connectors.
        """
        self.gateway.start()
        if self._supervisor_path and not listening.is_served(self._supervisor_path):
            raise exception.StorageDaemonError(
                f'nothing answers at {self._supervisor_path}; start {PROGRAM}.service')

    def stop(self) -> None:
        """Stop all recording and expanding; the gateway goes on serving this host's servers."""
        self.expansions.stop()
        self.below.stop()
        self.connections.stop()

    def reconcile(self) -> None:
        """Have the gateway end what nobody of this process looks after, and forget what it lost.

        :raises BootcacheError: if the gateway does not answer, or refuses some of it.
        """
        try:
            self.below.reconcile(entry.remote.image_id for entry in self.cache.entries())
        finally:
            self.recordings.discard_left_over()

    def drop_useless_stores(self) -> None:
        """Remove the growing stores that are of no more use.

        That of a cold image goes on growing to its limit, as servers share it; once there is a
        whole cache image, and no boot is watched, nobody gains by it.
        """
        for store in self.below.stores.stores():
            entry = self.cache.known(store.name)
            if entry is None or entry.cache_image is None:
                continue
            try:
                with self.needs.deciding.of(store.name):
                    if not self.needs.is_booting(store.name):
                        self.below.drop_store(store.name)
            except exception.BootcacheError as error:
                LOG.info('image %s: its growing store stays for now: %s', store.name, error)
