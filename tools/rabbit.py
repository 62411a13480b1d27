"""A private RabbitMQ on free ports, for tests and benchmarks."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tools.ports import free_port

_LOOPBACK = '127.0.0.1'
_PROGRAMS = '/usr/lib/rabbitmq/bin'
_START_SECONDS, _END_SECONDS = 600.0, 30.0


class RabbitError(Exception):
    """RabbitMQ does not start, or refuses a command."""


def listens(address: str, port: int) -> bool:
    """Return whether a TCP port accepts connections."""
    with contextlib.suppress(OSError), socket.create_connection((address, port), 1):
        return True
    return False


class Rabbit:
    """A RabbitMQ node with an epmd of its own.

    :ivar url: as for ``transport_url``.

    :param home: directory of the node; short.
    :param address: on which it listens.
    :param enter: words in front of each command, by which it runs elsewhere.
    :param is_listening: whether an address and port, as they are there, accept connections.
    """

    def __init__(self, home: str, address: str = _LOOPBACK, enter: Sequence[str] = (),
                 is_listening: Callable[[str, int], bool] = listens):
        self._home, self._address = home, address
        self._enter, self._is_listening = list(enter), is_listening
        self._port, self._names_port = free_port(), free_port()
        self.url = f'rabbit://guest:guest@{address}:{self._port}/'
        self._environment = {
            'PATH': os.environ['PATH'], 'HOME': home, 'ERL_EPMD_PORT': str(self._names_port),
            'ERL_EPMD_ADDRESS': _LOOPBACK, 'RABBITMQ_DIST_PORT': str(free_port()),
            'RABBITMQ_CONF_ENV_FILE': f'{home}/env.conf',
            'RABBITMQ_CONFIG_FILE': f'{home}/rabbit.conf',
            'RABBITMQ_ENABLED_PLUGINS_FILE': f'{home}/plugins',
            'RABBITMQ_LOG_BASE': f'{home}/log', 'RABBITMQ_MNESIA_BASE': f'{home}/mnesia',
            'RABBITMQ_PID_FILE': f'{home}/pid', 'RABBITMQ_NODENAME': f'bc{os.getpid()}@localhost',
            'RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS': '-kernel inet_dist_use_interface {127,0,0,1}',
            'RABBITMQ_SERVER_START_ARGS': '+S 1:1'}
        self._started: list[subprocess.Popen[bytes]] = []

    @property
    def pids(self) -> list[int]:
        """The ids of the processes that were started; Erlang's machine is below one of them."""
        return [process.pid for process in self._started]

    def start(self) -> None:
        """Start it, and wait until it accepts connections.

        :raises RabbitError: if it ends, or takes longer than ten minutes.
        """
        for name, text in {'env.conf': '', 'plugins': '[].', 'rabbit.conf': (
                f'listeners.tcp.1 = {self._address}:{self._port}\nlog.file.level = warning\n'
                # Clients are other machines to it where the address is none of the loopback's.
                'loopback_users.guest = false\nvm_memory_high_watermark.absolute = 1GB\n'
                'disk_free_limit.absolute = 50MB\n')}.items():
            Path(self._home, name).write_text(text)
        self._begin(_LOOPBACK, self._names_port, 'epmd', '-address', _LOOPBACK, '-port',
                    str(self._names_port))
        self._begin(self._address, self._port, f'{_PROGRAMS}/rabbitmq-server')

    def stop(self) -> None:
        """End it; its files stay."""
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

    def control(self, *command: str) -> str:
        """Run a command of rabbitmqctl, and return what it prints.

        :raises RabbitError: if it fails.
        """
        done = subprocess.run([*self._enter, f'{_PROGRAMS}/rabbitmqctl', *command],
                              env=self._environment, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, check=False)
        if done.returncode:
            raise RabbitError(f'rabbitmqctl {command[0]}: {done.stderr or done.stdout}')
        return done.stdout

    def _begin(self, address: str, port: int, *command: str) -> None:
        out = Path(self._home, 'out')
        with open(out, 'ab') as stream:
            process = subprocess.Popen(
                # Erlang's machine leaves a dump where it is, if it is killed.
                [*self._enter, *command], env=self._environment, cwd=self._home,
                stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True)
        self._started.append(process)
        deadline = time.monotonic() + _START_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            if self._is_listening(address, port):
                return
            time.sleep(0.05)
        raise RabbitError(f'{command[0]} does not listen on port {port}:'
                          f' {out.read_text(errors="replace")[-2000:]}')


@contextlib.contextmanager
def running() -> Iterator[Rabbit]:
    """Run a RabbitMQ on the loopback interface, in a temporary directory, until the block ends.

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
