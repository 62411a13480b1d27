"""A domain that QEMU had stop as a disk gave an error, as libvirt tells and changes it."""

from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import libvirt

# libvirt's names for "the guest stops, and sees no error": of writes, and of reads.
POLICIES = {'error_policy': 'stop', 'rerror_policy': 'stop'}
# Of a domain's state, the ids of those that stand still.
PAUSED_DOMAINS = libvirt.VIR_CONNECT_LIST_DOMAINS_PAUSED


def is_stopped_by_error(domain: Any) -> bool:
    """Tell whether it stands still by an I/O error, and by nothing else.

    There are releases of QEMU 10 that tell of one such error a second at most: of a guest that
    stops again within that libvirt does not know why. Its disks tell, of the first one for good.

    :raises libvirtError: if libvirt does not tell.
    """
    state, reason = domain.state(0)
    if state != libvirt.VIR_DOMAIN_PAUSED:
        return False
    return bool(reason == libvirt.VIR_DOMAIN_PAUSED_IOERROR
                or (reason == libvirt.VIR_DOMAIN_PAUSED_UNKNOWN and domain.diskErrors(0)))


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


def is_out_of_space(domain: Any) -> bool:
    """Tell whether one of its disks could not be written for want of space on the host.

    :raises libvirtError: if libvirt does not tell.
    """
    return libvirt.VIR_DOMAIN_DISK_ERROR_NO_SPACE in domain.diskErrors(0).values()


def go_on(domain: Any) -> None:
    """Let the guest go on: QEMU makes the requests again that gave an error.

    :raises libvirtError: if libvirt refuses.
    """
    domain.resume()


def stands_still(domain: Any) -> bool:
    """Tell whether its guest stands still, for whatever reason.

    :raises libvirtError: if libvirt does not tell.
    """
    return bool(domain.state(0)[0] == libvirt.VIR_DOMAIN_PAUSED)


def comes_back_running(domain: Any, change: Callable[[str], str]) -> None:
    """Have its guest run when it is restored, if its memory is saved.

    Of one that stood still, for whatever reason, libvirt notes that it did not run.

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
