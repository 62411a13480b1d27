"""Hosts boot servers from snapshots: what travels, and how long until their disks can be read.

Each host boots one, of a snapshot of its own, all at the same time: one host, or many on which a
deployment is resumed (papers/003, sections 3.2 and 5.5). A snapshot is of a server that has written
to some of what its image's boots read, and elsewhere. The storage service and the hosts are the
product's; the boot is a recorded one, which is replayed. Links are shaped. Every way has to give
the guest the same bytes. Nova, RPC and TLS are not in it, nor is Glance but for a server of its
files.
"""

import contextlib
import dataclasses
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.replay import netns, peers
from bench.replay.children import Child, ChildError
from bench.replay.host import HostChild, Image
from bench.replay.netns import Network
from bench.replay.node import HOST_DIRECTORY
from bench.replay.setting import extents_of
from bench.replay.trace import Trace
from bench.snapshots import bootfigures
from bench.snapshots.bootfigures import (
    ARRIVES,
    FETCHED,
    MADE,
    MADE_EXPANDED,
    RESUMED,
    STOCK,
    WAYS,
)
from bench.snapshots.servers import qemu, virtual_bytes
from bench.snapshots.storageside import StorageSide
from bootcache import qemuimg
from bootcache.tier import Medium
from bootcache.workingset import Extent
from nova_bootcache.asking import client
from nova_bootcache.gateway import arrivingimage

LINKS = 1_000_000_000, 10_000_000_000
# Of the recorded think times: a guest that boots four times as fast as one without KVM.
_THINKS = 0.25
_GO_SECONDS = 0.1
_PATIENCE = 1800
# Where a host waits for no disk.
_MEMORY = '/dev/shm'
_NOISE_BYTES = 512 << 10


def warm(host: HostChild, image: Image, expands: bool) -> None:
    """Have a host get a cache image before anybody asks for a server, as one that is warmed.

    :param expands: whether it is expanded then.
    :raises RuntimeError: if it does not come to that.
    """
    host.service.answers[image.image_id] = image.answer
    assert host.compute.serving.is_on
    host.compute.fetches.fetch_offered(client.parse(image.image_id, image.answer), Medium.DISK)
    if expands:
        peers.expand(host, image)


def settled(host: HostChild, image_id: str, way: str) -> None:
    """Wait until all has come that comes, and see that it came in the way that is measured.

    :raises RuntimeError: if it has not, or came in another way.
    """
    if way == STOCK:
        return
    if not host.compute.arrivals.wait(image_id, _PATIENCE):
        raise RuntimeError(f'{host.name}: a cache image does not arrive')
    entry = host.compute.cache.entry(image_id)
    if entry is None or entry.cache_image is None \
            or entry.expanded != (way in (MADE, MADE_EXPANDED)):
        raise RuntimeError(f'{host.name}: the cache image is not here as it should be: {way}')


def make_snapshot(image: str, path: str, wrote: Sequence[Extent], home: str) -> None:
    """Make the image of a server's disk, as stock Nova stores it: a qcow2 that stands alone.

    What the server wrote does not become smaller by compression.

    :param home: a directory, of temporary files.
    """
    overlay, noise = f'{home}/overlay', f'{home}/noise'
    Path(noise).write_bytes(os.urandom(_NOISE_BYTES))
    qemuimg.create_overlay(overlay, virtual_bytes(image, 'qcow2'), image, 'qcow2',
                           cluster_bytes=65536)
    subprocess.run(['qemu-io', '-f', 'qcow2', overlay], text=True, check=True,
                   stdout=subprocess.DEVNULL, input='\n'.join(
                       f'write -q -s {noise} {extent.offset} {extent.length}' for extent in wrote))
    qemu('qemu-img', 'convert', '-f', 'qcow2', '-O', 'qcow2', overlay, path)
    for left in (overlay, noise):
        os.unlink(left)


@dataclasses.dataclass(frozen=True)
class _Snapshot:
    """A snapshot that the storage node has.

    :ivar image: for hosts.
    :ivar sizes: in bytes, as of ``bootfigures.line``.
    :ivar building: in seconds, likewise.
    """

    image: Image
    sizes: dict[str, int]
    building: dict[str, float]


class Boots:
    """A storage node and hosts, on which ways of booting are measured one after the other.

    :param home: a short directory, of the storage node's files.
    :param image: path of a qcow2.
    :param profile: the boot of which its cache image is built.
    :param played: the boot that is replayed.
    """

    def __init__(self, network: Network, home: str, media: str, image: str, profile: Trace,
                 played: Trace):
        self._network, self._home, self._image = network, home, image
        self._played = played
        self._extents = extents_of(profile)
        self.storage = Child(network.storage, functools.partial(
            StorageSide, f'{home}/n', network.address(network.storage)))
        self.hosts = [Child(name, functools.partial(HostChild, name, f'{media}/h{number}'))
                      for number, name in enumerate(network.hosts)]
        self._digests: dict[str, int] = {}
        parent_id = str(uuid.uuid4())
        self.storage.call('add', parent_id, image)
        self.storage.call('learn', parent_id, self._extents)
        self._parent = Image(parent_id, self.storage.call('build', parent_id)['answer'], 'qcow2')

    def snapshot(self, differing: int, changed: int, seed: int) -> _Snapshot | None:
        """Make a snapshot, and have its cache image built.

        :param differing: bytes of what boots read that its server has written.
        :param changed: bytes that it has written in all.
        :returns: None if the product has hosts get all of its cache image.
        """
        path = f'{self._home}/snapshot-{seed}'
        size = self._parent.virtual_bytes
        wrote = bootfigures.written(self._extents, size, differing, changed, seed)
        make_snapshot(self._image, path, wrote, self._home)
        image_id = str(uuid.uuid4())
        self.storage.call('add', image_id, path, self._parent.image_id)
        built = self.storage.call('build', image_id)
        answer = built['answer']
        if 'difference' not in answer:
            print(f'{differing} bytes of the cache image differ: hosts get all of it, as it is too'
                  f' large, or too much of it differs: {answer["cache_image"]}', file=sys.stderr)
            return None
        info = answer['cache_image']
        return _Snapshot(Image(image_id, answer, 'qcow2'), {
            'differing': bootfigures.differing(wrote, self._extents, info['cluster_bytes'], size),
            'changed': sum(extent.length for extent in wrote), 'data': info['data_bytes'],
            'cache': info['bytes'], 'difference': answer['difference']['bytes'],
            'image': os.path.getsize(path)}, {
                'cache': info['build_seconds'], 'difference': built['difference_seconds']})

    def boot(self, snapshots: Sequence[_Snapshot], way: str, link: int) -> dict[str, Any]:
        """Boot a server from each snapshot in one of the ways, on hosts that have nothing else.

        :param snapshots: at most one for each host.
        :param link: of each link, bits a second.
        :returns: a run of the report.
        :raises RuntimeError: if a guest read other bytes than in another way, or a disk was made in
            another way.
        """
        if way == ARRIVES and not all(arrivingimage.is_worth_it(one.sizes['cache'])
                                      for one in snapshots):
            raise RuntimeError('a cache image is too small to be read from while it comes')
        self._network.shape(link)
        hosts = list(zip(self.hosts, [self._offered(one.image, way) for one in snapshots],
                         strict=False))
        peer = peers.FullCopy() if way == STOCK else peers.Ours()
        try:
            if way in (MADE, MADE_EXPANDED):
                _each(hosts, lambda image: ('call', warm, self._parent, way == MADE_EXPANDED))
            _each(hosts, lambda image: ('prepare', peer, image, 'cold'))
            sent = [self._sent()]
            go = time.monotonic() + _GO_SECONDS * len(hosts)
            booted = _each(hosts, lambda image: ('boot', 'cold', self._played, _THINKS, 0.0, True,
                                                 go))
            sent.append(self._sent())
            _each(hosts, lambda image: ('call', settled, image.image_id, way))
            sent.append(self._sent())
            _each(hosts, lambda image: ('finish', 'cold'))
        finally:
            _each(hosts, lambda image: ('reset',))
        for (_host, image), boot in zip(hosts, booted, strict=True):
            if boot.digest != self._digests.setdefault(image.image_id, boot.digest):
                raise RuntimeError(f'{way}: the guest has read other bytes than in another way')
        run = bootfigures.line(
            way, link, chains=[boot.disk_seconds for boot in booted],
            booted=[boot.seconds for boot in booted], sent=sent[2] - sent[0],
            sent_until_booted=sent[1] - sent[0], sizes=[one.sizes for one in snapshots],
            building=[one.building for one in snapshots], load=os.getloadavg()[0])
        print(run, file=sys.stderr, flush=True)
        return run

    @staticmethod
    def _offered(image: Image, way: str) -> Image:
        # Of what the storage service has not read since it started, servers do not read while it
        # comes; nor does one whose boot is watched.
        return Image(image.image_id, {**image.answer, 'verified': False}, image.file_format) \
            if way == FETCHED else image

    def _sent(self) -> int:
        return self._network.sent(self._network.storage)

    def close(self) -> None:
        """End the storage node and the hosts."""
        for host in self.hosts:
            host.close()
        with contextlib.suppress(Exception):
            self.storage.call('stop', seconds=20)
        self.storage.close()


def _each(hosts: Sequence[tuple[Child, Image]],
          call: Callable[[Image], tuple[Any, ...]]) -> list[Any]:
    """Have all hosts do something at the same time, and wait for all, also if some fail.

    :param call: a host's method with its arguments, for the image that it boots.
    :raises ChildError: the first of those that fail.
    """
    for host, image in hosts:
        host.send(*call(image))
    found, failed = list[Any](), None
    for host, _image in hosts:
        try:
            found.append(host.result(_PATIENCE))
        except ChildError as error:
            failed = failed or error
    if failed is not None:
        raise failed
    return found


@contextlib.contextmanager
def made(home: str, image: str, traces: Sequence[Trace],
         media: str = _MEMORY, hosts: int = 1) -> Iterator[Boots]:
    """Make a storage node and hosts, and remove them whatever happens.

    :param home: a short directory, of the storage node's files.
    :param traces: the boot of which the image's cache image is built, and the one to be replayed.
    :param media: where hosts have their files.
    """
    host_files = tempfile.mkdtemp(prefix='bcr-snap-', dir=media)
    with netns.network(hosts, 0) as network:
        boots: Boots | None = None
        try:
            # Where a host sees its own files.
            Path(HOST_DIRECTORY).mkdir(exist_ok=True)
            boots = Boots(network, home, host_files, image, *traces)
            yield boots
        finally:
            if boots is not None:
                boots.close()
            network.remove()
            shutil.rmtree(host_files, ignore_errors=True)
            with contextlib.suppress(OSError):
                Path(HOST_DIRECTORY).rmdir()


def measured(home: str, image: str, traces: Sequence[Trace], differing: Sequence[int],
             changed: int, repeats: int, links: Sequence[int] = LINKS) -> list[dict[str, Any]]:
    """Measure all ways, and return the figures of each run.

    :param differing: bytes of what boots read that a snapshot's server has written, of each.
    :param changed: bytes that it has written in all, if that is more.
    """
    runs = []
    with made(home, image, traces) as boots:
        for number, size in enumerate(differing):
            snapshot = boots.snapshot(size, max(changed, size), number)
            for repeat in range(repeats if snapshot is not None else 0):
                # Other work of this machine is not always that of the same way.
                for link in links:
                    for way in WAYS if repeat % 2 == 0 else WAYS[::-1]:
                        assert snapshot is not None
                        runs.append(boots.boot([snapshot], way, link))
    return runs


def resumed(home: str, image: str, traces: Sequence[Trace], servers: int, differing: int,
            changed: int, repeats: int, link: int = LINKS[0]) -> list[dict[str, Any]]:
    """Measure how a deployment is resumed elsewhere, and return the figures of each run.

    Its hosts have their files beside the storage node's: memory for as many full copies is
    not here.

    :param servers: of the deployment, each with a snapshot of its own.
    :param differing: bytes of what boots read that each has written.
    :param changed: bytes that each has written in all.
    :returns: none if there is no room, or if hosts get all of a snapshot's cache image, as is told.
    """
    runs: list[dict[str, Any]] = []
    # A snapshot, and on its host a download of it and what that is converted to.
    needed = servers * 3 * (int(json.loads(qemu(
        'qemu-img', 'measure', '--output=json', '-O', 'qcow2', image))['required']) + changed)
    if (free := shutil.disk_usage(home).free) < needed:
        print(f'{servers} servers are not resumed: that takes {needed / 1e9:.0f} GB in {home},'
              f' where {free / 1e9:.0f} GB are free; ask for fewer with --servers', file=sys.stderr)
        return runs
    with made(home, image, traces, home, servers) as boots:
        snapshots = [one for number in range(servers)
                     if (one := boots.snapshot(differing, changed, number)) is not None]
        for repeat in range(repeats if len(snapshots) == servers else 0):
            runs += [boots.boot(snapshots, way, link)
                     for way in (RESUMED if repeat % 2 == 0 else RESUMED[::-1])]
    return runs
