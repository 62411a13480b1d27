"""A private libvirtd in namespaces of its own, with all that it has in a directory."""

import os
import subprocess
import time

import libvirt

_LIBVIRTD = """
cd "$1"; ip link set lo up
bind() { mkdir -p "$1" "$2"; mount --bind "$1" "$2"; }
bind run /run/libvirt; bind etc /etc/libvirt; bind lib /var/lib/libvirt
bind log /var/log/libvirt; bind cache /var/cache/libvirt
exec libvirtd -p "$1/run/libvirtd.pid"
"""
_LIBVIRTD_CONF = """\
auth_unix_ro = "none"
auth_unix_rw = "none"
unix_sock_group = "root"
unix_sock_rw_perms = "0700"
log_outputs = "2:stderr"
"""
_QEMU_CONF = """\
user = "root"
group = "root"
security_driver = "none"
dynamic_ownership = 0
remember_owner = 0
cgroup_controllers = []
namespaces = []
stdio_handler = "file"
"""
_UP_SECONDS = 240


def connect(home: str) -> libvirt.virConnect:
    """Connect to the private libvirtd in a directory.

    :raises libvirtError: if it does not answer.
    """
    # Errors are raised; libvirt would print them, too.
    libvirt.registerErrorHandler(lambda _context, _error: None, None)
    return libvirt.open(f'qemu+unix:///system?socket={home}/run/libvirt-sock')


def start(home: str) -> tuple[subprocess.Popen[bytes], libvirt.virConnect]:
    """Start one, and return its process, which ends it, and a connection.

    :param home: directory; its path is short, as paths of unix sockets end at 107 bytes.
    :raises RuntimeError: if it does not come up.
    """
    for name, text in {'libvirtd.conf': _LIBVIRTD_CONF, 'qemu.conf': _QEMU_CONF}.items():
        os.makedirs(f'{home}/etc', exist_ok=True)
        with open(f'{home}/etc/{name}', 'w') as stream:
            stream.write(text)
    with open(f'{home}/libvirtd.log', 'ab') as log:
        process = subprocess.Popen(
            ['unshare', '-n', '-m', '-u', 'sh', '-ec', _LIBVIRTD, 'sh', home],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    deadline = time.monotonic() + _UP_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            return process, connect(home)
        except libvirt.libvirtError:
            time.sleep(0.05)
    raise RuntimeError(f'libvirtd did not come up; see {home}/libvirtd.log')
