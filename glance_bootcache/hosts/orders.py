"""What is to go from hosts: what operators want gone from single ones, until each reports that it
is gone, and images that were removed from all, also from those that report to hold one later.

An order is given once, and may have to wait for weeks: for a server that needs the cache image, or
for a host that is down. So it is a file, and a restart of this service changes nothing.
"""

import math
import threading
import time
from collections.abc import Collection, Iterable
from typing import Any

from oslo_log import log as logging

from bootcache import savefile
from bootcache.exception import RequestRefused

LOG = logging.getLogger(__name__)

VERSION = 1
_MOST_ORDERS = 10_000
# The name under which orders to all hosts are; of those the latest are kept.
_EVERYBODY = ''
_MOST_FOR_ALL = 5_000
# A host that was not heard of for so long does not come back with what it had.
_FORGET_SECONDS = 90 * 86400


def _parse(document: Any) -> dict[str, dict[str, float]]:
    orders = {str(host): {str(image_id): float(when) for image_id, when in images.items()}
              for host, images in document['orders'].items()}
    if not all(math.isfinite(when) for images in orders.values() for when in images.values()):
        raise ValueError('a time that is none')
    return orders


class Orders:
    """The orders, by host.

    :param path: of the file; a damaged one counts as empty.
    """

    def __init__(self, path: str):
        self._path = path
        self._lock = threading.Lock()  # guards the dictionary, and that the file is the last one
        # When each image was ordered to go, in seconds since the epoch, by host.
        self._orders = savefile.read_table(
            path, VERSION, _parse, 'what operators wanted gone from hosts is to be said again')

    def of(self, host: str) -> frozenset[str]:
        """Return the images that are to go from a host."""
        with self._lock:
            return frozenset(self._orders.get(host, ()))

    def is_for_all(self, image_id: str) -> bool:
        """Return whether an image is to go from all hosts."""
        with self._lock:
            return image_id in self._orders.get(_EVERYBODY, ())

    def add_for_all(self, image_id: str) -> None:
        """Order an image that was removed to go from all hosts."""
        with self._lock:
            images = {**self._orders.get(_EVERYBODY, {}), image_id: time.time()}
            latest = sorted(images, key=lambda one: images[one])[-_MOST_FOR_ALL:]
            self._replace({**self._orders, _EVERYBODY: {one: images[one] for one in latest}})

    def add(self, image_id: str, hosts: Iterable[str]) -> None:
        """Order an image to go from hosts.

        :raises RequestRefused: if too many orders wait already.
        """
        now = time.time()
        with self._lock:
            orders = {host: kept for host, images in self._orders.items() if (
                kept := {image: when for image, when in images.items()
                         if now - when < _FORGET_SECONDS})}
            for host in hosts:
                orders.setdefault(host, {})[image_id] = now
            if sum(map(len, orders.values())) > _MOST_ORDERS:
                raise RequestRefused(
                    f'{_MOST_ORDERS} orders to hosts wait already; leave --host out to have all'
                    ' hosts let go of the image')
            self._replace(orders)

    def settle(self, host: str, held: Collection[str]) -> None:
        """Drop the orders that a host has followed.

        :param held: images that the host reports to hold.
        """
        with self._lock:
            left = {image_id: when for image_id, when in self._orders.get(host, {}).items()
                    if image_id in held}
            if left != self._orders.get(host, {}):
                orders = {name: images for name, images in self._orders.items() if name != host}
                self._replace({**orders, **({host: left} if left else {})})

    def _replace(self, orders: dict[str, dict[str, float]]) -> None:
        self._orders = orders
        try:
            savefile.write_json(self._path, {'version': VERSION, 'orders': orders})
        except OSError as error:
            LOG.warning('%s cannot be written, and is lost with this process: %s', self._path,
                        error)
