"""bootcache in the cloud: storage service, Glance hook, compute driver, and a wire tap.

The tap is a stock nbdkit with its log filter between gateway and exporter. It writes a line for
each request, so that what crosses the wire is measured and not computed. All speak TLS, with
certificates of a small CA of the cloud's own: the tap has some as well, as it stands between both.
"""

import contextlib
import dataclasses
import functools
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from tools.cloud import config
from tools.cloud.cloud import Cloud, Progress
from tools.cloud.confine import directives
from tools.cloud.layout import GLANCE, NOVA, TOOLS, VENV, Host, Layout
from tools.cloud.processes import port_open, socket_answers
from tools.cloud.records import queue_served
from tools.cloud.services import Service, confined, on_host_command

EXPORT_PORT = 10810
TAP_PORT = 10811
STORAGE_SERVICE = "glance-bootcache"
TAP = "nbd-tap"
STOCK_DRIVER = "libvirt.LibvirtDriver"
DRIVER = "bootcache.BootCacheLibvirtDriver"
WEIGHER = "nova_bootcache.scheduler.weights.BootCacheWeigher"
FILTER = "nova_bootcache.scheduler.filters.BootCacheFilter"
NOVA_FILTERS = "ComputeFilter,ComputeCapabilitiesFilter,ImagePropertiesFilter,"\
    "ServerGroupAntiAffinityFilter,ServerGroupAffinityFilter"
UNITS = TOOLS.parents[1] / "etc" / "systemd"
GATEWAY_UNIT = UNITS / "bootcache-gateway.service"
CONNECTORS_UNIT = UNITS / "bootcache-connectors.service"
PACKAGES = ("bootcache", "glance_bootcache", "nova_bootcache")
# As a package that is not there, and it notes who asked.
NO_MODULE = """import os, sys
with open(os.path.join(os.path.dirname(__file__), "tried"), "a") as stream:
    print(*sys.argv, file=stream)
raise ModuleNotFoundError(f"No module named {__name__!r}", name=__name__)
"""


class BootcacheCloud(Cloud):
    """The cloud with bootcache installed; hosts run the stock driver until told otherwise.

    :ivar run_directory: of gateways and connectors: this path on every host, and Host.gateway from
        outside.
    """

    def __init__(self, home: Path | None = None, progress: Progress | None = None,
                 hosts: int = 1) -> None:  # fmt: skip
        super().__init__(home, progress=progress, hosts=hosts)
        layout = self.layout
        self.run_directory = layout.gateway
        self.exporter_directory = layout.run / "glance-bootcache"
        self.state_directory = layout.home / "bootcache"
        self.config_file = layout.etc / "bootcache" / "bootcache.conf"
        self._no_package = layout.home / "no-bootcache"
        self.tap_log = layout.log / "nbd-tap.log"
        self.log_file = layout.log / "glance-bootcache.log"
        self.certificates = layout.home / "pki"
        tls = ["--tls=require", f"--tls-certificates={self.certificates / TAP}",
               "--tls-verify-peer"]  # fmt: skip
        self.add_service(
            TAP,
            # In the foreground nbdkit ends with its parent, so it gets one that stays.
            ["sh", "-c", '"$@" & wait', "sh", "nbdkit", "--foreground", "--ipaddr", "127.0.0.1",
             "--port", str(TAP_PORT), "--threads", "32", *tls, "--filter=log", "nbd",
             "hostname=127.0.0.1", f"port={EXPORT_PORT}", "dynamic-export=true",
             *(option.removeprefix("--") for option in tls[:2]),
             f"logfile={self.tap_log}", "logappend=true"],
            ready=functools.partial(port_open, TAP_PORT), port=TAP_PORT,
        )  # fmt: skip
        self.add_service(
            STORAGE_SERVICE,
            [*confined(layout, unit=UNITS / "glance-bootcache.service"),
             str(VENV / "bin" / "glance-bootcache"), "--config-file", str(self.config_file),
             "--config-dir", str(layout.layers(STORAGE_SERVICE))],
            {"HOME": str(layout.user_home(GLANCE))},
            ready=functools.partial(queue_served, layout, "bootcache"),
        )  # fmt: skip
        for host in layout.hosts:
            self._services[host.connectors_unit] = connectors(layout, host)
            self._services[host.gateway_unit] = gateway(layout, host)

    def configure_bootcache(self) -> None:
        """Write the storage service's configuration, and switch the Glance hook on."""
        self.home.mkdir(parents=True, exist_ok=True)
        self._make_directories()
        config.write_all(self.layout)
        self.make_certificates({STORAGE_SERVICE: GLANCE, TAP: "root",
                                **{host.hostname: NOVA for host in self.hosts}})  # fmt: skip
        config.for_group(self.layout.layers(STORAGE_SERVICE), GLANCE)
        config.for_group(self.config_file.parent, GLANCE)
        config.put(self.config_file, config.render({
            "DEFAULT": {"transport_url": self.transport_url, "debug": "true",
                        "log_file": self.log_file},
            "bootcache": {"gateway_socket": self.run_directory / "gateway.sock",
                          "state_dir": self.state_directory,
                          "run_dir": self.exporter_directory, "export_port": EXPORT_PORT,
                          "tls_directory": self.certificates / STORAGE_SERVICE,
                          "advertise_port": TAP_PORT, "glance_store_dirs": str(self.layout.images),
                          "poll_interval": 5, "show_state_after": 0, "deletion_delay": 5},
            "service_auth": config.service_user(self.layout),
        }))  # fmt: skip
        self.layer("glance", "60-bootcache", {
            "image_import_opts": {"image_import_plugins": "[bootcache]"},
            "oslo_messaging_notifications": {"driver": "messagingv2", "topics": "bootcache_images"},
            "bootcache": {"transport_url": self.transport_url},
        })  # fmt: skip
        self.configure_nova("DEFAULT", "bootcache", "filter_scheduler")

    def make_certificates(self, users: Mapping[str, str]) -> None:
        """Give those certificates that do not have them yet, and their owners.

        :param users: who owns each one's, by its name.
        """
        missing = [name for name in users if not (self.certificates / name).exists()]
        if missing:
            subprocess.run(
                [str(VENV / "bin" / "bootcache"), "ca", str(self.certificates),
                 *(f"{name},127.0.0.1" for name in missing)],
                check=True, env=self.layout.environment(), stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )  # fmt: skip
        # Each node has its own folder alone, elsewhere; here all lie beside the CA's key.
        self.certificates.chmod(0o711)
        for name in missing:
            directory = self.certificates / name
            for path in (directory, *directory.iterdir()):
                shutil.chown(path, users[name], users[name])

    def _make_directories(self) -> None:
        super()._make_directories()
        for path, mode in ((self.state_directory, 0o750), (self.exporter_directory, 0o755)):
            path.mkdir(exist_ok=True)
            path.chmod(mode)
            shutil.chown(path, GLANCE, GLANCE)
        self.log_file.touch()
        shutil.chown(self.log_file, GLANCE)

    def _hypervisors(self) -> None:
        super()._hypervisors()
        self._start_all(*(host.connectors_unit for host in self.hosts))
        self._start_all(*(host.gateway_unit for host in self.hosts))

    def configure_nova(self, *wanted: str) -> None:
        """Write the sections of Nova's configuration that bootcache has options in; no others."""
        sections: config.Sections = {
            "DEFAULT": {"non_inheritable_image_properties": ",".join((
                "cache_in_nova", "bittorrent", "img_signature_hash_method", "img_signature",
                "img_signature_key_type", "img_signature_certificate_uuid",
                "bootcache_state", "bootcache_reason"))},
            "bootcache": {"gateway_socket": self.run_directory / "gateway.sock",
                          "gateway_run_dir": self.run_directory, "gateway_autostart": False},
            "filter_scheduler": {
                "weight_classes": f"nova.scheduler.weights.all_weighers,{WEIGHER}",
                "available_filters": ["nova.scheduler.filters.all_filters", FILTER],
                "enabled_filters": f"{NOVA_FILTERS},{FILTER.rpartition('.')[2]}"},
        }  # fmt: skip
        self.layer("nova", "60-bootcache", {name: sections[name] for name in wanted} or None)
        for host in self.hosts:
            own = {"bootcache": {"tls_directory": self.certificates / host.hostname}}
            self.layer(host.compute, "60-bootcache", own if "bootcache" in wanted else None)

    def up(self, driver: str | None = None) -> None:
        """Bring everything up, bootcache included.

        :param driver: that all hosts are to run with; None leaves them as they are.
        """
        self.configure_bootcache()
        late = [] if driver is None else self._set_driver(driver, *self.hosts)
        super().up()
        self.restart(*late)

    def use_driver(self, driver: str, *hosts: Host) -> None:
        """Let nova-compute run with a driver; guests survive the change.

        :param hosts: the first one, if not given.
        """
        self.restart(*self._set_driver(driver, *(hosts or self.hosts[:1])))

    def _set_driver(self, driver: str, *hosts: Host) -> list[str]:
        """Set the driver; the services that run with another one until they are restarted."""
        changed = [host.compute for host in hosts
                   if self.override(host.compute, "DEFAULT", "compute_driver", driver)]  # fmt: skip
        return [name for name in changed if self.daemons.pid(name)]

    def uninstall_package(self) -> Path:
        """From its next start on a service of OpenStack finds the package uninstalled.

        Whatever uses this virtual environment keeps it: a module of each package's name comes first
        on the services' path, and cannot be imported. Returns the folder of these; each import that
        was tried is a line of its file ``tried``.
        """
        self._path_begins_with(self._no_package)
        return self._no_package

    def install_package(self) -> None:
        """Undo uninstall_package()."""
        self._path_begins_with(None)

    def _path_begins_with(self, folder: Path | None) -> None:
        for package in PACKAGES:
            config.put(self._no_package / f"{package}.py", NO_MODULE, 0o644)
        # Of two with one name the first is taken: one without any entry point.
        config.put(self._no_package / "bootcache-0.dist-info" / "METADATA",
                   "Metadata-Version: 2.1\nName: bootcache\nVersion: 0\n", 0o644)
        # Whoever tries writes there.
        self._no_package.chmod(0o777)
        for name, service in self._services.items():
            path = service.env.get("PYTHONPATH", "").removeprefix(f"{self._no_package}:")
            if path:
                path = f"{folder}:{path}" if folder else path
                self._services[name] = dataclasses.replace(
                    service, env={**service.env, "PYTHONPATH": path})  # fmt: skip

    def rabbitmqctl(self, *arguments: str) -> str:
        """Run a command of the broker's rabbitmqctl; its output."""
        return subprocess.run(
            ["/usr/lib/rabbitmq/bin/rabbitmqctl", "-q", *arguments], check=True, text=True,
            env=self._services["rabbit"].env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        ).stdout  # fmt: skip

    def gateway_pid(self, host: Host | None = None) -> int | None:
        """The pid of a host's gateway, the first host's if not given; None if it does not run."""
        return daemon_pid((host or self.hosts[0]).gateway / "gateway.pid")

    def exporter_pid(self) -> int | None:
        """The exporter's pid, if it runs."""
        return daemon_pid(self.exporter_directory / "exporter.pid")

    def exports(self) -> str:
        """What the exporter says that it serves, as a host hears it.

        :raises subprocess.CalledProcessError: if it does not answer.
        """
        return subprocess.run(
            ["nbdinfo", "--list",
             f"nbds://127.0.0.1:{EXPORT_PORT}?tls-certificates={self.certificates / TAP}"],
            check=True, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        ).stdout  # fmt: skip

    def serves(self, image: str) -> bool:
        """Whether there is an exporter, and it serves an image."""
        with contextlib.suppress(subprocess.CalledProcessError):
            return image in self.exports()
        return False

    def kill_ceph_readers(self) -> None:
        """End what has clones open in a Ceph that is gone for good: it waits for that for ever.

        These are all connectors, also a host's to storage nodes: bases are read through new ones
        afterwards.
        """
        for directory in self.exporter_directory, *(host.gateway for host in self.hosts):
            for file in directory.glob("connectors/*.pid"):
                if pid := daemon_pid(file):
                    os.kill(pid, signal.SIGKILL)

    def end_exporters(self) -> None:
        """End all exporters, which outlive the storage service."""
        for file in self.exporter_directory.glob("exporter*.pid"):
            if pid := daemon_pid(file):
                os.kill(pid, signal.SIGKILL)

    def kill_exporter(self) -> None:
        """End the exporter as a crash would, and with it the connections to it.

        The tap would keep its clients' connections and answer with errors, which no network does.
        """
        if pid := self.exporter_pid():
            os.kill(pid, signal.SIGKILL)
        self.restart(TAP)

    @contextlib.contextmanager
    def storage_service_down(self) -> Iterator[None]:
        """The storage service is stopped in between."""
        self.stop(STORAGE_SERVICE)
        try:
            yield
        finally:
            with self.hosts_heard():
                self.start(STORAGE_SERVICE)

    @contextlib.contextmanager
    def hosts_heard(self) -> Iterator[None]:
        """The storage service is started in between, and has heard from each host afterwards.

        Until then a host may take it to be silent, and have servers boot the stock way.
        """
        log = self.layout.log / "glance-bootcache.log"
        begin = log.stat().st_size if log.exists() else 0
        yield
        hosts = [host.hostname for host in self.hosts if self.daemons.pid(host.compute)]

        def heard() -> bool:
            text = log.read_bytes()[begin:].decode(errors="replace")
            return all(f"host {name} tells what it holds" in text for name in hosts)

        self.daemons.wait(STORAGE_SERVICE, heard, "a host has not told what it holds")


# As its unit has it: started again however often it ends.
GATEWAY_SCRIPT = """
trap 'kill "$daemon"; wait; exit' TERM
while :; do
    $1; $2 & daemon=$!
    $3
    wait "$daemon" || :
    sleep 1
done
"""

# For a unit that has nothing but ExecStart.
RESTARTING_SCRIPT = """
trap 'kill "$daemon"; wait; exit' TERM
while :; do "$@" & daemon=$!; wait "$daemon" || :; sleep 1; done
"""


def gateway_script(layout: Layout) -> str:
    """What runs a gateway, by the commands of its unit."""
    lines, script = directives(GATEWAY_UNIT), GATEWAY_SCRIPT
    for number, name in enumerate(("ExecStartPre", "ExecStart", "ExecStartPost"), 1):
        command = lines[name].replace("/run/bootcache", str(layout.gateway))
        script = script.replace(f"${number}", command)
    return script


def gateway(layout: Layout, host: Host) -> Service:
    """A host's gateway, run as its unit says."""
    return Service(
        host.gateway_unit,
        on_host_command(layout, host, *confined(layout, unit=GATEWAY_UNIT), "sh", "-c",
                        gateway_script(layout)),
        layout.environment(),
        functools.partial(_is_open, host.gateway / "gateway.sock"),
    )


def connectors_command(layout: Layout) -> list[str]:
    """What runs the supervisor of a host's connectors, by the command of its unit."""
    program, *arguments = directives(CONNECTORS_UNIT)["ExecStart"].split()
    return ["sh", "-c", RESTARTING_SCRIPT, "sh", str(VENV / "bin" / Path(program).name),
            *(word.replace("/run/bootcache", str(layout.gateway)) for word in arguments)]


def connectors(layout: Layout, host: Host) -> Service:
    """The supervisor of a host's connectors, run as its unit says."""
    return Service(
        host.connectors_unit,
        on_host_command(layout, host, *confined(layout, unit=CONNECTORS_UNIT),
                        *connectors_command(layout)),
        layout.environment(),
        functools.partial(socket_answers, host.gateway / "connectors.sock"),
    )


def _is_open(socket: Path) -> bool:
    """Whether guests may connect to a gateway's socket."""
    with contextlib.suppress(OSError):
        return bool(socket.stat().st_mode & 0o020)
    return False


def daemon_pid(file: Path) -> int | None:
    """The pid in a file, if it is that of a qemu-storage-daemon."""
    with contextlib.suppress(OSError, ValueError):
        pid = int(file.read_text())
        if b"qemu-storage-daemon" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    return None
