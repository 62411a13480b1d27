"""Several servers on one host, each with its own disk and a daemon that stands for its QEMU.

Its functions run on the host, by ``Cluster.everywhere``. What is measured is the time from when all
servers are asked for until a server has booted: making its disk counts, starting daemons does not.
"""

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import Any

from bench.replay.crowd import Crowd
from bench.replay.host import (
    EXPORT,
    HostChild,
    Image,
    Service,
    busy_since,
    daemon_cpu,
    machine_busy,
)
from bench.replay.node import HOST_DIRECTORY
from bench.replay.peers import Peer
from bench.replay.trace import Trace
from bootcache.storagedaemon import StorageDaemon, UnixListener


class Seat:
    """A server's place on a host: what a peer takes for a host, with a directory of its own.

    :ivar number: of the server, from 0 on.
    """

    def __init__(self, host: HostChild, number: int, image: Image):
        self.host = host
        self.number = number
        self.image = image
        # Why the product went the stock way.
        self.refused = ''
        self.directory = Path(HOST_DIRECTORY) / f's{number}'
        self.directory.mkdir()
        self.chain = StorageDaemon('chain', str(self.directory),
                                   UnixListener(str(self.directory / 'nbd')))

    @property
    def name(self) -> str:
        """The host's and the server's, for messages."""
        return f'{self.host.name}, server {self.number}'

    @property
    def compute(self) -> Any:
        """The host's; its servers have one."""
        return self.host.compute

    @property
    def service(self) -> Service:
        """The host's."""
        return self.host.service

    def make_overlay(self, image: Image, path: Path) -> None:
        """Make the server's disk by the product; a second time if it goes the stock way.

        Where Nova would have got the whole image; that it came to this is counted.
        """
        try:
            self.host.make_overlay(image, path)
        except RuntimeError as error:
            self.refused = str(error)
            self.host.make_overlay(image, path)


class _Party:
    """The servers of one run, with the peer that makes their disks."""

    def __init__(self, host: HostChild, peer: Peer, images: list[Image], phase: str):
        self.host, self.peer, self.phase = host, peer, phase
        self.seats = [Seat(host, number, image) for number, image in enumerate(images)]

    def boot(self, seat: Seat, trace: Trace, crowd: Crowd, made: dict[int, float]) -> None:
        """Make a server's disk, open it, and have it played."""
        try:
            nodes = self.peer.disk(seat, seat.image, self.phase)  # type: ignore[arg-type]
            made[seat.number] = time.monotonic()
            seat.chain.add_nodes(*nodes)
            seat.chain.add_export(EXPORT, nodes[-1]['node-name'], writable=True)
            assert isinstance(seat.chain.listener, UnixListener)
            crowd.add(seat.number, seat.chain.listener.path, EXPORT, trace)
        except BaseException as error:
            crowd.fail(error)


_parties: dict[str, _Party] = {}


def prepare(host: HostChild, number: int, peer: Peer, images: list[Image], phase: str,
            options: dict[str, str]) -> None:
    """Start what runs before servers are asked for.

    :param number: the host's; not used here.
    :param images: of each server.
    :param options: more of the product's.
    """
    if host._compute is None:
        host.options = dict(options)
    party = _parties[host.name] = _Party(host, peer, images, phase)
    for seat in party.seats:
        host.service.answers[seat.image.image_id] = seat.image.answer
        seat.chain.ensure_running()
    for seat in party.seats:
        peer.prepare(seat, seat.image, phase)  # type: ignore[arg-type]


def boot(host: HostChild, number: int, traces: list[Trace], first: bool, scale: float,
         overhead: float, verify: bool, go: float) -> dict[str, Any]:
    """Boot all servers; seconds of each from ``go``, CPU seconds, digests.

    :param traces: of each server.
    :param first: whether the others are booted when the first has booted.
    :param scale: factor of the think times.
    :param overhead: of the player, in seconds a request.
    :param go: when the servers are asked for, in monotonic seconds.
    """
    party = _parties[host.name]
    pids = [seat.chain.pid() for seat in party.seats]
    gateway = host._compute.gateway.daemon.pid() if host._compute is not None else None
    helper = getattr(party.peer, 'helper', lambda: None)()
    crowd = Crowd(scale, verify, overhead)
    made: dict[int, float] = {}

    def start(which: list[Seat]) -> None:
        for seat in which:
            threading.Thread(target=party.boot, args=(seat, traces[seat.number], crowd, made),
                             daemon=True).start()

    def ended(index: int) -> None:
        if first and index == 0:
            start(party.seats[1:])

    time.sleep(max(0.0, go - time.monotonic()))
    before = [daemon_cpu(pid) for pid in (*pids, gateway, helper)], sum(os.times()[:4])
    before_busy = machine_busy()
    start(party.seats[:1] if first else party.seats)
    found = crowd.run(len(party.seats), ended)
    spent = [daemon_cpu(pid) - past for pid, past in
             zip((*pids, gateway, helper), before[0], strict=True)]
    busy = busy_since(before_busy)
    return {'each': [one.end - go for one in found],
            'waited': [one.waited for one in found],
            'written': [one.written for one in found],
            'disks': [made[seat.number] - go for seat in party.seats],
            'refused': [seat.refused for seat in party.seats if seat.refused],
            'digests': [one.digest for one in found],
            'player_cpu_seconds': sum(os.times()[:4]) - before[1],
            'chain_cpu_seconds': sum(spent[:-2]), 'host_cpu_seconds': sum(spent[-2:]),
            'machine_busy': busy}


def process(host: HostChild, number: int) -> int:
    """Return the host's process; what it starts goes where it is."""
    return os.getpid()


def finish(host: HostChild, number: int) -> None:
    """End the servers and remove their disks; what the host keeps stays."""
    party = _parties.pop(host.name, None)
    if party is None:
        return
    for seat in party.seats:
        seat.chain.stop()
    for seat in party.seats:
        # There is no disk where making it failed.
        with contextlib.suppress(FileNotFoundError):
            party.peer.finish(seat, party.phase)  # type: ignore[arg-type]
        for path in seat.directory.iterdir():
            path.unlink()
        seat.directory.rmdir()
