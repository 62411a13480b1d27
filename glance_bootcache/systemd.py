"""What the storage service's process tells systemd (sd_notify(3)), where systemd started it."""

import contextlib
import os
import socket


def notify(state: str) -> None:
    """Tell systemd the process's state.

    :param state: as ``READY=1``.
    """
    address = os.environ.get('NOTIFY_SOCKET')
    if not address:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        # An abstract address begins with a null byte, which the environment cannot have.
        sender.connect('\0' + address[1:] if address.startswith('@') else address)
        sender.send(state.encode())


def watchdog_seconds() -> float | None:
    """Return the seconds within which systemd wants to hear; None if it does not."""
    microseconds = os.environ.get('WATCHDOG_USEC', '')
    is_meant = os.environ.get('WATCHDOG_PID', str(os.getpid())) == str(os.getpid())
    return int(microseconds) / 1e6 if is_meant and microseconds.isdigit() else None
