"""Servers that began while their cache image came, or before there was one, get it directly.

Such a server has the empty cache image open that what came has replaced, and reads by the gateway,
which has the cache image open for it. One that is started later opens that itself, by the same
name. So does one that runs after it was moved into an overlay of its own onto that name: by the
block copy by which it would settle, of its own data only.

Which file a QEMU has open is asked of it, and not remembered: the name is the same.
"""

import dataclasses
import math
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

import libvirt

from bootcache import savefile
from bootcache.util.backoff import Backoff
from nova_bootcache.cache.cachefiles import CacheEntry
from nova_bootcache.chains.computehost import ComputeHost
from nova_bootcache.settling.hanging import HangingServers
from nova_bootcache.settling.livedisk import LiveDisk, OpenFiles
from nova_bootcache.settling.localservers import LocalServer, Nova
from nova_bootcache.settling.pivot import Pivot
from nova_bootcache.settling.pivotstate import PivotFailed, PivotRefused

# An empty cache image is smaller: its tables are, of a disk of 16 TiB.
EMPTY_BYTES = 1 << 20
# A larger copy costs more than its server gains by then: it has booted.
MOST_OWN_BYTES = 1 << 30
_FORMAT, _SECTOR = 'qcow2', 512
_PAUSE_SECONDS, _LONGEST_PAUSE = 60.0, 6 * 3600.0
# A disk's inode, and the identity of its cache image's file.
_Looked = tuple[int, tuple[int, int, int]]


def is_to_land(opened: OpenFiles, here: int) -> bool:
    """Tell whether a running server is to be moved onto its cache image's file. Pure.

    :param opened: what its QEMU has open; of its overlay all that a copy of that may take.
    :param here: bytes on the medium of the cache image that has its name now.
    """
    return opened.backing < EMPTY_BYTES <= here and opened.own <= MOST_OWN_BYTES


class Landing:
    """Finds these servers; for one thread, any may have it forget one.

    :param host: the host.
    :param nova: what is needed of Nova.
    :param rate: bytes a second that are copied; 0: no server is moved so.
    :param delay: seconds from a server's start: boots have precedence.
    :param hanging: servers that are left alone.
    """

    def __init__(self, host: ComputeHost, nova: Nova, rate: int, delay: float,
                 hanging: HangingServers):
        self._host = host
        self._nova = nova
        self._rate = rate
        self._delay = delay
        self._hanging = hanging
        # Servers of which nothing more is to be found as long as all is as it was: what each had.
        self._done: dict[str, _Looked] = {}
        self._backoff = Backoff(_PAUSE_SECONDS, _LONGEST_PAUSE, lambda: time.monotonic())
        self._waits = False
        # When the first pause ends of those that the last look left alone.
        self._due = math.inf

    @property
    def waits(self) -> bool:
        """Whether some of the servers at the last look are to be looked at again now."""
        return self._waits or time.monotonic() >= self._due

    def look(self, unsettled: dict[str, list[LocalServer]], stays: Callable[[str], bool],
             move: Callable[[LocalServer], bool]) -> None:
        """Have servers moved that read by the gateway what is here.

        :param unsettled: servers that stand on a cache image, by image.
        :param stays: tells whether an image's servers are not settled soon.
        :param move: moves one by ``pivot``, and tells whether that did not fail.
        """
        self._waits, self._due = False, math.inf
        if not self._rate:
            return
        present = {server.server_id for servers in unsettled.values() for server in servers}
        self._backoff.keep_only(present | set(unsettled))
        for server_id in set(self._done) - present:
            self.forget(server_id)
        for image_id, servers in sorted(unsettled.items()):
            if not stays(image_id):
                continue
            if self._host.needs.is_arriving(image_id):
                self._waits = True
                continue
            entry = self._host.cache.known(image_id)
            if entry is not None and entry.cache_image is not None:
                self._look_at(entry, servers, move)

    def _look_at(self, entry: CacheEntry, servers: Iterable[LocalServer],
                 move: Callable[[LocalServer], bool]) -> None:
        for server in servers:
            looked = self._looked(server)
            if looked is None or not server.settles or self._done.get(server.server_id) == looked:
                continue
            due = self._due_of(server)
            if time.monotonic() < due:
                # Hours may pass: until then nobody is asked anything for it.
                self._due = min(self._due, due)
            # What was expanded is read at less cost: servers wait for it, and for others' boots.
            elif server.age < self._delay or self._host.needs.any_boots() \
                    or self._host.expansions.is_to_come(entry):
                self._waits = True
            elif self._host.cache.entry(server.image_id) is None:
                # A file that is not right is for nobody; to tell that takes reading all of it.
                self._backoff.postpone(server.image_id)
                self._due = min(self._due, self._backoff.due_at(server.image_id))
            else:
                self._backoff.forget(server.image_id)
                if move(server):
                    self._backoff.forget(server.server_id)
                else:
                    self._backoff.postpone(server.server_id)
                if time.monotonic() < (due := self._due_of(server)):
                    self._due = min(self._due, due)
                else:
                    # One that was moved is looked at once more.
                    self._waits |= self._done.get(server.server_id) != looked

    def _due_of(self, server: LocalServer) -> float:
        """Return the monotonic second from which on to try to move a server."""
        return max(self._backoff.due_at(server.server_id), self._backoff.due_at(server.image_id),
                   self._hanging.due(server.server_id))

    def _looked(self, server: LocalServer) -> _Looked | None:
        try:
            path = self._host.cache.path(server.image_id)
            return os.stat(server.disk).st_ino, savefile.identity(os.stat(path))
        except FileNotFoundError:
            return None

    def forget(self, server_id: str) -> None:
        """Look at a server again: Nova has worked on it."""
        self._done.pop(server_id, None)

    def pivot(self, server: LocalServer, find_domain: Callable[[], Any]) -> Pivot | None:
        """Return what moves a running server onto its cache image; None if it is not to be.

        Needs Nova's lock of the server.

        :param find_domain: as for Pivot.
        :raises PivotRefused: if it is to be, and cannot now.
        :raises PivotFailed: if libvirt does not tell, or one of the files is gone.
        :raises LibvirtHangs: if its QEMU does not answer.
        """
        try:
            return self._pivot(server, find_domain)
        except (libvirt.libvirtError, OSError) as error:
            raise PivotFailed(f'{server.disk}: {error}') from error

    def _pivot(self, server: LocalServer, find_domain: Callable[[], Any]) -> Pivot | None:
        looked, domain = self._looked(server), find_domain()
        path = self._host.cache.path(server.image_id)
        if looked is None:
            raise PivotRefused(f'{path} is not there any more')
        opened = None
        # What is stopped opens the file that has the name when it is started.
        if domain is not None and domain.isActive():
            opened = LiveDisk(domain, server.target, server.disk).open_files(path)
            # The copy has all of each cluster of which the guest wrote a part.
            opened = dataclasses.replace(
                opened, own=max(opened.own, os.stat(server.disk).st_size))
        if opened is None or not is_to_land(opened, os.stat(path).st_blocks * _SECTOR):
            self._done[server.server_id] = looked
            return None
        space = os.statvfs(server.directory)
        if space.f_bavail * space.f_frsize - opened.own < self._nova.keep_free:
            raise PivotRefused(
                f'{server.disk}: a copy of its up to {opened.own} bytes would leave less than'
                f' [DEFAULT]reserved_host_disk_mb free; free some space on {server.directory}')
        return Pivot(find_domain, server.directory, path, _FORMAT, path, self._rate, server.target,
                     self._nova.keep_free)
