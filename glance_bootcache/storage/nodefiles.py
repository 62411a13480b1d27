"""What this storage node has made, also in Ceph, Glance and Nova: each has a row before that.

Nothing is removed but what a row says is retiring. What no row names is left where it is: a
database that is empty, or an older one, destroys nothing.
"""

import contextlib
import dataclasses
import enum
import glob
import os
import threading
import time
from collections.abc import Callable, Collection
from typing import Any

import sqlalchemy as sa
from oslo_log import log as logging
from oslo_utils import uuidutils

from bootcache import naming
from bootcache.ceph import places
from bootcache.ceph.rbd import HEAD
from bootcache.exception import DatabaseAway, Interrupted
from bootcache.manifest import Manifest
from glance_bootcache.db.engine import Database, delete, upsert
from glance_bootcache.db.models import FileRow, FileState

LOG = logging.getLogger(__name__)


class FileKind(enum.StrEnum):
    """What a row of ``files`` is about."""

    BASE = 'base'
    CACHE_IMAGE = 'cache_image'
    DIFFERENCE = 'difference'
    CLONE = 'clone'
    COPY = 'copy'
    SERVER = 'server'
    TRIAL = 'trial'
    STANDBY = 'standby'


# In images' directories: what an image's row names, and all.
ON_DISK = (FileKind.BASE, FileKind.CACHE_IMAGE, FileKind.DIFFERENCE)
_FILES = (*ON_DISK, FileKind.STANDBY)
# Of an image that another node takes over: what it has then, and what is of no more use.
_IN_CEPH, _OVER = (FileKind.CLONE, FileKind.COPY), (FileKind.SERVER, FileKind.TRIAL)
# A request whose answer was lost, or whose client was killed, has come to its end by then.
_LATE_SECONDS = 600


@dataclasses.dataclass(frozen=True)
class Standby:
    """A standby copy of a base.

    :ivar node_id: row of the node that has it.
    :ivar name: of the file.
    :ivar made_at: when it was begun, in seconds since the epoch.
    :ivar is_whole: whether it is; else it is being made.
    """

    node_id: int
    name: str
    made_at: float
    is_whole: bool = True

    def is_of(self, base_hash: str) -> bool:
        """Tell whether it is of a content, ``algorithm:hexadecimal``."""
        return self.name.endswith(standby_suffix(base_hash))


def standby_suffix(base_hash: str) -> str:
    """Return the end of a standby copy's name, by which it is known of which content it is.

    :param base_hash: ``algorithm:hexadecimal``.
    """
    return f'-{base_hash.partition(":")[2]}.img'


def difference_name(cache_file: str) -> str:
    """Return the name of the difference that belongs to a cache image's file."""
    return f'{cache_file.partition(".")[0]}.difference'


def named(manifest: Manifest | None, directory: str) -> set[str]:
    """Return the names of what a manifest needs, as rows of files have them. Pure.

    :param directory: the image's; a base that lies elsewhere is not the service's own.
    """
    if manifest is None:
        return set()
    made, found = manifest.made, set()
    if places.is_clone(made.base_path):
        found.add(made.base_path)
    elif made.base_path and os.path.dirname(made.base_path) == directory:
        found.add(os.path.basename(made.base_path))
    if made.cache_image is not None:
        found.add(made.cache_image.file)
        if made.difference is not None:
            found.add(difference_name(made.cache_image.file))
    return found


def tell_unnamed(what: str, found: Collection[str], cure: str) -> None:
    """Log what no row names: another storage service's, or of a database that was lost."""
    if found:
        LOG.warning('%d %s are of no row of the database, and are left, as %s; %s', len(found),
                    what, min(found), cure)


class NodeFiles:
    """The rows of this node, and the files in its directory of images.

    :param node_id: of the node's row.
    :param images: the directory.
    :param may_remove: tells whether anything may be removed now.
    :param clock: seconds since the epoch.
    """

    def __init__(self, database: Database, node_id: int, images: str,
                 may_remove: Callable[[], bool] = lambda: True,
                 clock: Callable[[], float] = time.time):
        self._database, self._node_id, self._images = database, node_id, images
        self.may_remove, self._clock = may_remove, clock
        self._lock = threading.Lock()  # guards what follows
        # What was made in vain, by image and name, and whose rows do not say so yet.
        self._abandoned: set[tuple[str, str]] = set()

    def directory(self, image_id: str) -> str:
        """Return an image's directory.

        :raises ValueError: if the id is no UUID.
        """
        return os.path.join(self._images, naming.canonical_image_id(image_id))

    def retire_left(self) -> None:
        """Have what an earlier process was making be retiring; nothing may be in hand.

        :raises DatabaseAway: if the database does not answer.
        """
        # What it was looking at of a clone has no row.
        for path in glob.glob(os.path.join(glob.escape(self._images), '*', f'{HEAD}*')):
            with contextlib.suppress(OSError):
                os.unlink(path)
        if self.may_remove():
            self._database.write(lambda connection: connection.execute(sa.update(FileRow).where(
                FileRow.node_id == self._node_id, FileRow.state == FileState.MAKING.value).values(
                    state=FileState.RETIRING.value)))

    def begin(self, image_id: str, kind: FileKind, name: str) -> None:
        """Write the row of something that is about to be made.

        :param name: of a file in the image's directory, which is made, or of another thing.
        :raises DatabaseAway: if the database does not answer; it may not be made then.
        :raises OSError: if the directory cannot be made.
        """
        if kind in _FILES or kind is FileKind.CLONE:  # Of which some bytes are looked at there.
            os.makedirs(self.directory(image_id), mode=0o750, exist_ok=True)
        try:
            self._database.write(lambda connection: upsert(connection, FileRow, [
                {'node_id': self._node_id, 'image_id': image_id, 'name': name, 'kind': kind.value,
                 'state': FileState.MAKING.value, 'made_at': self._clock()}]))
        except DatabaseAway:
            # The answer alone may have been lost.
            with self._lock:
                self._abandoned.add((image_id, name))
            raise

    def turn_over(self, connection: sa.Connection, image_id: str, ready: Collection[str],
                  retiring: Collection[str] | None) -> None:
        """Write what an image's row names from now on, in that row's transaction.

        :param ready: names that it did not name before.
        :param retiring: names that it names no more; None for all that there are.
        :raises Interrupted: if something that it is to name is being removed; nothing is written.
        """
        mine = FileRow.node_id == self._node_id, FileRow.image_id == image_id
        if ready:
            wanted = *mine, FileRow.name.in_(ready), FileRow.state != FileState.RETIRING.value
            connection.execute(sa.update(FileRow).where(*wanted).values(
                state=FileState.READY.value))
            there = set(connection.execute(sa.select(FileRow.name).where(*wanted)).scalars())
            if gone := set(ready) - there:
                raise Interrupted(f'image {image_id}: {min(gone)} was given up meanwhile')
        if retiring is None or retiring:
            which = () if retiring is None else (FileRow.name.in_(retiring),)
            connection.execute(sa.update(FileRow).where(*mine, *which).values(
                state=FileState.RETIRING.value))

    def take_over(self, connection: sa.Connection, image_id: str, node_id: int,
                  base: str = '') -> None:
        """Write that this node has what another one has made of an image elsewhere than on its own
        disk; in the transaction by which it takes the image over.

        Its servers of profile boots are over. What is on its disk stays the other node's. A standby
        copy that this node has is a base from now on.

        :param node_id: of the other node's row.
        :param base: name of this node's file that the image's row names as its base.
        :raises Interrupted: if that is being removed; nothing is written.
        """
        theirs = FileRow.node_id == node_id, FileRow.image_id == image_id
        connection.execute(sa.update(FileRow).where(
            *theirs, FileRow.kind.in_(_OVER)).values(
                node_id=self._node_id, state=FileState.RETIRING.value))
        connection.execute(sa.update(FileRow).where(
            *theirs, FileRow.kind.in_(_IN_CEPH)).values(node_id=self._node_id))
        connection.execute(sa.update(FileRow).where(
            FileRow.node_id == self._node_id, FileRow.image_id == image_id,
            FileRow.kind == FileKind.STANDBY.value, FileRow.state == FileState.READY.value).values(
                kind=FileKind.BASE.value))
        if base:
            self.turn_over(connection, image_id, {base}, ())

    @staticmethod
    def retire_everywhere(connection: sa.Connection, image_id: str) -> None:
        """Write that all that any node has of an image is to be removed; in the transaction in
        which its row goes."""
        connection.execute(sa.update(FileRow).where(FileRow.image_id == image_id).values(
            state=FileState.RETIRING.value))

    def change(self, image_id: str, ready: Collection[str] = (),
               retiring: Collection[str] = ()) -> None:
        """Write what there is from now on of things that no image's row names.

        :raises DatabaseAway: if the database does not answer.
        :raises Interrupted: as of ``turn_over``.
        """
        self._database.write(
            lambda connection: self.turn_over(connection, image_id, ready, retiring))

    def abandon(self, image_id: str, name: str) -> None:
        """Have something that was made in vain be removed: a file now, or when the database
        answers; another thing when its kind is removed."""
        with self._lock:
            self._abandoned.add((image_id, name))
        self.remove_retired(image_id)

    def remove_retired(self, image_id: str | None = None) -> None:
        """Remove the files that are retiring, and then their rows; what fails is tried again.

        :param image_id: of that image; None for all.
        """
        try:
            self._retire_abandoned()
            for found in self._retiring(_FILES, image_id):
                try:
                    self._remove_file(found.image_id, found.name)
                except OSError as error:
                    LOG.info('%s is removed later: %s', found.name, error)
                    continue
                self._forget(found.image_id, found.name)
        except DatabaseAway as error:
            LOG.info('files that nothing names any more are removed later: %s', error)

    def remove_retired_of(self, kind: FileKind, remove: Callable[[str, str], bool]) -> None:
        """Remove the things of a kind that are retiring, and then their rows.

        :param kind: of what is no file.
        :param remove: removes that of an image and a name; tells whether there is none.
        :raises DatabaseAway: if the database does not answer.
        :raises Exception: of the last that cannot be removed; others are.
        """
        self._retire_abandoned()
        failed = None
        for found in self._retiring((kind,)):
            try:
                is_gone = remove(found.image_id, found.name)
            except Exception as error:
                failed = error
                continue
            if is_gone and found.made_at <= self._clock() - _LATE_SECONDS:
                self._forget(found.image_id, found.name)
                LOG.info('image %s: %s %s, which nothing needs, is gone', found.image_id, kind,
                         found.name)
        if failed is not None:
            raise failed

    def by_image(self) -> dict[str, dict[str, FileKind]]:
        """Return this node's files that are ready, by image: the kind of each, by its name.

        :raises DatabaseAway: if the database does not answer.
        """
        found: dict[str, dict[str, FileKind]] = {}
        for image_id, name, kind in self._database.read(lambda connection: connection.execute(
                sa.select(FileRow.image_id, FileRow.name, FileRow.kind).where(
                    FileRow.node_id == self._node_id, FileRow.kind.in_(ON_DISK),
                    FileRow.state == FileState.READY.value)).all()):
            found.setdefault(image_id, {})[name] = FileKind(kind)
        return found

    def named(self, kind: FileKind, *states: FileState) -> dict[str, str]:
        """Return the images of things of a kind, by the things' names.

        :param states: in which they are; any, if not given.
        :raises DatabaseAway: if the database does not answer.
        """
        which = (FileRow.state.in_([state.value for state in states]),) if states else ()
        return {row.name: row.image_id for row in self._database.read(
            lambda connection: connection.execute(sa.select(FileRow.name, FileRow.image_id).where(
                FileRow.node_id == self._node_id, FileRow.kind == kind.value, *which)).all())}

    def known(self, kind: FileKind) -> set[str]:
        """Return the names of things of a kind that any storage node has a row of.

        :raises DatabaseAway: if the database does not answer.
        """
        return set(self._database.read(lambda connection: connection.execute(sa.select(
            FileRow.name).where(FileRow.kind == kind.value)).scalars().all()))

    def has_base(self, image_id: str) -> bool:
        """Tell whether a node has a base of an image, or a standby copy, on its disk.

        :raises DatabaseAway: if the database does not answer.
        """
        return self._database.read(lambda connection: connection.execute(sa.select(
            FileRow.name).where(
                FileRow.image_id == image_id, FileRow.state == FileState.READY.value,
                FileRow.kind.in_((FileKind.BASE, FileKind.STANDBY))).limit(1)).first()) is not None

    def standbys(self, image_id: str | None = None) -> dict[str, list[Standby]]:
        """Return the standby copies of all nodes, by image, those that are being made as well.

        :param image_id: of that image alone.
        :raises DatabaseAway: if the database does not answer.
        """
        which = () if image_id is None else (FileRow.image_id == image_id,)
        found: dict[str, list[Standby]] = {}
        for row in self._database.read(lambda connection: connection.execute(sa.select(
                FileRow.image_id, FileRow.node_id, FileRow.name, FileRow.made_at, FileRow.state
        ).where(FileRow.kind == FileKind.STANDBY.value,
                FileRow.state != FileState.RETIRING.value, *which)).all()):
            found.setdefault(row.image_id, []).append(Standby(
                row.node_id, row.name, row.made_at, row.state == FileState.READY.value))
        return found

    def unnamed(self) -> list[str]:
        """Return the paths of files in images' directories that no row names, as far as they can be
        read.

        :raises DatabaseAway: if the database does not answer.
        """
        # First: what is being made has a row before it is there.
        found = [(image_id, name) for image_id, name in (
            path.split(os.sep)[-2:] for path in sorted(glob.glob(
                os.path.join(glob.escape(self._images), '*', '*'), include_hidden=True)))
            if uuidutils.is_uuid_like(image_id) and not name.startswith(HEAD)]
        known = {(row.image_id, row.name) for row in self._database.read(
            lambda connection: connection.execute(sa.select(FileRow.image_id, FileRow.name).where(
                FileRow.node_id == self._node_id)).all())}
        return [os.path.join(self._images, image_id, name) for image_id, name in found
                if not any((image_id, one) in known for one in (name, name.rpartition('.')[0]))]

    def images(self) -> list[str]:
        """Return the ids of images that have a directory here.

        :raises OSError: if that cannot be read.
        """
        return [name for name in sorted(os.listdir(self._images)) if uuidutils.is_uuid_like(name)]

    def _retiring(self, kinds: Collection[FileKind], image_id: str | None = None
                  ) -> list[sa.Row[Any]]:
        if not self.may_remove():
            return []
        which = () if image_id is None else (FileRow.image_id == image_id,)
        return self._database.read(lambda connection: list(connection.execute(
            sa.select(FileRow.image_id, FileRow.name, FileRow.made_at).where(
                FileRow.node_id == self._node_id, FileRow.state == FileState.RETIRING.value,
                FileRow.kind.in_([kind.value for kind in kinds]), *which))))

    def _retire_abandoned(self) -> None:
        with self._lock:
            abandoned = set(self._abandoned)
        if not abandoned:
            return

        def change(connection: sa.Connection) -> None:
            for image_id, name in abandoned:
                # Not where an image's row names it: the answer to that transaction was lost.
                connection.execute(sa.update(FileRow).where(
                    FileRow.node_id == self._node_id, FileRow.image_id == image_id,
                    FileRow.name == name, FileRow.state == FileState.MAKING.value).values(
                        state=FileState.RETIRING.value))

        self._database.write(change)
        with self._lock:
            self._abandoned -= abandoned

    def _remove_file(self, image_id: str, name: str) -> None:
        directory = self.directory(image_id)
        for path in (os.path.join(directory, name), os.path.join(directory, f'{name}.partial')):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def _forget(self, image_id: str, name: str) -> None:
        self._database.write(lambda connection: delete(connection, FileRow, [
            {'node_id': self._node_id, 'image_id': image_id, 'name': name}]))
