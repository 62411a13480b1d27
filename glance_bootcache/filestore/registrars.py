"""Which of Glance's stores registers what is put into a directory: found out by doing it."""

import contextlib
import os
import secrets
import time
import uuid
from collections.abc import Callable

from oslo_log import log as logging

from bootcache.util.backoff import Backoff
from glance_bootcache import away
from glance_bootcache.filestore import placing
from glance_bootcache.filestore.locations import location_of
from glance_bootcache.glance import registering
from glance_bootcache.glance.registering import TrialImages
from glance_bootcache.storage.nodefiles import FileKind, NodeFiles, tell_unnamed

LOG = logging.getLogger(__name__)

_BYTES = 4096
_FIRST_PAUSE, _LONGEST_PAUSE = 60, 24 * 3600


class Registrars:
    """Glance's names of the stores whose directories these are.

    :param directories: of Glance's file stores.
    :param glance: Glance.
    :param files: has the trials' rows.
    :param clock: monotonic seconds.
    """

    def __init__(self, directories: list[str], glance: TrialImages, files: NodeFiles,
                 clock: Callable[[], float] = time.monotonic):
        self._directories = directories
        self._glance = glance
        self._files = files
        # By directory: of which file it was found out, and the name. Each step is atomic.
        self._found: dict[str, tuple[tuple[int, ...], str]] = {}
        self._backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE, clock)
        # By directory, what was logged of it last.
        self._told: dict[str, str] = {}
        self._is_told = False

    def store_of(self, directory: str) -> str:
        """Return the name of the store; empty if there is none, or it is not known yet."""
        identity, store = self._found.get(directory, ((), ''))
        return store if identity == _identity(directory) else ''

    def doubt(self, directory: str) -> None:
        """Note that Glance did not register what was put into a directory: it is tried again."""
        self._found.pop(directory, None)
        self._backoff.forget(directory)

    def look(self) -> None:
        """Try each directory that is new, another one than it was, or due again. One thread does.

        One that registers nothing is tried again after a minute, and later each time, up to a day.

        :raises DatabaseAway: if the database does not answer.
        :raises Exception: keystoneauth's or glanceclient's, if Glance cannot be asked.
        """
        if not self._is_told:
            tell_unnamed(f'images {registering.NAME} in Glance', set(self._glance.there())
                         - self._files.known(FileKind.TRIAL), 'if no other storage service'
                         ' tries stores with them, "openstack image delete" deletes them')
            self._is_told = True
        for directory in self._directories:
            identity = _identity(directory)
            known = self._found.get(directory)
            if known is not None and known[0] != identity:
                self.doubt(directory)
            if identity and not self.store_of(directory) and self._backoff.acquire(directory):
                store, why = self._tried(directory)
                self._found[directory] = identity, store
                self._tell(directory, store, why)
        self._files.remove_retired_of(FileKind.TRIAL, self._remove)

    def _tried(self, directory: str) -> tuple[str, str]:
        """Return the name of a directory's store, or why there is none."""
        try:
            work = placing.work_directory(directory)
        except OSError as error:
            return '', f'this service cannot write there ({error})'
        why = 'Glance has no stores by name (enabled_backends)'
        for store in self._glance.stores():
            image_id = str(uuid.uuid4())
            path, target = os.path.join(work, image_id), os.path.join(directory, image_id)
            content = secrets.token_bytes(_BYTES)
            self._files.begin(image_id, FileKind.TRIAL, image_id)
            try:
                self._glance.make(image_id)
                with open(path, 'xb') as stream:
                    stream.write(content)
                placing.hand_over(path, directory)
                placing.place(path, target)
                why = self._glance.register(image_id, location_of(store, image_id))
                if not why and self._glance.content(image_id, _BYTES) == content:
                    return store, ''
                why = why or 'Glance gives out something else'
            except OSError as error:
                why = f'what is put there cannot be given to glance-api ({error})'
            finally:
                self._end(image_id)
        return '', why

    def _end(self, image_id: str) -> None:
        self._files.abandon(image_id, image_id)
        self._remove(image_id)

    def _remove(self, image_id: str, _name: str = '') -> bool:
        """Remove what is there of a trial; tell whether Glance has no image of it."""
        for directory in self._directories:
            for path in (os.path.join(directory, placing.WORK, image_id),
                         os.path.join(directory, image_id)):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
        try:
            return self._glance.delete(image_id)
        except Exception as error:
            if not away.passes(error):
                raise
            # Glance may be at work on it yet; what the trial has shown counts.
            LOG.info('image %s, of a trial, is deleted later: %s', image_id, away.told(error))
            return False

    def _tell(self, directory: str, store: str, why: str) -> None:
        text = f'Glance\'s store {store} registers snapshots without copying them' if store else \
            f'no store of Glance registers snapshots, they are uploaded: {why}'
        if self._told.get(directory) != text:
            self._told[directory] = text
            LOG.info('%s: %s', directory, text)


def _identity(directory: str) -> tuple[int, ...]:
    """Return what changes when a directory is another one; empty if there is none."""
    try:
        status = os.stat(directory)
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_mode, status.st_uid, status.st_gid
