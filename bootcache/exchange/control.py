"""What services and this host's ``bootcache-exchange`` say to each other, on a unix socket.

A connection is for one request and its answer, each a JSON object in a line; with a request can
come an open file. The socket's folder is its user's only: who reaches it may do all of it.
"""

import json
import os
import socket
from typing import Any

from bootcache import exception
from bootcache.exchange.limits import MOST_TORRENT_BYTES

# A torrent in base64, and some names. An answer has a sign for each piece, at most.
LONGEST = MOST_TORRENT_BYTES * 4 // 3 + (64 << 10)
_CHUNK = 64 << 10


def send(connection: socket.socket, message: dict[str, Any], descriptor: int | None = None) -> None:
    """Send a message.

    :param descriptor: of an open file that goes with it.
    :raises OSError: if it does not go.
    """
    data = json.dumps(message).encode() + b'\n'
    sent = socket.send_fds(connection, [data[:_CHUNK]], [] if descriptor is None else [descriptor])
    if sent < len(data):
        # Of nothing more: the answer may be here, and the other end closed.
        connection.sendall(data[sent:])


def receive(connection: socket.socket) -> dict[str, Any]:
    """Receive a message, with which no file comes.

    :raises ExchangeFailed: if it is none.
    :raises OSError: if it does not come.
    """
    # Eventlet's sockets, which nova-compute may have, wait with recv only.
    return _read(connection, connection.recv(_CHUNK))


def receive_with_file(connection: socket.socket) -> tuple[dict[str, Any], int | None]:
    """Receive a message, with which a file may come.

    :returns: the message, and the descriptor of the file, which is the caller's.
    :raises ExchangeFailed: if it is none.
    :raises OSError: if it does not come.
    """
    data, descriptors, _flags, _address = socket.recv_fds(connection, _CHUNK, 1)
    try:
        message = _read(connection, data)
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    return message, descriptors[0] if descriptors else None


def _read(connection: socket.socket, data: bytes) -> dict[str, Any]:
    """Receive the rest of a message that begins with some data."""
    while not data.endswith(b'\n'):
        if len(data) > LONGEST:
            raise exception.ExchangeFailed('a message is too long')
        more = connection.recv(_CHUNK)
        if not more:
            raise exception.ExchangeFailed('a message ends too early')
        data += more
    try:
        message = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise exception.ExchangeFailed(f'a message cannot be read: {error}') from error
    if not isinstance(message, dict):
        raise exception.ExchangeFailed('a message cannot be read: it is no object')
    return message
