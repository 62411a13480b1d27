"""bootcache-exchange on the storage node and on hosts of the replay, in the product's order.

Hosts are told before they begin from whom they get pieces, as if they had asked one after the
other; the storage service would tell them when they ask. What it learns later, that a host has all
of a file, changes nothing here.
"""

import dataclasses
from typing import Any

from bench.replay import exchangeprocess, netns
from bench.replay.cluster import Cluster
from bench.replay.host import HostChild, Image
from bench.replay.peers import Ours
from bootcache.exchange import patience
from bootcache.rpc.messages import ExchangeOffer
from glance_bootcache.exchange.offers import Lines
from nova_bootcache.gateway import arrivingimage

_ENTRY = 'exchanged'
_MOST_SECONDS = 7200.0
_STRETCHED = ('RECONNECT_AFTER', 'START_OVER_AFTER', 'GIVE_UP_AFTER', 'RESERVE_AFTER',
              'SERVERS_WAIT')
# As the product has them; a child stretches its own once.
_OWN = {name: getattr(patience, name) for name in _STRETCHED}


def offered(made: Cluster, image: Image, hosts: int) -> list[Image]:
    """Have the storage node give an image's cache image; what each host is told of it."""
    torrent, certificates = made.node.call('give', image.image_id, made.network.hosts[:hosts])
    storage = netns.STORAGE_ADDRESS, exchangeprocess.PORT
    lines = Lines(_MOST_SECONDS, storage)
    found = []
    for number, name in enumerate(made.network.hosts[:hosts]):
        own = made.network.address(name), exchangeprocess.PORT
        told = lines.join(image.image_id, name, own, '')
        found.append(dataclasses.replace(image, answer={
            **image.answer, 'others': number > 0, _ENTRY: {
                'address': own[0], 'tls': certificates[name],
                'answer': ExchangeOffer(torrent, tuple(told), (storage,))}}))
    return found


def join(host: HostChild, image: Image, waits: bool = False) -> None:
    """Start a host's exchange, and have the host ask for cache images there.

    :param waits: whether servers wait until all of it is there however long that takes, also those
        of the first host.
    :raises RuntimeError: if it does not start.
    """
    told: dict[str, Any] = image.answer[_ENTRY]
    process, socket = exchangeprocess.start(host.directory / 'e', told['address'], told['tls'])
    host.helpers.append(process)
    host.options.update(exchange_address=told['address'], exchange_socket=socket)
    host.service.exchanged[image.image_id] = told['answer']
    # As for a cache image that is not worth reading while it comes.
    arrivingimage.is_worth_it = (lambda size: False) if waits else _IS_WORTH_IT
    # All is slower on purpose.
    for name, seconds in _OWN.items():
        setattr(patience, name, seconds * host.dilation)


_IS_WORTH_IT = arrivingimage.is_worth_it


class OursExchanged(Ours):
    """bootcache where hosts give the cache image to each other; made of :func:`offered` images."""

    name = 'bootcache exchange'
    waits = False

    def prepare(self, host: HostChild, image: Image, phase: str) -> None:
        """Have the host's exchange run as well."""
        if phase == 'cold':
            join(host, image, self.waits)
        super().prepare(host, image, phase)


class OursWaited(OursExchanged):
    """The same, and all servers wait until their host has all of it, however long that takes."""

    name = 'bootcache exchange waited'
    phases = 'cold',
    waits = True
