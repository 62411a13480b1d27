"""The asking end of the unix socket: services ask this host's ``bootcache-exchange``.

It needs no libtorrent, and no libtorrent is loaded into nova-compute.
"""

import base64
import dataclasses
import os
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any

from oslo_log import log as logging

from bootcache import exception, savefile, workingset
from bootcache.exchange import control, patience
from bootcache.exchange.patience import Help, Stillness

LOG = logging.getLogger(__name__)

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

    def with_timeout(self, seconds: float) -> 'ExchangeClient':
        """Return a client of the same exchange, which has to answer in so many seconds."""
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
        return [(begin, end - begin) for begin, end in workingset.joined(
            (number * size, (number + 1) * size)
            for number, is_there in enumerate(told['there']) if is_there == '0')]

    def files(self) -> dict[str, Any]:
        """Tell of all files, and how much was got and given since the process started."""
        answer: dict[str, Any] = self._ask('files')
        return answer


_LOOK_SECONDS = 0.1
# Of an exchange that does not answer: it ends in the seconds of one in which nothing comes.
_DROP_SECONDS = 1.0
_LEAST_ANSWER_SECONDS = 0.5


@dataclasses.dataclass(frozen=True)
class Exchanged:
    """A file that can be had by exchange.

    :ivar torrent: as ``bootcache/exchange/torrent.py`` makes it.
    :ivar sha256: of the whole file, in hexadecimal: what counts in the end; empty if whoever
        fetches it compares another hash.
    :ivar peers: who has pieces of it, or is about to.
    :ivar reserve: who is asked as well when these do not go on: the storage node.
    :ivar has_slot: whether the storage service has given a slot with it; see TakeSlot.
    """

    torrent: bytes
    sha256: str
    peers: tuple[Peer, ...]
    reserve: tuple[Peer, ...] = ()
    has_slot: bool = False

    @property
    def is_first(self) -> bool:
        """Whether nobody has it but the storage node."""
        return set(self.peers) <= set(self.reserve)


def fetch(client: ExchangeClient, wanted: Exchanged, path: str, keep_seconds: float = 0.0,
          check: Callable[[FetchProgress], None] = lambda progress: None, rate: int = 0,
          seconds: float = float('inf'), begun: float | None = None) -> FetchProgress:
    """Fetch a file by exchange, or say soon that it does not come that way.

    What has come by the time that it stalls stays in the file, so that it need not come
    again; nothing reads or writes the file here any more. In any other case somebody may: it is to
    be removed, and another one made.

    :param path: of the file; what it has already is kept, if it is right.
    :param keep_seconds: for which it is given to others afterwards.
    :param check: called several times a second; what it raises ends the fetch.
    :param rate: bytes a second at most; 0 for no limit.
    :param seconds: that it may take in all.
    :param begun: since when nothing has come, in monotonic seconds; None for now. Later than now
        where what is there already has to be looked at first.
    :returns: what came from whom.
    :raises ExchangeStalled: if nothing comes; it has what did not come.
    :raises ExchangeFailed: if this host's exchange does not answer, refuses, or brought another
        file than was wanted.
    :raises OSError: if the file cannot be opened or read.
    """
    now = time.monotonic()
    watch = Stillness(now if begun is None else begun)
    name = _patient(client, watch).fetch(wanted.torrent, path, wanted.peers, rate)
    soon = client.with_timeout(_DROP_SECONDS)
    try:
        progress = _wait(client, name, wanted, check, watch, now + seconds, rate)
        # Whatever libtorrent says: it is what the storage service built, or nobody reads it.
        if wanted.sha256 and (found := savefile.file_digest(path)) != wanted.sha256:
            raise exception.ExchangeFailed(
                f'{path} was exchanged, and has the sha256 {found} instead of {wanted.sha256}')
        if keep_seconds:
            soon.keep(name, keep_seconds)
        else:
            soon.drop(name)
        return progress
    except exception.ExchangeStalled:
        # One that may still be written to here, before it is verified, is not gone on with.
        soon.drop(name)
        raise
    except BaseException:
        try:
            soon.drop(name)
        except exception.ExchangeFailed as error:
            LOG.warning('%s: %s', name, error)
        raise


def _wait(client: ExchangeClient, name: str, wanted: Exchanged,
          check: Callable[[FetchProgress], None], watch: Stillness, deadline: float,
          rate: int) -> FetchProgress:
    begun, least = time.monotonic(), patience.least_bytes(rate)
    has_reserve = bool(rate)
    while True:
        progress = _patient(client, watch).look(name)
        if progress.is_complete:
            return progress
        if progress.fault:
            raise exception.ExchangeFailed(f'{name}: {progress.fault}')
        check(progress)
        now = time.monotonic()
        help_now, watch = patience.look(watch, progress.done, now, least)
        if help_now is Help.GIVE_UP or now > deadline:
            raise exception.ExchangeStalled(
                f'{name}: of {progress.size} bytes {progress.done} have come; nothing more comes'
                f' from {len(progress.peers)} hosts, or not in its time',
                client.with_timeout(_DROP_SECONDS).missing(name))
        if help_now is Help.NONE and not has_reserve and now - begun > patience.RESERVE_AFTER:
            help_now, has_reserve = Help.RECONNECT, True
        if help_now is not Help.NONE:
            LOG.info('%s: it stalls at %d of %d bytes with %d hosts: %s', name,
                     progress.done, progress.size, len(progress.peers), help_now.value)
            asked = _patient(client, watch)
            ask = asked.connect if help_now is Help.RECONNECT else asked.start_over
            # Far back in a line the first piece comes late, and whoever asks the storage node as
            # well goes on getting pieces from it.
            waits = help_now is Help.RECONNECT and not progress.done and bool(progress.peers) \
                and now - begun < patience.START_OVER_AFTER
            ask(name, wanted.peers if waits else (*wanted.peers, *wanted.reserve))
        time.sleep(_LOOK_SECONDS)


def _patient(client: ExchangeClient, watch: Stillness) -> ExchangeClient:
    """Return a client that waits for as long as nothing may come, less what dropping it takes."""
    left = watch.since + patience.GIVE_UP_AFTER - _DROP_SECONDS - time.monotonic()
    return client.with_timeout(max(left, _LEAST_ANSWER_SECONDS))
