"""What operators want to be warm and is not yet: rows, so that a restart forgets none."""

import threading
import time
from collections.abc import Collection

import sqlalchemy as sa

from glance_bootcache.db.engine import Database, delete, upsert
from glance_bootcache.db.models import WarmRequestRow
from glance_bootcache.db.writer import RowChanges

# An image's id, and the name of an aggregate.
Key = tuple[str, str]


class WarmRequests:
    """The requests that are not over; read once.

    :raises DatabaseAway: if they cannot be read.
    """

    def __init__(self, database: Database):
        self._database = database
        # Held over the transaction in which requests are added: see glance_bootcache/locks.py.
        self._adding = threading.Lock()
        self._lock = threading.Lock()  # guards what is below
        # When each was asked for, in seconds since the epoch.
        self._requested: dict[Key, float] = {}
        # Those that are over, and rows still.
        self._over: set[tuple[str, str, float]] = set()
        self.refresh()

    def refresh(self) -> None:
        """Read all of them: one may have been written by another storage node.

        :raises DatabaseAway: if they cannot be read.
        """
        # None is added meanwhile.
        with self._adding:
            rows = self._database.read(
                lambda connection: connection.execute(sa.select(WarmRequestRow.__table__)).all())
            with self._lock:
                self._requested = {
                    (row.image_id, row.aggregate): row.requested_at for row in rows
                    if (row.image_id, row.aggregate, row.requested_at) not in self._over}

    def all(self) -> list[Key]:
        """Return the requests, the oldest first."""
        with self._lock:
            return sorted(self._requested, key=self._requested.__getitem__)

    def add(self, image_id: str, aggregates: Collection[str]) -> None:
        """Write requests.

        :raises DatabaseAway: if that cannot be done; none counts then.
        """
        now = time.time()
        with self._adding:
            self._database.write(lambda connection: upsert(connection, WarmRequestRow, [
                {'image_id': image_id, 'aggregate': name, 'requested_at': now}
                for name in aggregates]))
            with self._lock:
                self._requested.update({(image_id, name): now for name in aggregates})

    def end(self, keys: Collection[Key]) -> None:
        """Note which are over; their rows go later."""
        with self._lock:
            self._over.update((*key, self._requested.pop(key))
                              for key in keys if key in self._requested)

    def changes(self, _at_once: bool) -> RowChanges | None:
        """Return the rows that are to go, for the writer."""
        with self._lock:
            over = list(self._over)
        if not over:
            return None

        def written() -> None:
            with self._lock:
                self._over.difference_update(over)

        # One that was asked for anew meanwhile has another time.
        gone = [{'image_id': image_id, 'aggregate': name, 'requested_at': when}
                for image_id, name, when in over]
        return RowChanges(lambda connection: delete(connection, WarmRequestRow, gone), written)
