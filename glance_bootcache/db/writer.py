"""Writes what hosts report: all changes of a second in one transaction."""

import dataclasses
import threading
from collections.abc import Callable, Sequence

import sqlalchemy as sa
from oslo_log import log as logging

from bootcache.exception import BootcacheError
from bootcache.util.logthrottle import LogThrottle
from glance_bootcache.db.engine import Database

LOG = logging.getLogger(__name__)

_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class RowChanges:
    """What one kind of rows has that is not in the database yet.

    :ivar write: writes it; may be called again, also if it was written before.
    :ivar written: called when the transaction is in the database.
    """

    write: Callable[[sa.Connection], None]
    written: Callable[[], None]


# Returns what there is to write; None if that is nothing, or it need not be yet. It is asked to
# give all at the service's end.
Source = Callable[[bool], RowChanges | None]


class Writer:
    """The one thread that writes reports to the database.

    What cannot be written stays with its source, and is tried again.

    :param sources: are asked for their changes once a second.
    """

    def __init__(self, database: Database, sources: Sequence[Source]):
        self._database = database
        self._sources = sources
        self._stopping = threading.Event()
        self._throttle = LogThrottle(LOG)
        self._thread = threading.Thread(target=self._run, name='bootcache-writer', daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> None:
        """Write what there is, and end."""
        self._stopping.set()
        self._thread.join()
        self._try_to_write(at_once=True)

    def write(self, at_once: bool = False) -> None:
        """Write what there is, in one transaction.

        :param at_once: also what could wait.
        :raises DatabaseAway: if the database does not answer, or cannot be written.
        """
        changes = [found for source in self._sources if (found := source(at_once)) is not None]
        if not changes:
            return

        def write_all(connection: sa.Connection) -> None:
            for change in changes:
                change.write(connection)

        self._database.write(write_all)
        for change in changes:
            change.written()

    def _run(self) -> None:
        while not self._stopping.wait(_SECONDS):
            self._try_to_write()

    def _try_to_write(self, at_once: bool = False) -> None:
        try:
            self.write(at_once)
            self._throttle.recovered('', 'what hosts report can be written again')
        except BootcacheError as error:
            self._throttle.warning('', 'what hosts report is not written yet: %s', error)
        except Exception as error:
            if self._throttle.is_new('', repr(error)):
                LOG.exception('what hosts report cannot be written')
