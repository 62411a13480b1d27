"""Writing files that outlive the process: temporary name, fsync, rename, fsync of the directory."""

import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from typing import Any, TypeVar

from oslo_log import log as logging

from bootcache.util import threads

LOG = logging.getLogger(__name__)

T = TypeVar('T')
_CHUNK = 1 << 20
_FULL = errno.ENOSPC, errno.EDQUOT


def means_full(error: BaseException) -> bool:
    """Return whether an error says that a medium has no room, no inodes, or that a quota ends.

    Programs of QEMU's say so in the system's own words.
    """
    return getattr(error, 'errno', None) in _FULL \
        or any(os.strerror(number) in str(error) for number in _FULL)


def fsync_directory(path: str) -> None:
    """Make renames within a directory durable.

    :raises OSError: if the directory cannot be opened or synced.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def fsync_file(path: str) -> None:
    """Make a file's content durable.

    :raises OSError: if it cannot be opened or synced.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        # Of a full base it takes seconds.
        threads.run_native(lambda: os.fsync(fd))
    finally:
        os.close(fd)


def commit(temporary: str, final: str) -> None:
    """Sync ``temporary`` and rename it to ``final``: a crash leaves the old file or the new one.

    :raises OSError: if a step fails; ``final`` is then unchanged.
    """
    fsync_file(temporary)
    os.rename(temporary, final)
    fsync_directory(os.path.dirname(final))


def write_text(path: str, text: str, mode: int = 0o644) -> None:
    """Replace ``path`` by a text, atomically.

    :param mode: of the file.
    :raises OSError: if it cannot be written; the old file is then untouched.
    """
    fd, temporary = tempfile.mkstemp(prefix=os.path.basename(path) + '.', suffix='.tmp',
                                     dir=os.path.dirname(path))
    try:
        with os.fdopen(fd, 'w') as stream:
            stream.write(text)
        os.chmod(temporary, mode)
        commit(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def write_json(path: str, document: dict[str, Any], mode: int = 0o644) -> None:
    """Replace ``path`` by a JSON document, atomically.

    :param mode: of the file.
    :raises OSError: if it cannot be written; the old file is then untouched.
    """
    write_text(path, json.dumps(document, indent=1, sort_keys=True) + '\n', mode)


def read_json(path: str, version: int, parse: Callable[[Any], T]) -> T | None:
    """Return what a versioned JSON document says; None if there is no such file.

    :param version: that its entry ``version`` has to have.
    :param parse: reads it; KeyError, TypeError, AttributeError and ValueError say that it cannot.
    :raises ValueError: if the file is damaged, or of another version.
    :raises OSError: if it cannot be read.
    """
    try:
        with open(path) as stream:
            document = json.load(stream)
        if document['version'] != version:
            raise ValueError(f'version {document["version"]} is not {version}')
        return parse(document)
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f'{type(error).__name__}: {error}' if isinstance(error, KeyError)
                         else str(error)) from error


def read_table(path: str, version: int, parse: Callable[[Any], dict[str, T]],
               without: str) -> dict[str, T]:
    """Return what such a document says, as ``read_json``; nothing where it cannot be used.

    :param without: what follows from that, for the log.
    """
    try:
        return read_json(path, version, parse) or {}
    except (OSError, ValueError) as error:
        LOG.warning('%s cannot be used (%s): %s', path, error, without)
        return {}


def identity(status: os.stat_result) -> tuple[int, int, int]:
    """Return what changes when somebody replaces or rewrites a file.

    Of two files that replace each other both are there at a time, so they are different inodes.
    """
    return status.st_ino, status.st_mtime_ns, status.st_size


def signature(path: str) -> tuple[int, int, int] | None:
    """Return a file's identity; None if there is none, or it cannot be looked at."""
    try:
        return identity(os.stat(path))
    except OSError:
        return None


def file_digest(path: str, algorithm: str = 'sha256',
                check: Callable[[], None] = lambda: None) -> str:
    """Return the hexadecimal digest of a file's bytes.

    :param check: called between pieces; what it raises ends it.
    :raises OSError: if it cannot be read.
    :raises ValueError: if hashlib does not know the algorithm.
    """
    digest = hashlib.new(algorithm)

    def read() -> None:
        with open(path, 'rb') as stream:
            while chunk := stream.read(_CHUNK):
                check()
                digest.update(chunk)

    threads.run_native(read)
    return digest.hexdigest()
