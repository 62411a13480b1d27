"""The compute host of a stage: the product's own parts, as the driver starts them, without Nova.

Nova's servers are directories: ``image`` names the image, ``stopped`` says that it does not run.
"""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from oslo_config import cfg
from oslo_messaging import conffixture

from bench.faults import bus
from bench.faults.storageside import files, log_to
from bootcache import conf as bootcache_conf
from bootcache import exception, naming, qemuimg
from bootcache.connectors import connectors
from nova_bootcache import conf as nova_conf
from nova_bootcache import upkeep
from nova_bootcache.asking import client
from nova_bootcache.asking.placement import Server
from nova_bootcache.chains.computehost import ComputeHost
from nova_bootcache.gateway import graph, hostclones
from nova_bootcache.published.holdings import PublishedHoldings
from nova_bootcache.settling import pivot, settler
from nova_bootcache.settling.localservers import LocalServer
from nova_bootcache.settling.settler import Settler
from nova_bootcache.tiers import expansions
from nova_bootcache.upkeep import HostUpkeep

_OLD = 3600.0


class LocalNova:
    """What settling needs of Nova; all servers are stopped, or run without a domain.

    :param directory: of the host's files.
    """

    force_raw = True
    keep_free = 0

    def __init__(self, directory: str):
        self._instances = Path(directory, 'instances')
        self.base_directory = f'{directory}/instances/_base'

    def connect(self) -> Any:
        """No server has a domain."""
        raise NotImplementedError

    def directories(self) -> list[str]:
        """Return those of all servers."""
        return [str(path.parent) for path in self._instances.glob('*/image')]

    def servers(self) -> list[LocalServer]:
        """Return the servers."""
        found = (self.server(os.path.basename(directory)) for directory in self.directories())
        return [server for server in found if server is not None]

    def server(self, server_id: str) -> LocalServer | None:
        """Return one."""
        directory = self._instances / server_id
        try:
            image_id = (directory / 'image').read_text()
        except FileNotFoundError:
            return None
        return LocalServer(server_id, image_id, (directory / 'stopped').exists(), _OLD,
                           str(directory), 'vda')

    def needs_stock_base(self, server_id: str) -> bool:
        """Tell that none does."""
        return False

    def bounded_domain(self, server_id: str, urgent: bool = False) -> None:
        """Return none."""

    def directory(self, server_id: str) -> str:
        """Return a server's."""
        return str(self._instances / server_id)

    def make_writable(self, path: str) -> None:
        """Do nothing: whoever runs this owns all disks."""

    def sees_errors(self, server_id: str) -> bool:
        """Tell that none does."""
        return False

    def instance_lock(self, server_id: str, waits: bool = True
                      ) -> contextlib.AbstractContextManager[bool]:
        """Return one that keeps nobody out: nobody else works on servers."""
        return contextlib.nullcontext(True)

    def base_lock(self, name: str) -> contextlib.AbstractContextManager[Any]:
        """Return one that keeps nobody out."""
        return contextlib.nullcontext()


class HostSide:
    """nova-compute's part; made in its process.

    :param directory: of the stage.
    :param options: more of the product's; with ``transport_url`` RabbitMQ is the bus.
    :param make_nova: of what settling needs of Nova, by the directory of the host's files.
    """

    def __init__(self, directory: str, options: dict[str, Any],
                 make_nova: Callable[[str], LocalNova] = LocalNova):
        self._directory = f'{directory}/host'
        log_to(f'{directory}/log/host.log')
        tempfile.tempdir = f'{directory}/host/tmp'
        # What goes on now and then goes on at once.
        upkeep.PERIOD_SECONDS = settler._PERIOD_SECONDS = settler._PAUSE_SECONDS = 1
        expansions._PAUSE_SECONDS = 1
        # Whatever disk this machine has.
        options = {'expand': 'always', **options}
        settler.LONGEST_SECONDS = 5
        hostclones._SWEEP_SECONDS = hostclones._FRESH_SECONDS = connectors._FRESH_SECONDS = 5
        if 'transport_url' not in options:
            client.StorageClient = lambda conf: bus.StageClient(  # type: ignore[attr-defined,assignment]
                conf, directory)
        conf = cfg.ConfigOpts()
        conf([], project='nova', default_config_files=[], default_config_dirs=[])
        nova_conf.register_opts(conf)
        if 'transport_url' in options:
            # oslo.messaging registers some of its options with the global configuration only.
            conffixture.ConfFixture(conf)
        for name, value in {'gateway_run_dir': f'{directory}/g', 'report_interval': 1,
                            'gateway_socket': f'{directory}/g/nbd',
                            'compute_disk_quota': '96MiB', 'store_quota': '32MiB',
                            **options}.items():
            conf.set_override(name, value, bootcache_conf.GROUP)
        self._nova = make_nova(self._directory)
        self._host = ComputeHost(conf, f'{self._directory}/instances/_bootcache', False,
                                 self._nova.base_directory)
        self._holdings = PublishedHoldings(self._host, self._nova.base_directory)
        self._upkeep = HostUpkeep(self._host, self._holdings)
        self._settler = Settler(self._host, self._nova, 1 << 30, 0.0)
        # In the driver's order.
        self._host.start('host-1')
        self._upkeep.start()
        self._settler.recover()
        self._settler.start()

    def make_disk(self, server_id: str, image_id: str) -> bool:
        """Make a server's root disk as the image backend does; False for the stock way."""
        directory = Path(self._directory, 'instances', server_id)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / 'image').write_text(image_id)
        path, base = directory / 'disk', self._base(image_id)

        def console() -> str:
            with contextlib.suppress(FileNotFoundError):
                return (directory / 'console').read_text()
            return ''

        if path.exists():
            # As Nova finds a disk that is there: its chain is kept.
            self.keep(server_id, image_id)
            return True
        return self._host.chains.make_overlay(
            Server(image_id, 'disk', '', False, False, False), server_id, None, str(path), None,
            base.exists(), console)

    def keep(self, server_id: str, image_id: str) -> None:
        """See that a server's disk can be opened, as a hard reboot does."""
        directory = f'{self._directory}/instances/{server_id}'
        self._settler.recover_server(directory)
        if self._is_chained(f'{directory}/disk'):
            self._host.chains.keep_chain(image_id, f'{directory}/disk', 30.0)

    def reach(self, image_id: str) -> None:
        """See that servers that run can read an image's base, as is done for one that waits."""
        self._host.chains.reach_base(image_id)

    def server_goes(self, server_id: str) -> None:
        """Hear that a server is stopped, or deleted."""
        self._host.boots.server_goes(server_id)

    def _base(self, image_id: str) -> Path:
        return Path(self._nova.base_directory, naming.cache_file_name(image_id))

    def _is_chained(self, path: str) -> bool:
        backing = qemuimg.info(path, 'qcow2').get('full-backing-filename')
        return self._host.cache.holds_path(backing)

    def is_settled(self, server_id: str) -> bool:
        """Tell whether a server stands on a full base, and nothing of its move is left."""
        directory = f'{self._directory}/instances/{server_id}'
        return not self._is_chained(f'{directory}/disk') and not pivot.is_under_way(directory)

    def holds(self, image_id: str) -> bool:
        """Tell whether an image's cache image is here, whole."""
        entry = self._host.cache.entry(image_id)
        return entry is not None and entry.cache_image is not None

    def has_expanded(self, image_id: str) -> bool:
        """Tell whether that has no compressed clusters here any more, and had some."""
        entry = self._host.cache.entry(image_id)
        return entry is not None and entry.cache_image is not None and entry.expanded \
            and entry.file_sha256 != entry.cache_image.sha256

    def left(self) -> list[str]:
        """Return what is here though no server and no image is."""
        host = self._host
        found = [f'host file {path}' for path in files(
            host.cache.directory, self._nova.base_directory, tempfile.gettempdir())]
        found += [f'lock: {name}' for name in self._held()]
        daemon = host.gateway.daemon
        found += [f'gateway\'s export {name}' for name in daemon.exports()]
        found += [f'gateway\'s node {name}' for name in daemon.nodes()]
        with daemon.session() as session:
            # There is no such place before it has the first one.
            with contextlib.suppress(exception.StorageDaemonError):
                found += [f'gateway\'s throttle group {entry["name"]}'
                          for entry in session.execute('qom-list', path='/objects')
                          if entry['type'] == 'child<throttle-group>'
                          and entry['name'] != graph.UNLIMITED]
            found += [f'gateway\'s job {job["id"]}' for job in session.execute('query-jobs')]
        return found

    def _held(self) -> Iterator[str]:
        needs, room = self._host.needs, self._host.room
        for path, _known in list(needs._in_making.items()):
            if os.path.exists(path):
                yield f'{path} is in the making'
        for image_id in needs._booting._counts:
            yield f'a boot of {image_id} is watched'
        for image_id in needs._arriving:
            yield f'{image_id} arrives'
        for key in room._reserved:
            yield f'room is kept for {key}'
