"""The servers of a host whose guests are paused by an I/O error: told, and let go on.

Nothing is remembered that libvirt and Nova do not tell: a nova-compute that is started again finds
them. It has a thread of its own, as upkeep's round may fetch for minutes.
"""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Container, Iterator

from oslo_log import log as logging

from bootcache import exception
from bootcache.locks import KeyedLocks, UsageCounts
from bootcache.rpc.fields import MOST_NAMED
from bootcache.rpc.report import PausedGuest, PausedGuests
from bootcache.util.backoff import Backoff
from bootcache.util.logthrottle import LogThrottle
from nova_bootcache import libvirtcalls
from nova_bootcache.chains.chains import Chains
from nova_bootcache.libvirtcalls import SECONDS, LibvirtCalls
from nova_bootcache.locks import Rank
from nova_bootcache.recording.bootwatch import WatchedBoots
from nova_bootcache.settling.localservers import LocalServer, Nova
from nova_bootcache.standstill import errorstop

LOG = logging.getLogger(__name__)

def why(obstacle: str, is_full: bool, was_tried: bool) -> str:
    """Return what a server waits for.

    :param obstacle: why what is below its disk cannot be read; empty if it can, as far as is known.
    :param is_full: libvirt says that the host has no space for what the guest writes.
    :param was_tried: it was resumed, and paused again at once.
    """
    if obstacle:
        return obstacle
    if is_full:
        return 'the host has no space for what it writes to its disk'
    if was_tried:
        return 'its disk gives errors each time it goes on, though its base is there'
    return 'what is below its disk could not be read; it can be now'


def cure(error: Exception | None, is_full: bool) -> str:
    """Return what an operator can do about one that waits for long.

    :param error: that keeps its base from being read, or it from going on; None if there is none.
    :param is_full: as for :func:`why`.
    """
    if isinstance(error, exception.LibvirtHangs):
        return libvirtcalls.CURE
    if isinstance(error, exception.StorageNodeAway):
        return ('Bring the storage node back, or have the storage service serve the image at'
                ' another address: the host finds it by itself')
    if isinstance(error, exception.StorageDaemonError) \
            and not isinstance(error, exception.BaseUnreadable):
        return ('See why the gateway does not serve it: its log is in [bootcache]gateway_run_dir,'
                ' and "systemctl status bootcache-gateway bootcache-connectors" tells of'
                ' the units')
    if error is not None:
        return ('Have the storage service serve the image again, with the same content; see'
                ' "bootcache image show" of it')
    if is_full:
        return 'Make room on the file system of its disk'
    return ('See QEMU\'s log of the server, and the kernel\'s on this host and on the storage node:'
            ' a disk of theirs may be ill')


@dataclasses.dataclass(frozen=True)
class StandingDomain:
    """A guest that is paused by an error.

    :ivar is_to_wait: it has a disk that was made to stop it by this driver, or may have: see
        novadriver/errorpolicy.py. Stock Nova's stop as well where the host's disk is full, and
        whoever sees to that lets them go on.
    :ivar is_on_cache_image: that stands on a cache image; else on the host's own full base.
    :ivar is_full: the host has no space for a disk of its.
    :ivar hangs: why nothing can be done for it now, as its QEMU does not answer; None if it does.
    """

    is_to_wait: bool
    is_on_cache_image: bool
    is_full: bool
    hangs: exception.LibvirtHangs | None


def find(calls: LibvirtCalls,
         holds_path: Callable[[str | None], bool]) -> dict[str, StandingDomain]:
    """Return a host's guests that are paused by an error, by server.

    :param holds_path: tells whether a file is a cache image of this host.
    :raises LibvirtHangs: if libvirt itself does not answer.
    :raises libvirtError: if it gives an error.
    """
    found = {}
    for server_id, is_told in calls.ask(errorstop.paused).items():
        hangs: exception.LibvirtHangs | None = None
        errors: dict[str, int] = {}
        description = ''
        try:
            errors = calls.ask_qemu(server_id, errorstop.disk_errors)
            description = calls.ask_qemu(server_id, errorstop.description)
        except exception.LibvirtHangs as error:
            # What is below its disks is not told either, whatever description libvirt 11 is asked
            # for. Nobody can do anything for it now: it is told of, also if it is stock Nova's.
            hangs = error
        except Exception as error:
            # It may have ended meanwhile.
            LOG.debug('bootcache: why server %s is paused is not known: %s',
                      server_id, error)
            continue
        if is_told or errors:
            below = errorstop.waits_at(description).values() if description else ()
            found[server_id] = StandingDomain(
                bool(below) or hangs is not None, any(holds_path(path) for path in below),
                errorstop.are_for_space(errors.values()), hangs)
    return found


# So often libvirt is asked in any case; its event comes sooner.
PERIOD_SECONDS = 10.0
# After a try: where several reads were under way, the guest stops again at once.
_FIRST_TRY, _LONGEST_TRY = 1.0, 60.0
# So often it is seen whether the watch over bases has found a way.
_WATCHED_SECONDS = 0.25
# A request that gives an error again does so within the 8 s for which the gateway keeps it: a
# guest that ran for longer met a new one.
_RELAPSE_SECONDS = 30.0
# After that it is for somebody to see to; said again as often.
LONG_SECONDS = 3600.0
_ASK_AGAIN_SECONDS = _SHORTEST_PAUSE = 0.5
_LISTED = 'which guests are paused is not known'


@dataclasses.dataclass
class _Wait:
    """A server that waits.

    :ivar since: seconds since the epoch at which it was seen first.
    :ivar why: what for.
    :ivar told_at: seconds since the epoch at which it was said last.
    :ivar due: the clock's second at which there is something to do for it.
    """

    since: float
    why: str = ''
    told_at: float = 0.0
    due: float = 0.0


class StandingServers:
    """Knows those that wait, and lets them go on.

    :param nova: the host's servers.
    :param bases: what is below their disks.
    :param holds_path: tells whether a file is a cache image of this host.
    :param boots: told which guests are paused.
    :param clock: gives monotonic seconds.
    """

    def __init__(self, nova: Nova, bases: Chains, holds_path: Callable[[str | None], bool],
                 boots: WatchedBoots, clock: Callable[[], float] = time.monotonic):
        self._nova = nova
        self._bases = bases
        self._holds_path = holds_path
        self._boots = boots
        self._clock = clock
        self._throttle = LogThrottle(LOG)
        # This thread's own: its calls to libvirt; who waits, by server; why bases cannot be read,
        # by image.
        self._calls = LibvirtCalls(nova.connect)
        # Those of Nova's threads.
        self._novas_calls = LibvirtCalls(nova.connect)
        self._waits: dict[str, _Wait] = {}
        self._obstacles: dict[str, Exception | None] = {}
        # By server, with the second of the last try.
        self._tries = Backoff(_FIRST_TRY, _LONGEST_TRY, clock)
        self._tried_at: dict[str, float] = {}
        # What is told to others: exchanged as a whole.
        self._told: list[PausedGuest] = []
        # Servers that go on before they are moved, and that Nova starts just now.
        self._moving = UsageCounts('guests that are moved')
        self._starting = UsageCounts('guests that start')
        # Make looking whether a server is to go on, and that, one step.
        self._steps = KeyedLocks(Rank.STANDING, 'the lock of a guest that is paused: server')
        self._woken = threading.Event()
        self._stopped = False

    # Starting and stopping.

    def start(self) -> None:
        """Look for them from now on, at once for the first time."""
        threading.Thread(target=self._run, name='bootcache-standing', daemon=True).start()

    def stop(self) -> None:
        """Look no more; paused guests stay paused."""
        self._stopped = True
        self._woken.set()

    def wake(self) -> None:
        """Look at once: a guest of this host is paused now. May be called by any thread."""
        self._woken.set()

    @contextlib.contextmanager
    def kept(self, server_id: str) -> Iterator[None]:
        """Let no guest go on while the block runs: its user has paused it."""
        with self._steps.of(server_id):
            yield

    def is_standing(self, server_id: str) -> bool:
        """Tell whether a guest is paused by an error, as far as libvirt tells it now."""
        try:
            found = self._novas_calls.ask_known(server_id, errorstop.look_at)
            return found or (found is False and bool(
                self._novas_calls.ask_qemu(server_id, errorstop.disk_errors)))
        except Exception as error:
            LOG.debug('bootcache: whether server %s is paused is not known: %s', server_id,
                      error)
            return False

    def let_go_on(self, server_id: str, seconds: float) -> bool:
        """Wait until a server's guest is not paused, though Nova is about to move it.

        :param seconds: to wait at most.
        :returns: whether it does not.
        """
        deadline = self._clock() + seconds
        with self._moving.of(server_id):
            while self.is_standing(server_id):
                if self._clock() >= deadline:
                    return False
                self.wake()
                time.sleep(_ASK_AGAIN_SECONDS)
        return True

    # What Nova does with a server meanwhile.

    def starting(self, server_id: str) -> contextlib.AbstractContextManager[None]:
        """Note that Nova starts a server while the block runs, and waits until it does."""
        return self._starting.of(server_id)

    def is_started(self, server_id: str) -> bool:
        """Tell whether a guest that Nova starts just now has been started, and is paused."""
        return server_id in self._starting and self.is_standing(server_id)

    def comes_back_running(self, server_id: str,
                           to_wait: Callable[[str], str] | None = None) -> bool:
        """Have a server's guest run when it is resumed, also if it was paused as it was suspended.

        Nova waits without end until it does.

        :param to_wait: makes its description one with which it waits for its disk; None if it need
            not. It may have come, running, from a host with stock Nova's driver.
        :returns: whether it waits for its disk.
        """
        found = []

        def change() -> None:
            # It is off: no QEMU has to answer. How long its memory's file takes is not known.
            domain = self._nova.connect().lookupByUUIDString(server_id)
            if to_wait is None and not errorstop.waits_at(errorstop.description(domain)):
                return
            errorstop.comes_back_running(
                domain, lambda text: (to_wait(text) if to_wait is not None else '') or text)
            found.append(errorstop.comes_back_waiting(domain))

        self._change(server_id, change, 'what it was suspended as')
        return any(found)

    def has_arrived(self, server_id: str) -> None:
        """Let a guest go on that was paused by an error when it left another host.

        libvirt has it paused here as if its user wanted that, which Nova does not know of.
        """
        def go_on() -> None:
            calls = self._novas_calls
            if calls.ask_known(server_id, errorstop.stands_still) \
                    and errorstop.waits_at(calls.ask_qemu(server_id, errorstop.description)):
                calls.ask_qemu(server_id, errorstop.go_on)
                LOG.info('bootcache: server %s was paused by an I/O error as it came here, and is'
                         ' resumed', server_id)

        self._change(server_id, go_on, 'whether it is paused')

    def _change(self, server_id: str, change: Callable[[], None], what: str) -> None:
        """Change the domain of a server, which may have none.

        :param change: does so if it has a disk at which it waits; others are stock Nova's.
        :param what: is not as it is to be if that fails, for the log.
        """
        try:
            with self._steps.of(server_id):
                if self._novas_calls.find(server_id) is not None:
                    change()
        except Exception as error:
            LOG.warning('bootcache: server %s: %s is not known, or cannot be changed: %s',
                        server_id, what, error)

    def _runs(self, server: LocalServer) -> bool:
        return server.runs or server.server_id in self._moving

    def report(self) -> PausedGuests:
        """Return the paused guests as the storage service is told."""
        found = self._told
        return PausedGuests(len(found), tuple(found[:MOST_NAMED]))

    def _run(self) -> None:
        while not self._stopped:
            self._woken.clear()
            try:
                self.look()
                self._throttle.recovered(
                    _LISTED, 'bootcache: libvirt and Nova tell again which guests are paused')
            except Exception as error:
                self._throttle.warning(_LISTED, 'bootcache: %s, for now: %s', _LISTED, error)
            self._wait()

    def _wait(self) -> None:
        """Wait until there is something to do, also as the watch has found a way to a base."""
        end = self._clock() + self._seconds()
        while not self._stopped and (left := end - self._clock()) > 0 \
                and not self._woken.wait(min(left, _WATCHED_SECONDS)) and not any(
                    error is not None and self._bases.is_read(image_id)
                    for image_id, error in self._obstacles.items()):
            pass

    def _seconds(self) -> float:
        """Return for how long there is nothing to do, unless an event comes."""
        now = self._clock()
        return min([PERIOD_SECONDS, *(max(wait.due - now, _SHORTEST_PAUSE)
                                      for wait in self._waits.values())])

    # The work.

    def look(self) -> None:
        """Look at all guests that are paused, and let go on those that can.

        :raises Exception: if libvirt or Nova do not answer.
        """
        standing = find(self._calls, self._holds_path)
        servers = self._nova.servers() if standing else []
        present = [server for server in servers if server.server_id in standing
                   and standing[server.server_id].is_to_wait and self._runs(server)]
        self._boots.stand_still({server.server_id for server in present})
        self._end_waits({server.server_id for server in present}, standing)
        self._obstacles = {image_id: self._try_to_reach(image_id) for image_id in sorted({
            server.image_id for server in present
            if standing[server.server_id].is_on_cache_image})}
        for server in present:
            self._look_at(server, standing[server.server_id])
        self._told = [PausedGuest(server_id, wait.why, round(wait.since))
                      for server_id, wait in sorted(self._waits.items())]

    def _end_waits(self, waiting: set[str], standing: Container[str]) -> None:
        now = self._clock()
        for server_id in set(self._waits) - waiting:
            wait = self._waits.pop(server_id)
            if server_id not in standing:
                LOG.info('bootcache: server %s goes on after %.0f s', server_id,
                         time.time() - wait.since)
        for server_id, tried_at in list(self._tried_at.items()):
            if server_id not in self._waits and now - tried_at > _RELAPSE_SECONDS:
                del self._tried_at[server_id]
                self._tries.forget(server_id)

    def _try_to_reach(self, image_id: str) -> Exception | None:
        try:
            self._bases.reach_base(image_id)
        except Exception as error:
            return error
        return None

    def _look_at(self, server: LocalServer, standing: StandingDomain) -> None:
        """Let a server go on, or say what it waits for."""
        server_id, now = server.server_id, time.time()
        error = self._obstacles.get(server.image_id) if standing.is_on_cache_image else None
        error = standing.hangs or error
        obstacle = '' if error is None else str(error) or repr(error)
        is_new = server_id not in self._waits
        wait = self._waits.setdefault(server_id, _Wait(now, told_at=now))
        was, wait.why = wait.why, why(obstacle, standing.is_full, server_id in self._tries)
        if standing.hangs and wait.why != was:
            LOG.warning('bootcache: server %s is paused by an I/O error, and cannot be resumed: %s.'
                        ' %s', server_id, wait.why, cure(error, standing.is_full))
        elif is_new:
            LOG.warning('bootcache: server %s is paused by an I/O error, and resumes by itself: %s',
                        server_id, wait.why)
        elif now - wait.told_at >= LONG_SECONDS:
            wait.told_at = now
            LOG.warning('bootcache: server %s has been paused by an I/O error for %.1f h: %s. %s',
                        server_id, (now - wait.since) / 3600, wait.why,
                        cure(error, standing.is_full))
        if not obstacle and self._tries.acquire(server_id):
            self._tried_at[server_id] = self._clock()
            self._let_go_on(server_id)
        wait.due = self._clock() + PERIOD_SECONDS if obstacle else self._tries.due_at(server_id)

    def _let_go_on(self, server_id: str) -> None:
        lock = self._steps.of(server_id)
        if not lock.acquire(0):
            # Others do not wait for what Nova does with it just now.
            LOG.debug('bootcache: server %s is seen to by Nova, and tried again later', server_id)
            return
        try:
            # Its user may have paused it by now: libvirt does not tell one from the other.
            server = self._nova.server(server_id)
            if server is not None and self._runs(server):
                # A call that comes to it later does not know that any more.
                until = self._clock() + SECONDS
                self._calls.ask_qemu(server_id, lambda domain: errorstop.go_on_if(
                    domain, lambda: self._clock() < until))
        except Exception as error:
            # Others do not wait for it.
            LOG.warning('bootcache: server %s cannot go on, for now: %s', server_id, error)
        finally:
            lock.release()
