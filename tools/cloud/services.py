"""The services of the cloud: how each is started and how one knows that it is ready."""

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.cloud import config, records
from tools.cloud.layout import TOOLS, VENV, Host, Layout
from tools.cloud.processes import http_answers, port_open, socket_answers

# libvirtd sees private directories in place of the machine's, and a network of only loopback.
LIBVIRTD_SCRIPT = """
directory=$1; hostname "$2"; ip link set lo up
bind() { mkdir -p "$2"; mount --bind "$directory/$1" "$2"; }
bind run /run/libvirt; bind etc /etc/libvirt; bind lib /var/lib/libvirt
bind log /var/log/libvirt; bind cache /var/cache/libvirt
exec libvirtd -p /run/libvirt/libvirtd.pid
"""


@dataclass(frozen=True)
class Service:
    """A service: its command, what it adds to the environment, how one knows that it is ready."""

    name: str
    argv: list[str]
    env: Mapping[str, str]
    ready: Callable[[], bool] | None = None
    what: str = ""
    ports: tuple[int, ...] = ()


def service_table(layout: Layout) -> dict[str, Service]:
    """All services, in the order in which they start."""
    ports = layout.ports
    stub = [str(VENV / "bin" / "python"), "-P", str(TOOLS / "network_stub.py")]
    services = [
        _epmd(layout),
        _rabbit(layout),
        *(_libvirtd(layout, host) for host in layout.hosts),
        _wsgi(layout, "keystone", "keystone.wsgi.api", ports.keystone),
        _wsgi(layout, "placement", "placement.wsgi.api", ports.placement),
        _wsgi(layout, "glance", "glance.wsgi.api", ports.glance, str(layout.access_log)),
        Service(
            "network-stub",
            [*stub, "--port", str(ports.network)],
            layout.environment(),
            functools.partial(http_answers, ports.network),
            f"HTTP on port {ports.network}",
            (ports.network,),
        ),
        _wsgi(layout, "nova-api", "nova.wsgi.osapi_compute", ports.nova_api),
        _nova(layout, "conductor"),
        _nova(layout, "scheduler", "scheduler.conf"),
        *(_compute(layout, host) for host in layout.hosts),
    ]
    return {service.name: service for service in services}


def _epmd(layout: Layout) -> Service:
    port = layout.ports.epmd
    return Service(
        "epmd",
        ["epmd", "-address", "127.0.0.1", "-port", str(port)],
        layout.environment(),
        functools.partial(port_open, port),
        f"port {port}",
        (port,),
    )


def _rabbit(layout: Layout) -> Service:
    directory = layout.home / "rabbit"
    etc = layout.etc / "rabbitmq"
    port = layout.ports.rabbit
    variables = {
        "HOME": directory,
        "RABBITMQ_CONF_ENV_FILE": etc / "rabbitmq-env.conf",
        "RABBITMQ_CONFIG_FILE": etc / "rabbitmq.conf",
        "RABBITMQ_ENABLED_PLUGINS_FILE": etc / "enabled_plugins",
        "RABBITMQ_NODENAME": "rabbit@localhost",
        "RABBITMQ_MNESIA_BASE": directory / "mnesia",
        "RABBITMQ_LOG_BASE": directory / "log",
        "RABBITMQ_PID_FILE": directory / "pid",
        "RABBITMQ_DIST_PORT": layout.ports.rabbit_distribution,
        "ERL_CRASH_DUMP_SECONDS": 0,
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": layout.ports.epmd,
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        # Like this the script becomes the Erlang machine instead of waiting for it.
        "RABBITMQ_ALLOW_INPUT": "1",
        "RABBITMQ_SERVER_START_ARGS": "-noinput +S 1:1 +sbwt none",
    }
    return Service(
        "rabbit",
        ["/usr/lib/rabbitmq/bin/rabbitmq-server"],
        layout.environment({name: str(value) for name, value in variables.items()}),
        functools.partial(port_open, port),
        f"port {port}",
        (port, layout.ports.rabbit_distribution),
    )


def _libvirtd(layout: Layout, host: Host) -> Service:
    namespaces = ["unshare", "--net", "--mount", "--uts", "--"]
    return Service(
        host.libvirtd,
        [*namespaces, "sh", "-ec", LIBVIRTD_SCRIPT, "sh", str(host.libvirt), host.hostname],
        layout.environment(),
        functools.partial(socket_answers, host.libvirt_socket),
        f"socket {host.libvirt_socket}",
    )


def _wsgi(layout: Layout, name: str, module: str, port: int, access_log: str = "") -> Service:
    project = "nova" if name == "nova-api" else name
    argv = [str(VENV / "bin" / "gunicorn"), "--config", str(TOOLS / "gunicorn_conf.py")]
    argv += ["--bind", f"127.0.0.1:{port}"]
    argv += ["--access-logfile", access_log] if access_log else []
    env = {
        **layout.openstack_process_environment(),
        f"OS_{project.upper()}_CONFIG_DIR": str(layout.etc / project),
        "HOME": str(config.wsgi_home(layout, name)),
    }
    ready = functools.partial(http_answers, port)
    what = f"HTTP on port {port}"
    return Service(name, [*argv, f"{module}:application"], env, ready, what, (port,))


def _nova_command(layout: Layout, name: str, program: str, *own_files: str) -> list[str]:
    argv = [str(VENV / "bin" / program)]
    for file in ("nova.conf", *own_files):
        argv += ["--config-file", str(layout.etc / "nova" / file)]
    for layer in ("nova", name):
        argv += ["--config-dir", str(layout.layers(layer))]
    return argv


def _nova(layout: Layout, name: str, *own_files: str) -> Service:
    return Service(
        name,
        _nova_command(layout, name, f"nova-{name}", *own_files),
        layout.openstack_process_environment(),
        functools.partial(records.queue_served, layout, name),
        f"consumer of queue {name}",
    )


def _compute(layout: Layout, host: Host) -> Service:
    files = (f"{host.compute}.conf", "virtualization.conf")
    return Service(
        host.compute,
        _nova_command(layout, host.compute, "nova-compute", *files),
        layout.openstack_process_environment(),
        functools.partial(_compute_ready, layout, host),
        "registration with the conductor",
    )


def _compute_ready(layout: Layout, host: Host) -> bool:
    pid_file = layout.run / f"{host.compute}.pid"
    return records.compute_registered(layout, host, pid_file.stat().st_mtime) and (
        records.queue_served(layout, f"compute.{host.hostname}")
    )


def in_namespace_of(host: Host, pid: int) -> bool:
    """Whether a process sees the private directories of this host's libvirtd: guests do."""
    try:
        return os.path.samefile(f"/proc/{pid}/root/run/libvirt", Path(host.libvirt, "run"))
    except OSError:
        return False
