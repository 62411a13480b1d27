"""A RabbitMQ of a stage's own, as if on another machine: in the namespace of the switch."""

import shutil
from concurrent import futures
from pathlib import Path

from bench.replay import netns
from tools import rabbit

ADDRESS = '10.77.255.1'


class Rabbit:
    """It ends with ``stop``, and with the network in any case.

    :ivar url: as for ``transport_url``.

    :param network: whose switch gets an address.
    :param home: directory, made and removed.
    """

    def __init__(self, network: netns.Network, home: Path):
        self._namespace, self._home = network._switch, home
        self._node = rabbit.Rabbit(str(home), ADDRESS, ['ip', 'netns', 'exec', self._namespace],
                                   self._listens)
        self.url = self._node.url

    def start(self) -> None:
        """Start it, and wait until it answers.

        :raises RabbitError: if it does not.
        """
        self._home.mkdir()
        netns._run('ip', '-n', self._namespace, 'addr', 'add', f'{ADDRESS}/16', 'dev', 'br0')
        self._node.start()

    def stop(self) -> None:
        """End it, and remove its files."""
        self._node.stop()
        shutil.rmtree(self._home, ignore_errors=True)

    def queues(self) -> dict[str, int]:
        """Return its queues, each with the messages that wait in it.

        :raises RabbitError: if it does not tell.
        """
        told = self._node.control('--quiet', 'list_queues', '--no-table-headers', 'name',
                                  'messages')
        return {name: int(count) for name, count in
                (line.rsplit('\t', 1) for line in told.splitlines() if '\t' in line)}

    def _listens(self, address: str, port: int) -> bool:
        # A thread of its own: it stays in the namespace.
        with futures.ThreadPoolExecutor(1, initializer=netns.enter,
                                        initargs=(self._namespace,)) as pool:
            return pool.submit(rabbit.listens, address, port).result()
