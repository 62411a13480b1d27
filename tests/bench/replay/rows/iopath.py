"""The block I/O path of one server: fio against the disk's export, for each chain that it can have.

A qemu-storage-daemon opens the chain as QEMU would and exports it over NBD on a unix socket; fio's
nbd engine is the guest. That way is in every figure, the raw disk's included. All files of the host
are in memory and opened with O_DIRECT, so that the path is measured and not a disk.
"""

import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from bootcache import exception, qemuimg
from bootcache.storagedaemon import UnixListener
from tests.bench.replay.host import HostChild, Image
from tests.bench.replay.peers import Nodes, chain_nodes

RAW, STOCK, ON_DEMAND = 'raw', 'stock overlay', 'on demand'
INSIDE, OUTSIDE = 'bootcache, in the cache image', 'bootcache, not in the cache image'
SETTLED = 'bootcache, settled'
PATHS = RAW, STOCK, INSIDE, OUTSIDE, SETTLED, ON_DEMAND
READ, SEQUENTIAL = 'random 4k read', 'sequential 1M read'
FIRST, AGAIN = 'random 4k write, first', 'random 4k write, again'
WORKLOADS = READ, SEQUENTIAL, FIRST, AGAIN
# The image: a part that is in the cache image, one that is not, and one that the server had written
# to before it settled.
PART = 64 << 20
IMAGE_BYTES = 3 * PART
_STOCK_CLUSTER = 65536
_WRITTEN = 4 << 20
_SETTLE_SECONDS = 60


class PathError(Exception):
    """A path cannot be measured."""


def jobs(start: int, seconds: float, writes: int) -> dict[str, list[str]]:
    """Return fio's options for each workload. Pure.

    :param start: of the part of the disk that is read and written, in bytes.
    :param seconds: for which is read.
    :param writes: bytes that are written at random places, each at most once.
    """
    timed = ['--time_based', f'--runtime={round(seconds * 1000)}ms']
    # The same places each time, as fio's random numbers are.
    random = ['--rw=randwrite', '--bs=4k', '--iodepth=16', f'--io_size={writes}']
    where = [f'--offset={start}', f'--size={PART}']
    return {READ: ['--rw=randread', '--bs=4k', '--iodepth=16', *timed, *where],
            SEQUENTIAL: ['--rw=read', '--bs=1M', '--iodepth=4', *timed, *where],
            FIRST: [*random, *where], AGAIN: [*random, *where]}


def result(document: dict[str, Any]) -> dict[str, float]:
    """Return what one job of fio came to: requests and bytes a second, mean latency. Pure.

    :param document: fio's own, by ``--output-format=json``.
    :raises PathError: if it had errors or did nothing.
    """
    job = document['jobs'][0]
    done = job['write'] if job['write']['total_ios'] else job['read']
    if job['error'] or not done['total_ios']:
        raise PathError(f'fio failed: error {job["error"]}')
    return {'iops': round(done['iops'], 1), 'bytes_per_second': done['bw_bytes'],
            'latency_seconds': done['lat_ns']['mean'] / 1e9, 'requests': done['total_ios']}


def _fio(socket: str, options: list[str]) -> dict[str, float]:
    done = subprocess.run(
        ['fio', '--name=disk', '--ioengine=nbd', f'--uri=nbd+unix:///disk?socket={socket}',
         '--output-format=json', *options], capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL, cwd='/tmp')
    # Notes of the engine may come before the document.
    begin = done.stdout.find('{')
    if done.returncode or begin < 0:
        raise PathError(f'fio failed: {done.stderr.strip() or done.stdout.strip()}')
    return result(json.loads(done.stdout[begin:]))


def _nodes(host: HostChild, image: Image, path: str) -> Nodes:
    """Make the disk, and return the nodes of its chain, the topmost last."""
    base, disk = host.directory / 'base', host.directory / 'disk'
    if path in (RAW, STOCK, SETTLED):
        shutil.copyfile(image.answer['raw_path'], disk if path == RAW else base)
    if path == RAW:
        file, top = chain_nodes(disk, direct=True)
        return [file, {**top, 'driver': 'raw'}]
    if path in (INSIDE, OUTSIDE, SETTLED):
        host.service.answers[image.image_id] = image.answer
        host.make_overlay(image, disk)
    elif path == STOCK:
        qemuimg.create_overlay(str(disk), image.virtual_bytes, str(base), 'raw',
                               cluster_bytes=_STOCK_CLUSTER)
    else:
        qemuimg.create_overlay(str(disk), image.virtual_bytes, image.base_uri, 'raw',
                               cluster_bytes=_STOCK_CLUSTER, open_backing=False)
    return chain_nodes(disk, direct=True)


def _settle(host: HostChild, image: Image, socket: str) -> Nodes:
    """Write as a boot does, and copy the overlay onto one on the base, as settling does.

    :returns: the nodes of the new disk, which the export is on now.
    """
    _fio(socket, jobs(2 * PART, 0, _WRITTEN)[FIRST])
    new = host.directory / 'settled'
    qemuimg.create_overlay(str(new), image.virtual_bytes, str(host.directory / 'base'), 'raw',
                           cluster_bytes=_STOCK_CLUSTER)
    file, top = chain_nodes(new, direct=True)
    nodes = [{**file, 'node-name': 'new-file'},
             {**top, 'node-name': 'new', 'file': 'new-file'}]
    host.chain.add_nodes(*nodes)
    with host.chain.session() as session:
        session.execute('blockdev-mirror', job_id='settle', device='disk', target='new', sync='top')
    _wait_job(host, 'ready')
    with host.chain.session() as session:
        session.execute('job-complete', id='settle')
    _wait_job(host, '')
    return nodes


def _wait_job(host: HostChild, wanted: str) -> None:
    deadline = time.monotonic() + _SETTLE_SECONDS
    while time.monotonic() < deadline:
        with host.chain.session() as session:
            found = {job['id']: job['status'] for job in session.execute('query-jobs')}
        if found.get('settle', '') == wanted:
            return
        time.sleep(0.02)
    raise PathError(f'the copy of the disk is not {wanted or "over"} in {_SETTLE_SECONDS} s')


def prepare(host: HostChild, number: int, path: str, image: Image) -> None:
    """Make a disk, and export it: nothing of what is measured is read yet.

    :param number: the host's; not used.
    """
    host.chain.ensure_running()
    nodes = _nodes(host, image, path)
    host.chain.add_nodes(*nodes)
    host.chain.add_export('disk', 'disk', writable=True)
    if path == SETTLED:
        _settle(host, image, _socket(host))
        host.chain.remove_nodes(*(node['node-name'] for node in reversed(nodes)))
        if host.compute.gateway.serves(image.image_id):
            # Nothing of what follows may come from there.
            host.compute.gateway.daemon.stop()


def _socket(host: HostChild) -> str:
    assert isinstance(host.chain.listener, UnixListener)
    return host.chain.listener.path


def measure(host: HostChild, number: int, path: str, workload: str, seconds: float,
            writes: int) -> dict[str, float]:
    """Run one workload on the disk that is exported; see ``jobs`` and ``result``."""
    start = PART if path == OUTSIDE else 0
    return _fio(_socket(host), jobs(start, seconds, writes)[workload])


def make_image(path: Path) -> None:
    """Write the image: noise, as what is zero costs less to read."""
    if not shutil.which('fio'):
        raise exception.BootcacheError('fio is missing; tools/setup.sh installs it')
    with open('/dev/urandom', 'rb') as noise, open(path, 'wb') as stream:
        for _part in range(IMAGE_BYTES >> 20):
            stream.write(noise.read(1 << 20))
