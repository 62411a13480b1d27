"""Hosts that exchange files: a real ``bootcache-exchange`` each, on an address of its own."""

import os
import random
import signal
import subprocess
from types import SimpleNamespace

import apart
from command import command
from functional_tools import free_port, until

from bootcache import savefile
from bootcache.exchange import client
from bootcache.exchange.client import ExchangeClient, Exchanged

PROGRAM = '''
import sys
from bootcache.exchange import daemon
sys.exit(daemon.main(sys.argv[1:]))
'''
NETWORK = '127.0.7.0/24'
MIB = 1 << 20


class Host:
    """One host.

    :param number: its address's last part.
    """

    def __init__(self, swarm, number, directory, **options):
        self.address, self.port = f'127.0.7.{number}', swarm.port
        self.peer = self.address, self.port
        self.home = f'{swarm.directory}/host-{number}'
        os.makedirs(self.home, exist_ok=True)
        self.socket = f'{self.home}/run/control.sock'
        self.file = f'{self.home}/file'
        self.options = {'exchange_address': self.address, 'exchange_port': self.port,
                        'exchange_networks': NETWORK, 'exchange_socket': self.socket,
                        'tls_directory': directory, **options}
        self.client = ExchangeClient(self.socket)
        self.process = None

    def start(self, has_to=True):
        """Start it, and wait until it answers, or until it has ended."""
        with open(f'{self.home}/conf', 'w') as stream:
            stream.write('[bootcache]\n' + ''.join(
                f'{key} = {value}\n' for key, value in self.options.items() if value is not None))
        argv, options = command(PROGRAM, self.home, '--config-file', f'{self.home}/conf')
        with open(f'{self.home}/log', 'w') as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log, **options)
        until(lambda: self.process.poll() is not None or (
            os.path.exists(self.socket) and self._answers()), 'the exchange\'s start')
        assert (self.process.poll() is None) == has_to, self.log()
        return self

    def _answers(self):
        try:
            return 'files' in self.client.files()
        except Exception:
            return False

    def log(self):
        with open(f'{self.home}/log') as stream:
            return stream.read()

    def kill(self):
        """As a host that fails."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(30)

    def content(self):
        with open(self.file, 'rb') as stream:
            return stream.read()


class Swarm:
    """Hosts, and the file that they exchange; the first host is its source."""

    def __init__(self, directory, ca):
        self.directory, self.ca, self.port = directory, ca, free_port()
        self.hosts = []
        self.path = f'{directory}/source'
        with open(self.path, 'wb') as stream:
            stream.write(random.Random(5).randbytes(4 * MIB + 12_345))
        self.sha256 = savefile.file_digest(self.path)
        with open(f'{ca.issue("any")}/ca-cert.pem') as stream:
            self.authority = stream.read()
        self.apart = apart.start()
        self.torrents = self.apart.Torrents()
        self.torrent = SimpleNamespace(**self.torrents.make(self.path, self.authority))

    def host(self, ca=None, **options):
        """Start another host; with options that say otherwise than the others'."""
        number = len(self.hosts) + 1
        self.hosts.append(Host(self, number, (ca or self.ca).issue(f'host-{number}'), **options))
        return self.hosts[-1].start()

    def source(self, seconds=600, **options):
        """Start a host that gives the file."""
        host = self.host(**options)
        assert host.client.give(self.torrent.data, self.path, seconds) == self.torrent.name
        return host

    def wanted(self, *peers, reserve=()):
        """The file, to be had of hosts."""
        return Exchanged(self.torrent.data, self.sha256, tuple(host.peer for host in peers),
                         tuple(host.peer for host in reserve))

    def content(self):
        with open(self.path, 'rb') as stream:
            return stream.read()

    def stop(self):
        for host in self.hosts:
            host.stop()
        self.apart.shutdown()


class Liar:
    """A member that says it has all of a file, and sends other bytes."""

    def __init__(self, swarm, number):
        self.address, self.port = f'127.0.7.{number}', swarm.port
        self.peer = self.address, self.port
        self.sent = swarm.apart.Liar(
            self.address, self.port, NETWORK, swarm.ca.issue(f'liar-{number}'),
            swarm.torrent.data, f'{swarm.directory}/liar-{number}').sent


def fetch(swarm, host, *peers, reserve=(), **options):
    """Have a host get the file of others; what came of it."""
    return client.fetch(host.client, swarm.wanted(*peers, reserve=reserve), host.file, **options)


def has_some(host):
    """Whether something has come to a host."""
    return any(entry['done'] for entry in host.client.files()['files'].values())
