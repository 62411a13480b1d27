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

    # Its host sends it, or nobody goes on with it: then it is removed unless Glance has it.
    BEGUN = 'begun'
    # Glance can have it, and Nova was told where it is.
    FINISHED = 'finished'
    # To be removed: nobody was told where it is.
    DOOMED = 'doomed'
    # It is uploaded, or nobody goes on with it and Nova was told where it is: removed unless Glance
    # has it.
    WITHDRAWN = 'withdrawn'


@dataclasses.dataclass(frozen=True)
class Record:
    """A snapshot under way.

    :ivar snapshot_id: the image that it becomes, as a canonical UUID.
    :ivar store: name of the store that makes it; empty until one is chosen.
    :ivar host: that sends it; empty if nobody knows.
    :ivar export: its name at exporters, which cannot be guessed; empty if it has none.
    :ivar stage: how far it is.
    :ivar since: when it came there, in seconds since the epoch.
    :ivar base: path of the base that it is made of.
    :ivar disk_format: of the base, and of the image that it becomes; empty if it is not known.
    :ivar work: path of the file that becomes the image; empty in Ceph.
    :ivar glance_store: Glance's name of the store that registers that file; empty if none does.
    :ivar file: that was put into that store, as ``placing.named`` has it; empty before.
    """

    snapshot_id: str
    store: str = ''
    host: str = ''
    export: str = ''
    stage: Stage = Stage.BEGUN
    since: float = 0.0
    base: str = ''
    disk_format: str = ''
    work: str = ''
    glance_store: str = ''
    file: str = ''


class Records:
    """The records of this storage node; read once, and kept in memory.

    :param node_id: of the node's row.
    :raises DatabaseAway: if they cannot be read.
    """

    def __init__(self, database: Database, node_id: int):
        self._database, self._node_id = database, node_id
        # Held over a transaction, so that the last one in the database is the last one here: see
        # glance_bootcache/locks.py.
        self._writing = threading.Lock()
        # Replaced as a whole with each change.
        self._records = {record.snapshot_id: record for record in database.read(
            lambda connection: [_record(row) for row in connection.execute(
                sa.select(SnapshotRow.__table__).where(SnapshotRow.node_id == node_id))])}

    def all(self) -> list[Record]:
        """Return all of them."""
        return list(self._records.values())

    def get(self, snapshot_id: str) -> Record | None:
        """Return a snapshot's record, if it has one."""
        return self._records.get(snapshot_id)

    def put(self, record: Record) -> None:
        """Write a record, in place of an earlier one of the same snapshot.

        :raises DatabaseAway: if it cannot be written; nothing has changed here then.
        """
        with self._writing:
            self._database.write(lambda connection: upsert(connection, SnapshotRow, [
                {**dataclasses.asdict(record), 'stage': record.stage.value,
                 'node_id': self._node_id}]))
            self._records = {**self._records, record.snapshot_id: record}

    def node_of(self, snapshot_id: str) -> int | None:
        """Return the number of the node that makes a snapshot; None if no node does.

        :raises DatabaseAway: if this node does not, and the database does not answer.
        """
        if snapshot_id in self._records:
            return self._node_id
        return self._database.read(lambda connection: connection.execute(sa.select(
            SnapshotRow.node_id).where(SnapshotRow.snapshot_id == snapshot_id)).scalar())

    def adopt(self, node_id: int) -> None:
        """Have this node end the snapshots of one that is gone: nobody goes on with them.

        :param node_id: of that node's row.
        :raises DatabaseAway: if it cannot be written.
        """
        def take(connection: sa.Connection) -> list[Record]:
            ids = connection.execute(sa.select(SnapshotRow.snapshot_id).where(
                SnapshotRow.node_id == node_id)).scalars().all()
            connection.execute(sa.update(SnapshotRow).where(
                SnapshotRow.node_id == node_id, SnapshotRow.snapshot_id.in_(ids)).values(
                    node_id=self._node_id))
            return [_record(row) for row in connection.execute(
                sa.select(SnapshotRow.__table__).where(
                    SnapshotRow.node_id == self._node_id, SnapshotRow.snapshot_id.in_(ids)))]

        with self._writing:
            if taken := self._database.write(take):
                self._records = {**self._records, **{
                    record.snapshot_id: record for record in taken}}

    def drop(self, record: Record) -> None:
        """Remove a record, unless there is another one of the same snapshot by now.

        :raises DatabaseAway: as of ``put``.
        """
        with self._writing:
            if self.get(record.snapshot_id) != record:
                return
            self._database.write(lambda connection: delete(
                connection, SnapshotRow, [{'snapshot_id': record.snapshot_id}]))
            self._records = {snapshot_id: other for snapshot_id, other in self._records.items()
                             if snapshot_id != record.snapshot_id}


def _record(row: Any) -> Record:
    columns = row._asdict()
    del columns['node_id']
    return Record(**{**columns, 'stage': Stage(row.stage)})
