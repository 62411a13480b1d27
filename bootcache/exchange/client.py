"""The asking end of the unix socket: services ask this host's ``bootcache-exchange``.

It needs no libtorrent, and no libtorrent is loaded into nova-compute.
"""

import base64
import dataclasses
import os
import socket
from collections.abc import Iterable
from typing import Any

from bootcache import exception
from bootcache.exchange import control

Peer = tuple[str, int]

_ANSWER_SECONDS = 5
# In which all of a file is read, at least.
_READ_RATE = 20 << 20


@dataclasses.dataclass(frozen=True)
class FetchProgress:
    """How far a file is.

    :ivar is_complete: whether all of it is here.
    :ivar done: bytes that are here.
    :ivar size: of the file, in bytes.
    :ivar got: bytes that came from others.
    :ivar peers: the addresses that it is connected with, with the bytes got from each.
    :ivar fault: why it does not go on; empty if it does.
    """

    is_complete: bool
    done: int
    size: int
    got: int
    peers: dict[str, int]
    fault: str


class ExchangeClient:
    """This host's exchange, for services of the same user.

    Calls raise ExchangeFailed if it does not answer, or refuses.

    :param path: of the unix socket.
    :param seconds: in which it has to answer.
    """

    def __init__(self, path: str, seconds: float = _ANSWER_SECONDS):
        self._path = path
        self._seconds = seconds

    def within(self, seconds: float) -> 'ExchangeClient':
        """Return the same one, which has to answer in so many seconds."""
        return ExchangeClient(self._path, seconds)

    def _ask(self, method: str, descriptor: int | None = None, more_seconds: float = 0.0,
             **arguments: Any) -> Any:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(self._seconds + more_seconds)
                connection.connect(self._path)
                control.send(connection, {'method': method, **arguments}, descriptor)
                answer = control.receive(connection)
        except OSError as error:
            raise exception.ExchangeFailed(
                f'bootcache-exchange does not answer at {self._path} ({error}): see whether its'
                ' unit runs') from error
        if 'error' in answer:
            raise exception.ExchangeFailed(f'bootcache-exchange: {answer["error"]}')
        return answer.get('answer')

    def describe(self, path: str) -> tuple[bytes, str]:
        """Make the torrent of a file: all of it is read.

        :returns: the torrent, and its name.
        :raises OSError: if the file cannot be opened.
        """
        with open(path, 'rb') as stream:
            size = os.fstat(stream.fileno()).st_size
            answer = self._ask('describe', stream.fileno(), size / _READ_RATE)
        return base64.b64decode(answer['torrent']), str(answer['name'])

    def fetch(self, torrent: bytes, path: str, peers: Iterable[Peer], rate: int = 0) -> str:
        """Begin to fetch a file; what it has already is kept, if it is right.

        :param path: of the file, made if it is not there.
        :param rate: bytes a second at most; 0 for no limit.
        :returns: the torrent's name.
        :raises OSError: if the file cannot be opened.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            return str(self._ask('fetch', descriptor, peers=list(peers), rate=rate,
                                 torrent=base64.b64encode(torrent).decode()))
        finally:
            os.close(descriptor)

    def give(self, torrent: bytes, path: str, seconds: float) -> str:
        """Give a file to others for some seconds; it is not written to.

        :returns: the torrent's name.
        :raises OSError: if the file cannot be opened.
        """
        with open(path, 'rb') as stream:
            return str(self._ask('give', stream.fileno(), for_seconds=seconds,
                                 torrent=base64.b64encode(torrent).decode()))

    def connect(self, name: str, peers: Iterable[Peer]) -> None:
        """Connect with others that may have pieces of a file."""
        self._ask('connect', name=name, peers=list(peers))

    def start_over(self, name: str, peers: Iterable[Peer]) -> None:
        """Look at what came of a file again, and believe all peers again."""
        self._ask('start_over', name=name, peers=list(peers))

    def keep(self, name: str, seconds: float) -> None:
        """Give a file that was fetched to others for some seconds."""
        self._ask('keep', name=name, for_seconds=seconds)

    def drop(self, name: str) -> None:
        """Fetch or give a file no longer."""
        self._ask('drop', name=name)

    def look(self, name: str) -> FetchProgress:
        """Tell how far a file is."""
        told = self._ask('look', name=name)
        return FetchProgress(told['is_complete'], told['done'], told['size'], told['got'],
                             {address: of['got'] for address, of in told['peers'].items()},
                             told['fault'])

    def missing(self, name: str) -> list[tuple[int, int]]:
        """Return the parts of a file that are not here yet: offset and length in bytes."""
        told = self._ask('pieces', name=name)
        size = told['piece_bytes']
        found: list[tuple[int, int]] = []
        for number, is_there in enumerate(told['there']):
            if is_there == '0':
                if found and sum(found[-1]) == number * size:
                    found[-1] = found[-1][0], found[-1][1] + size
                else:
                    found.append((number * size, size))
        return found

    def files(self) -> dict[str, Any]:
        """Tell of all files, and how much was got and given since the process started."""
        answer: dict[str, Any] = self._ask('files')
        return answer
