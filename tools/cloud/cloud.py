"""The cloud as a whole: bring it up, take it down, change the options of its services."""

import contextlib
import dataclasses
import fcntl
import functools
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from glance_bootcache.profileboot import acceleration
from tools.cloud import config, databases, machine, records
from tools.cloud.layout import (
    MOST_HOSTS,
    SERVICE_TAG,
    Host,
    Layout,
    Ports,
    default_home,
    recorded_hosts,
)
from tools.cloud.processes import (
    Daemons,
    ServiceError,
    all_processes,
    kill_all,
    port_open,
    port_owner,
)
from tools.cloud.services import (
    NETWORK,
    Service,
    guest_processes,
    is_guest,
    on_host,
    service_table,
)  # fmt: skip

# What other services live on; they end last.
BASE = ("epmd", "rabbit", "libvirtd", "machine")
Progress = Callable[[str], None]


def print_progress() -> Progress:
    """A function that writes lines with the elapsed seconds to standard error."""
    begin = time.monotonic()

    def progress(message: str) -> None:
        print(f"[{time.monotonic() - begin:6.1f}s] {message}", file=sys.stderr, flush=True)

    return progress


class Cloud:
    """An OpenStack on loopback, of one or two hosts, that keeps all its files in `home`.

    The object has no state of its own that matters: services are found by their pid files, so
    another process may take down what this one brought up.
    """

    def __init__(
        self,
        home: Path | None = None,
        ports: Ports | None = None,
        progress: Progress | None = None,
        hosts: int = 1,
    ) -> None:
        self.layout = Layout(home or default_home(), ports or Ports(), hosts)
        self.daemons = Daemons(str(self.home), self.layout.run, self.layout.log)
        self.progress = progress or (lambda message: None)
        self._services = service_table(self.layout)
        self._core = tuple(self._services)

    @property
    def home(self) -> Path:
        """The directory that holds everything."""
        return self.layout.home

    @property
    def hosts(self) -> tuple[Host, ...]:
        """The compute hosts."""
        return self.layout.hosts

    @property
    def openrc(self) -> Path:
        """The administrator's environment, for a shell."""
        return self.layout.openrc

    @property
    def transport_url(self) -> str:
        """oslo.messaging's address of the broker."""
        return self.layout.transport_url

    @property
    def access_log(self) -> Path:
        """Glance's requests as JSON lines."""
        return self.layout.access_log

    def env(self, user: str = "admin") -> dict[str, str]:
        """OS_* variables for the openstack client, as `admin` or as the tenant `demo`."""
        return self.layout.openstack_environment(user)

    def services(self) -> dict[str, int | None]:
        """Every service, with its pid if it runs."""
        names = [*self._services, *sorted(set(self.daemons.recorded()) - set(self._services))]
        return {name: self.daemons.pid(name) for name in names}

    def add_service(
        self,
        name: str,
        argv: list[str],
        env: Mapping[str, str] | None = None,
        ready: Callable[[], bool] | None = None,
        port: int | None = None,
    ) -> None:
        """Make a further service known; up() or start() start it, down() stops it.

        It gets the environment of the other services with `env` added; ready() tells when it can
        be used.
        """
        if name in self._core:
            raise ValueError(f"{name} is one of the cloud's own services")
        ports = (port,) if port else ()
        self._services[name] = Service(name, argv, self.layout.environment(env), ready, ports=ports)

    def start(self, name: str) -> None:
        """Start a service unless it runs, and wait until it is ready."""
        service = self.service(name)
        self._launch(service)
        self._wait(service)

    def stop(self, name: str) -> None:
        """Stop a service."""
        self.daemons.stop(name)

    def restart(self, *names: str) -> None:
        """Stop and start services. Guests survive this for compute and libvirtd."""
        services = [self.service(name) for name in names]
        self._stop_all(list(names))
        for service in services:
            self._launch(service)
        for service in services:
            self._wait(service)

    def inside(self, host: Host, *command: str) -> list[str]:
        """A command that sees what a host's processes see, as a command for subprocess.

        :raises ServiceError: if the host is off.
        """
        pid = self.daemons.pid(host.machine)
        if pid is None:
            raise ServiceError(f"{host.hostname} is off")
        return ["nsenter", "--target", str(pid), "--mount", "--uts", "--", *command]

    def power_off(self, host: Host) -> None:
        """End all processes of a host at once, guests too, and empty what it has below /run.

        What they had written stays, also what a real machine would lose in its page cache.
        """
        while found := [process for process in all_processes() if on_host(host, process.pid)]:
            kill_all(found, terminate=False)
        for name in reversed(self.of_host(host)):
            self.daemons.stop(name)
        # The directories themselves stay: the first host's are mount points in the others'
        # namespaces, and a mount is gone when another namespace removes what it lies over.
        for directory in (host.libvirt / "run", host.gateway):
            for entry in directory.iterdir():
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry)
                else:
                    entry.unlink()

    def of_host(self, host: Host) -> list[str]:
        """The services of a host, in the order in which they start."""
        names = (host.machine, host.libvirtd, host.connectors_unit, host.gateway_unit, host.compute)
        return [name for name in names if name in self._services]

    def power_on(self, host: Host, *without: str) -> None:
        """Start a host that is off; its guests stay off, as Nova leaves them.

        :param without: services that are not started.
        """
        for name in self.of_host(host):
            if name not in without:
                self.start(name)

    def replace(self, service: Service) -> None:
        """Have a service be another one from its next start on."""
        self._services[service.name] = service

    def override(self, service: str, section: str, option: str, value: object | None) -> bool:
        """Set one option of a service over its main configuration; None removes the override.

        `service` is the name of an OpenStack service, or "nova" for all of Nova's. It takes effect
        when the service is restarted. Says whether anything changed.
        """
        sections = None if value is None else {section: {option: value}}
        return self.layer(service, f"50-{section}-{option}", sections)

    def layer(self, service: str, name: str, sections: config.Sections | None) -> bool:
        """Write (None: remove) an extra configuration file; later names win over earlier ones."""
        directory = self.layout.layers(service)
        if not directory.is_dir():
            raise ValueError(f"{service} takes no configuration layers")
        file = directory / f"{re.sub(r'[^A-Za-z0-9_.-]', '-', name)}.conf"
        if sections is not None:
            return config.put(file, config.render(sections))
        if not file.exists():
            return False
        file.unlink()
        return True

    def up(self) -> None:
        """Bring everything up that does not run yet, and wait until it can be used."""
        machine.check(self.layout)
        self.home.mkdir(parents=True, exist_ok=True)
        with self._lock():
            self._check_hosts()
            self._make_directories()
            config.write_all(self.layout)
            self._check_ports()
            with ThreadPoolExecutor(max_workers=8) as pool:
                self._up(pool)
            for name in set(self._services) - set(self._core):
                self.start(name)
                self.progress(f"{name} is ready")
        self.progress("the cloud is up")

    def down(self, wipe: bool = False) -> None:
        """Stop everything, guests too, whoever started it; with `wipe` remove all files."""
        if not self.home.is_dir():
            return
        with self._lock():
            recorded = self.daemons.recorded()
            # Whoever brought it up may have given it more hosts than this object knows.
            core = set(service_table(dataclasses.replace(self.layout, host_count=MOST_HOSTS)))
            base = {name for name in core if name.startswith(BASE)}
            self._stop_all([name for name in recorded if name in core - base])
            self.progress("OpenStack is stopped")
            kill_all(guest_processes(self.home), grace=5)
            self._stop_all([name for name in recorded if name not in core])
            self._stop_all([name for name in recorded if name.startswith(("rabbit", "libvirtd"))])
            kill_all(guest_processes(self.home) + self.daemons.leftovers())
            for name in recorded:
                self.daemons.stop(name)
            if wipe and (self.layout.etc / "password").exists():
                shutil.rmtree(self.home)
        self.progress("the cloud is wiped" if wipe else "the cloud is down")

    def guests(self) -> list[int]:
        """Pids of the guests' QEMU processes; not of those that libvirtd starts to try QEMU."""
        return [process.pid for process in guest_processes(self.home) if is_guest(process.pid)]

    def _up(self, pool: ThreadPoolExecutor) -> None:
        broker = pool.submit(self._start_all, "epmd", "rabbit")
        hypervisors = pool.submit(self._hypervisors)
        identity = pool.submit(self._identity)
        nova_database = pool.submit(self._database, "nova")
        virtualization = pool.submit(self._virtualization)
        apis = [
            pool.submit(self._with_database, name, name) for name in ("placement", "glance")
        ]  # fmt: skip
        self._launch(self._services["network-stub"])
        _results(identity, nova_database)
        # Conductor and scheduler exit at once while their user is not known to Keystone.
        for name in ("conductor", "nova-api", "scheduler"):
            self._launch(self._services[name])
        _results(broker)
        # nova-compute loses ten seconds when it asks a conductor that does not listen yet.
        self._wait_all("conductor")
        _results(hypervisors, virtualization)
        computes = [host.compute for host in self.hosts]
        for name in computes:
            self._launch(self._services[name])
        _results(*apis)
        self._wait_all("network-stub", "nova-api", "scheduler")
        self._once("flavors", records.Identity(self.layout).create_flavors)
        self._wait_all(*computes)

    def _hypervisors(self) -> None:
        self._start_all(NETWORK, *(host.machine for host in self.hosts))
        for host in self.hosts:
            known = self.hosts[0].libvirt / "cache" / "qemu" / "capabilities"
            if host != self.hosts[0] and not (host.libvirt / "cache" / "qemu").exists():
                shutil.copytree(known, host.libvirt / "cache" / "qemu" / "capabilities")
            self._start_all(host.libvirtd)
            # Its first answer takes many seconds, as it tries what QEMU can do. The others copy.
            uri = f"qemu+unix:///system?socket={host.libvirt_socket}"
            subprocess.run(
                ["virsh", "--connect", uri, "capabilities"], env=self.layout.environment(),
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False,
            )  # fmt: skip
            self.progress(f"{host.libvirtd} knows its QEMU")

    def _identity(self) -> None:
        self._with_database("keystone", "keystone")
        self._once("catalog", records.Identity(self.layout).create_catalog)

    def _with_database(self, project: str, service: str) -> None:
        self._database(project)
        self._start_all(service)

    def _database(self, project: str) -> None:
        make = functools.partial(databases.make, self.layout, self.daemons, project)
        self._once(f"database-{project}", make)

    def _virtualization(self) -> None:
        """Try KVM, once per boot of the machine, as a failing trial takes its time."""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        file = self.layout.state / "kvm"
        known = file.read_text().split() if file.exists() else []
        if known[:1] == [boot]:
            works = known[1] == "yes"
        else:
            kill_all(self.daemons.leftovers("kvm-trial"))
            works = acceleration.kvm_works(env=self.layout.environment({SERVICE_TAG: "kvm-trial"}))
        config.put(file, f"{boot} {'yes' if works else 'no'}\n")
        config.virtualization(self.layout, works)
        self.progress("guests run with KVM" if works else "KVM does not work, guests run with TCG")

    def _once(self, name: str, action: Callable[[], None]) -> None:
        """Do what is to be done once in the life of the cloud's files."""
        done = self.layout.state / f"{name}.done"
        if not done.exists():
            action()
            done.touch()
            self.progress(f"{name} made")

    def _start_all(self, *names: str) -> None:
        for name in names:
            self._launch(self._services[name])
            self._wait_all(name)

    def _wait_all(self, *names: str) -> None:
        for name in names:
            self._wait(self._services[name])
            self.progress(f"{name} is ready")

    def _stop_all(self, names: list[str]) -> None:
        with ThreadPoolExecutor(max_workers=max(len(names), 1)) as pool:
            list(pool.map(self.daemons.stop, names))

    def service(self, name: str) -> Service:
        """One of them, by its name."""
        if name not in self._services:
            raise ValueError(f"no service {name}; there are: {', '.join(self._services)}")
        return self._services[name]

    def _launch(self, service: Service) -> None:
        if not self.daemons.pid(service.name):
            self._check_port(service)
            self.daemons.start(service.name, service.argv, service.env, self.home)

    def _wait(self, service: Service) -> None:
        if service.ready:
            self.daemons.wait(service.name, service.ready, service.what)

    def _check_ports(self) -> None:
        for service in self._services.values():
            if not self.daemons.pid(service.name):
                self._check_port(service)

    def _check_port(self, service: Service) -> None:
        """Free a stopped service's ports from its own remains; refuse a foreign process's."""
        if not any(map(port_open, service.ports)):
            return
        kill_all(self.daemons.leftovers(service.name))
        for port in filter(port_open, service.ports):
            raise ServiceError(
                f"{service.name} needs port {port} of 127.0.0.1, which belongs to"
                f" {port_owner(port)}"
            )

    def _check_hosts(self) -> None:
        """A host that Nova knows would be missed: their number may only grow."""
        known = recorded_hosts(self.home)
        if known > len(self.hosts):
            raise ServiceError(f"the cloud in {self.home} has {known} hosts, not {len(self.hosts)}:"
                             " first run python -m tools.cloud down --wipe")  # fmt: skip
        config.put(self.layout.state / "hosts", f"{len(self.hosts)}\n")

    def _make_directories(self) -> None:
        machine.make_directories(self.layout)

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """Keep another up() or down() of the same cloud out."""
        directory = os.open(self.home, os.O_RDONLY)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX)
            yield
        finally:
            os.close(directory)


def _results(*futures: Future[None]) -> None:
    for future in futures:
        future.result()
