"""A cache image that servers read from while it is on its way to the host.

SC13, Algorithm 1: "create NewCache on C, chain it to Cache": the first boot reads through the new
cache image, and what it reads comes once. Here the new one is the file itself: it is copied in its
own order, which is that of the sample boot's reads, so that it is ahead of the boot for the most
part; what a server asks for earlier comes out of turn, and is not copied again.

In the gateway, below the node on top (growingstore.py), from above:

* the cache image: qcow2, with the base on the storage node as its backing,
* copy-on-read, also exported by itself: from there the file is copied into its place, and checked,
* what has come: a qcow2 file of the host's, with
* the storage node's file, over NBD, as its backing.

When the copy is in its place the node on top is put onto it; servers do not notice.
"""

import contextlib
import os
from typing import Any

from bootcache import exception, naming, qemuimg
from bootcache.storagedaemon import StorageDaemon
from nova_bootcache import growingstore
from nova_bootcache.growingstore import ARRIVING as IMAGE
from nova_bootcache.growingstore import LANDED, REMOTE, TOP, top_node

# A smaller one is fetched in less time than it takes to set all this up.
WORTH_BYTES = 8 << 20
# What has come is a second copy, while it comes.
ROOM_FACTOR = 2
_FILTER, _COME, _FILE, _SOURCE, _OUTLET = 'x', 'w', 'v', 'c', 'a'
_SECTOR = 512


def _names(image_id: str) -> dict[str, str]:
    return {kind: naming.node_name(kind, image_id)
            for kind in (TOP, REMOTE, LANDED, IMAGE, _FILTER, _COME, _FILE, _SOURCE, _OUTLET)}


def is_worth_it(size: int) -> bool:
    """Tell whether servers should read from a cache image while it arrives. Pure.

    :param size: of its file, in bytes.
    """
    # QEMU counts an image's end in sectors.
    return size >= WORTH_BYTES and size % _SECTOR == 0


def begin(daemon: StorageDaemon, image_id: str, size: int, path: str,
          source: dict[str, Any]) -> str:
    """Have a base's export read from its cache image on the storage node, and keep what comes.

    :param daemon: the gateway's; it serves the base already.
    :param size: of the cache image's file, in bytes.
    :param path: of the file for what has come; made new.
    :param source: the node of the file on the storage node, without its name.
    :returns: the name of the export from which the file is to be copied.
    :raises BootcacheError: if the gateway or qemu-img refuses; the base is then read directly.
    """
    names = _names(image_id)
    export = naming.export_name(naming.EXPORT_ARRIVING, image_id)
    qemuimg.create_standalone(path, size, growingstore.GRANULARITY)
    try:
        daemon.add_nodes(
            {**source, 'node-name': names[_SOURCE]},
            {'driver': 'file', 'node-name': names[_FILE], 'filename': path},
            {'driver': 'qcow2', 'node-name': names[_COME], 'read-only': False,
             'backing': names[_SOURCE], 'file': names[_FILE], 'l2-cache-size': 1 << 20},
            {'driver': 'copy-on-read', 'node-name': names[_FILTER], 'file': names[_COME]},
            {'driver': 'throttle', 'node-name': names[_OUTLET], 'read-only': True,
             'throttle-group': growingstore.UNLIMITED, 'file': names[_FILTER]},
            {'driver': 'qcow2', 'node-name': names[IMAGE], 'read-only': True,
             'backing': names[REMOTE], 'file': names[_OUTLET]})
        daemon.add_export(export, names[_OUTLET])
        _reopen(daemon, image_id, IMAGE)
    except exception.BootcacheError:
        with contextlib.suppress(exception.BootcacheError):
            discard(daemon, image_id)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        raise
    return export


def _reopen(daemon: StorageDaemon, image_id: str, below: str) -> None:
    with daemon.session() as session:
        session.execute('blockdev-reopen', options=[top_node(image_id, below)])


def land(daemon: StorageDaemon, image_id: str, path: str) -> None:
    """Put the servers that read from a cache image on its way onto the file that has come.

    :param path: of the cache image on this host.
    :raises StorageDaemonError: if the gateway refuses.
    """
    names = _names(image_id)
    # One that arrived earlier has another file.
    _leave(daemon, image_id, LANDED)
    daemon.add_nodes({'driver': 'qcow2', 'node-name': names[LANDED], 'read-only': True,
                      'backing': names[REMOTE],
                      'file': {'driver': 'file', 'filename': os.path.realpath(path)}})
    _reopen(daemon, image_id, LANDED)


def _leave(daemon: StorageDaemon, image_id: str, *kinds: str) -> None:
    """Remove nodes; if one of them is what servers read from, they read from what is left."""
    names = _names(image_id)
    present = daemon.nodes()
    going = [names[kind] for kind in kinds if names[kind] in present]
    if not going:
        return
    with daemon.session() as session:
        if names[TOP] in present:
            session.execute('blockdev-reopen', options=[top_node(
                image_id, growingstore.lower(image_id, present - set(going)))])
        for name in going:
            session.execute('blockdev-del', node_name=name)


def discard(daemon: StorageDaemon, image_id: str) -> None:
    """Take what there is of an arrival out of the gateway; one that has landed stays.

    :raises StorageDaemonError: if the gateway does not answer, or refuses.
    """
    export = naming.export_name(naming.EXPORT_ARRIVING, image_id)
    if export in daemon.exports():
        daemon.remove_export(export, disconnect=True)
    _leave(daemon, image_id, IMAGE, _OUTLET, _FILTER, _COME, _FILE, _SOURCE)
