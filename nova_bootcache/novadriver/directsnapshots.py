"""Nova's seam for snapshots, as servers on a base that the storage node has use it.

``LibvirtDriver.snapshot`` asks the root disk for a direct snapshot first. One that gives a URL is
registered by Nova itself; one that says no goes stock's way. Around that there is what Nova does
not do: the format that the image really has, a delta of a disk that is being written, waiting until
Glance has taken it, and stock's way after Glance has not. Where no store of Glance registers it the
URL is empty: Nova lets the guest go on, describes the image, and adds no location; the storage
service uploads it then.

Nova makes a snapshot's delta file with ``libvirt_utils.create_image`` on the server's own backing
file, and that function refuses a backing file which has one itself: the API says nothing, and the
image record vanishes. For our own cache images, which are verified, the delta is made here.
"""

import contextlib
import dataclasses
import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import nova.utils
from nova import exception as nova_exception
from nova.compute import task_states
from nova.virt.libvirt import driver as libvirt_driver
from nova.virt.libvirt import utils as libvirt_utils
from oslo_log import log as logging
from oslo_utils import excutils, fileutils

from bootcache import exception, qemuimg
from nova_bootcache.cache.cachefiles import CacheFiles
from nova_bootcache.snapshots.sender import SentDisk, Snapshot, SnapshotRefused

LOG = logging.getLogger(__name__)

_FORMAT = 'disk_format'
_TAKEN = 'active', 'deactivated'
# Of Glance, at which Nova makes the snapshot in its own way.
_STOCK_FOLLOWS = nova_exception.ImageUnacceptable, nova_exception.Forbidden
_POLL_SECONDS = 0.5
# Glance reads all of the image, where it makes a hash of it, before it is active.
_TAKING_SECONDS = 1800
# After which one that waits for its data is not being taken.
_WAITING_SECONDS = 20


@dataclasses.dataclass
class _Run:
    """A server's snapshot that this thread makes.

    :ivar is_written: tells whether a guest may write its disk.
    :ivar take_delta: has Nova copy the disk of a guest that runs, as for a live snapshot of its
        own, and convert the copy.
    :ivar was_sent: whether Nova was told that it is there.
    :ivar is_uploaded: whether the storage service uploads it, once Nova has described the image.
    :ivar stock_follows: whether Nova itself goes on in its own way after that.
    """

    server_id: str
    snapshot_id: str
    is_written: Callable[[], bool]
    take_delta: Callable[[], None]
    was_sent: bool = False
    is_uploaded: bool = False
    stock_follows: bool = False
    is_stock: bool = False
    metadata: dict[str, Any] | None = None
    stocks_format: str = ''
    sent: Snapshot | None = None
    # Of the delta, while Nova makes one.
    extract: Callable[[str], None] | None = None


class DirectSnapshots:
    """The snapshots that this host makes."""

    def __init__(self) -> None:
        self._threads = threading.local()
        self._wrap_extract()

    def _run(self) -> _Run | None:
        return getattr(self._threads, 'run', None)

    @contextlib.contextmanager
    def _running(self, run: _Run) -> Iterator[None]:
        self._threads.run = run
        try:
            yield
        finally:
            self._threads.run = None

    def _wrap_extract(self) -> None:
        """Have the delta of a live snapshot of ours be sent, where Nova would convert it."""
        stock = getattr(libvirt_utils.extract_snapshot, '__wrapped__',
                        libvirt_utils.extract_snapshot)

        @functools.wraps(stock)
        def extract_snapshot(disk_path: str, *arguments: Any, **named: Any) -> None:
            run = self._run()
            if run is not None and run.extract is not None:
                run.extract(disk_path)
            else:
                stock(disk_path, *arguments, **named)

        libvirt_utils.extract_snapshot = extract_snapshot

    # What the driver asks.

    def snapshot(self, instance: Any, snapshot_id: str, update_task_state: Callable[..., None],
                 stock: Callable[..., None], status: Callable[[], str],
                 is_written: Callable[[], bool], take_delta: Callable[[], None]) -> None:
        """Make a server's snapshot: directly if that can be, else in stock Nova's way.

        :param stock: Nova's own snapshot; asks ``direct``. It is called once more where Glance did
            not take what was sent.
        :param status: asks Glance for the image's status.
        :param is_written: see :class:`_Run`, as of the next one.
        :raises Exception: what Nova's own raises.
        """
        run = _Run(instance.uuid, snapshot_id, is_written, take_delta)
        try:
            with self._running(run):
                stock(snapshot_id, update_task_state)
            why = '' if run.sent is None else self._why_not_taken(run, run.sent, status)
        except (nova_exception.ImageNotFound, nova_exception.InstanceNotFound):
            raise
        except Exception as error:
            if not run.was_sent or run.stock_follows:
                raise
            why = f'{type(error).__name__}: {error}'
        if not why:
            return
        LOG.warning('bootcache: snapshot %s of server %s is made in stock Nova\'s way, as Glance'
                    ' has not taken what was sent: %s', snapshot_id, instance.uuid, why)
        if run.sent is not None:
            run.sent.abandon()
        with self._running(dataclasses.replace(run, is_stock=True, metadata=None, sent=None)):
            stock(snapshot_id, _once_more(update_task_state))

    def note_metadata(self, metadata: dict[str, Any]) -> None:
        """Keep what Nova will tell Glance of the image: it does so before it asks for one."""
        run = self._run()
        if run is not None:
            run.metadata, run.stocks_format = metadata, metadata.get(_FORMAT, '')

    @staticmethod
    def _why_not_taken(run: _Run, sent: Snapshot, status: Callable[[], str]) -> str:
        """Wait until Glance has taken an image; return why it has not, empty if it has."""
        why, patience = 'glance-api\'s log says why', _WAITING_SECONDS
        if run.is_uploaded:
            try:
                sent.upload()
            except SnapshotRefused as error:
                # It may be Glance's all the same, as an answer was lost.
                why, patience = str(error), 0
        began = queued_since = time.monotonic()
        while (now := time.monotonic()) - began < _TAKING_SECONDS:
            try:
                found = status()
            except (nova_exception.ImageNotFound, nova_exception.ImageNotAuthorized):
                raise
            except Exception as error:
                # It may be taking the image meanwhile, and could not be given another one either.
                LOG.info('bootcache: Glance does not say whether it has taken a snapshot: %s',
                         error)
                found = ''
            if found in _TAKEN:
                return ''
            if found != 'queued':
                queued_since = now
            elif now - queued_since >= patience:
                return f'the image waits for its data still; {why}'
            time.sleep(_POLL_SECONDS)
        return f'it was not done after {_TAKING_SECONDS} s'

    # What the disk asks.

    def direct(self, snapshot_id: str, begin: Callable[[], tuple[Snapshot, SentDisk]]) -> str:
        """Send a snapshot; return by what Glance finds it, empty if it is uploaded afterwards.

        :param begin: tells what is to be sent; nothing is asked of anybody yet.
        :raises NotImplementedError: if it goes stock's way, which is told with the reason.
        """
        run = self._run()
        if run is None or run.is_stock or run.snapshot_id != snapshot_id or run.metadata is None:
            raise NotImplementedError
        try:
            snapshot, overlay = begin()
            url, disk_format = self._send(run, snapshot, overlay)
        except SnapshotRefused as error:
            LOG.log(logging.INFO if error.is_usual else logging.WARNING,
                    'bootcache: snapshot %s of server %s is made in stock Nova\'s way: %s',
                    snapshot_id, run.server_id, error)
            raise NotImplementedError from error
        except nova_exception.InstanceNotFound:
            raise
        except Exception as error:
            LOG.exception('bootcache: snapshot %s of server %s is made in stock Nova\'s way',
                          snapshot_id, run.server_id)
            raise NotImplementedError from error
        run.metadata[_FORMAT], run.sent, run.was_sent = disk_format, snapshot, True
        run.is_uploaded = not url
        return url

    @staticmethod
    def _send(run: _Run, snapshot: Snapshot, overlay: SentDisk) -> tuple[str, str]:
        begun = False
        try:
            told = snapshot.begin()
            begun = True
            disk_format = told.disk_format
            if overlay.wanted_format not in ('', disk_format):
                raise SnapshotRefused(f'[libvirt]snapshot_image_format is {overlay.wanted_format},'
                                      f' and it would be {disk_format}', True)
            with snapshot.kept():
                if run.is_written():
                    def extract(delta: str) -> None:
                        snapshot.send(told, dataclasses.replace(overlay, path=delta))

                    run.extract = extract
                    try:
                        run.take_delta()
                    finally:
                        run.extract = None
                else:
                    snapshot.send(told, overlay)
            return snapshot.finish(), disk_format
        except BaseException as error:
            # One that was refused has been removed.
            if begun or not isinstance(error, SnapshotRefused):
                snapshot.abandon()
            raise

    def cleanup(self) -> None:
        """Put back what Nova tells Glance: stock's way follows, or the snapshot has failed."""
        run = self._run()
        if run is None:
            return
        if run.metadata is not None and run.stocks_format:
            run.metadata[_FORMAT] = run.stocks_format
        if run.sent is not None:
            run.sent.abandon()
            run.sent = None
        if isinstance(sys.exc_info()[1], _STOCK_FOLLOWS):
            run.stock_follows = True


def _once_more(update_task_state: Callable[..., None]) -> Callable[..., None]:
    """Return Nova's function for a second run: the server's state is that of the first one's end.
    """
    def update(task_state: str, **expected: Any) -> None:
        if not expected and task_state == task_states.IMAGE_PENDING_UPLOAD:
            expected = {'expected_state': task_states.IMAGE_UPLOADING}
        update_task_state(task_state=task_state, **expected)

    return update


def overlay_of(path: str, backing: str | None, base_paths: dict[str, str],
               image_format: str, wanted_format: str | None) -> SentDisk:
    """Return what can be sent of a disk.

    :param backing: path of what it is on.
    :param base_paths: formats of what has the base's content, by its path.
    :param image_format: of the server's image, which its snapshots have; empty if nobody knows.
    :param wanted_format: that the operator wants of all snapshots; None for any.
    :raises SnapshotRefused: if its snapshots go stock's way.
    """
    if wanted_format and image_format not in ('', wanted_format):
        raise SnapshotRefused(f'[libvirt]snapshot_image_format is {wanted_format}, and it would be'
                              f' {image_format}', True)
    if backing is None or backing not in base_paths:
        raise SnapshotRefused(f'{path} is not on its image\'s cache image or base', True)
    try:
        told = qemuimg.info(path, 'qcow2')
    except exception.BootcacheError as error:
        raise SnapshotRefused(str(error)) from error
    if told.get('encrypted'):
        raise SnapshotRefused('the disk is encrypted', True)
    return SentDisk(path, backing, base_paths[backing], int(told['virtual-size']),
                    wanted_format or '')


def allow_on(cache: CacheFiles) -> None:
    """Let Nova create overlays on this host's cache images; all else stays as it is.

    :param cache: tells which backing files are ours.
    """
    stock = getattr(libvirt_utils.create_image, '__wrapped__', libvirt_utils.create_image)

    @functools.wraps(stock)
    def create_image(path: str, disk_format: str, disk_size: Any, *arguments: Any,
                     **named: Any) -> None:
        backing_file = arguments[0] if arguments else named.get('backing_file')
        if disk_format == 'qcow2' and cache.holds_path(backing_file):
            assert backing_file is not None
            qemuimg.create_overlay(path, int(disk_size), backing_file, 'qcow2',
                                   cluster_bytes=65536)
        else:
            stock(path, disk_format, disk_size, *arguments, **named)

    libvirt_utils.create_image = create_image


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
