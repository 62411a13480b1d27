"""Exports that cannot be read in a place: found while servers meet it, and taken out.

QEMU's NBD server cuts off a client that meets a read error, and says so in its log. A gateway,
which waits for a storage node that is away, connects and asks again, thousands of times a second,
and what is to be changed in it meanwhile waits as well. The exporter also logs each name that
clients ask for; the one that they ask for after an error is the export that cannot be read. Hosts
lie: only what an exporter serves to who asks is taken out for what they ask for.

A base's file that is another one than was verified, as somebody has replaced it or restored the
file system, is taken out as well, until its hash is found to be the same. One that was written over
in place is what the exporter has open: it is cut off.
"""

import collections
import functools
import itertools
import threading
import uuid
from collections.abc import Callable

from oslo_log import log as logging

from bootcache import exception, naming, savefile
from bootcache.ceph import places
from bootcache.errorlog import ErrorLog
from bootcache.manifest import ImageState, Manifest, Standing
from bootcache.reasons import Cause, Reason
from glance_bootcache.ceph import basenode
from glance_bootcache.images.cephbases import CephBases
from glance_bootcache.images.running import Running
from glance_bootcache.images.turns import Turns
from glance_bootcache.storage import exporter, inspection
from glance_bootcache.storage.exporters import Exporters
from glance_bootcache.storage.store import ImageStore
from glance_bootcache.storage.tiers import StorageTiers

LOG = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
# Logs that are looked at at a time, in turn. A loop fills those of many seconds.
_MOST_LOGS = 1000
# So many looks later bases' files are compared with those that were verified.
_COMPARED_EACH = 60
# So many times an export that was read well afterwards is served again.
_CHANCES = 3
# To read all of a base takes hours where its owner wants it so, or its disk hangs: in turns.
_READ_AT_ONCE = 3


class ReadErrors:
    """Takes exports out that cannot be read, and looks into why.

    :param store: the images' manifests.
    :param jobs: what is in hand.
    :param ceph: bases that stay there.
    """

    def __init__(self, store: ImageStore, exporter: Exporters, tiers: StorageTiers, jobs: Running,
                 ceph: CephBases):
        self._store = store
        self._exporter = exporter
        self._tiers = tiers
        self._jobs = jobs
        self._ceph = ceph
        # By their paths. The looking thread's own.
        self._logs = {path: ErrorLog(path) for path in exporter.log_paths}
        self._turn = 0
        # How often each image's base was taken out. The looking thread's own.
        self._taken_out: collections.Counter[str] = collections.Counter()
        self._stopping = threading.Event()
        self._looks = Turns(_READ_AT_ONCE)

    def start(self) -> None:
        """Begin to look."""
        threading.Thread(target=self._run, name='bootcache-read-errors', daemon=True).start()

    def stop(self) -> None:
        """Look no more, and give up what is being read."""
        self._stopping.set()
        self._looks.shutdown(wait=True)

    def _run(self) -> None:
        for number in itertools.count():
            if self._stopping.wait(_LOOK_SECONDS):
                return
            try:
                self.once()
                if number % _COMPARED_EACH == 0:
                    self.hash_changed()
            except Exception as error:
                LOG.warning('exporter: its read errors cannot be looked at: %s', error)

    def once(self) -> None:
        """Look at what exporters have logged, and take out what cannot be read.

        Of many exporters some are looked at, in turn.

        :raises OSError: if a log cannot be read.
        :raises StorageDaemonError: if the exporter refuses.
        """
        paths = self._exporter.log_paths
        self._logs = {path: self._logs.get(path) or ErrorLog(path) for path in paths}
        turns = -(-len(paths) // _MOST_LOGS)
        self._turn += 1
        for path in paths[self._turn % turns::turns]:
            export = self._logs[path].looping()
            if export is not None and self._exporter.may_serve(path, export):
                self._take_out(export)

    def hash_changed(self) -> None:
        """Hash bases again whose files are other ones than were verified; meanwhile none of them
        begins to be served."""
        for manifest in self._store.manifests():
            if basenode.is_changed(manifest) and self._exporter.suspend(manifest.image_id):
                LOG.warning('image %s: %s is another file than was verified; it is hashed again',
                            manifest.image_id, manifest.made.base_path)
                self._looks.submit(manifest.image_id, manifest.wished.owner, functools.partial(
                    self._look_into, manifest, functools.partial(self._hash, manifest)))

    def _take_out(self, export: str) -> None:
        LOG.error('exporter: %s cannot be read in a place, and hosts ask again without end; it is'
                  ' served no more', export)
        kind = export.partition('-')[0]
        try:
            image_id = str(uuid.UUID(naming.image_of(export)))
        except ValueError:
            image_id = ''
        manifest = self._store.load(image_id) if image_id else None
        if manifest is not None and kind == naming.EXPORT_BASE and manifest.made.base_path \
                and self._exporter.suspend(image_id):
            # Nobody has it served again before it was read.
            self._taken_out[image_id] += 1
            self._looks.submit(image_id, manifest.wished.owner, functools.partial(
                self._look_into, manifest,
                functools.partial(self._find, manifest, self._taken_out[image_id])))
        elif manifest is not None and kind == naming.EXPORT_CACHE:
            self._tiers.note_damage(manifest, 'a part of it cannot be read')
        self._exporter.cut_off(export)
        # What was logged until now is of the one that has gone.
        for log in self._logs.values():
            log.forget()

    def _check(self) -> None:
        if self._stopping.is_set():
            raise exception.Cancelled('the storage service ends')

    def _look_into(self, manifest: Manifest, find: Callable[[], str | None]) -> None:
        """Read all of a base: it is served again, or given up.

        :param find: returns why it cannot be served, or None.
        """
        image_id = manifest.image_id
        try:
            found = find()
            if found is not None:
                self._give_up(manifest, found)
                return
        except exception.Cancelled:
            return
        except Exception as error:
            # Of the base this says nothing.
            LOG.warning('image %s: its base could not be looked into (%s); it is served again',
                        image_id, error)
        self._exporter.resume(image_id)
        try:
            self._tiers.serve(self._store.load(image_id) or manifest)
        except exception.BootcacheError as error:
            LOG.warning('image %s: its base is served when it is asked for: %s', image_id, error)

    def _find(self, manifest: Manifest, times: int) -> str | None:
        """Return why a base cannot be served, or None.

        :raises Cancelled: if the service ends.
        :raises BootcacheError: if that cannot be told.
        """
        try:
            if places.is_clone(manifest.made.base_path):
                self._ceph.read_all(manifest.made.base_path, self._check)
            else:
                inspection.read_all(manifest.made.base_path, inspection.Inspected(
                    manifest.made.image_format, manifest.made.virtual_bytes),
                    manifest.made.stored_bytes, self._check)
        except exception.ImageRefused as error:
            return str(error)
        if times > _CHANCES:
            return f'{times} times it could not be read in a place'
        LOG.warning('image %s: all of its base could be read now; it is served again',
                    manifest.image_id)
        return None

    def _hash(self, manifest: Manifest) -> str | None:
        """Return why a base is not served whose file is another one than was verified, or None.

        :raises Cancelled: if the service ends.
        :raises Interrupted: if it changes meanwhile, as while it is put back.
        :raises OSError: if it cannot be read.
        """
        path, file = manifest.made.base_path, savefile.signature(manifest.made.base_path)
        algorithm, _, value = manifest.made.base_hash.partition(':')
        is_right = savefile.file_digest(path, algorithm, self._check) == value
        if savefile.signature(path) != file:
            raise exception.Interrupted(f'{path} is being written')
        if not is_right:
            return f'{path} does not have the {algorithm} with which it was verified'
        self._store.change(manifest.image_id, lambda current: current.making(base_file=file)
                           if file and current.made.base_path == path else current)
        LOG.info('image %s: %s has the hash with which it was verified; it is served again',
                 manifest.image_id, path)
        return None

    def _give_up(self, manifest: Manifest, reason: str) -> None:
        image_id, made = manifest.image_id, manifest.made
        now = savefile.signature(made.base_path)
        if now is None or made.base_file is None or now[0] == made.base_file[0]:
            # Not where another file has the name: servers read the right one, which is open.
            for export in exporter.of_base(manifest):
                self._exporter.cut_off(export)
        cause = Cause(Reason.FAILED, f'{reason}; look at the storage node\'s disk, then'
                      f' "bootcache image build {image_id}" tries again')

        def fail(current: Manifest) -> Manifest:
            if current.made.base_path != manifest.made.base_path \
                    or current.state is ImageState.SKIPPED:
                # Of an image that Glance gives no more this is the last copy, and most of it is
                # right.
                return current
            return current.making(base_path='', cache_image=None, difference=None).standing_at(
                Standing.FAILED, cause)

        changed = self._store.change(image_id, fail)
        # Whatever a step makes, it makes of this base.
        self._jobs.cancel(image_id)
        if changed is not None and changed.state is ImageState.SKIPPED:
            LOG.error('image %s: its base is not served until this service starts again: %s',
                      image_id, cause)
            return
        self._exporter.resume(image_id)
        if changed is None or changed.cause != cause:
            return
        LOG.error('image %s: failed: %s', image_id, cause)
        self._exporter.retire(image_id, with_base=False)
        self._tiers.forget(image_id)
