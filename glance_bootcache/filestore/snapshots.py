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
import math
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping

from oslo_config import cfg
from oslo_log import log as logging

from bootcache import conf as bootcache_conf
from bootcache import exception, naming, savefile
from bootcache.ceph import places
from bootcache.manifest import Manifest
from bootcache.util.logthrottle import LogThrottle
from glance_bootcache import conf as glance_conf
from glance_bootcache.ceph import basenode
from glance_bootcache.filestore import placing, reflink
from glance_bootcache.filestore.locations import location_of
from glance_bootcache.filestore.registrars import Registrars
from glance_bootcache.snapshots.records import Record
from glance_bootcache.snapshots.stores import SnapshotUnfit

LOG = logging.getLogger(__name__)

_SUFFIX = '.snapshot'
_FORMATS = ('raw', 'qcow2')
# Of a copy: what the slowest disk that is worth it does.
_COPY_RATE, _COPY_GRACE = 20 << 20, 30


class FileSnapshots:
    """The snapshots on the file store; a ``SnapshotStore``.

    :param conf: configuration of the storage service.
    :param registrars: tells which of Glance's stores registers what is put into a directory.
    """

    name = 'file'

    def __init__(self, conf: cfg.ConfigOpts, registrars: Registrars):
        group = conf[bootcache_conf.GROUP]
        self._store_directories = [path for path in group.glance_store_dirs if path]
        # Else nobody sends any, and nothing is to be found out.
        self._is_wanted = bool(group.export_ports) \
            or group.snapshot_exporters == glance_conf.COMMON
        self._registrars = registrars
        self._own = os.path.join(group.state_dir, 'snapshots')
        os.makedirs(self._own, mode=0o700, exist_ok=True)
        # How far the sharing of each is, and how many bytes it shares, by image. After a restart it
        # begins anew.
        self._reached: dict[str, tuple[int, int]] = {}
        self._once = LogThrottle(LOG, math.inf)

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

    def begin(self, record: Record, base: Manifest, virtual_bytes: int
              ) -> tuple[Record, Mapping[str, object]]:
        """Make a file with a base's content, as large as the server's disk, and an overlay."""
        if virtual_bytes < base.made.virtual_bytes:
            raise SnapshotUnfit(f'the disk has {virtual_bytes} bytes, and its base'
                                f' {base.made.virtual_bytes}')
        placing.check_base(record.base, record.disk_format)
        try:
            record = self._made(record)
            if virtual_bytes > base.made.virtual_bytes:
                placing.grow(record.work, record.disk_format, virtual_bytes)
            node = placing.overlay(record, virtual_bytes)
            if not record.glance_store:
                self._check_upload(record.work)
        except (exception.BootcacheError, OSError) as error:
            if isinstance(error, exception.StorageNodeFull) or savefile.means_full(error):
                raise SnapshotUnfit(f'there is no room for it: {error}') from error
            raise
        return record, node

    def _made(self, record: Record) -> Record:
        """Make the file, where it shares extents with the base if there is such a place."""
        found = self._places(record)
        for place in found:
            if reflink.clone(place.base, place.work):
                placing.check_free(os.path.dirname(place.work), 0)
                return place
        # The first is a store that registers it, if there is one: it is not uploaded, at least.
        place, directory = found[0], os.path.dirname(found[0].work)
        self._once.warning(directory, '%s: there are no reflinks of files in %s: each snapshot'
                           ' takes the space of all of its base, and only the network is saved',
                           directory, os.path.dirname(place.base))
        stored = os.stat(place.base).st_blocks * 512
        placing.check_free(directory, stored)
        os.close(os.open(place.work, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        placing.copy(place.base, place.work, _COPY_GRACE + stored / _COPY_RATE)
        return place

    def _places(self, record: Record) -> list[Record]:
        """Return the record with each place where its file can be made, the best first."""
        def place(directory: str, store: str = '') -> Record:
            return dataclasses.replace(record, glance_store=store, work=os.path.join(
                directory, record.snapshot_id + _SUFFIX))

        found = [place(self._own)]
        for directory in self._store_directories:
            try:
                found.append(place(placing.work_directory(directory),
                                   self._registrars.store_of(directory)))
            except OSError as error:
                self._once.warning(directory, '%s: nothing can be put there (%s): snapshots are'
                                   ' uploaded', directory, error)
        return sorted(found, key=lambda place: not place.glance_store)

    def _check_upload(self, work: str) -> None:
        """Check that Glance has room for a file that it stores anew, holes and all.

        :raises StorageNodeFull: if no store has.
        """
        there = [path for path in self._store_directories if os.path.isdir(path)]
        if there:
            roomiest = max(there, key=lambda path: shutil.disk_usage(path).free)
            placing.check_free(roomiest, os.stat(work).st_size)

    def check_room(self, record: Record) -> None:
        """Check that a fiftieth of the file system is free."""
        placing.check_free(os.path.dirname(record.work), 0)

    @contextlib.contextmanager
    def looked_at(self, record: Record, directory: str,
                  check: Callable[[], None]) -> Iterator[str]:
        """Give the snapshot's own file, with what was written.

        :raises BootcacheError: if it does not read as the base with what was written.
        """
        placing.put_together(record, check)
        yield record.work

    def finish(self, record: Record, put: Callable[[Record], None]) -> str:
        """Give a snapshot to its store, or have it uploaded.

        :raises SnapshotUnfit: if the store has an image of that id.
        """
        target = _target(record)
        if record.glance_store:
            placing.hand_over(record.work, os.path.dirname(target))
        placing.trim(record.work)
        if not record.glance_store:
            return ''
        put(dataclasses.replace(record, file=placing.named(record.work)))
        try:
            placing.place(record.work, target)
        except FileExistsError as error:
            raise SnapshotUnfit(f'{target} is there already, and nothing replaces an image'
                                ) from error
        return location_of(record.glance_store, record.snapshot_id)

    def settled(self, record: Record, until: float) -> bool:
        """Take notice that Glance has it; of one that was uploaded share what is equal."""
        if record.work and not record.file:
            # Stock Nova's way may have come first, after a crash: what the host wrote goes.
            _unlink(record.work + placing.OVERLAY)
            if not self._share(record, until):
                return False
        self._unlink_work(record)
        return True

    def _share(self, record: Record, until: float) -> bool:
        """Have Glance's file share what it can; return whether that is all.

        Errors are logged: the image is right in any case.
        """
        image_id = record.snapshot_id
        directory = next((directory for directory in self._store_directories
                          if os.path.isfile(os.path.join(directory, image_id))), '')
        if not directory:
            return True
        begin, same = self._reached.get(image_id, (0, 0))
        try:
            for reached, shared in reflink.share(record.work, os.path.join(directory, image_id),
                                                 begin):
                same += shared
                self._reached[image_id] = reached, same
                if time.monotonic() >= until:
                    return False
        except PermissionError as error:
            self._once.warning(directory, '%s: what snapshots have in common is stored again (%s);'
                               ' give the service\'s user the right to write to files there',
                               directory, error)
        except OSError as error:
            if reflink.is_unable(error):
                self._once.warning(directory, '%s: its file system shares nothing with files in %s',
                                   directory, os.path.dirname(record.work))
            else:
                LOG.info('snapshot %s: not all of it is shared: %s', image_id, error)
        else:
            LOG.info('snapshot %s: %.1f MB of it are shared with its base or in its own file',
                     image_id, same / 1e6)
        return True

    def discard(self, record: Record) -> bool:
        """Remove all of a snapshot that Glance does not have; nothing else of that name is removed.

        :returns: True: a file that somebody has open goes with its last reader.
        """
        if record.file:
            target = _target(record)
            placing.remove(target, record.file)
            # Glance did not take what was put there.
            self._registrars.doubt(os.path.dirname(target))
        self._unlink_work(record)
        return True

    def _unlink_work(self, record: Record) -> None:
        self._reached.pop(record.snapshot_id, None)
        for directory in self._directories():
            _unlink_both(os.path.join(directory, record.snapshot_id + _SUFFIX))
        if record.work:
            _unlink_both(record.work)

    def left(self) -> Collection[str]:
        """Return the ids of snapshots of which there are files that are not images."""
        found = set()
        for directory in self._directories():
            for name in os.listdir(directory):
                image_id, _, kind = name.partition('.')
                with contextlib.suppress(ValueError):
                    if f'.{kind}' in (_SUFFIX, _SUFFIX + placing.OVERLAY):
                        found.add(naming.canonical_image_id(image_id))
        return sorted(found)

    def tidy(self) -> None:
        """Find out which directories Glance registers files of.

        :raises Exception: keystoneauth's or glanceclient's, if Glance cannot be asked.
        """
        if self._is_wanted:
            self._registrars.look()

    def _directories(self) -> list[str]:
        """Return where files of snapshots are, as far as they can be read."""
        found = [os.path.join(path, placing.WORK) for path in self._store_directories]
        return [self._own, *(path for path in found if os.access(path, os.R_OK | os.X_OK))]


def _target(record: Record) -> str:
    """Return the path of an image in the directory of Glance's in which its file was made."""
    return os.path.join(os.path.dirname(os.path.dirname(record.work)), record.snapshot_id)


def _unlink_both(work: str) -> None:
    _unlink(work)
    _unlink(work + placing.OVERLAY)


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
