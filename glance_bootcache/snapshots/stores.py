"""Where a snapshot is made: as a copy of its base that shares all of it until it is written.

A host writes into that copy what its server's overlay holds, and nothing else. A store knows
nothing of hosts, exports and Glance: see snapshotjobs.py for these.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from bootcache import exception
from bootcache.manifest import Manifest


class SnapshotUnfit(exception.BootcacheError):
    """No such snapshot can be made of this base here; the server's goes stock Nova's way.

    The message says why, in one line. Nothing is wrong, and nothing is left behind.
    """


@dataclasses.dataclass(frozen=True)
class Writable:
    """A snapshot that is being written.

    :ivar node: the block node, with what is below it and without ``node-name``s, whose bytes are
        the disk's: a host that writes there knows nothing of formats. It is opened writable, by a
        storage daemon that serves nothing but snapshots.
    :ivar disk_format: of the image that it becomes.
    """

    node: Mapping[str, object]
    disk_format: str


@dataclasses.dataclass(frozen=True)
class Look:
    """What can be looked at of a snapshot that has been written.

    :ivar path: of a file that has the snapshot's size, and of its bytes at least those that any
        format is known by; of a qcow2, all of the file.
    :ivar disk_format: which it has to be.
    """

    path: str
    disk_format: str


@dataclasses.dataclass(frozen=True)
class Stored:
    """A snapshot that nobody writes any more. One of both is set.

    :ivar url: by which Glance finds the bytes where they are.
    :ivar path: of a file that has to be uploaded, as Glance's store takes no such URL.
    """

    url: str = ''
    path: str = ''


@dataclasses.dataclass(frozen=True)
class Traits:
    """What an image of Glance's has if it is of a snapshot, and not of stock Nova's way.

    :ivar disk_format: its format; empty if it is not known.
    :ivar glance_store: Glance's name of a store that has it; empty if that may be any.
    """

    disk_format: str = ''
    glance_store: str = ''


class SnapshotStore(Protocol):
    """A store in which snapshots are made, one for each of Glance's kinds of them.

    Its methods are called from several threads, for different snapshots; for one snapshot one
    after the other. Each comes to an end by itself. ``snapshot_id`` is the id of the Glance image
    that the snapshot becomes, as a canonical UUID.

    Errors of all methods: ``Interrupted`` if what is below does not answer now, another
    ``BootcacheError`` if it says no. Both name what is at fault.

    :ivar name: what it is called in records and logs: ``rbd`` or ``file``. It never changes.
    """

    name: str

    def traits(self, snapshot_id: str) -> Traits:
        """Return what Glance's image has if it is of this snapshot, as far as that is known."""

    def refusal(self, base: Manifest) -> str:
        """Return why no snapshot of a base is made here, in one line; empty if one may be.

        By what is known without asking anybody: this decides which of the stores is used.
        """

    def begin(self, base: Manifest, snapshot_id: str, virtual_bytes: int) -> Writable:
        """Make a snapshot whose content is the base's, and zeros after its end.

        There is something of it for ``left`` from the first moment on, whatever ends this process.

        :param virtual_bytes: size of the disk; at least the base's.
        :raises SnapshotUnfit: if this base's cannot be made here, as too many are below each other,
            or there is no room. Nothing is left behind then.
        """

    def check_room(self, snapshot_id: str) -> None:
        """Check that what is written goes on having room, beside others'.

        :raises BootcacheError: if it has not.
        """

    def looked_at(self, snapshot_id: str, directory: str,
                  check: Callable[[], None]) -> contextlib.AbstractContextManager[Look]:
        """Give a file to look at. The node that was written has been closed.

        What is looked at reads as what was written, over the base; that is made sure of here.

        :param directory: for such a file, which is gone at the end of the block.
        :param check: called between pieces; raises to give it up.
        """

    def finish(self, snapshot_id: str) -> Stored:
        """Make a snapshot that has been written, and looked at, one that Glance can have.

        The same once more, after a crash, has the same result.
        """

    def settled(self, snapshot_id: str) -> None:
        """Take notice that Glance has it now: it is Glance's alone, and never discarded."""

    def discard(self, snapshot_id: str) -> bool:
        """Remove a snapshot that is under way or finished, and all that belongs to it.

        :returns: False if somebody has it open, so that it has to be asked again; True also if
            there is none.
        """

    def left(self) -> Collection[str]:
        """Return the ids of snapshots that are under way: begun, and neither finished nor gone.

        What no record names of these was left by a crash, and is discarded.
        """

    def finished(self) -> Collection[str]:
        """Return the ids of those that are finished, and neither settled nor discarded, as far as
        the store notes that. What no record names of these is discarded unless Glance has it.
        """

    def tidy(self) -> None:
        """Do what is due now and then, for a bounded time: what nobody needs any more is purged,
        and what stands on too many others is copied, in the background."""
