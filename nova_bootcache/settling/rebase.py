"""Moves a stopped server's root disk from its cache image to the full base."""

import contextlib
import os
from typing import Any

from oslo_log import log as logging

from bootcache import exception, qemuimg, savefile, steps
from nova_bootcache.cache.cachefiles import is_same_name
from nova_bootcache.settling import pivotstate
from nova_bootcache.settling.pivotstate import DISK, Marker, Overlay, PivotPhase, PivotRefused

LOG = logging.getLogger(__name__)


def rebase_stopped(directory: str, cache_image: str, base: str, base_format: str,
                   domain: Any) -> None:
    """Give the overlay's header another pointer; its data is not touched.

    Needs Nova's lock of the server. qemu-img rewrites the header cluster in place by one write and
    syncs it. A power failure may tear that; so the marker keeps the old header until it is done.

    :param directory: the server's, with its ``disk``.
    :param cache_image: path of what it is on.
    :param base: path of the full base, which reads the same bit for bit.
    :param base_format: raw or qcow2.
    :param domain: the server's libvirt domain; None if it has none.
    :raises PivotRefused: if it is not on the cache image, or in use; it is as before then.
    :raises PivotConflict: if the marker of an earlier move cannot be read.
    """
    path = os.path.join(directory, DISK)
    if Marker.load(directory) is not None:
        raise PivotRefused(f'{path}: an earlier move has to be put right first')
    if domain is not None and (domain.isActive() or domain.hasManagedSaveImage(0)):
        raise PivotRefused(f'{path}: its domain runs or has a saved memory image')
    details = qemuimg.info(path, 'qcow2')
    pointer = _pointer(details)
    if not is_same_name(pointer[0], cache_image):
        raise PivotRefused(f'{path} is on {pointer[0] or "nothing"}, not on the cache image'
                           f' {cache_image}')
    try:
        with open(path, 'rb') as stream:
            header = stream.read(details['cluster-size']).rstrip(b'\0').hex()
            inode = os.fstat(stream.fileno()).st_ino
        Marker(PivotPhase.REBASING, '', base, base_format, inode, old_backing=pointer,
               header=header).save(directory)
        steps.reached('settle: marked')
        # Refused while QEMU has the file open: it locks it.
        qemuimg.set_backing_pointer(path, base, base_format)
        savefile.fsync_file(path)
        steps.reached('settle: written')
        pivotstate.clean_up(directory)
    except (exception.BootcacheError, OSError) as error:
        if (marker := Marker.load(directory)) is not None:
            recover_header(directory, marker, running=False)
        raise PivotRefused(f'{path} cannot be moved now: {error}') from error
    LOG.info('%s is on %s now', path, base)


def recover_header(directory: str, marker: Marker, running: bool) -> Overlay:
    """Put right what ``rebase_stopped`` left: a header of old and new pieces becomes the old one.

    A header that is whole, old or new, stays: the server may have run since.

    :param running: whether QEMU runs, and so has read the header.
    :returns: OLD or NEW, for what it points to; OTHER for another file.
    :raises OSError: if it cannot be written.
    """
    path = os.path.join(directory, DISK)
    known = {marker.old_backing: Overlay.OLD, (marker.base, marker.base_format): Overlay.NEW}
    found = None
    with contextlib.suppress(exception.BootcacheError):
        found = known.get(_pointer(qemuimg.info(path, 'qcow2')))
    if found is None and not running \
            and pivotstate.which(directory, DISK, marker) is Overlay.OLD:
        found = Overlay.OLD
        _write_header(path, bytes.fromhex(marker.header))
    pivotstate.clean_up(directory)
    return found or Overlay.OTHER


def _pointer(details: dict[str, Any]) -> tuple[str, str]:
    return details.get('full-backing-filename', ''), details.get('backing-filename-format', '')


def _write_header(path: str, header: bytes) -> None:
    # Zeros to the cluster's end, as the new header may have been the longer one (qcow2: the
    # cluster's size is 2 to the power of the number in bytes 20 to 23).
    cluster_bytes = 1 << int.from_bytes(header[20:24], 'big')
    with open(path, 'r+b') as stream:
        stream.write(header.ljust(cluster_bytes, b'\0'))
        stream.flush()
        os.fsync(stream.fileno())
