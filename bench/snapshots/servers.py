"""Servers' disks, and what their hosts do with them: send what differs, or flatten and upload all.

A host is a network namespace; what it runs there is QEMU's own, by the product's calls.
"""

import contextlib
import dataclasses
import json
import os
import random
import socket
import subprocess
import threading
from collections.abc import Callable
from concurrent import futures
from typing import Any

from bench.replay import netns
from bench.snapshots.guestwrites import BLOCK, PIECES
from bootcache import qemuimg
from bootcache.rpc.messages import SnapshotProgress
from nova_bootcache import storagenode

_SEND_SECONDS = 1800
_PIECE = 1 << 20


def qemu(*arguments: object) -> str:
    """Run a program, and return what it prints."""
    return subprocess.run([str(word) for word in arguments], check=True, capture_output=True,
                          text=True, stdin=subprocess.DEVNULL).stdout


def virtual_bytes(path: str, image_format: str) -> int:
    """Return the size of an image's disk."""
    return int(json.loads(qemu('qemu-img', 'info', '--output=json', '-f', image_format,
                               path))['virtual-size'])


@dataclasses.dataclass(frozen=True)
class Disk:
    """A server's disk.

    :ivar path: of the overlay.
    :ivar base: path of what it is on, as its host has that.
    :ivar base_format: raw or qcow2.
    :ivar virtual_bytes: its size.
    :ivar changed_bytes: that its server has written, in whole blocks of 4 KiB.
    """

    path: str
    base: str
    base_format: str
    virtual_bytes: int
    changed_bytes: int


def make_disk(path: str, base: str, base_format: str, changed: int, seed: int) -> Disk:
    """Make an overlay as the product does, and write to it at random places.

    :param changed: bytes to write; what is written twice counts once.
    """
    virtual = virtual_bytes(base, base_format)
    qemuimg.create_overlay(path, virtual, base, base_format, cluster_bytes=131072,
                           subclusters=True)
    source, blocks, commands = random.Random(seed), set[int](), list[str]()
    while (left := changed - len(blocks) * BLOCK) > 0:
        length = min(source.choice(PIECES), max(BLOCK, left // BLOCK * BLOCK))
        begin = source.randrange((virtual - length) // BLOCK) * BLOCK
        commands.append(f'write -q -P {source.randrange(1, 255)} {begin} {length}')
        blocks.update(range(begin // BLOCK, (begin + length) // BLOCK))
    subprocess.run(['qemu-io', '-f', 'qcow2', path], input='\n'.join(commands), text=True,
                   check=True, stdout=subprocess.DEVNULL)
    return Disk(path, base, base_format, virtual, len(blocks) * BLOCK)


def at_host(host: str, call: Callable[[], None]) -> None:
    """Do something in a host's namespace, and wait for it."""
    done: futures.Future[None] = futures.Future()

    def run() -> None:
        try:
            netns.enter(host)
            call()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    threading.Thread(target=run, daemon=True).start()
    done.result()


def send(host: str, told: SnapshotProgress, disk: Disk) -> None:
    """Send what a disk holds, as a host does: see sender.py.

    :param told: what the storage service tells the host.
    """
    assert told.server is not None
    node = storagenode.nbd_node(*told.server, told.export)
    at_host(host, lambda: qemuimg.send_own(disk.path, disk.base, disk.base_format, node,
                                           seconds=_SEND_SECONDS, check=lambda: None))


def flatten_and_upload(host: str, address: str, disk: Disk,
                       take: Callable[[Any, int], None]) -> None:
    """Make a full image of a disk at its host, as stock Nova does, and send all of it to Glance.

    :param address: of the storage node, for the upload.
    :param take: what Glance's store does with the bytes: a stream, and how many there are.
    """
    flat = f'{disk.path}.flat'
    at_host(host, lambda: void(qemu('qemu-img', 'convert', '-f', 'qcow2', '-O', 'qcow2', disk.path,
                                    flat)))
    with socket.create_server((address, 0)) as server:
        port = server.getsockname()[1]

        def upload() -> None:
            with socket.create_connection((address, port)) as one, open(flat, 'rb') as stream:
                one.sendfile(stream)

        with futures.ThreadPoolExecutor(1) as pool:
            sent = pool.submit(at_host, host, upload)
            connection, _peer = server.accept()
            with connection, connection.makefile('rb', _PIECE) as stream:
                take(stream, os.stat(flat).st_size)
            sent.result()
    with contextlib.suppress(FileNotFoundError):
        os.unlink(flat)


def void(_value: object) -> None:
    """Let a value be none."""
