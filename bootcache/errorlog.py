"""What a storage daemon's log tells of reads that fail: its clients ask again without end.

QEMU's NBD server cuts off a client that meets a read error, and says so in its log. One that
reconnects asks again, thousands of times a second. With ``TRACE`` the daemon also logs each name
that clients ask for; the one that they ask for after an error is the export that cannot be read.

QEMU writes such a name as it came, with whatever lines are in it. So whoever serves others has them
in a file apart: what counts as an error is then what QEMU itself says.
"""

import collections
import os
import re
import time

from oslo_log import log as logging

LOG = logging.getLogger(__name__)

# The event that tells in the log which export a client asks for.
TRACE = 'nbd_negotiate_handle_export_name_request'
# Of a look, and of the log: a loop writes a megabyte a second.
MOST_READ = 4 << 20
_MOST_LOG = 16 << 20
_ERROR = b'reading from file failed'
_ASKED = re.compile(rb"Client requested export '([^']{1,255})'")
_LOG, _APART = '.log', '.asked'
# What a daemon says that was built without the means to write events into files.
_NO_EVENTS = b'option not supported by the selected tracing backends'
_SAID_BYTES = 1000
# A client that meets one error connects once. So many, and they come by themselves.
_MANY = 20
_WINDOW_SECONDS = 10.0


def looping(log: bytes, names: bytes) -> str | None:
    """Return the export that clients ask for after error upon error, if there is one. Pure.

    Clients say what is in the file of names, and the order of both is not known: of what they asked
    for it is what they asked for about as often as there were errors.

    :param log: what the daemon has written within some seconds.
    :param names: what it has written there within the same seconds.
    """
    errors = sum(_ERROR in line for line in log.splitlines())
    if errors < _MANY:
        return None
    asked = collections.Counter(match[1].decode(errors='replace')
                                for match in map(_ASKED.search, names.splitlines()) if match)
    often = [export for export, count in asked.items() if count >= _MANY // 2]
    return min(often, key=lambda export: (abs(asked[export] - errors), export), default=None)


def apart(log_path: str) -> str:
    """Return the path of the file of names that belongs to a log."""
    return log_path.removesuffix(_LOG) + _APART


def traced_apart(directory: str, daemon: str) -> str:
    """Return what has a daemon write names into a file apart, as its option has it.

    :param directory: of its files.
    :param daemon: its name.
    """
    return f'{TRACE},file={apart(os.path.join(directory, daemon + _LOG))}'


def lacks_events(log_path: str) -> bool:
    """Tell whether a daemon has not come up as it was built to write no events into files.

    What cannot be read of its exports is then found by nobody: it would log no names either.

    :raises OSError: if its log cannot be read.
    """
    with open(log_path, 'rb') as log:
        log.seek(max(0, os.fstat(log.fileno()).st_size - _SAID_BYTES))
        lacks = _NO_EVENTS in log.read()
    if lacks:
        LOG.warning('%s: this qemu-storage-daemon was built to log no events: an export that cannot'
                    ' be read in a place is not found, and not taken out', log_path)
    return lacks


class _Growing:
    """A file that a daemon writes, read piece by piece, and kept from filling its file system."""

    def __init__(self, path: str):
        self.path = path
        self._seen = self._size()

    def _size(self) -> int:
        try:
            return os.stat(self.path).st_size
        except FileNotFoundError:
            return 0

    def news(self) -> bytes:
        """Return what was written since the last look, the last few megabytes of it at most."""
        size = self._size()
        if size == self._seen:
            return b''
        begin = max(self._seen if size > self._seen else 0, size - MOST_READ)
        with open(self.path, 'rb') as stream:
            stream.seek(begin)
            found = stream.read(MOST_READ)
        self._seen = begin + len(found)
        if size > _MOST_LOG:
            # Who appends writes at the begin then; before what another one writes is a hole.
            os.truncate(self.path, 0)
            self._seen = 0
        return found


class ErrorLog:
    """A daemon's log, looked at now and then, and kept from filling its file system.

    :param path: of the log; need not exist, nor the file of names that belongs to it.
    """

    def __init__(self, path: str):
        self._log, self._names = _Growing(path), _Growing(apart(path))
        # What was logged since a time, in monotonic seconds.
        self._recent = self._asked = b''
        self._since = 0.0

    def looping(self) -> str | None:
        """Return the export that clients ask for without end, if there is one.

        :raises OSError: if a file cannot be read.
        """
        if time.monotonic() - self._since > _WINDOW_SECONDS:
            self._recent, self._asked, self._since = b'', b'', time.monotonic()
        news = self._log.news()
        self._recent = (self._recent + news)[-MOST_READ:]
        self._asked = (self._asked + self._names.news())[-MOST_READ:]
        return looping(self._recent, self._asked) if news else None

    def forget(self) -> None:
        """Look at nothing of what was logged until now.

        :raises OSError: if a file cannot be read.
        """
        self._log.news()
        self._names.news()
        self._recent = self._asked = b''
