"""The demo's last server: its host's gateway is killed while it reads what no boot has read."""

import dataclasses
import os
import re
import signal
import time
from pathlib import Path

from tools.cloud.bootcache import BootcacheCloud
from tools.cloud.client import POLL, ClientError, OpenStack

BEGUN = "files: are read"
# dpkg reads all that its packages brought, and compares it with their checksums; users' changes to
# configuration (c) are none of the disk's. The kernel tells of requests that its disk refused.
USER_DATA = f"""#cloud-config
runcmd:
  - [sh, -c, 'exec >/dev/console 2>&1; echo "{BEGUN}";
     wrong=$(dpkg --verify | grep -vc " c /"); errors=$(dmesg | grep -c "I/O error");
     echo "files: $wrong wrong, $errors errors"']
"""
_ANSWER = re.compile(r"^files: (\d+) wrong, (\d+) errors\r?$", re.MULTILINE)
_SECONDS = 600


@dataclasses.dataclass(frozen=True)
class Killed:
    """What a server saw of it.

    :ivar waited_seconds: for which it was paused.
    :ivar errors: I/O errors that the guest's kernel tells of.
    :ivar wrong_files: of the image, by its packages' checksums.
    """

    waited_seconds: float
    errors: int
    wrong_files: int

    def __str__(self) -> str:
        return (f"gateway killed while a server ran: it waited {self.waited_seconds:.1f} s,"
                f" {self.errors} errors, {self.wrong_files} wrong files")  # fmt: skip

    def broken_promises(self) -> list[str]:
        """What does not hold."""
        return [] if not self.errors and not self.wrong_files else [str(self)]


def answer(console: str) -> tuple[int, int] | None:
    """How many files are wrong and how many errors there were, by a guest's console."""
    found = _ANSWER.search(console)
    return None if found is None else (int(found[1]), int(found[2]))


def kill_the_gateway(cloud: BootcacheCloud, openstack: OpenStack, server: str) -> Killed:
    """Kill the gateway below a server that was given USER_DATA.

    :raises ClientError: if the server did not need the gateway, does not come to its end, or the
        gateway was not there.
    """
    openstack.wait_console(server, BEGUN)
    killed = cloud.gateway_pid()
    if killed is None:
        raise ClientError("the host has no gateway")
    os.kill(killed, signal.SIGKILL)
    waited = _waits(openstack, server)
    if not waited:
        raise ClientError(f"server {server} did not need the gateway")
    if cloud.gateway_pid() in (None, killed):
        raise ClientError("the host has no new gateway")
    wrong, errors = answer(openstack.console(server)) or (0, 0)
    return Killed(round(waited, 1), errors, wrong)


def _waits(openstack: OpenStack, server: str) -> float:
    """Seconds for which it was paused, until it has answered."""
    import libvirt

    waited, last = 0.0, time.monotonic()
    deadline = last + _SECONDS
    with openstack.domain(server) as domain:
        while answer(openstack.console(server)) is None:
            state, reason = domain.state(0)
            now = time.monotonic()
            if (state, reason) == (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_IOERROR):
                waited += now - last
            last = now
            if now > deadline:
                raise ClientError(f"server {server} has not read its files after {_SECONDS} s")
            time.sleep(POLL / 4)
    return waited


def write_user_data(directory: Path) -> Path:
    """Write USER_DATA where the openstack client can read it."""
    file = directory / "user-data"
    file.write_text(USER_DATA)
    return file
