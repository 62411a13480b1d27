"""By which ways a base can be read, as a connector takes them. Pure, but for the name service."""

import concurrent.futures
import contextlib
import dataclasses
import hashlib
import json
import socket
import threading
from collections.abc import Mapping
from typing import Any

import cachetools
from oslo_utils import netutils

from bootcache import exception, naming, qemuimg
from bootcache.ceph import places
from bootcache.ceph.places import RbdClone
from bootcache.connectors import connector
from bootcache.util import threads

# Reads wait for a connection without end: the link to the connector is exchanged meanwhile.
_RECONNECT_SECONDS = 3600
# What a name stands for is known for some seconds; that nothing tells for less: guests wait for it.
_RESOLVE_SECONDS, _RESOLVED_SECONDS, _UNRESOLVED_SECONDS = 2, 10, 0.5
_CONNECT_SECONDS, _MOST_ADDRESSES = 0.5, 4
# A name server that hangs is waited for once for all bases of a node.
_known: cachetools.TLRUCache[tuple[str, int], str | Exception] = cachetools.TLRUCache(
    1000, lambda _key, found, now: now + (_UNRESOLVED_SECONDS if isinstance(found, Exception)
                                          else _RESOLVED_SECONDS))
_lock = threading.Lock()


@dataclasses.dataclass(frozen=True)
class Way:
    """A way by which a base is read.

    :ivar node: the block node that a connector opens for it, without its name.
    :ivar origin: what such nodes have in common that one connector opens, a storage node's address
        and this host's certificate, or a Ceph cluster and its user, in 16 hexadecimal digits; with
        ``connector.RBD`` before them for Ceph, ``connector.ABSENT`` for what is away.
    :ivar text: for messages.
    """

    node: Mapping[str, Any]
    origin: str
    text: str


def nbd_way(host: str, port: int, export: str, credentials: str = '') -> Way:
    """Return the way to what a storage node exports.

    A name is resolved here, within two seconds: QEMU's resolver may keep all of a connector
    waiting. Of several addresses it is the first that somebody listens at. A certificate is
    compared with the name all the same, by QEMU 7.0 and later.

    :param host: address or name.
    :param export: the exporter's name for it.
    :param credentials: see ``Encryption`` of the compute host.
    :raises StorageNodeAway: if the name is not resolved in time.
    """
    # Before, a certificate was compared with what QEMU connects to.
    address = host if credentials and not qemuimg.knows_open_timeout() else _address(host, port)
    tls = {'tls-creds': credentials, **({} if address == host else {'tls-hostname': host})} \
        if credentials else {}
    node = {'driver': 'nbd', 'export': export, 'reconnect-delay': _RECONNECT_SECONDS,
            **qemuimg.open_timeout(),
            'server': {'type': 'inet', 'host': address, 'port': str(port), 'keep-alive': True},
            **tls}
    return Way(node, _origin(host, port, credentials), naming.tcp_address(host, port))


def rbd_way(clone: RbdClone, conf: str, user: str) -> Way:
    """Return the way to a clone in Ceph.

    :param conf: path of ceph.conf.
    :param user: of Ceph, without ``client.``.
    """
    return Way(places.protocol(clone, conf, user), rbd_origin(conf, user), clone.path)


def rbd_origin(conf: str, user: str) -> str:
    """Return the origin of all ways to a user's clones in a Ceph cluster."""
    return connector.RBD + _origin(conf, user)


def absent_way(export: str, virtual_bytes: int) -> Way:
    """Return a way to nothing, by which a reader learns the size of a base that is away.

    Each read of it is an error, and so is each question what is allocated.

    :param virtual_bytes: size of the base.
    """
    errors = [{'event': 'none', 'iotype': kind, 'once': False} for kind in ('read', 'block-status')]
    return Way({'driver': 'blkdebug', 'inject-error': errors,
                'image': {'driver': 'null-co', 'size': virtual_bytes, 'read-zeroes': False}},
               connector.ABSENT + _origin(export), 'nowhere')


def _origin(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _address(host: str, port: int) -> str:
    if netutils.is_valid_ip(host):
        return host
    found = _resolved(host, port)
    if isinstance(found, Exception):
        raise exception.StorageNodeAway(
            f'{host} is not resolved: {str(found) or "the name service does not answer"}'
        ) from found
    return found


def _resolved(host: str, port: int) -> str | Exception:
    def look_up() -> str:
        address = _look_up(host, port)
        # Also when nobody waits any more: the first of several name servers may be away.
        with _lock:
            _known[host, port] = address
        return address

    with _lock:
        found = _known.get((host, port))
    try:
        return found or threads.daemon_thread(look_up, 'bootcache-resolve').result(_RESOLVE_SECONDS)
    except (OSError, RuntimeError, concurrent.futures.TimeoutError) as error:
        with _lock:
            return _known.setdefault((host, port), error)


def _look_up(host: str, port: int) -> str:
    found = list(dict.fromkeys(str(entry[4][0]) for entry in socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM)))
    # It may listen at one of them alone.
    for address in found[:_MOST_ADDRESSES] if len(found) > 1 else ():
        with contextlib.suppress(OSError), socket.create_connection((address, port),
                                                                    _CONNECT_SECONDS):
            return address
    return found[0]
