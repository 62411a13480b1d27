"""The answering end of the unix socket: what services ask of this host's exchange."""

import base64
import contextlib
import ipaddress
import os
import socketserver
import stat
from collections.abc import Callable
from typing import Any

from oslo_log import log as logging

from bootcache import exception
from bootcache.exchange import control, torrent
from bootcache.exchange.members import Members
from bootcache.exchange.session import MOST_PEERS, ExchangeSession, Peer

LOG = logging.getLogger(__name__)

_PATIENCE_SECONDS = 5
_MOST_SECONDS = 7 * 86400
_UPKEEP_SECONDS = 0.5

Method = Callable[[dict[str, Any], int], Any]


class ExchangeServer(socketserver.ThreadingUnixStreamServer):
    """Listens on the socket.

    :param path: of the socket, made for this process's user only.
    :param session: does what is asked.
    :param members: whose CA's certificate is in the torrents that are made.
    :raises OSError: if nothing can listen there.
    """

    daemon_threads = True
    request_queue_size = 32

    def __init__(self, path: str, session: ExchangeSession, members: Members):
        self.session = session
        self._members = members
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        before = os.umask(0o177)
        try:
            super().__init__(path, _Request)
        finally:
            os.umask(before)
        # What is told of a file needs none; what begins something needs one.
        self._methods: dict[str, Method] = {
            'fetch': self._fetch, 'give': self._give, 'describe': self._describe,
            'connect': lambda asked, _file: session.connect(_name(asked), _peers(asked)),
            'start_over': lambda asked, _file: session.start_over(_name(asked), _peers(asked)),
            'keep': lambda asked, _file: session.keep(_name(asked), _seconds(asked)),
            'drop': lambda asked, _file: session.drop(_name(asked)),
            'look': lambda asked, _file: session.look(_name(asked)),
            'pieces': self._pieces,
            'files': lambda asked, _file: session.files()}

    def service_actions(self) -> None:
        """Keep the session in order: socketserver calls this now and then."""
        try:
            self.session.upkeep()
        except Exception:
            # One file would end what is given of all others.
            LOG.exception('bootcache: unexpected error')

    def run(self) -> None:
        """Serve until ``shutdown`` is called by another thread."""
        self.serve_forever(_UPKEEP_SECONDS)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Tell of an error that no answer tells of."""
        LOG.exception('bootcache: unexpected error')

    def answer(self, asked: dict[str, Any], descriptor: int | None) -> dict[str, Any]:
        """Do what is asked, and say what came of it.

        :param descriptor: of the file that came with it.
        """
        method = self._methods.get(str(asked.get('method')))
        try:
            if method is None:
                raise exception.ExchangeFailed(f'{str(asked.get("method"))[:40]!r} is not known')
            return {'answer': method(asked, -1 if descriptor is None else descriptor)}
        except exception.BootcacheError as error:
            return {'error': str(error)}
        except OSError as error:
            return {'error': f'{error.filename or "the file"}: {error.strerror}'}

    def _fetch(self, asked: dict[str, Any], descriptor: int) -> str:
        return self.session.fetch(_torrent(asked), _file(descriptor), _peers(asked),
                                  _count(asked, 'rate'))

    def _give(self, asked: dict[str, Any], descriptor: int) -> str:
        return self.session.give(_torrent(asked), _file(descriptor), _seconds(asked))

    def _describe(self, _asked: dict[str, Any], descriptor: int) -> dict[str, Any]:
        made = torrent.make(f'/proc/self/fd/{_file(descriptor)}', self._members.ca())
        return {'torrent': base64.b64encode(made.data).decode(), 'name': made.name}

    def _pieces(self, asked: dict[str, Any], _descriptor: int) -> dict[str, Any]:
        size, there = self.session.pieces(_name(asked))
        return {'piece_bytes': size, 'there': ''.join('01'[is_there] for is_there in there)}


class _Request(socketserver.BaseRequestHandler):
    server: ExchangeServer

    def handle(self) -> None:
        self.request.settimeout(_PATIENCE_SECONDS)
        descriptor = None
        try:
            try:
                asked, descriptor = control.receive_with_file(self.request)
            except exception.ExchangeFailed as error:
                control.send(self.request, {'error': str(error)})
                return
            control.send(self.request, self.server.answer(asked, descriptor))
        except OSError as error:
            LOG.debug('somebody who asks has gone: %s', error)
        finally:
            if descriptor is not None:
                os.close(descriptor)


# What is asked, read.

def _refused(what: str) -> exception.ExchangeFailed:
    return exception.ExchangeFailed(f'a message has no {what}, or none that can be')


def _name(asked: dict[str, Any]) -> str:
    name = asked.get('name')
    if not isinstance(name, str) or len(name) != 64:
        raise _refused('name')
    return name


def _torrent(asked: dict[str, Any]) -> bytes:
    try:
        return base64.b64decode(asked['torrent'], validate=True)
    except (KeyError, TypeError, ValueError):
        raise _refused('torrent') from None


def _file(descriptor: int) -> int:
    if descriptor < 0 or not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise _refused('file')
    return descriptor


def _count(asked: dict[str, Any], what: str) -> int:
    value = asked.get(what)
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise _refused(what)
    return value


def _seconds(asked: dict[str, Any]) -> float:
    value = asked.get('for_seconds')
    if not isinstance(value, int | float) or not 0 <= value <= _MOST_SECONDS:
        raise _refused('for_seconds')
    return float(value)


def _peers(asked: dict[str, Any]) -> list[Peer]:
    try:
        peers = [(str(ipaddress.ip_address(str(address))), int(port))
                 for address, port in asked['peers']]
    except (KeyError, TypeError, ValueError, OverflowError):
        raise _refused('peers') from None
    if len(peers) > MOST_PEERS or not all(0 < port < 1 << 16 for _address, port in peers):
        raise _refused('peers')
    return peers
