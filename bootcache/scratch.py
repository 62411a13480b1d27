"""Directories of one piece of work, with a private storage daemon: what a crash leaves is found.

They are in the temporary directory, whose path is short: unix socket paths end at 107 bytes.
Whoever works in one holds a lock of it, which ends with the process.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator

from oslo_log import log as logging

from bootcache.exception import ConfigurationError
from bootcache.storagedaemon import StorageDaemon, UnixListener

LOG = logging.getLogger(__name__)


def check_parent() -> None:
    """Check that temporary files are where TMPDIR says: Python would take another folder.

    :raises ConfigurationError: if they cannot be there.
    """
    wanted = os.environ.get('TMPDIR')
    if wanted and os.path.abspath(wanted) != tempfile.gettempdir():
        raise ConfigurationError(f'TMPDIR={wanted}: no file can be made there; name a folder that'
                                 ' this user can write to, and that has room, or unset it')


@contextlib.contextmanager
def directory(prefix: str) -> Iterator[str]:
    """Make a directory, and remove it at the end of the block.

    :param prefix: of its name.
    :raises OSError: if it cannot be made.
    """
    path, held = _take(prefix)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(held)


def _take(prefix: str) -> tuple[str, int]:
    while True:
        path = tempfile.mkdtemp(prefix=prefix)
        held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(held, fcntl.LOCK_EX)
        # Nobody held it for a moment: it may have been taken for left over.
        if os.path.isdir(path):
            return path, held
        os.close(held)


def daemon(path: str, name: str) -> StorageDaemon:
    """Return the storage daemon of a directory; it is neither started nor ended.

    :param path: of the directory.
    :param name: of the daemon.
    """
    return StorageDaemon(name, path, UnixListener(os.path.join(path, 'nbd')))


def end_left_over(prefix: str, name: str) -> None:
    """Remove directories whose process is gone, and end the daemons that work there.

    :param prefix: of their names; of others' users they are left alone.
    :param name: of the daemons.
    """
    parent = tempfile.gettempdir()
    for entry in os.listdir(parent):
        path = os.path.join(parent, entry)
        if not entry.startswith(prefix):
            continue
        try:
            if os.lstat(path).st_uid != os.geteuid():
                continue
            held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            # It went meanwhile, or is something else.
            continue
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            daemon(path, name).stop()
            shutil.rmtree(path, ignore_errors=True)
            LOG.info('%s, which a process that was killed left, is removed', path)
        except BlockingIOError:
            LOG.debug('%s is in use', path)
        finally:
            os.close(held)
