"""The storage service's controller of images, without RPC and upkeep."""

from oslo_config import cfg

from bootcache import conf as bootcache_conf
from glance_bootcache.db import start
from glance_bootcache.glance.images import Images
from glance_bootcache.hosts.holdings import Hosts
from glance_bootcache.hosts.orders import Orders
from glance_bootcache.hosts.reportedneeds import ReportedNeeds
from glance_bootcache.images.controller import Controller
from glance_bootcache.images.deletions import Deletions
from glance_bootcache.images.imagework import ImageWork
from glance_bootcache.images.publishing import StatePublisher
from glance_bootcache.images.retiring import Retiring
from glance_bootcache.images.running import Running
from glance_bootcache.images.storagedisk import DiskRoom
from glance_bootcache.profileboot.throughnova import NovaProfileBoots
from glance_bootcache.storage.exporters import Exporters
from glance_bootcache.storage.lastuses import LastUses
from glance_bootcache.storage.store import ImageStore
from glance_bootcache.storage.tiers import StorageTiers


def started(conf: cfg.ConfigOpts, store: ImageStore, images: Images, exporter: Exporters,
            boots: NovaProfileBoots) -> tuple[Controller, Running]:
    """Start the controller; return it, with the steps that are under way.

    :param conf: configuration of the storage service.
    :param exporter: started.
    """
    group, database = conf[bootcache_conf.GROUP], start.wait_for(conf)
    tiers = StorageTiers(conf, store, exporter, LastUses(database))
    tiers.start([])
    running = Running(group.concurrent_builds)
    retiring = Retiring(store, exporter, tiers, boots, ReportedNeeds(database),
                        Hosts(store, tiers, Orders(database)))
    work = ImageWork(conf, store, images, exporter, tiers, boots,
                     DiskRoom(store, running, exporter, tiers), retiring)
    controller = Controller(conf, store, images, work, running, retiring,
                            Deletions(group.deletion_delay, store, images),
                            StatePublisher(conf, images))
    controller.start()
    return controller, running
