"""By which way each base of this host is read, and the watch over all of them.

A base is read through a connector (bootcache/connectors): from Ceph where this host may read it
there, else from the storage node. The gateway's node of a base never changes; the link that it
connects by does.
"""

import concurrent.futures
import contextlib
import dataclasses
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping

from oslo_log import log as logging

from bootcache import bus, exception, green, naming
from bootcache.breaker import GrowingPauses
from bootcache.connectors import probe
from bootcache.connectors.connectors import Connectors
from bootcache.connectors.probe import Answer
from bootcache.connectors.ways import Way, absent_way, nbd_way
from bootcache.locks import KeyedLocks
from nova_bootcache.gateway.hostclones import HostClones
from nova_bootcache.locks import Rank
from nova_bootcache.storagenode import Encryption, Remote

LOG = logging.getLogger(__name__)

# Guests give a request up after 30 s: a read is missed after 3 and 4 s, two ways are tried for 4 s
# each, and the gateway's reads fail after its reconnect_delay, 10 s at most.
_PERIOD_SECONDS, _ANSWER_SECONDS = 3.0, 4.0
# Between tries of a base that cannot be read.
_AGAIN_SECONDS = 1.0
# A link is exchanged no sooner again: a storage node that is slow would never end a read.
_SETTLED_SECONDS = 60.0
_MOST_AT_ONCE = 16
# For which nothing of a base is read in Ceph that has given errors.
_BAD_SECONDS = 600.0
# A name that no connector has.
_ANY = '-'
# Between tries of a better way of a base that is read.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 30, 600
_BUSY_SECONDS = 30


@dataclasses.dataclass(frozen=True)
class BaseStatus:
    """How a base is read.

    :ivar image_id: whose base it is.
    :ivar way: address of the storage node, or the clone in Ceph; empty if no way can be used.
    :ivar connector: name of the connector; empty likewise.
    :ivar since: since when, in seconds since the epoch.
    :ivar answered: when the watch was last answered, in seconds since the epoch, 0 if never since
        this process has started; None while each of its reads is answered.
    """

    image_id: str
    way: str
    connector: str
    since: float
    answered: float | None


class BaseConnections:
    """Owns them.

    :param connectors: of this host.
    :param encryption: how it connects to storage nodes.
    :param clones: of this host in Ceph.
    :param clock: gives monotonic seconds.
    """

    def __init__(self, connectors: Connectors, encryption: Encryption, clones: HostClones,
                 clock: Callable[[], float] = time.monotonic):
        self._connectors = connectors
        self._encryption = encryption
        self._clones = clones
        self._clock = clock
        # Make looking at a base's link, opening another way, and exchanging it one step.
        self._locks = KeyedLocks(Rank.CONNECTION, 'the lock of the connection to')
        self._pauses = GrowingPauses(_SHORTEST_PAUSE, _LONGEST_PAUSE, clock)
        # What is read by others than the gateway's exports, by reader. Each step is atomic.
        self._held: dict[str, Remote] = {}
        # Those that the gateway serves, by name: replaced by ``reconcile``, which asks it. This one
        # never does: it may wait for a base.
        self._remotes: dict[str, Remote] = {}
        self._stopped = threading.Event()
        self._watching: threading.Thread | None = None
        # Whether this host has had clones in Ceph, since this process runs.
        self._has_clones = clones.is_on
        # When a link was exchanged by the watch, in monotonic seconds; those that are tried now.
        # Likewise.
        self._exchanged_at: dict[str, float] = {}
        # Until when those are not read in Ceph of which that has given errors. Likewise.
        self._bad_until: dict[str, float] = {}
        self._tried: set[str] = set()
        self._trying: set[concurrent.futures.Future[None]] = set()
        # The text of the way by which each was found to be read last. Each step is atomic.
        self._ways: dict[str, str] = {}
        # When the watch was answered last, in seconds since the epoch, and which bases were not
        # answered at its last look; both are replaced as a whole.
        self._answered_at: dict[str, float] = {}
        self._unanswered: frozenset[str] = frozenset()

    def socket(self, export: str) -> str:
        """Return the path by which a base is read."""
        return self._connectors.socket(export)

    def is_read(self, export: str) -> bool:
        """Tell whether a base can be read, as far as the watch knows."""
        return bool(self._connectors.name_of(export))

    def all_answer(self, seconds: float) -> bool:
        """Tell whether no read of a base waits, as far as the watch knows.

        :param seconds: after which reads have failed of a base that can be read by no way, from its
            last answer on.
        """
        answered_at, begun = self._answered_at, time.time() - seconds
        return not any(self.is_read(export) or answered_at.get(export, 0.0) > begun
                       for export in self._unanswered)

    # One base.

    def connect(self, remote: Remote) -> None:
        """Have a base be read from where it is; nothing happens if it can be read there.

        :raises StorageNodeAway: if it cannot be reached.
        :raises ConfigurationError: if this host does not speak with its storage node.
        """
        export = remote.export
        with self._alone(export):
            before = self._connectors.name_of(export)
            self._connect(remote, before)
            # The watch has not seen it yet, or does not look at what nobody reads.
            if before and before == self._connectors.name_of(export) and self._read(
                    {export: self.socket(export)}, _ANSWER_SECONDS)[export] is not Answer.READ:
                self._exchange(remote, before, {})
        self._remotes[export] = remote

    def _connect(self, remote: Remote, now: str = '', beside: str = '',
                 failed: dict[str, exception.BootcacheError] | None = None,
                 only_tries: bool = False) -> None:
        """Take the first way that goes.

        :param now: the connector's name by which it is read; one of such a way stays.
        :param beside: as for ``Connectors.connect``; then nothing is made in Ceph, as that waits.
        :param failed: what has failed, by origin: it is not tried; what fails is entered.
        :param only_tries: as for ``Connectors.connect``.
        """
        failed = {} if failed is None else failed
        last: exception.BootcacheError | None = None
        if self.is_in_ceph(now) and remote.rbd is not None and self.may_read_in_ceph(remote):
            self._ways[remote.export] = self._clones.clone(remote, remote.rbd).path
            return
        for find in (self._way_in_ceph, self._way_to_node):
            way: Way | None = None
            try:
                way = find(remote, not beside)
                if way is None:
                    continue
                if way.origin in failed:
                    raise failed[way.origin]
                if not self._connectors.is_by(now, way):
                    self._connectors.connect(remote.export, way, beside, only_tries)
                if not only_tries:
                    self._ways[remote.export] = way.text
                return
            except exception.BootcacheError as error:
                last = error
                if way is not None and 'is not served now' not in str(error):
                    failed[way.origin] = error
        assert last is not None
        if isinstance(last, exception.ConfigurationError) or 'is not served now' in str(last):
            raise last
        raise exception.StorageNodeAway(
            f'gateway: {remote.export}: the exporter at'
            f' {naming.tcp_address(remote.host, remote.port)} cannot be reached: {last}') from last

    def _exchange(self, remote: Remote, before: str, failed: dict[str, exception.BootcacheError],
                  only_tries: bool = False) -> None:
        """Have a base that cannot be read be read by another connector; by none if that fails.

        :param before: the name of the one by which it was read.
        :param failed: as for ``_connect``, and the next one.
        """
        try:
            # One that was killed is started again; else another one is.
            self._connect(remote, beside=before if self._connectors.runs(before) else _ANY,
                          failed=failed, only_tries=only_tries)
        except exception.BootcacheError:
            if before:
                self._connectors.park(remote.export)
            raise

    def is_in_ceph(self, name: str) -> bool:
        """Tell whether a connector is one of Ceph's, and runs."""
        return name.startswith(self._clones.origin) and self._connectors.runs(name)

    def may_read_in_ceph(self, remote: Remote) -> bool:
        """Tell whether this host reads a base in Ceph where that goes."""
        return self._clones.is_on and remote.rbd is not None and not self._is_bad(remote.export)

    def _is_bad(self, export: str) -> bool:
        return self._clock() < self._bad_until.get(export, -float('inf'))

    def _way_in_ceph(self, remote: Remote, makes: bool) -> Way | None:
        # Why there is none is logged.
        return None if self._is_bad(remote.export) else self._clones.way(remote, makes)

    def _way_to_node(self, remote: Remote, _makes: bool) -> Way:
        return nbd_way(remote.host, remote.port, remote.export,
                       self._encryption.credentials(remote.tls))

    def renew(self, remote: Remote) -> None:
        """Have a base that can be read be read from where it is now; else it goes on as it is.

        Its storage node may have another address by now, or this host other certificates.
        """
        if not self._pauses.is_time(remote.export):
            return
        try:
            with self._alone(remote.export):
                self._connect(remote, self._connectors.name_of(remote.export))
            self._remotes[remote.export] = remote
            if self.may_read_in_ceph(remote) \
                    and not self.is_in_ceph(self._connectors.name_of(remote.export)):
                self._pauses.postpone(remote.export)
            else:
                self._pauses.forget(remote.export)
        except exception.BootcacheError as error:
            pause = self._pauses.postpone(remote.export)
            LOG.warning('%s goes on to be read as it is, for %.0f s: %s', remote.export, pause,
                        error)

    @contextlib.contextmanager
    def absent(self, export: str, virtual_bytes: int, is_served: Callable[[], bool]
               ) -> Iterator[Callable[[], None]]:
        """Have the gateway open a base that cannot be read now: it learns its size.

        Nobody else changes the way to it meanwhile.

        :param is_served: tells whether somebody else has had it opened by now: nobody who reads
            it may ever come to what has but its size.
        :returns: has it be read by no way, until the watch finds one; to be called before anybody
            reads it. Nothing happens then if it can be read by now.
        :raises StorageDaemonError: if no connector can be started.
        """
        with self._alone(export):
            if is_served() or self.is_read(export):
                yield lambda: None
                return
            self._connectors.connect(export, absent_way(export, virtual_bytes))
            try:
                yield lambda: self._connectors.park_absent(export)
            finally:
                self._connectors.park_absent(export)

    def hold(self, holder: str, remote: Remote) -> None:
        """Have something of a storage node be read, whether the gateway serves it or not.

        :param holder: who reads it.
        :raises StorageNodeAway: if it cannot be reached; nobody holds it then.
        """
        self._held[holder] = remote
        try:
            self.connect(remote)
        except BaseException:
            self.let_go(holder)
            raise

    def let_go(self, holder: str) -> None:
        """Note that somebody reads nothing more, as ``hold`` has it."""
        self._held.pop(holder, None)

    @contextlib.contextmanager
    def copied(self, remote: Remote) -> Iterator[dict[str, object] | None]:
        """Have a base be read in Ceph while it is copied, whether the gateway reads it or not.

        :returns: its block node, which does not reconnect: whoever copies goes on another way. None
            if this host cannot read it in Ceph; why is logged.
        """
        holder = f'copy-{remote.image_id}'
        node: dict[str, object] | None = None
        try:
            if self.may_read_in_ceph(remote):
                with contextlib.suppress(exception.BootcacheError):
                    self.hold(holder, remote)
                    if self.is_in_ceph(self._connectors.name_of(remote.export)):
                        node = {'driver': 'nbd', 'export': remote.export, 'server': {
                            'type': 'unix', 'path': self.socket(remote.export)}}
            yield node
        finally:
            self.let_go(holder)

    def list_bases(self) -> list[BaseStatus]:
        """Return how each base is read that is needed, as far as the watch knows."""
        unanswered, answered_at = self._unanswered, self._answered_at
        found = []
        for export, remote in self._all().items():
            name = self._connectors.name_of(export)
            found.append(BaseStatus(
                remote.image_id, self._ways.get(export, '') if name else '', name,
                self._connectors.since(export),
                answered_at.get(export, 0.0) if export in unanswered or not name else None))
        return found

    def _all(self) -> dict[str, Remote]:
        # Who holds one may have known it for long, and where it was.
        return {**{remote.export: remote for remote in list(self._held.values())}, **self._remotes}

    def check(self, export: str) -> None:
        """Check that a base can be read now: who changes nodes above it would wait for its reads.

        :raises StorageNodeAway: if there is no answer within a second.
        """
        answer = self._read({export: self.socket(export)}, 1.0)[export] \
            if self.is_read(export) else Answer.FAILED
        if answer is not Answer.READ:
            raise exception.StorageNodeAway(
                f'gateway: {export} cannot be read now: {answer.value}')

    @staticmethod
    def _read(sockets: Mapping[str, str], seconds: float) -> dict[str, Answer]:
        return green.aside(lambda: probe.read(sockets, seconds))

    @contextlib.contextmanager
    def _alone(self, export: str) -> Iterator[None]:
        lock = self._locks.of(export)
        if not lock.acquire(_BUSY_SECONDS):
            raise exception.StorageDaemonBusy(
                f'gateway: the way to {export} is being changed, for more than {_BUSY_SECONDS} s')
        try:
            yield
        finally:
            lock.release()

    # All of them.

    def reconcile(self, remotes: Mapping[str, Remote]) -> None:
        """Have those bases be read that the gateway serves, each by its best way, and no others.

        :param remotes: where they are, by the names of their exports.
        """
        self._remotes = dict(remotes)
        wanted = self._all()
        for export, remote in wanted.items():
            # Of one that cannot be read the watch looks for a way.
            if self.is_read(export):
                self.renew(remote)
        self._connectors.keep(wanted)
        for known in self._exchanged_at, self._bad_until:
            for export in set(known) - set(wanted):
                known.pop(export, None)
        in_ceph = [remote for export, remote in wanted.items()
                   if self.is_in_ceph(self._connectors.name_of(export))]
        self._has_clones = self._has_clones or bool(in_ceph)
        if self._has_clones:
            self._clones.sweep(in_ceph)

    def start(self) -> None:
        """Watch them from now on."""
        self._watching = threading.Thread(target=self._watch, name='bootcache-watch', daemon=True)
        self._watching.start()

    def stop(self) -> None:
        """Watch them no more, when what is tried has ended; they go on to be read."""
        self._stopped.set()
        if self._watching is not None:
            self._watching.join()
        concurrent.futures.wait(list(self._trying))

    def _watch(self) -> None:
        while not self._stopped.wait(_AGAIN_SECONDS if self._tried else _PERIOD_SECONDS):
            try:
                self.look(self._all())
            except Exception:
                LOG.exception('bootcache: the watch over bases: unexpected error')

    def look(self, remotes: Mapping[str, Remote]) -> None:
        """Read 4 KiB of each base; another way is looked for of one that has no answer.

        :param remotes: by the names of their exports.
        """
        for export in self._connectors.looping(self._clones.origin) & set(remotes):
            LOG.error('%s cannot be read in Ceph, and is read through the exporter', export)
            self._bad_until[export] = self._clock() + _BAD_SECONDS
            self._start(export, [(remotes[export], self._connectors.name_of(export))])
        names = {export: self._connectors.name_of(export) for export in remotes}
        answers = self._read({export: self.socket(export) for export, name in names.items()
                              if name}, _ANSWER_SECONDS)
        self._note_answers({export: answers.get(export) is Answer.READ for export in remotes})
        groups: dict[str, list[tuple[Remote, str]]] = {}
        for export, remote in remotes.items():
            if answers.get(export) is not Answer.READ:
                # What is read by one connector, or was to be, is away together as a rule.
                key = names[export] or f'{remote.host}:{remote.port}'
                groups.setdefault(key, []).append((remote, names[export]))
        for key, group in groups.items():
            self._start(key, group)

    def _note_answers(self, answered: Mapping[str, bool]) -> None:
        now = time.time()
        self._answered_at = {
            export: now if answered[export] else self._answered_at.get(export, 0.0)
            for export in answered}
        self._unanswered = frozenset(export for export, was in answered.items() if not was)
        for export in set(self._ways) - set(answered):
            if export not in self._all():
                self._ways.pop(export, None)

    def _start(self, key: str, group: list[tuple[Remote, str]]) -> None:
        if key in self._tried or len(self._tried) >= _MOST_AT_ONCE:
            return
        self._tried.add(key)
        trying = bus.begin(lambda: self._mend(key, group), 'bootcache-way')
        self._trying.add(trying)
        trying.add_done_callback(self._trying.discard)

    def _mend(self, key: str, group: list[tuple[Remote, str]]) -> None:
        """Find another way for bases that have no answer; the guests of those wait that have none.

        What has failed for one of them is not tried for the others.

        :param group: each with the connector's name by which it was read. Somebody may have found
            another way since: that stays.
        """
        failed: dict[str, exception.BootcacheError] = {}
        try:
            # In any order: it may be one base alone that fails, as one whose file is damaged.
            for remote, before in random.sample(group, len(group)):
                try:
                    with self._alone(remote.export):
                        if self._connectors.name_of(remote.export) == before:
                            self._mend_one(remote, before, failed)
                except exception.BootcacheError as error:
                    LOG.warning('%s', error)
                except Exception:
                    LOG.exception('bootcache: unexpected error')
        finally:
            self._tried.discard(key)

    def _mend_one(self, remote: Remote, before: str,
                  failed: dict[str, exception.BootcacheError]) -> None:
        export, now = remote.export, self._clock()
        runs = self._connectors.runs(before)
        is_settled = not runs or now - self._exchanged_at.get(export, -_SETTLED_SECONDS) \
            >= _SETTLED_SECONDS
        try:
            self._exchange(remote, before, failed, only_tries=not is_settled)
            if runs and is_settled:
                self._exchanged_at[export] = now
        except exception.BootcacheError as error:
            # Of one that cannot be read since earlier it has been said.
            LOG.log(logging.WARNING if before else logging.DEBUG, '%s', error)
