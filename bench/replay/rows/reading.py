"""Servers that read a part of their disk from one end to the other, all at the same time.

What the paper does by dd in the guest: requests of 1 MiB, two of them under way as dd has by the
guest's read-ahead. In order, or in an order of each host's own; the servers of a host read alike.
"""

import dataclasses
import os
import random
import select
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbd

from bench.replay import exchanging, player
from bench.replay import host as hosts
from bench.replay.host import HostChild, Image
from bench.replay.peers import Nodes, chain_nodes
from bootcache import qemuimg
from bootcache.storagedaemon import UnixListener

REQUEST = 1 << 20
DEPTH = 2
ON_DEMAND, OURS = 'on demand', 'bootcache first'
# Others than the first have a cache image to get that has all of what is read.
COLD, EXCHANGED = 'bootcache cold', 'bootcache exchange cold'
WAITED = 'bootcache exchange waited cold'
_LATE = COLD, EXCHANGED, WAITED
_PATIENCE = 300.0


class ReadError(Exception):
    """A disk failed, or did not answer."""


def make_image(path: Path, length: int) -> int:
    """Write an image of noise, the same each time; the digest of what its readers read.

    :param length: bytes, a multiple of REQUEST.
    """
    noise = random.Random(length)
    digest = 0
    with open(path, 'wb') as stream:
        for offset in range(0, length, REQUEST):
            data = noise.randbytes(REQUEST)
            stream.write(data)
            digest += digest_of(offset, data)
    return digest


def digest_of(offset: int, data: bytes | bytearray) -> int:
    """Return a part of a digest: their sum is the same in whatever order they are read. Pure."""
    return zlib.crc32(data, offset & 0xffffffff)


def order(length: int, shuffled: bool, host: int) -> list[int]:
    """Return the offsets of the requests in a host's order. Pure.

    :param host: its number; each has an order of its own if they are shuffled.
    """
    offsets = list(range(0, length, REQUEST))
    if shuffled:
        random.Random(host).shuffle(offsets)
    return offsets


@dataclasses.dataclass(frozen=True)
class Reading:
    """What is measured at a time.

    :ivar way: ON_DEMAND, OURS, COLD, EXCHANGED or WAITED.
    :ivar hosts: how many.
    :ivar servers: on each host.
    :ivar shuffled: whether each host reads in an order of its own.
    :ivar length: bytes that each server reads.
    """

    way: str
    hosts: int
    servers: int
    shuffled: bool
    length: int


@dataclasses.dataclass
class _Reader:
    """A server: its connection, what it has still to ask for, and what came of it."""

    handle: nbd.NBD
    offsets: list[int]
    verify: bool
    flying: int = 0
    digest: int = 0
    ended: float = 0.0

    def fill(self) -> None:
        """Keep requests under way."""
        while self.flying < DEPTH and self.offsets:
            self._ask(self.offsets.pop())

    def _ask(self, offset: int) -> None:
        buffer = bytearray(REQUEST)

        def done(error: int) -> int:
            if error:
                raise ReadError(f'reading {REQUEST} bytes at {offset} failed: error {error}')
            if self.verify:
                self.digest += digest_of(offset, buffer)
            self.flying -= 1
            if not self.flying and not self.offsets:
                self.ended = time.monotonic()
            return 1

        self.flying += 1
        self.handle.aio_pread(nbd.Buffer.from_buffer(buffer), offset, done)


def read_all(readers: list[_Reader]) -> None:
    """Read by all of them at the same time, by one thread.

    :raises ReadError: if a disk fails or does not answer.
    """
    busy = {reader.handle.aio_get_fd(): reader for reader in readers}
    while busy:
        poll = select.poll()
        for descriptor, reader in list(busy.items()):
            reader.fill()
            if reader.ended:
                del busy[descriptor]
                continue
            direction = reader.handle.aio_get_direction()
            poll.register(descriptor,
                          (select.POLLIN if direction & nbd.AIO_DIRECTION_READ else 0)
                          | (select.POLLOUT if direction & nbd.AIO_DIRECTION_WRITE else 0))
        if not busy:
            return
        ready = poll.poll(_PATIENCE * 1000)
        if not ready:
            raise ReadError(f'no disk answered within {_PATIENCE:.0f} s')
        for descriptor, events in ready:
            if events & (select.POLLIN | select.POLLERR | select.POLLHUP):
                busy[descriptor].handle.aio_notify_read()
            elif events & select.POLLOUT:
                busy[descriptor].handle.aio_notify_write()


def _disk(host: HostChild, image: Image, way: str, server: int) -> Nodes:
    overlay = host.directory / f'disk{server}'
    if way != ON_DEMAND:
        host.make_overlay(image, overlay)
    else:
        qemuimg.create_overlay(str(overlay), image.virtual_bytes, image.base_uri, 'raw',
                               cluster_bytes=65536, open_backing=False)
    file, top = chain_nodes(overlay, direct=True)
    return [{**file, 'node-name': f'file{server}'},
            {**top, 'node-name': f'disk{server}', 'file': f'file{server}'}]


def prepare(host: HostChild, number: int, images: Sequence[Image], reading: Reading) -> None:
    """Make the disks of a host's servers, and open them: nothing is read yet.

    Where a cache image begins to come with a disk, that is made when it is read.

    :param number: the host's.
    :param images: what each host knows of the image, in turn.
    """
    image = images[number % len(images)]
    host.chain.ensure_running()
    if reading.way in _LATE:
        if reading.way != COLD:
            exchanging.join(host, image, reading.way == WAITED)
        host.service.answers[image.image_id] = image.answer
        assert host.compute.serving.is_on
        return
    if reading.way == OURS:
        host.service.answers[image.image_id] = {**image.answer, 'action': 'cold'}
        assert host.compute.serving.is_on
    _open(host, image, reading)


def _open(host: HostChild, image: Image, reading: Reading) -> None:
    for server in range(reading.servers):
        nodes = _disk(host, image, reading.way, server)
        host.chain.add_nodes(*nodes)
        host.chain.add_export(f'disk{server}', nodes[-1]['node-name'], writable=True)


def read(host: HostChild, number: int, images: Sequence[Image], reading: Reading, verify: bool,
         go: float) -> dict[str, Any]:
    """Read by all servers of a host; seconds of each, digests, and the host's CPU seconds.

    :param number: the host's, for its order.
    :param images: as of ``prepare``.
    :param go: when they begin, in monotonic seconds.
    """
    assert isinstance(host.chain.listener, UnixListener)
    offsets = order(reading.length, reading.shuffled, number)[::-1]
    is_late = reading.way in _LATE
    if is_late:
        time.sleep(max(0.0, go - time.monotonic()))
        began = time.monotonic()
        _open(host, images[number % len(images)], reading)
    readers = [_Reader(player.connect(host.chain.listener.path, f'disk{server}'), list(offsets),
                       verify) for server in range(reading.servers)]
    pids = [host.chain.pid()]
    if reading.way != ON_DEMAND:
        pids.append(host.compute.gateway.daemon.pid())
    before = [hosts.daemon_cpu(pid) for pid in pids], sum(os.times()[:2])
    if not is_late:
        time.sleep(max(0.0, go - time.monotonic()))
        began = time.monotonic()
    read_all(readers)
    cpu = [hosts.daemon_cpu(pid) for pid in pids], sum(os.times()[:2])
    for reader in readers:
        reader.handle.shutdown()
    return {'seconds': [reader.ended - began for reader in readers],
            'digests': [reader.digest for reader in readers],
            'reader_cpu_seconds': cpu[1] - before[1],
            'chain_cpu_seconds': cpu[0][0] - before[0][0],
            'gateway_cpu_seconds': sum(cpu[0][1:]) - sum(before[0][1:])}
