"""The stage of a soak: RabbitMQ is the bus, calls are done beside each other, what is held is told.

Tiers are smaller than the images that are there, all four of them: of the storage node and of the
host, in memory and on disk.
"""

import abc
import collections
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import oslo_messaging as messaging
from oslo_config import cfg
from oslo_messaging import conffixture, server

from bench.faults import census, stage
from bench.faults.clock import Clock
from bench.faults.gate import Worker
from bench.faults.guestside import GuestSide
from bench.faults.hostside import HostSide
from bench.faults.images import Image
from bench.faults.kinds import EXPORTER, GATEWAY, HOST, STORAGE
from bench.faults.stage import PATIENCE, Trouble
from bench.faults.storageside import StorageSide, files
from bench.replay import children, netns
from bootcache import steps
from glance_bootcache.storage import tiers

GLANCE = 'glance'
MIB = 1 << 20
# Twelve images are there, of which three have cache images of 9.5 MiB, and the others 2.1.
QUOTAS = {'storage disk': 32 * MIB, 'storage memory': 12 * MIB, 'compute disk': 16 * MIB,
          'compute memory': 6 * MIB}
STORE_QUOTA = 4 * MIB
# In MiB; a storage node has a base of each image, and one more of each that comes.
FILE_SYSTEMS = {'storage': 640, 'host': 320, 'memory': 64}
# So long what was asked for counts as being fetched from storage memory; else a minute of rounds.
_FETCH_SECONDS = 2
# oslo.messaging makes a thread for each message until it has that many, 64 by default, of each
# listener: all of them are there when the samples begin that count.
_POOL_THREADS = 8
_AT_ONCE = 16
_LOOK_SECONDS = 0.02


class AtOnce(abc.ABC):
    """Has methods of a process called beside each other."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_AT_ONCE, 'call')
        self._calls: dict[int, Future[Any]] = {}
        self._passed: collections.Counter[str] = collections.Counter()
        self._lock = threading.Lock()
        steps.install(self._pass)

    def _pass(self, step: str) -> None:
        with self._lock:
            self._passed[step] += 1

    def begin(self, method: str, *arguments: Any) -> int:
        """Begin a call; ``ended`` tells what came of it."""
        call = self._pool.submit(getattr(self, method), *arguments)
        self._calls[id(call)] = call
        return id(call)

    def ended(self, call: int) -> tuple[bool, Any] | None:
        """Return whether a call that has ended worked, and what it gave; None if it goes on."""
        future = self._calls[call]
        if not future.done():
            return None
        del self._calls[call]
        error = future.exception()
        return (True, future.result()) if error is None else (
            False, f'{type(error).__name__}: {error}')

    def held(self) -> dict[str, Any]:
        """Return what this process holds, and how often it passed each step."""
        with self._lock:
            passed = dict(self._passed)
        return {'blocks': census.blocks(), 'passed': passed,
                'collections': census.collections_held(), **self.served()}

    @abc.abstractmethod
    def served(self) -> dict[str, int]:
        """Return how many exports and block nodes its daemon has."""


class SoakHost(AtOnce, HostSide):
    """nova-compute's part, with a memory tier.

    :param directory: of the stage.
    :param url: of the bus.
    """

    def __init__(self, directory: str, url: str):
        self._memory = f'{directory}/host/memory'
        Path(self._memory).mkdir(parents=True, exist_ok=True)
        HostSide.__init__(self, directory, {
            'transport_url': url, 'compute_memory_directory': self._memory,
            'compute_memory_quota': str(QUOTAS['compute memory']),
            'compute_disk_quota': str(QUOTAS['compute disk']), 'store_quota': str(STORE_QUOTA)})
        AtOnce.__init__(self)

    def delete_server(self, server_id: str) -> None:
        """Delete a server as the driver does, and Nova after it."""
        self.server_goes(server_id)
        with self._settler.held(server_id):
            shutil.rmtree(Path(self._directory, 'instances', server_id))

    def served(self) -> dict[str, int]:
        daemon = self._host.gateway.daemon
        return {'exports': len(daemon.exports()), 'nodes': len(daemon.nodes())}

    def is_idle(self) -> bool:
        """Tell whether nothing is under way."""
        return not list(self._held())

    def left(self) -> list[str]:
        return super().left() + [f'host\'s memory {path}' for path in files(self._memory)]


class SoakStorage(AtOnce, StorageSide):
    """The storage service.

    :param directory: of the stage.
    :param url: of the bus.
    """

    def __init__(self, directory: str, url: str):
        tiers._FETCH_SECONDS = _FETCH_SECONDS
        cfg.set_defaults(server._pool_opts, executor_thread_pool_size=_POOL_THREADS)
        StorageSide.__init__(self, directory, {
            'transport_url': url, 'max_quota': str(16 * MIB), 'default_quota': str(16 * MIB),
            'storage_disk_quota': str(QUOTAS['storage disk']),
            'storage_memory_quota': str(QUOTAS['storage memory'])})
        AtOnce.__init__(self)

    def served(self) -> dict[str, int]:
        daemon = self._exporter.common._daemon
        return {'exports': len(daemon.exports()), 'nodes': len(daemon.nodes())}

    def is_idle(self) -> bool:
        """Tell whether nothing is under way."""
        controller = self._endpoints._controller
        return controller.queue.is_idle() and not (
            controller._running.images() or controller._work._tiers._wanted)


class GlanceSide:
    """What Glance tells of its images.

    :param url: of the bus.
    """

    def __init__(self, url: str):
        conf = cfg.ConfigOpts()
        conf([], project='glance', default_config_files=[], default_config_dirs=[])
        # oslo.messaging registers some of its options with the global configuration only.
        conffixture.ConfFixture(conf)
        conf.set_override('control_exchange', 'glance')
        self._notifier = messaging.Notifier(
            messaging.get_notification_transport(conf, url=url), publisher_id='image.stage',
            driver='messagingv2', topics=['bootcache_images'])

    def tell(self, event: str, image_id: str) -> None:
        """Tell of an image."""
        self._notifier.info({}, f'image.{event}', {'id': image_id})

    def left(self) -> list[str]:
        """Return nothing: it keeps nothing."""
        return []


class SoakStage(stage.Stage):
    """The processes: a storage node, a compute host, Glance, and a guest for each that works.

    :param images: the contents.
    :param url: of the bus.
    :param guests: how many.
    """

    def __init__(self, root: Path, network: netns.Network, images: Sequence[Image], url: str,
                 guests: int):
        super().__init__(root, network, images[0], {})
        self.images, self._url = images, url
        self.guests = [f'guest{number}' for number in range(guests)]
        self._locks = {name: threading.Lock() for name in (
            STORAGE, HOST, GLANCE, *self.guests)}

    def start(self) -> None:
        """Make the directories, and start all processes, from the thread that lives longest."""
        for name in ('storage/tmp', 'host/tmp', 'host/instances/_base', 'log', 'glance', 'g', 'r',
                     'q', 'memory', *(f'{guest}/{part}' for guest in self.guests
                                      for part in ('log', 'q'))):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        for name in self._locks:
            self.call(name, 'left')

    def _make(self, name: str) -> Worker:
        root, url = str(self.root), self._url
        sides: dict[str, tuple[str, Callable[[], Any]]] = {
            STORAGE: (self.network.storage, lambda: SoakStorage(root, url)),
            GLANCE: (self.network.storage, lambda: GlanceSide(url)),
            HOST: (self.network.hosts[0], lambda: SoakHost(root, url))}
        namespace, make = sides.get(name, (self.network.hosts[0],
                                           lambda: GuestSide(f'{root}/{name}')))
        return Worker(namespace, make, Clock())

    def ask(self, name: str, method: str, *arguments: Any) -> Any:
        """Call a method of a process; any thread may, and others wait meanwhile.

        :raises Trouble: if it fails, or takes too long.
        """
        with self._locks[name]:
            try:
                return self._workers[name].call(method, *arguments, seconds=PATIENCE)
            except (children.ChildError, OSError) as error:
                raise Trouble(f'{name}: {method}: {error}') from error

    def at_once(self, name: str, method: str, *arguments: Any) -> Any:
        """Call a method of a process beside others.

        :raises Trouble: if it fails, or takes too long.
        """
        call, deadline = self.ask(name, 'begin', method, *arguments), time.monotonic() + PATIENCE
        while (answer := self.ask(name, 'ended', call)) is None:
            if time.monotonic() > deadline:
                raise Trouble(f'{name}: {method} does not end')
            time.sleep(_LOOK_SECONDS)
        worked, value = answer
        if not worked:
            raise Trouble(f'{name}: {method}: {value}')
        return value

    # What is held.

    def tiers(self) -> dict[str, int | None]:
        """Return the bytes of each tier now; None if that cannot be told."""
        host = self.root / 'host'
        return {
            'storage disk': census.of_tier(self.root / 'storage/state/images', 'cache-*.qcow2'),
            'storage memory': census.of_tier(self.root / 'memory'),
            'compute disk': census.of_tier(host / 'instances/_bootcache'),
            'compute memory': census.of_tier(host / 'memory')}

    def held(self) -> dict[str, dict[str, Any]]:
        """Return what each process and directory holds now.

        :raises Trouble: if one does not tell.
        """
        found: dict[str, dict[str, Any]] = {}
        for name, daemon in ((STORAGE, EXPORTER), (HOST, GATEWAY)):
            told = self.ask(name, 'held')
            pids = {name: self._workers[name].pid, daemon: self._pid(daemon)}
            found[name] = {'blocks': told.pop('blocks'), 'passed': told.pop('passed'),
                           'collections': told.pop('collections')}
            found[daemon] = told
            for one, pid in pids.items():
                if pid is None:
                    raise Trouble(f'{one} does not run')
                try:
                    found[one].update(census.of_process(pid))
                except (OSError, KeyError) as error:
                    raise Trouble(f'{one} has ended: {error}') from error
        for name, path in (('storage state', 'storage/state'), ('storage temporary', 'storage/tmp'),
                           ('storage memory', 'memory'), ('exporter run', 'r'),
                           ('gateway run', 'g'), ('host temporary', 'host/tmp'),
                           ('host cache', 'host/instances/_bootcache'),
                           ('host memory', 'host/memory'),
                           ('host bases', 'host/instances/_base')):
            found[name] = census.of_directory(self.root / path)
        return found

    def is_idle(self) -> bool:
        """Tell whether nothing is under way in any process."""
        return bool(self.ask(STORAGE, 'is_idle') and self.ask(HOST, 'is_idle'))

    def _worker(self, name: str) -> Worker | None:
        """Return a process, which is not to end: nothing that is wrong is done to it."""
        worker = self._workers.get(name)
        if worker is not None and not worker._process.is_alive():
            raise Trouble(f'{name} has ended')
        return super()._worker(name)
