"""What an image's block nodes in the gateway are to be, and the steps to there. Pure.

A server reads from the node on top, which is exported and stays; what it reads from comes and goes
below. From above:

* a growing store that grows: its copy-on-read filter, then the store (sharedstore.py),
* one that does not grow any more: the store,
* a cache image on its way here (arrivingimage.py), and one that has landed,
* the base: NBD on the link to a connector (bootcache/connectors), that never changes.

Nothing is remembered of what the gateway has: it is looked at, compared with what is wanted, and
changed in steps, when this process starts and in every round of its upkeep. A crash may have left
any part of it half made or half gone.
"""

import dataclasses
import enum
import re
from collections.abc import Container, Iterable, Mapping
from typing import Any

from bootcache import growingstore, naming

# Kinds of nodes: the one on top, and the base.
TOP, REMOTE = 'g', 'n'
# Of a growing store, from above.
GROWING = growingstore.KINDS
FILTER, STORE, THROTTLE, STORE_FILE = GROWING
# Of a cache image: on its way, and one that has come.
ARRIVING, ARRIVING_FILTER, COME, COME_MAP, COME_DATA, SOURCE = 'q', 'x', 'w', 'v', 'd', 'c'
# What the job reads from, by which it comes, and where that leaves what it has read: nowhere.
READER, SINK = 'y', 'z'
LANDED = 'l'

# Parts, each from above: a node can go when none above it reads from it.
ARRIVAL = READER, SINK, ARRIVING, ARRIVING_FILTER, COME, COME_DATA, COME_MAP, SOURCE
BASE = TOP, LANDED, REMOTE
KINDS = *GROWING, *ARRIVAL, *BASE
# What the node on top may read from, the first of them that is there.
_LOWER = FILTER, STORE, ARRIVING, LANDED, REMOTE
# A throttle group without limits.
UNLIMITED = 'unlimited'


class GraphAction(enum.Enum):
    """What a step does."""

    CHECK_JOB = 'check that the job by which a cache image comes has ended'
    READ = 'have the node on top read from a node'
    DELETE = 'remove a node'


# What is done, and the kind of the node that it is about; empty where it is about none.
GraphStep = tuple[GraphAction, str]


@dataclasses.dataclass(frozen=True)
class Present:
    """What the gateway has of an image.

    :ivar kinds: of the nodes that are there.
    :ivar is_exported: whether servers can connect to it.
    :ivar content: the storage node's name for the base, which names its content; empty if there is
        none.
    :ivar source: its name for what a cache image that arrives is read from; empty likewise.
    """

    kinds: frozenset[str] = frozenset()
    is_exported: bool = False
    content: str = ''
    source: str = ''


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
    if not there.is_exported and wanted.store is not Store.GROWS and not wanted.arrives:
        going.update(KINDS)
    leaving = [kind for kind in KINDS if kind in going & there.kinds]
    steps: list[GraphStep] = []
    if not wanted.arrives and there.kinds & set(ARRIVAL):
        steps.append((GraphAction.CHECK_JOB, ''))
    if leaving and TOP in there.kinds and TOP not in leaving:
        steps.append((GraphAction.READ, lower(there.kinds - going)))
    # What is on top of all goes first.
    leaving.sort(key=lambda kind: kind != TOP)
    steps += [(GraphAction.DELETE, kind) for kind in leaving]
    return tuple(steps)


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
        there = Present(frozenset(kind for kind, name in names.items() if name in nodes),
                        naming.export_name(naming.EXPORT_BASE, image_id) in exports,
                        _content(nodes.get(names[REMOTE], '')),
                        _content(nodes.get(names[SOURCE], '')))
        if there != Present():
            found[image_id] = there
    return found


def _content(file: str) -> str:
    """Return the export that a node reads, by what QEMU calls its file; else nothing.

    It is read by a link, but in a gateway that was started before there were connectors.
    """
    found = re.match(r'nbd(?:\+unix)?://[^/]*/([^?]+)', file) \
        or re.search(r'"export": "([^"]+)"', file)
    return found[1] if found else ''
