"""Nova's qcow2 image backend, with root disks as overlays on cache images."""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import nova.privsep.path
from nova import exception as nova_exception
from nova.compute import task_states, vm_states
from nova.virt.libvirt import imagebackend
from nova.virt.libvirt import utils as libvirt_utils
from oslo_log import log as logging

from bootcache import exception, naming, qemuimg
from bootcache.rpc import messages
from nova_bootcache.asking.client import AsUser
from nova_bootcache.asking.placement import Server
from nova_bootcache.chains.computehost import ComputeHost
from nova_bootcache.novadriver import downloads, errorpolicy, novaservers, signatures
from nova_bootcache.novadriver.directsnapshots import DirectSnapshots, overlay_of
from nova_bootcache.settling import fullbase
from nova_bootcache.snapshots.sender import SentDisk, Snapshot, SnapshotRefused

LOG = logging.getLogger(__name__)

_CONSOLE_BYTES = 16 << 10
_MOVES = frozenset({task_states.MIGRATING, task_states.RESIZE_MIGRATED, task_states.RESIZE_FINISH})


def lazy(instance: Any, name: str) -> Any:
    """Return what Nova may have to get from its database first; None if it cannot be had.

    An instance without a context cannot be asked for more, and the database may be away: neither is
    a reason for a server not to start.
    """
    try:
        return getattr(instance, name)
    except Exception as error:
        LOG.info('bootcache: the %s of server %s is not known: %s', name, instance.uuid, error)
        return None


def _profile_token(instance: Any) -> str | None:
    token: str | None = (lazy(instance, 'metadata') or {}).get(messages.PROFILE_METADATA)
    return token


@contextlib.contextmanager
def aborting(instance: Any) -> Iterator[None]:
    """Have Nova's fault of a profile boot that does not start say why.

    Where Nova tries other hosts instead, it says so neither in the fault nor in the events.

    :raises BuildAbortException: in the place of what was raised, if the server is a profile boot.
    """
    try:
        yield
    except Exception as error:
        if _profile_token(instance) is None or isinstance(error, (
                nova_exception.InstanceNotFound, nova_exception.UnexpectedDeletingTaskStateError)):
            raise
        raise nova_exception.BuildAbortException(
            instance_uuid=instance.uuid, reason=error) from error


class BootCacheQcow2(imagebackend.Qcow2):  # type: ignore[misc]
    """A qcow2 disk; how a disk comes to be (``cache``) differs from Nova's, and what libvirt does
    at an I/O error of one that is read through the gateway (``libvirt_info``).

    :cvar bootcache: the host's cache images and gateway.
    :cvar direct: the host's snapshots.
    """

    bootcache: ComputeHost
    direct: DirectSnapshots | None

    def __init__(self, instance: Any = None, disk_name: str | None = None, path: str | None = None,
                 disk_info_mapping: Any = None):
        self._instance = instance
        super().__init__(instance, disk_name, path, disk_info_mapping)

    @classmethod
    def bound_to(cls, bootcache: ComputeHost,
                 direct: DirectSnapshots | None = None) -> type['BootCacheQcow2']:
        """Return a class for Nova's table of image backends.

        :param direct: None where all snapshots go stock Nova's way.
        """
        return type(cls.__name__, (cls,), {'bootcache': bootcache, 'direct': direct})

    def cache(self, fetch_func: Any, filename: str, size: int | None = None, safe: bool = False,
              *args: Any, **kwargs: Any) -> None:
        """Make the disk if it is not there, and what is below it.

        Three cases: no overlay yet, where the chain is made; an overlay on a cache image, or on a
        stock base that is not here, where the chain is kept; everything else is stock Nova's.

        :param filename: Nova's name for the base: sha1 of the image id, or ephemeral or swap names.
        :param size: of the disk, in bytes; None for the base's own.
        """
        if not self.exists():
            if self._make(filename, size, **kwargs):
                return
        elif self._keeps_chain(self.path, kwargs.get('image_id')):
            self._enlarge(size)
            return
        try:
            super().cache(fetch_func, filename, size, safe, *args, **kwargs)
        except Exception:
            # Without an image's id Nova copies the base of one that Glance has deleted from the
            # source host, which has none if its servers stood on a cache image.
            if kwargs.get('image_id') or not self.exists() \
                    or not self._keeps_chain(self.path, None, lacks_base=True):
                raise
            self._enlarge(size)

    def _enlarge(self, size: int | None) -> None:
        if size and size > self.get_disk_size(self.path):
            self.resize_image(size)

    def _make(self, filename: str, size: int | None, image_id: str | None = None,
              trusted_certs: Any = None, context: Any = None, **_others: Any) -> bool:
        instance = self._instance
        if instance is None or image_id is None:
            return False
        server = Server(image_id=image_id, disk_name=os.path.basename(self.path),
                        kernel_id=instance.kernel_id or '',
                        checks_signature=bool(trusted_certs)
                        or signatures.are_checked(imagebackend.CONF),
                        is_unshelving=self._is_of_a_temporary_snapshot(),
                        preallocates=self.preallocate,
                        is_signed=signatures.is_signed(lazy(instance, 'system_metadata')),
                        owner=lazy(instance, 'project_id') or '')
        try:
            return self.bootcache.chains.make_overlay(
                server, instance.uuid, _profile_token(instance), self.path, size,
                os.path.exists(self._stock_base(filename)), self._console,
                is_moving=instance.task_state in _MOVES,
                as_user=AsUser(
                    verifies_by=lambda: signatures.wanted(context, image_id, trusted_certs),
                    download_refusal=lambda: downloads.refusal(context, image_id)))
        except exception.FlavorTooSmall as error:
            raise nova_exception.FlavorDiskSmallerThanImage(
                flavor_size=error.flavor_bytes, image_size=error.image_bytes) from error
        except exception.ProfileBootFailed as error:
            raise nova_exception.InternalError(f'Profile boot of {image_id}: {error}') from error

    def _is_of_a_temporary_snapshot(self) -> bool:
        """Tell whether Nova puts the disk onto the base of another image as soon as it is made.

        As Nova tells in ``_needs_rebase_original_qcow2_image``, of servers that are unshelved or
        come from another cell.
        """
        instance = self._instance
        base = (lazy(instance, 'system_metadata') or {}).get('image_base_image_ref')
        return instance.vm_state == vm_states.SHELVED_OFFLOADED or (
            instance.task_state == task_states.RESIZE_FINISH
            and base not in (None, instance.image_ref))

    def libvirt_info(self, *args: Any, **kwargs: Any) -> Any:
        """Have the guest wait for what cannot be read of a base through the gateway just now."""
        disk = super().libvirt_info(*args, **kwargs)
        waits = self._stands_on(lambda backing: self.bootcache.cache.holds_path(backing)
                                or backing == self._recording())
        return errorpolicy.WaitingDisk.like(disk) if waits else disk

    def stands_on_cache_image(self) -> bool:
        """Tell whether it is a root disk on a cache image; no if that is not known."""
        return self._stands_on(self.bootcache.cache.holds_path)

    def _recording(self) -> str:
        """Return what the disk of a profile boot stands on."""
        return naming.nbd_unix_uri(self.bootcache.gateway.socket_path, naming.export_name(
            naming.EXPORT_RECORDING, self._instance.uuid))

    def _stands_on(self, is_meant: Callable[[str | None], bool]) -> bool:
        if os.path.basename(self.path) != 'disk':
            return False
        try:
            os.stat(self.path)
            return is_meant(libvirt_utils.get_disk_backing_file(self.path, basename=False))
        except FileNotFoundError:
            # It boots from a volume.
            return False
        except Exception as error:
            # Nova will say it, or start the server as ever.
            LOG.warning('bootcache: what disk %s stands on is not known: %s', self.path, error)
            return False

    def _console(self) -> str:
        path = os.path.join(os.path.dirname(self.path), 'console.log')
        with contextlib.suppress(OSError):
            text, _left = nova.privsep.path.last_bytes(path, _CONSOLE_BYTES)
            return str(text.decode(errors='replace'))
        return ''

    @staticmethod
    def _stock_base(filename: str) -> str:
        return os.path.join(imagebackend.CONF.instances_path,
                            imagebackend.CONF.image_cache.subdirectory_name, filename)

    def direct_snapshot(self, context: Any, snapshot_name: str, image_format: str, image_id: str,
                        base_image_id: str, *_args: Any, **_kwargs: Any) -> str:
        """Send what it holds to the storage node; return by what Glance finds the snapshot.

        :returns: its location; empty if the storage service uploads it once Nova is done.
        :raises NotImplementedError: if it goes stock Nova's way.
        """
        if self.direct is None:
            raise NotImplementedError
        return self.direct.direct(image_id, lambda: self._sent_as(image_id))

    def _sent_as(self, snapshot_id: str) -> tuple[Snapshot, SentDisk]:
        if os.path.basename(self.path) != 'disk' or not self._instance.image_ref:
            raise SnapshotRefused('it is no disk of an image', True)
        image_id = str(self._instance.image_ref)
        backing = libvirt_utils.get_disk_backing_file(self.path, basename=False)
        bases = {self._stock_base(naming.cache_file_name(image_id)): self._base_format()}
        if self.bootcache.cache.holds_path(backing) \
                and os.path.basename(backing) == naming.cache_file_name(image_id):
            bases[backing] = 'qcow2'
        image_meta = self._instance.image_meta
        image_format = str(image_meta.disk_format) if 'disk_format' in image_meta else ''
        overlay = overlay_of(self.path, backing, bases, image_format,
                             imagebackend.CONF.libvirt.snapshot_image_format)
        return Snapshot(
            self.bootcache.storage, self.bootcache.encryption, image_id, snapshot_id,
            overlay.virtual_bytes,
            lambda image_hash, export: self._why_other(image_id, backing, image_hash, export)
        ), overlay

    def _why_other(self, image_id: str, backing: str, image_hash: str, export: str) -> str:
        """Return why the disk may be on another content than the storage node's base; else nothing.

        An image may get another one, as when Glance's database is restored.
        """
        if not self.bootcache.cache.holds_path(backing):
            return '' if fullbase.is_noted(backing, (image_hash, export)) else (
                f'{backing} does not say that it is of the content that the storage service has')
        if self.bootcache.cache.known(image_id) is None:
            return f'nothing is noted of {backing}'
        try:
            self.bootcache.cache.check_stored(image_id, image_hash, export)
        except exception.BootcacheError as error:
            return str(error)
        return ''

    def cleanup_direct_snapshot(self, location: Any, also_destroy_volume: bool = False,
                                ignore_errors: bool = False, *_args: Any,
                                **_kwargs: Any) -> None:
        """Have what was sent be removed: Nova goes on without it."""
        if self.direct is not None:
            self.direct.cleanup()

    def _base_format(self) -> str:
        return 'raw' if imagebackend.CONF.force_raw_images \
            else str(self._instance.image_meta.disk_format)

    # Disks that are there.

    def open_chain(self, path: str, patience: float = 0.0, guest_waits: bool = False) -> None:
        """See to it that a root disk of ours can be opened; another one is left alone.

        :param path: of the disk; it may not be in its usual place just now.
        :param patience: seconds for which it waits while what is below it is busy or away.
        :param guest_waits: whether a guest is to be started, that waits at what cannot be read.
        :raises InternalError: if it cannot.
        """
        if os.path.exists(path):
            self._keeps_chain(path, None, patience, guest_waits)

    def _keeps_chain(self, path: str, image_id: str | None, patience: float = 0.0,
                     guest_waits: bool = True, lacks_base: bool = False) -> bool:
        """Keep a disk's chain if it is one of ours.

        :param image_id: Nova's word for the image, None for the server's own.
        :param patience: as for ``open_chain``.
        :param guest_waits: as for ``open_chain``; Nova looks at a disk that is there for a start.
        :param lacks_base: whether Nova cannot get the stock base that the disk may name: its guest
            waits for the storage node then.
        :raises InternalError: if it is ours and cannot be opened.
        """
        wanted = image_id or self._instance.image_ref
        if not wanted or os.path.basename(path) != 'disk':
            return False
        backing = libvirt_utils.get_disk_backing_file(path, basename=False)
        ours = self.bootcache.cache.holds_path(backing)
        if not ours and (not self.lacks_stock_base(path, wanted) or self._signature_matters()):
            return False
        is_wanted = os.path.basename(backing) == naming.cache_file_name(wanted)
        if image_id and ours and not is_wanted:
            # Nova is to put the disk onto the base of another image.
            return False
        try:
            if ours:
                if not is_wanted:
                    raise exception.BootcacheError(f'{backing} is not the cache image of {wanted}')
                self.bootcache.chains.keep_chain(wanted, path, patience, guest_waits)
                return True
            # It came from a host that names it as stock Nova does, or was to leave for one.
            novaservers.make_writable(path)
            return self.bootcache.chains.adopt(wanted, path, self._instance.uuid,
                                               guest_waits=lacks_base)
        except Exception as error:
            raise nova_exception.InternalError(
                f'The disk of server {self._instance.uuid} cannot be opened: {error}') from error

    def _signature_matters(self) -> bool:
        """Tell whether stock Nova has to get the image of a server that came from elsewhere."""
        return bool(signatures.are_checked(imagebackend.CONF)
                    or lazy(self._instance, 'trusted_certs')
                    or signatures.is_signed(lazy(self._instance, 'system_metadata')))

    def name_stock_base(self) -> bool:
        """Let a stopped disk's header name Nova's own base, as every host knows it.

        The base need not be here: the host that gets a copy of the disk makes its own.

        :returns: whether it does so now, and did not before.
        :raises BootcacheError: if it cannot be changed; it is as it was.
        """
        if not self.exists():
            # It boots from a volume.
            return False
        backing = libvirt_utils.get_disk_backing_file(self.path, basename=False)
        if self.bootcache.cache.holds_path(backing):
            base = self._stock_base(os.path.basename(backing))
            novaservers.make_writable(self.path)
            qemuimg.set_backing_pointer(self.path, base, self._base_format())
            return True
        return False

    def lacks_stock_base(self, path: str, image_id: str | None = None) -> bool:
        """Tell whether a disk's header names Nova's own base of its image, which is not here.

        :param path: of the disk.
        :param image_id: Nova's word for the image, None for the server's own.
        """
        base = self._stock_base(naming.cache_file_name(image_id or self._instance.image_ref))
        return not os.path.exists(base) \
            and libvirt_utils.get_disk_backing_file(path, basename=False) == base

    def name_cache_image(self, path: str) -> None:
        """Let a disk's header name the cache image again, as before ``name_stock_base``.

        Nothing that Nova did with a copy fails with it: an error is logged, and the disk is put
        back when it is needed.

        :param path: of the disk; not in use.
        """
        try:
            name = libvirt_utils.get_disk_backing_file(path)
            qemuimg.set_backing_pointer(
                path, os.path.join(self.bootcache.cache.directory, name), 'qcow2')
        except Exception as error:
            LOG.warning('bootcache: disk %s does not name its cache image now, and is put on it'
                        ' when it is started: %s', path, error)
