"""Listening on a TCP port, by IPv4 or IPv6, and whether anybody listens on a unix socket."""

import contextlib
import errno
import os
import socket

# That the path of a unix socket may have.
PATH_BYTES = 107


def listen(host: str, port: int, backlog: int | None = None) -> socket.socket:
    """Listen on a TCP port.

    :param host: an address of this machine, IPv4 or IPv6, or a name of it; ``::`` is any of both.
        Of a name the IPv4 address is taken if there is one.
    :param port: 0 is any that is free.
    :raises OSError: with nothing but the reason as its text.
    """
    try:
        families = {entry[0] for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
        family = socket.AF_INET if socket.AF_INET in families else socket.AF_INET6
        return socket.create_server((host, port), family=family, backlog=backlog,
                                    dualstack_ipv6=host == '::')
    except socket.gaierror as error:
        raise OSError(error.strerror) from None
    except UnicodeError:
        raise OSError('Neither an address nor a name') from None
    except OSError as error:
        # Its own text says the address once more.
        raise OSError(error.errno, os.strerror(error.errno or 0)) from None


def is_served(path: str) -> bool:
    """Return whether a process listens on a unix socket, also one that has a queue or hangs.

    :param path: of the socket.
    """
    with socket.socket(socket.AF_UNIX) as client, contextlib.suppress(OSError):  # Path too long.
        client.setblocking(False)
        return client.connect_ex(path) in (0, errno.EAGAIN)
    return False
