"""MariaDB below the storage service of a stage: it goes away, and holds something else."""

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from glance_bootcache.db.models import Model
from glance_bootcache.nodes import node
from tools.databases import MariaDB, made

# A service notices within two beats that its database is another one, and is started again.
_NOTICED_SECONDS = 60.0
Rows = dict[str, list[dict[str, Any]]]


class WayDatabase:
    """A database of MariaDB.

    :ivar url: as for ``[database]connection``.
    """

    def __init__(self) -> None:
        self._server = MariaDB()
        self.url = self._server.database()
        self._database = made(self.url)

    def close(self) -> None:
        """End it, and remove its files."""
        self._database.close()
        self._server.remove()

    def go_away(self) -> Callable[[], None]:
        """End the server as kill -9 does; return what starts it again."""
        self._server.stop()
        return self._server.start

    def copy(self) -> Rows:
        """Return all rows, as a backup has them."""
        return self._database.read(lambda connection: {
            table.name: [dict(row._mapping) for row in connection.execute(sa.select(table))]
            for table in Model.metadata.sorted_tables})

    def put(self, rows: Rows) -> None:
        """Have these rows in the place of all that there are, as who restores a backup."""
        def replace(connection: sa.Connection) -> None:
            for table in reversed(Model.metadata.sorted_tables):
                connection.execute(sa.delete(table))
            for table in Model.metadata.sorted_tables:
                if rows.get(table.name):
                    connection.execute(sa.insert(table), rows[table.name])

        self._database.write(replace)

    def spoil(self) -> Callable[[], None]:
        """Have a table be away; return what has it be there again."""
        def rename(before: str, after: str) -> None:
            self._database.write(lambda connection: connection.execute(
                sa.text(f'RENAME TABLE {before} TO {after}')))

        rename('images', 'images_lost')
        return lambda: rename('images_lost', 'images')

    def accept(self, until: Callable[..., Any]) -> None:
        """Accept the database, as an operator does, once a service has found it another one.

        :param until: waits, as the stage does.
        """
        until(lambda: node.accept(self._database), 'a database that was found to be another one',
              _NOTICED_SECONDS)
