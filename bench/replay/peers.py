"""The ways of booting that are compared, each a small class; they run on the hosts.

A peer has phases that follow each other on the same hosts, such as cold and warm.
"""

import abc
import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.replay.host import HostChild, Image
from bootcache import exception, qemuimg
from bootcache.cachelayout import Compression
from nova_bootcache.cache.cachefiles import CacheEntry

Nodes = list[dict[str, Any]]
_OVERLAY = 'disk'
_STOCK_CLUSTER = 65536
_EXPANSION_SECONDS = 120


def chain_nodes(path: Path, direct: bool) -> Nodes:
    """Return the nodes of a disk with what its headers name below: what libvirt's QEMU opens.

    :param direct: O_DIRECT on every file of the chain, as Nova's default cache mode has it.
    """
    cache = {'direct': direct, 'no-flush': False}
    return [{'driver': 'file', 'node-name': 'disk-file', 'filename': str(path), 'cache': cache},
            {'driver': 'qcow2', 'node-name': 'disk', 'file': 'disk-file', 'cache': cache}]


class Peer(abc.ABC):
    """A way of booting.

    :cvar name: in reports.
    :cvar phases: in their order; what is left on the hosts by one is there for the next.
    :cvar capabilities: what it does and does not do, for the report.
    :cvar compression: of the cache images that it is measured with, where that makes a difference.
    """

    name: str
    phases: tuple[str, ...]
    capabilities: dict[str, bool | str]
    compression = Compression.NONE

    def __init__(self, direct: bool = True):
        self.direct = direct

    def label(self, phase: str) -> str:
        """The name of peer and phase in reports."""
        return f'{self.name} {phase}'.strip()

    def prepare(self, host: HostChild, image: Image, phase: str) -> None:
        """Start what runs before a server is asked for. Not timed."""
        return None

    @abc.abstractmethod
    def disk(self, host: HostChild, image: Image, phase: str) -> Nodes:
        """Make a server's disk; the nodes to open, the topmost last. Timed."""

    @contextlib.contextmanager
    def watching(self, host: HostChild, phase: str) -> Iterator[None]:
        """Do something while the guest boots."""
        yield

    def finish(self, host: HostChild, phase: str) -> None:
        """Remove the server's disk. Not timed."""
        (host.directory / _OVERLAY).unlink()


class FullCopy(Peer):
    """Stock Nova: the whole image is downloaded and converted, then all is local.

    Without the check of the image's hash that Nova's Glance client makes: in its favour.
    """

    name = 'full copy'
    phases: tuple[str, ...] = '',
    capabilities = {
        'whole image before the boot': True, 'needs the network afterwards': False,
        'shared by the servers of a host': True, 'survives a restart of the host': True,
        'knows what a boot reads': 'copies all', 'bounded by a quota': False,
        'live migration': True}

    def disk(self, host: HostChild, image: Image, phase: str) -> Nodes:
        """Download, convert, make the overlay."""
        part, base = host.directory / 'base.part', host.directory / 'base'
        subprocess.run(['curl', '-sS', '--fail', '-o', str(part), image.file_url], check=True)
        subprocess.run(['qemu-img', 'convert', '-t', 'none' if self.direct else 'writeback', '-O',
                        'raw', '-f', image.file_format, str(part), str(base)], check=True)
        part.unlink()
        overlay = host.directory / _OVERLAY
        qemuimg.create_overlay(str(overlay), image.virtual_bytes, str(base), 'raw',
                               cluster_bytes=_STOCK_CLUSTER)
        return chain_nodes(overlay, self.direct)


class LocalRaw(FullCopy):
    """The full base is on the host already: the yardstick that nothing beats."""

    name = 'local raw'
    phases: tuple[str, ...] = '',

    def prepare(self, host: HostChild, image: Image, phase: str) -> None:
        """Put the base there, past the network."""
        os.symlink(image.answer['raw_path'], host.directory / 'base')

    def disk(self, host: HostChild, image: Image, phase: str) -> Nodes:
        """Make the overlay."""
        overlay = host.directory / _OVERLAY
        qemuimg.create_overlay(str(overlay), image.virtual_bytes,
                               str(host.directory / 'base'), 'raw', cluster_bytes=_STOCK_CLUSTER)
        return chain_nodes(overlay, self.direct)


class OnDemand(Peer):
    """SC13 figure 2: a qcow2 overlay whose base is read over the network, nothing is kept."""

    name = 'on demand'
    phases = '',
    capabilities = {
        'whole image before the boot': False, 'needs the network afterwards': True,
        'shared by the servers of a host': False,
        'survives a restart of the host': 'keeps nothing', 'knows what a boot reads': False,
        'bounded by a quota': 'keeps nothing', 'live migration': True}

    def disk(self, host: HostChild, image: Image, phase: str) -> Nodes:
        """Make the overlay."""
        overlay = host.directory / _OVERLAY
        qemuimg.create_overlay(str(overlay), image.virtual_bytes, image.base_uri, 'raw',
                               cluster_bytes=_STOCK_CLUSTER, open_backing=False)
        return chain_nodes(overlay, self.direct)


class Sc13(Peer):
    """SC13's scheme as published: copy-on-read into a cache image of 512-byte clusters.

    The first boot fills it (section 3.2, figure 5), in the host's memory (figure 7); later ones
    read it. QEMU's own copy-on-read filter stands for the paper's patch, and is dropped at the
    quota. Not by O_DIRECT: the cache's clusters are smaller than a memory page.

    :param cluster_bytes: of the cache image.
    :param quota: bytes that its file may have, None for no limit.
    """

    name = 'SC13'
    phases: tuple[str, ...] = 'cold', 'warm'
    capabilities = {
        'whole image before the boot': False, 'needs the network afterwards': True,
        'shared by the servers of a host': 'when it is warm',
        'survives a restart of the host': 'once it is moved to its disk',
        'knows what a boot reads': False, 'bounded by a quota': True,
        'live migration': 'not described'}

    def __init__(self, cluster_bytes: int = 512, quota: int | None = None):
        super().__init__(direct=False)
        self.cluster_bytes = cluster_bytes
        self.quota = quota

    def _full(self, cache: Path) -> bool:
        return self.quota is not None and cache.stat().st_size >= self.quota

    def _cache_node(self, cache: Path) -> dict[str, Any]:
        return {'driver': 'qcow2', 'read-only': False, 'node-name': 'cache',
                'file': {'driver': 'file', 'filename': str(cache)}}

    def disk(self, host: HostChild, image: Image, phase: str) -> Nodes:
        """Make the cache image where there is none, and the overlay."""
        cache, overlay = host.directory / 'cache.qcow2', host.directory / _OVERLAY
        if not cache.exists():
            qemuimg.create_overlay(str(cache), image.virtual_bytes, image.base_uri, 'raw',
                                   cluster_bytes=self.cluster_bytes, open_backing=False)
        qemuimg.create_overlay(str(overlay), image.virtual_bytes, str(cache), 'qcow2',
                               cluster_bytes=_STOCK_CLUSTER, open_backing=False)
        below = [self._cache_node(cache)]
        if not self._full(cache):
            below.append({'driver': 'copy-on-read', 'node-name': 'fill', 'file': 'cache'})
        file, top = chain_nodes(overlay, self.direct)
        return [*below, file, {**top, 'backing': below[-1]['node-name']}]

    @contextlib.contextmanager
    def watching(self, host: HostChild, phase: str) -> Iterator[None]:
        """Keep the quota: look at the file's size, and take the filter out when it is reached."""
        cache = host.directory / 'cache.qcow2'
        if self.quota is None or self._full(cache):
            yield
            return
        over = threading.Event()

        def watch() -> None:
            while not over.wait(0.005):
                if self._full(cache):
                    _file, top = chain_nodes(host.directory / _OVERLAY, self.direct)
                    with contextlib.suppress(exception.StorageDaemonError), \
                            host.chain.session() as session:
                        session.execute('blockdev-reopen', options=[{**top, 'backing': 'cache'}])
                    return

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def expand(host: HostChild, image: Image) -> None:
    """Have a host expand a cache image that came compressed, as its upkeep does, and wait.

    :raises RuntimeError: if it does not come to that.
    """
    deadline = time.monotonic() + _EXPANSION_SECONDS
    # While what was expanded is put into its place nothing is known of it.
    while not _is_expanded(host.compute.cache.known(image.image_id)):
        if time.monotonic() > deadline:
            raise RuntimeError(f'{host.name}: a compressed cache image is not expanded')
        host.compute.expansions.look()
        time.sleep(0.02)


def _is_expanded(entry: CacheEntry | None) -> bool:
    return entry is not None and entry.cache_image is not None and (
        entry.expanded or entry.cache_image.compression is Compression.NONE)


class Ours(Peer):
    """bootcache: the product's own host object makes the disk.

    ``cold``: the storage node has the cache image, the host fetches it. ``warm``: the host has it,
    as it is once nobody waits any more.

    :cvar expanded: phases before which a compressed cache image is expanded.
    """

    expanded: tuple[str, ...] = 'warm',

    name = 'bootcache'
    phases: tuple[str, ...] = 'cold', 'warm'
    capabilities = {
        'whole image before the boot': False,
        'needs the network afterwards': 'until it has settled',
        'shared by the servers of a host': True, 'survives a restart of the host': True,
        'knows what a boot reads': True, 'bounded by a quota': True, 'live migration': True}

    def prepare(self, host: HostChild, image: Image, phase: str) -> None:
        """Have the driver and its gateway run; what was on its way has arrived."""
        assert host.compute.serving.is_on
        if not host.compute.arrivals.wait(image.image_id, 60):
            raise RuntimeError(f'{host.name}: a cache image does not arrive')
        if phase in self.expanded:
            expand(host, image)

    def disk(self, host: HostChild, image: Image, phase: str) -> Nodes:
        """Let the product make it."""
        overlay = host.directory / _OVERLAY
        host.make_overlay(image, overlay)
        return chain_nodes(overlay, self.direct)


class OursCompressed(Ours):
    """bootcache with compressed cache images: fetched, read as they came, and once expanded."""

    name = 'bootcache zstd'
    phases: tuple[str, ...] = 'cold', 'warm', 'expanded'
    expanded = 'expanded',
    compression = Compression.ZSTD


class OursFirst(Ours):
    """bootcache where nobody has booted the image yet: the host's growing store fills."""

    name = 'bootcache first'
    phases = '',
    capabilities = {**Ours.capabilities, 'knows what a boot reads': False}

    def prepare(self, host: HostChild, image: Image, phase: str) -> None:
        """Have the driver run; the storage service has no cache image to offer."""
        super().prepare(host, image, phase)
        host.service.answers[image.image_id] = {
            name: value for name, value in image.answer.items()
            if name not in ('cache_image', 'cache_export')} | {'action': 'cold'}


def _kinds(kind: type[Peer]) -> Iterator[type[Peer]]:
    for one in kind.__subclasses__():
        if 'name' in vars(one) or 'phases' in vars(one):
            yield one
        yield from _kinds(one)


def capabilities() -> dict[str, dict[str, bool | str]]:
    """Return what each peer does and does not do, by its name with each phase.

    Of all peers whose modules are imported.
    """
    return {f'{peer.name} {phase}'.strip(): peer.capabilities
            for peer in _kinds(Peer)  # type: ignore[type-abstract]
            for phase in peer.phases}
