"""What the benchmark runs the service on: a real RabbitMQ, a real glance-bootcache, a database.

Keystone, Nova and Glance are stand-ins, see tools/standins.py.
"""

import contextlib
import dataclasses
import os
import random
import re
import shutil
import signal
import subprocess
import sys
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
from tools import databases, standins
from tools.ports import free_port
from tools.rabbit import Rabbit

TOP = Path(__file__).resolve().parents[2]
SQLITE, MARIADB = 'sqlite', 'mariadb'
# Of an image: little, as the benchmark is about messages.
_IMAGE_BYTES = 4096
# glance-bootcache's default.
_NOTIFICATION_TOPIC = 'bootcache_images'
_START_SECONDS, _END_SECONDS = 180.0, 60.0


class StageError(Exception):
    """The service does not start, or does not do what it is for."""


@dataclasses.dataclass(frozen=True)
class Database:
    """What the service keeps its state in.

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
    :ivar service: CPU seconds, user and system, of the service's processes.
    :ivar broker: likewise of RabbitMQ.
    :ivar database: likewise of the database.
    :ivar machine: likewise of all that runs on this machine.
    """

    at: float
    service: float
    broker: float
    database: float
    machine: float


class Stage:
    """One service with what it needs; ``running`` makes it.

    :ivar database: in which the service keeps its state.
    :ivar url: of RabbitMQ.
    :ivar operator: calls the service.

    :param home: a short directory.
    """

    def __init__(self, home: str, broker: Rabbit, keystone: str, database: Database,
                 glance: dict[str, bytes]):
        self.database, self.url = database, broker.url
        self._home, self._broker, self._keystone, self._glance = home, broker, keystone, glance
        self._service: subprocess.Popen[bytes] | None = None
        self.operator = Player(broker.url, ['operator'])

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
        """Start the service; return after how many seconds it answers.

        :raises StageError: if it does not.
        """
        began = time.monotonic()
        file = Path(self._home, 'bootcache.conf')
        file.write_text(_configuration(self._home, self.url, self._keystone, self.database))
        with open(f'{self._home}/log', 'ab') as log:
            self._service = subprocess.Popen(
                [sys.executable, '-W', 'ignore', '-m', 'glance_bootcache.cli.service',
                 '--config-file', str(file)], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                cwd=TOP, env={'PATH': os.environ['PATH'], 'HOME': self._home,
                              'TMPDIR': self._home,
                              # The processes that the service starts are of this tree, too.
                              'PYTHONPATH': str(TOP)})
        while time.monotonic() < began + _START_SECONDS and self._service.poll() is None:
            with contextlib.suppress(TimeoutError):
                self.operator.call(methods.empty_call(), patience=1.0)
                return time.monotonic() - began
        raise StageError(f'the service does not answer; it says:\n{self.log[-2000:]}')

    def stop(self) -> None:
        """End the service; its exporter stays, as servers may read from that."""
        if self._service is not None:
            self._service.send_signal(signal.SIGTERM)
            try:
                self._service.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                self._service.kill()
                self._service.wait()
        self._service = None

    def restart(self) -> float:
        """End the service, and start it; return after how many seconds it answers."""
        self.stop()
        return self.start()

    def close(self) -> None:
        """End the service and its exporters."""
        self.stop()
        self.operator.close()
        for file in Path(self._home, 'run').glob('*.pid'):
            with contextlib.suppress(ValueError, psutil.NoSuchProcess):
                exporter = psutil.Process(int(file.read_text()))
                exporter.terminate()
                exporter.wait(_END_SECONDS)

    @property
    def log(self) -> str:
        """What the service has logged."""
        return Path(self._home, 'log').read_text(errors='replace')

    def usage(self) -> Usage:
        """Return what was used until now."""
        machine = psutil.cpu_times()
        return Usage(
            time.monotonic(), _seconds([self._process()]), _seconds(_families(self._broker.pids)),
            _seconds(_families(self.database.pids)),
            # Guests' time is within user time.
            sum(machine) - machine.idle - machine.iowait - machine.guest - machine.guest_nice)

    def peak_bytes(self) -> int:
        """Return the most memory that the service's process had since it started."""
        text = Path(f'/proc/{self._process().pid}/status').read_text()
        return int(re.findall(r'VmHWM:\s+(\d+) kB', text)[0]) * 1024

    def _process(self) -> psutil.Process:
        assert self._service is not None
        return psutil.Process(self._service.pid)


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


def _configuration(home: str, broker_url: str, keystone: str, database: Database) -> str:
    sections: dict[str, dict[str, object]] = {
        'DEFAULT': {'transport_url': broker_url, 'host': 'storage'},
        'bootcache': {'state_dir': f'{home}/state', 'run_dir': f'{home}/run',
                      'glance_store_dirs': f'{home}/glance', 'export_host': '127.0.0.1',
                      'export_port': free_port(), 'profile_boots': False,
                      # All images are of one owner.
                      'changes_per_hour': 0},
        'service_auth': {'auth_type': 'v3password', 'auth_url': keystone, 'username': 'bootcache',
                         'password': standins.PASSWORD, 'project_name': 'service',
                         'user_domain_name': 'Default', 'project_domain_name': 'Default',
                         'region_name': standins.REGION},
        **({'database': {'connection': database.connection}} if database.connection else {})}
    return ''.join(f'[{name}]\n' + ''.join(f'{key} = {value}\n' for key, value in entries.items())
                   for name, entries in sections.items())


@contextlib.contextmanager
def running(broker: Rabbit, database: Database) -> Iterator[Stage]:
    """Make a stage in a temporary directory until the end of the block; its service is not started.

    :param broker: has been started, as has the database.
    """
    home = tempfile.mkdtemp(prefix='bcsv', dir='/tmp')
    os.mkdir(f'{home}/glance')
    glance: dict[str, bytes] = {}
    try:
        with standins.serving(glance, lists_images=True) as keystone:
            stage = Stage(home, broker, keystone, database, glance)
            try:
                yield stage
            finally:
                stage.close()
    finally:
        shutil.rmtree(home, ignore_errors=True)
