"""Snapshots under way, as rows of the database: what a crash leaves is found by them.

A record is written before there is anything of its snapshot, and goes when nothing is left of it,
or Glance has it.
"""

import dataclasses
import enum
import threading
from typing import Any

import sqlalchemy as sa

from glance_bootcache.db.engine import Database, delete, upsert
from glance_bootcache.db.models import SnapshotRow


class Stage(enum.Enum):
    """How far a snapshot is."""

    BEGUN = 'begun'
    # Glance can have it, and Nova was told where it is.
    FINISHED = 'finished'
    # It is being given to Glance.
    UPLOADING = 'uploading'
    # To be removed: nobody was told where it is.
    DOOMED = 'doomed'
    # To be removed unless Glance has it: Nova was told where it is.
    WITHDRAWN = 'withdrawn'


@dataclasses.dataclass(frozen=True)
class Record:
    """A snapshot under way.

    :ivar snapshot_id: the image that it becomes.
    :ivar store: name of the store that makes it.
    :ivar host: that sends it.
    :ivar export: its name at exporters; cannot be guessed.
    :ivar stage: how far it is.
    :ivar since: when it came there, in seconds since the epoch.
    """

    snapshot_id: str
    store: str
    host: str
    export: str
    stage: Stage
    since: float


class Records:
    """The records of this storage service; read once, and kept in memory.

    :raises DatabaseAway: if they cannot be read.
    """

    def __init__(self, database: Database):
        self._database = database
        # Held over a transaction, so that the last one in the database is the last one here: see
        # glance_bootcache/locks.py.
        self._writing = threading.Lock()
        self._lock = threading.Lock()  # guards the dictionary
        self._records = {record.snapshot_id: record for record in database.read(
            lambda connection: [_record(row) for row in connection.execute(
                sa.select(*SnapshotRow.__table__.columns))])}

    def all(self) -> list[Record]:
        """Return all of them."""
        with self._lock:
            return list(self._records.values())

    def get(self, snapshot_id: str) -> Record | None:
        """Return a snapshot's record, if it has one."""
        with self._lock:
            return self._records.get(snapshot_id)

    def put(self, record: Record) -> None:
        """Write a record, in place of an earlier one of the same snapshot.

        :raises DatabaseAway: if it cannot be written; nothing has changed here then.
        """
        with self._writing:
            self._database.write(lambda connection: upsert(connection, SnapshotRow, [
                {**dataclasses.asdict(record), 'stage': record.stage.value}]))
            with self._lock:
                self._records[record.snapshot_id] = record

    def drop(self, snapshot_id: str) -> None:
        """Remove a record; there need not be one.

        :raises DatabaseAway: as of ``put``.
        """
        with self._writing:
            if self.get(snapshot_id) is None:
                return
            self._database.write(lambda connection: delete(
                connection, SnapshotRow, [{'snapshot_id': snapshot_id}]))
            with self._lock:
                del self._records[snapshot_id]


def _record(row: Any) -> Record:
    return Record(**{**row._asdict(), 'stage': Stage(row.stage)})
