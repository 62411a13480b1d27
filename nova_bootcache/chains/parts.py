"""What a compute host is made of, each part with one purpose; host.py wires it."""

import dataclasses

from nova_bootcache.asking.client import HostsClient
from nova_bootcache.cache.cachefiles import CacheFiles
from nova_bootcache.gateway.below import Below
from nova_bootcache.gateway.daemon import Gateway
from nova_bootcache.gateway.hostneeds import HostNeeds
from nova_bootcache.recording.profilerecordings import ProfileRecordings
from nova_bootcache.recording.watchedboots import WatchedBoots
from nova_bootcache.storagenode import Encryption
from nova_bootcache.tiers.arrivals import Arrivals
from nova_bootcache.tiers.fetches import Fetches
from nova_bootcache.tiers.room import Room


@dataclasses.dataclass(frozen=True)
class Parts:
    """The parts that others use.

    :ivar storage: the storage service, as this host reaches it.
    :ivar cache: the files of the cache images.
    :ivar gateway: serves the bases.
    :ivar needs: who needs what is below servers' disks.
    :ivar below: that, in the gateway.
    :ivar room: of the tiers.
    :ivar fetches: brings cache images here.
    :ivar arrivals: cache images that servers read from on their way.
    :ivar boots: those that are watched.
    :ivar recordings: profile boots on this host.
    :ivar encryption: how it connects to storage nodes.
    """

    storage: HostsClient
    cache: CacheFiles
    gateway: Gateway
    needs: HostNeeds
    below: Below
    room: Room
    fetches: Fetches
    arrivals: Arrivals
    boots: WatchedBoots
    recordings: ProfileRecordings
    encryption: Encryption
