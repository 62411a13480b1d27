"""What was made on this storage node: each thing has a row before it is made.

Nothing is removed but what a row says is retiring. What no row names is left where it is: a
database that is empty, or an older one, destroys nothing.
"""

import contextlib
import enum
import glob
import os
import threading
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


class NodeFiles:
    """The rows of this node, and the files in its directory of images.

    :param node_id: of the node's row.
    :param images: the directory.
    :param may_remove: tells whether anything may be removed now.
    """

    def __init__(self, database: Database, node_id: int, images: str,
                 may_remove: Callable[[], bool] = lambda: True):
        self._database, self._node_id, self._images = database, node_id, images
        self._may_remove = may_remove
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
        :raises OSError: if what it was looking at of a clone, which has no row, cannot be removed.
        """
        for path in glob.glob(os.path.join(glob.escape(self._images), '*', f'{HEAD}*')):
            os.unlink(path)
        if self._may_remove():
            self._database.write(lambda connection: connection.execute(sa.update(FileRow).where(
                FileRow.node_id == self._node_id, FileRow.state == FileState.MAKING.value).values(
                    state=FileState.RETIRING.value)))

    def begin(self, image_id: str, kind: FileKind, name: str) -> None:
        """Write the row of something that is about to be made.

        :param name: of a file in the image's directory, which is made, or of a clone.
        :raises DatabaseAway: if the database does not answer; it may not be made then.
        :raises OSError: if the directory cannot be made.
        """
        os.makedirs(self.directory(image_id), mode=0o750, exist_ok=True)
        try:
            self._database.write(lambda connection: upsert(connection, FileRow, [
                {'node_id': self._node_id, 'image_id': image_id, 'name': name, 'kind': kind.value,
                 'state': FileState.MAKING.value}]))
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

    def abandon(self, image_id: str, name: str) -> None:
        """Have something that was made in vain be removed: now, or when the database answers."""
        with self._lock:
            self._abandoned.add((image_id, name))
        self.remove_retired(image_id)

    def remove_retired(self, image_id: str | None = None) -> None:
        """Remove the files that are retiring, and then their rows; what fails is tried again.

        :param image_id: of that image; None for all.
        """
        try:
            self._retire_abandoned()
            for found in self._retiring(FileRow.kind != FileKind.CLONE.value, image_id):
                self._remove_file(found.image_id, found.name)
                self._forget(found.image_id, found.name)
        except (DatabaseAway, OSError) as error:
            LOG.info('files that nothing names any more are removed later: %s', error)

    def remove_retired_clones(self, remove: Callable[[str], bool]) -> None:
        """Remove the clones that are retiring, and then their rows.

        :param remove: removes one; tells whether it is gone.
        :raises BootcacheError: if the database, or Ceph, does not answer.
        """
        for found in self._retiring(FileRow.kind == FileKind.CLONE.value):
            if remove(found.name):
                LOG.info('image %s: %s, which nothing needs, is removed from Ceph', found.image_id,
                         found.name)
                self._forget(found.image_id, found.name)

    def unnamed(self) -> list[str]:
        """Return the paths of files in images' directories that no row names.

        :raises DatabaseAway: if the database does not answer.
        :raises OSError: if a directory cannot be read.
        """
        # First: what is being made has a row before it is there.
        found = [(image_id, name) for image_id in self.images()
                 for name in sorted(os.listdir(os.path.join(self._images, image_id)))
                 if not name.startswith(HEAD)]
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

    def _retiring(self, kinds: sa.ColumnElement[bool], image_id: str | None = None
                  ) -> list[sa.Row[Any]]:
        if not self._may_remove():
            return []
        which = () if image_id is None else (FileRow.image_id == image_id,)
        return self._database.read(lambda connection: list(connection.execute(
            sa.select(FileRow.image_id, FileRow.name).where(
                FileRow.node_id == self._node_id, FileRow.state == FileState.RETIRING.value,
                kinds, *which))))

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
