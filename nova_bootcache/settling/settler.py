"""Settling: servers come to stand on a full local base, as if stock Nova had made them.

Once an image and host the full base is completed at Nova's own path, at a limited bandwidth; then
each server is moved onto it. Every Nova operation has precedence: it ends what is under way for
its server, which leaves the server as it was, and settling tries again later.
"""

import collections
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import oslo_messaging as messaging
from oslo_log import log as logging

from bootcache import exception, naming, tier
from bootcache.locks import KeyedLocks, leaf
from bootcache.pauses import GrowingPauses
from nova_bootcache.chains.computehost import ComputeHost
from nova_bootcache.locks import Rank
from nova_bootcache.settling import basecontent, fullbase, pivot, rebase
from nova_bootcache.settling.chaineddisks import ChainedDisks
from nova_bootcache.settling.halfdone import HalfDone
from nova_bootcache.settling.hanging import HangingServers
from nova_bootcache.settling.landing import Landing
from nova_bootcache.settling.localservers import LocalServer, Nova
from nova_bootcache.settling.occasions import Occasions
from nova_bootcache.settling.pivot import Pivot
from nova_bootcache.settling.serversbases import ServersBases
from nova_bootcache.settling.unsettled import Unsettled

LOG = logging.getLogger(__name__)

_PERIOD_SECONDS = 10
_PAUSE_SECONDS = 60
_LONGEST_PAUSE = 6 * 3600
_FAILED = 'it did not come off'


class Settler:
    """Settles this host's servers, one at a time, in a thread of its own.

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
        # Servers that Nova works on, and what is under way; guarded by the lock.
        self._held: collections.Counter[str] = collections.Counter()
        self._pivots: dict[str, tuple[Pivot, threading.Event]] = {}
        self._lock = leaf('the lock of what settles')
        # Make beginning, ending and giving up one step.
        self._steps = KeyedLocks(Rank.SETTLING, 'the lock of settling server')
        # What did not come off, by image: a base that is wrong is so for good.
        self._pauses = GrowingPauses(_PAUSE_SECONDS, _LONGEST_PAUSE, lambda: time.monotonic())
        self._hanging = HangingServers(lambda: time.monotonic())
        self._half_done = HalfDone(nova, self._steps, self._hanging)
        self._chained = ChainedDisks(host.cache, lambda server: server.server_id in self._hanging
                                     and pivot.is_under_way(server.directory))
        # Images all of whose servers hang, with the second from which on to try one.
        self._hang: dict[str, float] = {}
        # Images whose base is to leave the gateway.
        self._gone: set[str] = set()
        self._occasions = Occasions(nova.directories, self._chained.is_in, self._half_done.is_due)
        self.unsettled = Unsettled(is_off=not bandwidth, delay=delay)
        self._bases = ServersBases(host, nova, bandwidth, self._stopped, self.unsettled)
        self._landing = Landing(host, nova, landing_bandwidth, delay, self._hanging)
        # Nova has worked on a server, which may be in another state now.
        self._has_worked = False

    # Starting and stopping.

    def recover(self) -> None:
        """End what an earlier process left half-done, before Nova starts any server."""
        with contextlib.suppress(OSError):
            fullbase.sweep(self._nova.base_directory)
        for directory in self._nova.directories():
            self._half_done.end_in_turn(directory)

    def recover_server(self, directory: str) -> None:
        """End what was left half-done for one server, by a crash or as libvirt was away.

        :param directory: of its disks.
        :raises LibvirtHangs: if its QEMU does not answer; it can be once that has ended.
        :raises BootcacheError: if that is not possible, or which of two disks is the right one
            cannot be told: the server must not be started then.
        """
        self._half_done.end(directory, urgent=True)

    def start(self) -> None:
        """Begin to look for servers that can be settled."""
        threading.Thread(target=self._run, name='bootcache-settling', daemon=True).start()

    def stop(self) -> None:
        """Give up what is under way; the servers stay as they are."""
        self._stopped.set()
        with self._lock:
            under_way = list(self._pivots)
        for server_id in under_way:
            self._give_up(server_id)

    # Precedence of Nova.

    @contextlib.contextmanager
    def held(self, server_id: str) -> Iterator[None]:
        """Keep settling away from a server while Nova works on it."""
        with self._lock:
            self._held[server_id] += 1
        try:
            if not self._give_up(server_id):
                self._half_done.end_for_nova(server_id)
            yield
        finally:
            with self._lock:
                self._held[server_id] -= 1
                if not self._held[server_id]:
                    del self._held[server_id]
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
                self.look()
            except Exception:
                LOG.exception('bootcache: settling goes on in a while')

    def look(self) -> None:
        """Look at all servers if there is a reason: Nova's conductor has others to answer."""
        now = time.monotonic()
        has_worked, self._has_worked = self._has_worked, False
        waits = has_worked or self.unsettled.are_changing() or bool(self._gone) \
            or self._landing.waits or (bool(self._bandwidth) and any(
                now >= self._due(image_id)
                for image_id in self._host.needs.unsettled or ()))
        self._occasions.look(now, waits, self.once)

    def _due(self, image_id: str) -> float:
        """Return the monotonic second from which on something can be done for an image."""
        return max(self._pauses.due(image_id), self._bases.asks_at(image_id),
                   self._hang.get(image_id, 0.0))

    def once(self) -> None:
        """Look at all servers, and settle what can be settled."""
        unsettled: dict[str, list[LocalServer]] = {}
        present = self._nova.servers()
        for server in present:
            with self._lock:
                left_behind = server.settles and server.server_id not in self._pivots \
                    and not self._held[server.server_id]
            if left_behind and self._half_done.is_due(server.directory):
                # libvirt was away when it was to be ended, or QEMU; the guest may stand still.
                with self._nova.instance_lock(server.server_id):
                    self._half_done.end_in_turn(server.directory)
            if server.image_id and self._chained.is_one(server):
                unsettled.setdefault(server.image_id, []).append(server)
        self._gone |= (self._host.needs.unsettled or set()) | self._idle_images()
        self._gone -= set(unsettled)
        self._host.needs.note_unsettled(unsettled)
        self._bases.forget_all_but(unsettled)
        self._chained.keep_only(set(map(os.path.basename, self._nova.directories())))
        self._sweep()
        stand = [server for servers in unsettled.values() for server in servers]
        self.unsettled.note(stand, self._pauses, {
            server.server_id for server in stand if server.server_id not in self._hanging
            and self._nova.sees_errors(server.server_id)},
            self._hanging.why)
        self._hanging.keep_only({server.server_id for server in present})
        # Nova is at work on these: a chain may be in the making that nobody has opened yet.
        in_hand = {server.image_id for server in present if not server.settles}
        for image_id in self._gone - in_hand:
            if self._let_go(image_id):
                self._gone.discard(image_id)
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
                     and self._hanging.is_time(server.server_id)]
            if ready and not self._host.needs.is_booting(image_id):
                self._settle(image_id, ready)
        self._hang = {image_id: self._hanging.first_due([server.server_id for server in servers])
                      for image_id, servers in unsettled.items()}

    def _stays(self, image_id: str) -> bool:
        """Tell whether an image's servers stand on its cache image for longer than a moment."""
        return not self._bandwidth or self._bases.is_unwanted(image_id) or (
            self._pauses.times(image_id) > 0 and not os.path.exists(self._bases.path(image_id)))

    def _land(self, server: LocalServer) -> bool:
        return self._stopped.is_set() or self._move(
            server, self._landing.pivot,
            'bootcache: server %s reads its cache image\'s file itself now',
            'bootcache: server %s goes on reading its cache image by the gateway: %s')

    def _sweep(self) -> None:
        """Remove what was copied of bases that no server of this host needs any more."""
        wanted = {naming.cache_file_name(image_id) for image_id in self._host.needs.unsettled or ()
                  if self._bandwidth and not self._bases.is_unwanted(image_id)}
        try:
            fullbase.sweep(self._nova.base_directory, wanted, self._nova.keep_free)
        except OSError as error:
            LOG.warning('bootcache: what is left of full bases cannot be removed: %s', error)

    def _idle_images(self) -> set[str]:
        """Return images that are not to be kept ready for the next server, if none stands on them.

        Those whose base is here: new servers do not need the gateway for them. Those whose
        cache image is empty: what served the last server is of no use to the next one, and that one
        may never have been seen here, as its domain did not start. And those whose cache image is
        open: the gateway reads it for servers that began while it came, and would keep it for good
        from being evicted where these came and went between two looks.
        """
        return {entry.remote.image_id for entry in self._host.cache.entries()
                if entry.cache_image is None
                or os.path.exists(self._bases.path(entry.remote.image_id))
                or self._is_open(entry.remote.image_id)}

    def _is_open(self, image_id: str) -> bool:
        try:
            return tier.is_open(self._host.cache.path(image_id))
        except OSError:
            return False

    def _let_go(self, image_id: str) -> bool:
        """Take what nobody uses any more out of the gateway; False if that is not possible now."""
        try:
            if self._host.needs.is_booting(image_id):
                return False
            if not self._host.gateway.serves(image_id):
                return True
            if not self._host.below.stop_serving(image_id):
                return False
        except exception.BootcacheError as error:
            LOG.warning('image %s: its base stays in the gateway for now: %s', image_id, error)
            return False
        LOG.info('image %s: no server of this host needs the gateway for it any more', image_id)
        return True

    def _settle(self, image_id: str, servers: list[LocalServer]) -> None:
        try:
            base = self._bases.complete(image_id, servers)
            if base is not None:
                has_failed = False
                for server in servers:
                    if self._stopped.is_set():
                        return
                    has_failed |= not self._move(
                        server, lambda now, find: self._onto_base(now, find, base),
                        'bootcache: server %s is settled',
                        'bootcache: server %s is not settled yet: %s')
                # Once, however many have failed: one that can be moved next time waits as well.
                (self._pauses.postpone if has_failed else self._pauses.forget)(image_id)
        except exception.Cancelled:
            return
        except (exception.BootcacheError, OSError, messaging.MessagingException) as error:
            pause = self._pauses.postpone(image_id)
            LOG.warning('image %s: its servers are not settled yet, and tried again in %.0f s: %s',
                        image_id, pause, error)

    def _move(self, server: LocalServer, onto: Callable[..., Pivot | None], done: str,
              failed: str) -> bool:
        """Move one server.

        :param onto: gets the server as it is now, and what finds its domain, under Nova's lock of
            it; gives what moves it, None if nothing is to be done any more.
        :param done: the log's line that says so, of the server's id.
        :param failed: where it did not come off; of that and the error.
        :returns: False if that failed: it is to be tried again later, with all of its image. One
            whose QEMU does not answer keeps no other waiting.
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
        except exception.BlockJobStalls as error:
            self._hanging.note_stall(server_id, error)
            with self._nova.instance_lock(server_id):
                self._give_up(server_id, _FAILED)
        except exception.LibvirtHangs as error:
            self._hanging.note(server_id, error)
            with self._nova.instance_lock(server_id):
                self._give_up(server_id, _FAILED)
        except exception.BootcacheError as error:
            LOG.warning(failed, server_id, error)
            self._hanging.answers(server_id)
            with self._nova.instance_lock(server_id):
                self._give_up(server_id, _FAILED)
            return False
        finally:
            self._chained.forget(server_id)
        return True

    def _begin(self, server_id: str, onto: Callable[..., Pivot | None]
               ) -> tuple[Pivot, threading.Event] | None:
        with self._nova.instance_lock(server_id), self._steps.of(server_id):
            now = self._nova.server(server_id)
            with self._lock:
                is_held = self._held[server_id] > 0
            if now is None or not now.settles or is_held:
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
        if basecontent.identity(base) != checked:
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
