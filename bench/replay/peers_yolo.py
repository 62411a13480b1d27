"""YOLO's ways of booting (section V.B), and ours beside them; for several servers on a host.

All of them use the page cache, as YOLO's servers do (cache mode writethrough).
"""

import time
from pathlib import Path
from typing import Any

from bench.replay.host import Image
from bench.replay.node import HOST_DIRECTORY
from bench.replay.peers import _OVERLAY, _STOCK_CLUSTER, Nodes, Ours, Peer, chain_nodes, expand
from bootcache import qemuimg
from bootcache.cachelayout import Compression
from bootcache.storagedaemon import StorageDaemon, UnixListener


def base_of(image: Image) -> str:
    """Return the host's base file of an image, or where it is read over the network."""
    return str(image.answer.get('local_base') or image.base_uri)


class Normal(Peer):
    """Stock: an overlay whose base is a file on the host's disk, or read over the network."""

    name = 'normal boot'
    phases = '',
    capabilities = {'whole image before the boot': 'where it is local',
                    'needs the network afterwards': 'where it is not',
                    'shared by the servers of a host': 'where it is local',
                    'survives a restart of the host': 'where it is local',
                    'knows what a boot reads': False, 'bounded by a quota': False,
                    'live migration': True}

    def __init__(self) -> None:
        super().__init__(direct=False)

    def disk(self, host: Any, image: Image, phase: str) -> Nodes:
        """Make the overlay."""
        overlay = host.directory / _OVERLAY
        qemuimg.create_overlay(str(overlay), image.virtual_bytes, base_of(image), 'raw',
                               cluster_bytes=_STOCK_CLUSTER, open_backing=False)
        return chain_nodes(overlay, self.direct)


class OneThenOthers(Normal):
    """YOLO figure 8: the first server fills the page cache, the others are booted thereafter."""

    name = 'one then others'
    phases = '',


class Yolo(Peer):
    """YOLO figure 6: a FUSE service in front of the base, with the boot image in its memory.

    A qemu-storage-daemon's FUSE export stands for yolofs: a cache image on a tmpfs above the base.

    :param boot_images: for each image's id the boot image's file, loaded before the boots.
    """

    name = 'YOLO'
    phases = '',
    capabilities = {'whole image before the boot': 'where it is local',
                    'needs the network afterwards': 'where it is not',
                    'shared by the servers of a host': True,
                    'survives a restart of the host': 'loads boot images again',
                    'knows what a boot reads': True, 'bounded by a quota': False,
                    'live migration': 'not described'}

    def __init__(self, boot_images: dict[str, str]):
        super().__init__(direct=False)
        self.boot_images = boot_images
        self._daemon: StorageDaemon | None = None
        self._served: set[str] = set()

    @staticmethod
    def _seen(image: Image) -> Path:
        return Path(HOST_DIRECTORY) / 'y' / image.image_id

    def helper(self) -> int | None:
        """The service's process."""
        return self._daemon.pid() if self._daemon is not None else None

    def prepare(self, host: Any, image: Image, phase: str) -> None:
        """Have the service run, with this image's boot image."""
        directory = Path(HOST_DIRECTORY) / 'y'
        if self._daemon is None:
            directory.mkdir()
            self._daemon = StorageDaemon('yolo', str(directory),
                                         UnixListener(str(directory / 'nbd')))
            self._daemon.ensure_running()
        if image.image_id in self._served:
            return
        number = len(self._served)
        self._served.add(image.image_id)
        self._seen(image).touch()
        base: dict[str, Any] = {'driver': 'file', 'filename': base_of(image)}
        if base['filename'].startswith('nbd://'):
            address, port = image.answer['server']
            base = {'driver': 'nbd', 'export': image.answer['base_export'],
                    'server': {'type': 'inet', 'host': address, 'port': str(port)}}
        self._daemon.add_nodes(
            {'node-name': f'base{number}', 'driver': 'raw', 'read-only': True,
             'file': {**base, 'read-only': True}},
            {'node-name': f'boot{number}', 'driver': 'qcow2', 'read-only': True,
             'file': {'driver': 'file', 'read-only': True,
                      'filename': self.boot_images[image.image_id]}, 'backing': f'base{number}'})
        with self._daemon.session() as session:
            session.execute('block-export-add', type='fuse', id=f'fuse{number}',
                            node_name=f'boot{number}', mountpoint=str(self._seen(image)),
                            writable=False)

    def disk(self, host: Any, image: Image, phase: str) -> Nodes:
        """Make the overlay on what the service shows."""
        overlay = host.directory / _OVERLAY
        qemuimg.create_overlay(str(overlay), image.virtual_bytes, str(self._seen(image)), 'raw',
                               cluster_bytes=_STOCK_CLUSTER, open_backing=False)
        return chain_nodes(overlay, self.direct)

    def finish(self, host: Any, phase: str) -> None:
        """End the service with the first server that is finished: none runs any more."""
        if self._daemon is not None:
            self._daemon.stop()
            self._daemon, self._served = None, set()
        super().finish(host, phase)


class OursCold(Ours):
    """bootcache: the host fetches the cache image while its servers are being made."""

    name = 'bootcache'
    phases: tuple[str, ...] = 'cold',

    def __init__(self) -> None:
        super().__init__(direct=False)


class OursWarm(OursCold):
    """bootcache: the host has fetched the cache image before, onto its disk."""

    name = 'bootcache'
    phases: tuple[str, ...] = 'warm',

    def prepare(self, host: Any, image: Image, phase: str) -> None:
        """Warm the host, which has nothing until then."""
        super().prepare(host, image, OursCold.phases[0])
        host.make_overlay(image, host.directory / 'before')
        # The product may have begun with a cache image that was still arriving.
        while host.compute.needs.is_arriving(image.image_id):
            time.sleep(0.02)
        (host.directory / 'before').unlink()
        if phase in self.expanded:
            expand(host, image)


class OursInMemory(OursWarm):
    """bootcache: the host has the cache image in its memory tier."""

    name = 'bootcache in memory'
    phases = 'warm',


class OursColdCompressed(OursCold):
    """bootcache: the host fetches a compressed cache image."""

    name = 'bootcache zstd'
    phases = 'cold',
    compression = Compression.ZSTD


class OursWarmCompressed(OursWarm):
    """bootcache: the host has fetched a compressed cache image, which is as it came."""

    name = 'bootcache zstd'
    phases: tuple[str, ...] = 'warm',
    expanded: tuple[str, ...] = ()
    compression = Compression.ZSTD


class OursExpanded(OursWarmCompressed):
    """bootcache: the host has fetched a compressed cache image, and expanded it on its disk."""

    name = 'bootcache zstd'
    phases = 'expanded',
    expanded = 'expanded',


class OursInMemoryCompressed(OursWarmCompressed):
    """bootcache: the host has a compressed cache image in its memory tier, where it stays so."""

    name = 'bootcache zstd in memory'
    phases = 'warm',
