"""Nova's libvirt driver with snapshots that are sent as what differs: see directsnapshots.py."""

import contextlib
import functools
import os
from typing import Any

import nova.utils
from nova import exception as nova_exception
from nova.virt.libvirt import driver as libvirt_driver
from nova.virt.libvirt import utils as libvirt_utils
from oslo_utils import excutils, fileutils

from nova_bootcache.novadriver.directsnapshots import DirectSnapshots

CONF = libvirt_driver.CONF


class SnapshottingDriver(libvirt_driver.LibvirtDriver):  # type: ignore[misc]
    """libvirt driver whose root disks may have direct snapshots.

    :ivar direct: those under way.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.direct = DirectSnapshots()

    def snapshot(self, context: Any, instance: Any, *args: Any, **kwargs: Any) -> None:
        """Send it as what differs where that can be; wait for Glance, as Nova does not."""
        stock = functools.partial(super().snapshot, context, instance)
        if len(args) < 2:
            # Of a release that calls it otherwise.
            stock(*args, **kwargs)
            return
        image_id, update_task_state, *more = args
        self.direct.snapshot(
            instance, image_id, update_task_state,
            lambda image_id, update: stock(image_id, update, *more, **kwargs),
            lambda: str(self._image_api.get(context, image_id).get('status')),
            lambda: bool(self._host.get_guest(instance).is_active()),
            functools.partial(self._take_delta, context, instance))

    def _create_snapshot_metadata(self, *args: Any, **kwargs: Any) -> Any:
        """Keep what Glance will be told: the format is that of what was sent."""
        metadata = super()._create_snapshot_metadata(*args, **kwargs)
        self.direct.note_metadata(metadata)
        return metadata

    def _live_snapshot(self, context: Any, instance: Any, guest: Any, *args: Any,
                       **kwargs: Any) -> None:
        """Define the domain again, and thaw its file systems, also where Nova does not.

        What an unsettled server reads may be away: QEMU ends the copy by itself then, and Nova
        fails at what it does between these two. A domain that is not defined can neither be
        suspended nor get a volume.
        """
        defined = guest.get_xml_desc(dump_inactive=True, dump_sensitive=True)
        try:
            super()._live_snapshot(context, instance, guest, *args, **kwargs)
        except Exception:
            with excutils.save_and_reraise_exception():
                if not guest.has_persistent_configuration():
                    self._host.write_instance_config(defined)
                    # One that has no agent has not been frozen.
                    with contextlib.suppress(nova_exception.NovaException):
                        self.unquiesce(context, instance, instance.image_meta)

    def _take_delta(self, context: Any, instance: Any) -> None:
        """Have Nova make its own live snapshot up to where it converts the delta."""
        guest = self._host.get_guest(instance)
        path, source_format = libvirt_utils.find_disk(guest)
        fileutils.ensure_tree(CONF.libvirt.snapshots_directory)
        with nova.utils.tempdir(dir=CONF.libvirt.snapshots_directory) as directory:
            # libvirt's user has to enter it, as Nova has it.
            os.chmod(directory, 0o701)
            self._live_snapshot(context, instance, guest, path, os.path.join(directory, 'sent'),
                                source_format, 'raw', instance.image_meta)
