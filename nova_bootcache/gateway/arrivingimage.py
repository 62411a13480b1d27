"""A cache image that servers read from while it is on its way to the host.

SC13, Algorithm 1: "create NewCache on C, chain it to Cache": the first boot reads through the new
cache image, and what it reads comes once. Here the new one is the file itself: it is copied in its
own order, which is that of the sample boot's reads, so that it is ahead of the boot for the most
part; what a server asks for earlier comes out of turn, and is not copied again.

In the gateway, below the node on top (sharedstore.py), from above:

* the cache image: qcow2, with the base on the storage node as its backing,
* copy-on-read,
* what has come: a qcow2 whose data is in a file of its own, each byte at its place, with
* the storage node's file, over NBD, as its backing.

A job reads all of it above that, 512 KiB at a time, so that no server's read waits for long behind
it. The data file is the cache image's file then, and is checked and put into its place; the node on
top is put onto it, and servers do not notice. No stream job does it: it would put a filter of its
own below the servers, which answers a read with what is in memory by chance where the storage node
cannot tell what is allocated (QEMU 7.2 to 10, block/copy-on-read.c).
"""

import contextlib
import os
import time
from typing import Any

from oslo_log import log as logging

from bootcache import daemonjobs, exception, naming, qemuimg, steps
from nova_bootcache.gateway import graph, sharedstore
from nova_bootcache.gateway.daemon import Gateway
from nova_bootcache.gateway.graph import (
    ARRIVING,
    ARRIVING_FILTER,
    COME,
    COME_DATA,
    COME_MAP,
    LANDED,
    READER,
    REMOTE,
    SINK,
    SOURCE,
)

LOG = logging.getLogger(__name__)

# A smaller one is fetched in less time than it takes to set all this up.
WORTH_BYTES = 8 << 20
_SECTOR = 512
_LOOK_SECONDS = 0.05
# That the job reads at a time.
_PIECE = 512 << 10


def _names(image_id: str) -> dict[str, str]:
    return {kind: naming.node_name(kind, image_id) for kind in graph.KINDS}


def is_worth_it(size: int) -> bool:
    """Tell whether servers should read from a cache image while it arrives. Pure.

    :param size: of its file, in bytes.
    """
    # QEMU counts an image's end in sectors.
    return size >= WORTH_BYTES and size % _SECTOR == 0


def room(size: int) -> int:
    """Return the bytes that a cache image of a size takes while it arrives: tables come too. Pure.

    :param size: of its file, in bytes.
    """
    return _whole(size) + _tables(size)


def _whole(size: int) -> int:
    # The last cluster is written whole.
    return -(-size // sharedstore.GRANULARITY) * sharedstore.GRANULARITY


def _tables(size: int) -> int:
    return (1 << 20) + (size >> 12)


def _map_path(path: str) -> str:
    return f'{path.removesuffix(".partial")}.map.partial'


def clean(path: str) -> None:
    """Remove the files of an arrival that is over; one that has its place by now stays.

    :param path: of the file that it came into.
    """
    for name in (path, _map_path(path)):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


def begin(gateway: Gateway, image_id: str, size: int, path: str,
          source: dict[str, Any]) -> None:
    """Have a base's export read from its cache image on the storage node, and keep what comes.

    :param gateway: it serves the base already.
    :param size: of the cache image's file, in bytes.
    :param path: of the file that it comes into; made new.
    :param source: the node of the file on the storage node, without its name.
    :raises BootcacheError: if qemu-img or the gateway refuses, or the base cannot be read now; it
        is read directly then.
    :raises OSError: if the file system has no room for all of it.
    """
    names = _names(image_id)
    clean(path)
    try:
        qemuimg.create_standalone(_map_path(path), size, sharedstore.GRANULARITY, path)
        # What cannot be written is a read error in the guest.
        if not (sharedstore.hold(path, _whole(size))
                and sharedstore.hold(_map_path(path), _tables(size))):
            raise exception.BootcacheError(f'the file system of {path} cannot promise space')
        steps.reached('arrive: held')
        # A server waits: to connect once for all of it spares milliseconds.
        with gateway.daemon.session():
            gateway.check_base(image_id)
            gateway.daemon.add_nodes(*_nodes(names, source, path, size))
            gateway.read_from(image_id, ARRIVING)
    except (exception.BootcacheError, OSError):
        with contextlib.suppress(exception.BootcacheError):
            gateway.change(image_id, arrives=False)
        clean(path)
        raise


def _nodes(names: dict[str, str], source: dict[str, Any], path: str, size: int
           ) -> list[dict[str, Any]]:
    """Return the nodes by which a cache image comes, each before those that name it."""
    return [
        {**source, 'node-name': names[SOURCE]},
        {'driver': 'file', 'node-name': names[COME_MAP], 'filename': _map_path(path)},
        # Its header may be changed, and others read it, before this node goes.
        {'driver': 'file', 'node-name': names[COME_DATA], 'filename': path, 'locking': 'off'},
        {'driver': 'qcow2', 'node-name': names[COME], 'read-only': False,
         'backing': names[SOURCE], 'file': names[COME_MAP], 'data-file': names[COME_DATA],
         'l2-cache-size': 1 << 20},
        {'driver': 'copy-on-read', 'node-name': names[ARRIVING_FILTER], 'file': names[COME]},
        # The job wants a node that nobody else reads from.
        {'driver': 'throttle', 'node-name': names[READER], 'throttle-group': graph.UNLIMITED,
         'file': names[ARRIVING_FILTER]},
        {'driver': 'null-co', 'node-name': names[SINK], 'size': size},
        {'driver': 'qcow2', 'node-name': names[ARRIVING], 'read-only': True,
         'backing': names[REMOTE], 'file': names[ARRIVING_FILTER]}]


def bring(gateway: Gateway, image_id: str, size: int, path: str, seconds: float,
          stalled: float) -> None:
    """Have all of a cache image come that has not been asked for; it takes as long as that takes.

    :param size: of its file, in bytes.
    :param path: of the file that it comes into.
    :param seconds: that it may take in all.
    :param stalled: seconds after which it is given up if nothing has come meanwhile.
    :raises BootcacheError: if it did not come.
    """
    daemon, job = gateway.daemon, graph.arrival_job(image_id)
    daemonjobs.start_reading(daemon, job, naming.node_name(READER, image_id),
                             naming.node_name(SINK, image_id), _PIECE)
    there, since, began = -1, 0.0, time.monotonic()
    while (come := daemonjobs.look(daemon, job)) is not None:
        now = time.monotonic()
        if come != there:
            there, since = come, now
        if now - since >= stalled:
            raise exception.BootcacheError(f'nothing has come for {stalled:.0f} s')
        if now - began >= seconds:
            raise exception.BootcacheError(f'it has not come within {seconds:.0f} s')
        time.sleep(_LOOK_SECONDS)
    daemonjobs.end(daemon, job)
    # The last cluster was written whole.
    os.truncate(path, size)
    steps.reached('arrive: come')


def land(gateway: Gateway, image_id: str, path: str) -> None:
    """Put the servers that read from a cache image on its way onto the file that has come.

    :param path: of the cache image on this host.
    :raises StorageDaemonError: if the gateway refuses, or the base cannot be read now.
    """
    names = _names(image_id)
    # One that arrived earlier has another file.
    gateway.change(image_id, landed=False)
    file = {'driver': 'file', 'filename': os.path.realpath(path)}
    node = {'driver': 'qcow2', 'node-name': names[LANDED], 'read-only': True,
            'backing': names[REMOTE], 'file': file}
    try:
        # Half the system calls of a read, and half its CPU time: no other thread makes it.
        gateway.daemon.add_nodes({**node, 'file': {**file, 'aio': 'io_uring'}})
    except exception.StorageDaemonError as error:
        LOG.debug('image %s: its cache image is read by threads of the gateway: %s', image_id,
                  error)
        # The kernel, its security policy or QEMU's build may be without it.
        gateway.daemon.add_nodes(node)
    with gateway.daemon.session():
        gateway.check_base(image_id)
        gateway.read_from(image_id, LANDED)
