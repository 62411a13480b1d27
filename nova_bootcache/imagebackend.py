"""Nova's qcow2 image backend, with root disks as overlays on cache images."""

import os
from typing import Any

from nova import exception as nova_exception
from nova.compute import vm_states
from nova.virt.libvirt import imagebackend
from nova.virt.libvirt import utils as libvirt_utils
from oslo_log import log as logging

from bootcache import exception, rpcapi
from nova_bootcache.host import ComputeHost
from nova_bootcache.placement import Server

LOG = logging.getLogger(__name__)


class BootCacheQcow2(imagebackend.Qcow2):  # type: ignore[misc]
    """A qcow2 disk; only how a disk comes to be (``cache``) differs from Nova's.

    :cvar bootcache: the host's cache images and gateway.
    """

    bootcache: ComputeHost

    def __init__(self, instance: Any = None, disk_name: str | None = None, path: str | None = None,
                 disk_info_mapping: Any = None):
        self._instance = instance
        super().__init__(instance, disk_name, path, disk_info_mapping)

    @classmethod
    def bound_to(cls, bootcache: ComputeHost) -> type['BootCacheQcow2']:
        """Return a class for Nova's table of image backends."""
        return type(cls.__name__, (cls,), {'bootcache': bootcache})

    def cache(self, fetch_func: Any, filename: str, size: int | None = None, safe: bool = False,
              *args: Any, **kwargs: Any) -> None:
        """Make the disk if it is not there, and what is below it.

        Three cases: no overlay yet, where the chain is made; an overlay on a cache image, where the
        chain is kept; everything else is stock Nova's.

        :param filename: Nova's name for the base: sha1 of the image id, or ephemeral or swap names.
        :param size: of the disk, in bytes; None for the base's own.
        """
        if self.exists():
            backing = libvirt_utils.get_disk_backing_file(self.path, basename=False)
            if self.bootcache.cache.holds_path(backing):
                self._keep(kwargs.get('image_id') or self._instance.image_ref, size)
                return
        elif self._make(filename, size, **kwargs):
            return
        super().cache(fetch_func, filename, size, safe, *args, **kwargs)

    def _make(self, filename: str, size: int | None, image_id: str | None = None,
              trusted_certs: Any = None, **_others: Any) -> bool:
        instance = self._instance
        if instance is None or image_id is None:
            return False
        stock_base = os.path.join(imagebackend.CONF.instances_path,
                                  imagebackend.CONF.image_cache.subdirectory_name, filename)
        server = Server(image_id=image_id, disk_name=os.path.basename(self.path),
                        kernel_id=instance.kernel_id or '',
                        has_trusted_certs=bool(trusted_certs),
                        is_unshelving=instance.vm_state == vm_states.SHELVED_OFFLOADED,
                        preallocates=self.preallocate)
        try:
            token = (instance.metadata or {}).get(rpcapi.PROFILE_METADATA)
            return self.bootcache.make_overlay(server, instance.uuid, token, self.path, size,
                                               os.path.exists(stock_base))
        except exception.ProfileBootFailed as error:
            raise nova_exception.InternalError(f'Profile boot of {image_id}: {error}') from error

    def _keep(self, image_id: str, size: int | None) -> None:
        try:
            self.bootcache.keep_chain(image_id)
        except Exception as error:
            raise nova_exception.InternalError(
                f'The disk of server {self._instance.uuid} cannot be opened: {error}') from error
        if size and size > self.get_disk_size(self.path):
            self.resize_image(size)
