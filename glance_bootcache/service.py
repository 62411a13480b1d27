"""The storage service: controller of images, RPC server and notification listener, one process."""

import functools
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging

from bootcache import bus, exception, optionfault, scratch
from bootcache import conf as bootcache_conf
from bootcache.rpc import messages, transport
from glance_bootcache import monitoring, startchecks
from glance_bootcache.db import start
from glance_bootcache.db.engine import Database
from glance_bootcache.db.writer import Writer
from glance_bootcache.exchange.offers import ExchangeOffers
from glance_bootcache.filestore.registrars import Registrars
from glance_bootcache.filestore.snapshots import FileSnapshots
from glance_bootcache.glance.images import Images
from glance_bootcache.glance.listener import ImageEvents, get_listener
from glance_bootcache.glance.registering import TrialImages
from glance_bootcache.hosts.holdings import Hosts
from glance_bootcache.hosts.orders import Orders
from glance_bootcache.hosts.reportedneeds import ReportedNeeds
from glance_bootcache.images.cephbases import CephBases
from glance_bootcache.images.controller import Controller
from glance_bootcache.images.deletions import Deletions
from glance_bootcache.images.imagework import ImageWork
from glance_bootcache.images.publishing import StatePublisher
from glance_bootcache.images.readerrors import ReadErrors
from glance_bootcache.images.reportedboots import ReportedBoots
from glance_bootcache.images.retiring import Retiring
from glance_bootcache.images.running import Running
from glance_bootcache.images.storagedisk import DiskRoom
from glance_bootcache.metrics import ServiceMetrics
from glance_bootcache.nodes import node as node_rows
from glance_bootcache.nodes import selfcheck
from glance_bootcache.nodes.commands import NodeCommands
from glance_bootcache.nodes.homes import Homes, HomeUpkeep
from glance_bootcache.nodes.leftovers import Leftovers
from glance_bootcache.nodes.membership import Membership
from glance_bootcache.nodes.node import StorageNode
from glance_bootcache.nodes.routing import ALONE, Routing
from glance_bootcache.nodes.standbys import Standbys
from glance_bootcache.profileboot.throughnova import NovaProfileBoots
from glance_bootcache.rpc import messagesize, validation
from glance_bootcache.rpc.endpoints import Endpoints
from glance_bootcache.rpc.operators import Operators
from glance_bootcache.rpc.rejected import RejectedMessages
from glance_bootcache.snapshots.claims import Claims
from glance_bootcache.snapshots.rbdstore import RbdSnapshots
from glance_bootcache.snapshots.records import Records
from glance_bootcache.snapshots.sending import Sending
from glance_bootcache.snapshots.snapshotjobs import SnapshotJobs
from glance_bootcache.storage import serving
from glance_bootcache.storage.exporters import Exporters
from glance_bootcache.storage.lastuses import LastUses
from glance_bootcache.storage.store import ImageStore
from glance_bootcache.storage.tiers import StorageTiers
from glance_bootcache.upkeep import ServiceUpkeep
from glance_bootcache.warming.runner import NovaPrecache, Warming
from glance_bootcache.warming.warmrequests import WarmRequests

LOG = logging.getLogger(__name__)


_FAULT = 'glance-bootcache cannot be started: %s'


def tell_fault(conf: cfg.ConfigOpts, error: Exception) -> None:
    """Say why the service cannot be started: in its log, and on standard error if that is a file.

    :param error: with its traceback, if it is none that was to be expected.
    """
    expected = isinstance(error, (exception.BootcacheError, OSError, cfg.ConfigSourceValueError))
    said = optionfault.told(error, conf)
    LOG.error(_FAULT, said, exc_info=None if expected else error)
    if conf.log_file or conf.log_dir or conf.use_syslog:
        print(_FAULT % said, file=sys.stderr, flush=True)


class StorageService:
    """What ``glance-bootcache`` runs.

    :param conf: configuration, read; what the exporter needs of it is checked already.
    :param check: checks the rest of it, and raises; called when the bases are served.
    """

    def __init__(self, conf: cfg.ConfigOpts, check: Callable[[], None]):
        self._conf = conf
        self._check = check
        self._started: list[Any] = []

    def start(self) -> None:
        """Start all of it.

        The exporter, which servers that run read from, is started first, and serves whatever is
        wrong with the rest.

        :raises Exception: why the service cannot be started; ``tell_fault`` says it.
        """
        try:
            self._start()
        except Exception as error:
            if not bus.is_refusal(error):
                raise
            raise exception.ConfigurationError(
                f'transport_url: RabbitMQ at {bus.named(self._conf)} refuses: {error}; correct'
                ' user, password and virtual host, or, if it is a queue that it refuses, set'
                ' [oslo_messaging_rabbit]amqp_durable_queues and rabbit_quorum_queue as in'
                ' glance-api.conf') from error

    def _start(self) -> None:
        conf = self._conf
        messagesize.register_bounds()
        state_dir = conf[bootcache_conf.GROUP].state_dir
        exporter = Exporters(conf, os.path.join(state_dir, 'clients.json'))
        exporter.start_as_before()
        scratch.end_left_over()
        database = start.wait_for(conf, exporter.start_as_before)
        # It may go away again at any moment.
        node, store = start.until_it_answers(
            lambda: self._opened(database, bool(exporter.served_images())),
            exporter.start_as_before)
        needs, last_uses, orders, records, requests = start.until_it_answers(
            lambda: (ReportedNeeds(database), LastUses(database), Orders(database),
                     Records(database, node.id), WarmRequests(database)), exporter.start_as_before)
        # What is in memory is known later; an exporter that serves from there goes on.
        serving.serve_all(store.manifests(), lambda manifest: exporter.ensure(
            manifest, store.cache_path(manifest)))
        if conf[bootcache_conf.GROUP].export_ports:
            serving.serve_all(store.manifests(), lambda manifest: exporter.ensure(
                manifest, store.cache_path(manifest),
                exporter.of_hosts(needs.hosts(manifest.image_id))))
        self._check()
        startchecks.check_cloud(conf)
        group = conf[bootcache_conf.GROUP]
        bus_transport = transport.get_transport(conf)
        membership = Membership(node.id)
        homes = Homes(store, membership, group.glance_store_dirs)
        writer = Writer(database, [needs.changes, last_uses.changes, orders.changes,
                                   requests.changes])
        tiers = StorageTiers(conf, store, exporter, last_uses)
        profile_boots = NovaProfileBoots(conf, store.files)
        images = Images(conf)
        hosts = Hosts(store, tiers, orders,
                      speaks_tls=bool(conf[bootcache_conf.GROUP].tls_directory))
        metrics = ServiceMetrics()
        running = Running(conf[bootcache_conf.GROUP].concurrent_builds)
        retiring = Retiring(store, exporter, tiers, profile_boots, needs, orders)
        disk_room = DiskRoom(store, running, exporter, tiers)
        deletions = Deletions(conf[bootcache_conf.GROUP].deletion_delay, store, images)
        controller = Controller(
            conf, store, images,
            ImageWork(conf, store, images, exporter, tiers, profile_boots, disk_room, retiring,
                      metrics),
            running, retiring, deletions, StatePublisher(conf, images), home_for=homes.home_for)
        events = ImageEvents(controller.image_changed, controller.image_deleted,
                             controller.let_go, controller.has_looked)
        warming = Warming(conf, store, hosts, NovaPrecache(conf), requests)
        upkeep = ServiceUpkeep(conf, store, images, exporter, tiers, profile_boots, controller,
                               running, disk_room, needs,
                               Leftovers(store, homes, exporter, tiers, records,
                                         retiring.why_needed))
        tiers.start(store.manifests())
        writer.start()
        # The process is started anew, and reads all of it again.
        node.start(lambda: os.kill(os.getpid(), signal.SIGTERM), selfcheck.fault(
            functools.partial(selfcheck.checks, bus_transport, conf.host, exporter,
                              store.images_directory), lambda: membership.are_several),
                   lambda: selfcheck.told(group.state_dir), membership)
        controller.start()
        upkeep.start()
        read_errors = ReadErrors(store, exporter, tiers, running, CephBases(conf))
        read_errors.start()
        self._started = [writer, node, tiers, controller, upkeep, read_errors]
        files = FileSnapshots(conf, Registrars([path for path in group.glance_store_dirs if path],
                                               TrialImages(conf), store.files))
        snapshots = SnapshotJobs(
            conf, store, exporter,
            Sending(conf, [RbdSnapshots(conf, store.files), files], exporter, group.state_dir),
            Claims(conf, images, deletions.is_listed_without),
            records, images)
        snapshots.start()
        self._started.append(snapshots)
        warming.start()
        self._started.append(warming)
        listener = get_listener(conf, events)
        listener.start()
        rejected, offers = RejectedMessages(), ExchangeOffers(conf, store, tiers)
        standbys = Standbys(store, images, homes, membership, needs)
        if group.metrics_port:
            checks = monitoring.checks(conf, database, exporter)
            monitoring.sample(metrics, conf, store=store, running=running, tiers=tiers, hosts=hosts,
                              given=offers.given, rejected=rejected, snapshots=snapshots,
                              database=database, health_checks=checks, membership=membership,
                              homes=homes, standbys=standbys)
            self._started.append(monitoring.listen(conf, metrics, checks))
        # With SQLite there are no other storage nodes.
        routing = ALONE if database.file is not None else Routing(
            bus_transport, conf.host, homes, records, membership, metrics)
        endpoints = Endpoints(
            controller, ReportedBoots(conf, store, exporter, controller, running, tiers), hosts,
            Operators(store, tiers, controller, running, retiring, hosts, offers.given, conf.host),
            warming,
            needs, rejected, offers, snapshots, metrics,
            NodeCommands(database, membership, store), routing)
        server = validation.get_server(bus_transport, conf.host, endpoints, rejected, metrics,
                                       needs.count(), routing)
        server.start()
        self._started += [server, listener, events]
        if routing is not ALONE:
            standbys.start()
            home_upkeep = HomeUpkeep(
                store, homes, membership, controller, orders, records,
                lambda number: node_rows.forget(database, number, node.id))
            for_nodes = validation.get_server(bus_transport, conf.host, endpoints, rejected,
                                              metrics, nodes=routing, for_nodes=True)
            for_nodes.start()
            home_upkeep.start()
            self._started += [for_nodes, home_upkeep, standbys]
        LOG.info('glance-bootcache serves, and speaks RPC %s', messages.VERSION)

    def _opened(self, database: Database, serves: bool) -> tuple[StorageNode, ImageStore]:
        """Return this node and its images, as the database has them; nothing is under way yet.

        :param serves: exporters serve something already.
        """
        state_dir = self._conf[bootcache_conf.GROUP].state_dir
        node = StorageNode(database, os.path.join(state_dir, 'node.json'), self._conf.host,
                           serves=serves)
        if database.file is not None:
            # Others cannot work with it.
            node_rows.take_images(database, node.id)
        store = ImageStore(state_dir, database, node.id, lambda: not node.is_restored)
        store.retire_left()
        if unnamed := store.files.unnamed():
            LOG.warning('%d files in %s/images are of no row of the database, and are left, as %s;'
                        ' "bootcache-manage files list" shows them, and "bootcache-manage files'
                        ' remove" removes those that are not served', len(unnamed), state_dir,
                        unnamed[0])
        return node, store

    def stop(self) -> None:
        """Stop taking work, give up what is in hand. The exporter goes on serving."""
        while self._started:
            self._started.pop().stop()
