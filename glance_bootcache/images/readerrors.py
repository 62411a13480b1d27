"""Exports that cannot be read in a place: found while servers meet it, and taken out.

QEMU's NBD server cuts off a client that meets a read error, and says so in its log. A gateway,
which waits for a storage node that is away, connects and asks again, thousands of times a second,
and what is to be changed in it meanwhile waits as well. The exporter also logs each name that
clients ask for; the one that they ask for after an error is the export that cannot be read.
"""

import collections
import functools
import os
import re
import threading
import time
import uuid

from oslo_log import log as logging

from bootcache import exception, naming
from bootcache.manifest import Manifest, Standing
from glance_bootcache.images.jobs import Jobs
from glance_bootcache.images.shown import Shown
from glance_bootcache.images.turns import Turns
from glance_bootcache.storage import inspection
from glance_bootcache.storage.exporter import Exporter
from glance_bootcache.storage.store import ImageStore
from glance_bootcache.storage.tiers import StorageTiers

LOG = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_ERROR = b'reading from file failed'
_ASKED = re.compile(rb"Client requested export '([^']{1,255})'")
# A client that meets one error connects once. So many in that time, and they come by themselves.
_MANY = 20
_WINDOW_SECONDS = 10.0
# Of a look, and of the log: a loop writes a megabyte a second.
_MOST_READ = 4 << 20
_MOST_LOG = 64 << 20
# So many times an export that was read well afterwards is served again.
_CHANCES = 3
# To read all of a base takes hours where its owner wants it so, or its disk hangs: in turns.
_READ_AT_ONCE = 3


def looping(log: bytes) -> str | None:
    """Return the export that clients ask for after error upon error, if there is one. Pure.

    :param log: what the exporter has written within some seconds.
    """
    errors, asked, after_error = 0, collections.Counter[str](), False
    for line in log.splitlines():
        if _ERROR in line:
            errors, after_error = errors + 1, True
        elif after_error and (match := _ASKED.search(line)):
            asked[match[1].decode(errors='replace')] += 1
            after_error = False
    if errors < _MANY or not asked:
        return None
    export, count = asked.most_common(1)[0]
    return export if count >= _MANY // 2 else None


class ErrorLog:
    """The exporter's log, looked at now and then, and kept from filling its file system.

    :param path: of the log; need not exist.
    """

    def __init__(self, path: str):
        self._path = path
        self._seen = self._size()

    def _size(self) -> int:
        try:
            return os.stat(self._path).st_size
        except FileNotFoundError:
            return 0

    def news(self) -> bytes:
        """Return what was written since the last look, the last few megabytes of it at most.

        :raises OSError: if it cannot be read.
        """
        size = self._size()
        if size == self._seen:
            return b''
        begin = max(self._seen if size > self._seen else 0, size - _MOST_READ)
        with open(self._path, 'rb') as stream:
            stream.seek(begin)
            found = stream.read(_MOST_READ)
        self._seen = begin + len(found)
        if size > _MOST_LOG:
            # The daemon appends: what it writes next is at the begin.
            os.truncate(self._path, 0)
            self._seen = 0
        return found


class ReadErrors:
    """Takes exports out that cannot be read, and looks into why.

    :param store: the images' manifests.
    :param jobs: what is in hand.
    """

    def __init__(self, store: ImageStore, exporter: Exporter, tiers: StorageTiers, jobs: Jobs,
                 shown: Shown):
        self._store = store
        self._exporter = exporter
        self._tiers = tiers
        self._jobs = jobs
        self._shown = shown
        self._log = ErrorLog(exporter.log_path)
        # What was logged since a time, in monotonic seconds. The looking thread's own.
        self._recent = b''
        self._since = 0.0
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
        while not self._stopping.wait(_LOOK_SECONDS):
            try:
                self.once()
            except Exception as error:
                LOG.warning('exporter: its read errors cannot be looked at: %s', error)

    def once(self) -> None:
        """Look at what the exporter has logged, and take out what cannot be read.

        :raises OSError: if its log cannot be read.
        :raises StorageDaemonError: if the exporter refuses.
        """
        if time.monotonic() - self._since > _WINDOW_SECONDS:
            self._recent, self._since = b'', time.monotonic()
        news = self._log.news()
        self._recent = (self._recent + news)[-_MOST_READ:]
        export = looping(self._recent) if news else None
        if export is not None:
            self._take_out(export)

    def _take_out(self, export: str) -> None:
        LOG.error('exporter: %s cannot be read in a place, and hosts ask again without end; it is'
                  ' served no more', export)
        kind, _hyphen, rest = export.partition('-')
        try:
            image_id = str(uuid.UUID(rest[:36]))
        except ValueError:
            image_id = ''
        manifest = self._store.load(image_id) if image_id else None
        if manifest is not None and kind == naming.EXPORT_BASE and manifest.made.base_path \
                and self._exporter.suspend(image_id):
            # Nobody has it served again before it was read.
            self._taken_out[image_id] += 1
            self._looks.submit(image_id, manifest.wished.owner, functools.partial(
                self._look_into, manifest, self._taken_out[image_id]))
        elif manifest is not None and kind == naming.EXPORT_CACHE:
            self._tiers.note_damage(manifest, 'a part of it cannot be read')
        self._exporter.cut_off(export)
        # What was logged until now is of the one that has gone.
        self._log.news()
        self._recent = b''

    def _check(self) -> None:
        if self._stopping.is_set():
            raise exception.Cancelled('the storage service ends')

    def _look_into(self, manifest: Manifest, times: int) -> None:
        """Read all of a base: it is served again, or given up."""
        image_id = manifest.image_id
        try:
            found = self._find(manifest, times)
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
            self._tiers.serve(manifest)
        except exception.BootcacheError as error:
            LOG.warning('image %s: its base is served when it is asked for: %s', image_id, error)

    def _find(self, manifest: Manifest, times: int) -> str | None:
        """Return why a base cannot be served, or None.

        :raises Cancelled: if the service ends.
        :raises BootcacheError: if that cannot be told.
        """
        try:
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

    def _give_up(self, manifest: Manifest, reason: str) -> None:
        image_id = manifest.image_id
        reason = (f'{reason}; look at the storage node\'s disk, then "bootcache image build'
                  f' {image_id}" tries again')

        def fail(current: Manifest) -> Manifest:
            if current.made.base_path != manifest.made.base_path \
                    or current.standing is Standing.SKIPPED:
                # Of an image that Glance gives no more this is the last copy, and most of it is
                # right.
                return current
            return current.making(base_path='', cache_image=None).standing_at(
                Standing.FAILED, reason)

        with self._store.lock:
            # Whatever a job makes, it makes of this base.
            self._jobs.cancel(image_id)
            changed = self._store.change(image_id, fail)
        if changed is not None and changed.standing is Standing.SKIPPED:
            LOG.error('image %s: its base is not served until this service starts again: %s',
                      image_id, reason)
            return
        self._exporter.resume(image_id)
        if changed is None or changed.reason != reason:
            return
        LOG.error('image %s: failed: %s', image_id, reason)
        self._exporter.retire(image_id, with_base=False)
        self._tiers.forget(image_id)
        self._shown.show(image_id)
