"""How each base of this host is read: in Ceph where this host may, else from the storage node.

The gateway's node of a base never changes; the link that it connects by does (watch.py of
bootcache/connectors).
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from oslo_log import log as logging

from bootcache import exception, naming
from bootcache.connectors.connectors import Connectors
from bootcache.connectors.watch import BaseWatch
from bootcache.connectors.ways import Way, absent_way, nbd_way
from bootcache.locks import KeyedLocks
from bootcache.rpc.report import BaseRead
from bootcache.util.backoff import Backoff
from nova_bootcache.gateway.hostclones import HostClones
from nova_bootcache.locks import Rank
from nova_bootcache.storagenode import Encryption, Remote

LOG = logging.getLogger(__name__)

# Between tries of a better way of a base that is read, and questions where one is that cannot be.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 10, 600
# Of which is asked after each other.
_MOST_FOUND = 8
# The place of bases that are read there.
_IN_CEPH = 'Ceph'
_TOLD = (exception.ConfigurationError, exception.BaseUnreadable)


def away(remote: Remote, error: object) -> exception.StorageNodeAway:
    """Return the error of a base that cannot be read."""
    return exception.StorageNodeAway(
        f'gateway: {remote.export}: the exporter at'
        f' {naming.tcp_address(remote.host, remote.port)} cannot be reached: {error}')


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
        self._backoff = Backoff(_SHORTEST_PAUSE, _LONGEST_PAUSE, clock)
        # What is read by others than the gateway's exports, by reader. Each step is atomic.
        self._held: dict[str, Remote] = {}
        # Where bases are, by name. The gateway is not asked: it may wait for one. Likewise.
        self._remotes: dict[str, Remote] = {}
        self._watch = BaseWatch(connectors, self._ways, self._places, KeyedLocks(
            Rank.CONNECTION, 'the lock of the connection to'), True, self._look_for, clock)
        # Asks where an image's base is now, and notes it; whoever makes this one sets it.
        self.find: Callable[[str], None] = lambda _image_id: None
        # What the storage service says of bases that cannot be read, by name. Each step is atomic.
        self._not_found: dict[str, str] = {}
        # Whether this host has had clones in Ceph, since this process runs.
        self._has_clones = clones.is_on

    def socket(self, export: str) -> str:
        """Return the path by which a base is read."""
        return self._connectors.socket(export)

    def is_read(self, export: str) -> bool:
        """Tell whether a base can be read, as far as the watch knows."""
        return self._watch.is_read(export)

    def has_link(self, export: str) -> bool:
        """Tell whether the watch looks for a way to a base."""
        return self._connectors.has_link(export)

    def check(self, export: str) -> None:
        """Check that a base can be read now: see ``BaseWatch``.

        Nothing is known of one that a gateway reads which was started before there were connectors.
        """
        if self.has_link(export):
            self._watch.check(export)

    def _ways(self, export: str, quickly: bool) -> Iterator[Way]:
        if (remote := self._all().get(export)) is None:
            raise exception.StorageNodeAway(f'{export} is needed by nobody any more')
        is_open = self.is_in_ceph(export) \
            and self._connectors.runs(self._connectors.name_of(export))
        # Why it is not read in Ceph is logged.
        if not self._watch.is_bad(export, self._clones.origin) and (
                way := self._clones.way(remote, makes=not (quickly or is_open))) is not None:
            yield way
        yield nbd_way(remote.host, remote.port, remote.export,
                      self._encryption.credentials(remote.tls))

    def _places(self) -> dict[str, str]:
        return {export: _IN_CEPH if self.is_in_ceph(export)
                else naming.tcp_address(remote.host, remote.port)
                for export, remote in self._linked().items()}

    def _linked(self) -> dict[str, Remote]:
        # Of those that nobody reads there may be no link.
        return {export: remote for export, remote in self._all().items()
                if self.has_link(export)}

    def _all(self) -> dict[str, Remote]:
        # Who holds one may have known it for long, and where it was.
        return {**{remote.export: remote for remote in list(self._held.values())}, **self._remotes}

    def check_changes(self, seconds: float) -> None:
        """Check that nodes above bases may be changed: see ``BaseWatch``."""
        self._watch.check_changes(seconds)

    # One base.

    def know(self, remote: Remote) -> None:
        """Note where a base is now; what can be read goes on to be read for some seconds."""
        self._remotes[remote.export] = remote

    def connect(self, remote: Remote) -> None:
        """Have a base be read from where it is; nothing happens if it is read.

        :raises StorageNodeAway: if it cannot be reached.
        :raises BaseUnreadable: if the storage node does not serve it.
        :raises ConfigurationError: if this host does not speak with its storage node.
        """
        self.know(remote)
        # Upkeep forgets what the gateway does not serve yet.
        holder = f'connect-{threading.get_ident()}'
        self._held[holder] = remote
        try:
            self._watch.connect(remote.export)
        except _TOLD:
            raise
        except exception.BootcacheError as error:
            raise away(remote, error) from error
        finally:
            self.let_go(holder)

    def failure(self, remote: Remote) -> exception.BootcacheError | None:
        """Return why a base cannot be read, as far as the watch knows; None if it can, or nobody
        has had it be read: as ``connect`` raises it.
        """
        error = self._watch.failure(remote.export)
        if error is None:
            return None
        told = '; '.join(filter(None, (str(error), self._not_found.get(remote.export))))
        return type(error)(told) if isinstance(error, _TOLD) else away(remote, told)

    def _look_for(self, exports: list[str]) -> None:
        for export in exports[:_MOST_FOUND]:
            if (remote := self._all().get(export)) is not None and self._backoff.acquire(export):
                self._find(remote)

    def _find(self, remote: Remote) -> None:
        try:
            self.find(remote.image_id)
            self._not_found.pop(remote.export, None)
        except Exception as error:
            self._not_found[remote.export] = str(error)

    def may_read_in_ceph(self, remote: Remote) -> bool:
        """Tell whether this host reads a base in Ceph where that goes."""
        return self._clones.is_on and remote.rbd is not None \
            and not self._watch.is_bad(remote.export, self._clones.origin)

    def is_in_ceph(self, export: str) -> bool:
        """Tell whether a base is read in Ceph."""
        return self._connectors.name_of(export).startswith(f'{self._clones.origin}-')

    @contextlib.contextmanager
    def absent(self, remote: Remote, virtual_bytes: int, is_served: Callable[[], bool]
               ) -> Iterator[None]:
        """Have the gateway open a base that cannot be read now: it learns its size.

        Nobody else changes the way to it meanwhile; afterwards it is read by no way until the watch
        finds one. Nothing of that happens if it can be read by now.

        :param is_served: tells whether somebody else has had it opened by now.
        :raises StorageDaemonError: if no connector can be started.
        """
        export = remote.export
        with self._watch.alone(export):
            self._remotes.setdefault(export, remote)
            if is_served() or self._connectors.name_of(export):
                yield
                return
            self._connectors.connect(export, absent_way(export, virtual_bytes))
            try:
                yield
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

    # All of them.

    def list_bases(self) -> list[BaseRead]:
        """Return how each base is read that is needed, as far as the watch knows."""
        found = []
        for export, remote in self._linked().items():
            name = self._connectors.name_of(export)
            way = self._clones.clone(remote, remote.rbd).path \
                if self.is_in_ceph(export) and remote.rbd is not None \
                else naming.tcp_address(remote.host, remote.port)
            found.append(BaseRead(remote.image_id, way if name else '', name,
                                    self._connectors.since(export), self._watch.answered(export)))
        return found

    def reconcile(self, remotes: Mapping[str, Remote]) -> None:
        """Have those bases be read that the gateway serves, each by its best way, and no others.

        :param remotes: where they are, by the names of their exports.
        """
        # Of what was connected just now the gateway may not have told yet.
        self._remotes = {**{export: remote for export, remote in self._remotes.items()
                            if self._connectors.is_fresh(export)}, **remotes}
        wanted = self._all()
        self._has_clones = self._has_clones or any(map(self.is_in_ceph, wanted))
        for export, remote in wanted.items():
            # Of one that cannot be read the watch looks for a way.
            if self.is_read(export) and self._backoff.is_due(export):
                self._prefer(remote)
        for export in set(self._not_found) - set(wanted):
            self._not_found.pop(export, None)
        self._connectors.keep(wanted)
        if self._has_clones:
            # As long as it may be read there: a full base may be copied from it.
            self._clones.sweep(remote for export, remote in wanted.items()
                               if self._clones.is_on or self.is_in_ceph(export))

    def _prefer(self, remote: Remote) -> None:
        """Its storage node may have another address by now, or this host other certificates."""
        try:
            self._watch.prefer(remote.export)
            if self.may_read_in_ceph(remote) and not self.is_in_ceph(remote.export):
                self._backoff.postpone(remote.export)
            else:
                self._backoff.forget(remote.export)
        except exception.BootcacheError as error:
            pause = self._backoff.postpone(remote.export)
            LOG.warning('%s is not read by its best way, for %.0f s: %s', remote.export, pause,
                        error)
            self._find(remote)

    def start(self, remotes: Iterable[Remote]) -> None:
        """Watch them from now on.

        :param remotes: those that an earlier process may have had be read.
        """
        self._remotes.update((remote.export, remote) for remote in remotes)
        self._watch.start()

    def stop(self) -> None:
        """Watch them no more; they go on to be read."""
        self._watch.stop()
