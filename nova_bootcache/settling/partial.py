"""A file that is copied in pieces, and goes on where it was: also in another process.

Beside the file lies a journal of how much of it is on the medium. What is copied again after an
interruption is the piece that was under way. Of what comes by exchange, from any place of it, the
exchange finds out itself what is right.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from oslo_log import log as logging

from bootcache import qemuimg, savefile, steps
from nova_bootcache.gateway import sharedstore

LOG = logging.getLogger(__name__)

JOURNAL = '.json'
_VERSION = 1
_SECTOR = 512
_BLOCK = 4096
# The file is longer by less than this while it is copied: QEMU writes whole blocks of a medium.
_ROUND = 1 << 20
# Where nothing but holes comes pieces grow to this: each costs a process and some syncs.
_LONGEST_PIECE = 4 << 30
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
        :param rate: bytes of data a second at most; 0 for no limit.
        :param check: called several times a second; what it raises ends the copying.
        :returns: how many bytes were there before.
        :raises BootcacheError: if the source does not answer in time, or is too short.
        :raises OSError: if the file cannot be written.
        """
        done = before = self._begin()
        piece = piece_bytes
        while done < self._total:
            length = min(piece, self._total - done)
            has_data = self._copy(source, done, length, _rounded(length, _ROUND), rate, check)
            piece = piece_bytes if has_data else min(2 * piece, _LONGEST_PIECE)
            done += length
            self._note(done)
        os.truncate(self._path, self._total)
        return before

    def scatter(self) -> bool:
        """Have the file be there, in its full length, for who writes to any place of it.

        :returns: whether something of it was there before.
        :raises OSError: if it cannot be written.
        """
        done = self._done()
        if done is None:
            remove(self._path)
            with open(self._path, 'xb'):
                pass
        os.truncate(self._path, self._total)
        self._note(done or 0, is_scattered=True)
        return done is not None

    def fill(self, source: Mapping[str, Any], missing: Sequence[tuple[int, int]], *,
             piece_bytes: int, rate: int, check: Callable[[], None]) -> None:
        """Copy the parts that are missing, as ``copy`` does; all else of the file is right.

        :param missing: offset and length of each, whole sectors, in their order.
        """
        if missing:
            # QEMU writes whole blocks of a medium.
            os.truncate(self._path, _rounded(self._total, _ROUND))
        for first, length in missing:
            for offset in range(first, min(first + length, self._total), piece_bytes):
                end = min(offset + piece_bytes, first + length, self._total)
                sharedstore.clear(self._path, offset, _rounded(end, _SECTOR) - offset)
                self._copy(source, offset, end - offset,
                           _rounded(self._total, _ROUND) - offset, rate, check)
                self._note(end, is_scattered=True)
        os.truncate(self._path, self._total)
        savefile.fsync_file(self._path)
        self._note(self._total)

    def _copy(self, source: Mapping[str, Any], offset: int, length: int, target_bytes: int,
              rate: int, check: Callable[[], None]) -> bool:
        has_data = qemuimg.copy_piece(
            source, self._path, offset=offset, length=_rounded(length, _SECTOR),
            target_bytes=target_bytes, rate=rate, check=check,
            seconds=_GRACE_SECONDS + 3 * length / (rate or _SLOWEST))
        savefile.fsync_file(self._path)
        steps.reached('settle: piece')
        return has_data

    def _note(self, done: int, is_scattered: bool = False) -> None:
        savefile.write_json(self._path + JOURNAL, {
            'version': _VERSION, 'image_hash': self._image_hash, 'total_bytes': self._total,
            'done_bytes': done, **({'scattered': True} if is_scattered else {})})

    def _done(self) -> int | None:
        """Return how much is there from the beginning on; None if nothing of this image is."""
        found = _journal(self._path)
        if found is None or (found['image_hash'], found['total_bytes']) \
                != (self._image_hash, self._total):
            return None
        return int(found['done_bytes'])

    def _begin(self) -> int:
        # The exchange may still write into a scattered one, for a process that was killed.
        done = 0 if _is_scattered(self._path) else self._done() or 0
        if not done:
            remove(self._path)
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
            and type(done) is int and type(total) is int \
            and (done > 0 or bool(found.get('scattered'))) and 0 <= done <= total \
            and (done == total or not done % _SECTOR) and os.stat(path).st_size >= done
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if whole else None


def _is_scattered(path: str) -> bool:
    return bool((_journal(path) or {}).get('scattered'))


def _rounded(length: int, unit: int) -> int:
    return -(-length // unit) * unit
