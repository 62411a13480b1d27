"""A compute host: the product's own host object, and a daemon that opens chains as QEMU would.

Runs in a child, one a host, in the host's namespace; its files are at the same place as on every
other host. The clock of a boot runs from ``go``: making the disk counts, starting daemons does
not, as nova-compute and QEMU's own start have nothing to do with where the blocks come from.
"""

import contextlib
import dataclasses
import logging
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from oslo_config import cfg

from bench.replay import netns, player
from bench.replay.node import GATEWAY_SOCKET, HOST_DIRECTORY, IMAGE_PORT
from bench.replay.tap import Seen
from bench.replay.trace import Trace
from bootcache import conf as bootcache_conf
from bootcache.connectors import probe
from bootcache.connectors.starter import Starter
from bootcache.rpc.messages import ExchangeCache, HoldingsAnswer, Message, PlanBoot, ReportHoldings
from bootcache.storagedaemon import StorageDaemon, UnixListener
from nova_bootcache import conf as nova_conf
from nova_bootcache.asking import client
from nova_bootcache.asking.placement import Server
from nova_bootcache.chains.computehost import ComputeHost
from nova_bootcache.tiers import fetches

_TICKS = os.sysconf('SC_CLK_TCK')
EXPORT = 'disk'
_RUN_DIRECTORY = f'{HOST_DIRECTORY}/g'
# After which Ceph knows that a reader was killed, at most.
_WATCHED_SECONDS = 60


@dataclasses.dataclass(frozen=True)
class Image:
    """An image as hosts know it.

    :ivar image_id: a UUID.
    :ivar answer: what the storage service says to a host that asks for it.
    :ivar file_format: of the file that stock Nova downloads.
    """

    image_id: str
    answer: dict[str, Any]
    file_format: str

    @property
    def virtual_bytes(self) -> int:
        """Size of the base."""
        return int(self.answer['virtual_bytes'])

    @property
    def base_uri(self) -> str:
        """Where the base is, for whoever reads it without a gateway."""
        address, port = self.answer['server']
        return f'nbd://{address}:{port}/{self.answer["base_export"]}'

    @property
    def file_url(self) -> str:
        """Where its file is."""
        return f'http://{netns.STORAGE_ADDRESS}:{IMAGE_PORT}/{self.image_id}'


class Service:
    """Stands for the storage service: answers what it would, without the bus."""

    def __init__(self) -> None:
        self.answers: dict[str, dict[str, Any]] = {}
        # From whom cache images are to be had, by image.
        self.exchanged: dict[str, dict[str, Any]] = {}

    def send(self, message: Message[Any]) -> Any:
        """Answer as the storage service does."""
        if isinstance(message, PlanBoot):
            return self.answers[message.image_id]
        if isinstance(message, ExchangeCache):
            return self.exchanged.get(message.image_id)
        return HoldingsAnswer() if isinstance(message, ReportHoldings) else None


def daemon_cpu(pid: int | None) -> float:
    """Return the CPU seconds of a process so far; 0 if it is gone."""
    try:
        fields = Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _connectors() -> list[int]:
    """Return the process ids of this host's connectors."""
    found = []
    for path in Path(_RUN_DIRECTORY, 'connectors').glob('*.pid'):
        # It may end at any time.
        with contextlib.suppress(OSError, ValueError):
            found.append(int(path.read_text()))
    return found


def machine_busy() -> tuple[float, float]:
    """Return the ticks that this machine's CPUs worked, and all of them."""
    ticks = [int(field) for field in Path('/proc/stat').read_text().split('\n', 1)[0].split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def busy_since(before: tuple[float, float]) -> float:
    """Return the part of the time since a look by ``machine_busy`` that the CPUs worked."""
    after = machine_busy()
    return (after[0] - before[0]) / max(1e-9, after[1] - before[1])


def _nameless_bytes(pid: int) -> int:
    """Return what a process's files have that have no name any more."""
    found = 0
    for path in Path(f'/proc/{pid}/fd').iterdir():
        # It may close one at any time.
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(path).endswith(' (deleted)'):
                found += path.stat().st_blocks * 512
    return found


class _Said(logging.Handler):
    """Keeps the last of what the product said of going the stock way."""

    last = 'the product goes the stock way'

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        if 'stock way' in record.getMessage():
            self.last = record.getMessage()


@dataclasses.dataclass(frozen=True)
class Boot:
    """What came of one boot on a host.

    :ivar seconds: from ``go`` to the boot's end.
    :ivar disk_seconds: from ``go`` until the disk was made: fetching or copying included.
    :ivar player_cpu_seconds: of the player.
    :ivar chain_cpu_seconds: of the daemon that stands for QEMU's block layer.
    :ivar host_cpu_seconds: of the gateway or what a peer has instead, and of making the disk.
    :ivar disk_bytes: allocated by the peer's files on the host at the end.
    :ivar digest: of all that was read.
    """

    seconds: float
    disk_seconds: float
    player_cpu_seconds: float
    chain_cpu_seconds: float
    host_cpu_seconds: float
    disk_bytes: int
    digest: int
    issued: list[float]
    completed: list[float]


class _Watched:
    """What this host's watch reads of bases, for as long as they may be read: no boot reads that.

    :ivar seen: of all that it has read so far.
    """

    def __init__(self) -> None:
        self.seen: set[Seen] = set()
        begin = probe._Read._begin

        def counted(read: probe._Read) -> None:
            begin(read)
            self.seen.add(Seen(read._handle.get_export_name(), probe.READ_BYTES * read._place,
                               probe.READ_BYTES))

        probe._Read._begin = counted  # type: ignore[method-assign,assignment]


class HostChild:
    """One host; made in its child.

    :param name: for the storage service.
    :param directory: of its files, whatever their medium.
    :param dilation: how many times slower than the modelled cloud all is. The product's own limits
        of time are stretched alike, as it would give up in the midst of what is slow on purpose.
    """

    def __init__(self, name: str, directory: str, dilation: float = 1.0):
        self.name = name
        self.dilation = dilation
        fetches.GRACE_SECONDS = round(fetches.GRACE_SECONDS * dilation)
        fetches._SLOWEST = round(fetches._SLOWEST / dilation)
        os.makedirs(directory, exist_ok=True)
        netns.see_as(directory, HOST_DIRECTORY)
        netns.sharp_timers()
        self.directory = Path(HOST_DIRECTORY)
        self.service = Service()
        client.StorageClient = lambda conf: self.service  # type: ignore[attr-defined,assignment,return-value]
        self._compute: ComputeHost | None = None
        # More of the product's options, until the host is reset.
        self.options: dict[str, str] = {}
        self.chain = StorageDaemon('chain', f'{HOST_DIRECTORY}/c',
                                   UnixListener(f'{HOST_DIRECTORY}/c/nbd'))
        # What a peer runs on this host until it is reset.
        self.helpers: list[subprocess.Popen[bytes]] = []
        self._said = _Said()
        self._watched = _Watched()
        logger = logging.getLogger('nova_bootcache.chains')
        logger.addHandler(self._said)
        logger.setLevel(logging.INFO)
        self._peer: Any = None
        self._image: Image | None = None

    @property
    def compute(self) -> ComputeHost:
        """The product's host object; its gateway runs from the first use on."""
        if self._compute is None:
            conf = cfg.ConfigOpts()
            conf([], project='nova', default_config_files=[], default_config_dirs=[])
            nova_conf.register_opts(conf)
            for name, value in {'gateway_run_dir': _RUN_DIRECTORY,
                                'gateway_socket': GATEWAY_SOCKET,
                                # A compressed cache image is expanded when a row says so,
                                # whatever disk this machine has.
                                'settle_delay': 0, 'expand': 'always',
                                'compute_disk_quota': '64GiB', **self.options}.items():
                conf.set_override(name, value, bootcache_conf.GROUP)
            os.makedirs(self.directory / 'g', exist_ok=True)
            self._compute = ComputeHost(conf, str(self.directory / 'cache'))
            self._compute.start(self.name)
        return self._compute

    def make_overlay(self, image: Image, path: Path) -> None:
        """Make a server's disk by the product, as its image backend does.

        :raises RuntimeError: if the product would go the stock way.
        """
        server = Server(image.image_id, 'disk', '', False, False, False)
        if not self.compute.chains.make_overlay(server, 'server', None, str(path),
                                                image.virtual_bytes, False):
            raise RuntimeError(f'{self.name}: {self._said.last}')

    def prepare(self, peer: Any, image: Image, phase: str) -> None:
        """Start what runs before a server is asked for."""
        self._peer, self._image = peer, image
        self.service.answers[image.image_id] = image.answer
        self.chain.ensure_running()
        peer.prepare(self, image, phase)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a module's function with this host: for a row that does something else than boot."""
        return function(self, *arguments)

    def boot(self, phase: str, trace: Trace, scale: float, overhead: float, verify: bool,
             go: float) -> Boot:
        """Boot once: make the disk, open its chain, play the trace.

        :param overhead: of the player, in seconds a request.
        :param go: when the server is asked for, in monotonic seconds.
        """
        peer, image = self._peer, self._image
        assert image is not None
        time.sleep(max(0.0, go - time.monotonic()))
        served = self._compute.gateway.daemon.pid() if self._compute is not None else None
        before = self._served_cpu(served), daemon_cpu(self.chain.pid()), sum(os.times()[:4])
        nodes = peer.disk(self, image, phase)
        made = time.monotonic()
        driver = os.times()
        self.chain.add_nodes(*nodes)
        self.chain.add_export(EXPORT, nodes[-1]['node-name'], writable=True)
        assert isinstance(self.chain.listener, UnixListener)
        began = time.monotonic()
        with peer.watching(self, phase):
            played = player.play(self.chain.listener.path, EXPORT, trace.boot, trace.header.tail,
                                 scale=scale, verify=verify, overhead=overhead)
        self.chain.remove_export(EXPORT, disconnect=True)
        self.chain.remove_nodes(*(node['node-name'] for node in reversed(nodes)))
        return Boot(began - go + played.seconds, made - go, played.cpu_seconds,
                    daemon_cpu(self.chain.pid()) - before[1],
                    self._served_cpu(served) - before[0] + sum(driver[:4]) - before[2],
                    self._allocated(), played.digest, played.issued, played.completed)

    def _leave_ceph(self) -> None:
        """Remove this host's clones, if it has any: one that never saw an image has none."""
        clones = self.compute.connections._clones
        if clones.is_on:
            for clone in clones._rbd.clones(clones._access.clone_pool, clones._access.namespace):
                # Ceph knows after half a minute of a reader that was killed.
                deadline = time.monotonic() + _WATCHED_SECONDS
                while not clones._rbd.remove(clone) and time.monotonic() < deadline:
                    time.sleep(1)

    def _served_cpu(self, gateway: int | None) -> float:
        return daemon_cpu(gateway) + sum(map(daemon_cpu, _connectors())) \
            + sum(daemon_cpu(one.pid) for one in self.helpers)

    def _allocated(self) -> int:
        return sum(path.stat().st_blocks * 512 for path in self.directory.rglob('*')
                   if path.is_file() and not path.is_symlink()) \
            + sum(_nameless_bytes(one.pid) for one in self.helpers)

    def watched(self) -> set[Seen]:
        """Return what this host's watch has read."""
        return set(self._watched.seen)  # It goes on.

    def finish(self, phase: str) -> None:
        """Remove the server's disk; what the host keeps for the next boot stays."""
        self._peer.finish(self, phase)

    def reset(self) -> None:
        """End the daemons and remove all files: a host that never saw the image."""
        self.chain.stop()
        for one in self.helpers:
            one.kill()
            one.wait()
        self.helpers = []
        if self._compute is not None:
            # What still comes would have its directory vanish.
            for image_id in self.service.answers:
                self._compute.arrivals.wait(image_id, 60)
            self._compute.stop()
            self._compute.gateway.daemon.stop()
            Starter(_RUN_DIRECTORY).kill_all()
            self._leave_ceph()
            self._compute = None
        self.options = {}
        self.service.exchanged.clear()
        for path in self.directory.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
