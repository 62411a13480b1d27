"""A host's guests that stand still by an error, as libvirt tells of them.

For some of it QEMU has to answer, which it need not do.
"""

import dataclasses
from collections.abc import Callable

from oslo_log import log as logging

from bootcache import exception
from nova_bootcache.libvirtcalls import LibvirtCalls
from nova_bootcache.standstill import errorstop
from nova_bootcache.standstill.verdict import StandingGuest

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class StandingDomain:
    """A guest that stands still by an error.

    :ivar is_to_wait: it has a disk at which it is to wait, or may have.
    :ivar is_on_cache_image: that stands on a cache image; else on the host's own full base.
    :ivar is_full: the host has no space for a disk of its.
    :ivar hangs: why nothing can be done for it now, as its QEMU does not answer; None if it does.
    """

    is_to_wait: bool
    is_on_cache_image: bool
    is_full: bool
    hangs: exception.LibvirtHangs | None

    def of(self, runs: bool) -> StandingGuest:
        """Return it with what Nova says of its server."""
        return StandingGuest(True, self.is_to_wait, runs)


def find(calls: LibvirtCalls,
         holds_path: Callable[[str | None], bool]) -> dict[str, StandingDomain]:
    """Return a host's guests that stand still by an error, by server.

    :param holds_path: tells whether a file is a cache image of this host.
    :raises LibvirtHangs: if libvirt itself does not answer.
    :raises libvirtError: if it gives an error.
    """
    found = {}
    for domain in calls.ask(errorstop.paused):
        hangs: exception.LibvirtHangs | None = None
        errors: dict[str, int] = {}
        description = ''
        try:
            errors = calls.ask_qemu(domain.server_id, errorstop.disk_errors)
            description = calls.ask_qemu(domain.server_id, errorstop.description)
        except exception.LibvirtHangs as error:
            # What is below its disks is not told either, whatever description libvirt 11 is asked
            # for. Nobody can do anything for it now: it is told of, also if it is stock Nova's.
            hangs = error
        except Exception as error:
            # It may have ended meanwhile.
            LOG.debug('bootcache: what server %s stands still for is not known: %s',
                      domain.server_id, error)
            continue
        if domain.stands_still(errors.copy):
            below = errorstop.waits_at(description).values() if description else ()
            found[domain.server_id] = StandingDomain(
                bool(below) or hangs is not None, any(holds_path(path) for path in below),
                errorstop.are_for_space(errors.values()), hangs)
    return found
