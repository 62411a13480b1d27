"""Settling: servers come to stand on a full local base, as if stock Nova had made them.

Once an image and host the full base is completed at Nova's own path, at a limited bandwidth; then
each server is moved onto it. Every Nova operation has precedence: it ends what is under way for
its server, which leaves the server as it was, and settling tries again later.
"""

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import oslo_messaging as messaging
from oslo_log import log as logging

from bootcache import exception, naming
from bootcache.locks import KeyedLocks, leaf
from bootcache.util.backoff import Backoff
from nova_bootcache.chains.computehost import ComputeHost
from nova_bootcache.locks import Rank
from nova_bootcache.settling import fullbase, hanging, pivot, rebase
from nova_bootcache.settling.hanging import HalfDone, HangingServers
from nova_bootcache.settling.landing import Landing
from nova_bootcache.settling.localservers import LocalServer, Nova
from nova_bootcache.settling.pivot import Pivot
from nova_bootcache.settling.serversbases import ServersBases
from nova_bootcache.settling.unsettled import ChainedDisks, Unsettled

LOG = logging.getLogger(__name__)

# So often Nova is asked for this host's servers in any case: what is known of it here is derived.
LONGEST_SECONDS = 600
_PERIOD_SECONDS = 10
_PAUSE_SECONDS = 60
_LONGEST_PAUSE = 6 * 3600
_FAILED = 'it did not come off'


class Settler:
    """Settles this host's servers, one at a time.

    One thread looks after them, and nothing long runs in it: it ends moves that were interrupted,
    whose guests may be paused, before all else, and sees what servers there are. Another one
    copies: full bases, then servers' own data.

    :param host: the host.
    :param nova: what it needs of Nova.
    :param bandwidth: bytes a second; 0: nothing is ever settled.
    :param delay: seconds from a server's start.
    :param landing_bandwidth: bytes a second at which servers that stay on a cache image are moved
        onto its file; 0: none is.
    """

    def __init__(self, host: ComputeHost, nova: Nova, bandwidth: int, delay: float,
                 landing_bandwidth: int = 0):
        self._host = host
        self._nova = nova
        self._bandwidth = bandwidth
        self._delay = delay
        self._stopped = threading.Event()
        # What is under way; guarded by the lock.
        self._pivots: dict[str, tuple[Pivot, threading.Event]] = {}
        self._lock = leaf('the lock of what settles')
        # Make beginning, ending and giving up one step.
        self._steps = KeyedLocks(Rank.SETTLING, 'the lock of settling server')
        # What did not come off: bases by image, as one that is wrong is so for good, and servers.
        self._backoff = Backoff(_PAUSE_SECONDS, _LONGEST_PAUSE, lambda: time.monotonic())
        self._hanging = HangingServers(lambda: time.monotonic())
        self._half_done = HalfDone(nova, self._steps, self._hanging, lambda: time.monotonic())
        self._chained = ChainedDisks(host.cache)
        # Images all of whose servers hang or failed, with the second from which on to try one.
        self._waits: dict[str, float] = {}
        # Images whose base is to leave the gateway.
        self._gone: set[str] = set()
        # Servers that stood on a cache image at the last look, by image: replaced as a whole.
        self._unsettled: dict[str, list[LocalServer]] = {}
        self._to_copy = threading.Event()
        self._copies = False
        # Directories whose disks stood on cache images when Nova was asked last, and when it was.
        self._disks: frozenset[str] = frozenset()
        self._asked_at = -math.inf
        self.unsettled = Unsettled(is_off=not bandwidth, delay=delay)
        self._bases = ServersBases(host, nova, bandwidth, self._stopped, self.unsettled)
        self._landing = Landing(host, nova, landing_bandwidth, delay, self._hanging)
        # Nova has worked on a server, which may be in another state now; or copying failed.
        self._has_worked = False

    # Starting and stopping.

    def recover(self) -> None:
        """End what an earlier process left half-done, before Nova starts any server."""
        with contextlib.suppress(OSError):
            fullbase.sweep(self._nova.base_directory)
        self._end_interrupted()

    def has_chained(self) -> bool:
        """Tell whether the disk of a server of this host stands on a cache image."""
        return any(map(self._chained.is_in, self._nova.directories()))

    def recover_server(self, directory: str) -> None:
        """End what was left half-done for one server, by a crash or as libvirt was away.

        :param directory: of its disks.
        :raises LibvirtHangs: if its QEMU does not answer; it can be once that has ended.
        :raises BootcacheError: if that is not possible, or which of two disks is the right one
            cannot be told: the server must not be started then.
        """
        self._half_done.end(directory)

    def start(self) -> None:
        """Begin to look for servers that can be settled."""
        for work, name in ((self._run, 'bootcache-settling'), (self._copy, 'bootcache-copying')):
            threading.Thread(target=work, name=name, daemon=True).start()

    def stop(self) -> None:
        """Give up what is under way; the servers stay as they are."""
        self._stopped.set()
        self._to_copy.set()
        with self._lock:
            under_way = list(self._pivots)
        for server_id in under_way:
            self._give_up(server_id)

    # Precedence of Nova.

    @contextlib.contextmanager
    def held(self, server_id: str) -> Iterator[None]:
        """Keep settling away from a server while Nova works on it."""
        try:
            with self._host.needs.operating(server_id):
                if not self._give_up(server_id):
                    self._half_done.end_for_nova(server_id)
                yield
        finally:
            self._chained.forget(server_id)
            self._landing.forget(server_id)
            self._has_worked = True

    def _give_up(self, server_id: str, reason: str = 'Nova works on it') -> bool:
        """Give up a server's move; False if none is known of."""
        with self._steps.of(server_id):
            with self._lock:
                found = self._pivots.pop(server_id, None)
            if found is None:
                return False
            under_way, cancelled = found
            cancelled.set()
            try:
                under_way.abort()
                LOG.info('bootcache: server %s is not settled now, as %s', server_id, reason)
            except exception.LibvirtHangs as error:
                # It is ended with QEMU, or when that answers: all is kept for it.
                LOG.info('bootcache: the settling of server %s stays half done: %s', server_id,
                         error)
            except Exception:
                LOG.exception('bootcache: the settling of server %s cannot be ended', server_id)
        return True

    # The work.

    def _run(self) -> None:
        while not self._stopped.wait(_PERIOD_SECONDS):
            try:
                self.look(self._to_copy.set)
            except Exception:
                LOG.exception('bootcache: settling goes on in a while')

    def _copy(self) -> None:
        while self._to_copy.wait() and not self._stopped.is_set():
            self._copies = True
            self._to_copy.clear()
            try:
                self._settle_unsettled()
            except Exception:
                LOG.exception('bootcache: settling goes on in a while')
                self._has_worked = True
            self._copies = False

    def once(self, settle: Callable[[], None] | None = None) -> None:
        """Look at all servers, and settle what can be settled.

        :param settle: has that done; None to do it in this thread.
        """
        self._end_interrupted()
        self._see()
        (settle or self._settle_unsettled)()

    def look(self, settle: Callable[[], None] | None = None) -> None:
        """Do so if there is a reason: Nova's conductor has others to answer.

        Something waits, or other disks on this host stand on cache images than at the last look.
        """
        self._end_interrupted()
        now = time.monotonic()
        has_worked, self._has_worked = self._has_worked, False
        # What can be copied only once something else has been is no reason.
        can_copy = not self._copies and (self._landing.waits or (bool(self._bandwidth) and any(
            now >= self._due(image_id) and any(server.settles for server in servers)
            for image_id, servers in self._unsettled.items())))
        disks = frozenset(filter(self._chained.is_in, self._nova.directories()))
        if has_worked or can_copy or disks != self._disks or self._gone \
                or self.unsettled.are_changing() or now - self._asked_at >= LONGEST_SECONDS:
            # Until it has come off.
            self._asked_at = -math.inf
            self.once(settle)
            self._asked_at, self._disks = now, disks

    def _due(self, image_id: str) -> float:
        """Return the monotonic second from which on something can be done for an image."""
        return max(self._backoff.due_at(image_id), self._bases.asks_at(image_id),
                   self._waits.get(image_id, 0.0))

    def _end_interrupted(self) -> None:
        """End moves that libvirt or QEMU interrupted: Nova is not asked, which may be away."""
        for directory in self._nova.directories():
            server_id = hanging.server_of(directory)
            if self._half_done.is_due(directory) and self._is_left(server_id):
                # Whoever has the lock may be hanging in libvirt, and others' guests wait for this.
                with self._nova.instance_lock(server_id, waits=False) as is_free:
                    # It may just have been begun.
                    if is_free and self._is_left(server_id):
                        self._half_done.end_in_turn(directory)

    def _is_left(self, server_id: str) -> bool:
        with self._lock:
            is_moved = server_id in self._pivots
        return not is_moved and not self._host.needs.is_operated(server_id)

    def _see(self) -> None:
        """See which servers stand on a cache image, and let go of what none needs any more."""
        present, needs = self._nova.servers(), self._host.needs
        unsettled: dict[str, list[LocalServer]] = {}
        for server in present:
            if server.image_id and self._chained.is_in(server.directory):
                unsettled.setdefault(server.image_id, []).append(server)
        # A disk that Nova is sending is named as a stock one, and may have to be kept here.
        needed = self._kept_images().union(unsettled, (
            server.image_id for server in present if needs.is_operated(server.server_id)
            and self._host.cache.known(server.image_id) is not None))
        self._gone |= self._bases.idle_images() | (needs.unsettled or set())
        self._gone -= needed
        needs.note_unsettled(needed)
        self._chained.keep_only(set(map(os.path.basename, self._nova.directories())))
        self._unsettled = unsettled
        stand = [server for servers in unsettled.values() for server in servers]
        self.unsettled.note(stand, self._backoff, {
            server.server_id for server in stand if server.server_id not in self._hanging
            and self._nova.sees_errors(server.server_id)},
            self._hanging.why)
        self._hanging.keep_only({server.server_id for server in present})
        self._backoff.keep_only({*unsettled, *(server.server_id for server in stand)})
        # Nova is at work on these: a chain may be in the making that nobody has opened yet.
        in_hand = {server.image_id for server in present if not server.settles}
        for image_id in self._gone - in_hand:
            if self._bases.let_go(image_id):
                self._gone.discard(image_id)

    def _kept_images(self) -> set[str]:
        """Return the images of disks that are kept here, for a revert, of servers that are not."""
        names = {self._chained.name_below(directory) for directory in self._nova.directories()
                 if directory.endswith('_resize')}
        return {entry.remote.image_id for entry in self._host.cache.entries()
                if naming.cache_file_name(entry.remote.image_id) in names} if names else set()

    def _settle_unsettled(self) -> None:
        """Settle what can be settled of the servers that were seen; may take hours."""
        unsettled = self._unsettled
        self._bases.forget_all_but(unsettled)
        self._bases.sweep(unsettled)
        if self._bandwidth:
            self._settle_all(unsettled)
        self._landing.look(unsettled, self._stays, self._land)

    def _settle_all(self, unsettled: dict[str, list[LocalServer]]) -> None:
        # Servers whose base is here first: to complete one takes long.
        for image_id, servers in sorted(
                unsettled.items(), key=lambda item: not os.path.exists(self._bases.path(item[0]))):
            if self._stopped.is_set() or time.monotonic() < self._due(image_id):
                continue
            ready = [server for server in servers if server.settles and server.age >= self._delay
                     and self._hanging.is_time(server.server_id)
                     and self._backoff.is_due(server.server_id)]
            if ready and not self._host.needs.is_booting(image_id):
                self._settle(image_id, ready)
        self._waits = {image_id: min(
            (max(self._hanging.due(server.server_id), self._backoff.due_at(server.server_id))
             for server in servers if server.settles), default=0.0)
            for image_id, servers in unsettled.items()}

    def _stays(self, image_id: str) -> bool:
        """Tell whether an image's servers stand on its cache image for longer than a moment."""
        return not self._bandwidth or self._bases.is_unwanted(image_id) or (
            self._backoff.failures(image_id) > 0 and not os.path.exists(self._bases.path(image_id)))

    def _land(self, server: LocalServer) -> bool:
        return self._stopped.is_set() or self._move(
            server, self._landing.pivot,
            'bootcache: server %s reads its cache image\'s file itself now',
            'bootcache: server %s goes on reading its cache image by the gateway: %s')

    def _settle(self, image_id: str, servers: list[LocalServer]) -> None:
        try:
            base = self._bases.complete(image_id, servers)
            if base is not None:
                self._backoff.forget(image_id)
                for server in servers:
                    if self._stopped.is_set():
                        return
                    has_moved = self._move(
                        server, lambda now, find: self._onto_base(now, find, base),
                        'bootcache: server %s is settled',
                        'bootcache: server %s is not settled yet: %s')
                    (self._backoff.forget if has_moved else self._backoff.postpone)(
                        server.server_id)
        except exception.Cancelled:
            return
        except (exception.BootcacheError, OSError, messaging.MessagingException) as error:
            pause = self._backoff.postpone(image_id)
            LOG.warning('image %s: its servers are not settled yet, and tried again in %.0f s: %s',
                        image_id, pause, error)

    def _move(self, server: LocalServer, onto: Callable[..., Pivot | None], done: str,
              failed: str) -> bool:
        """Move one server.

        :param onto: gets the server as it is now, and what finds its domain, under Nova's lock of
            it; gives what moves it, None if nothing is to be done any more.
        :param done: the log's line that says so, of the server's id.
        :param failed: where it did not come off; of that and the error.
        :returns: False if that failed: it is to be tried again later.
        """
        server_id = server.server_id
        try:
            under_way = self._begin(server_id, onto)
            if under_way is not None:
                self._finish(server_id, *under_way, done)
                self._hanging.has_moved(server_id)
            self._hanging.answers(server_id)
        except exception.Cancelled:
            pass
        except exception.BootcacheError as error:
            if isinstance(error, exception.BlockJobStalls):
                self._hanging.note_stall(server_id, error)
            elif isinstance(error, exception.LibvirtHangs):
                self._hanging.note(server_id, error)
            else:
                LOG.warning(failed, server_id, error)
                self._hanging.answers(server_id)
            with self._nova.instance_lock(server_id):
                self._give_up(server_id, _FAILED)
            return isinstance(error, exception.LibvirtHangs)
        finally:
            self._chained.forget(server_id)
        return True

    def _begin(self, server_id: str, onto: Callable[..., Pivot | None]
               ) -> tuple[Pivot, threading.Event] | None:
        with self._nova.instance_lock(server_id, waits=False) as is_free, \
                self._steps.of(server_id):
            now = self._nova.server(server_id) if is_free else None
            if now is None or not now.settles or self._host.needs.is_operated(server_id):
                return None

            def find_domain() -> Any:
                # What was begun is to be ended, however many others hang.
                return self._nova.bounded_domain(server_id,
                                                 urgent=pivot.is_under_way(now.directory))

            under_way = onto(now, find_domain)
            if under_way is None:
                return None
            under_way.begin()
            found = under_way, threading.Event()
            with self._lock:
                self._pivots[server_id] = found
            return found

    def _onto_base(self, server: LocalServer, find_domain: Callable[[], Any],
                   checked: tuple[int, int]) -> Pivot | None:
        base = self._bases.path(server.image_id)
        cache_image = self._host.cache.path(server.image_id)
        if fullbase.identity(base) != checked:
            raise exception.BootcacheError(f'base {base} was replaced since it was checked')
        domain = find_domain()
        if domain is None or not domain.isActive():
            self._nova.make_writable(server.disk)
            rebase.rebase_stopped(server.directory, cache_image, base, pivot.base_format(base),
                                  domain)
            LOG.info('bootcache: server %s, which is stopped, is settled', server.server_id)
            return None
        return Pivot(find_domain, server.directory, base, pivot.base_format(base), cache_image,
                     self._bandwidth, server.target, self._nova.keep_free)

    def _finish(self, server_id: str, under_way: Pivot, cancelled: threading.Event, done: str
                ) -> None:
        under_way.wait_ready(cancelled)
        with self._nova.instance_lock(server_id), self._steps.of(server_id):
            with self._lock:
                if self._pivots.pop(server_id, None) is None:
                    return
            under_way.finish()
        LOG.info(done, server_id)
