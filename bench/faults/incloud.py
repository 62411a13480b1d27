"""Faults below the servers of a real cloud: Nova, libvirt, QEMU, and guests that check their data.

usage: python -m bench.faults.incloud IMAGE MOMENT/FAULT..., by way of bench/owncloud.py
"""

import contextlib
import logging
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import oslo_messaging as messaging

from bench import owncloud
from bench.faults import cloudplan
from bench.faults.cloudplan import EXPORTER, GATEWAY, SECONDS, CloudRow, Moment
from bench.faults.report import Outcome
from bootcache import naming
from bootcache.rpc import messages, transport
from tools.cloud import records
from tools.cloud.bootcache import DRIVER, STORAGE_SERVICE, BootcacheCloud
from tools.cloud.client import ClientError
from tools.cloud.processes import ServiceError, kill_all
from tools.cloud.tenant import Log, Tenant, guest_image, wait_until

LOG = logging.getLogger(__name__)

_BOOTING_BYTES = 2_000_000
_READ_SECONDS = 400
# An empty cache image of a server that went the stock way goes when upkeep looks, in pauses.
_LEFT_SECONDS = 400
_READY_SECONDS = 240
_DELETIONS = 3
_STARTS, _START_AGAIN_SECONDS = 8, 3
_WAITED = re.compile(r'goes on after (\d+) s')


class CloudLife:
    """One run: a server, from the asking to its deletion.

    :param cloud: of one host, up.
    :param image_file: of the guest that checks its data.
    :param warm: an image that has its cache image.
    """

    def __init__(self, cloud: BootcacheCloud, image_file: Path, warm: str, row: CloudRow):
        self._cloud, self._file, self._warm, self._row = cloud, image_file, warm, row
        self._tenant = Tenant(cloud)
        self._log = Log(cloud.layout.log / 'compute.log')
        self._server, self._image = '', ''
        self._deleted = False

    def run(self) -> Outcome:
        """Live it."""
        began, trouble, console, left = time.monotonic(), '', '', []
        try:
            self._wait_ready()
            self._live()
            console = self._tenant.openstack.console(self._server)
            left = self._end()
        except Exception as error:
            # Whatever it is, Nova's client or libvirt's among it: the others are run all the same.
            LOG.exception('%s', self._row.name)
            trouble = f'{type(error).__name__}: {error}'.strip()
            with contextlib.suppress(Exception):
                console = console or self._tenant.openstack.console(self._server)
            with contextlib.suppress(Exception):
                self._tenant.clean()
        text = self._log.text()
        waited = [float(found) for found in _WAITED.findall(text)]
        return Outcome(
            self._row.moment.value, self._row.fault.name, 'cloud',
            round(time.monotonic() - began, 1), max(waited, default=0.0),
            console.count('I/O error'), console.count(': BAD'), tuple(left), len(waited),
            text.count('goes the stock way'), trouble=trouble)

    def _wait_ready(self) -> None:
        """Wait until the cloud is as before the row before: services run, and are told of."""
        if None in self._cloud.services().values():
            self._cloud.up(DRIVER)
        services = self._tenant.openstack.nova.services
        queues = ('conductor', 'scheduler', f'compute.{self._cloud.hosts[0].hostname}',
                  transport.TOPIC)

        def is_ready() -> bool:
            [compute] = services.list(binary='nova-compute')
            if (compute.status, compute.state) != ('enabled', 'up') or not all(
                    records.queue_served(self._cloud.layout, queue) for queue in queues):
                # What is sent to a queue that nobody has is lost.
                return False
            with contextlib.suppress(messaging.MessagingException):
                self._tenant.storage_client.send(messages.GetImage(messages.NO_IMAGE))
                return True
            return False
        wait_until(is_ready, 'that the services of Nova and bootcache answer', _READY_SECONDS)

    def _live(self) -> None:
        tenant, row = self._tenant, self._row
        if row.moment is Moment.RUNS:
            self._image = self._warm
        else:
            self._image = tenant.image(self._file,
                                       bootcache_settle='yes' if row.settles else 'no')
            tenant.wait_state(self._image, 'served')
        self._server = server = tenant.ask(self._image)
        if row.moment is Moment.ASKED:
            self._strike()
        tenant.openstack.wait_active(server)
        if row.moment is Moment.BOOTS:
            self._wait_read(_BOOTING_BYTES)
            self._strike()
        tenant.openstack.wait_console(server, 'small login:')
        tenant.login(server)
        if row.moment is Moment.RUNS:
            before = tenant.openstack.bytes_read(server)
            with ThreadPoolExecutor() as pool:
                reading = pool.submit(tenant.command, server, 'check-all', timeout=_READ_SECONDS)
                # All of its disk is read in seconds.
                self._wait_read(before, reading.done)
                self._strike()
                reading.result()
        elif row.moment is Moment.SETTLES:
            self._log.wait(f'image {self._image}: its full base is completed', 180)
            self._strike()
        elif row.moment is Moment.MOVES:
            self._log.wait('its own data is being copied', 180)
            self._strike()
        tenant.command(server, 'write 2', timeout=_READ_SECONDS)
        if row.settles:
            wait_until(self._is_settled, f'{server} settles', 400)
        for command in ('verify', 'check-all'):
            tenant.command(server, command, timeout=_READ_SECONDS)

    def _wait_read(self, size: int, is_over: Callable[[], bool] = lambda: False) -> None:
        deadline = time.monotonic() + _READ_SECONDS
        while self._tenant.openstack.bytes_read(self._server) <= size and not is_over():
            if time.monotonic() > deadline:
                raise ClientError(f'the guest has not read {size} bytes')

    def _is_settled(self) -> bool:
        # Its disk is exchanged just now, maybe.
        with contextlib.suppress(subprocess.CalledProcessError):
            return '/_base/' in self._tenant.backing(self._server)[1]
        return False

    # The fault.

    def _strike(self) -> None:
        fault, cloud = self._row.fault, self._cloud
        for name in fault.kill:
            self._kill(name)
        services = [name for name in fault.kill if name not in (GATEWAY, EXPORTER)]
        with ThreadPoolExecutor() as pool:
            begun = [pool.submit(self._start, name, number * fault.apart)
                     for number, name in enumerate(services)]
            for one in begun:
                one.result()
        if fault.away:
            cloud.stop(fault.away)
            time.sleep(SECONDS)
            cloud.start(fault.away)
        if fault.freeze:
            frozen = cloud.daemons.leftovers(fault.freeze)
            for process in frozen:
                os.kill(process.pid, signal.SIGSTOP)
            time.sleep(SECONDS)
            for process in frozen:
                os.kill(process.pid, signal.SIGCONT)
        if fault.deletes_image:
            self._tenant.delete_image(self._image)
            self._deleted = True

    def _start(self, name: str, after: float) -> None:
        time.sleep(after)
        for _try in range(_STARTS):
            try:
                self._cloud.start(name)
                return
            except ServiceError as error:
                # It ends where what it needs is not there yet.
                last = error
                time.sleep(_START_AGAIN_SECONDS)
        raise last

    def _kill(self, name: str) -> None:
        cloud = self._cloud
        if name == EXPORTER:
            cloud.kill_exporter()
            return
        if name == GATEWAY:
            if (pid := cloud.gateway_pid()) is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return
        session = cloud.daemons.pid(name)
        # Until it is waited for, libvirtd takes the locks of the one before it to be held.
        kill_all([process for process in cloud.daemons.leftovers(name)
                  if process.session == session], terminate=False)

    # What is left.

    def _end(self) -> list[str]:
        """Delete server and image; return what is left of them after a while."""
        tenant = self._tenant
        tenant.delete_server(self._server, _DELETIONS)
        if self._image == self._warm:
            return self._left_of_server()
        if not self._deleted:
            tenant.delete_image(self._image)
        with contextlib.suppress(ClientError):
            wait_until(lambda: not self._left(), 'the end of all', _LEFT_SECONDS)
        return self._left()

    def _is_known(self) -> bool:
        with contextlib.suppress(messaging.MessagingException):
            return self._tenant.show(self._image) is not None
        # It does not tell.
        return True

    def _left(self) -> list[str]:
        instances = self._cloud.hosts[0].instances
        name = naming.cache_file_name(self._image)
        found = self._left_of_server()
        found += [f'host file {path.name}' for directory in ('_bootcache', '_base')
                  for path in (instances / directory).glob('*')
                  # A full base is Nova's own to remove.
                  if (name in path.name or self._image in path.name)
                  and path != instances / '_base' / name]
        directory = self._cloud.state_directory / 'images' / self._image
        found += [f'storage file {path.name}' for path in directory.glob('*')]
        if self._is_known():
            found.append('the storage service knows the image')
        return found

    def _left_of_server(self) -> list[str]:
        instances = self._cloud.hosts[0].instances
        return [f'{path.name} of a server' for path in instances.glob(f'{self._server}*')] \
            + [f'guest {pid}' for pid in self._cloud.guests()]


def _learned(cloud: BootcacheCloud, image_file: Path, tenant: Tenant) -> str:
    """Register an image, and have it get its cache image by a first boot."""
    image = tenant.image(image_file)
    tenant.wait_state(image, 'served')
    server = tenant.server(image)
    tenant.login(server)
    tenant.wait_state(image, 'ready')
    tenant.delete_server(server)
    return image


def _lines(cloud: BootcacheCloud, arguments: Sequence[str]) -> Iterator[dict[str, Any]]:
    image_file, *rows = arguments
    cloud.configure_bootcache()
    cloud.layer('nova', '70-faults', {'bootcache': {'settle_delay': 3, 'report_interval': 3}})
    cloud.layer(STORAGE_SERVICE, '70-faults', {'bootcache': {'profile_boots': False}})
    cloud.up(DRIVER)
    tenant = Tenant(cloud)
    warm = _learned(cloud, Path(image_file), tenant)
    for name in rows:
        outcome = CloudLife(cloud, Path(image_file), warm, cloudplan.BY_NAME[name]).run()
        yield outcome.to_json()


def run(rows: Sequence[CloudRow]) -> Iterator[Outcome]:
    """Run rows in a cloud of its own; what comes of each as it ends.

    :raises RuntimeError: if the cloud fails; what it said is on standard error.
    """
    for line in owncloud.lines(__name__, guest_image('small'), *(row.name for row in rows)):
        yield Outcome.from_json(line)


if __name__ == '__main__':
    owncloud.main(_lines)
