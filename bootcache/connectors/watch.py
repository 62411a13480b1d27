"""By which of its ways each base is read, and the watch over all of them.

A compute host's bases and the clones below a storage node's exporters alike: a base is read through
a connector, and its readers connect by its link. Where a read has no answer the link leads to
another connector some seconds later, or nowhere: then reads fail when their reader has tried for
long enough.
"""

import concurrent.futures
import contextlib
import functools
import random
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any

from oslo_log import log as logging

from bootcache import exception, qemuimg
from bootcache.connectors import probe
from bootcache.connectors.connectors import Connectors
from bootcache.connectors.probe import Answer
from bootcache.connectors.ways import Way
from bootcache.locks import KeyedLocks
from bootcache.util import threads
from bootcache.util.backoff import Backoff

LOG = logging.getLogger(__name__)

# Between looks at each base, and until its answer. Guests give a request up after 30 s: a read is
# missed after 3 and 4 s, another connector is tried for 4 s, and their reads fail 8 s after that.
PERIOD_SECONDS, _ANSWER_SECONDS = 3.0, 4.0
# Between looks while a base has no answer.
_AGAIN_SECONDS = 1.0
# For which a connection that was exchanged has to be silent twice: a storage node that is slow
# would never end a read.
_SETTLED_SECONDS = 60.0
# For which nothing of a base is read by a way that has given errors.
_BAD_SECONDS = 300.0
# Bases that are read in a look; places that are tried for others at once.
_MOST_READ, _MOST_AT_ONCE = 256, 16
_BUSY_SECONDS = 30
_STOP_SECONDS = 10


class BaseWatch:
    """Owns which connector each base is read by.

    :param connectors: of this host, or storage node.
    :param ways: gives a base's ways by its export's name, the best first; what it raises ends them.
        Its second argument: whether readers wait, so that nothing may be made that takes time.
    :param known: gives the names of the bases that are watched, and where each is: what is at one
        place is away together as a rule.
    :param locks: make looking at a base's link, opening another way, and exchanging it one step.
    :param parks: whether a base is read by no way that has no answer by any; else its readers wait
        for it where they are.
    :param lost: told of bases of which no way goes, or none for long, time and again.
    :param clock: gives monotonic seconds.
    """

    def __init__(self, connectors: Connectors, ways: Callable[[str, bool], Iterable[Way]],
                 known: Callable[[], Mapping[str, str]], locks: KeyedLocks, parks: bool,
                 lost: Callable[[list[str]], None] = lambda _exports: None,
                 clock: Callable[[], float] = time.monotonic):
        self._connectors = connectors
        self._ways = ways
        self._known = known
        self._locks = locks
        self._parks = parks
        self._lost = lost
        self._clock = clock
        self._stopped = threading.Event()
        self._watching: threading.Thread | None = None
        # When a base is read again by an origin that has given errors, by both.
        self._bad = Backoff(_BAD_SECONDS, clock=clock)
        # Of what follows each step is atomic. When the watch has exchanged a base's link, in
        # monotonic seconds.
        self._exchanged_at: dict[str, float] = {}
        # When it was answered last, in seconds since the epoch; what had no answer at the last look
        # at it, with the connector's name.
        self._answered_at: dict[str, float] = {}
        self._silent: dict[str, str] = {}
        # Where data was found in it last; when the last try to connect began, and why it failed.
        self._places: dict[str, int] = {}
        self._failed: dict[str, tuple[float, exception.BootcacheError]] = {}
        # Tries of bases, by place; changed by the thread that looks.
        self._tried: dict[str, concurrent.futures.Future[None]] = {}

    # One base.

    def is_read(self, export: str) -> bool:
        """Tell whether a base can be read, as far as the watch knows."""
        return bool(self._connectors.name_of(export)) and export not in self._silent

    def check_changes(self, seconds: float) -> None:
        """Check that nodes above bases may be changed: that no read of one waits, as far as the
        watch knows, where QEMU has all that a daemon serves wait with it.

        :param seconds: after which reads have failed of a base that can be read by no way, from its
            last answer on.
        :raises StorageDaemonBusy: if one does.
        """
        begun = time.time() - seconds
        if qemuimg.changes_wait() and any(
                self._connectors.name_of(export) or self._answered_at.get(export, 0.0) > begun
                for export in list(self._silent)):
            raise exception.StorageDaemonBusy(
                'nothing is changed while reads of a base have no answer, as QEMU would keep all'
                ' who read waiting with them')

    def failure(self, export: str) -> exception.BootcacheError | None:
        """Return why a base cannot be read, as far as the watch knows; None if it can, or nobody
        has had it be read.
        """
        if self.is_read(export) or not self._connectors.has_link(export):
            return None
        return self._failed[export][1] if export in self._failed \
            else exception.StorageDaemonBusy(f'{export}: {Answer.SILENT.value}')

    def answered(self, export: str) -> float | None:
        """Return when the watch was answered last; None while each of its reads is answered.

        :returns: seconds since the epoch, 0 if never since this process has started.
        """
        return None if self.is_read(export) else self._answered_at.get(export, 0.0)

    def is_bad(self, export: str, origin: str) -> bool:
        """Tell whether a base is not read by an origin for now, as that has given errors."""
        return not self._bad.is_due((export, origin))

    def forgive(self, export: str) -> None:
        """Have a base be read again by what has given errors: it may be another file by now."""
        for key in self._bad.known():
            if key[0] == export:
                self._bad.forget(key)

    def connect(self, export: str) -> None:
        """Have a base be read by one of its ways; nothing happens if it is read.

        :raises StorageDaemonError: if it cannot be.
        :raises BootcacheError: what the ways raise.
        """
        began = self._clock()
        with self.alone(export):
            # Somebody is about to open it.
            self._connectors.touch(export)
            before = self._connectors.name_of(export)
            if before and self._read([export], _ANSWER_SECONDS)[export] is Answer.READ:
                return
            if before and self._parks:
                self._let_wait(export, before)
            tried_at, error = self._failed.get(export, (began, None))
            if error is not None and tried_at > began:
                # Somebody else has tried since; an earlier try tells nothing of how it is now.
                raise error
            # Whoever reads it waits.
            self._take(export, before, {} if self._connectors.has_link(export) else None)

    def _let_wait(self, export: str, before: str) -> None:
        """Have readers of a base wait for another way, of the time after which reads fail."""
        self._connectors.park(export)
        self._connectors.disconnect(before)

    def prefer(self, export: str) -> None:
        """Have a base that is read be read by its best way; else it stays as it is.

        :raises BootcacheError: if it is not read by that, and why.
        """
        error: exception.BootcacheError | None = None
        # What gives the ways may take its time: readers that wait for another one do not wait.
        for way in self._ways(export, False) if self._connectors.name_of(export) else ():
            if self.is_bad(export, way.origin):
                continue
            with self.alone(export):
                before = self._connectors.name_of(export)
                try:
                    if before and not self._connectors.is_by(before, way):
                        self._connectors.connect(export, way)
                    break
                except exception.BootcacheError as found:
                    error = found
        if error is not None:
            raise error

    def check(self, export: str) -> None:
        """Check that a base can be read now: who changes nodes above it would wait for its reads.

        :raises StorageNodeAway: if there is no answer within a second.
        """
        answer = self._read([export], 1.0)[export] if self._connectors.name_of(export) \
            else Answer.FAILED
        if answer is not Answer.READ:
            raise exception.StorageNodeAway(f'{export} cannot be read now: {answer.value}')

    @contextlib.contextmanager
    def alone(self, export: str) -> Iterator[None]:
        """Have the way to a base for this thread.

        :raises StorageDaemonBusy: if another one has it for longer than this one waits.
        """
        lock = self._locks.of(export)
        if not lock.acquire(_BUSY_SECONDS):
            raise exception.StorageDaemonBusy(
                f'the way to {export} is being changed, for more than {_BUSY_SECONDS} s')
        try:
            yield
        finally:
            lock.release()

    def _take(self, export: str, before: str,
              failed: dict[str, exception.BootcacheError] | None = None) -> None:
        """Have a base be read by the first of its ways that goes, and not as it was.

        :param before: the name of the connector by which it was read.
        :param failed: what has failed, by origin: it is not tried; what fails is entered. None if
            nobody waits for reads.
        """
        began = self._clock()
        error = exception.BootcacheError(f'{export} has given errors by all of its ways')
        for way in self._ways(export, failed is not None):
            if self.is_bad(export, way.origin):
                continue
            try:
                if failed is not None and way.origin in failed:
                    raise failed[way.origin]
                others = self._others(export, way.origin)
                if others and export in self._silent:
                    self._connectors.check(export, way)
                # One that was killed is started again.
                avoid = {before} if self._connectors.runs(before) else set()
                self._connectors.connect(export, way, avoid | self._silent_of(others, avoid))
                self._silent.pop(export, None)
                self._failed.pop(export, None)
                return
            except exception.BootcacheError as found:
                error = found
                if failed is not None and not isinstance(found, exception.BaseUnreadable):
                    failed[way.origin] = found
        self._failed[export] = began, error
        raise error

    def _others(self, export: str, origin: str) -> dict[str, str]:
        """Return another base that is read by each of an origin's connectors, by their names."""
        return {name: other for other in self._known() if other != export
                and (name := self._connectors.name_of(other)).startswith(f'{origin}-')}

    def _silent_of(self, others: Mapping[str, str], avoid: Container[str]) -> set[str]:
        """Return the names of connectors by which another base has no answer just now: what is
        opened there would wait with that, and keep all others waiting.

        :param others: such a base, by connector.
        :param avoid: connectors that are not looked at.
        """
        read = {name: other for name, other in others.items() if name not in avoid}
        answers = self._read(read.values(), 1.0)
        return {name for name, other in read.items() if answers[other] is Answer.SILENT}

    def _read(self, exports: Iterable[str], seconds: float) -> dict[str, Answer]:
        sockets = {export: self._connectors.socket(export) for export in exports}
        return threads.run_native(lambda: probe.read(sockets, seconds, self._places))

    # All of them.

    def start(self) -> None:
        """Watch them from now on."""
        if self._watching is None:
            self._watching = threading.Thread(target=self._watch, name='bootcache-watch',
                                              daemon=True)
            self._watching.start()

    def stop(self) -> None:
        """Watch them no more, when what is tried has ended or after ten seconds; they go on to be
        read."""
        self._stopped.set()
        if self._watching is not None:
            self._watching.join(_STOP_SECONDS)
        concurrent.futures.wait(list(self._tried.values()), _STOP_SECONDS)

    def _watch(self) -> None:
        while not self._stopped.wait(
                _AGAIN_SECONDS if self._tried or self._silent else PERIOD_SECONDS):
            try:
                self._tried = {place: tried for place, tried in self._tried.items()
                               if not tried.done()}
                self.look()
            except Exception:
                LOG.exception('bootcache: the watch over bases: unexpected error')

    def look(self) -> None:
        """Read 4 KiB of each base; another way is looked for of one that has no answer."""
        known = dict(self._known())
        names = {export: self._connectors.name_of(export) for export in known}
        linked = [export for export in known if names[export]]
        # Those that had no answer are read in each.
        answers = self._read(sorted(random.sample(linked, len(linked)), key=lambda export:
                                    export not in self._silent)[:_MOST_READ], _ANSWER_SECONDS)
        looping = self._connectors.looping() & set(linked)
        groups: dict[str, list[str]] = {}
        for export, place in known.items():
            if export in looping and self._is_new(export):
                # Another client of Ceph, which may have shut out the first one, has errors too.
                LOG.error('%s cannot be read by connector %s, and is not for now', export,
                          names[export])
                self._bad.postpone((export, names[export].rpartition('-')[0]))
            answer = Answer.FAILED if export in looping or not names[export] \
                else answers.get(export, Answer.READ)
            if not self._is_settled(export, names[export], answer):
                groups.setdefault(place, []).append(export)
        self._note(known, names, answers)
        for place, group in groups.items():
            if place not in self._tried and len(self._tried) < _MOST_AT_ONCE:
                self._tried[place] = threads.daemon_thread(functools.partial(
                    self._mend, {export: names[export] for export in group}), 'bootcache-way')

    def _is_settled(self, export: str, name: str, answer: Answer) -> bool:
        """Tell whether a base goes on to be read as it is."""
        return answer is Answer.READ or (
            answer is Answer.SILENT and self._silent.get(export) != name and self._is_new(export))

    def _is_new(self, export: str) -> bool:
        return self._clock() - self._exchanged_at.get(export, -_SETTLED_SECONDS) \
            < _SETTLED_SECONDS

    def _note(self, known: Mapping[str, str], names: Mapping[str, str],
              answers: Mapping[str, Answer]) -> None:
        for export, answer in answers.items():
            if answer is Answer.READ:
                self._answered_at[export] = time.time()
                self._silent.pop(export, None)
            else:
                self._silent[export] = names[export]
        noted: tuple[dict[str, Any], ...] = (
            self._answered_at, self._silent, self._places, self._failed, self._exchanged_at)
        for each in noted:
            for export in set(each) - set(known):
                each.pop(export, None)

    def _mend(self, group: Mapping[str, str]) -> None:
        """Find another way for bases that have no answer; the readers of those wait that have none.

        What has failed for one of them is not tried for the others.

        :param group: each with the connector's name by which it was read. Somebody may have found
            another way since: that stays.
        """
        failed: dict[str, exception.BootcacheError] = {}
        lost: list[str] = []
        try:
            ran = {name for name in group.values() if self._connectors.runs(name)}
            stuck = ran if self._parks else set()
            # All of them begin to wait at the same time: of that after which reads fail.
            self._each({export: name for export, name in group.items() if name in stuck}, group,
                       lambda export, _before: self._connectors.park(export))
            for name in stuck:
                with contextlib.suppress(exception.StorageDaemonError):
                    self._connectors.disconnect(name)

            def mend(export: str, before: str) -> None:
                # A disk that hangs is not seen while what is read of it is in the page cache: the
                # same way was taken again, and the base may be elsewhere by now.
                was_taken = self._is_new(export)
                if not self._mend_one(export, before, before in ran, failed) or was_taken:
                    lost.append(export)

            self._each({export: '' if name in stuck else name for export, name in group.items()},
                       group, mend)
            if lost:
                # Others of the place do not wait for what is asked.
                threads.daemon_thread(functools.partial(self._lost, lost), 'bootcache-lost')
        except Exception:
            LOG.exception('bootcache: unexpected error')

    def _each(self, names: Mapping[str, str], group: Mapping[str, str],
              change: Callable[[str, str], None]) -> None:
        """Change those bases that are read as they were, and that nobody else changes just now.

        In any order: it may be one alone that fails, as one whose file is damaged.
        """
        for export in random.sample(list(names), len(names)):
            lock = self._locks.of(export)
            # Whoever has it finds a way, or does not: the next look tells.
            if self._stopped.is_set() or not lock.acquire(0):
                continue
            try:
                if self._connectors.name_of(export) == names[export]:
                    change(export, group[export])
            except exception.BootcacheError as error:
                LOG.warning('%s', error)
            except Exception:
                LOG.exception('bootcache: unexpected error')
            finally:
                lock.release()

    def _mend_one(self, export: str, before: str, ran: bool,
                  failed: dict[str, exception.BootcacheError]) -> bool:
        """Return False if no way of a base goes; its link leads nowhere then, if that is to be.

        :param ran: whether the connector did, by which it was read.
        """
        try:
            self._take(export, before, failed)
            if ran:
                self._exchanged_at[export] = self._clock()
            return True
        except exception.BootcacheError as error:
            # Of one that cannot be read since earlier it has been said.
            LOG.log(logging.WARNING if before else logging.DEBUG, '%s cannot be read now: %s',
                    export, error)
            if self._connectors.name_of(export) and (
                    self._parks or self.is_bad(export, before.rpartition('-')[0])):
                self._let_wait(export, before)
            # As after a kill of who had it opened while it was away.
            self._connectors.park_absent(export)
            return False
