"""This storage node's row."""

import uuid

import sqlalchemy as sa

from glance_bootcache.db.engine import Database
from glance_bootcache.db.models import StorageNodeRow

UP = 'up'


def register(database: Database, name: str) -> int:
    """Return the number of a storage node's row, which is made if there is none.

    :param name: ``[DEFAULT]host``.
    :raises DatabaseAway: if the database does not answer.
    """
    def find(connection: sa.Connection) -> int | None:
        return connection.execute(
            sa.select(StorageNodeRow.id).where(StorageNodeRow.name == name)).scalar()

    def make(connection: sa.Connection) -> int | None:
        connection.execute(sa.insert(StorageNodeRow).values(
            uuid=str(uuid.uuid4()), name=name, beat=0, state=UP))
        return find(connection)

    found = database.read(find) or database.write(make)
    assert found is not None
    return found
