"""Ways of booting where cache images are in the storage node's memory, whose disk is slow."""

from typing import Any

from bench.replay.host import HostChild, Image
from bench.replay.peers import _OVERLAY, _STOCK_CLUSTER, Nodes, Ours, Peer, Sc13, chain_nodes
from bootcache import qemuimg
from bootcache.cachelayout import Compression


def _export(name: str, export: str, image: Image) -> dict[str, Any]:
    address, port = image.answer['server']
    return {'driver': 'nbd', 'node-name': name, 'read-only': True, 'export': export,
            'server': {'type': 'inet', 'host': address, 'port': str(port)}}


class Sc13StorageMemory(Peer):
    """SC13 figures 13 and 14, warm: the cache image is in the storage node's memory, and stays.

    Hosts read it over the network as they boot, and nothing is kept on them. The cache image is
    the one that bootcache built, which holds what the first boot read, as the paper's would.
    """

    name = 'SC13 in storage memory'
    phases = 'warm',
    capabilities = {**Sc13.capabilities, 'shared by the servers of a host': False,
                    'survives a restart of the host': True}

    def disk(self, host: HostChild, image: Image, phase: str) -> Nodes:
        """Make the overlay; the chain below it is all on the storage node."""
        overlay = host.directory / _OVERLAY
        qemuimg.create_overlay(str(overlay), image.virtual_bytes, image.base_uri, 'raw',
                               cluster_bytes=_STOCK_CLUSTER, open_backing=False)
        file, top = chain_nodes(overlay, self.direct)
        return [_export('base', image.answer['base_export'], image),
                _export('cache-file', image.answer['cache_export'], image),
                {'driver': 'qcow2', 'node-name': 'cache', 'file': 'cache-file', 'backing': 'base',
                 'read-only': True}, file, {**top, 'backing': 'cache'}]


class OursStorageMemory(Ours):
    """bootcache: hosts fetch cache images that are in the storage node's memory tier."""

    name = 'bootcache in storage memory'
    phases: tuple[str, ...] = 'cold',


class OursStorageMemoryCompressed(OursStorageMemory):
    """bootcache: the same with compressed cache images."""

    name = 'bootcache zstd in storage memory'
    phases = 'cold',
    compression = Compression.ZSTD
