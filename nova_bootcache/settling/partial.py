"""A file that is copied in pieces, and goes on where it was: also in another process.

Beside the file lies a journal of how much of it is on the medium. What is copied again after an
interruption is the piece that was under way.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from oslo_log import log as logging

from bootcache import qemuimg, savefile, steps

LOG = logging.getLogger(__name__)

JOURNAL = '.json'
_VERSION = 1
_SECTOR = 512
_BLOCK = 4096
# The file is longer by less than this while it is copied: QEMU writes whole blocks of a medium.
_ROUND = 1 << 20
# A piece that is slower than this fails: a frozen storage node is not noticed otherwise.
_SLOWEST = 1 << 20
_GRACE_SECONDS = 600
# A copy is tried again after six hours at the latest. One that nothing was added to for longer is
# not worth its space.
_LONGEST_SECONDS = 24 * 3600


class Partial:
    """The file, and its journal. One caller at a time.

    :param path: of the file.
    :param image_hash: Glance's hash of the image, ``algorithm:hexadecimal``: what is copied of
        another image is of no use.
    :param total_bytes: that it has when it is whole.
    """

    def __init__(self, path: str, image_hash: str, total_bytes: int):
        self._path = path
        self._image_hash = image_hash
        self._total = total_bytes

    def copy(self, source: Mapping[str, Any], *, piece_bytes: int, rate: int,
             check: Callable[[], None]) -> int:
        """Copy what is missing; the file is whole and on the medium then.

        :param source: block node, at least as long as the file.
        :param piece_bytes: of one piece, a multiple of 1 MiB. Each has a deadline of its own.
        :param rate: bytes a second at most; 0 for no limit.
        :param check: called several times a second; what it raises ends the copying.
        :returns: how many bytes were there before.
        :raises BootcacheError: if the source does not answer in time, or is too short.
        :raises OSError: if the file cannot be written.
        """
        done = before = self._begin()
        while done < self._total:
            length = min(piece_bytes, self._total - done)
            qemuimg.copy_piece(
                source, self._path, offset=done, length=_rounded(length, _SECTOR),
                target_bytes=_rounded(length, _ROUND), rate=rate, check=check,
                seconds=_GRACE_SECONDS + 3 * length / (rate or _SLOWEST))
            savefile.fsync_file(self._path)
            steps.reached('settle: piece')
            done += length
            savefile.write_json(self._path + JOURNAL, {
                'version': _VERSION, 'image_hash': self._image_hash, 'total_bytes': self._total,
                'done_bytes': done})
        os.truncate(self._path, self._total)
        return before

    def _begin(self) -> int:
        found = _journal(self._path)
        done: int = found['done_bytes'] if found else 0
        if found is None or (found['image_hash'], found['total_bytes']) \
                != (self._image_hash, self._total):
            remove(self._path)
            done = 0
            with open(self._path, 'xb') as stream:
                # As QEMU does when it creates a file: it finds a medium's blocks by trying to read
                # parts of them, and a hole lets it read anything.
                stream.write(bytes(min(_BLOCK, self._total)))
        else:
            LOG.info('%s goes on at %d of %d bytes', self._path, done, self._total)
        if done < self._total:
            # A piece that was under way is not all zeros, as the next copy takes for granted.
            os.truncate(self._path, max(done, min(_BLOCK, self._total)))
            os.truncate(self._path, done + _rounded(self._total - done, _ROUND))
        return done


def is_usable(path: str) -> bool:
    """Tell whether something of a file is noted that a copy can go on from, and is not too old."""
    try:
        age = time.time() - os.stat(path + JOURNAL).st_mtime
    except OSError:
        return False
    return abs(age) < _LONGEST_SECONDS and _journal(path) is not None


def remove(path: str) -> None:
    """Remove a file and what is noted of it, that first; neither need exist.

    :raises OSError: if that is not possible.
    """
    for name in (path + JOURNAL, path):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


def _journal(path: str) -> dict[str, Any] | None:
    """Return what is noted, if it is whole, of this version, and the file has as much."""
    try:
        with open(path + JOURNAL, encoding='utf-8') as stream:
            found = json.loads(stream.read(_BLOCK))
        done, total = found['done_bytes'], found['total_bytes']
        whole = found['version'] == _VERSION and isinstance(found['image_hash'], str) \
            and type(done) is int and type(total) is int and 0 < done <= total \
            and (done == total or not done % _SECTOR) and os.stat(path).st_size >= done
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if whole else None


def _rounded(length: int, unit: int) -> int:
    return -(-length // unit) * unit
