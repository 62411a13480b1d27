"""Directories of one piece of work, with a storage daemon: what a crash leaves is found.

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

# How their names begin; and of the daemon in each.
PREFIX, _DAEMON = 'bootcache-build-', 'build'


def check_parent() -> None:
    """Check that temporary files are where TMPDIR says: Python would take another folder.

    :raises ConfigurationError: if they cannot be there.
    """
    wanted = os.environ.get('TMPDIR')
    if wanted and os.path.abspath(wanted) != tempfile.gettempdir():
        raise ConfigurationError(f'TMPDIR={wanted}: no file can be made there; name a folder that'
                                 ' this user can write to, and that has room, or unset it')


@contextlib.contextmanager
def directory() -> Iterator[str]:
    """Make a directory, and remove it at the end of the block.

    :raises OSError: if it cannot be made.
    """
    path, held = _take()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(held)


def _take() -> tuple[str, int]:
    while True:
        path = tempfile.mkdtemp(prefix=PREFIX)
        held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(held, fcntl.LOCK_EX)
        # Nobody held it for a moment: it may have been taken for left over.
        if os.path.isdir(path):
            return path, held
        os.close(held)


def _daemon(path: str) -> StorageDaemon:
    return StorageDaemon(_DAEMON, path, UnixListener(os.path.join(path, 'nbd')))


@contextlib.contextmanager
def daemon() -> Iterator[StorageDaemon]:
    """Start a storage daemon in a directory of its own, and end it at the end of the block.

    :raises StorageDaemonError: if it does not come up.
    :raises OSError: if the directory cannot be made.
    """
    with directory() as path:
        started = _daemon(path)
        try:
            started.ensure_running()
            yield started
        finally:
            started.stop()


def end_left_over() -> None:
    """Remove directories whose process is gone, and end the daemons that work there.

    Those of other users are left alone.
    """
    parent = tempfile.gettempdir()
    for entry in os.listdir(parent):
        path = os.path.join(parent, entry)
        if not entry.startswith(PREFIX):
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
            _daemon(path).stop()
            shutil.rmtree(path, ignore_errors=True)
            LOG.info('%s, which a process that was killed left, is removed', path)
        except BlockingIOError:
            LOG.debug('%s is in use', path)
        finally:
            os.close(held)
