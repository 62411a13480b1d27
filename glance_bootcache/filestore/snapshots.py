"""Snapshots of servers on Glance's file store: files that begin as their base.

A host writes into an overlay on the base, so that nothing is written by a tenant's tables while it
is served. What the overlay holds is put into a file that begins as the base, and that file has to
read as the overlay does before anybody hears of it: a server's disk may be deleted then.

Where the file system has reflinks the file shares its base's extents (papers/003, CLONE); else it
is a copy. Where Glance has our driver it becomes the image as it is; else it is uploaded, and what
is equal is shared afterwards. Each is tried, and none is configured.
"""

import contextlib
import dataclasses
import errno
import os
import time
from collections.abc import Callable, Collection, Iterator

from oslo_config import cfg

from bootcache import conf as bootcache_conf
from bootcache import exception, naming
from bootcache.ceph import places
from bootcache.manifest import Manifest
from glance_bootcache import conf as glance_conf
from glance_bootcache.ceph import basenode
from glance_bootcache.filestore import placing, reflink
from glance_bootcache.filestore.journal import Entry, Journal
from glance_bootcache.filestore.locations import location_of
from glance_bootcache.filestore.placing import Sharing
from glance_bootcache.filestore.registrars import Registrars
from glance_bootcache.snapshots.stores import Look, SnapshotUnfit, Stored, Traits, Writable

_SUFFIX = '.snapshot'
_FORMATS = ('raw', 'qcow2')
# Of a copy: what the slowest disk that is worth it does.
_COPY_RATE, _COPY_GRACE = 20 << 20, 30
# For which a round of upkeep shares what was uploaded; the rest is left to the next.
_ROUND_SECONDS = 10
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where a snapshot's file can be.

    :ivar directory: of the file.
    :ivar store: Glance's name of the store that has it then; empty if it is uploaded.
    :ivar store_directory: that store's.
    """

    directory: str
    store: str = ''
    store_directory: str = ''


class FileSnapshots:
    """The snapshots in hand on the file store; a ``SnapshotStore``.

    :param conf: configuration of the storage service.
    :param registrars: tells which of Glance's stores registers what is put into a directory.
    """

    # What it is called in records and logs.
    name = 'file'

    def __init__(self, conf: cfg.ConfigOpts, registrars: Registrars):
        group = conf[bootcache_conf.GROUP]
        self._store_directories = [path for path in group.glance_store_dirs if path]
        # Else nobody sends any, and nothing is to be found out.
        self._is_wanted = bool(group.export_ports) \
            or group.snapshot_exporters == glance_conf.COMMON
        self._registrars = registrars
        self._own = os.path.join(group.state_dir, 'snapshots')
        self._journal = Journal(self._own)
        self._sharing = Sharing(self._journal, self._store_directories)

    def refusal(self, base: Manifest) -> str:
        """Return why no snapshot of a base is made here; empty if one may be."""
        if not self._store_directories:
            return '[bootcache]glance_store_dirs is not set'
        if not base.made.base_path or places.is_clone(base.made.base_path):
            return 'its base is no file of the storage node'
        if basenode.is_changed(base):
            return 'its base is another file than was verified, and is hashed again first'
        if base.made.image_format not in _FORMATS:
            return f'its base is {base.made.image_format or "of no format that is known"}'
        return ''

    def traits(self, snapshot_id: str) -> Traits:
        """Return what its image has: its base's format, and the store that it was put into."""
        entry = self._journal.load(naming.canonical_image_id(snapshot_id))
        if entry is None:
            return Traits()
        return Traits(entry.image_format, entry.store if entry.file else '')

    def begin(self, base: Manifest, snapshot_id: str, virtual_bytes: int) -> Writable:
        """Make a file with a base's content, as large as the server's disk.

        :param virtual_bytes: of the server's disk.
        :raises SnapshotUnfit: if the disk is smaller than its base, the snapshot is in hand, there
            is no room for it, or the base's tables are not fit for a writer.
        :raises Interrupted: if the base cannot be read, or the file not be made.
        :raises BootcacheError: if the base cannot be copied or resized.
        """
        snapshot_id = naming.canonical_image_id(snapshot_id)
        if reason := self.refusal(base):
            raise SnapshotUnfit(reason)
        if virtual_bytes < base.made.virtual_bytes:
            raise SnapshotUnfit(f'the disk has {virtual_bytes} bytes, and its base'
                                f' {base.made.virtual_bytes}')
        if self._journal.load(snapshot_id) is not None:
            raise SnapshotUnfit(f'snapshot {snapshot_id} is in hand already')
        placing.check_base(base.made.base_path, base.made.image_format)
        try:
            entry = self._made(base, snapshot_id)
            if virtual_bytes > base.made.virtual_bytes:
                placing.grow(entry.work, entry.image_format, virtual_bytes)
            node = placing.overlay(entry, virtual_bytes)
            if not entry.store:
                self._check_upload(entry)
        except BaseException as error:
            with contextlib.suppress(OSError):
                self.discard(snapshot_id)
            if isinstance(error, exception.StorageNodeFull) \
                    or (isinstance(error, OSError) and error.errno in _FULL):
                raise SnapshotUnfit(f'there is no room for it: {error}') from error
            if isinstance(error, OSError):
                raise exception.Interrupted(f'snapshot {snapshot_id}: {error}') from error
            raise
        return Writable(node, entry.image_format)

    def _check_upload(self, entry: Entry) -> None:
        """Check that Glance has room for a file that it stores anew, holes and all.

        :raises StorageNodeFull: if no store has.
        """
        full: exception.StorageNodeFull | None = None
        for directory in filter(os.path.isdir, self._store_directories):
            try:
                placing.check_free(directory, os.stat(entry.work).st_size)
                return
            except exception.StorageNodeFull as error:
                full = error
        if full is not None:
            raise full

    def check_room(self, snapshot_id: str) -> None:
        """Check that a fiftieth of the file system is free.

        :raises StorageNodeFull: if it is not.
        :raises OSError: if it cannot be asked.
        """
        placing.check_free(os.path.dirname(self._entry(snapshot_id).work), 0)

    @contextlib.contextmanager
    def looked_at(self, snapshot_id: str, directory: str,
                  check: Callable[[], None]) -> Iterator[Look]:
        """Give the snapshot's own file, with what was written.

        :raises BootcacheError: if it does not read as the base with what was written.
        """
        entry = self._entry(snapshot_id)
        placing.put_together(entry, check)
        yield Look(entry.work, entry.image_format)

    def finish(self, snapshot_id: str) -> Stored:
        """Give a snapshot that nobody writes to any more to its store, or have it uploaded.

        :raises SnapshotUnfit: if the store has an image of that id.
        :raises Interrupted: if it cannot be written.
        :raises BootcacheError: as of ``looked_at``.
        """
        entry = self._entry(snapshot_id)
        try:
            placing.put_together(entry, lambda: None)
            if not entry.store:
                placing.trim(entry.work)
                return Stored(path=entry.work)
            return self._placed(entry)
        except FileExistsError as error:
            raise SnapshotUnfit(f'{entry.place} is there already, and nothing replaces an image'
                                ) from error
        except OSError as error:
            raise exception.Interrupted(f'snapshot {snapshot_id}: {error}') from error

    def _placed(self, entry: Entry) -> Stored:
        store_directory = os.path.dirname(entry.place)
        if entry.file and placing.is_there(entry.place, entry.file):
            # A crash came after that.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(entry.work)
            return Stored(url=location_of(entry.store, entry.image_id))
        try:
            placing.hand_over(entry.work, store_directory)
        except PermissionError as error:
            self._sharing.tell(store_directory, 'files there cannot be given to glance-api (%s),'
                               ' and are uploaded', error)
            placing.trim(entry.work)
            return Stored(path=entry.work)
        placing.trim(entry.work)
        self._journal.note(dataclasses.replace(entry, file=placing.named(entry.work)))
        placing.place(entry.work, entry.place)
        return Stored(url=location_of(entry.store, entry.image_id))

    def settled(self, snapshot_id: str) -> None:
        """Take notice that Glance has it; of one that was uploaded all is shared by ``tidy``.

        :raises OSError: if that cannot be noted, or what is not needed any more not be removed.
        """
        snapshot_id = naming.canonical_image_id(snapshot_id)
        entry = self._journal.load(snapshot_id)
        if entry is None:
            self._journal.forget(snapshot_id)
            return
        # Stock Nova's way may have come first, after a crash: what the host wrote is not needed.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(entry.work + placing.OVERLAY)
        if entry.file:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(entry.work)
            self._journal.forget(snapshot_id)
        else:
            self._journal.note(dataclasses.replace(entry, uploaded=True))

    def discard(self, snapshot_id: str) -> bool:
        """Remove all of a snapshot that Glance does not have; nothing else of that name is removed.

        :returns: True: a file that somebody has open goes with its last reader.
        :raises OSError: if something cannot be removed; it stays in ``left``.
        """
        snapshot_id = naming.canonical_image_id(snapshot_id)
        entry = self._journal.load(snapshot_id)
        files = [os.path.join(directory, snapshot_id + _SUFFIX)
                 for directory in self._directories()]
        if entry is not None:
            files.append(entry.work)
            if entry.file:
                placing.remove(entry.place, entry.file)
                # Glance did not take what was put there.
                self._registrars.doubt(os.path.dirname(entry.place))
        for path in (*files, *(path + placing.OVERLAY for path in files)):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        self._journal.forget(snapshot_id)
        return True

    def left(self) -> Collection[str]:
        """Return the ids of snapshots that are under way: begun, and not in Glance's hands."""
        entries = {image_id: self._journal.load(image_id) for image_id in self._journal.images()}
        found = {image_id for image_id, entry in entries.items()
                 if entry is None or not (entry.file or entry.uploaded)}
        for directory in self._directories():
            for name in os.listdir(directory):
                image_id, _, kind = name.partition('.')
                with contextlib.suppress(ValueError):
                    if f'.{kind}' in (_SUFFIX, _SUFFIX + placing.OVERLAY) \
                            and entries.get(image_id) is None:
                        found.add(naming.canonical_image_id(image_id))
        return sorted(found)

    def finished(self) -> Collection[str]:
        """Return the ids of those that were put into a store for Glance to register."""
        return [image_id for image_id in self._journal.images()
                if (entry := self._journal.load(image_id)) is not None and entry.file]

    def tidy(self) -> None:
        """Find out which directories Glance registers files of, and share what was uploaded.

        :raises Exception: keystoneauth's or glanceclient's, if Glance cannot be asked.
        """
        self._sharing.go_on(time.monotonic() + _ROUND_SECONDS)
        if self._is_wanted:
            self._registrars.look()

    def _entry(self, snapshot_id: str) -> Entry:
        entry = self._journal.load(naming.canonical_image_id(snapshot_id))
        if entry is None:
            raise exception.BootcacheError(f'there is no snapshot {snapshot_id} in hand')
        return entry

    def _made(self, base: Manifest, snapshot_id: str) -> Entry:
        """Make the file, where it shares extents with the base if there is such a place."""
        found = self._places()
        for place in found:
            entry = self._noted(base, snapshot_id, place)
            if reflink.clone(entry.base, entry.work):
                placing.check_free(place.directory, 0)
                return entry
        # In a store that registers it, if there is one: then it is not uploaded, at least.
        place = next((place for place in found if place.store), _Place(self._own))
        entry = self._noted(base, snapshot_id, place)
        self._sharing.tell(place.directory, 'there are no reflinks of files in %s: each snapshot'
                           ' takes the space of all of its base, and only the network is saved',
                           os.path.dirname(entry.base))
        stored = os.stat(entry.base).st_blocks * 512
        placing.check_free(place.directory, stored)
        os.close(os.open(entry.work, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        placing.copy(entry.base, entry.work, _COPY_GRACE + stored / _COPY_RATE)
        return entry

    def _noted(self, base: Manifest, snapshot_id: str, place: _Place) -> Entry:
        entry = Entry(snapshot_id, os.path.join(place.directory, snapshot_id + _SUFFIX),
                      base.made.base_path, base.made.image_format, place.store,
                      os.path.join(place.store_directory, snapshot_id) if place.store else '')
        self._journal.note(entry)
        return entry

    def _places(self) -> list[_Place]:
        """Return where a file can be made, the best first."""
        found = [_Place(self._own)]
        for store_directory in self._store_directories:
            try:
                directory = placing.work_directory(store_directory)
            except OSError as error:
                self._sharing.tell(store_directory, 'nothing can be put there (%s): snapshots are'
                                   ' uploaded', error)
                continue
            store = self._registrars.store_of(store_directory)
            place = _Place(directory, store, store_directory)
            found.insert(0, place) if store else found.append(_Place(directory))
        return found

    def _directories(self) -> list[str]:
        """Return where files of snapshots are, as far as they can be read."""
        found = [os.path.join(path, placing.WORK) for path in self._store_directories]
        return [self._own, *(path for path in found if os.access(path, os.R_OK | os.X_OK))]
