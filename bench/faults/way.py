"""A stock nbdkit before the storage node's exporter, whose filters make its answers ill.

It has a port of its own, so that it is another address of the storage node, too.
"""

import contextlib
import subprocess
import time

from bench.replay import children, netns

PORTS = 10819, 10820
_CLOSED_EVERY = 0.3
_UP_SECONDS = 20.0


class Way:
    """The way from hosts to the exporter.

    :param namespace: of the storage node's network.
    :param exporter: its port.
    :ivar port: its own, by which hosts are told to come.
    """

    def __init__(self, namespace: str, exporter: int, port: int = PORTS[0]):
        self._namespace = namespace
        self._exporter = exporter
        self.port = port
        self._process: subprocess.Popen[bytes] | None = None
        self._closed_at: float | None = None
        self._connect()

    @property
    def pid(self) -> int | None:
        """The process."""
        return None if self._process is None else self._process.pid

    def make_ill(self, filters: tuple[str, ...]) -> None:
        """Answer through filters from now on; all connections are closed.

        :param filters: nbdkit's arguments; without any connections are closed again and again.
        """
        self._connect(*filters)
        if not filters:
            self._closed_at = time.monotonic()

    def mend(self) -> None:
        """Answer as the exporter does."""
        self._closed_at = None
        self._connect()

    def tick(self) -> None:
        """Close all connections, if it is time."""
        if self._closed_at is not None and time.monotonic() > self._closed_at + _CLOSED_EVERY:
            self._connect()
            self._closed_at = time.monotonic()

    def end(self) -> None:
        """End it."""
        if self._process is not None:
            # By SIGTERM it would wait for its connections.
            self._process.kill()
            self._process.wait()
            self._process = None

    def _connect(self, *filters: str) -> None:
        self.end()
        own = [one for one in filters if one.startswith('-')]
        self._process = subprocess.Popen(
            ['ip', 'netns', 'exec', self._namespace, 'nbdkit', '--foreground', '--exit-with-parent',
             '--ipaddr', netns.STORAGE_ADDRESS, '--port', str(self.port), *own, 'nbd',
             f'hostname={netns.STORAGE_ADDRESS}', f'port={self._exporter}', 'dynamic-export=true',
             *(one for one in filters if not one.startswith('-'))],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + _UP_SECONDS
        while not self._listens():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise children.ChildError('nbdkit did not come up')
            time.sleep(0.01)

    def _listens(self) -> bool:
        """Tell whether it has its port; nobody is connected, as that would reach the exporter."""
        with contextlib.suppress(OSError), open(f'/proc/{self.pid}/net/tcp') as stream:
            return any(f':{self.port:04X} 00000000:0000 0A' in line for line in stream)
        return False
