"""A RabbitMQ of a stage's own, as if on another machine: in the namespace of the switch."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

from bench.replay import netns

ADDRESS = '10.77.255.1'
_PORT, _NAMES_PORT, _DISTRIBUTION_PORT = 5672, 4369, 25672
_START_SECONDS, _END_SECONDS = 240.0, 30.0
_PROGRAMS = '/usr/lib/rabbitmq/bin'


class RabbitError(Exception):
    """It does not start, or does not answer."""


class Rabbit:
    """It ends with ``stop``, and with the network in any case.

    :ivar url: as for ``transport_url``.

    :param network: whose switch gets an address.
    :param home: directory, made and removed.
    """

    def __init__(self, network: netns.Network, home: Path):
        self._namespace, self._home = network._switch, home
        self._started: list[subprocess.Popen[bytes]] = []
        self.url = f'rabbit://guest:guest@{ADDRESS}:{_PORT}/'
        self._environment = {
            'PATH': os.environ['PATH'], 'HOME': str(home), 'ERL_EPMD_PORT': str(_NAMES_PORT),
            'ERL_EPMD_ADDRESS': '127.0.0.1', 'RABBITMQ_DIST_PORT': str(_DISTRIBUTION_PORT),
            'RABBITMQ_CONF_ENV_FILE': f'{home}/env.conf',
            'RABBITMQ_CONFIG_FILE': f'{home}/rabbit.conf',
            'RABBITMQ_ENABLED_PLUGINS_FILE': f'{home}/plugins',
            'RABBITMQ_LOG_BASE': f'{home}/log', 'RABBITMQ_MNESIA_BASE': f'{home}/mnesia',
            'RABBITMQ_PID_FILE': f'{home}/pid', 'RABBITMQ_NODENAME': 'stage@localhost',
            'RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS': '-kernel inet_dist_use_interface {127,0,0,1}',
            'RABBITMQ_SERVER_START_ARGS': '+S 1:1'}

    def start(self) -> None:
        """Start it, and wait until it answers.

        :raises RabbitError: if it does not.
        """
        self._home.mkdir()
        for name, text in {'env.conf': '', 'plugins': '[].', 'rabbit.conf': (
                f'listeners.tcp.1 = {ADDRESS}:{_PORT}\nlog.file.level = warning\n'
                # The stage's hosts are other machines to it.
                'loopback_users.guest = false\nvm_memory_high_watermark.absolute = 1GB\n'
                'disk_free_limit.absolute = 50MB\n')}.items():
            (self._home / name).write_text(text)
        netns._run('ip', '-n', self._namespace, 'addr', 'add', f'{ADDRESS}/16', 'dev', 'br0')
        self._begin('epmd', '-address', '127.0.0.1', '-port', str(_NAMES_PORT))
        self._until_it_listens('127.0.0.1', _NAMES_PORT)
        self._begin(f'{_PROGRAMS}/rabbitmq-server')
        self._until_it_listens(ADDRESS, _PORT)

    def stop(self) -> None:
        """End it, and remove its files."""
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
        shutil.rmtree(self._home, ignore_errors=True)

    def queues(self) -> dict[str, int]:
        """Return its queues, each with the messages that wait in it.

        :raises RabbitError: if it does not tell.
        """
        done = subprocess.run(
            [*self._enter(), f'{_PROGRAMS}/rabbitmqctl', '--quiet', 'list_queues',
             '--no-table-headers', 'name', 'messages'], env=self._environment,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RabbitError(f'rabbitmqctl failed: {done.stderr.strip() or done.stdout.strip()}')
        return {name: int(count) for name, count in
                (line.rsplit('\t', 1) for line in done.stdout.splitlines() if '\t' in line)}

    def _enter(self) -> list[str]:
        return ['ip', 'netns', 'exec', self._namespace]

    def _begin(self, *command: str) -> None:
        with open(self._home / 'out', 'ab') as out:
            self._started.append(subprocess.Popen(
                # Erlang's machine leaves a dump where it is, if it is killed.
                [*self._enter(), *command], env=self._environment, cwd=self._home,
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True))

    def _until_it_listens(self, address: str, port: int) -> None:
        found = threading.Event()

        def look() -> None:
            # A thread of its own: it stays in the namespace.
            netns.enter(self._namespace)
            deadline = time.monotonic() + _START_SECONDS
            while time.monotonic() < deadline and self._started[-1].poll() is None:
                with contextlib.suppress(OSError), \
                        socket.create_connection((address, port), timeout=1):
                    found.set()
                    return
                time.sleep(0.1)

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        if not found.is_set():
            raise RabbitError(f'nobody listens on port {port}:'
                              f' {(self._home / "out").read_text()[-2000:]}')
