"""Where the cloud keeps its files, which ports it uses, and how its parts find each other."""

import os
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

TOOLS = Path(__file__).resolve().parent
VENV = Path(sys.prefix)
REGION = "RegionOne"
# Environment variables by which the cloud's processes are recognised.
CLOUD_TAG = "BOOTCACHE_CLOUD"
SERVICE_TAG = "BOOTCACHE_SERVICE"
MOST_HOSTS = 2
# As distributions' packages have it; tools/setup.sh makes the first two where they are missing.
NOVA, GLANCE = "nova", "glance"
QEMU = "libvirt-qemu"
# nova-compute speaks with libvirt, and gives guests the socket of a gateway that it starts.
COMPUTE_GROUPS = ("libvirt", QEMU)


def default_home() -> Path:
    """$BOOTCACHE_HOME/cloud, $BOOTCACHE_HOME being ~/.cache/bootcache unless set."""
    base = os.environ.get("BOOTCACHE_HOME") or str(Path.home() / ".cache" / "bootcache")
    return Path(base).absolute() / "cloud"


def recorded_hosts(home: Path) -> int:
    """With how many hosts the cloud in this directory was last brought up; 1 if it was not."""
    try:
        return int((home / "state" / "hosts").read_text())
    except OSError:
        return 1


def database_user(name: str) -> str:
    """Who writes a database: the users of the projects that bootcache is in, or root."""
    return next((user for user in (NOVA, GLANCE) if name.startswith(user)), "root")


@dataclass(frozen=True)
class Ports:
    """TCP ports on 127.0.0.1."""

    epmd: int = 4369
    rabbit_distribution: int = 25672
    rabbit: int = 5672
    keystone: int = 5000
    placement: int = 8778
    glance: int = 9292
    nova_api: int = 8774
    network: int = 9696


@dataclass(frozen=True)
class Host:
    """A compute host: a libvirtd and a nova-compute in a mount namespace of their own.

    What is private to a host has the same path on all of them, as paths travel with a server. The
    attributes here are where others find these files.
    """

    home: Path
    number: int = 1

    @property
    def address(self) -> str:
        """Its address, in the network of all hosts' libvirtds and in Nova."""
        return f"127.0.0.{self.number}"

    @property
    def suffix(self) -> str:
        """Nothing for the first host, the number for the others."""
        return "" if self.number == 1 else str(self.number)

    @property
    def machine(self) -> str:
        """Name, among the services, of the process that holds its namespaces."""
        return f"machine{self.suffix}"

    @property
    def compute(self) -> str:
        """Name of its nova-compute among the services."""
        return f"compute{self.suffix}"

    @property
    def libvirtd(self) -> str:
        """Name of its libvirtd among the services."""
        return f"libvirtd{self.suffix}"

    @property
    def hostname(self) -> str:
        """Its name in Nova. libvirt takes only a name with a dot for a migration's address."""
        return f"compute{self.number}.bootcache.test"

    @property
    def gateway_unit(self) -> str:
        """Name of its gateway among the services, as its unit runs it."""
        return f"gateway{self.suffix}"

    @property
    def connectors_unit(self) -> str:
        """Name of the supervisor of its connectors among the services, as its unit runs it."""
        return f"connectors{self.suffix}"

    @property
    def uuid(self) -> str:
        """The host's UUID for libvirt."""
        return f"b007cac4-e000-4000-8000-{self.number:012d}"

    @property
    def libvirt(self) -> Path:
        """What its libvirtd sees as /etc, /run, /var/lib, /var/log and /var/cache libvirt."""
        return self.home / f"libvirt{self.suffix}"

    @property
    def libvirt_socket(self) -> Path:
        """The socket of its libvirtd."""
        return self.libvirt / "run" / "libvirt-sock"

    @property
    def state(self) -> Path:
        """nova-compute's state_path."""
        return self.home / "state" / self.compute

    @property
    def instances(self) -> Path:
        """What its nova-compute and libvirtd see as Layout.instances."""
        return self.home / f"instances{self.suffix}"

    @property
    def gateway(self) -> Path:
        """What its nova-compute and guests see as Layout.gateway."""
        return self.home / "run" / f"bootcache{self.suffix}"


@dataclass(frozen=True)
class Layout:
    """Everything that is derived from the cloud's home directory."""

    home: Path
    ports: Ports = field(default_factory=Ports)
    host_count: int = 1

    @cached_property
    def hosts(self) -> tuple[Host, ...]:
        """The compute hosts."""
        return tuple(Host(self.home, number + 1) for number in range(self.host_count))

    @property
    def instances(self) -> Path:
        """nova-compute's instances_path, which is another directory on each host."""
        return self.home / "instances"

    @property
    def gateway(self) -> Path:
        """The directory of a host's gateway and connectors, another one on each host."""
        return self.run / "bootcache"

    @property
    def host_names(self) -> Path:
        """The hosts' /etc/hosts."""
        return self.etc / "hosts"

    @property
    def ssh_hosts(self) -> Path:
        """Directory with a link from each host's names to the pid file of its machine."""
        return self.etc / "ssh-hosts"

    @property
    def etc(self) -> Path:
        """Configuration files."""
        return self.home / "etc"

    @property
    def state(self) -> Path:
        """Databases, and what has been done once for all."""
        return self.home / "state"

    @property
    def log(self) -> Path:
        """One file per service, and Glance's access log."""
        return self.home / "log"

    @property
    def run(self) -> Path:
        """Pid files."""
        return self.home / "run"

    @property
    def images(self) -> Path:
        """Glance's file store."""
        return self.home / "images"

    @property
    def access_log(self) -> Path:
        """Glance's requests, as JSON lines."""
        return self.log / "glance-access.log"

    @property
    def openrc(self) -> Path:
        """The administrator's environment, to be sourced by a shell."""
        return self.home / "openrc"

    @property
    def demo_openrc(self) -> Path:
        """The tenant's environment."""
        return self.home / "demo-openrc"

    @cached_property
    def password(self) -> str:
        """The one password of all users, made up on first use: others may use this machine too."""
        file = self.etc / "password"
        if not file.exists():
            self.etc.mkdir(parents=True, exist_ok=True)
            with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as stream:
                stream.write(secrets.token_hex(12))
        return file.read_text()

    @property
    def transport_url(self) -> str:
        """oslo.messaging's address of the broker."""
        return f"rabbit://openstack:{self.password}@127.0.0.1:{self.ports.rabbit}/"

    def database(self, name: str) -> Path:
        """The file of a SQLite database, in a folder of whoever writes it."""
        return self.state / f"db-{database_user(name)}" / f"{name}.db"

    def database_url(self, name: str) -> str:
        """SQLAlchemy's address of a database."""
        return f"sqlite:///{self.database(name)}"

    def url(self, port: int, path: str = "") -> str:
        """An HTTP address in this cloud."""
        return f"http://127.0.0.1:{port}{path}"

    @property
    def auth_url(self) -> str:
        """Keystone."""
        return self.url(self.ports.keystone, "/v3")

    def layers(self, service: str) -> Path:
        """The directory of a service's extra configuration files."""
        return self.etc / f"{service}.d"

    def openstack_environment(self, user: str) -> dict[str, str]:
        """OS_* variables for `admin` or `demo`, each in the project of the same name."""
        return {
            "OS_AUTH_URL": self.auth_url,
            "OS_IDENTITY_API_VERSION": "3",
            "OS_USERNAME": user,
            "OS_PASSWORD": self.password,
            "OS_PROJECT_NAME": user,
            "OS_USER_DOMAIN_NAME": "Default",
            "OS_PROJECT_DOMAIN_NAME": "Default",
            "OS_REGION_NAME": REGION,
            "OS_COMPUTE_API_VERSION": "2.96",
        }

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of a process: the caller's, without proxies and Python settings."""
        dropped = ("PYTHON", "OS_", "LC_", "RABBITMQ_")
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(dropped) and not name.lower().endswith("_proxy")
        }
        search = os.environ.get("PATH", os.defpath)
        return {
            **kept,
            "PATH": f"{VENV / 'bin'}:{search}:/usr/sbin:/sbin",
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "no_proxy": "*",
            "PYTHONWARNINGS": "ignore",
            CLOUD_TAG: str(self.home),
            **(extra or {}),
        }

    @property
    def kvm(self) -> Path:
        """The hosts' /dev/kvm, if this machine has one."""
        return self.run / "kvm"

    def user_home(self, user: str) -> Path:
        """$HOME of a service that runs as a user of its own."""
        return self.home / f"home-{user}"

    @property
    def shown(self) -> tuple[Path, ...]:
        """What services that are not root have to reach, also in a developer's closed home."""
        return self.home, VENV, TOOLS.parents[1]

    def openstack_process_environment(self) -> dict[str, str]:
        """The environment of a process that opens the SQLite databases."""
        return self.environment({"PYTHONPATH": str(TOOLS / "shims")})
