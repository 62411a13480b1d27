"""A storage node and hosts in namespaces, each with the product's exchange, and what they send."""

import concurrent.futures
import contextlib
import dataclasses
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench.replay import netns
from bootcache import exception, qemuimg, savefile
from bootcache.exchange.client import ExchangeClient, Exchanged, Peer, fetch
from bootcache.storagedaemon import StorageDaemon, TcpListener
from glance_bootcache.exchange.offers import Lines
from glance_bootcache.exchange.slots import Slots
from glance_bootcache.smallca import SmallCA
from nova_bootcache.storagenode import nbd_node

_EXCHANGE_PORT, _NBD_PORT = 10811, 10810
_NETWORK = '10.77.0.0/16'
_START_SECONDS = 60
_MOST_SECONDS = 1800.0
_EXPORT = 'file'
_CHUNK = 1 << 20


def _address(number: int) -> str:
    """Return the address of a host; the storage node is number 1, as netns has it."""
    return f'10.77.{number >> 8}.{number & 255}'


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of a fetch.

    :ivar host: its number.
    :ivar seconds: that it took.
    :ivar fault: why it failed; empty if it did not.
    """

    host: int
    seconds: float
    fault: str


class Place:
    """The storage node and its hosts.

    :param network: of them.
    :param directory: for all files; a tmpfs, or what is measured is the disk.
    :param size: of the file, in bytes.
    """

    def __init__(self, network: netns.Network, directory: Path, size: int):
        self._network = network
        self._directory = directory
        self._path = directory / 'source'
        noise = random.Random(7)
        with open(self._path, 'wb') as stream:
            for done in range(0, size, _CHUNK):
                stream.write(noise.randbytes(min(_CHUNK, size - done)))
        self.size = size
        self._sha256 = savefile.file_digest(str(self._path))
        self._ca = SmallCA(str(directory / 'ca'))
        self._other_ca = SmallCA(str(directory / 'other-ca'))
        self._names = [network.storage, *network.hosts]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._exporter: StorageDaemon | None = None

    def _client(self, number: int) -> ExchangeClient:
        return ExchangeClient(str(self._directory / f'e{number}' / 'run' / 'control.sock'))

    def start_exporter(self) -> None:
        """Serve the file by NBD, as the exporter does."""
        daemon = StorageDaemon('exporter', str(self._directory / 'exporter'),
                               TcpListener(_address(1), _NBD_PORT))
        self._within(1, daemon.ensure_running)
        daemon.add_nodes({'driver': 'raw', 'node-name': _EXPORT, 'read-only': True, 'file': {
            'driver': 'file', 'filename': str(self._path)}})
        daemon.add_export(_EXPORT, _EXPORT)
        self._exporter = daemon

    def _within(self, number: int, call: Callable[[], object]) -> None:
        """Call something in a host's namespace; what it starts is there as well."""
        errors: list[Exception] = []

        def run() -> None:
            try:
                netns.enter(self._names[number - 1])
                call()
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]

    def start_exchanges(self, numbers: Sequence[int], slow: int = 0, stranger: int = 0) -> None:
        """Start the exchange of some hosts, and wait until all answer.

        :param slow: the number of a host that gives next to nothing; 0 for none.
        :param stranger: of one whose certificate is of another CA; 0 for none.
        """
        for number in numbers:
            home = self._directory / f'e{number}'
            home.mkdir(exist_ok=True)
            conf = home / 'conf'
            options = {
                'exchange_address': _address(number), 'exchange_port': _EXCHANGE_PORT,
                'exchange_networks': _NETWORK, 'exchange_socket': home / 'run' / 'control.sock',
                'tls_directory': (self._other_ca if number == stranger else self._ca).issue(
                    f'host-{number}'),
                'exchange_upload_rate': '64KiB' if number == slow else '0'}
            conf.write_text('[bootcache]\n' + ''.join(
                f'{name} = {value}\n' for name, value in options.items()))
            with open(home / 'log', 'wb') as log:
                self._processes[number] = subprocess.Popen(
                    ['ip', 'netns', 'exec', self._names[number - 1], sys.executable, '-W', 'ignore',
                     '-m', 'bootcache.exchange.daemon', '--config-file', str(conf)],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + _START_SECONDS
        for number in numbers:
            while not self._answers(number):
                if time.monotonic() > deadline or self._processes[number].poll() is not None:
                    log_text = (self._directory / f'e{number}' / 'log').read_text()
                    raise netns.NetworkError(f'the exchange of host {number} does not start:'
                                             f' {log_text}')
                time.sleep(0.05)

    def _answers(self, number: int) -> bool:
        try:
            self._client(number).files()
        except exception.ExchangeFailed:
            return False
        return True

    def stop_exchanges(self) -> None:
        """End all exchanges; their files go."""
        for process in self._processes.values():
            if process.poll() is None:
                process.terminate()
        for process in self._processes.values():
            process.wait(30)
        self._processes.clear()
        for path in self._directory.glob('got-*'):
            path.unlink()

    def kill(self, number: int) -> None:
        """End a host's exchange as a failure does; ``ip netns exec`` has become it."""
        self._processes[number].kill()
        self._processes[number].wait()

    def given(self) -> int:
        """Return the bytes of the file that the storage node's exchange has given."""
        return int(self._client(1).files()['given'])

    def stop(self) -> None:
        """End all that runs."""
        self.stop_exchanges()
        if self._exporter is not None:
            self._exporter.stop()

    def sent(self) -> int:
        """Return the bytes that the storage node has sent, with all headers."""
        told = subprocess.run(
            ['ip', '-n', self._names[0], '-s', '-j', 'link', 'show', 'eth0'], check=True,
            capture_output=True, text=True).stdout
        return int(json.loads(told)[0]['stats64']['tx']['bytes'])

    def copied(self, numbers: Sequence[int]) -> list[Outcome]:
        """Have hosts copy the file from the storage node; what came of it at each."""
        return self._all(numbers, self._copy)

    def _copy(self, number: int) -> None:
        netns.enter(self._names[number - 1])
        target = str(self._directory / f'got-{number}')
        qemuimg.copy_raw({'driver': 'raw', 'file': nbd_node(_address(1), _NBD_PORT, _EXPORT)},
                         target, seconds=_MOST_SECONDS, stalled=_MOST_SECONDS)
        self._check(target)

    def _start_liar(self, number: int, torrent: bytes) -> None:
        path = self._directory / 'torrent'
        path.write_bytes(torrent)
        self._processes[number] = subprocess.Popen(
            ['ip', 'netns', 'exec', self._names[number - 1], sys.executable, '-W', 'ignore', '-m',
             'bench.exchange.liar', _address(number), str(_EXCHANGE_PORT), _NETWORK,
             self._ca.issue(f'liar-{number}'), str(path)], stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + _START_SECONDS
        while not self._listens(number):
            if time.monotonic() > deadline:
                raise netns.NetworkError('the liar does not start')
            time.sleep(0.05)

    def _listens(self, number: int) -> bool:
        told = subprocess.run(['ip', 'netns', 'exec', self._names[number - 1], 'ss', '-Hltn'],
                              check=True, capture_output=True, text=True).stdout
        return f':{_EXCHANGE_PORT} ' in told

    def exchanged(self, numbers: Sequence[int], disturb: Callable[[], None] = lambda: None,
                  liar: int = 0, slots: int = 0) -> list[Outcome]:
        """Have hosts get the file by exchange, in the product's order; what came of it at each.

        :param disturb: is called when they have begun.
        :param liar: one of the numbers, who sends other bytes, and has no exchange; 0 for none.
        :param slots: how many get it from the storage node at the same time, as of a full base; 0:
            all may, when others do not go on, as of a cache image.
        """
        storage = self._client(1)
        torrent, _name = storage.describe(str(self._path))
        storage.give(torrent, str(self._path), _MOST_SECONDS)
        lines = Lines(_MOST_SECONDS, (_address(1), _EXCHANGE_PORT))
        source = (_address(1), _EXCHANGE_PORT)
        held = Slots(slots)
        told: dict[int, tuple[Peer, ...]] = {
            number: lines.join('file', str(number), (_address(number), _EXCHANGE_PORT), '',
                               lambda needs, number=number:
                               not (slots and held.take(str(number), waits=needs)))
            for number in numbers}
        if liar:
            self._start_liar(liar, torrent)

        def get(number: int) -> None:
            wanted = Exchanged(torrent, self._sha256, told[number],
                               () if slots and source not in told[number] else (source,))
            target = str(self._directory / f'got-{number}')
            fetch(self._client(number), wanted, target, keep_seconds=_MOST_SECONDS)

        return self._all([number for number in numbers if number != liar], get, disturb)

    def _check(self, path: str) -> None:
        if savefile.file_digest(path) != self._sha256:
            raise netns.NetworkError(f'{path} is another file')

    @staticmethod
    def _all(numbers: Sequence[int], work: Callable[[int], None],
             disturb: Callable[[], None] = lambda: None) -> list[Outcome]:
        """Do something for all hosts at once; what came of it at each."""
        go = threading.Event()

        def run(number: int) -> Outcome:
            go.wait()
            began, fault = time.monotonic(), ''
            try:
                work(number)
            except (exception.BootcacheError, OSError) as error:
                fault = str(error)
            return Outcome(number, time.monotonic() - began, fault)

        with concurrent.futures.ThreadPoolExecutor(len(numbers)) as pool:
            found = [pool.submit(run, number) for number in numbers]
            go.set()
            disturb()
            return [one.result() for one in found]


@contextlib.contextmanager
def place(hosts: int, rate: int, directory: Path, size: int) -> Iterator[Place]:
    """Make a storage node and hosts; they end whatever happens.

    :param rate: of each link, bits a second.
    :param size: of the file, in bytes.
    """
    os.makedirs(directory, exist_ok=True)
    with netns.network(hosts, rate) as network:
        made = Place(network, directory, size)
        try:
            made.start_exporter()
            yield made
        finally:
            made.stop()
