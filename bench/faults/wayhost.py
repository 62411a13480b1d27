"""A compute host whose guests are QEMU's: nova-compute's part, which lets them go on, and units."""

import contextlib
import dataclasses
import threading
import time
from pathlib import Path
from typing import Any

import libvirt

from bench.faults import storageside, wayguest
from bench.faults.hostside import HostSide, LocalNova
from bootcache import exception
from bootcache.connectors import supervisor
from bootcache.storagedaemon import StorageDaemon, UnixListener
from nova_bootcache import upkeep
from nova_bootcache.gateway import graph
from nova_bootcache.settling.localservers import LocalServer
from nova_bootcache.standstill.standingservers import StandingServers
from tools import libvirtd

_UPKEEP_SECONDS = upkeep.PERIOD_SECONDS


class _Nova(LocalNova):
    """Its servers run, as libvirt has them."""

    def __init__(self, directory: str):
        super().__init__(directory)
        self._home = wayguest.home(str(Path(directory).parent))

    def connect(self) -> Any:
        return libvirtd.connect(self._home)

    def server(self, server_id: str) -> LocalServer | None:
        found = super().server(server_id)
        return found and dataclasses.replace(found, state='active', runs=True)


class WaysHost(HostSide):
    """nova-compute's part, which lets guests go on; made in its process.

    :param directory: of the stage.
    :param options: more of the product's.
    """

    def __init__(self, directory: str, options: dict[str, Any]):
        super().__init__(directory, options, _Nova)
        # As it is: guests wait for it.
        upkeep.PERIOD_SECONDS = _UPKEEP_SECONDS
        host = self._host
        self._standing = StandingServers(self._nova, host.chains, host.cache.holds_path, host.boots)
        self._standing.start()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        """Stand for libvirt's events, which the driver takes."""
        before: set[str] = set()
        while True:
            with contextlib.suppress(libvirt.libvirtError):
                connection = self._nova.connect()
                while True:
                    now = {domain.UUIDString() for domain in connection.listAllDomains(
                        libvirt.VIR_CONNECT_LIST_DOMAINS_PAUSED)}
                    if now - before:
                        self._standing.wake()
                    before = now
                    time.sleep(0.1)
            time.sleep(1)

    def reopen(self, image_id: str) -> None:
        """Begin to have servers read an image from where they do, whatever reads wait."""
        def reopen() -> None:
            # It is given up after a while.
            with contextlib.suppress(exception.StorageDaemonError):
                self._host.gateway.read_from(image_id, graph.REMOTE)

        threading.Thread(target=reopen, daemon=True).start()

    def open(self, server_id: str, image_id: str) -> None:
        """See that a stopped server can be started, whose guest waits for what is away."""
        self._host.chains.keep_chain(image_id, f'{self._nova.directory(server_id)}/disk', 30.0,
                                     guest_waits=True)


class Units:
    """The units of a host beside nova-compute: supervisor, in this process, and gateway.

    :param directory: of the stage.
    """

    def __init__(self, directory: str):
        storageside.log_to(f'{directory}/log/units.log')
        run_dir = f'{directory}/g'
        server = supervisor._Server(run_dir)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self._gateway = StorageDaemon('gateway', run_dir, UnixListener(f'{run_dir}/nbd'))
        self._gateway.ensure_running()
        threading.Thread(target=self._keep, daemon=True).start()

    def _keep(self) -> None:
        while True:
            # As the unit has it.
            time.sleep(1)
            if not self._gateway.runs:
                self._gateway.ensure_running()

    def left(self) -> list[str]:
        """Return nothing: connectors and gateway are looked at by themselves."""
        return []
