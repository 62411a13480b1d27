"""What a compute host is made of, each part with one purpose; host.py wires it."""

import dataclasses

from nova_bootcache.asking.asking import StorageService
from nova_bootcache.cache.hostfiles import HostFiles
from nova_bootcache.gateway.below import Below
from nova_bootcache.gateway.gateway import Gateway
from nova_bootcache.gateway.needs import Needs
from nova_bootcache.recording.boots import Boots
from nova_bootcache.recording.profilerecordings import ProfileRecordings
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
    """

    storage: StorageService
    cache: HostFiles
    gateway: Gateway
    needs: Needs
    below: Below
    room: Room
    fetches: Fetches
    arrivals: Arrivals
    boots: Boots
    recordings: ProfileRecordings
