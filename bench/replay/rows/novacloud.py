"""How long a server's disk takes to come to its host, in a real cloud: Nova's own way and ours.

The phases are told apart by what nova-compute logs, the same lines in all ways:

* initial overhead: from the request to ``Creating image(s)``: API, scheduler, claim;
* transfer: until ``Using config drive``: stock Nova downloads and converts the image, bootcache
  fetches a cache image or opens the gateway; and the overlay is made;
* terminal overhead: until ``Took ... seconds to build instance``: the domain is made, and runs.

usage: python -m bench.replay.rows.propagation ROUNDS VIRTUAL_BYTES...
"""

import dataclasses
import datetime
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from bench import owncloud
from bench.replay.rows import bigimages
from bootcache.rpc.messages import GetImage
from tools.cloud.bootcache import DRIVER, STOCK_DRIVER, STORAGE_SERVICE, BootcacheCloud
from tools.cloud.client import ClientError, OpenStack
from tools.cloud.layout import Host
from tools.cloud.tenant import storage_client
from tools.cloud.wire import Wire

STOCK, FIRST, COLD = 'stock Nova', 'bootcache first', 'bootcache cold'
WAYS = STOCK, FIRST, COLD
_LINE = re.compile(r'(\d+-\d+-\d+ \d+:\d+:\d+\.\d+) .*\[instance: (\S+)\] (.*)')
_MARKS = {'Creating image(s)': 'creating', 'Using config drive': 'made',
          'Instance spawned successfully.': 'spawned'}
_BUILT = re.compile(r'Took \S+ seconds to build instance')
_READY_SECONDS = 900
# While gigabytes are written, all waits for the disk.
_DELETE_SECONDS = 600
_WARM_UP_BYTES = 128 << 20
PHASES = 'initial', 'transfer', 'terminal'


def marks(log: str, server: str) -> dict[str, float]:
    """Return when nova-compute came to each of a server's phases, in seconds of the epoch. Pure.

    :param log: nova-compute's, with local times.
    """
    found: dict[str, float] = {}
    for line in log.splitlines():
        match = _LINE.match(line)
        if match is None or match.group(2) != server:
            continue
        name = 'built' if _BUILT.match(match.group(3)) else _MARKS.get(match.group(3))
        if name is not None:
            moment = datetime.datetime.strptime(match.group(1), '%Y-%m-%d %H:%M:%S.%f')
            found.setdefault(name, moment.astimezone().timestamp())
    return found


def phases(asked: float, found: dict[str, float]) -> dict[str, float]:
    """Return the seconds of each phase, and their sum. Pure.

    :param asked: when the server was asked for, in seconds of the epoch.
    :raises KeyError: if nova-compute did not log a mark.
    """
    ends = [asked, found['creating'], found['made'], found['built']]
    seconds = {name: round(end - begin, 3)
               for name, begin, end in zip(PHASES, ends[:-1], ends[1:], strict=True)}
    return {**seconds, 'seconds': round(ends[-1] - ends[0], 3)}


@dataclasses.dataclass(frozen=True)
class Registered:
    """An image in the cloud.

    :ivar flavor: whose disk is as large, in whole GiB.
    :ivar file_bytes: of its file.
    :ivar seconds: that registering it took, until it was served.
    """

    image_id: str
    flavor: str
    virtual_bytes: int
    file_bytes: int
    seconds: float


class Propagation:
    """Measures in a cloud that is up.

    :param cloud: of one host.
    """

    def __init__(self, cloud: BootcacheCloud):
        self._cloud = cloud
        self._openstack = OpenStack(cloud)
        self._wire = Wire(cloud.tap_log, cloud.access_log)
        self._storage = storage_client(cloud.config_file)

    @property
    def _host(self) -> Host:
        return self._cloud.hosts[0]

    def run(self, sizes: Sequence[int], rounds: int) -> Iterator[dict[str, Any]]:
        """Measure all ways with images of these sizes, ``rounds`` times; the journal's lines."""
        warm_up, *images = [self._register(size) for size in (_WARM_UP_BYTES, *sizes)]
        for repeat in range(rounds):
            # FIRST makes the record that the cache image of COLD is built from: it comes once, and
            # before it. After that the order of the two others changes from round to round.
            ways = WAYS if repeat == 0 else (COLD, STOCK) if repeat % 2 else (STOCK, COLD)
            for way in ways:
                self._forget(way)
                # What services import when they are first used is no part of a propagation.
                self._boot(way, warm_up)
                for image in images:
                    yield {**self._boot(way, image), 'repeat': repeat}
                for image in (warm_up, *images):
                    if way == FIRST:
                        self._wait(image.image_id, 'ready')

    def _register(self, virtual_bytes: int) -> Registered:
        """Register an image, and wait until it is served."""
        name = f'bcr-{virtual_bytes >> 20}'
        file = self._cloud.home.parent / 'image.qcow2'
        size = bigimages.make(file, virtual_bytes)
        began = time.monotonic()
        image = self._openstack.json(
            'image', 'create', '--disk-format', 'qcow2', '--container-format', 'bare',
            '--property', f'bootcache_boot_marker={bigimages.MARKER}', '--property',
            'bootcache_settle=no', '--file', str(file), name)['id']
        file.unlink()
        self._wait(image, 'served')
        self._openstack.nova.flavors.create(
            name, ram=64, vcpus=1, disk=-(-virtual_bytes // (1 << 30)), flavorid=name)
        return Registered(image, name, virtual_bytes, size, round(time.monotonic() - began, 2))

    def _wait(self, image: str, state: str) -> None:
        """Wait for an image's state.

        :raises ClientError: if it does not come to it.
        """
        deadline = time.monotonic() + _READY_SECONDS
        while True:
            found = self._storage.send(GetImage(image)) or {'state': 'unknown', 'reason': ''}
            if found['state'] == state:
                return
            if found['state'] in ('failed', 'skipped') or time.monotonic() > deadline:
                raise ClientError(f'image {image} is {found["state"]}, not {state}:'
                                  f' {found["reason"]}')
            time.sleep(0.2)

    def _forget(self, way: str) -> None:
        """Have the host never have seen an image, and run the driver that is wanted."""
        cloud = self._cloud
        changed = cloud.override(self._host.compute, 'DEFAULT', 'compute_driver',
                                 STOCK_DRIVER if way == STOCK else DRIVER)
        if not changed and not (self._host.instances / '_bootcache').exists():
            return
        for pid in (cloud.daemons.pid(self._host.compute), cloud.gateway_pid()):
            if pid is not None:
                # At once: nothing is under way, and asked to end nova-compute takes seconds.
                os.kill(pid, signal.SIGKILL)
        cloud.stop(self._host.compute)
        for directory in ('_base', '_bootcache'):
            shutil.rmtree(self._host.instances / directory, ignore_errors=True)
        cloud.start(self._host.compute)

    def _boot(self, way: str, image: Registered) -> dict[str, Any]:
        """Boot a server, wait until its boot is over, and delete it; the journal's line."""
        file = self._cloud.layout.log / f'{self._host.compute}.log'
        begin, position = self._wire.position(), file.stat().st_size
        asked = time.time()
        server = self._openstack.nova.servers.create(
            way.replace(' ', '-'), image.image_id, image.flavor, nics='none').id
        self._openstack.wait_active(server, 1800)
        active = self._wire.position()
        self._openstack.wait_console(server, bigimages.MARKER, 300)
        booted = round(time.time() - asked, 3)
        end = self._wire.position()
        text = file.read_bytes()[position:].decode(errors='replace')
        if way != STOCK and f'server {server} boots from' not in text:
            raise ClientError(f'{way}: the server went the stock way:\n{text[-3000:]}')
        requests = {'active': self._wire.requests(begin, active),
                    'booted': self._wire.requests(begin, end)}
        traffic = {
            f'{kind}_bytes_{when}': sum(one.length for one in those
                                        if one.export.startswith(f'{kind}-{image.image_id}'))
            for when, those in requests.items() for kind in ('base', 'cache')}
        disk = self._openstack.disk(server)
        line = {'label': way, **phases(asked, marks(text, server)),
                'booted_seconds': booted,
                'image_bytes': self._wire.downloaded(begin, end, image.image_id), **traffic,
                'disk_bytes': disk.stat().st_blocks * 512, 'virtual_bytes': image.virtual_bytes,
                'file_bytes': image.file_bytes, 'registration_seconds': image.seconds}
        self._delete(server)
        # No other server of this image comes in this round, and disks are finite.
        shutil.rmtree(self._host.instances / '_base', ignore_errors=True)
        return line

    def _delete(self, server: str) -> None:
        """Delete a server; without the openstack client, whose start takes a second."""
        self._openstack.nova.servers.delete(server)
        deadline = time.monotonic() + _DELETE_SECONDS
        while any(one.id == server for one in self._openstack.nova.servers.list()):
            if time.monotonic() > deadline:
                raise ClientError(f'server {server} is still there {_DELETE_SECONDS} s after its'
                                  ' deletion')
            time.sleep(0.2)


def _lines(cloud: BootcacheCloud, arguments: Sequence[str]) -> Iterator[dict[str, Any]]:
    rounds, *sizes = (int(text) for text in arguments)
    cloud.configure_bootcache()
    cloud.override(STORAGE_SERVICE, 'bootcache', 'profile_boots', 'false')
    began = time.monotonic()
    cloud.up(STOCK_DRIVER)
    print(f'the cloud is up after {time.monotonic() - began:.0f} s', file=sys.stderr, flush=True)
    yield from Propagation(cloud).run(sizes, rounds)


def measure(rounds: int, sizes: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Measure in a network namespace of its own; the journal's lines as they come.

    :param sizes: of the images' disks, in bytes.
    :raises RuntimeError: if it fails; what it said is on standard error.
    """
    yield from owncloud.lines(__name__, rounds, *sizes)


if __name__ == '__main__':
    owncloud.main(_lines)
