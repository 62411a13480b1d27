"""The block I/O path of a server: fio against its disk's export, for each chain that it can have.

A qemu-storage-daemon opens the chains as QEMU would and exports them over NBD on a unix socket;
fio's nbd engine is the guest. That way is in every figure, the raw disk's included. All files of
the host are in memory and opened with O_DIRECT, so that the path is measured and not a disk. All
disks are there at the same time, so that the same workload runs on one after the other.
"""

import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from bench.replay.host import HostChild, Image, daemon_cpu
from bench.replay.peers import Nodes, chain_nodes
from bootcache import qemuimg
from bootcache.storagedaemon import UnixListener

RAW, STOCK, ON_DEMAND = 'raw', 'stock overlay', 'on demand'
INSIDE, OUTSIDE = 'bootcache, in the cache image', 'bootcache, not in the cache image'
SETTLED = 'bootcache, settled'
# A server that was started while the cache image came: it goes on reading through the gateway.
ARRIVED = 'bootcache, in a cache image that came later'
PATHS = RAW, STOCK, INSIDE, ARRIVED, SETTLED, OUTSIDE, ON_DEMAND
READ, SEQUENTIAL = 'random 4k read', 'sequential 1M read'
FIRST, AGAIN = 'random 4k write, first', 'random 4k write, again'
WORKLOADS = READ, SEQUENTIAL, FIRST, AGAIN
# The image: a part that is in the cache image, one that is not, and one that the server has written
# to before.
PART = 64 << 20
IMAGE_BYTES = 3 * PART
_STOCK_CLUSTER = 65536
_WRITTEN = 4 << 20
_PATIENCE = 60


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


def _fio(socket: str, disk: str, options: list[str]) -> dict[str, float]:
    done = subprocess.run(
        ['fio', '--name=disk', '--ioengine=nbd', f'--uri=nbd+unix:///{disk}?socket={socket}',
         '--output-format=json', *options], capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL, cwd='/tmp')
    # Notes of the engine may come before the document.
    begin = done.stdout.find('{')
    if done.returncode or begin < 0:
        raise PathError(f'fio failed: {done.stderr.strip() or done.stdout.strip()}')
    return result(json.loads(done.stdout[begin:]))


def _disk(path: str) -> str:
    """The name of a path's disk: its file, its export and its topmost node."""
    return f'disk{PATHS.index(path)}'


def _nodes(file: Path, raw: bool = False) -> Nodes:
    """Return the nodes of a disk, the topmost last; its file has the disk's name."""
    below, top = chain_nodes(file, direct=True)
    return [{**below, 'node-name': f'{file.name}-file'},
            {**top, 'node-name': file.name, 'file': f'{file.name}-file',
             'driver': 'raw' if raw else 'qcow2'}]


def _open(host: HostChild, nodes: Nodes, export: bool = True) -> None:
    host.chain.add_nodes(*nodes)
    if export:
        name = nodes[-1]['node-name']
        host.chain.add_export(name, name, writable=True)


def _socket(host: HostChild) -> str:
    assert isinstance(host.chain.listener, UnixListener)
    return host.chain.listener.path


def prepare(host: HostChild, number: int, image: Image) -> None:
    """Make all disks, and export them: nothing of what is measured is read yet.

    :param number: the host's; not used.
    """
    host.chain.ensure_running()
    host.service.answers[image.image_id] = image.answer
    files = {path: host.directory / _disk(path) for path in PATHS}
    base = host.directory / 'base'
    for copy in (base, files[RAW]):
        shutil.copyfile(image.answer['raw_path'], copy)
    # The first server of a host opens its disk while the cache image comes.
    host.make_overlay(image, files[ARRIVED])
    _open(host, _nodes(files[ARRIVED]))
    if not host.compute.arrivals.has(image.image_id):
        raise PathError('the cache image was there before the server that it came for')
    if not host.compute.arrivals.wait(image.image_id, _PATIENCE):
        raise PathError(f'the cache image did not come within {_PATIENCE} s')
    for path in (INSIDE, OUTSIDE, SETTLED):
        host.make_overlay(image, files[path])
    _make_stock(files[STOCK], image, str(base))
    _make_stock(files[ON_DEMAND], image, image.base_uri)
    for path in (RAW, STOCK, INSIDE, OUTSIDE, SETTLED, ON_DEMAND):
        _open(host, _nodes(files[path], raw=path == RAW))
    for path in PATHS:
        # As a boot does; an overlay that nobody has written to has no tables to look into.
        _fio(_socket(host), _disk(path), jobs(2 * PART, 0, _WRITTEN)[FIRST])
    _settle(host, image, files[SETTLED], base)


def _make_stock(overlay: Path, image: Image, base: str) -> None:
    qemuimg.create_overlay(str(overlay), image.virtual_bytes, base, 'raw',
                           cluster_bytes=_STOCK_CLUSTER, open_backing=False)


def _settle(host: HostChild, image: Image, disk: Path, base: Path) -> None:
    """Copy an overlay onto one on the base, as settling does; the disk's export is on it then."""
    new = host.directory / 'settled'
    _make_stock(new, image, str(base))
    _open(host, _nodes(new), export=False)
    with host.chain.session() as session:
        session.execute('blockdev-mirror', job_id='settle', device=disk.name, target=new.name,
                        sync='top')
    _wait_job(host, 'ready')
    with host.chain.session() as session:
        session.execute('job-complete', id='settle')
    _wait_job(host, '')
    host.chain.remove_nodes(disk.name, f'{disk.name}-file')


def _wait_job(host: HostChild, wanted: str) -> None:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        with host.chain.session() as session:
            found = {job['id']: job['status'] for job in session.execute('query-jobs')}
        if found.get('settle', '') == wanted:
            return
        time.sleep(0.02)
    raise PathError(f'the copy of the disk is not {wanted or "over"} in {_PATIENCE} s')


def measure(host: HostChild, number: int, path: str, workload: str, seconds: float,
            writes: int) -> dict[str, float]:
    """Run one workload on one path's disk; see ``jobs`` and ``result``.

    With the CPU seconds that the host's daemons took for a request: of the chain, and of the
    gateway. Others on the machine hardly change them.
    """
    start = PART if path == OUTSIDE else 0
    daemons = host.chain.pid(), host.compute.gateway.daemon.pid()
    before = sum(map(daemon_cpu, daemons))
    found = _fio(_socket(host), _disk(path), jobs(start, seconds, writes)[workload])
    cpu = sum(map(daemon_cpu, daemons)) - before
    return {**found, 'cpu_seconds': cpu / found['requests']}


def make_image(path: Path) -> None:
    """Write the image: noise, as what is zero costs less to read."""
    if not shutil.which('fio'):
        raise PathError('fio is missing; tools/setup.sh installs it')
    with open('/dev/urandom', 'rb') as noise, open(path, 'wb') as stream:
        for _part in range(IMAGE_BYTES >> 20):
            stream.write(noise.read(1 << 20))
