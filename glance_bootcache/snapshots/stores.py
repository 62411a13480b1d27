"""Where a snapshot is made: as a copy of its base that shares all of it until it is written.

A host writes into that copy what its server's overlay holds, and nothing else. A store knows
nothing of hosts, exports and Glance: see snapshotjobs.py for these.
"""

import contextlib
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from bootcache import exception
from bootcache.manifest import Manifest
from glance_bootcache.snapshots.records import Record


class SnapshotUnfit(exception.BootcacheError):
    """No such snapshot can be made of this base here; the server's goes stock Nova's way.

    The message says why, in one line. Nothing is wrong.
    """


class SnapshotStore(Protocol):
    """A store in which snapshots are made, one for each of Glance's kinds of them.

    Its methods are called from several threads, for different snapshots; for one snapshot one
    after the other. Each comes to an end by itself. A record says all that is known of a snapshot;
    one that has an id only stands for whatever there is of that snapshot.

    Errors of all methods: ``OSError``, ``Interrupted`` if what is below does not answer now, or
    another ``BootcacheError`` if it says no. All name what is at fault.

    :ivar name: what it is called in records and logs: ``rbd`` or ``file``. It never changes.
    """

    name: str

    def refusal(self, base: Manifest) -> str:
        """Return why no snapshot of a base is made here, in one line; empty if one may be.

        By what is known without asking anybody: this decides which of the stores is used.
        """

    def begin(self, record: Record, base: Manifest, virtual_bytes: int
              ) -> tuple[Record, Mapping[str, object]]:
        """Make a snapshot whose content is the base's, and zeros after its end.

        Its record was written before; who calls this discards it after an error.

        :param virtual_bytes: size of the disk; at least the base's.
        :returns: the record, with what has become known, and the block node, with what is below it
            and without ``node-name``s, whose bytes are the disk's: a host that writes there knows
            nothing of formats. It is opened writable, by a storage daemon that serves nothing but
            snapshots.
        :raises SnapshotUnfit: if this base's cannot be made here, as too many are below each other,
            or there is no room.
        """

    def check_room(self, record: Record) -> None:
        """Check that what is written goes on having room, beside others'.

        :raises BootcacheError: if it has not.
        """

    def looked_at(self, record: Record, directory: str,
                  check: Callable[[], None]) -> contextlib.AbstractContextManager[str]:
        """Give the path of a file to look at, of the record's format. The node was closed.

        The file has the snapshot's size, and of its bytes at least those that any format is known
        by; of a qcow2 it is all. What is looked at reads as what was written, over the base; that
        is made sure of here.

        :param directory: for such a file, which is gone at the end of the block.
        :param check: called between pieces; raises to give it up.
        """

    def finish(self, record: Record, put: Callable[[Record], None]) -> str:
        """Make a snapshot that has been looked at an image that Glance can have.

        :param put: writes the record down, before there is anything that Glance's store would take
            for an image.
        :returns: the URL by which Glance finds the bytes where they are; empty if Glance's store
            takes no such URL, and the record's file has to be uploaded.
        """

    def settled(self, record: Record, until: float) -> bool:
        """Take notice that Glance has it now: it is Glance's alone, and never discarded.

        :param until: monotonic seconds; the next piece of work after that is left to the next call.
        :returns: False if this has to be called again.
        """

    def discard(self, record: Record) -> bool:
        """Remove a snapshot that is under way or finished, and all that belongs to it.

        :returns: False if somebody has it open, so that it has to be asked again; True also if
            there is none.
        """

    def left(self) -> Collection[str]:
        """Return the ids of snapshots of which there is something that Glance does not take for an
        image, also of other storage services; it is not discarded without a record."""

    def tidy(self) -> None:
        """Do what is due now and then, for a bounded time: what nobody needs any more is purged,
        and what stands on too many others is copied, in the background."""
