"""The answering end of the unix socket: what services ask of this host's exchange."""

import base64
import contextlib
import dataclasses
import os
import socketserver
import stat
from collections.abc import Callable
from typing import Any

from oslo_log import log as logging

from bootcache import exception
from bootcache.exchange import control, torrent
from bootcache.exchange.members import Members
from bootcache.exchange.session import ExchangeSession
from bootcache.rpc import fields
from bootcache.rpc.fields import Binary, Name, Peers, Seconds, Sha256, Size

LOG = logging.getLogger(__name__)

_PATIENCE_SECONDS = 5
_UPKEEP_SECONDS = 0.5


@dataclasses.dataclass(frozen=True)
class Asked:
    """What a service asks, as ``ExchangeClient`` does.

    :ivar method: a method of this name of ``ExchangeSession``, or ``describe``.
    :ivar name: of a torrent.
    :ivar peers: address and port of each.
    :ivar rate: bytes a second at most; 0 for no limit.
    :ivar for_seconds: for which a file is given.
    """

    method: Name
    name: Sha256 = ''
    torrent: Binary = b''
    peers: Peers = ()
    rate: Size = 0
    for_seconds: Seconds = 0.0


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
        self._methods: dict[str, Callable[[Asked, int], Any]] = {
            'fetch': lambda asked, file: session.fetch(asked.torrent, _file(file), asked.peers,
                                                       asked.rate),
            'give': lambda asked, file: session.give(asked.torrent, _file(file),
                                                     asked.for_seconds),
            'describe': self._describe,
            'connect': lambda asked, _: session.connect(asked.name, asked.peers),
            'start_over': lambda asked, _: session.start_over(asked.name, asked.peers),
            'keep': lambda asked, _: session.keep(asked.name, asked.for_seconds),
            'drop': lambda asked, _: session.drop(asked.name),
            'look': lambda asked, _: session.look(asked.name),
            'pieces': self._pieces,
            'files': lambda _asked, _: session.files()}

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

    def answer(self, message: dict[str, Any], descriptor: int | None) -> dict[str, Any]:
        """Do what is asked, and say what came of it.

        :param descriptor: of the file that came with the message.
        """
        try:
            asked = fields.read(Asked, message)
            if asked.method not in self._methods:
                raise exception.ExchangeFailed(f'{asked.method[:40]!r} is not known')
            return {'answer': self._methods[asked.method](
                asked, -1 if descriptor is None else descriptor)}
        except fields.OutOfBounds as error:
            return {'error': f'{error.part}: {error}'}
        except exception.BootcacheError as error:
            return {'error': str(error)}
        except OSError as error:
            return {'error': f'{error.filename or "the file"}: {error.strerror}'}

    def _describe(self, _asked: Asked, descriptor: int) -> dict[str, Any]:
        made = torrent.make(f'/proc/self/fd/{_file(descriptor)}', self._members.ca())
        return {'torrent': base64.b64encode(made.data).decode(), 'name': made.name}

    def _pieces(self, asked: Asked, _descriptor: int) -> dict[str, Any]:
        size, there = self.session.pieces(asked.name)
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


def _file(descriptor: int) -> int:
    if descriptor < 0 or not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise exception.ExchangeFailed('with the message comes no file, or none that can be')
    return descriptor
