"""What was uploaded shares extents with the file that it was uploaded from, a little at a time.

That file shares them with its base, so nothing is stored twice in the end. The file that Glance has
written keeps its content in any case: the kernel compares before it shares.
"""

import contextlib
import os
import time

from oslo_log import log as logging

from glance_bootcache.filestore import reflink
from glance_bootcache.filestore.journal import Entry, Journal

LOG = logging.getLogger(__name__)


class Sharing:
    """The snapshots that Glance has from an upload; one thread at a time goes on with them.

    :param journal: of what is in hand.
    :param directories: of Glance's file stores.
    """

    def __init__(self, journal: Journal, directories: list[str]):
        self._journal = journal
        self._directories = directories
        # How far each is, and how many bytes it shares, by image. After a restart it begins anew.
        self._reached: dict[str, tuple[int, int]] = {}
        self._told: set[str] = set()

    def go_on(self, end: float) -> None:
        """Share what can be; what is not done in time is left to the next call.

        Errors are logged: the images are right in any case.

        :param end: in monotonic seconds.
        :raises OSError: if it cannot be noted what is done.
        """
        for image_id in self._journal.images():
            entry = self._journal.load(image_id)
            if entry is not None and entry.uploaded and self._shared(entry, end):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(entry.work)
                self._journal.forget(image_id)
                self._reached.pop(image_id, None)
            if time.monotonic() >= end:
                return

    def _shared(self, entry: Entry, end: float) -> bool:
        """Share what an image has; tell whether that is all."""
        for directory in self._directories:
            target = os.path.join(directory, entry.image_id)
            # Of a copy, what the base has may be in the same place of the store's file system.
            for source in (entry.work, entry.base):
                if not os.path.isfile(target):
                    continue
                try:
                    if not self._went_on(entry, source, target, end):
                        return False
                    break
                except PermissionError as error:
                    self._tell(directory, 'what snapshots have in common is stored again (%s); give'
                               ' the service\'s user the right to write to files there', error)
                    break
                except OSError as error:
                    if not reflink.is_unable(error):
                        LOG.info('snapshot %s: not all of it is shared: %s', entry.image_id, error)
                        break
                    self._tell(directory, 'its file system shares nothing with files in %s',
                               os.path.dirname(source))
        return True

    def _went_on(self, entry: Entry, source: str, target: str, end: float) -> bool:
        begin, same = self._reached.get(entry.image_id, (0, 0))
        for piece in reflink.share(source, target, begin):
            same += piece.same
            self._reached[entry.image_id] = piece.reached, same
            if time.monotonic() >= end:
                return False
        LOG.info('snapshot %s: %.1f MB of it are shared with its base or in its own file',
                 entry.image_id, same / 1e6)
        return True

    def _tell(self, path: str, text: str, *words: object) -> None:
        if f'{path}{text}' not in self._told:
            self._told.add(f'{path}{text}')
            LOG.warning('%s: ' + text, path, *words)
