"""A private RabbitMQ on free ports of the loopback interface, for tests and benchmarks."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator

from tools.ports import free_port

_PROGRAMS = '/usr/lib/rabbitmq/bin'
_START_SECONDS, _END_SECONDS = 600.0, 30.0


class RabbitError(Exception):
    """RabbitMQ does not start."""


class Rabbit:
    """A RabbitMQ node with an epmd of its own; use it as ``running`` gives it.

    :ivar url: as for ``transport_url``.

    :param home: a directory of the node's own; short.
    """

    def __init__(self, home: str):
        self._home = home
        self._port, self._names_port = free_port(), free_port()
        self.url = f'rabbit://guest:guest@127.0.0.1:{self._port}/'
        self._environment = {
            'PATH': os.environ['PATH'], 'HOME': home, 'ERL_EPMD_PORT': str(self._names_port),
            'ERL_EPMD_ADDRESS': '127.0.0.1', 'RABBITMQ_DIST_PORT': str(free_port()),
            'RABBITMQ_CONF_ENV_FILE': f'{home}/env.conf',
            'RABBITMQ_CONFIG_FILE': f'{home}/rabbit.conf',
            'RABBITMQ_ENABLED_PLUGINS_FILE': f'{home}/plugins',
            'RABBITMQ_LOG_BASE': f'{home}/log', 'RABBITMQ_NODENAME': f'{_name(home)}@localhost',
            'RABBITMQ_MNESIA_BASE': f'{home}/mnesia', 'RABBITMQ_PID_FILE': f'{home}/pid',
            'RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS': '-kernel inet_dist_use_interface {127,0,0,1}',
            'RABBITMQ_SERVER_START_ARGS': '+S 1:1'}
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start RabbitMQ, and wait until it accepts connections.

        :raises RabbitError: if it ends, or does not within ten minutes.
        """
        for name, text in {'env.conf': '', 'plugins': '[].', 'rabbit.conf':
                           f'listeners.tcp.1 = 127.0.0.1:{self._port}\nlog.file.level = warning\n'
                           'vm_memory_high_watermark.absolute = 1GB\n'
                           'disk_free_limit.absolute = 50MB\n'}.items():
            with open(f'{self._home}/{name}', 'w') as stream:
                stream.write(text)
        self._begin(self._names_port, 'epmd', '-address', '127.0.0.1', '-port',
                    str(self._names_port))
        self._begin(self._port, f'{_PROGRAMS}/rabbitmq-server')

    def stop(self) -> None:
        """End RabbitMQ and its epmd."""
        for process in reversed(self._started):
            # Each leads a group: the script, Erlang's machine and its helpers.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._started = []

    @property
    def pids(self) -> list[int]:
        """The ids of the processes that were started; Erlang's machine is below one of them."""
        return [process.pid for process in self._started]

    def control(self, *command: str) -> str:
        """Run a command of rabbitmqctl, and return what it prints."""
        return subprocess.run([f'{_PROGRAMS}/rabbitmqctl', *command], env=self._environment,
                              check=True, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True).stdout

    def _begin(self, port: int, *command: str) -> None:
        with open(f'{self._home}/out', 'ab') as out:
            process = subprocess.Popen(
                # Erlang's machine leaves a dump where it is, if it is killed.
                command, env=self._environment, cwd=self._home, stdin=subprocess.DEVNULL,
                stdout=out, stderr=out, start_new_session=True)
        self._started.append(process)
        deadline = time.monotonic() + _START_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(('127.0.0.1', port), 1):
                return
            time.sleep(0.05)
        with open(f'{self._home}/out', errors='replace') as stream:
            raise RabbitError(f'{command[0]} does not listen on port {port}: {stream.read()}')


def _name(home: str) -> str:
    return ''.join(filter(str.isalnum, os.path.basename(home)))


@contextlib.contextmanager
def running() -> Iterator[Rabbit]:
    """Run a RabbitMQ in a temporary directory until the end of the block.

    :raises RabbitError: if it does not start.
    """
    home = tempfile.mkdtemp(prefix='bcmq', dir='/tmp')
    rabbit = Rabbit(home)
    try:
        rabbit.start()
        yield rabbit
    finally:
        rabbit.stop()
        shutil.rmtree(home, ignore_errors=True)
