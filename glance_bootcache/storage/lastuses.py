"""The cloud's record of last uses, by which the storage node's tiers evict (SC13 section 3.4)."""

import datetime
import math
import threading
import time
from collections.abc import Collection
from typing import Any

from oslo_log import log as logging

from bootcache import savefile
from bootcache.manifest import Manifest

LOG = logging.getLogger(__name__)

VERSION = 1
_SAVE_SECONDS = 60


def _parse(document: Any) -> dict[str, float]:
    last = {str(image_id): float(when) for image_id, when in document['last_used'].items()}
    if not all(math.isfinite(when) and when >= 0 for when in last.values()):
        raise ValueError('a time that is none')
    return last


class Usage:
    """When each image's cache image was last used in the cloud, as a file.

    :param path: of the file; a damaged one counts as empty.
    """

    def __init__(self, path: str):
        self._path = path
        self._lock = threading.Lock()  # guards the dictionary and the two below it
        self._last = savefile.read_table(path, VERSION, _parse, 'last uses count from now on')
        # How often something changed, how many of these changes were written, and when.
        self._changes, self._written, self._saved = 0, 0, -math.inf

    def note(self, image_id: str, when: float) -> None:
        """Note a use, in seconds since the epoch; an older one than is known changes nothing."""
        with self._lock:
            if when > self._last.get(image_id, -1):
                self._last[image_id] = when
                self._changes += 1

    def last(self, image_id: str) -> float | None:
        """Return when an image was last used, in seconds since the epoch; None if it never was."""
        with self._lock:
            return self._last.get(image_id)

    def last_of(self, manifest: Manifest) -> float:
        """Return when an image was last used; one that never was counts from its last change."""
        noted = self.last(manifest.image_id)
        if noted is not None:
            return noted
        try:
            return datetime.datetime.fromisoformat(manifest.updated_at).timestamp()
        except ValueError:
            return 0

    def keep_only(self, image_ids: Collection[str]) -> None:
        """Drop what is known of all other images."""
        with self._lock:
            kept = {key: when for key, when in self._last.items() if key in image_ids}
            self._changes += len(self._last) - len(kept)
            self._last = kept

    def save(self, at_once: bool = False) -> None:
        """Write the file if something changed, and the last writing was a minute ago.

        :param at_once: do not wait for the minute.
        """
        with self._lock:
            now, changes = time.monotonic(), self._changes
            if changes == self._written or (not at_once and now - self._saved < _SAVE_SECONDS):
                return
            document = {'version': VERSION, 'last_used': dict(self._last)}
            self._saved = now
        try:
            savefile.write_json(self._path, document)
            self._written = changes
        except OSError as error:
            LOG.warning('%s cannot be written: %s', self._path, error)
