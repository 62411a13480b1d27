"""The servers of a host that depend on bootcache, and why: for operators."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Container, Iterable

from oslo_log import log as logging

from bootcache import exception, qemuimg
from bootcache.locks import leaf
from bootcache.rpc.fields import MOST_NAMED
from bootcache.rpc.report import UnsettledServer, UnsettledServers
from nova_bootcache.cache.cachefiles import CacheFiles
from nova_bootcache.settling import pivot
from nova_bootcache.settling.localservers import LocalServer
from nova_bootcache.settling.pivotstate import DISK

LOG = logging.getLogger(__name__)

SOON = 'it is settled soon'
YOUNG = 'it is settled when it has run for as long as [bootcache]settle_delay of its host says'
QUEUED = 'it is settled when it is its host\'s turn: as many as [bootcache]settle_slots of the' \
    ' storage service allows get full bases from the storage node now'
# Of one that stock Nova started, or libvirt by itself.
SEES_ERRORS = ('; its guest sees an I/O error while the storage node is away: hard reboot it, or'
               ' migrate it live')
# By Nova's state of a server that is not settled in it, what ends that state.
_CURES = {'suspended': 'resume it', 'rescued': 'unrescue it',
          'resized': 'confirm or revert its resize', 'error': 'mend or delete it'}


def why(server: LocalServer, *, is_off: bool, is_unwanted: bool, has_failed: bool,
        hangs_at: str = '', is_young: bool = False, is_queued: bool = False) -> str:
    """Return why a server stands on a cache image, with the cure where there is one. Pure.

    :param is_off: servers are not settled on this host.
    :param is_unwanted: its image says that they are not to be.
    :param has_failed: it was tried, or getting its image's base was, and did not come off.
    :param hangs_at: at what its move hangs, with the cure; empty if it does not.
    :param is_young: it was started too short a time ago.
    :param is_queued: other hosts get theirs from the storage node now.
    """
    if not server.settles:
        cure = _CURES.get(server.state)
        return f'it is {server.state}: {cure}' if cure else f'Nova is at work on it: {server.state}'
    if is_off:
        return 'settle_bandwidth is 0 on its host: set it, or migrate the server'
    if is_unwanted:
        return 'its image says bootcache_settle=no: say yes, or migrate the server'
    if hangs_at:
        return hangs_at
    if has_failed:
        return 'it did not come off and is tried again: see the log of nova-compute'
    if is_young:
        return YOUNG
    return QUEUED if is_queued else SOON


class Unsettled:
    """What was seen of them last. It is noted by one thread, and told by another.

    :param is_off: servers are not settled on this host.
    :param delay: seconds from a server's start before which it is not.
    :ivar unwanted: images that say that their servers are not to be settled.
    :ivar queued: images of which this host waits to get the full base from the storage node.
    """

    def __init__(self, is_off: bool, delay: float = 0.0):
        self._is_off = is_off
        self._delay = delay
        self.unwanted: set[str] = set()
        self.queued: set[str] = set()
        # None until somebody has looked.
        self._seen: tuple[LocalServer, ...] | None = None
        self._failed: Container[str] = ()
        self._hangs_at: Callable[[str], str] = lambda _server_id: ''
        self._see_errors: Container[str] = ()
        self._told: set[tuple[str, str]] = set()

    def note(self, servers: Iterable[LocalServer], failed: Container[str],
             see_errors: Container[str] = (),
             hangs_at: Callable[[str], str] = lambda _server_id: '') -> None:
        """Note the servers that stand on a cache image.

        Of those that stay so until somebody does something, nova-compute's log tells once.

        :param failed: images and servers with which it did not come off, as it is whenever it is
            told.
        :param see_errors: ids of servers whose guests do not wait for their disks.
        :param hangs_at: tells at what the move of a server hangs, as it is whenever it is told.
        """
        self._hangs_at = hangs_at
        self._failed, self._see_errors, self._seen = failed, see_errors, tuple(servers)
        stuck = {(server.server_id, self._why(server)) for server in self._seen
                 if not server.settles and server.state in _CURES}
        for server_id, reason in sorted(stuck - self._told):
            LOG.info('bootcache: server %s goes on needing its cache image and the gateway:'
                     ' %s', server_id, reason)
        self._told = stuck

    def are_changing(self) -> bool:
        """Tell whether Nova was at work on one of them: it is in another state soon."""
        return any(not server.settles and server.state not in _CURES
                   for server in self._seen or ())

    def _why(self, server: LocalServer) -> str:
        reason = why(server, is_off=self._is_off, is_unwanted=server.image_id in self.unwanted,
                     has_failed=server.image_id in self._failed
                     or server.server_id in self._failed,
                     hangs_at=self._hangs_at(server.server_id),
                     is_young=server.age < self._delay,
                     is_queued=server.image_id in self.queued)
        return reason + SEES_ERRORS if server.server_id in self._see_errors else reason

    def oldest(self) -> float:
        """Return the age of the oldest of those that are to be settled, in seconds; 0 if none is.

        Servers count that Nova has in a state in which they can be, of images that want it.
        """
        return max((server.age for server in self._seen or ()
                    if server.settles and not self._is_off
                    and server.image_id not in self.unwanted), default=0.0)

    def report(self) -> UnsettledServers | None:
        """Return these servers as the storage service is told; None while they are not known."""
        if self._seen is None:
            return None
        # Those first for which somebody has to do something.
        found = sorted(((server.server_id, self._why(server)) for server in self._seen),
                       key=lambda entry: (entry[1] in (SOON, YOUNG, QUEUED), entry))
        return UnsettledServers(len(found), tuple(
            UnsettledServer(*entry) for entry in found[:MOST_NAMED]))


class ChainedDisks:
    """Knows them, by their inodes; any thread may ask, and have one forgotten.

    :param cache: the host's cache images.
    """

    def __init__(self, cache: CacheFiles):
        self._cache = cache
        # Inodes of disks, and the names of the cache images below them, by directory; how often
        # one was forgotten. Guarded by the lock, held for dictionary steps.
        self._known: dict[str, tuple[int, str]] = {}
        self._forgotten = 0
        self._lock = leaf('the lock of known disks')

    def is_in(self, directory: str) -> bool:
        """Tell whether the disk in a server's directory stands on a cache image.

        One whose move is under way does until that is over, whatever it is called just now: so that
        is looked at last.
        """
        return bool(self.name_below(directory)) or pivot.is_under_way(directory)

    def name_below(self, directory: str) -> str:
        """Return the name of the cache image that a disk stands on; empty if on none."""
        key, path, forgotten = os.path.basename(directory), os.path.join(directory, DISK), \
            self._forgotten
        try:
            inode = os.stat(path).st_ino
            known = self._known.get(key)
            if known is not None and known[0] == inode:
                return known[1]
            if not qemuimg.is_qcow2(path):
                return ''
            backing = qemuimg.info(path, 'qcow2').get('full-backing-filename')
        except (OSError, exception.BootcacheError):
            # Not there yet, or of another kind.
            return ''
        name = os.path.basename(str(backing)) if self._cache.holds_path(backing) else ''
        if name or backing is None or os.path.exists(backing):
            # Only Nova's work on the server, and settling itself, change it. One that came from
            # another host, and whose base is not here, is still to be put onto a cache image.
            with self._lock:
                if self._forgotten == forgotten:
                    self._known[key] = inode, name
        return name

    def forget(self, server_id: str) -> None:
        """Look at a server's disk again: it may stand on something else by now."""
        with self._lock:
            for key in server_id, f'{server_id}_resize':
                self._known.pop(key, None)
            self._forgotten += 1

    def keep_only(self, names: Collection[str]) -> None:
        """Forget the disks of directories that are gone: of deleted servers, or moved ones."""
        for name in set(self._known).difference(names):
            self.forget(name)
