"""Reads of many bases at once, within a limit of time: whether there is an answer by their ways.

NBD has few bytes for zeros, which pass where data does not: what tells nothing is read elsewhere.
"""

import enum
import importlib.util
import secrets
import select
import time
from collections.abc import Mapping
from typing import Any

from bootcache import exception

READ_BYTES = 4096
_MOST_SECONDS = 60.0
# Of places that have zeros, one after the other, until they are taken for an answer; how far from
# the last place with data half of them are, in 4 KiB.
_MOST_PLACES, _NEAR = 8, 16384


class Answer(enum.Enum):
    """What came of a read."""

    READ = 'it has its answer'
    FAILED = 'the answer is an error'
    SILENT = 'there is none in time'


def check() -> None:
    """Check that libnbd can be imported, which the package does not bring.

    :raises ConfigurationError: with the cure.
    """
    if importlib.util.find_spec('nbd') is None:
        raise exception.ConfigurationError(
            'libnbd\'s Python binding is missing; install python3-libnbd, and link nbd.py and'
            ' libnbdmod*.so into the virtual environment if there is one')


class _Read:
    """One read.

    :param path: of the unix socket, or of a link to it.
    :param export: the name of what is read.
    :ivar near: a place of 4 KiB that has data; None if none is known.
    """

    def __init__(self, path: str, export: str, near: int | None):
        # Debian's python3-libnbd.
        import nbd
        self._nbd = nbd
        self.near = near
        self._handle: Any = nbd.NBD()
        self._handle.set_export_name(export)
        self._buffer = nbd.Buffer(READ_BYTES)
        self._cookie: int | None = None
        self._tries = self._place = 0
        self.answer: Answer | None = None
        try:
            self._handle.aio_connect_unix(path)
        except nbd.Error:
            self.answer = Answer.FAILED

    def file(self) -> int:
        """Return the descriptor to wait for."""
        return int(self._handle.aio_get_fd())

    def events(self) -> int:
        """Return what to wait for."""
        direction = self._handle.aio_get_direction()
        return (select.POLLIN if direction & self._nbd.AIO_DIRECTION_READ else 0) | (
            select.POLLOUT if direction & self._nbd.AIO_DIRECTION_WRITE else 0)

    def go_on(self, events: int) -> None:
        """Go on with it after something has come to pass."""
        try:
            self._step(events)
        except self._nbd.Error:
            self.answer = Answer.FAILED

    def _step(self, events: int) -> None:
        if events & select.POLLIN:
            self._handle.aio_notify_read()
        elif events & select.POLLOUT:
            self._handle.aio_notify_write()
        elif events:
            self.answer = Answer.FAILED
        if self._cookie is None and self._handle.aio_is_ready():
            self._begin()
        if self._cookie is not None and self._handle.aio_command_completed(self._cookie):
            if any(self._buffer.to_bytearray()):
                self.answer, self.near = Answer.READ, self._place
            elif self._tries == _MOST_PLACES:
                self.answer = Answer.READ
            else:
                self._begin()
        elif self._handle.aio_is_dead() or self._handle.aio_is_closed():
            self.answer = Answer.FAILED

    def _begin(self) -> None:
        places = max(1, int(self._handle.get_size()) // READ_BYTES)
        # Drawn anew: what is read again and again is in the exporter's memory.
        self._place = secrets.randbelow(places) if self.near is None or self._tries % 2 \
            else min(places - 1, max(0, self.near + secrets.randbelow(2 * _NEAR) - _NEAR))
        self._cookie = self._handle.aio_pread(self._buffer, READ_BYTES * self._place)
        self._tries += 1


def read(sockets: Mapping[str, str], seconds: float,
         places: dict[str, int] | None = None) -> dict[str, Answer]:
    """Read 4 KiB of data of each of some bases at once, each at a place drawn anew.

    Blocks its thread, also under eventlet.

    :param sockets: where they are read, by the names of their exports.
    :param seconds: after which those that have no answer are silent.
    :param places: where each has data, in 4 KiB; what is found is entered.
    """
    places = {} if places is None else places
    reads = {export: _Read(path, export, places.get(export)) for export, path in sockets.items()}
    deadline = time.monotonic() + min(seconds, _MOST_SECONDS)
    while waiting := [one for one in reads.values() if one.answer is None]:
        left = deadline - time.monotonic()
        if left <= 0:
            break
        poll, files = select.poll(), {}
        for one in waiting:
            files[one.file()] = one
            poll.register(one.file(), one.events())
        for file, events in poll.poll(left * 1000):
            files[file].go_on(events)
    places.update({export: one.near for export, one in reads.items() if one.near is not None})
    return {export: one.answer or Answer.SILENT for export, one in reads.items()}
