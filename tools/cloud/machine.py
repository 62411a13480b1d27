"""What the cloud needs of this machine, and whose its folders are."""

import contextlib
import os
import pwd
import shutil
import stat
from pathlib import Path

from tools.cloud.layout import GLANCE, NOVA, QEMU, Layout
from tools.cloud.processes import ServiceError

# The length of sockaddr_un.sun_path, less the terminating zero.
LONGEST_SOCKET = 107
KVM = Path("/dev/kvm")


def check(layout: Layout) -> None:
    """See that this machine can run the cloud.

    :raises ServiceError: if it cannot.
    """
    if os.geteuid() != 0:
        raise ServiceError("the cloud must be started as root, for libvirtd's namespaces")
    known = {user.pw_name for user in pwd.getpwall()}
    if missing := {NOVA, GLANCE, QEMU} - known:
        raise ServiceError(f"there is no user {' or '.join(sorted(missing))}: tools/setup.sh makes"
                         " them")  # fmt: skip
    for host in layout.hosts:
        if len(os.fsencode(host.libvirt_socket)) > LONGEST_SOCKET:
            raise ServiceError(f"{layout.home}: this path is too long for libvirtd's socket")


def make_directories(layout: Layout) -> None:
    """Make what is not there yet; who works in a folder owns it."""
    layout.home.chmod(0o711)
    own: dict[str, list[Path]] = {
        "root": [layout.state, layout.log, layout.run, layout.etc, layout.home / "lock",
                 layout.home / "rabbit"],
        GLANCE: [layout.images, layout.home / "staging", layout.home / "tasks"],
        NOVA: []}  # fmt: skip
    for host in layout.hosts:
        own[NOVA] += [host.state, host.instances, host.gateway]
        own[NOVA] += [layout.home / f"lock{host.suffix}"] if host.suffix else []
    for user, paths in own.items():
        for path in (*paths, *([layout.user_home(user)] if user != "root" else [])):
            path.mkdir(parents=True, exist_ok=True)
            shutil.chown(path, user, user)
    # All services have this in common.
    (layout.home / "lock").chmod(0o1777)
    layout.access_log.touch()
    shutil.chown(layout.access_log, GLANCE)
    _make_kvm(layout)


def _make_kvm(layout: Layout) -> None:
    """Make a device for KVM that QEMU's user may open, as udev has it.

    Where only root may, libvirtd finds at each start of a guest that it has to try QEMU anew, which
    takes up to a minute.
    """
    with contextlib.suppress(OSError):
        if not layout.kvm.exists():
            os.mknod(layout.kvm, stat.S_IFCHR, KVM.stat().st_rdev)
        layout.kvm.chmod(0o666)
