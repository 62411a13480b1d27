"""A host whose services are containers: each has mounts and process numbers of its own.

They share what doc/source/install.rst says, and nothing else of the host's files.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

from tools.cloud.bootcache import (
    CONNECTORS_UNIT,
    GATEWAY_UNIT,
    RESTARTING_SCRIPT,
    BootcacheCloud,
    connectors_command,
    gateway_script,
)
from tools.cloud.layout import COMPUTE_GROUPS, NOVA, TOOLS, VENV, Host
from tools.cloud.services import confined, on_host_command

# What no other container sees of libvirt's.
LIBVIRTS = tuple(Path(f"/{name}/libvirt") for name in ("etc", "var/lib", "var/log", "var/cache"))


def shared(cloud: BootcacheCloud, host: Host) -> dict[str, tuple[Path, ...]]:
    """What of the cloud's files each service sees; /run/libvirt is elsewhere.

    The page's names: /var/lib/nova is the instances' folder, /run/bootcache the gateway's, and
    /etc/bootcache/pki the host's certificates.
    """
    layout = cloud.layout
    both = (layout.instances, layout.gateway)
    certificates = cloud.certificates / host.hostname
    return {
        host.libvirtd: both, host.gateway_unit: both,
        # Its image is nova-compute's.
        host.connectors_unit: (layout.gateway, certificates, VENV, TOOLS.parents[1]),
        host.compute: (*both, certificates, host.libvirt / "run", host.state, layout.etc,
                       layout.user_home(NOVA), cloud.home / f"lock{host.suffix}", VENV,
                       TOOLS.parents[1])}  # fmt: skip


@contextlib.contextmanager
def contained(cloud: BootcacheCloud, host: Host) -> Iterator[None]:
    """Have a host's services be containers; it has no guest at the begin and at the end."""
    names = [host.libvirtd, host.connectors_unit, host.gateway_unit, host.compute]
    before = {name: cloud.service(name) for name in names}
    for name, files in shared(cloud, host).items():
        service = before[name]
        own = [word for word in service.argv if word.startswith("--bind=")]
        closed = [cloud.home, Path("/tmp"), *(LIBVIRTS if name != host.libvirtd else ()),
                  *([Path("/run/libvirt")] if name in (host.connectors_unit, host.gateway_unit)
                    else [])]  # fmt: skip
        if name == host.libvirtd:
            # What is first in libvirt's container starts the daemon again, and guests go on.
            start = [*confined(cloud.layout), "sh", "-c", RESTARTING_SCRIPT, "sh", "libvirtd",
                     "--listen", "-p", "/run/libvirt/libvirtd.pid"]  # fmt: skip
        elif name == host.connectors_unit:
            start = [*confined(cloud.layout, unit=CONNECTORS_UNIT),
                     *connectors_command(cloud.layout)]  # fmt: skip
        elif name == host.gateway_unit:
            start = [*confined(cloud.layout, unit=GATEWAY_UNIT), "sh", "-c",
                     gateway_script(cloud.layout)]  # fmt: skip
        else:
            command = service.argv[service.argv.index("--") + 1 :]
            start = [*confined(cloud.layout, NOVA, groups=COMPUTE_GROUPS), *command]
        start = [word for word in start if not word.startswith("--show=")]
        place = start.index("--")
        start[place:place] = ["--pid", *own, *(f"--show={path}" for path in files),
                              *(f"--close={path}" for path in closed)]  # fmt: skip
        argv = on_host_command(cloud.layout, host, *start, network=name == host.libvirtd)
        cloud.replace(dataclasses.replace(service, argv=argv))
    try:
        cloud.restart(*names)
        yield
    finally:
        for service in before.values():
            cloud.replace(service)
        cloud.restart(*names)
