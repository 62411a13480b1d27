"""``bootcache-connectors``: starts and kills connectors at nova-compute's word, and outlives it.

A request is a line, ``start NAME`` or ``release`` for instance, on a unix socket of its user's:
see ``Starter``. The answer is a line as well: empty, or what went wrong. A supervisor that was
killed is started again, and finds its connectors; one that is told to end kills them.
"""

import argparse
import contextlib
import logging
import os
import signal
import socket
import socketserver
import sys
import threading

from bootcache import exception
from bootcache.connectors.starter import PROGRAM, Starter

LOG = logging.getLogger(__name__)

_SOCKET = 'connectors.sock'
_LINE_BYTES = 64
# That an answer takes; and that of a start: a connector that crashes as it comes up is started
# again. Readers of a base that has no answer wait for the first.
_ANSWER_SECONDS, _START_SECONDS = 3, 60


class _Request(socketserver.StreamRequestHandler):
    timeout = 5

    def handle(self) -> None:
        line = self.rfile.readline(_LINE_BYTES).decode(errors='replace').strip()
        if not line:
            # Somebody has looked whether it is there.
            return
        word, _, name = line.partition(' ')
        try:
            assert isinstance(self.server, _Server)
            self.server.starter.do(word, name)
            answer = ''
        except Exception as error:
            LOG.warning('%s %s: %s', word, name, error)
            answer = ' '.join(str(error).split()) or type(error).__name__
        with contextlib.suppress(OSError):
            self.wfile.write(f'{answer}\n'.encode())


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, run_dir: str):
        self.starter = Starter(run_dir)
        self.starter.listen()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(socket_path(run_dir))
        super().__init__(socket_path(run_dir), _Request)


def socket_path(run_dir: str) -> str:
    """Return where a supervisor serves. Pure."""
    return os.path.join(run_dir, _SOCKET)


def ask(run_dir: str, word: str, name: str) -> None:
    """Have a supervisor do something: see ``Starter.do``.

    :param run_dir: as of the connectors.
    :raises StorageDaemonError: if it cannot be done, or there is none.
    """
    path = socket_path(run_dir)
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_START_SECONDS if word == 'start' else _ANSWER_SECONDS)
            connection.connect(path)
            connection.sendall(f'{word} {name}\n'.encode())
            with connection.makefile() as stream:
                answer = stream.readline()
    except (FileNotFoundError, ConnectionRefusedError):
        raise exception.StorageDaemonError(
            f'nothing answers at {path}; start {PROGRAM}.service') from None
    except OSError as error:
        answer = str(error)
    if answer != '\n':
        raise exception.StorageDaemonError(
            f'{PROGRAM} at {path}: {word} {name}: {answer.strip() or "it ended"}')


def main(argv: list[str] | None = None) -> int:
    """Run the supervisor of this host until it is told to stop.

    :returns: the process's exit code.
    """
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description='Starts and kills the daemons by which this host reads bases.')
    parser.add_argument('run_dir', metavar='DIRECTORY', help='[bootcache]gateway_run_dir')
    arguments = parser.parse_args(argv)
    logging.basicConfig(format='%(levelname)s %(message)s', level=logging.INFO)
    # Its sockets are its user's.
    os.umask(0o077)
    try:
        server = _Server(arguments.run_dir)
    except (OSError, exception.BootcacheError) as error:
        print(f'{PROGRAM} cannot be started: {error}', file=sys.stderr)
        return 1
    for number in (signal.SIGTERM, signal.SIGINT):
        # Not in the signal's own call: it waits for the loop that it interrupts.
        signal.signal(number, lambda *_: threading.Thread(target=server.shutdown).start())
    try:
        server.serve_forever()
    finally:
        server.server_close()
        server.starter.kill_all()
    return 0
