"""A domain that QEMU had stop as a disk gave an error, as libvirt tells and changes it."""

from collections.abc import Callable, Collection
from typing import Any
from xml.etree import ElementTree

import libvirt
from oslo_log import log as logging

LOG = logging.getLogger(__name__)

# libvirt's names for "the guest stops, and sees no error": of writes, and of reads.
POLICIES = {'error_policy': 'stop', 'rerror_policy': 'stop'}
_BY_ERROR = (libvirt.VIR_DOMAIN_PAUSED_IOERROR, libvirt.VIR_DOMAIN_PAUSED_UNKNOWN)


def look_at(domain: Any) -> bool | None:
    """Return whether a guest is paused by an I/O error, as far as libvirt knows by itself.

    :returns: None if it does not; False if libvirt knows no reason. There are releases of QEMU 10
        that tell of one such error a second at most: of a guest that stops again within that
        libvirt does not know why. Its disks tell, of the first one for good: see ``disk_errors``.
    :raises libvirtError: if libvirt does not tell.
    """
    state, reason = domain.state(0)
    if state != libvirt.VIR_DOMAIN_PAUSED or reason not in _BY_ERROR:
        return None
    return bool(reason == libvirt.VIR_DOMAIN_PAUSED_IOERROR)


def paused(connection: Any) -> dict[str, bool]:
    """Return the guests that may be paused by an I/O error, as ``look_at`` has it, by server.

    :raises libvirtError: if libvirt does not tell.
    """
    found = {}
    for listed in connection.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_PAUSED):
        server_id = listed.UUIDString()
        try:
            # Under eventlet Nova's wrapper knows only of what is returned by itself.
            if (known := look_at(connection.lookupByUUIDString(server_id))) is not None:
                found[server_id] = known
        except Exception as error:
            # It may have ended meanwhile.
            LOG.debug('bootcache: why server %s is paused is not known: %s', server_id,
                      error)
    return found


def description(domain: Any) -> str:
    """Return a domain's description as it runs: of libvirt 11 QEMU has to answer.

    :raises libvirtError: if libvirt does not tell.
    """
    return str(domain.XMLDesc(0))


def is_stopped_by_error(domain: Any) -> bool:
    """Tell whether it is paused by an I/O error, and by nothing else: QEMU may have to answer.

    :raises libvirtError: if libvirt does not tell.
    """
    found = look_at(domain)
    return found or (found is False and bool(disk_errors(domain)))


def waits_at(description: str) -> dict[str, str]:
    """Return the disks at which a guest is to wait: their names in the guest, and the first file
    below each, empty if libvirt does not tell. Pure.

    :param description: the domain's, as it runs.
    """
    found = {}
    for disk in ElementTree.fromstring(description).iterfind('./devices/disk'):
        driver, target = disk.find('./driver'), disk.find('./target')
        if driver is None or target is None \
                or any(driver.get(name) != value for name, value in POLICIES.items()):
            continue
        below = disk.find('./backingStore/source')
        found[target.get('dev', '')] = '' if below is None else below.get('file', '')
    return found


def disk_errors(domain: Any) -> dict[str, int]:
    """Return the errors of a domain's disks, by their names in the guest: QEMU has to answer.

    :raises libvirtError: if libvirt does not tell.
    """
    return dict(domain.diskErrors(0))


def are_for_space(errors: Collection[int]) -> bool:
    """Tell whether a disk could not be written for want of space on the host. Pure."""
    return libvirt.VIR_DOMAIN_DISK_ERROR_NO_SPACE in errors


def go_on(domain: Any) -> None:
    """Let a guest go on: QEMU makes the requests again that gave an error, and has to answer.

    :raises libvirtError: if libvirt refuses.
    """
    domain.resume()


def go_on_if(domain: Any, is_wanted: Callable[[], bool]) -> None:
    """Let a guest go on that is paused by an error, if that is wanted when it comes to it.

    :raises libvirtError: if libvirt does not tell, or refuses.
    """
    if is_stopped_by_error(domain) and is_wanted():
        go_on(domain)


def stands_still(domain: Any) -> bool:
    """Tell whether its guest is paused, for whatever reason.

    :raises libvirtError: if libvirt does not tell.
    """
    return bool(domain.state(0)[0] == libvirt.VIR_DOMAIN_PAUSED)


def comes_back_running(domain: Any, change: Callable[[str], str]) -> None:
    """Have its guest run when it is restored, if its memory is saved.

    Of one that was paused, for whatever reason, libvirt notes that it did not run.

    :param change: what else to change in the description that its memory is saved with.
    :raises libvirtError: if libvirt refuses.
    """
    if domain.hasManagedSaveImage(0):
        description = domain.managedSaveGetXMLDesc(libvirt.VIR_DOMAIN_SAVE_IMAGE_XML_SECURE)
        domain.managedSaveDefineXML(change(description), libvirt.VIR_DOMAIN_SAVE_RUNNING)


def comes_back_waiting(domain: Any) -> bool:
    """Tell whether its guest waits for its disk when it is restored, or started.

    :raises libvirtError: if libvirt does not tell.
    """
    return bool(waits_at(domain.managedSaveGetXMLDesc(0) if domain.hasManagedSaveImage(0)
                         else domain.XMLDesc(0)))
