"""This storage node's row, and in which database it is: the state directory knows both as well.

So a database that is empty, or an older state of the one that was used, is told from the right one.
"""

import dataclasses
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from oslo_db import exception as db_exception
from oslo_log import log as logging

from bootcache import savefile
from bootcache.exception import ConfigurationError
from bootcache.util.logthrottle import LogThrottle
from glance_bootcache.db import conf as db_conf
from glance_bootcache.db.engine import Database
from glance_bootcache.db.models import FileRow, FileState, IdentityRow, StorageNodeRow

LOG = logging.getLogger(__name__)

UP, RESTORED = 'up', 'restored'
BEAT_SECONDS = 5.0
_VERSION = 1
# Of beats: the file is synced.
_WRITE_EVERY = 12
# Of a process that found an older state, until files are removed again: an hour, in which each host
# has reported what it needs, and Glance's images were swept.
_SETTLED_BEATS = 720
_CURE = ('what exporters serve they go on serving, and no file is removed for an hour; when'
         ' "bootcache image list" shows the images that it is to show, "bootcache-manage db accept"'
         ' has files removed at once')


@dataclasses.dataclass(frozen=True)
class NodeFile:
    """What ``node.json`` says.

    :ivar database: identity of the database that the node used last.
    :ivar node: the node's own.
    :ivar beat: of its row; that had at least as much.
    """

    database: str
    node: str
    beat: int

    @classmethod
    def from_json(cls, said: dict[str, Any]) -> 'NodeFile':
        """Read it.

        :raises ValueError: if it is none; KeyError and TypeError likewise.
        """
        return cls(str(uuid.UUID(said['database'])), str(uuid.UUID(said['node'])),
                   int(said['beat']))


@dataclasses.dataclass(frozen=True)
class _Claimed:
    id: int
    identity: str
    beat: int
    state: str


class StorageNode:
    """This node in the database.

    :param path: of ``node.json``.
    :param name: ``[DEFAULT]host``.
    :param sleep: waits for the beat of another process that has this name.
    :raises ConfigurationError: if there is one.
    :raises DatabaseAway: if the database does not answer.
    """

    def __init__(self, database: Database, path: str, name: str,
                 sleep: Callable[[float], None] = time.sleep):
        self._database, self._path = database, path
        self._beats = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name='bootcache-beat', daemon=True)
        self._throttle = LogThrottle(LOG)
        known = _read(path)
        self._uuid = known.node if known is not None else str(uuid.uuid4())
        # After a crash the file's beat is a little behind.
        expected = known.beat + 2 * _WRITE_EVERY if known is not None else 0
        _check_alone(database, self._uuid, expected, sleep)
        try:
            self._claimed = database.write(
                lambda connection: _claim(connection, self._uuid, name, known))
        except db_exception.DBDuplicateEntry as error:
            raise ConfigurationError(
                f'[DEFAULT]host: {name} is another storage node\'s with {database}; give this one'
                ' its own name, or start it again if that was just now') from error
        if self.is_restored:
            LOG.error('%s is another one than this node used, or an older state of it: %s',
                      database, _CURE)
        self._save()

    @property
    def id(self) -> int:
        """The number of its row."""
        return self._claimed.id

    @property
    def is_restored(self) -> bool:
        """Whether the database is another one than the node knew, or an older state of it, and
        neither was it used for an hour since, nor has an operator accepted it: nothing may be
        removed then."""
        return self._claimed.state != UP

    def start(self, replaced: Callable[[], None]) -> None:
        """Begin to beat.

        :param replaced: called if the database is replaced meanwhile by another one, or by an older
            state of it: all that is in memory is to be read again.
        """
        self._replaced = replaced
        self._thread.start()

    def stop(self) -> None:
        """Beat no more."""
        self._stopping.set()
        self._thread.join()
        self._save()

    def beat(self) -> bool:
        """Count the row's beat up.

        :returns: False if the row is not as this process left it: the database was replaced.
        :raises DatabaseAway: if the database does not answer.
        """
        before = self._claimed
        changed = self._database.write(
            lambda connection: _beat(connection, self._uuid, before,
                                     self._beats >= _SETTLED_BEATS))
        if changed is None:
            return False
        self._claimed = changed
        self._beats += 1
        return True

    def _run(self) -> None:
        beats = 0
        while not self._stopping.wait(BEAT_SECONDS):
            try:
                if not self.beat():
                    LOG.error('%s was replaced by another one, or by an older state of it, while'
                              ' glance-bootcache runs, which reads it again: %s', self._database,
                              _CURE)
                    # By that the next process knows it, too.
                    self._save()
                    self._replaced()
                    return
                self._throttle.recovered('', 'the database answers')
            except Exception as error:
                # Drivers have more ways to fail on a connection that breaks.
                self._throttle.warning('', '%s', error)
                continue
            beats += 1
            if beats % _WRITE_EVERY == 0:
                self._save()

    def _save(self) -> None:
        try:
            savefile.write_json(self._path, {
                'version': _VERSION, 'database': self._claimed.identity, 'node': self._uuid,
                'beat': self._claimed.beat})
        except OSError as error:
            LOG.warning('%s cannot be written: %s; make room in [bootcache]state_dir', self._path,
                        error.strerror or error)


def number(database: Database, path: str) -> int | None:
    """Return the number of this node's row; None if the node was never started.

    :param path: of ``node.json``.
    :raises DatabaseAway: if the database does not answer.
    """
    known = _read(path)
    return None if known is None else database.read(lambda connection: connection.execute(
        sa.select(StorageNodeRow.id).where(StorageNodeRow.uuid == known.node)).scalar())


def accept(database: Database) -> list[str]:
    """Have files be removed again on the nodes that found the database another one than they knew.

    :returns: their names.
    :raises DatabaseAway: if the database does not answer.
    """
    def change(connection: sa.Connection) -> list[str]:
        names = [row.name for row in connection.execute(sa.select(StorageNodeRow.name).where(
            StorageNodeRow.state == RESTORED).order_by(StorageNodeRow.name))]
        connection.execute(sa.update(StorageNodeRow).where(
            StorageNodeRow.state == RESTORED).values(state=UP))
        return names

    return database.write(change)


def _read(path: str) -> NodeFile | None:
    try:
        return savefile.read_json(path, _VERSION, NodeFile.from_json)
    except (OSError, ValueError) as error:
        LOG.warning('%s cannot be used (%s): whether the database is the one that this node used is'
                    ' not known', path, error)
        return None


def _check_alone(database: Database, own: str, expected: int,
                 sleep: Callable[[float], None]) -> None:
    """Check that no other process beats there; one on this machine has the lock of its own.

    :param expected: a beat of the node's own row that is beyond it may be that of a copy of it.
    :raises ConfigurationError: if one does.
    """
    def look(connection: sa.Connection) -> dict[str, int]:
        return {row.name: row.beat for row in connection.execute(sa.select(
            StorageNodeRow.name, StorageNodeRow.beat).where(
                (StorageNodeRow.uuid != own) | (StorageNodeRow.beat > expected)))}

    before = database.read(look)
    if not before:
        return
    # The state directory of before is lost, or the database is another node's.
    sleep(3 * BEAT_SECONDS)
    for name, beat in database.read(look).items():
        if beat != before.get(name):
            raise ConfigurationError(
                f'[{db_conf.GROUP}]connection: another glance-bootcache works as {name} with'
                f' {database}; give each its own, and its own [DEFAULT]host, and remove node.json'
                ' from a [bootcache]state_dir that was copied')


def _claim(connection: sa.Connection, own: str, name: str, known: NodeFile | None) -> _Claimed:
    """Make this node's row, or take it over."""
    identity = connection.execute(sa.select(IdentityRow.uuid)).scalar()
    if identity is None:
        identity = str(uuid.uuid4())
        connection.execute(sa.insert(IdentityRow).values(id=1, uuid=identity))
    row = connection.execute(sa.select(StorageNodeRow.__table__).where(
        (StorageNodeRow.uuid == own) | (StorageNodeRow.name == name)).order_by(
            (StorageNodeRow.uuid == own).desc())).first()
    found = row is not None and row.uuid == own
    is_restored = known is not None and (
        known.database != identity or row is None or not found or row.beat < known.beat)
    state = RESTORED if is_restored else row.state if row is not None and found else UP
    # Beyond what the file says: from now on this state is the one that is known. It counts more
    # slowly than the clock: no state of an earlier process has the beat of a later one.
    beat = max(row.beat if row is not None else 0, known.beat if known is not None else 0,
               int(time.time())) + 1
    values = {'uuid': own, 'name': name, 'beat': beat, 'state': state}
    if row is None:
        connection.execute(sa.insert(StorageNodeRow).values(values))
    else:
        connection.execute(sa.update(StorageNodeRow).where(
            StorageNodeRow.id == row.id).values(values))
    if is_restored and row is not None:
        # It was made since, and servers may read from it: without a row it is left.
        connection.execute(sa.delete(FileRow).where(
            FileRow.node_id == row.id, FileRow.state == FileState.MAKING.value))
    made = connection.execute(
        sa.select(StorageNodeRow.id).where(StorageNodeRow.uuid == own)).scalar()
    assert made is not None
    return _Claimed(made, identity, beat, state)


def _beat(connection: sa.Connection, own: str, before: _Claimed,
          is_settled: bool) -> _Claimed | None:
    """Count a row's beat up; None if it is not as it was left.

    :param is_settled: files are removed from now on, whatever the database was.
    """
    done = connection.execute(sa.update(StorageNodeRow).where(
        StorageNodeRow.id == before.id, StorageNodeRow.uuid == own,
        # The answer to the last one may have been lost.
        StorageNodeRow.beat.in_((before.beat, before.beat + 1))).values(
            beat=before.beat + 1, **({'state': UP} if is_settled else {})))
    row = connection.execute(sa.select(
        StorageNodeRow.state, IdentityRow.uuid).join(IdentityRow, IdentityRow.id == 1).where(
            StorageNodeRow.id == before.id)).first()
    if done.rowcount != 1 or row is None or row.uuid != before.identity:
        return None
    return dataclasses.replace(before, beat=before.beat + 1, state=row.state)
