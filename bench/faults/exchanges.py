"""The exchanges of a stage, one of each machine: the product's own processes."""

import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.faults.kinds import HOST, STORAGE
from bench.replay import netns
from bootcache import exception
from bootcache.exchange.client import ExchangeClient
from glance_bootcache.smallca import SmallCA

_PORT = 10811
# Of a host that has asked, and is away.
NOBODY = '10.77.0.200', _PORT
# As bench/replay/netns.py has them.
_ADDRESSES = {STORAGE: '10.77.0.1', HOST: '10.77.0.2'}
_NETWORK = '10.77.0.0/16'
_START_SECONDS = 120


class Exchanges:
    """Those of the storage node and the host, if there are any.

    :param root: of the stage.
    :param network: with one host.
    :param are_wanted: there are none otherwise.
    """

    def __init__(self, root: Path, network: netns.Network, are_wanted: bool):
        self._directory = root / 'x'
        self._namespaces = {STORAGE: network.storage, HOST: network.hosts[0]}
        self._are_wanted = are_wanted
        self._processes: list[subprocess.Popen[bytes]] = []

    def options(self, name: str) -> dict[str, Any]:
        """Return the options of a machine's service."""
        return {'exchange_address': _ADDRESSES[name], 'exchange_port': _PORT,
                'exchange_socket': str(self._directory / name / 'run' / 'control.sock')} \
            if self._are_wanted else {}

    def start(self) -> None:
        """Start them, and wait until they answer.

        :raises NetworkError: if one does not.
        """
        for name in self._namespaces if self._are_wanted else ():
            home = self._directory / name
            home.mkdir(parents=True)
            options = {**self.options(name), 'exchange_networks': _NETWORK,
                       'tls_directory': SmallCA(str(self._directory / 'ca')).issue(name)}
            (home / 'conf').write_text('[bootcache]\n' + ''.join(
                f'{key} = {value}\n' for key, value in options.items()))
            with open(home / 'log', 'wb') as log:
                self._processes.append(subprocess.Popen(
                    ['ip', 'netns', 'exec', self._namespaces[name], sys.executable, '-W', 'ignore',
                     '-m', 'bootcache.exchange.daemon', '--config-file', str(home / 'conf')],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log))
            deadline = time.monotonic() + _START_SECONDS
            while not self._answers(name):
                if time.monotonic() > deadline or self._processes[-1].poll() is not None:
                    raise netns.NetworkError(f'the exchange of the {name} does not start:'
                                             f' {(home / "log").read_text()}')
                time.sleep(0.05)

    def _answers(self, name: str) -> bool:
        try:
            ExchangeClient(self.options(name)['exchange_socket']).files()
        except exception.ExchangeFailed:
            return False
        return True

    def pids(self) -> set[int]:
        """Return their processes."""
        return {process.pid for process in self._processes}

    def end(self) -> None:
        """End them; their files go."""
        for process in self._processes:
            process.kill()
            process.wait()
        self._processes.clear()
        shutil.rmtree(self._directory, ignore_errors=True)
