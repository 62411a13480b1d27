"""A root disk at which the guest stops instead of seeing an I/O error: libvirt's error policies.

Nova's classes do not write them. QEMU then makes the request again when the guest goes on, so that
a guest waits for what cannot be read just now. Writes as well: one of less than 4 KiB reads the
rest from below. See nova_bootcache/standstill for who lets it go on.
"""

import functools
import os
import stat
from typing import Any

from nova.virt.libvirt import config, migration
from oslo_log import log as logging

from bootcache import savefile
from nova_bootcache.standstill.errorstop import POLICIES, waits_at

LOG = logging.getLogger(__name__)

# What Nova itself makes the description with.
etree = migration.etree


class WaitingDisk(config.LibvirtConfigGuestDisk):  # type: ignore[misc]
    """The configuration of such a disk; all else is as Nova made it."""

    @classmethod
    def like(cls, disk: config.LibvirtConfigGuestDisk) -> 'WaitingDisk':
        """Return the configuration of a disk with the policies added."""
        made = cls()
        made.__dict__.update(vars(disk))
        return made

    def format_dom(self) -> Any:
        """Return the element, as Nova's does."""
        element = super().format_dom()
        _add(element)
        return element


def _add(disk: Any) -> None:
    driver = disk.find('driver')
    if driver is None:
        driver = etree.SubElement(disk, 'driver')
    for name, value in POLICIES.items():
        driver.set(name, value)


def _is_root_overlay(disk: Any) -> bool:
    source, driver = disk.find('source'), disk.find('driver')
    return source is not None and os.path.basename(source.get('file', '')) == 'disk' \
        and driver is not None and driver.get('type') == 'qcow2'


def add_to_migrations() -> None:
    """Have root disks wait that are sent to other hosts with a running server.

    One that is settled here stands on a cache image again where the other host has no full base.
    """
    if not hasattr(migration.get_updated_guest_xml, '__wrapped__'):
        migration.get_updated_guest_xml = _with_policies(migration.get_updated_guest_xml)


def _with_policies(stock: Any) -> Any:
    @functools.wraps(stock)
    def updated(*args: Any, **kwargs: Any) -> Any:
        description = stock(*args, **kwargs)
        return with_policies(description) or description

    return updated


def with_policies(description: Any) -> str:
    """Return a domain's description in which root overlays have their guest wait. Pure.

    :returns: empty if it has none, or is none: Nova and libvirt know what they made.
    """
    try:
        domain = etree.fromstring(description)
    except (etree.XMLSyntaxError, ValueError):
        return ''
    disks = [disk for disk in domain.iterfind('./devices/disk') if _is_root_overlay(disk)]
    for disk in disks:
        _add(disk)
    return str(etree.tostring(domain, encoding='unicode')) if disks else ''


def add_to_file(path: str) -> bool:
    """Have the guest wait of a description in a file of Nova's.

    :returns: whether it does; no if that is not known.
    """
    try:
        with open(path) as stream:
            found = stream.read()
        described = with_policies(found)
        if described and not waits_at(found):
            savefile.write_text(path, described, stat.S_IMODE(os.stat(path).st_mode))
        return bool(described)
    except (OSError, ValueError) as error:
        LOG.warning('bootcache: whether a guest waits for its disk cannot be seen, or changed, in'
                    ' %s: %s', path, error)
        return False
