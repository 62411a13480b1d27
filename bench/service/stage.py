"""What the benchmark runs on: a real RabbitMQ, one or several real glance-bootcache, a database.

Keystone, Nova and Glance are stand-ins, see tools/standins.py.
"""

import contextlib
import dataclasses
import os
import random
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import oslo_messaging as messaging
import psutil
from oslo_config import cfg

from bench.service import methods
from bench.service.player import Player
from bench.service.storagenode import StorageNode
from tools import databases, standins
from tools.rabbit import Rabbit

SQLITE, MARIADB = 'sqlite', 'mariadb'
# Of an image: little, as the benchmark is about messages.
_IMAGE_BYTES = 4096
# glance-bootcache's default.
_NOTIFICATION_TOPIC = 'bootcache_images'
_START_SECONDS, _END_SECONDS = 180.0, 60.0
_LOOK_SECONDS = 0.2


class StageError(Exception):
    """A service does not start, or does not do what it is for."""


@dataclasses.dataclass(frozen=True)
class Database:
    """What the services keep their state in.

    :ivar name: one of ``DATABASES``.
    :ivar connection: as for ``[database]connection``; empty for SQLite in its directory.
    :ivar pids: ids of the database's processes.
    """

    name: str
    connection: str = ''
    pids: Sequence[int] = ()


@contextlib.contextmanager
def _mariadb() -> Iterator[Database]:
    server = databases.MariaDB()
    try:
        found = Database(MARIADB, server.database(), [server.pid])
        databases.made(found.connection).close()
        yield found
    finally:
        server.remove()


# Each is there within the block.
DATABASES: Mapping[str, Callable[[], contextlib.AbstractContextManager[Database]]] = {
    SQLITE: lambda: contextlib.nullcontext(Database(SQLITE)), MARIADB: _mariadb}


@dataclasses.dataclass(frozen=True)
class Usage:
    """What was used until a time.

    :ivar at: monotonic seconds.
    :ivar services: CPU seconds, user and system, of each storage node's service.
    :ivar broker: likewise of RabbitMQ.
    :ivar database: likewise of the database.
    :ivar machine: likewise of all that runs on this machine.
    """

    at: float
    services: tuple[float, ...]
    broker: float
    database: float
    machine: float

    @property
    def service(self) -> float:
        """CPU seconds of all services together."""
        return sum(self.services)


class Stage:
    """The storage nodes with what they need; ``running`` makes it.

    :ivar database: in which the services keep their state.
    :ivar url: of RabbitMQ.
    :ivar operator: calls the services.

    :param home: a short directory.
    :param count: of storage nodes, which have RabbitMQ, database and Glance in common.
    """

    def __init__(self, home: str, broker: Rabbit, keystone: str, database: Database,
                 glance: dict[str, bytes], count: int = 1):
        self.database, self.url = database, broker.url
        self._home, self._broker, self._glance = home, broker, glance
        sections = _sections(home, broker.url, keystone, database)
        self._nodes = [StorageNode(home, f'storage-{number}', sections)
                       for number in range(1, count + 1)]
        self.operator = Player(broker.url, ['operator'])

    @property
    def nodes(self) -> int:
        """How many storage nodes there are."""
        return len(self._nodes)

    def make_images(self, count: int) -> list[str]:
        """Have Glance have more images; return their ids."""
        made = {str(uuid.UUID(int=random.getrandbits(128))): random.randbytes(_IMAGE_BYTES)
                for _image in range(count)}
        for image_id, content in made.items():
            (Path(self._home) / 'glance' / image_id).write_bytes(content)
        self._glance.update(made)
        return list(made)

    def announce(self, images: Sequence[str]) -> None:
        """Have Glance tell on the bus that images are active, all at once."""
        conf = cfg.ConfigOpts()
        conf([], project='glance', default_config_files=[], default_config_dirs=[])
        transport = messaging.get_notification_transport(conf, url=self.url)
        conf.set_override('control_exchange', 'glance')
        notifier = messaging.Notifier(transport, 'glance', driver='messagingv2',
                                      topics=[_NOTIFICATION_TOPIC])
        for image_id in images:
            notifier.info({}, 'image.activate', {'id': image_id})
        transport.cleanup()

    def start(self) -> float:
        """Start the services; return after how many seconds all answer and know each other.

        :raises StageError: if they do not.
        """
        began = time.monotonic()
        # The first one writes what a new database has once.
        for nodes in self._nodes[:1], self._nodes[1:]:
            for node in nodes:
                node.begin()
            for node in nodes:
                self._until(self._answers, node, began, 'does not answer')
        for node in self._nodes:
            self._until(self._knows_all, node, began, 'does not see all storage nodes')
        return time.monotonic() - began

    def _until(self, is_so: Callable[[StorageNode], bool], node: StorageNode, began: float,
               otherwise: str) -> None:
        while not is_so(node):
            if time.monotonic() > began + _START_SECONDS \
                    or any(node.has_ended() for node in self._nodes):
                raise StageError(f'{node.name} {otherwise}; the services say:\n{self.log}')
            time.sleep(_LOOK_SECONDS)

    def _answers(self, node: StorageNode) -> bool:
        with contextlib.suppress(TimeoutError):
            self.operator.call(methods.empty_call(), patience=1.0, node=node.name)
            return True
        return False

    def _knows_all(self, node: StorageNode) -> bool:
        answer, _seconds = self.operator.call(methods.list_nodes(), node=node.name)
        return methods.working(answer) == {one.name for one in self._nodes}

    def stop(self) -> None:
        """End the services; their exporters stay, as servers may read from these."""
        for node in self._nodes:
            node.signal_end()
        for node in self._nodes:
            node.await_end()

    def restart(self) -> float:
        """End the services, and start them; return after how many seconds all answer."""
        self.stop()
        return self.start()

    def close(self) -> None:
        """End the services and their exporters."""
        self.stop()
        self.operator.close()
        for exporter in [one for node in self._nodes for one in node.end_exporters()]:
            exporter.wait(_END_SECONDS)

    @property
    def log(self) -> str:
        """The last lines that each service has logged."""
        return '\n'.join(f'{node.name}:\n{node.log[-2000:]}' for node in self._nodes)

    def usage(self) -> Usage:
        """Return what was used until now."""
        machine = psutil.cpu_times()
        return Usage(
            time.monotonic(), tuple(_seconds([node.process]) for node in self._nodes),
            _seconds(_families(self._broker.pids)), _seconds(_families(self.database.pids)),
            # Guests' time is within user time.
            sum(machine) - machine.idle - machine.iowait - machine.guest - machine.guest_nice)

    def peak_bytes(self) -> int:
        """Return the most memory that a service's process had since it started."""
        return max(node.peak_bytes() for node in self._nodes)


def _families(pids: Sequence[int]) -> list[psutil.Process]:
    """Return processes with all that are below them."""
    return [one for process in map(psutil.Process, pids)
            for one in (process, *process.children(recursive=True))]


def _seconds(processes: Sequence[psutil.Process]) -> float:
    found = 0.0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            found += times.user + times.system
    return found


def _sections(home: str, broker_url: str, keystone: str, database: Database
              ) -> dict[str, dict[str, object]]:
    """Return the sections of a configuration, as all storage nodes have them."""
    return {
        'DEFAULT': {'transport_url': broker_url},
        'bootcache': {'glance_store_dirs': f'{home}/glance', 'profile_boots': False,
                      # All images are of one owner.
                      'changes_per_hour': 0},
        'service_auth': {'auth_type': 'v3password', 'auth_url': keystone, 'username': 'bootcache',
                         'password': standins.PASSWORD, 'project_name': 'service',
                         'user_domain_name': 'Default', 'project_domain_name': 'Default',
                         'region_name': standins.REGION},
        **({'database': {'connection': database.connection}} if database.connection else {})}


@contextlib.contextmanager
def running(broker: Rabbit, database: Database, count: int = 1) -> Iterator[Stage]:
    """Make a stage in a temporary directory until the end of the block; no service is started.

    :param broker: has been started, as has the database.
    :param count: of storage nodes.
    """
    home = tempfile.mkdtemp(prefix='bcsv', dir='/tmp')
    os.mkdir(f'{home}/glance')
    glance: dict[str, bytes] = {}
    try:
        with standins.serving(glance, lists_images=True) as keystone:
            stage = Stage(home, broker, keystone, database, glance, count)
            try:
                yield stage
            finally:
                stage.close()
    finally:
        shutil.rmtree(home, ignore_errors=True)
