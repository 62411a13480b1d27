"""The storage service of a stage: the product's own, wired by itself.

Stand-ins have the place of what is not there: Glance is a directory of files, a profile boot's
server is a list of what it reads, and Nova's servers are the host's directories.
"""

import faulthandler
import json
import logging
import os
import signal
import tempfile
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import oslo_messaging as messaging
from glanceclient import exc
from oslo_config import cfg
from oslo_messaging import conffixture

from bench.faults import bus
from bench.replay import netns
from bootcache import conf as bootcache_conf
from bootcache import properties
from bootcache.connectors import connectors
from bootcache.rpc import messages, transport
from bootcache.workingset import WorkingSet
from glance_bootcache import conf as glance_conf
from glance_bootcache import service
from glance_bootcache.db import conf as db_conf
from glance_bootcache.glance.images import Images
from glance_bootcache.glance.listener import ImageEvents
from glance_bootcache.imagefacts import ImageFacts
from glance_bootcache.images import cephbases
from glance_bootcache.metrics import ServiceMetrics
from glance_bootcache.nodes.routing import ALONE
from glance_bootcache.profileboot.job import ImageJob, ProfileReport
from glance_bootcache.profileboot.throughnova import NovaProfileBoots
from glance_bootcache.rpc import validation
from glance_bootcache.rpc.ratelimit import RateLimiter
from glance_bootcache.storage.exporters import Exporters
from glance_bootcache.storage.store import ImageStore

PORT = 10809
_PIECE = 1 << 20


def glance_fault_path(directory: str) -> Path:
    """Return the file that tells what is wrong with Glance; without it nothing is."""
    return Path(directory, 'glance-fault')


AWAY, REFUSES = 'away', 'refuses'


class GlanceClient:
    """Glance: of each image a file with its data, and one with what else there is.

    :param directory: of the stage.
    """

    def __init__(self, directory: str):
        self._directory = Path(directory, 'glance')
        self._fault = glance_fault_path(directory)
        self.images = self

    def _answer(self) -> None:
        """Do not, if something is wrong."""
        wrong = self._fault.read_text() if self._fault.exists() else ''
        if wrong == REFUSES:
            # A new token is got by keystoneauth; this is a Keystone that does not give one out.
            raise exc.HTTPUnauthorized('the token has expired')
        if wrong == AWAY:
            raise exc.CommunicationError('Glance is away')

    def get(self, image_id: str) -> dict[str, Any]:
        """Return an image."""
        self._answer()
        try:
            found: dict[str, Any] = json.loads((self._directory / f'{image_id}.json').read_text())
        except FileNotFoundError:
            raise exc.HTTPNotFound() from None
        return found

    def list(self, filters: dict[str, Any]) -> list[dict[str, Any]]:
        """Return all of them."""
        self._answer()
        return [] if filters.get('os_hidden') else [
            json.loads(path.read_text()) for path in self._directory.glob('*.json')]

    def data(self, image_id: str, do_checksum: bool) -> Iterator[bytes]:
        """Yield an image's bytes; it does not check them either."""
        with open(self._directory / image_id, 'rb') as stream:
            while piece := stream.read(_PIECE):
                self._answer()
                yield piece

    def update(self, image_id: str, remove_props: Collection[str] = (),
               **changes: str) -> dict[str, Any]:
        """Change an image's properties, and return the image."""
        image = {**self.get(image_id), **changes}
        for name in remove_props:
            image.pop(name, None)
        path = self._directory / f'{image_id}.json'
        path.with_suffix('.new').write_text(json.dumps(image))
        path.with_suffix('.new').rename(path)
        if path.with_suffix('.deleted').exists():
            # Meanwhile.
            path.unlink(missing_ok=True)
            raise exc.HTTPNotFound()
        return image


class _Glance(Images):
    """The product's own, on a stand-in of its client.

    :param directory: of the stage.
    """

    def __init__(self, directory: str):
        self._client = GlanceClient(directory)


class ProfileBoots(NovaProfileBoots):
    """Reads what the image's file says that a boot reads."""

    def __init__(self, directory: str):
        self._directory = directory

    def has_servers(self, image_id: str, created_before: float | None = None) -> bool:
        return any(path.read_text() == image_id
                   for path in Path(self._directory, 'host', 'instances').glob('*/image'))

    def compute_hosts(self) -> set[str]:
        """As NovaProfileBoots.compute_hosts: this Nova has none."""
        return set()

    def remove_retired(self) -> None:
        pass

    def tell_unnamed(self) -> None:
        pass

    def booted(self, image_id: str) -> None:
        """Hear that an image is booted to be recorded: nobody counts it here."""

    def run(self, image: ImageFacts, virtual_bytes: int, policy: properties.Policy,
            job: ImageJob) -> ProfileReport:
        self.booted(image.image_id)
        extents = json.loads(Path(self._directory, 'glance', f'{image.image_id}.reads').read_text())
        return ProfileReport(WorkingSet.from_wire(
            image.image_id, image.image_hash, virtual_bytes, 4096, extents), 'marker', 1.0)


class _Dispatcher:
    """What the stage's bus calls: the product's endpoints, behind its validation."""

    def __init__(self, endpoints: Any, rejected: Any):
        # Hosts of a stage do in seconds what others do in hours.
        self._dispatcher = validation.ValidatingDispatcher(
            messaging.RPCDispatcher([endpoints], None), rejected,
            RateLimiter(lambda: 1000 * time.monotonic()), ServiceMetrics())

    def call(self, method: str, arguments: dict[str, Any]) -> Any:
        """Answer a message as the service does; raises what its sender is told."""
        try:
            return self._dispatcher.dispatch(SimpleNamespace(
                message={'method': method, 'args': arguments, 'version': messages.VERSION},
                ctxt={}, client_timeout=None))
        except messaging.ExpectedException as expected:
            error = expected.exc_info[1]
        raise error


class StorageSide:
    """The storage service; made in its process.

    :param directory: of the stage.
    :param options: more of the product's; with ``transport_url`` RabbitMQ is the bus, also that of
        Glance's notifications; ``host`` is that of ``[DEFAULT]``.
    """

    profile_boots: type[ProfileBoots] = ProfileBoots

    def __init__(self, directory: str, options: dict[str, Any]):
        self._glance = Path(directory, 'glance')
        log_to(f'{directory}/log/storage.log')
        # What builds leave there is to be found.
        tempfile.tempdir = f'{directory}/storage/tmp'
        conf = cfg.ConfigOpts()
        conf([], project='bootcache', default_config_files=[], default_config_dirs=[])
        glance_conf.register_opts(conf)
        conf.register_opts(glance_conf.default_opts)
        db_conf.register_opts(conf)
        for name in ('connection', 'mysql_wsrep_sync_wait'):
            if name in options:
                conf.set_override(name, options.pop(name), db_conf.GROUP)
        if 'host' in options:
            conf.set_override('host', options.pop('host'))
        for name, value in {
                'state_dir': f'{directory}/storage/state', 'run_dir': f'{directory}/r',
                'export_host': netns.STORAGE_ADDRESS, 'export_port': PORT, 'poll_interval': 1,
                'deletion_delay': 1, 'show_state_after': 0,
                'gateway_socket': f'{directory}/g/nbd', 'refine_boots': 0, 'profile_linger': 1,
                'storage_memory_directory': f'{directory}/memory',
                'storage_memory_quota': '64MiB', **options}.items():
            conf.set_override(name, value, bootcache_conf.GROUP)
        cephbases._SWEEP_SECONDS = connectors._FRESH_SECONDS = 5
        without_bus: tuple[tuple[Any, str, Any], ...] = (
            (service, 'get_listener', self._listener),
            # No other node could be written to.
            (service, 'Routing', lambda *_some: ALONE),
            (transport, 'get_transport', lambda conf: None))
        if 'transport_url' in options:
            conffixture.ConfFixture(conf)
            without_bus = ((service, 'get_listener', self._heard(service.get_listener)),)
        for module, name, value in (
                (service, 'Images', lambda conf: _Glance(directory)),
                (service, 'NovaProfileBoots', lambda conf, files: self.profile_boots(directory)),
                (service, 'NovaPrecache', lambda conf: SimpleNamespace(aggregates=dict)),
                (service.startchecks, 'check_cloud', lambda conf: None), *without_bus,
                self._server('' if 'transport_url' in options else directory)):
            setattr(module, name, value)
        # As its command does.
        os.makedirs(conf[bootcache_conf.GROUP].state_dir, exist_ok=True)
        self._service = service.StorageService(conf, lambda: None)
        self._service._start()
        self._store: ImageStore = self._endpoints._controller._store
        self._exporter: Exporters = self._endpoints._controller._work._exporter
        signal.signal(signal.SIGUSR2, lambda _number, _frame: threading.Thread(
            target=self._hear, daemon=True).start())
        # What waited on the bus.
        threading.Thread(target=self._hear, daemon=True).start()

    def _hear(self) -> None:
        """Take Glance's message of images that were deleted while this process does something."""
        for path in self._glance.glob('*.deleted'):
            self._tell('image.delete', path.stem)

    def _listener(self, _conf: Any, events: ImageEvents) -> Any:
        """Have what takes Glance's messages, which come by calls here."""
        self._events = events
        return SimpleNamespace(start=lambda: None, stop=lambda: None)

    def _heard(self, real: Any) -> Any:
        """Return what makes the real listener; messages come by calls as well."""
        def make(conf: Any, events: ImageEvents) -> Any:
            self._events = events
            return real(conf, events)
        return make

    def _tell(self, event: str, image_id: str) -> None:
        """Take a message, which comes again only if this process ends meanwhile."""
        self._events.info({}, 'image.stage', event, {'id': image_id}, {})

    def _server(self, directory: str) -> tuple[Any, str, Any]:
        """Return what makes an RPC server, and where it has its place: one of the stage's bus, or
        the real one, also that for other nodes."""
        real = validation.get_server

        def make(transport_: Any, name: str, endpoints: Any, rejected: Any, *more: Any,
                 **named: Any) -> Any:
            self._endpoints = endpoints
            return bus.Server(directory, _Dispatcher(endpoints, rejected)) if directory \
                else real(transport_, name, endpoints, rejected, *more, **named)
        return validation, 'get_server', make

    def look(self, image_id: str) -> None:
        """Hear of an image from Glance: it was registered, changed, or deleted."""
        is_there = (self._glance / f'{image_id}.json').exists()
        self._tell('image.update' if is_there else 'image.delete', image_id)

    def have_asked(self, image_id: str, *peer: Any) -> bool:
        """Have another host boot from an image, and ask who has its cache image.

        Whoever asks next is not the first, and its servers wait for what others give.

        :param peer: where its exchange would be.
        """
        manifest = self._store.load(image_id)
        self._endpoints.plan_boot({}, messages.PlanBoot(image_id, 'host-0', ''))
        return manifest is not None and manifest.made.cache_image is not None \
            and self._endpoints.exchange_cache(
                {}, messages.ExchangeCache(
                    image_id, 'host-0', manifest.made.cache_image.sha256, *peer, rack=''
                )) is not None

    def promote(self, image_id: str) -> None:
        """Be asked for an image's cache image in memory."""
        self._endpoints.promote_image({}, messages.PromoteImage(image_id))

    def state(self, image_id: str) -> tuple[str, str, bool, bool]:
        """Return an image's standing, the reason, whether there is a base, and a cache image."""
        manifest = self._store.load(image_id)
        if manifest is None:
            return '', '', False, False
        return (manifest.standing.value, manifest.reason, bool(manifest.made.base_path),
                manifest.made.cache_image is not None)

    def base(self, image_id: str) -> str:
        """Return the path of an image's base; empty if there is none."""
        manifest = self._store.load(image_id)
        return '' if manifest is None else manifest.made.base_path

    def remove_unnamed(self) -> None:
        """Remove the files of images that no row names."""
        for path in self._store.files.unnamed():
            os.unlink(path)

    def left(self) -> list[str]:
        """Return what is here though no image is."""
        controller = self._endpoints._controller
        found = [f'storage file {path}' for path in files(
            self._store.state_path('images'), controller._work._tiers._directory or '',
            tempfile.gettempdir())]
        found += [f'step of {image_id}' for image_id in controller._running.images()]
        daemon = self._exporter.common._daemon
        return found + [f'export {name}' for name in daemon.exports()] \
            + [f'exporter\'s node {name}' for name in daemon.nodes()]


def files(*directories: str) -> list[str]:
    """Return all files and empty directories below some, without their beginning."""
    found = []
    for directory in directories:
        for path, folders, names in os.walk(directory):
            if path != directory and not folders and not names:
                found.append(os.path.relpath(path, directory))
            found += [os.path.relpath(os.path.join(path, name), directory) for name in names]
    return sorted(found)


def log_to(path: str) -> None:
    """Have this process's log lines written into a file."""
    root = logging.getLogger()
    for handler in root.handlers[:]:
        root.removeHandler(handler)
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter('%(asctime)s %(process)d %(levelname)s %(message)s'))
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    # What a process does that does not answer: see Stage.ask_what_they_do.
    assert handler.stream is not None
    faulthandler.register(signal.SIGUSR1, file=handler.stream, chain=False)
