"""The storage service: manager, RPC server and notification listener in one process."""

import os

import oslo_messaging as messaging
from oslo_config import cfg
from oslo_log import log as logging
from oslo_service import service

from bootcache import conf as bootcache_conf
from bootcache import rpcapi
from glance_bootcache.boots import Boots
from glance_bootcache.endpoints import Endpoints
from glance_bootcache.exporter import Exporter
from glance_bootcache.hosts import Hosts
from glance_bootcache.images import Images
from glance_bootcache.listener import ImageEvents, get_listener
from glance_bootcache.manager import Manager
from glance_bootcache.needs import Needs
from glance_bootcache.operators import Operators
from glance_bootcache.orders import Orders
from glance_bootcache.precache import NovaPrecache
from glance_bootcache.profileboot.throughnova import NovaProfileBoots
from glance_bootcache.store import ImageStore
from glance_bootcache.tiers import StorageTiers
from glance_bootcache.upkeep import Upkeep
from glance_bootcache.warming import Warming

LOG = logging.getLogger(__name__)


class StorageService(service.Service):  # type: ignore[misc]
    """What ``glance-bootcache`` runs.

    :param conf: configuration, read and checked.
    """

    def __init__(self, conf: cfg.ConfigOpts):
        super().__init__()
        self._conf = conf

    def start(self) -> None:
        """Start all of it, in the process that serves."""
        super().start()
        conf = self._conf
        store = ImageStore(conf[bootcache_conf.GROUP].state_dir)
        exporter = Exporter(conf)
        tiers = StorageTiers(conf, store, exporter)
        profile_boots = NovaProfileBoots(conf)
        images = Images(conf)
        self._manager = manager = Manager(conf, store, images, exporter, tiers, profile_boots)
        events = ImageEvents(manager.consider, manager.forget, manager.let_go)
        hosts = Hosts(store, tiers, manager.gone.is_gone, Orders(store.state_path('orders.json')))
        self._warming = Warming(conf, store, hosts, NovaPrecache(conf))
        needs = Needs(os.path.join(conf[bootcache_conf.GROUP].state_dir, 'needs.json'))
        self._upkeep = Upkeep(conf, store, images, exporter, tiers, profile_boots, manager,
                              events, needs)
        self._upkeep.start()
        self._warming.start()
        self._listener = get_listener(conf, events)
        self._listener.start()
        self._server = messaging.get_rpc_server(
            rpcapi.get_transport(conf), rpcapi.target(server=conf.host),
            [Endpoints(manager, Boots(conf, store, exporter, manager, tiers), tiers, hosts,
                       Operators(store, tiers, manager, hosts), self._warming, needs)],
            executor='threading')
        self._server.start()
        LOG.info('glance-bootcache serves')

    def stop(self, graceful: bool = True) -> None:
        """Stop taking work, give up what is in hand. The exporter goes on serving."""
        self._listener.stop()
        self._server.stop()
        self._warming.stop()
        self._upkeep.stop()
        self._manager.stop()
        super().stop(graceful)
