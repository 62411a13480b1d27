"""The compute driver: Nova's libvirt driver with another image backend.

Each method that is overridden has its reason in its docstring; tests/unit/test_nova_internals.py
holds the list, so that an upgrade of Nova is checked in a minute.
"""

import os
from typing import Any

from nova.virt.libvirt import driver as libvirt_driver
from nova.virt.libvirt import imagebackend
from oslo_log import log as logging

from bootcache import conf as bootcache_conf
from nova_bootcache import conf as bootcache_nova_conf
from nova_bootcache import snapshots
from nova_bootcache.host import ComputeHost
from nova_bootcache.imagebackend import BootCacheQcow2

LOG = logging.getLogger(__name__)
CONF = libvirt_driver.CONF


class BootCacheLibvirtDriver(libvirt_driver.LibvirtDriver):  # type: ignore[misc]
    """libvirt driver whose servers boot from cache images where there are some."""

    def __init__(self, virtapi: Any, read_only: bool = False):
        """Put our image backend in the place of Nova's for qcow2, and let snapshots see it."""
        super().__init__(virtapi, read_only)
        bootcache_nova_conf.register_opts(CONF)
        directory = CONF[bootcache_conf.GROUP].cache_directory \
            or os.path.join(CONF.instances_path, '_bootcache')
        self.bootcache = ComputeHost(CONF, os.path.abspath(directory))
        backend = BootCacheQcow2.bound_to(self.bootcache)
        table = self.image_backend.BACKEND
        for name, stock in list(table.items()):
            if stock is imagebackend.Qcow2:
                table[name] = backend
        snapshots.allow_on(self.bootcache.cache)

    def init_host(self, host: str) -> None:
        """Start the gateway first: Nova's own start may boot servers that were running."""
        if CONF.libvirt.images_type not in ('qcow2', 'default') or not CONF.use_cow_images:
            LOG.warning('bootcache: [libvirt]images_type=%s is served the stock way; use qcow2',
                        CONF.libvirt.images_type)
        self.bootcache.start(host)
        super().init_host(host)

    def cleanup_host(self, host: str) -> None:
        """Stop the thread that looks after the gateway."""
        self.bootcache.stop()
        super().cleanup_host(host)

    def destroy(self, context: Any, instance: Any, network_info: Any,
                block_device_info: Any = None, destroy_disks: bool = True,
                destroy_secrets: bool = True) -> None:
        """Report what a profile boot read, once its domain is gone."""
        try:
            super().destroy(context, instance, network_info, block_device_info, destroy_disks,
                            destroy_secrets)
        finally:
            self.bootcache.finish_recording(instance.uuid)

    def manage_image_cache(self, context: Any, all_instances: Any) -> None:
        """Remove our unused files as well; Nova's manager looks at ``_base`` only."""
        super().manage_image_cache(context, all_instances)
        if CONF.image_cache.remove_unused_base_images:
            self.bootcache.remove_unused(
                (instance.image_ref for instance in all_instances),
                CONF.image_cache.remove_unused_original_minimum_age_seconds)
