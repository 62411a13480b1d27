"""What is to go from hosts: what operators want gone from single ones, until each reports that it
is gone, and images that were removed from all, also from those that report to hold one later.

An order is given once, and may have to wait for weeks: for a server that needs the cache image, or
for a host that is down. So it is a row of the database before it counts.
"""

import threading
import time
from collections.abc import Collection, Iterable

import sqlalchemy as sa

from bootcache.exception import RequestRefused
from glance_bootcache.db.engine import Database, delete, upsert
from glance_bootcache.db.models import OrderRow
from glance_bootcache.db.writer import RowChanges

_MOST_ORDERS = 10_000
# The name under which orders to all hosts are; of those the latest are kept.
_EVERYBODY = ''
_MOST_FOR_ALL = 5_000
# A host that was not heard of for so long does not come back with what it had.
_FORGET_SECONDS = 90 * 86400


class Orders:
    """The orders, by host; read once, and kept in memory.

    :raises DatabaseAway: if they cannot be read.
    """

    def __init__(self, database: Database):
        self._database = database
        # Held over the transaction in which orders are added: see glance_bootcache/locks.py.
        self._adding = threading.Lock()
        self._lock = threading.Lock()  # guards what is below
        # When each image was ordered to go, in seconds since the epoch, by host.
        self._orders: dict[str, dict[str, float]] = {}
        # Orders that were followed, or are too old, and are rows still: host, image, and when.
        self._over: set[tuple[str, str, float]] = set()
        self.refresh()

    def refresh(self) -> None:
        """Read all of them: other storage nodes write some.

        :raises DatabaseAway: if they cannot be read.
        """
        # None is added meanwhile.
        with self._adding:
            rows = self._database.read(lambda connection: connection.execute(
                sa.select(OrderRow.host, OrderRow.image_id, OrderRow.ordered_at)).all())
            orders: dict[str, dict[str, float]] = {}
            with self._lock:
                for host, image_id, when in rows:
                    if (host, image_id, when) not in self._over:
                        orders.setdefault(host, {})[image_id] = when
                self._orders = orders

    def of(self, host: str) -> frozenset[str]:
        """Return the images that are to go from a host."""
        with self._lock:
            return frozenset(self._orders.get(host, ()))

    def is_for_all(self, image_id: str) -> bool:
        """Return whether an image is to go from all hosts."""
        with self._lock:
            return image_id in self._orders.get(_EVERYBODY, ())

    def add_for_all(self, image_id: str) -> None:
        """Order an image that was removed to go from all hosts.

        :raises DatabaseAway: if that cannot be written; there is no such order then.
        """
        with self._adding:
            self._write(image_id, [_EVERYBODY])
            with self._lock:
                images = self._orders.get(_EVERYBODY, {})
                for oldest in sorted(images, key=images.__getitem__)[:-_MOST_FOR_ALL]:
                    self._over.add((_EVERYBODY, oldest, images.pop(oldest)))

    def add(self, image_id: str, hosts: Collection[str]) -> None:
        """Order an image to go from hosts.

        :raises RequestRefused: if too many orders wait already.
        :raises DatabaseAway: if that cannot be written; no host is told then.
        """
        with self._adding:
            with self._lock:
                self._drop(time.time() - _FORGET_SECONDS)
                waiting = sum(map(len, self._orders.values())) + sum(
                    image_id not in self._orders.get(host, ()) for host in hosts)
            if waiting > _MOST_ORDERS:
                raise RequestRefused(
                    f'{_MOST_ORDERS} orders to hosts wait already; leave --host out to have all'
                    ' hosts let go of the image')
            self._write(image_id, hosts)

    def settle(self, host: str, held: Collection[str]) -> None:
        """Drop the orders that a host has followed; their rows go later.

        :param held: images that the host reports to hold.
        """
        with self._lock:
            self._forget(host, [image_id for image_id in self._orders.get(host, ())
                                if image_id not in held])

    def changes(self, _at_once: bool) -> RowChanges | None:
        """Return the rows that are to go, for the writer."""
        with self._lock:
            over = list(self._over)
        if not over:
            return None

        def written() -> None:
            with self._lock:
                self._over.difference_update(over)

        # One that was given anew meanwhile has another time.
        gone = [{'host': host, 'image_id': image_id, 'ordered_at': when}
                for host, image_id, when in over]
        return RowChanges(lambda connection: delete(connection, OrderRow, gone), written)

    def _write(self, image_id: str, hosts: Collection[str]) -> None:
        now = time.time()
        self._database.write(lambda connection: upsert(connection, OrderRow, [
            {'host': host, 'image_id': image_id, 'ordered_at': now} for host in hosts]))
        with self._lock:
            for host in hosts:
                self._orders.setdefault(host, {})[image_id] = now

    def _drop(self, before: float) -> None:
        """Forget orders that are older; under the lock."""
        for host in list(self._orders):
            self._forget(host, [image_id for image_id, when in self._orders[host].items()
                                if when < before])

    def _forget(self, host: str, image_ids: Iterable[str]) -> None:
        images = self._orders.get(host, {})
        self._over.update((host, image_id, images.pop(image_id)) for image_id in image_ids)
        if not images:
            self._orders.pop(host, None)
