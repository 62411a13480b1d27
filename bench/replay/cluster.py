"""One storage node and its hosts: made, used for boots that are counted, and removed."""

import contextlib
import dataclasses
import functools
import hashlib
import os
import re
import shutil
import statistics
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

from bench.replay import children, netns, tap
from bench.replay.children import Child
from bench.replay.host import Boot, HostChild, Image, busy_since, machine_busy
from bench.replay.node import HOST_DIRECTORY, PRODUCTS_OWN, Node
from bench.replay.peers import Peer
from bench.replay.tap import Traffic
from bench.replay.trace import Trace
from bootcache.cachelayout import Compression
from bootcache.workingset import Extent

_GO_SECONDS = 0.3
# In which all hosts' processes have started, on a machine that may be busy.
_PREPARE_SECONDS = 600
_Answer = TypeVar('_Answer')
_Arguments = TypeVarTuple('_Arguments')


@dataclasses.dataclass(frozen=True)
class Run:
    """One peer's phase, once, on some hosts at the same time.

    :ivar label: of the peer and the phase.
    :ivar boots: of each host.
    :ivar traffic: what the storage node was asked for, by kind of export.
    :ivar copied: bytes of whole images that it sent.
    :ivar busy: part of the time that this machine's CPUs worked.
    """

    label: str
    boots: list[Boot]
    traffic: dict[str, Traffic]
    copied: int
    busy: float

    @property
    def seconds(self) -> float:
        """The mean of the hosts' boot times, as the papers have it."""
        return statistics.mean(boot.seconds for boot in self.boots)

    def to_json(self) -> dict[str, Any]:
        """Return the run's figures; all hosts' times, as quantiles hide much."""
        mean = statistics.mean
        return {
            'label': self.label, 'hosts': len(self.boots), 'seconds': round(self.seconds, 4),
            'slowest': round(max(boot.seconds for boot in self.boots), 4),
            'disk_seconds': round(mean(boot.disk_seconds for boot in self.boots), 4),
            'each': [round(boot.seconds, 3) for boot in self.boots],
            'player_cpu_seconds': round(mean(boot.player_cpu_seconds for boot in self.boots), 4),
            'chain_cpu_seconds': round(mean(boot.chain_cpu_seconds for boot in self.boots), 4),
            'host_cpu_seconds': round(mean(boot.host_cpu_seconds for boot in self.boots), 4),
            'host_bytes': round(mean(boot.disk_bytes for boot in self.boots)),
            'digests': sorted({boot.digest for boot in self.boots}),
            'traffic': {kind: dataclasses.asdict(one) for kind, one in self.traffic.items()},
            'copied_bytes': self.copied, 'machine_busy': round(self.busy, 3)}


class Cluster:
    """A storage node and hosts; see :func:`cluster`."""

    def __init__(self, network: netns.Network, directory: Path, storage: Path,
                 dilation: float):
        self.network = network
        self.directory = directory
        self.storage = storage
        self.node = Child(network.storage, lambda: Node(str(storage)))
        self.hosts = [
            Child(name, functools.partial(HostChild, name, str(directory / name), dilation))
            for name in network.hosts]
        self._tap = tap.Tap(storage / 'tap.log')

    def add_image(self, path: Path, image_format: str, virtual_bytes: int,
                  extents: Sequence[Extent] = (), quota: int = 1 << 30,
                  cluster_bytes: int = 65536, place: Path | None = None,
                  raw_copy: bool = True,
                  compression: Compression = PRODUCTS_OWN) -> Image:
        """Put an image onto the storage node, with a cache image of these extents if there are any.

        :param path: of the image; it stays there.
        :param place: directory of the cache image, if not the storage node's own.
        :param raw_copy: whether to make the file that local raw boots from.
        :param compression: of the cache image's clusters.
        """
        image_id = str(uuid.UUID(hashlib.sha256(f'{path}{time.monotonic_ns()}'.encode())
                                 .hexdigest()[:32]))
        answer = self.node.call('add_image', image_id, str(path), image_format, virtual_bytes)
        if extents:
            answer = self.node.call('build', image_id, list(extents), quota, cluster_bytes,
                                    str(place or self.storage), compression)
        if not raw_copy:
            return Image(image_id, answer, image_format)
        raw = self.storage / f'{image_id}.raw'
        subprocess.run(['qemu-img', 'convert', '-f', image_format, '-O', 'raw', str(path),
                        str(raw)], check=True)
        return Image(image_id, {**answer, 'raw_path': str(raw)}, image_format)

    def run(self, peer: Peer, images: Sequence[Image], traces: Sequence[Trace], hosts: int, *,
            scale: float = 1.0, overhead: float = 0.0, verify: bool = True,
            patience: float = 7200, seen: Callable[[Run], None] = lambda run: None) -> list[Run]:
        """Boot a server on each of some hosts at the same time, in each of a peer's phases.

        :param images: of the hosts, in turn, each with its trace.
        :param scale: factor of the think times.
        :param overhead: of the player, in seconds a request; see ``check.calibrate``.
        :param patience: seconds for one phase.
        :param seen: called with each phase's run as soon as that is over.
        """
        used = self.hosts[:hosts]
        found = []
        try:
            for phase in peer.phases:
                for index, host in enumerate(used):
                    host.send('prepare', peer, images[index % len(images)], phase)
                children.results(used, _PREPARE_SECONDS)
                self._tap.read()
                self.node.call('sent')
                go = time.monotonic() + _GO_SECONDS
                for index, host in enumerate(used):
                    host.send('boot', phase, traces[index % len(traces)], scale, overhead, verify,
                              go)
                before = machine_busy()
                boots = children.results(used, patience)
                busy = busy_since(before)
                found.append(Run(peer.label(phase), boots, self.traffic(hosts),
                                 sum(self.node.call('sent')), busy))
                seen(found[-1])
                for host in used:
                    host.send('finish', phase)
                children.results(used, 60)
        finally:
            for host in used:
                host.send('reset')
            children.results(used, 120)
        return found

    def everywhere(self, hosts: int, function: Callable[[HostChild, int, *_Arguments], _Answer],
                   *arguments: *_Arguments, patience: float = 600) -> list[_Answer]:
        """Call a module's function on some hosts at the same time; what it gives on each.

        :param function: gets the host, its number from 0 on, and the arguments.
        :param patience: seconds for all of them.
        """
        used = self.hosts[:hosts]
        for number, host in enumerate(used):
            host.send('call', function, number, *arguments)
        return children.results(used, patience)

    def traffic(self, hosts: int) -> dict[str, Traffic]:
        """Return what the storage node was asked for since the last look, by kind of export.

        :param hosts: how many have asked; what their watches read is left out.
        """
        # Of a tap that is gone nothing would be counted.
        self.node.call('check_tap')
        return tap.traffic(self._tap.read(), {
            one for host in self.hosts[:hosts] for one in host.call('watched')})

    def reset(self, hosts: int) -> None:
        """Make some hosts such as never saw an image."""
        used = self.hosts[:hosts]
        for host in used:
            host.send('reset')
        children.results(used, 120)

    def close(self) -> None:
        """End the storage node and the hosts."""
        for host in self.hosts:
            host.close()
        with contextlib.suppress(children.ChildError, OSError):
            self.node.call('stop', seconds=20)
        self.node.close()


def remove_stale(place: Path) -> None:
    """Remove the directories of runs that were killed."""
    for path in place.glob('bcr-*'):
        match = re.fullmatch(r'bcr-(\d+)-(hosts|node|seen)', path.name)
        if match is not None and not Path('/proc', match.group(1)).exists():
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def cluster(hosts: int, rate: int, media: Path = Path('/dev/shm'), storage: Path = Path('/tmp'),
            dilation: float = 1.0, machines: int = 0) -> Iterator[Cluster]:
    """Make a storage node and hosts, and remove all of it whatever happens.

    :param rate: of each link, bits a second; 0 for no limit.
    :param media: where the hosts' files are. In memory the hosts do not wait for one common disk,
        which real hosts do not have.
    :param storage: where the storage node's files are.
    :param dilation: see :class:`bench.replay.host.HostChild`.
    :param machines: how many others have a place in the network.
    """
    for place in {media, storage, Path(HOST_DIRECTORY).parent}:
        remove_stale(place)
    directory, storage = media / f'bcr-{os.getpid()}-hosts', storage / f'bcr-{os.getpid()}-node'
    with netns.network(hosts, rate, machines) as network:
        made: Cluster | None = None
        try:
            for path in (directory, storage):
                path.mkdir()
            # The place where each host sees its own files; the same for all, so it is common.
            Path(HOST_DIRECTORY).mkdir(exist_ok=True)
            made = Cluster(network, directory, storage, dilation)
            yield made
        finally:
            try:
                if made is not None:
                    made.close()
            finally:
                network.remove()
                for path in (directory, storage):
                    shutil.rmtree(path, ignore_errors=True)
                with contextlib.suppress(OSError):
                    Path(HOST_DIRECTORY).rmdir()
