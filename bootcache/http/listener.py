"""A small HTTP listener for those who watch a service: a few paths, few connections at a time.

The listener runs with native threads and with eventlet's. ``socketserver.serve_forever`` does not:
under eventlet its selector blocks the whole process, so ``accept`` is called here.
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from oslo_config import cfg
from oslo_log import log as logging

from bootcache import conf as bootcache_conf
from bootcache import listening
from bootcache.exception import ConfigurationError
from bootcache.util.logthrottle import LogThrottle

LOG = logging.getLogger(__name__)

# A WSGI application, as PEP 3333 has it.
App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

_MOST_CONNECTIONS = 8
# Without a byte from a client, or without one that it takes; and in all.
_SILENCE_SECONDS, _LONGEST_SECONDS = 10, 30
_STOP_SECONDS = 5


class _Handler(WSGIRequestHandler):
    timeout = _SILENCE_SECONDS

    def log_message(self, format: str, *arguments: Any) -> None:
        LOG.debug('%s: %s', self.client_address[0], format % arguments)


class _Server(WSGIServer):
    """What WSGIRequestHandler reads of its server. HTTPServer's own start asks DNS for a name."""

    def __init__(self, listener: socket.socket, app: App):
        address = listener.getsockname()
        super().__init__(address[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.server_name, self.server_port = address[:2]
        self.setup_environ()
        self.set_app(app)

    def handle_error(self, request: Any, client_address: Any) -> None:
        LOG.debug('the connection of %s ended with an error', client_address[0], exc_info=True)


def _end(connection: socket.socket) -> None:
    """Have whoever reads from a connection, or writes to it, wait no longer."""
    with contextlib.suppress(OSError):  # The other side has ended it.
        connection.shutdown(socket.SHUT_RDWR)


def by_path(apps: Mapping[str, App]) -> App:
    """Return an application that hands a request on by its path; others are answered with 404."""
    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        found = apps.get(environ['PATH_INFO'])
        if found is not None:
            return found(environ, start_response)
        start_response('404 Not Found', [('Content-Type', 'text/plain; charset=utf-8')])
        return [f'there is {" and ".join(sorted(apps))}\n'.encode()]

    return app


class HttpListener:
    """Answers HTTP requests at ``[bootcache]metrics_address`` and ``metrics_port``.

    :ivar port: TCP port.

    :param conf: configuration, with the shared options registered; the port is not 0.
    :param apps: by path.
    :raises ConfigurationError: if nothing can listen there.
    """

    def __init__(self, conf: cfg.ConfigOpts, apps: Mapping[str, App]):
        group = conf[bootcache_conf.GROUP]
        try:
            listener = listening.listen(group.metrics_address, group.metrics_port)
        except OSError as error:
            raise ConfigurationError(
                f'[bootcache]metrics_address={group.metrics_address},'
                f' metrics_port={group.metrics_port}: nothing can listen there'
                f' ({error.strerror or error}); give an address of this host, and a port that'
                ' nobody has ("ss -ltnp" shows who has it), or set metrics_port to 0') from None
        self._server = _Server(listener, by_path(apps))
        self.port = self._server.server_port
        self._stopping = threading.Event()
        self._places = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        self._throttle = LogThrottle(LOG)
        self._thread = threading.Thread(target=self._run, name='bootcache-http', daemon=True)
        self._thread.start()
        LOG.info('HTTP is answered at %s, port %d: %s', group.metrics_address, self.port,
                 ', '.join(sorted(apps)))

    def stop(self) -> None:
        """Listen no longer."""
        self._stopping.set()
        # Ends an accept that waits, which close alone does not.
        _end(self._server.socket)
        self._thread.join(_STOP_SECONDS)
        self._server.server_close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                request, address = self._server.get_request()
            except OSError as error:
                if not self._stopping.is_set():
                    # Out of file descriptors, for instance.
                    self._throttle.warning('', 'HTTP connections cannot be accepted: %s', error)
                    self._stopping.wait(1)
                continue
            self._begin(request, address)

    def _begin(self, request: socket.socket, address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self._server.shutdown_request(request)
            return
        try:
            threading.Thread(target=self._answer, args=(request, address), daemon=True,
                             name='bootcache-http-request').start()
        except RuntimeError as error:
            self._throttle.warning('', 'HTTP requests cannot be answered: %s', error)
            self._server.shutdown_request(request)
            self._places.release()

    def _answer(self, request: socket.socket, address: Any) -> None:
        # Who sends a byte now and then would have its place for days.
        end = threading.Timer(_LONGEST_SECONDS, _end, (request,))
        end.daemon = True
        try:
            end.start()
            self._server.finish_request(request, address)
        except Exception:
            self._server.handle_error(request, address)
        finally:
            end.cancel()
            self._server.shutdown_request(request)
            self._places.release()
