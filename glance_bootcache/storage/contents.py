"""What is known of the content of cache images' files on the storage disk."""

import enum
import os

from bootcache import cacheimage, exception, savefile
from bootcache.locks import leaf
from bootcache.manifest import CacheInfo

# A file's identity, as of bootcache/savefile.py.
_File = tuple[int, int, int]


class Content(enum.Enum):
    """What is known of a cache image's content."""

    WRONG = 'there is none, or it is another one than was built'
    UNREAD = 'nobody has read all of it yet'
    RIGHT = 'it is as it was built'


def look(info: CacheInfo, path: str) -> tuple[str, _File]:
    """Return what can be seen at once to be wrong with a file, empty if nothing, and its identity.
    """
    try:
        status = os.stat(path)
    except OSError as error:
        return str(error), (0, 0, 0)
    fault = f'{path} has {status.st_size} bytes, not {info.bytes}'
    return fault if status.st_size != info.bytes else '', savefile.identity(status)


class KnownContents:
    """Which files are known to be as they were built, and which are damaged, of this process."""

    def __init__(self) -> None:
        # Guarded by the lock, held for dictionary steps: where a file is, and of which all was read
        # and found right, None while it is about to be; and whose file is another than was built.
        self._right: dict[CacheInfo, tuple[str, _File | None]] = {}
        self._damaged: set[CacheInfo] = set()
        self._lock = leaf('the lock of what is known of files')

    def is_to_be_read(self, info: CacheInfo, path: str, file: _File) -> bool:
        """Tell whether nobody has read a file since somebody wrote to it; the asker does then.

        :param file: its identity.
        """
        with self._lock:
            if info in self._right and self._right[info][1] in (None, file):
                return False
            self._right[info] = path, None
            return True

    def read(self, info: CacheInfo, path: str) -> str:
        """Read all of a file; return what is wrong with it, empty if nothing."""
        file, right = savefile.signature(path), None
        try:
            cacheimage.verify(path, info.sha256, info.bytes)
            right = file
        except exception.InvalidManifest as error:
            return str(error)
        finally:
            self._note(info, path, right)
        return ''

    def note_built(self, info: CacheInfo, path: str) -> None:
        """Note that a file was just built, and that all of it was looked at."""
        self._note(info, path, savefile.signature(path))

    def _note(self, info: CacheInfo, path: str, file: _File | None) -> None:
        with self._lock:
            if file is None:
                self._right.pop(info, None)
            else:
                self._right[info] = path, file

    def is_right(self, info: CacheInfo, path: str, file: _File) -> bool:
        """Tell whether a file is known to be as it was built.

        :param file: its identity.
        """
        with self._lock:
            return self._right.get(info) == (path, file)

    def forget_gone(self) -> None:
        """Forget the files that are gone: each build's has a name of its own, which none has again.
        """
        with self._lock:
            known = [(info, path) for info, (path, _file) in self._right.items()]
        gone = [info for info, path in known if not os.path.exists(path)]
        with self._lock:
            for info in gone:
                self._right.pop(info, None)

    def note_damaged(self, info: CacheInfo) -> None:
        """Note that the file on the disk is another than was built."""
        with self._lock:
            self._damaged.add(info)

    def is_damaged(self, info: CacheInfo | None) -> bool:
        """Tell whether it was found to be."""
        with self._lock:
            return info in self._damaged
