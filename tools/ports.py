"""TCP ports for servers that tools and tests start."""

import contextlib
import random
import socket


def free_port() -> int:
    """Return a TCP port of the loopback interface that nobody listens on.

    It is below those that the kernel gives to outgoing connections: one of these would be in the
    way of a daemon that is started again.
    """
    while True:
        port = random.randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(('127.0.0.1', port))
            return port
