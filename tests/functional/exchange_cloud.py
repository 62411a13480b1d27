"""A storage node whose cache image hosts exchange, and hosts."""

import os
import shutil

from compute_host import fetched
from functional_tools import until
from oslo_config import cfg
from storage_node import IMAGE, MIB

from bootcache import conf as bootcache_conf
from bootcache.manifest import CacheInfo
from bootcache.rpc.messages import ExchangeCache
from bootcache.tier import Medium, TierLimits
from bootcache.workingset import Extent
from glance_bootcache.db import start
from glance_bootcache.exchange.offers import ExchangeOffers
from glance_bootcache.storage.lastuses import LastUses
from glance_bootcache.storage.tiers import StorageTiers
from nova_bootcache import conf as nova_conf
from nova_bootcache.asking.client import ExchangeAsking, HostsClient
from nova_bootcache.cache.cachefiles import CacheFiles
from nova_bootcache.gateway.below import Below
from nova_bootcache.gateway.hostneeds import HostNeeds
from nova_bootcache.metrics import HostMetrics
from nova_bootcache.settling.fullbase import StorageSlot
from nova_bootcache.tiers.exchanges import Exchanges
from nova_bootcache.tiers.fetches import Fetches, Readable, WrongFiles
from nova_bootcache.tiers.room import Room
from tools import storedimages

LIMITS = TierLimits(64 * MIB, 60 * MIB, 50 * MIB)
SET = Extent(3 * MIB, 3 * MIB), Extent(0, MIB + 65536)


class Cloud:
    """A storage node whose cache image hosts exchange, and hosts."""

    def __init__(self, swarm, node, storage_conf, service):
        self.swarm, self.node, self.service = swarm, node, service
        node.build(*SET)
        self.info = node.manifest.made.cache_image
        self.store = storedimages.opened(storage_conf)
        os.makedirs(self.store.directory(IMAGE))
        shutil.copy(node.cache_path, self.store.path(IMAGE, self.info.file))
        storedimages.put(self.store, node.manifest)
        self.storage = swarm.host()
        for name, value in self.storage.options.items():
            if name.startswith('exchange_') and name != 'exchange_networks':
                storage_conf.set_override(name, value, bootcache_conf.GROUP)
        self.tiers = StorageTiers(storage_conf, self.store, node.exporter,
                                  LastUses(start.wait_for(storage_conf)))
        # The first look says that nothing is known yet.
        until(lambda: self.tiers.check(node.manifest).name == 'RIGHT', 'the look at the file')
        service.offers = ExchangeOffers(storage_conf, self.store, self.tiers)

    def host(self, cache=None, **options):
        """A compute host: its exchange, and what fetches cache images.

        :param cache: where these are.
        """
        exchange = self.swarm.host()
        conf = cfg.ConfigOpts()
        conf([], project='nova', default_config_files=[], default_config_dirs=[])
        nova_conf.register_opts(conf)
        for name, value in {'exchange_address': exchange.address, 'exchange_port': exchange.port,
                            'exchange_socket': exchange.socket, **options}.items():
            conf.set_override(name, value, bootcache_conf.GROUP)
        client = HostsClient(conf)
        exchange.name = f'host-{len(self.swarm.hosts)}'
        client.start(exchange.name)
        exchange.cache = CacheFiles(cache or f'{exchange.home}/cache')
        exchange.cache.prepare()
        exchange.asking = ExchangeAsking(conf, client)
        exchange.slot = StorageSlot(client)
        needs, metrics = HostNeeds(), HostMetrics()
        exchange.fetches = Fetches(
            exchange.cache, Room(exchange.cache, Below(None, exchange.cache, needs), needs,
                                 {Medium.DISK: LIMITS}, metrics),
            WrongFiles(), Readable(), self.node.conf.gateway_socket, metrics,
            exchanges=Exchanges(conf, exchange.asking, metrics))
        return exchange

    def fetch(self, host, rate=0):
        answer = self.service.offers.tell(self.node.answer(), host.name)
        entry = fetched(host.fetches, self.node.remote(),
                        CacheInfo(**answer['cache_image']), answer['cache_export'],
                        rate=rate)
        assert entry.file_sha256 == self.info.sha256
        with open(host.cache.path(IMAGE), 'rb') as here, open(self.node.cache_path, 'rb') as there:
            assert here.read() == there.read()

    def leave_a_part(self, host, monkeypatch):
        """Have a host that has asked have 2 MiB of it, and nobody have the rest."""
        self.service.offers.tell(self.node.answer(), 'other')
        answer = self.service.offers.offer(ExchangeCache(IMAGE, 'other', self.info.sha256,
            host.address, host.port, ''))
        torrent = answer.torrent
        with open(self.node.cache_path, 'rb') as whole, open(host.file, 'wb') as part:
            part.write(whole.read(2 * MIB))
        host.client.fetch(torrent, host.file, [])
        self.storage.kill()
        monkeypatch.setattr(self.service.offers, '_give', lambda *_arguments: torrent)

    def given(self, host=None):
        return (host or self.storage).client.files()['given']
