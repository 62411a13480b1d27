"""The cloud's record of last uses, by which the storage node's tiers evict (SC13 section 3.4)."""

import datetime
import math
import threading
import time
from collections.abc import Callable, Collection

import sqlalchemy as sa

from bootcache.manifest import Manifest
from glance_bootcache.db.engine import Database
from glance_bootcache.db.models import ImageRow
from glance_bootcache.db.writer import RowChanges

_WRITE_SECONDS = 60


class LastUses:
    """When each image's cache image was last used in the cloud; read once, and kept in memory.

    :param clock: monotonic seconds.
    :raises DatabaseAway: if they cannot be read.
    """

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._lock = threading.Lock()  # guards what is below
        self._last: dict[str, float] = {image_id: when for image_id, when in database.read(
            lambda connection: connection.execute(
                sa.select(ImageRow.image_id, ImageRow.last_used).where(
                    ImageRow.last_used.is_not(None))).all())}
        # Images of which the row has another time than that.
        self._changed: set[str] = set()
        self._asked_at = -math.inf

    def record(self, image_id: str, when: float) -> None:
        """Record a use, in seconds since the epoch; an older one than is known changes nothing."""
        with self._lock:
            if when > self._last.get(image_id, -1):
                self._last[image_id] = when
                self._changed.add(image_id)

    def last(self, image_id: str) -> float | None:
        """Return when an image was last used, in seconds since the epoch; None if it never was."""
        with self._lock:
            return self._last.get(image_id)

    def last_of(self, manifest: Manifest) -> float:
        """Return when an image was last used; one that never was counts from its last change."""
        noted = self.last(manifest.image_id)
        if noted is not None:
            return noted
        try:
            return datetime.datetime.fromisoformat(manifest.updated_at).timestamp()
        except ValueError:
            return 0

    def keep_only(self, image_ids: Collection[str]) -> None:
        """Drop what is known of all other images."""
        with self._lock:
            gone = self._last.keys() - set(image_ids)
            for image_id in gone:
                del self._last[image_id]
            self._changed -= gone

    def changes(self, at_once: bool) -> RowChanges | None:
        """Return what the writer has to write, once a minute.

        :param at_once: do not wait for the minute.
        """
        now = self._clock()
        with self._lock:
            if not self._changed or (not at_once and now - self._asked_at < _WRITE_SECONDS):
                return None
            self._asked_at = now
            uses = {image_id: self._last[image_id] for image_id in self._changed}

        def written() -> None:
            with self._lock:
                self._changed -= {image_id for image_id, when in uses.items()
                                  if self._last.get(image_id) == when}

        return RowChanges(lambda connection: _write(connection, uses), written)


def _write(connection: sa.Connection, uses: dict[str, float]) -> None:
    if uses:
        # The row of an image that was removed is not there any more.
        connection.execute(
            sa.update(ImageRow).where(ImageRow.image_id == sa.bindparam('image'))
            .values(last_used=sa.bindparam('when')),
            [{'image': image_id, 'when': when} for image_id, when in uses.items()])
