"""The file of a checkpoint: many servers, their snapshots, and how they are started again.

It is a global snapshot of an application as RR-7482, section 3.2, has it: an independent image for
each of its servers.
"""

import contextlib
import dataclasses
import datetime
import enum
from collections.abc import Iterator
from typing import Any

import fasteners

from bootcache import exception, savefile

VERSION = 1
# What is in it of a server may be secret, such as its user data.
_MODE = 0o600


class Status(enum.StrEnum):
    """How far a server's snapshot is."""

    CHOSEN = 'chosen'
    ASKED = 'asked'
    SAVED = 'saved'
    FAILED = 'failed'


@dataclasses.dataclass(frozen=True)
class Network:
    """A server's connection to a network.

    :ivar network_id: of Neutron.
    :ivar port_id: of the port.
    :ivar addresses: its fixed addresses.
    """

    network_id: str
    port_id: str
    addresses: tuple[str, ...]


@dataclasses.dataclass
class SavedServer:
    """What is kept of a server, and how far its snapshot is.

    :ivar server_id: of the server that the snapshot is of.
    :ivar name: its name.
    :ivar project_id: whose it is.
    :ivar host: that it ran on; empty if Nova does not tell who asks.
    :ivar availability_zone: that it was in.
    :ivar flavor: name, vcpus, ram (MiB), disk (GiB), ephemeral (GiB) and swap (MiB).
    :ivar networks: what it is connected to.
    :ivar key_name: of its key pair; empty if it has none.
    :ivar security_groups: their names.
    :ivar metadata: of the server.
    :ivar tags: of the server.
    :ivar description: of the server; empty if it has none.
    :ivar user_data: base64; empty if it has none, or Nova does not tell who asks.
    :ivar config_drive: whether it has one.
    :ivar volumes: ids of the volumes that are attached.
    :ivar notes: what a snapshot does not have, in words.
    :ivar image_name: of its snapshot.
    :ivar image_id: of its snapshot; empty if it is not known.
    :ivar status: how far the snapshot is.
    :ivar reason: why it has failed.
    :ivar paused: whether it was paused for the snapshot, or is about to be, and is to go on.
    :ivar stands_since: when it was first seen to be paused, in ISO 8601; empty if it was not.
    :ivar asked_at: when its snapshot was asked for, in ISO 8601; empty if it was not.
    """

    server_id: str
    name: str
    project_id: str
    host: str
    availability_zone: str
    flavor: dict[str, Any]
    networks: tuple[Network, ...]
    key_name: str
    security_groups: tuple[str, ...]
    metadata: dict[str, str]
    tags: tuple[str, ...]
    description: str
    user_data: str
    config_drive: bool
    volumes: tuple[str, ...]
    notes: tuple[str, ...]
    image_name: str = ''
    image_id: str = ''
    status: Status = Status.CHOSEN
    reason: str = ''
    paused: bool = False
    stands_since: str = ''
    asked_at: str = ''


@dataclasses.dataclass
class Checkpoint:
    """Servers that were snapshotted together.

    :ivar checkpoint_id: a name that no other one has.
    :ivar created_at: ISO 8601.
    :ivar pause: whether they are paused while it is taken, and so are of one point in time.
    :ivar servers: all of them.
    """

    checkpoint_id: str
    created_at: str
    pause: bool
    servers: list[SavedServer]

    def to_json(self) -> dict[str, Any]:
        """Return it as a document."""
        return {'version': VERSION, **dataclasses.asdict(self)}


def parse(document: Any) -> Checkpoint:
    """Return what a document says.

    :raises KeyError, TypeError, AttributeError, ValueError: if it is none of a checkpoint.
    """
    servers = [SavedServer(**{
        **entry, 'status': Status(entry['status']), 'networks': tuple(
            Network(one['network_id'], one['port_id'], tuple(one['addresses']))
            for one in entry['networks']),
        **{name: tuple(entry[name]) for name in ('security_groups', 'tags', 'volumes', 'notes')}})
        for entry in document['servers']]
    return Checkpoint(str(document['checkpoint_id']), str(document['created_at']),
                      bool(document['pause']), servers)


def read(path: str) -> Checkpoint:
    """Read a checkpoint's file.

    :raises BootcacheError: if there is none, or it cannot be used.
    """
    try:
        found = savefile.read_json(path, VERSION, parse)
    except (OSError, ValueError) as error:
        raise exception.BootcacheError(
            f'{path} is no checkpoint that this version reads: {error}; name a file that "bootcache'
            ' snapshot" has written') from error
    if found is None:
        raise exception.BootcacheError(
            f'there is no {path}; name the file that "bootcache snapshot" has written')
    return found


def write(path: str, checkpoint: Checkpoint) -> None:
    """Replace a checkpoint's file, as savefile does.

    :raises BootcacheError: if it cannot be written; the old one is then untouched.
    """
    try:
        savefile.write_json(path, checkpoint.to_json(), _MODE)
    except OSError as error:
        raise exception.BootcacheError(
            f'{path} cannot be written: {error}; name another file with --output') from error


@contextlib.contextmanager
def held(path: str) -> Iterator[None]:
    """Keep other processes from working on the same checkpoint; a lock is beside its file.

    :raises BootcacheError: if one does.
    """
    lock = fasteners.InterProcessLock(f'{path}.lock')
    try:
        taken = lock.acquire(blocking=False)
    except OSError as error:
        raise exception.BootcacheError(
            f'{path}.lock cannot be written: {error}; use a file in a folder of yours') from error
    if not taken:
        raise exception.BootcacheError(
            f'another bootcache command works on {path}; wait for its end')
    try:
        yield
    finally:
        lock.release()


def now() -> str:
    """Return the time, as ISO 8601 in UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec='milliseconds')
