"""What an image's block nodes in the gateway are to be, and the steps to there. Pure.

A server reads from the node on top, which is exported and stays; what it reads from comes and goes
below. From above:

* a growing store that grows: its copy-on-read filter, then the store (sharedstore.py),
* one that does not grow any more: the store,
* a cache image on its way here (arrivingimage.py), and one that has landed,
* the base, and below that the connection to what has it: the storage node, or a daemon of this host
  that has it open in Ceph (hostclones.py). The gateway has no node of Ceph's: QEMU's rbd driver
  would keep all others waiting. QEMU cannot have a connection go to another place: where a base has
  moved, another one takes its place. So it does the place of one that cannot be read, by which
  servers start while the storage node is away: each of its reads gives an error, at which a guest
  stands still.

Nothing is remembered of what the gateway has: it is looked at, compared with what is wanted, and
changed in steps, when this process starts and in every round of its upkeep. A crash may have left
any part of it half made or half gone.
"""

import dataclasses
import enum
import errno
import json
import re
from collections.abc import Container, Iterable, Mapping
from typing import Any

from bootcache import growingstore, naming

# Kinds of nodes: the one on top, the base, and the connection to it, of which two take turns.
TOP, REMOTE = 'g', 'n'
CONNECTIONS = 'h', 'i'
# Of a growing store, from above.
GROWING = growingstore.KINDS
FILTER, STORE, THROTTLE, STORE_FILE = GROWING
# Of a cache image: on its way, and one that has come.
ARRIVING, ARRIVING_FILTER, COME, COME_MAP, COME_DATA, SOURCE = 'q', 'x', 'w', 'v', 'd', 'c'
# What the job reads from, by which it comes, and where that leaves what it has read: nowhere.
READER, SINK = 'y', 'z'
LANDED = 'l'
# Below what stands for a connection, where there is none: it names the content.
_ABSENT = 'a'
_ABSENT_DRIVER = 'blkdebug'

# Parts, each from above: a node can go when none above it reads from it.
ARRIVAL = READER, SINK, ARRIVING, ARRIVING_FILTER, COME, COME_DATA, COME_MAP, SOURCE
BASE = TOP, LANDED, REMOTE, *CONNECTIONS
KINDS = *GROWING, *ARRIVAL, *BASE
# What the node on top may read from, the first of them that is there.
_LOWER = FILTER, STORE, ARRIVING, LANDED, REMOTE
# A throttle group without limits.
UNLIMITED = 'unlimited'


class GraphAction(enum.Enum):
    """What a step does."""

    CHECK_JOB = 'check that the job by which a cache image comes has ended'
    READ = 'have the node on top read from a node'
    CONNECT = 'add a connection to where the base is now'
    MOVE = 'have the base read through a connection'
    DELETE = 'remove a node'


@dataclasses.dataclass(frozen=True)
class GraphStep:
    """One change of an image's nodes.

    :ivar action: what is done.
    :ivar kind: of the node that it is about; empty where it is about none.
    """

    action: GraphAction
    kind: str = ''


@dataclasses.dataclass(frozen=True)
class Place:
    """What a base is reached by: an exporter, or a daemon of this host that has it from Ceph.

    :ivar host: of the exporter; empty of a daemon of this host.
    :ivar port: of the exporter; 0 of such a daemon.
    :ivar export: the exporter's name for it, which names its content as well; such a daemon's is
        the same.
    :ivar credentials: the id of those with which it is connected to; empty for no TLS. Files that
        were renewed have another id: a connection goes on with those that it was made with.
    :ivar socket: path of such a daemon's socket; empty for an exporter.
    """

    host: str
    port: int
    export: str
    credentials: str = ''
    socket: str = ''

    def __str__(self) -> str:
        return self.socket or naming.tcp_address(self.host, self.port)


@dataclasses.dataclass(frozen=True)
class Present:
    """What the gateway has of an image.

    :ivar kinds: of the nodes that are there.
    :ivar is_exported: whether servers can connect to it.
    :ivar place: from where the base is read; None if there is none, or QEMU does not tell.
    :ivar connection: the kind of the connection by which it is; empty if QEMU does not tell.
    :ivar is_absent: the connection cannot be read, whatever is asked.
    :ivar has_twins: both connections go to the same place, as where certificates were renewed: QEMU
        does not tell by which of them the base is read.
    """

    kinds: frozenset[str] = frozenset()
    is_exported: bool = False
    place: Place | None = None
    connection: str = ''
    is_absent: bool = False
    has_twins: bool = False


class Store(enum.Enum):
    """What is to become of an image's growing store."""

    GROWS = 'somebody looks after it, and it grows'
    STAYS = 'it does not grow any more, and is read from'
    GOES = 'it is of no use'


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What is to be there of an image, above its base.

    :ivar store: its growing store.
    :ivar arrives: somebody waits for its cache image, which comes.
    :ivar landed: what has come of it is read from.
    """

    store: Store = Store.STAYS
    arrives: bool = False
    landed: bool = True


def as_it_is(there: Present) -> Wanted:
    """Return what is there as what is wanted."""
    return Wanted(Store.GROWS if FILTER in there.kinds else Store.STAYS, ARRIVING in there.kinds,
                  LANDED in there.kinds)


def lower(kinds: Container[str]) -> str:
    """Return the kind of node that the node on top reads from, of those that are there."""
    return next((kind for kind in _LOWER if kind in kinds), REMOTE)


def reconcile(wanted: Wanted, there: Present) -> tuple[GraphStep, ...]:
    """Return the steps after which the gateway has of an image what it is to have.

    A store that nobody looks after does not grow any more, and stays to be read: it is what servers
    have of the base while the storage node is away. A part of it is of no use. An arrival that
    nobody waits for goes. So does a base that is not exported, with all that is above it: servers
    cannot connect to it, and who serves it again makes it anew.
    """
    going: set[str] = set()
    if not wanted.arrives:
        going.update(ARRIVAL)
    if not wanted.landed:
        going.add(LANDED)
    if wanted.store is not Store.GROWS:
        is_whole = {STORE, THROTTLE, STORE_FILE, REMOTE} <= there.kinds
        going.update((FILTER,) if is_whole and wanted.store is Store.STAYS else GROWING)
    if there.connection:
        # Of an exchange that was not ended.
        going.update(kind for kind in CONNECTIONS if kind != there.connection)
    if not there.is_exported and wanted.store is not Store.GROWS and not wanted.arrives:
        going.update(KINDS)
    leaving = [kind for kind in KINDS if kind in going & there.kinds]
    steps = []
    if there.has_twins and REMOTE not in leaving:
        steps.append(GraphStep(GraphAction.MOVE, there.connection))
    if not wanted.arrives and there.kinds & set(ARRIVAL):
        steps.append(GraphStep(GraphAction.CHECK_JOB))
    if set(leaving) - set(CONNECTIONS) and TOP in there.kinds and TOP not in leaving:
        steps.append(GraphStep(GraphAction.READ, lower(there.kinds - going)))
    # What is on top of all goes first.
    leaving.sort(key=lambda kind: kind != TOP)
    steps += [GraphStep(GraphAction.DELETE, kind) for kind in leaving]
    return tuple(steps)


def exchange(place: Place, there: Present) -> tuple[GraphStep, ...]:
    """Return the steps after which a base is read from a place; servers and stores go on reading.

    :param there: with a connection.
    """
    if there.place == place:
        return ()
    free = next(kind for kind in CONNECTIONS if kind != there.connection)
    left = (GraphStep(GraphAction.DELETE, free),) if free in there.kinds else ()
    if there.has_twins:
        left = (GraphStep(GraphAction.MOVE, there.connection), *left)
    return (*left, GraphStep(GraphAction.CONNECT, free), GraphStep(GraphAction.MOVE, free),
            GraphStep(GraphAction.DELETE, there.connection))


def base_node(image_id: str, connection: str) -> dict[str, Any]:
    """Return the node of a base, for adding it and for exchanging the connection below it.

    :param connection: kind of that.
    """
    # As of the node on top: a filter, through which block status is that of the base.
    return {'driver': 'throttle', 'node-name': naming.node_name(REMOTE, image_id),
            'read-only': True, 'throttle-group': UNLIMITED,
            'file': naming.node_name(connection, image_id)}


def absent_node(image_id: str, connection: str, export: str, size: int) -> dict[str, Any]:
    """Return a node in place of a connection: all reads of it give an error.

    Also whether there is data is not told: nobody may take it for zeros.

    :param connection: kind of the connection.
    :param export: the exporter's name for the base.
    :param size: of the base, in bytes.
    """
    return {'driver': _ABSENT_DRIVER, 'node-name': naming.node_name(connection, image_id),
            'read-only': True,
            'image': {'driver': 'null-co', 'node-name': absent_name(export), 'read-only': True,
                      'size': size, 'read-zeroes': False},
            'inject-error': [{'event': 'none', 'iotype': kind, 'errno': errno.EIO, 'once': False,
                              'immediately': False} for kind in ('read', 'block-status')]}


def absent_name(export: str) -> str:
    """Return the name of the node by which one knows of which content an absent base is.

    :param export: the exporter's name for the base.
    """
    return naming.node_name(_ABSENT, export)


def top_node(image_id: str, below: str) -> dict[str, Any]:
    """Return the node that is exported, for adding it and for exchanging what is below it.

    A filter, not a raw node: through a raw node, NBD's block status calls what the store lacks
    unallocated, although the base has it, and whoever copies by it (a snapshot) copies zeros.

    :param below: kind of the node below.
    """
    return {'driver': 'throttle', 'node-name': naming.node_name(TOP, image_id), 'read-only': True,
            'throttle-group': UNLIMITED, 'file': naming.node_name(below, image_id)}


def arrival_job(image_id: str) -> str:
    """Return the id of the job by which an image's cache image comes."""
    return naming.node_name('arrive', image_id)


def present(image_ids: Iterable[str], nodes: Mapping[str, str],
            exports: Mapping[str, str]) -> dict[str, Present]:
    """Return what a gateway has of images.

    :param nodes: its block nodes by name, with what QEMU calls their files.
    :param exports: its exports, with the names of their nodes.
    :returns: by image id, of those of which there is anything.
    """
    found = {}
    for image_id in image_ids:
        names = {kind: naming.node_name(kind, image_id) for kind in KINDS}
        place, is_absent = _origin(nodes.get(names[REMOTE], ''))
        # Of a connection itself QEMU does not tell the credentials.
        shown = place and dataclasses.replace(place, credentials='')
        by = [kind for kind in CONNECTIONS if (is_absent or place is not None)
              and _origin(nodes.get(names[kind], '')) == (shown, is_absent)]
        there = Present(frozenset(kind for kind, name in names.items() if name in nodes),
                        naming.export_name(naming.EXPORT_BASE, image_id) in exports,
                        place, by[0] if by else '', is_absent, len(by) > 1)
        if there != Present():
            found[image_id] = there
    return found


def _origin(file: str) -> tuple[Place | None, bool]:
    """Return where a node reads from, by what QEMU calls its file; and whether it is absent."""
    if found := re.fullmatch('nbd://(.*):([0-9]+)/(.+)', file):
        return Place(found[1].strip('[]'), int(found[2]), found[3]), False
    if found := re.fullmatch(r'nbd\+unix:///(.+)\?socket=(.+)', file):
        return Place('', 0, found[1], socket=found[2]), False
    try:
        node = json.loads(file.removeprefix('json:'))
        while node['driver'] not in ('nbd', _ABSENT_DRIVER):
            node = node['file']
        if node['driver'] == _ABSENT_DRIVER:
            return None, True
        server = node.get('server', {})
        if path := node.get('server.path') or server.get('path'):
            return Place('', 0, node['export'], socket=path), False
        return Place(node.get('server.host') or server['host'],
                     int(node.get('server.port') or server['port']), node['export'],
                     str(node.get('tls-creds', ''))), False
    except (ValueError, KeyError, TypeError, AttributeError):
        return None, False
