"""Whether libvirt's QEMU can open what is below servers' disks: told by the start of a server.

Nova's user may not become QEMU's: nothing else tells what modes, access control lists, AppArmor or
SELinux deny QEMU, or what QEMU's container lacks.
"""

import errno
import os
import re
from collections.abc import Callable

from oslo_log import log as logging

from bootcache import listening
from bootcache.locks import UsageCounts

LOG = logging.getLogger(__name__)


def blamed(error: str, socket_path: str, directory: str) -> str:
    """Return what QEMU could not open as a domain did not start: the socket or a cache image. Pure.

    :param error: libvirt's, with QEMU's own words.
    :param directory: of cache images.
    :returns: its path; empty if the error is another one.
    """
    found = re.search(rf"'({re.escape(socket_path)}|{re.escape(directory)}/[^'/]+)'", error)
    return found[1] if found else ''


def denial_of_start(error: str, path: str, is_socket: bool, is_here: bool) -> str:
    """Return why the next server would not start either, and the cure; empty if it may. Pure.

    :param error: libvirt's, which blames the path.
    :param is_socket: whether the path is that of the gateway's socket, and not of a cache image.
    :param is_here: whether this process could open it all the time.
    """
    folder = os.path.dirname(path)
    if any(os.strerror(code) in error for code in (errno.EACCES, errno.EPERM)):
        rule = f'{path} rw,' if is_socket else f'{folder}/* rk,'
        use = 'write to it (see [bootcache]gateway_group)' if is_socket else 'read it'
        return (f'QEMU is denied {path}: its user and group ("virsh capabilities" has them, as dac)'
                f' have to pass the folders that "namei -l {path}" lists, and to {use}; AppArmor'
                f' needs "{rule}" in /etc/apparmor.d/local/abstractions/libvirt-qemu; "ausearch -m'
                ' avc" tells what SELinux denies; restart nova-compute then')
    if is_here and any(os.strerror(code) in error for code in (errno.ENOENT, errno.ECONNREFUSED)):
        return (f'QEMU does not see {path}, which is here: where libvirt or the gateway run in'
                f' containers of their own, share the folder {folder} with them (the folder, not a'
                ' socket in it), then restart nova-compute')
    return ''


class GatewaySocket:
    """What is known of one host's socket: whether servers can be started that need it.

    :ivar reason: why QEMU cannot open it, or cache images; empty if it can, as far as is known.

    :param path: of the socket.
    :param directory: of cache images.
    """

    def __init__(self, path: str, directory: str):
        self._path = path
        self._directory = directory
        self.reason = ''
        # The socket of which a start has shown that.
        self._denied_socket: tuple[int, ...] | None = None
        # Servers that go the stock way just now.
        self._stock_only = UsageCounts('servers that go the stock way')

    def reason_for(self, server_id: str) -> str:
        """Return why a server is to go the stock way; empty if it need not."""
        return self.reason or (
            'it did not start from a cache image' if server_id in self._stock_only else '')

    def check(self) -> None:
        """Have new servers try the socket again if it is another one, or has other rights."""
        if self.reason and self._identity() != self._denied_socket:
            LOG.info('bootcache: the gateway\'s socket is another one, or has another mode: servers'
                     ' boot from cache images again')
            self.reason = ''

    def _identity(self) -> tuple[int, ...] | None:
        """Return what is another for each socket, and for each change of its rights."""
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_ctime_ns

    def start(self, server_id: str, start: Callable[[], None],
              make_stock: Callable[[], bool]) -> None:
        """Start a server; once more, the stock way, if QEMU cannot open what is below its disk.

        If the next one could not either, all servers of the host go the stock way from now on.

        :param start: makes what is missing of its disk, and starts it.
        :param make_stock: sees to it that its disk is made anew, or is put onto a base of stock
            Nova's; False if that is not possible.
        :raises Exception: Nova's.
        """
        before = self._identity()
        try:
            start()
        except Exception as error:
            path = blamed(str(error), self._path, self._directory)
            if not path or not make_stock():
                raise
            is_socket = path == self._path
            is_here = os.path.exists(path) if not is_socket else (
                before is not None and self._identity() == before and listening.is_served(path))
            self._failed(server_id, path, denial_of_start(str(error), path, is_socket, is_here))
            with self._stock_only.of(server_id):
                start()

    def _failed(self, server_id: str, path: str, denied: str) -> None:
        if denied and not self.reason:
            self._denied_socket, self.reason = self._identity(), denied
            LOG.error('bootcache: servers go the stock way: %s', denied)
        LOG.warning('bootcache: server %s did not start, as QEMU could not open %s; it is made the'
                    ' stock way', server_id, path)
