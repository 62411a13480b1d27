"""A host's servers as settling sees them, and what it needs of Nova."""

import contextlib
import dataclasses
import os
from typing import Any, Protocol


@dataclasses.dataclass(frozen=True)
class LocalServer:
    """A server on this host, as Nova knows it.

    :ivar server_id: its id.
    :ivar image_id: its image; empty if it has none.
    :ivar settles: whether it is in a state in which it can be settled.
    :ivar age: seconds since it started.
    :ivar directory: of its disks.
    :ivar target: the root disk's name in the guest.
    :ivar state: what Nova has it in, or does with it: active, suspended, resize_migrating...
    :ivar runs: whether Nova has it run, or starts it and waits until it does.
    """

    server_id: str
    image_id: str
    settles: bool
    age: float
    directory: str
    target: str
    state: str = ''
    runs: bool = False

    @property
    def disk(self) -> str:
        """The path of its root disk."""
        return os.path.join(self.directory, 'disk')


class Nova(Protocol):
    """What is needed of Nova: see nova_bootcache/novadriver/novaservers.py."""

    base_directory: str
    force_raw: bool
    keep_free: int

    def connect(self) -> Any:
        """Open a connection to libvirt beside Nova's."""

    def servers(self) -> list[LocalServer]:
        """Return this host's servers."""

    def server(self, server_id: str) -> LocalServer | None:
        """Return one of them, as it is now; None if it is gone."""

    def needs_stock_base(self, server_id: str) -> bool:
        """Tell whether only stock Nova may get a server's base: it checks signatures."""

    def bounded_domain(self, server_id: str, urgent: bool = False) -> Any:
        """Return its libvirt domain, None if it has none.

        Its calls raise LibvirtHangs where they, or its QEMU, have no answer in time.

        :param urgent: its QEMU is asked however many others do not answer.
        :raises LibvirtHangs: the same.
        :raises libvirtError: if libvirt does not tell.
        """

    def sees_errors(self, server_id: str) -> bool:
        """Tell whether its guest runs, and would see an I/O error instead of waiting."""

    def instance_lock(self, server_id: str, waits: bool = True
                      ) -> contextlib.AbstractContextManager[bool]:
        """Take Nova's lock of a server; False if it is not to wait, and somebody has it."""

    def base_lock(self, name: str) -> contextlib.AbstractContextManager[Any]:
        """Return Nova's lock of a base."""

    def make_writable(self, path: str) -> None:
        """Have this process's user own a stopped server's disk.

        :raises BootcacheError: if that is not possible.
        """

    def directory(self, server_id: str) -> str:
        """Return the path of a server's directory, which need not be there."""

    def directories(self) -> list[str]:
        """Return the directories of all servers that have one on this host."""
