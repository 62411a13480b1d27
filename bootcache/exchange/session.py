"""What one host fetches from others, and gives to them: libtorrent's session, and its files."""

import contextlib
import dataclasses
import itertools
import os
import threading
import time
from collections.abc import Iterable
from typing import Any

import libtorrent
import tenacity
from oslo_log import log as logging

from bootcache import exception
from bootcache.exchange import limits as rules
from bootcache.exchange import torrent as torrents
from bootcache.exchange.limits import ExchangeLimits
from bootcache.exchange.links import Link, Links
from bootcache.exchange.members import Members
from bootcache.exchange.torrent import Torrent

LOG = logging.getLogger(__name__)


@dataclasses.dataclass
class Held:
    """One file.

    :ivar link: by which libtorrent opens it.
    :ivar until: after that it is dropped, in monotonic seconds.
    :ivar is_fetched: whether it is still on its way.
    :ivar came: whether it is, or was.
    :ivar rate: bytes a second at which it comes at most; 0 for no limit.
    :ivar given_before: bytes that were given before it was started over, as got_before.
    """

    torrent: Torrent
    handle: Any
    link: Link
    until: float
    is_fetched: bool
    came: bool
    rate: int = 0
    given_before: int = 0
    got_before: int = 0


# A fetch after whose progress nobody has asked for so long is dropped: who began it is gone.
_FORGOTTEN_SECONDS = 60
_START_SECONDS = 10
_AGAIN_SECONDS = 2
_OPENING_SECONDS = 0.001
# That one peer may be told, or one file have.
MOST_PEERS = 64

Peer = tuple[str, int]


class ExchangeSession:
    """The exchange of one host.

    :param limits: what it may do.
    :param members: this host's certificate.
    :param directory: of the links to files; its own.
    :raises ConfigurationError: if it cannot listen, or a network is none.
    """

    def __init__(self, limits: ExchangeLimits, members: Members, directory: str):
        self._limits = limits
        self._members = members
        # Guards what is held; libtorrent answers within milliseconds.
        self._lock = threading.RLock()
        self._held: dict[str, Held] = {}
        self._faults: dict[str, str] = {}
        self._totals = {'given': 0, 'got': 0}
        self._session = self._start()
        # Not before: the links are another process's as long as that listens here.
        self._links = Links(directory)

    def _start(self) -> Any:
        parameters = libtorrent.session_params()
        settings: Any = {
            **rules.settings(self._limits),
            'alert_mask': libtorrent.alert.category_t.error_notification
            | libtorrent.alert.category_t.status_notification
            | libtorrent.alert.category_t.ip_block_notification}
        parameters.settings = settings
        # What came is on the disk at once; the default keeps it in memory.
        parameters.disk_io_constructor = 'posix_disk_io_constructor'
        session = libtorrent.session(parameters)
        who = libtorrent.ip_filter()
        for first, last, may in rules.rules(self._limits.networks):
            who.add_rule(first, last, 0 if may else 1)
        session.set_ip_filter(who)
        # Addresses of private networks have a class of their own, that no other limit holds for.
        near = session.get_peer_class(libtorrent.session.local_peer_class_id)
        near['upload_limit'] = self._limits.upload_rate
        session.set_peer_class(libtorrent.session.local_peer_class_id, near)
        self._wait_for_listening(session)
        return session

    def _wait_for_listening(self, session: Any) -> None:
        place = f'[bootcache]exchange_address={self._limits.address}, port {self._limits.port}'
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            session.wait_for_alert(500)
            for alert in session.pop_alerts():
                if isinstance(alert, libtorrent.listen_failed_alert):
                    raise exception.ConfigurationError(
                        f'{place}: nothing can listen there ({alert.error.message()}); give an'
                        ' address of this host, and a port that nobody has')
                if isinstance(alert, libtorrent.listen_succeeded_alert):
                    return
        raise exception.ConfigurationError(f'{place}: nothing listens there')

    # Files.

    def fetch(self, data: bytes, descriptor: int, peers: Iterable[Peer],
              rate: int = 0) -> str:
        """Begin to fetch a file; what it has already is looked at, and not fetched.

        Its name is taken from what was fetched or given under it before.

        :param data: the torrent.
        :param descriptor: of the file, open for reading and writing; a copy of it is kept.
        :param peers: who may have pieces of it.
        :param rate: bytes a second at most; 0 for no limit.
        :returns: the torrent's name.
        :raises ExchangeFailed: if it is no torrent, or there are too many files.
        """
        return self._hold(data, descriptor, peers, True, _FORGOTTEN_SECONDS, rate)

    def give(self, data: bytes, descriptor: int, seconds: float) -> str:
        """Begin to give a file to others; nothing is written to it, whatever it has.

        :param data: the torrent.
        :param descriptor: of the file, open for reading; a copy of it is kept.
        :param seconds: for which it is given.
        :returns: the torrent's name.
        :raises ExchangeFailed: if it is no torrent, or of another CA than this host is now, or
            another file is fetched under its name.
        """
        if not torrents.is_of_ca(data, self._members.ca()):
            self.drop(torrents.read(data).name)
            raise exception.ExchangeFailed(
                'its torrent is of another CA: its members are not those of this host any more')
        return self._hold(data, descriptor, (), False, seconds)

    def _hold(self, data: bytes, descriptor: int, peers: Iterable[Peer], is_fetched: bool,
              seconds: float, rate: int = 0) -> str:
        torrent = torrents.read(data)
        with self._lock:
            there = self._held.get(torrent.name)
            if there is not None and not is_fetched:
                if there.is_fetched:
                    raise exception.ExchangeFailed(f'{torrent.name} is being fetched')
                there.until = max(there.until, time.monotonic() + seconds)
                return torrent.name
            self._drop(torrent.name)
            if is_fetched:
                self._end_fetches_into(descriptor)
            self._make_room(is_fetched)
            held = Held(torrent, None, self._links.make(descriptor), time.monotonic() + seconds,
                         is_fetched, is_fetched, rate)
            try:
                held.handle = self._add(held, peers)
            except Exception as error:  # libtorrent's are of many kinds
                held.link.close()
                raise exception.ExchangeFailed(f'it is not exchanged: {error}') from error
            self._held[torrent.name] = held
            self._apply_queue()
        return torrent.name

    def _end_fetches_into(self, descriptor: int) -> None:
        """Drop what else is fetched into a file: by another torrent, for a service that was killed.

        What comes of that would be written over what is verified by this one.
        """
        for name, held in list(self._held.items()):
            if held.is_fetched and held.link.is_of(descriptor):
                self._drop(name)

    def _make_room(self, is_fetched: bool) -> None:
        while len(self._held) >= self._limits.files:
            given = [(held.until, name) for name, held in self._held.items() if not held.is_fetched]
            if not given:
                raise exception.ExchangeFailed(
                    f'{len(self._held)} files are fetched already, as many as'
                    ' [bootcache]exchange_files says')
            self._drop(min(given)[1])

    def _apply_queue(self) -> None:
        self._session.apply_settings(dict(rules.queue(
            any(held.came for held in self._held.values()))))

    def _add(self, held: Held, peers: Iterable[Peer]) -> Any:
        flags = libtorrent.torrent_flags
        # Before anything is begun: they may not be there just now.
        introduction = self._members.introduction()
        parameters = libtorrent.add_torrent_params()
        parameters.ti = torrents.parse(held.torrent.data)
        parameters.save_path = self._links.directory
        parameters.renamed_files = {0: os.path.basename(held.link.path)}
        parameters.storage_mode = libtorrent.storage_mode_t.storage_mode_sparse
        parameters.max_connections = self._limits.connections
        parameters.max_uploads = -1
        parameters.download_limit = held.rate or -1
        parameters.flags = flags.paused | flags.apply_ip_filter | flags.disable_dht \
            | flags.disable_lsd | flags.disable_pex | flags.duplicate_is_error
        if not held.is_fetched:
            # In upload mode nothing is asked for: a file that rotted is not written to.
            parameters.flags |= flags.seed_mode | flags.upload_mode
        handle = self._session.add_torrent(parameters)
        try:
            handle.set_ssl_certificate_buffer(*introduction)
            # Where nothing has to be looked at before, they are connected with at once; who is told
            # of later is when the next second is full.
            self._connect(handle, peers)
            self._wait_until_opened(handle)
        except BaseException:
            self._remove(handle)
            raise
        handle.resume()
        return handle

    def _wait_until_opened(self, handle: Any) -> None:
        """Wait until libtorrent knows whether the file has anything.

        Resumed before, a fetch connects with nobody until the next second is full, and what is
        given refuses who connects. It answers within milliseconds.
        """
        states = libtorrent.torrent_status.states
        while handle.status().state == states.checking_resume_data:
            time.sleep(_OPENING_SECONDS)

    def _connect(self, handle: Any, peers: Iterable[Peer]) -> None:
        for address, port in itertools.islice(peers, MOST_PEERS):
            if (address, port) != (self._limits.address, self._limits.port):
                handle.connect_peer((address, port))

    def connect(self, name: str, peers: Iterable[Peer]) -> None:
        """Connect with others that may have pieces of a file, also where that failed before.

        :raises ExchangeFailed: if there is no such file.
        """
        with self._lock:
            self._connect(self._get(name).handle, peers)

    def start_over(self, name: str, peers: Iterable[Peer]) -> None:
        """Look at what came of a file again, and believe all peers again.

        :raises ExchangeFailed: if there is no such file, or it cannot be: it is dropped then.
        """
        with self._lock:
            held = self._get(name)
            self._count(held)
            self._remove(held.handle)
            try:
                held.handle = self._add_again(held, list(peers))
            except Exception as error:  # likewise
                self._forget(name)
                raise exception.ExchangeFailed(f'it is not exchanged any more: {error}') from error

    def _add_again(self, held: Held, peers: Iterable[Peer]) -> Any:
        # What was removed goes in libtorrent's own thread.
        try:
            return tenacity.Retrying(
                retry=tenacity.retry_if_exception_type(RuntimeError), reraise=True,
                stop=tenacity.stop_after_delay(_AGAIN_SECONDS), wait=tenacity.wait_fixed(0.01))(
                    self._add, held, peers)
        except RuntimeError as error:
            raise exception.ExchangeFailed(f'libtorrent refuses it: {error}') from error

    def keep(self, name: str, seconds: float) -> None:
        """Give a file that was fetched to others.

        :param seconds: for which it is given.
        :raises ExchangeFailed: if there is no such file, or it is not complete.
        """
        with self._lock:
            held = self._get(name)
            if not held.handle.status().is_seeding:
                raise exception.ExchangeFailed(f'{name} is not complete')
            # A seed writes nothing. Not by upload mode: set for a seed with requests that were not
            # sent yet it ends the process (libtorrent 2.1.1, peer_connection::cancel_all_requests).
            held.is_fetched = False
            held.until = time.monotonic() + seconds

    def drop(self, name: str) -> None:
        """Fetch or give a file no longer; nothing happens if that is so."""
        with self._lock:
            self._drop(name)
            self._apply_queue()

    def _drop(self, name: str) -> None:
        held = self._held.get(name)
        if held is not None:
            self._count(held)
            self._remove(held.handle)
            self._forget(name)

    def _remove(self, handle: Any) -> None:
        self._session.remove_torrent(handle)
        self._session.get_torrents()  # until its thread has heard of that it writes what comes

    def _forget(self, name: str) -> None:
        held = self._held.pop(name)
        self._faults.pop(name, None)
        self._totals['given'] += held.given_before
        self._totals['got'] += held.got_before
        held.link.close()

    def _count(self, held: Held) -> None:
        status = held.handle.status()
        held.given_before += status.total_payload_upload
        held.got_before += status.total_payload_download

    def _get(self, name: str) -> Held:
        held = self._held.get(name)
        if held is None:
            raise exception.ExchangeFailed(f'{name} is not fetched and not given here')
        return held

    # What becomes of them.

    def look(self, name: str) -> dict[str, Any]:
        """Tell how far a file is.

        :returns: ``is_complete``; ``done`` and ``size``, ``got`` and ``given``, in bytes;
            ``peers``: the addresses that it is connected with, with the bytes ``got`` from and
            ``given`` to each by this connection; ``fault``: why it does not go on, empty if it
            does.
        :raises ExchangeFailed: if there is no such file.
        """
        with self._lock:
            held = self._get(name)
            if held.is_fetched:
                held.until = time.monotonic() + _FORGOTTEN_SECONDS
            return self._described(name, held)

    def _described(self, name: str, held: Held) -> dict[str, Any]:
        status = held.handle.status()
        fault = self._faults.get(name, '')
        if status.errc.value():
            fault = status.errc.message()
        return {'is_complete': bool(status.is_seeding), 'done': status.total_done,
                'size': held.torrent.size, 'is_fetched': held.is_fetched,
                'got': held.got_before + status.total_payload_download,
                'given': held.given_before + status.total_payload_upload,
                'peers': {peer.ip[0]: {'got': peer.total_download, 'given': peer.total_upload}
                          for peer in held.handle.get_peer_info()},
                'fault': fault}

    def pieces(self, name: str) -> tuple[int, list[bool]]:
        """Return the size of a file's pieces, and which of them are here and verified.

        :raises ExchangeFailed: if there is no such file.
        """
        with self._lock:
            held = self._get(name)
            return held.torrent.piece_bytes, list(held.handle.status(
                libtorrent.status_flags_t.query_pieces).pieces)

    def files(self) -> dict[str, Any]:
        """Tell of all files, by name, and of all bytes ``got`` and ``given`` since the start."""
        with self._lock:
            files = {name: self._described(name, held) for name, held in self._held.items()}
            return {'files': files, **{
                kind: total + sum(entry[kind] for entry in files.values())
                for kind, total in self._totals.items()}}

    def upkeep(self) -> None:
        """Drop what is over, and hear what libtorrent says; to be called every second."""
        with self._lock:
            now = time.monotonic()
            for name, held in list(self._held.items()):
                if held.until <= now:
                    if held.is_fetched:
                        LOG.warning('%s: whoever fetches it has not asked for %d s; it is dropped',
                                    name, _FORGOTTEN_SECONDS)
                    self.drop(name)
                elif not held.is_fetched and held.link.is_in_the_way():
                    LOG.info('%s: removed where little space is, it is given no longer', name)
                    self.drop(name)
            names = {held.handle: name for name, held in self._held.items()}
            for alert in self._session.pop_alerts():
                self._hear(alert, names)
            for name, held in list(self._held.items()):
                if not held.is_fetched and not held.handle.status().is_seeding:
                    LOG.error('%s: the file that is given is not what its torrent says, and is'
                              ' given no longer', name)
                    self.drop(name)

    def _hear(self, alert: Any, names: dict[Any, str]) -> None:
        name = names.get(getattr(alert, 'handle', None), '')
        if isinstance(alert, libtorrent.peer_ban_alert):
            LOG.warning('%s: %s is taken for a liar', name, alert.endpoint)
        elif isinstance(alert, libtorrent.hash_failed_alert):
            LOG.warning('%s: piece %d came with wrong content, and is fetched again', name,
                        alert.piece_index)
        elif isinstance(alert, libtorrent.file_error_alert) and name:
            self._faults[name] = alert.error.message()
            LOG.error('%s: %s', name, alert.message())
        else:
            LOG.debug('%s', alert.message())

    def stop(self) -> None:
        """End all of it."""
        with self._lock:
            for name in list(self._held):
                with contextlib.suppress(OSError):
                    self._drop(name)
            self._session.pause()
