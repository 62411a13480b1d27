"""The images that the storage service knows: rows of the database, with one copy in memory."""

import contextlib
import dataclasses
import hashlib
import json
import os
import random
import secrets
import threading
import time
import zlib
from collections.abc import Callable, Collection
from typing import Any

import cachetools
import sqlalchemy as sa
from oslo_db import exception as db_exception
from oslo_log import log as logging
from oslo_utils import timeutils

from bootcache import exception, naming, steps
from bootcache.exception import DatabaseAway, DatabaseUnusable
from bootcache.manifest import Manifest
from bootcache.workingset import WorkingSet
from glance_bootcache.db.engine import Database, delete, upsert
from glance_bootcache.db.models import ImageRow, WorkingSetRow
from glance_bootcache.storage import imagerows, nodefiles
from glance_bootcache.storage.nodefiles import FileKind, NodeFiles

LOG = logging.getLogger(__name__)

_STEMS = {FileKind.BASE: 'base', FileKind.CACHE_IMAGE: 'cache', FileKind.STANDBY: 'standby'}
_MOST_TRIES = 20
_PAUSE_SECONDS = 0.005
_MOST_REMOVED = 10_000
# For which hosts are told that an image has another home: each reports several times.
MOVED_SECONDS, _MOST_MOVED = 600, 100_000


@dataclasses.dataclass(frozen=True)
class _Held:
    """An image's row in memory.

    :ivar version: of the row.
    :ivar home: the row of the node that works on it in storage_nodes.
    :ivar term: counts up when another node works on it.
    """

    version: int
    manifest: Manifest
    home: int
    term: int = 1


class ImageStore:
    """The images' rows, and their directories below ``state_dir``.

    All rows are read at the start; what is read then is given from memory, and is replaced after
    each commit. An image has one home, the node that works on it: ``load``, ``known`` and
    ``manifests`` give images of which this node is that.

    :param state_dir: made if missing.
    :param node_id: of this storage node's row.
    :param may_remove: tells whether files may be removed now.
    :ivar files: what was made on this node.
    :ivar images_directory: has a directory for each image.
    :raises DatabaseAway: if the rows cannot be read.
    """

    def __init__(self, state_dir: str, database: Database, node_id: int,
                 may_remove: Callable[[], bool] = lambda: True):
        self._directory, self._database, self._node_id = state_dir, database, node_id
        self.images_directory = os.path.join(state_dir, 'images')
        os.makedirs(self.images_directory, mode=0o750, exist_ok=True)
        self.files = NodeFiles(database, node_id, self.images_directory, may_remove)
        self._memory = threading.Lock()  # guards what follows, for steps in memory
        self._held: dict[str, _Held] = {
            row.image_id: _from_row(row) for row in database.read(
                lambda connection: connection.execute(sa.select(ImageRow.__table__)).all())}
        # Versions of rows that were removed: one of the same image begins after that, so that a
        # change that was written before the removal is told from one that was after it.
        self._removed: cachetools.LRUCache[str, int] = cachetools.LRUCache(_MOST_REMOVED)
        # Images that this node has taken over, and whose rows were read again as somebody else was
        # faster, or an answer was lost: what they say now is to be looked at.
        self._unseen: set[str] = set()
        # When images were seen to have got another home, in monotonic seconds.
        self._moved: cachetools.TTLCache[str, float] = cachetools.TTLCache(
            _MOST_MOVED, MOVED_SECONDS)

    def state_path(self, name: str) -> str:
        """Return the path of a file that is about no single image."""
        return os.path.join(self._directory, name)

    def directory(self, image_id: str) -> str:
        """Return an image's directory, which need not be there.

        :raises ValueError: if the id is no UUID.
        """
        return self.files.directory(image_id)

    def path(self, image_id: str, name: str) -> str:
        """Return the path of a file of an image."""
        return os.path.join(self.directory(image_id), name)

    def cache_path(self, manifest: Manifest) -> str | None:
        """Return the path of an image's cache image, None if it has none."""
        cache = manifest.made.cache_image
        return self.path(manifest.image_id, cache.file) if cache else None

    def has_lost_base(self, manifest: Manifest) -> bool:
        """Return whether an image's base of the service's own is not there any more: its disk was
        lost, and the database was not."""
        path = manifest.made.base_path
        return os.path.dirname(path) == self.directory(manifest.image_id) \
            and not os.path.exists(path)

    def difference_path(self, image_id: str, cache_file: str) -> str:
        """Return where the difference is, or would be, that belongs to a cache image.

        :param cache_file: name of the cache image's file.
        """
        return self.path(image_id, nodefiles.difference_name(cache_file))

    def retire_left(self) -> None:
        """Have what an earlier process was making be removed; nothing may be in hand.

        :raises DatabaseAway: if the database does not answer.
        """
        self.files.retire_left()
        mine = sa.select(ImageRow.image_id).where(ImageRow.node_id == self._node_id)
        self._database.write(lambda connection: connection.execute(sa.delete(WorkingSetRow).where(
            WorkingSetRow.image_id.in_(mine), _NOT_NAMED)))
        for manifest in self.manifests():
            if manifest.made.base_file is not None \
                    and manifest.made.is_base_lost != self.has_lost_base(manifest):
                # While it is lost no other node relies on this one.
                self.change(manifest.image_id, _turned)
        self.remove_retired()

    def remove_retired(self) -> None:
        """Remove the files that are retiring, and directories of no image that are empty."""
        self.files.remove_retired()
        for image_id in set(self.files.images()) - self._held.keys():
            with contextlib.suppress(OSError):
                os.rmdir(self.directory(image_id))

    def begin_file(self, image_id: str, kind: FileKind, suffix: str) -> str:
        """Write the row of a file that is about to be made; return its name, which is new.

        :param suffix: the name's end, as ``.qcow2``.
        :raises DatabaseAway: if the database does not answer.
        :raises OSError: if the image's directory cannot be made.
        """
        name = f'{_STEMS[kind]}-{secrets.token_hex(4)}{suffix}'
        self.files.begin(image_id, kind, name)
        return name

    # Reading: from memory.

    def load(self, image_id: str) -> Manifest | None:
        """Return what is known of an image, None if nothing.

        :raises ValueError: if the id is no UUID.
        """
        return self.known(naming.canonical_image_id(image_id))

    def known(self, name: str) -> Manifest | None:
        """Return what is known of an image, None if nothing, or if it is the name of none."""
        held = self._held.get(name)
        return None if held is None or held.home != self._node_id else held.manifest

    def manifests(self) -> list[Manifest]:
        """Return what is known of all images, by id."""
        held = self._held
        return [held[image_id].manifest for image_id in sorted(held)
                if held[image_id].home == self._node_id]

    # Reading images of all nodes: as of the last ``refresh``.

    def anywhere(self, name: str) -> Manifest | None:
        """Return what is known of an image, whichever node works on it; None if nothing."""
        held = self._held.get(name)
        return None if held is None else held.manifest

    def everywhere(self) -> list[Manifest]:
        """Return what is known of all nodes' images, by id."""
        held = self._held
        return [held[image_id].manifest for image_id in sorted(held)]

    def home(self, name: str) -> int | None:
        """Return the number of the node that works on an image; None if nothing is known of it."""
        held = self._held.get(name)
        return None if held is None else held.home

    def homes(self) -> dict[str, int]:
        """Return the number of the node that works on each image."""
        return {image_id: held.home for image_id, held in self._held.items()}

    def find(self, image_id: str) -> int | None:
        """Return the home of an image, also if another node has just heard of it.

        :raises DatabaseAway: if nothing is known of it, and the database does not answer.
        """
        image_id = naming.canonical_image_id(image_id)
        if image_id not in self._held:
            self._read_again(image_id)
        return self.home(image_id)

    def moved(self) -> frozenset[str]:
        """Return the images that got another home within ``MOVED_SECONDS``."""
        with self._memory:
            return frozenset(self._moved)

    # Writing: no lock is held over the database's transaction.

    def add(self, manifest: Manifest, home: int | None = None) -> Manifest | None:
        """Add an image; return what is known of it then, None if somebody else was faster.

        :param home: number of the node that is to work on it; None for this one.
        :raises DatabaseAway: if it cannot be written.
        """
        home = self._node_id if home is None else home
        image_id = naming.canonical_image_id(manifest.image_id)
        stamped = _stamped(imagerows.storable(manifest))
        with self._memory:
            version = self._removed.get(image_id, 0) + 1
        values = {'node_id': home, 'term': 1, 'version': version,
                  **imagerows.to_row(stamped)}

        def insert(connection: sa.Connection) -> None:
            connection.execute(sa.insert(ImageRow).values(values))
            self.files.turn_over(connection, image_id,
                                 nodefiles.named(stamped, self.directory(image_id)), ())

        try:
            self._database.write(insert)
        except db_exception.DBDuplicateEntry:
            self._read_again(image_id)
            return None
        self._remember(image_id, _Held(version, stamped, home))
        return stamped

    def change(self, image_id: str, change: Callable[[Manifest], Manifest],
               anywhere: bool = False) -> Manifest | None:
        """Change what is known of an image; return what that is then, None if there is nothing.

        Files that only the image's row of before named are removed then. What is being made
        meanwhile stays.

        :param change: pure, as it is called again where somebody else was faster; returns its
            argument to leave that as it is.
        :param anywhere: also of an image that another node works on, which sees it in a moment; of
            such a one only what people wish is changed.
        :raises DatabaseAway: if it cannot be written.
        :raises Interrupted: if it is to name a file that is being removed.
        """
        image_id = naming.canonical_image_id(image_id)
        for tries in range(_MOST_TRIES):
            held = self._held.get(image_id)
            if held is None or (held.home != self._node_id and not anywhere):
                return None
            changed = imagerows.storable(change(held.manifest))
            if changed == held.manifest:
                return changed
            if self._replace(held, changed := _stamped(changed)):
                return changed
            self._read_again(image_id, tries)
        raise _overtaken(image_id)

    def touch(self, image_id: str) -> None:
        """Have the node that works on an image look at it, in a moment.

        :raises DatabaseAway: if that cannot be written.
        """
        # Whatever it is by now: its home reads it again.
        self._database.write(lambda connection: connection.execute(sa.update(ImageRow).where(
            ImageRow.image_id == naming.canonical_image_id(image_id)).values(
                version=ImageRow.version + 1)))

    def claim(self, image_id: str, home: int, change: Callable[[Manifest], Manifest]
              ) -> Manifest | None:
        """Make this node work on an image in the place of another one.

        What that one has made stays there until it sees it; what is in Ceph is this node's now, and
        its servers of profile boots are deleted.

        :param home: number of the node that has worked on it so far.
        :param change: pure; returns what this node has of it.
        :returns: what is known of it then; None if somebody else was faster.
        :raises DatabaseAway: if it cannot be written.
        :raises Interrupted: if it is to name a file that is being removed.
        """
        held = self._held.get(image_id)
        if held is None or held.home != home:
            return None
        stamped = _stamped(imagerows.storable(change(held.manifest)))
        taken = _Held(held.version + 1, stamped, self._node_id, held.term + 1)

        def take(connection: sa.Connection) -> bool:
            if connection.execute(sa.update(ImageRow).where(*_is_still(image_id, held)).values(
                        node_id=self._node_id, term=taken.term, version=taken.version,
                        **imagerows.to_row(stamped))).rowcount != 1:
                return False
            path = stamped.made.base_path
            self.files.take_over(connection, image_id, home, os.path.basename(path)
                                 if os.path.dirname(path) == self.directory(image_id) else '')
            return True

        is_mine = False
        try:
            is_mine = self._database.write(take)
        finally:
            if not is_mine:
                # It may be written, and its answer be lost.
                with contextlib.suppress(DatabaseAway):
                    self._read_again(image_id)
        if not is_mine:
            return None
        self._remember(image_id, taken)
        with self._memory:
            self._unseen.add(image_id)
        steps.reached('claim: written')
        return self.known(image_id)

    def remove(self, image_id: str,
               may_go: Callable[[Manifest], bool] = lambda manifest: True) -> None:
        """Forget an image, and remove all of its files that rows name.

        :param may_go: pure; tells of what is known of it then whether it may go.
        :raises DatabaseAway: if that cannot be written.
        """
        image_id = naming.canonical_image_id(image_id)
        for tries in range(_MOST_TRIES):
            held = self._held.get(image_id)
            if held is None or held.home != self._node_id or not may_go(held.manifest):
                return
            if self._delete(image_id, held):
                break
            self._read_again(image_id, tries)
        else:
            raise _overtaken(image_id)
        steps.reached('retire: forgotten')
        self.files.remove_retired(image_id)
        with contextlib.suppress(OSError):
            os.rmdir(self.directory(image_id))  # Unless there is more.

    def _delete(self, image_id: str, held: _Held) -> bool:
        """Delete a row; tell whether it was still the one that was read."""
        def remove(connection: sa.Connection) -> bool:
            if connection.execute(sa.delete(ImageRow).where(*_is_still(image_id, held))
                                  ).rowcount != 1:
                return False
            delete(connection, WorkingSetRow, [{'image_id': image_id}])
            self.files.retire_everywhere(connection, image_id)
            return True

        if not self._database.write(remove):
            return False
        with self._memory:
            self._drop(image_id, held.version)
        return True

    def _drop(self, image_id: str, version: int) -> None:
        """Have memory follow a row that was deleted; it may have been added again since."""
        held = self._held.get(image_id)
        if held is not None and held.version <= version:
            self._held = {known: held for known, held in self._held.items() if known != image_id}
            self._removed[image_id] = version

    def _replace(self, held: _Held, stamped: Manifest) -> bool:
        """Write a row in place of the one that was read; tell whether it was still that one."""
        image_id, version = stamped.image_id, held.version + 1
        directory = self.directory(image_id)
        before, after = (nodefiles.named(each, directory) for each in (held.manifest, stamped))
        old, new = (_sha256(each) for each in (held.manifest, stamped))

        def replace(connection: sa.Connection) -> bool:
            done = connection.execute(sa.update(ImageRow).where(*_is_still(image_id, held)).values(
                version=version, **imagerows.to_row(stamped)))
            if done.rowcount != 1:
                return False
            self.files.turn_over(connection, image_id, after - before, before - after)
            if new != old:
                # With those of recordings that were given up.
                connection.execute(sa.delete(WorkingSetRow).where(
                    WorkingSetRow.image_id == image_id, WorkingSetRow.sha256 != new))
            return True

        try:
            if not self._database.write(replace):
                return False
        except DatabaseAway:
            # It may be written, and its answer be lost.
            with contextlib.suppress(DatabaseAway):
                self._read_again(image_id)
            raise
        self._remember(image_id, dataclasses.replace(held, version=version, manifest=stamped))
        if before - after:
            steps.reached('replace: written')
            self.files.remove_retired(image_id)
        return True

    def _remember(self, image_id: str, row: _Held) -> None:
        """Have memory follow a row that was written: commits may come here in another order."""
        with self._memory:
            held = self._held.get(image_id)
            known = self._removed.get(image_id, 0) if held is None else held.version
            if known < row.version:
                self._hold(image_id, row)

    def _hold(self, image_id: str, row: _Held) -> None:
        """Have a row in memory; under the lock."""
        held = self._held.get(image_id)
        if held is not None and held.home != row.home:
            self._moved[image_id] = time.monotonic()
        self._held = {**self._held, image_id: row}

    def give_up(self, image_id: str, names: Collection[str], judged: Manifest | None) -> bool:
        """Have files of an image be removed, but what its row names; if that is as in memory.

        :returns: whether they are.

        :param names: of this node's files.
        :param judged: the image, as memory had it when it was decided about.
        :raises DatabaseAway: if the database does not answer.
        """
        held = self._held.get(image_id)
        if judged is not (None if held is None else held.manifest):
            return False
        own = held.manifest if held is not None and held.home == self._node_id else None
        given_up = set(names) - nodefiles.named(own, self.directory(image_id))
        if not given_up:
            return False
        where = (ImageRow.image_id == image_id,) if held is None else _is_still(image_id, held)

        def give_up(connection: sa.Connection) -> bool:
            # Nobody changes it meanwhile.
            is_there = connection.execute(sa.select(ImageRow.version).where(
                *where).with_for_update()).first() is not None
            is_as_judged = is_there == (held is not None)
            if is_as_judged:
                self.files.turn_over(connection, image_id, (), given_up)
            return is_as_judged

        is_done = self._database.write(give_up)
        self.files.remove_retired(image_id)
        return is_done

    def refresh(self, changed: Callable[[str], object] = lambda image_id: None) -> list[str]:
        """Read rows again that are not as in memory: another node may have written them, or the
        answer to a commit was lost.

        :param changed: called with each of their images, also where another one fails.
        :returns: their images.
        :raises DatabaseAway: if the database does not answer.
        :raises DatabaseUnusable: if it has a row that cannot be read; all others are read.
        """
        with self._memory:
            held, unseen = self._held, set(self._unseen)
        rows = {row.image_id: (row.version, row.node_id, row.term) for row in self._database.read(
            lambda connection: connection.execute(sa.select(
                ImageRow.image_id, ImageRow.version, ImageRow.node_id, ImageRow.term)).all())}
        others = [image_id for image_id in {**held, **rows, **dict.fromkeys(unseen)}
                  if image_id in unseen or image_id not in held or rows.get(image_id) != (
                      held[image_id].version, held[image_id].home, held[image_id].term)]
        failed = None
        for image_id in others:
            try:
                self._read_again(image_id)
                with self._memory:
                    self._unseen.discard(image_id)
                changed(image_id)
            except DatabaseUnusable as error:
                failed = error
        if failed is not None:
            raise failed
        return others

    def _read_again(self, image_id: str, tries: int = 0) -> None:
        # Who wrote last, and need not read, would be the faster one again.
        time.sleep(random.uniform(0, tries * _PAUSE_SECONDS))
        with self._memory:
            before = self._held.get(image_id), self._removed.get(image_id)
        row = self._database.read(lambda connection: connection.execute(
            sa.select(ImageRow.__table__).where(ImageRow.image_id == image_id)).first())
        found = None if row is None else _from_row(row)
        with self._memory:
            held = self._held.get(image_id)
            if before != (held, self._removed.get(image_id)):
                return  # It was written since: memory may know more than what was read.
            if found != held:
                self._unseen.add(image_id)
            if found is not None:
                # Whatever its version: it may have been removed, and added again.
                self._hold(image_id, found)
            elif held is not None:
                # Another node may have taken it over, and removed it since. That the database is
                # another one, or an older state, is seen by the node's own row.
                self._drop(image_id, held.version)

    # Working sets: their text is read when somebody needs it.

    def save_working_set(self, image_id: str, working_set: WorkingSet) -> str:
        """Write a working set, and return its sha256; it counts when an image's row names it.

        :raises DatabaseAway: if it cannot be written.
        """
        text = json.dumps(working_set.to_json(), separators=(',', ':')).encode()
        sha256 = hashlib.sha256(text).hexdigest()
        self._database.write(lambda connection: upsert(connection, WorkingSetRow, [
            {'image_id': image_id, 'sha256': sha256, 'body': zlib.compress(text)}]))
        return sha256

    def drop_working_set(self, image_id: str, sha256: str) -> None:
        """Remove a working set that did not come to count.

        :raises DatabaseAway: if the database does not answer.
        """
        self._database.write(lambda connection: connection.execute(sa.delete(WorkingSetRow).where(
            WorkingSetRow.image_id == image_id, WorkingSetRow.sha256 == sha256, _NOT_NAMED)))

    def load_working_set(self, manifest: Manifest) -> WorkingSet | None:
        """Return the working set that a manifest names, or None if there is none to be used.

        :raises DatabaseAway: if the database does not answer.
        """
        info = manifest.made.working_set
        if info is None:
            return None
        body = self._database.read(lambda connection: connection.execute(
            sa.select(WorkingSetRow.body).where(
                WorkingSetRow.image_id == manifest.image_id,
                WorkingSetRow.sha256 == info.sha256)).scalar())
        try:
            if body is None:
                raise exception.InvalidWorkingSet(f'there is no working set {info.sha256}')
            return WorkingSet.from_json(json.loads(zlib.decompress(body)))
        except (exception.InvalidWorkingSet, ValueError, zlib.error) as error:
            LOG.warning('image %s: %s; it is recorded again', manifest.image_id, error)
            return None


def _is_still(image_id: str, held: _Held) -> tuple[sa.ColumnElement[bool], ...]:
    """Return the conditions that a row is as it was read; one that was removed and added again may
    come to the same version."""
    return (ImageRow.image_id == image_id, ImageRow.version == held.version,
            ImageRow.node_id == held.home, ImageRow.term == held.term)


_NOT_NAMED = ~sa.exists().where(ImageRow.image_id == WorkingSetRow.image_id,
                               ImageRow.working_set_sha256 == WorkingSetRow.sha256)


def _turned(manifest: Manifest) -> Manifest:
    if manifest.made.base_file is None:
        return manifest
    inode, changed_at, size = manifest.made.base_file
    return manifest.making(base_file=(inode, changed_at, -size))


def _overtaken(image_id: str) -> DatabaseAway:
    return DatabaseAway(f'image {image_id}: others have changed its row {_MOST_TRIES} times in a'
                        ' row; it is tried again')


def _sha256(manifest: Manifest) -> str:
    return '' if manifest.made.working_set is None else manifest.made.working_set.sha256


def _stamped(manifest: Manifest) -> Manifest:
    return dataclasses.replace(
        manifest, updated_at=timeutils.utcnow(with_timezone=True).isoformat(timespec='seconds'))


def _from_row(row: sa.Row[Any]) -> _Held:
    columns = row._asdict()
    try:
        return _Held(columns['version'], imagerows.from_row(columns), columns['node_id'],
                     columns['term'])
    except ValueError as error:
        image_id = columns['image_id']
        raise DatabaseUnusable(
            f'the database\'s row of image {image_id} in images cannot be read ({error}); correct'
            ' it, or delete it: the image is then taken up again, when no server of it is'
            ' left') from error
