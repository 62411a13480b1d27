"""Compute hosts that have an exporter of their own, by the names in their certificates.

QEMU lets clients in by the daemon, not by the export, and tells whoever it lets in the names of all
exports. So a host has a daemon of its own, on a port of its own, and that keeps its port when this
service is started anew: a gateway that connects again finds it.

Hosts can speak in each other's names on the message bus. So a certificate that comes in a host's
name stands beside those that did before, and takes nothing from them.
"""

import dataclasses
import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bootcache import exception, savefile

VERSION = 1
# So long before the last of the certificates that came in a host's name another one has to have
# come, or the host to have needed something, to count no more. Time in which no host could be heard
# makes none older than another.
_FORGET_SECONDS = 86400
# One that has not asked for so long has left: another one gets its port.
_LEFT_SECONDS = 7 * 86400
_WRITE_SECONDS = 3600
# In whose names a certificate came. Who has come keeps its place, as names cost nothing.
_MOST_HOSTS = 1000


@dataclasses.dataclass(frozen=True)
class Client:
    """Who has an exporter of its own.

    :ivar certificate: the distinguished name in its certificate.
    :ivar port: TCP port of the exporter.
    """

    certificate: str
    port: int

    @property
    def daemon(self) -> str:
        """The exporter's name: of its port, which no two clients have at a time."""
        return f'exporter-{self.port}'


def read_ports(text: str | None) -> range:
    """Read an option with ports: the first and the last of them, with a hyphen.

    :param text: None for no ports.
    :raises ValueError: if it is none.
    """
    if not text:
        return range(0)
    found = re.fullmatch(r'([0-9]{1,5})-([0-9]{1,5})', text)
    ports = range(int(found[1]), int(found[2]) + 1) if found else range(0)
    if not ports or ports[0] < 1 or ports[-1] > 65535:
        raise ValueError(text)
    return ports


@dataclasses.dataclass
class _Known:
    port: int
    hosts: dict[str, float]

    def asked(self) -> float:
        return max(self.hosts.values(), default=0.0)


def _parse(document: Any) -> dict[str, _Known]:
    known = {str(name): _Known(int(one['port']), {str(host): float(asked)
                                                  for host, asked in one['hosts'].items()})
             for name, one in document['clients'].items()}
    if not all(math.isfinite(one.asked()) for one in known.values()) \
            or len({one.port for one in known.values()}) < len(known):
        raise ValueError('a time that is none, or a port of two')
    return known


class Clients:
    """The clients that have a port.

    :param path: of the file; a damaged one counts as empty.
    :param ports: that there are for them.
    :param clock: seconds since the epoch.
    """

    def __init__(self, path: str, ports: Sequence[int], clock: Callable[[], float] = time.time):
        self._path = path
        self._ports = ports
        self._clock = clock
        self._lock = threading.Lock()  # guards the dictionary and what is below it
        self._known = savefile.read_table(path, VERSION, _parse,
                                          'hosts are told of other ports when they ask')
        # The names in the certificates that came in each host's name.
        self._of_host: dict[str, set[str]] = {}
        for name, one in self._known.items():
            for host in one.hosts:
                self._of_host.setdefault(host, set()).add(name)
        # How often something changed.
        self._changes = 0
        self._saving = threading.Lock()  # guards the file and what is below it
        # How many of these changes were written, and when.
        self._written, self._saved = 0, clock()

    def all(self) -> list[Client]:
        """Return those that have a port."""
        with self._lock:
            return [Client(name, one.port) for name, one in self._known.items()]

    def find(self, certificate: str) -> Client | None:
        """Return the client with a name in its certificate; None if it has no port."""
        with self._lock:
            known = self._known.get(certificate)
            return Client(certificate, known.port) if known is not None else None

    def note(self, host: str, certificate: str) -> Client:
        """Note that a host has asked; return it, with its port.

        :param certificate: the name in it.
        :raises MessageRefused: if it came in the names of too many other hosts.
        :raises StorageDaemonError: if there is no port for it.
        """
        now = self._clock()
        with self._lock:
            known = self._known.get(certificate)
            if known is None:
                known = self._known[certificate] = _Known(self._free_port(), {})
            if host not in known.hosts:
                if len(known.hosts) >= _MOST_HOSTS:
                    oldest = min(known.hosts, key=known.hosts.__getitem__)
                    if known.hosts[oldest] >= now - _LEFT_SECONDS:
                        raise exception.MessageRefused(
                            'certificate', f'it came in the names of {_MOST_HOSTS} other hosts')
                    del known.hosts[oldest]
                    self._forget_host(oldest, certificate)
                self._of_host.setdefault(host, set()).add(certificate)
                self._changes += 1
            known.hosts[host] = now
            return Client(certificate, known.port)

    def _forget_host(self, host: str, certificate: str) -> None:
        names = self._of_host[host]
        names.remove(certificate)
        if not names:
            del self._of_host[host]

    def _free_port(self) -> int:
        taken = {one.port for one in self._known.values()}
        for port in self._ports:
            if port not in taken:
                return port
        raise exception.StorageDaemonError(
            f'exporter: all ports of [bootcache]export_ports, {self._ports[0]} to'
            f' {self._ports[-1]}, are given; name more of them')

    def drop(self, running: Callable[[Client], bool]) -> None:
        """Forget clients that have left, or whose port is none of those any more.

        Not before their exporters have ended.
        """
        left = self._clock() - _LEFT_SECONDS
        with self._lock:
            for name, one in list(self._known.items()):
                if (one.port not in self._ports or one.asked() < left) \
                        and not running(Client(name, one.port)):
                    del self._known[name]
                    for host in one.hosts:
                        self._forget_host(host, name)
                    self._changes += 1

    def of(self, hosts: Iterable[str]) -> set[str]:
        """Return the names in the certificates of those of some hosts that have asked.

        That counts as asking: a host whose servers run asks for nothing else.
        """
        now = self._clock()
        found: set[str] = set()
        with self._lock:
            for host in hosts:
                asked = {name: self._known[name].hosts[host]
                         for name in self._of_host.get(host, ())}
                last = max(asked.values(), default=now)
                for name in asked:
                    if asked[name] >= last - _FORGET_SECONDS:
                        # Which of them is the host's own nobody knows: all stay as young.
                        found.add(name)
                        self._known[name].hosts[host] = now
        return found

    def save(self) -> None:
        """Write the file if something changed, and when clients asked now and then.

        What many change while it is written is written once, for all of them: it takes 0.1 s of
        10,000 clients.

        :raises OSError: if it cannot be written.
        """
        now, changes = self._clock(), self._changes
        with self._saving:
            if changes <= self._written and now - self._saved < _WRITE_SECONDS:
                return
            with self._lock:
                changes = self._changes
                document = {'version': VERSION, 'clients': {
                    name: {'port': one.port, 'hosts': dict(one.hosts)}
                    for name, one in self._known.items()}}
            savefile.write_json(self._path, document)
            self._written, self._saved = changes, now
