"""A server's root disk, as Nova's operations on the server need it: put right, and opened."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

from nova import exception as nova_exception
from nova.virt.libvirt import utils as libvirt_utils
from oslo_log import log as logging

from bootcache import exception
from nova_bootcache.novadriver import errorpolicy
from nova_bootcache.novadriver.imagebackend import BootCacheQcow2

LOG = logging.getLogger(__name__)


class RootDisks:
    """Finds servers' root disks, and sees to it that they can be opened.

    :param image_backend: Nova's table of image backends, with ours in it.
    :param recover_server: puts right what settling left half-done in a server's directory.
    """

    def __init__(self, image_backend: Any, recover_server: Callable[[str], None]):
        self._image_backend = image_backend
        self._recover_server = recover_server
        # The disk of which a thread sends a copy in the form that stock Nova knows.
        self._leaving = threading.local()

    def find(self, instance: Any, directory: str = '') -> BootCacheQcow2 | None:
        """Return a server's root disk if there is a file of it, and our image backend makes it.

        Nova's image backend writes ``disk.info`` as soon as it is asked for a disk, so the file is
        looked for first: a server that boots from a volume has none.
        """
        try:
            os.stat(os.path.join(directory or libvirt_utils.get_instance_path(instance), 'disk'))
        except FileNotFoundError:
            return None
        disk = self._image_backend.by_name(instance, 'disk')
        return disk if isinstance(disk, BootCacheQcow2) else None

    def _half_done(self, instance: Any, directory: str = '') -> exception.BootcacheError | None:
        """Put right what settling left half-done; return why that cannot be, None if all is right.

        :param directory: the server's, where it is not the usual one.
        """
        try:
            self._recover_server(directory or libvirt_utils.get_instance_path(instance))
        except exception.BootcacheError as error:
            return error
        return None

    def end_half_done(self, instance: Any, directory: str = '') -> None:
        """Put right what settling left half-done in a server's directory.

        :raises InternalError: if it cannot be told which of two disks is the right one.
        """
        if (error := self._half_done(instance, directory)) is not None:
            # To start it from the wrong one, or to send that, would lose what the guest wrote.
            raise nova_exception.InternalError(
                f'The disk of server {instance.uuid} cannot be told: {error}') from error

    def end_before_it_goes_on(self, instance: Any) -> None:
        """Put right what settling left half-done, before a guest that its user paused goes on.

        QEMU may go on with the other disk by then, unrecorded: what the guest wrote to that would
        be lost if the host went down. After a copy that was given up it goes on with the disk that
        it had.

        :raises InternalError: if it cannot be, or cannot be told which of two disks is right. Where
            QEMU does not answer, Nova could not let the guest go on either.
        """
        error = self._half_done(instance)
        if error is not None and not isinstance(error, exception.BlockJobStalls):
            raise nova_exception.InternalError(
                f'Server {instance.uuid} stays paused for now, as what settling left half done'
                f' cannot be put right: {error}. See why, and unpause it again or hard reboot it'
            ) from error

    def waits_for_qemu(self, instance: Any) -> bool:
        """Tell whether what settling left half-done stays so until the server's QEMU has ended.

        All else that is half done is put right, or ``open_chain`` tells why it is not.
        """
        return isinstance(self._half_done(instance), exception.LibvirtHangs)

    def why_half_done(self, instance: Any) -> str:
        """Return why what settling left half-done cannot be put right now; empty if all is right.

        Until it is, the server must not be started from its disk, and does not leave the host.
        """
        return str(self._half_done(instance) or '')

    def open_chain(self, instance: Any, patience: float, guest_waits: bool,
                   kept_in: str = '') -> None:
        """See to it that a server's root disk can be opened, whatever the host went through.

        :param patience: seconds for which it waits while what is below is busy or away.
        :param guest_waits: whether its guest is paused at what cannot be read of the base.
        :param kept_in: directory of a disk that was kept here while a copy was sent: the cache
            image is right for it. Empty for one that may have come from another host.
        :raises InternalError: if it cannot.
        """
        directory = kept_in or libvirt_utils.get_instance_path(instance)
        self.end_half_done(instance, directory)
        disk = self.find(instance, directory)
        if disk is not None:
            path = os.path.join(directory, 'disk')
            if kept_in and disk.lacks_stock_base(path):
                # nova-compute was killed while it sent the copy.
                disk.name_cache_image(path)
            disk.open_chain(path, patience, guest_waits)

    @contextlib.contextmanager
    def leaving(self, instance: Any) -> Iterator[None]:
        """Have ``name_stock_base`` know the disk of which Nova sends a copy now.

        The one that is kept is put back on its cache image at the end.
        """
        disk = self._leaving.disk = self.find(instance)
        self._leaving.is_renamed = False
        try:
            yield
        finally:
            self._leaving.disk = None
            if disk is not None and self._leaving.is_renamed:
                disk.name_cache_image(self.kept(instance))

    def name_stock_base(self) -> None:
        """Name a disk that is sent next as stock Nova names it, once its server is off.

        :raises BootcacheError: if that is not possible.
        """
        if getattr(self._leaving, 'disk', None) is not None:
            self._leaving.is_renamed = self._leaving.disk.name_stock_base()

    def make_stock(self, instance: Any) -> bool:
        """Tell whether a disk that has come is named as stock Nova names it now, for its start."""
        disk = self.find(instance)
        try:
            return disk is not None and disk.name_stock_base()
        except exception.BootcacheError as error:
            LOG.warning('bootcache: server %s cannot start the stock way: %s', instance.uuid, error)
            return False

    @staticmethod
    def kept(instance: Any) -> str:
        """Return where the root disk is of a server that was, or is being, sent from here."""
        directory = libvirt_utils.get_instance_path(instance)
        kept = os.path.join(f'{directory}_resize', 'disk')
        return kept if os.path.exists(kept) else os.path.join(directory, 'disk')

    def stands_on_cache_image(self, instance: Any) -> bool:
        """Tell whether a server's disk stands on a cache image; no if that is not known."""
        disk = self.find(instance)
        return disk is not None and disk.stands_on_cache_image()

    def waits_when_unrescued(self, instance: Any) -> bool:
        """Tell whether a guest waits for its disk once it is not rescued any more.

        Nova keeps what libvirt said of it before. Of one that had come, running, from a host with
        stock Nova's driver that does not say so: one on a cache image is made to wait.
        """
        return self.stands_on_cache_image(instance) and errorpolicy.add_to_file(
            os.path.join(libvirt_utils.get_instance_path(instance), 'unrescue.xml'))
