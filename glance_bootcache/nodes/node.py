"""This storage node's row, its beat, and in which database it is: the state directory knows both as
well.

So a database that is empty, or an older state of the one that was used, is told from the right one.
"""

import contextlib
import dataclasses
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa
from oslo_db import exception as db_exception
from oslo_log import log as logging

from bootcache import savefile
from bootcache.exception import ConfigurationError
from bootcache.rpc.messages import NodeWish
from bootcache.util.logthrottle import LogThrottle
from glance_bootcache.db import conf as db_conf
from glance_bootcache.db.engine import Database
from glance_bootcache.db.models import (
    FileRow,
    FileState,
    IdentityRow,
    ImageRow,
    SnapshotRow,
    StorageNodeRow,
)
from glance_bootcache.nodes.membership import Membership, NodeRecord
from glance_bootcache.storage.nodefiles import ON_DISK

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
    :param serves: exporters serve what an earlier process had them serve: without ``node.json`` it
        is not known by which database.
    :raises ConfigurationError: if there is one.
    :raises DatabaseAway: if the database does not answer.
    """

    def __init__(self, database: Database, path: str, name: str,
                 sleep: Callable[[float], None] = time.sleep, serves: bool = False):
        self._database, self._path = database, path
        self._beats = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name='bootcache-beat', daemon=True)
        self._throttle = LogThrottle(LOG)
        self._fault: Callable[[], str] = lambda: ''
        self._told: Callable[[], Mapping[str, Any]] = dict
        self._membership: Membership | None = None
        known = _read(path)
        self._uuid = known.node if known is not None else str(uuid.uuid4())
        # After a crash the file's beat is a little behind.
        expected = known.beat + 2 * _WRITE_EVERY if known is not None else 0
        _check_alone(database, self._uuid, name, expected, sleep)
        try:
            self._claimed = database.write(
                lambda connection: _claim(connection, self._uuid, name, known, serves))
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

    def start(self, replaced: Callable[[], None],
              fault: Callable[[], str] = lambda: '',
              told: Callable[[], Mapping[str, Any]] = dict,
              membership: Membership | None = None) -> None:
        """Begin to beat.

        :param replaced: called if the database is replaced meanwhile by another one, or by an older
            state of it: all that is in memory is to be read again.
        :param fault: tells why this node does not work as others are to see it, which does not beat
            then; empty if it does.
        :param told: gives what the row has of this node beside its beat, by column.
        :param membership: is given all nodes' rows after each beat.
        """
        self._replaced, self._fault, self._told = replaced, fault, told
        self._membership = membership
        # Who the others are is known before anything is answered. What fails is told of the next.
        with contextlib.suppress(Exception):
            self.beat()
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
        before, told = self._claimed, self._told()
        changed, records = self._database.write(
            lambda connection: _beat(connection, self._uuid, before,
                                     self._beats >= _SETTLED_BEATS, told))
        if changed is None:
            return False
        self._claimed = changed
        self._beats += 1
        if self._membership is not None:
            # With SQLite there is no other node, whatever rows are left.
            self._membership.observe(record for record in records if self._database.file is None
                                     or record.number == changed.id)
        return True

    def _run(self) -> None:
        beats = 0
        while not self._stopping.wait(BEAT_SECONDS):
            try:
                if fault := self._fault():
                    self._throttle.warning('fault', 'this storage node does not work, and after'
                                           ' 20 s is away for the others, which take its images'
                                           ' over: %s', fault)
                    if self._membership is not None:
                        self._membership.forget_clocks()
                    continue
                self._throttle.recovered('fault', 'this storage node works again')
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


def wish(database: Database, name: str, wanted: NodeWish | None) -> bool:
    """Write what an operator wants of a node.

    :param name: of the node.
    :param wanted: None for nothing any more.
    :returns: False if there is none of that name.
    :raises DatabaseAway: if it cannot be written.
    """
    def change(connection: sa.Connection) -> bool:
        connection.execute(sa.update(StorageNodeRow).where(StorageNodeRow.name == name).values(
            wish=None if wanted is None else wanted.value))
        return connection.execute(sa.select(StorageNodeRow.id).where(
            StorageNodeRow.name == name)).first() is not None

    return database.write(change)


def forget(database: Database, number: int, own: int) -> bool:
    """Remove the row of a node that is gone for good, on whose images others work by now.

    What it was to remove in Ceph, Glance and Nova this node removes.

    :param own: number of this node's row.
    :returns: False while something of it is left.
    :raises DatabaseAway: if the database does not answer.
    """
    def remove(connection: sa.Connection) -> bool:
        named = sa.exists().where(ImageRow.node_id == number) | sa.exists().where(
            SnapshotRow.node_id == number)
        if connection.execute(sa.select(StorageNodeRow.id).where(
                StorageNodeRow.id == number, ~named)).first() is None:
            return False
        connection.execute(sa.delete(FileRow).where(
            FileRow.node_id == number, FileRow.kind.in_(ON_DISK)))
        connection.execute(sa.update(FileRow).where(FileRow.node_id == number).values(
            node_id=own, state=FileState.RETIRING.value))
        connection.execute(sa.delete(StorageNodeRow).where(StorageNodeRow.id == number))
        return True

    return database.write(remove)


def take_images(database: Database, own: int) -> None:
    """Have this node, which is the only one, work on all images: node.json was lost, and it has
    another name. What another row's node has made is left, as what no row names.

    :param own: number of this node's row.
    :raises DatabaseAway: if it cannot be written.
    """
    database.write(lambda connection: connection.execute(
        sa.update(ImageRow).where(ImageRow.node_id != own).values(node_id=own)))


def _check_alone(database: Database, own: str, name: str, expected: int,
                 sleep: Callable[[float], None]) -> None:
    """Check that no other process works as this node; one on this machine has the lock of its own.

    :param name: of the node. With SQLite there is no other one.
    :param expected: a beat of the node's own row that is beyond it may be that of a copy of it.
    :raises ConfigurationError: if one does.
    """
    is_other = StorageNodeRow.uuid != own
    if database.file is None:
        is_other &= StorageNodeRow.name == name

    def look(connection: sa.Connection) -> dict[str, int]:
        return {row.name: row.beat for row in connection.execute(sa.select(
            StorageNodeRow.name, StorageNodeRow.beat).where(
                is_other | ((StorageNodeRow.uuid == own) & (StorageNodeRow.beat > expected))))}

    before = database.read(look)
    if not before:
        return
    # The state directory of before is lost, or the database is another node's.
    sleep(3 * BEAT_SECONDS)
    for other, beat in database.read(look).items():
        if beat != before.get(other):
            raise ConfigurationError(
                f'[{db_conf.GROUP}]connection: another glance-bootcache works as {other} with'
                f' {database}; give each its own [DEFAULT]host, and remove node.json from a'
                ' [bootcache]state_dir that was copied' + (
                    '' if database.file is None else '; several storage nodes share a MariaDB in'
                    f' [{db_conf.GROUP}]connection, and not SQLite'))


def _claim(connection: sa.Connection, own: str, name: str, known: NodeFile | None,
           serves: bool) -> _Claimed:
    """Make this node's row, or take it over."""
    identity = connection.execute(sa.select(IdentityRow.uuid)).scalar()
    if identity is None:
        identity = str(uuid.uuid4())
        connection.execute(sa.insert(IdentityRow).values(id=1, uuid=identity))
    row = connection.execute(sa.select(StorageNodeRow.__table__).where(
        (StorageNodeRow.uuid == own) | (StorageNodeRow.name == name)).order_by(
            (StorageNodeRow.uuid == own).desc())).first()
    found = row is not None and row.uuid == own
    is_restored = serves if known is None else (
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
        # One that was taken for gone for good is there again.
        wanted = None if row.wish == NodeWish.FORGOTTEN.value else row.wish
        connection.execute(sa.update(StorageNodeRow).where(
            StorageNodeRow.id == row.id).values(**values, wish=wanted))
    if is_restored and row is not None:
        # It was made since, and servers may read from it: without a row it is left.
        connection.execute(sa.delete(FileRow).where(
            FileRow.node_id == row.id, FileRow.state == FileState.MAKING.value))
    made = connection.execute(
        sa.select(StorageNodeRow.id).where(StorageNodeRow.uuid == own)).scalar()
    assert made is not None
    return _Claimed(made, identity, beat, state)


def _beat(connection: sa.Connection, own: str, before: _Claimed, is_settled: bool,
          told: Mapping[str, Any]) -> tuple[_Claimed | None, list[NodeRecord]]:
    """Count a row's beat up; None if it is not as it was left. With it comes what all rows say.

    :param is_settled: files are removed from now on, whatever the database was.
    :param told: what the row has beside, by column.
    """
    done = connection.execute(sa.update(StorageNodeRow).where(
        StorageNodeRow.id == before.id, StorageNodeRow.uuid == own,
        # The answer to the last one may have been lost.
        StorageNodeRow.beat.in_((before.beat, before.beat + 1))).values(
            beat=before.beat + 1, **told, **({'state': UP} if is_settled else {})))
    identity = connection.execute(
        sa.select(IdentityRow.uuid).where(IdentityRow.id == 1)).scalar()
    rows = {row.id: row for row in connection.execute(sa.select(StorageNodeRow.__table__))}
    row = rows.get(before.id)
    if done.rowcount != 1 or row is None or identity != before.identity:
        return None, []
    return dataclasses.replace(before, beat=before.beat + 1, state=row.state), [
        NodeRecord(one.id, one.name, one.beat, one.state == RESTORED,
                   # A later release may know others.
                   NodeWish(one.wish) if one.wish in list(NodeWish) else None, one.rpc or '',
                   one.look_rules or 0, one.free_bytes or 0) for one in rows.values()]
