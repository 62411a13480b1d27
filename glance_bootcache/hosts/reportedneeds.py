"""Which images' bases compute hosts need, as they report it: remembered over a restart.

A gateway that has lost its connection comes back by itself, maybe after minutes, and must find what
it read from. So what a host said last counts until it says something else, Nova has no such compute
service any more, or an operator says that the host is gone: a cell may be down for days, of which
Nova lists no servers then.
"""

import dataclasses
import enum
import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any

import sqlalchemy as sa
from oslo_log import log as logging

from bootcache.exception import RequestRefused
from bootcache.rpc.report import HostReport
from glance_bootcache.db.engine import Database, delete, upsert
from glance_bootcache.db.models import HostImageRow, HostRow
from glance_bootcache.db.writer import RowChanges
from glance_bootcache.hosts.holdings import MOST_HOSTS

LOG = logging.getLogger(__name__)

# No host has this name: it stands for those of which too many have reported.
_OTHERS = '(other hosts)'
# Of all hosts. So many servers' images are not needed at a time.
_MOST_NAMED = 1_000_000
_FORGET_SECONDS = 86400
_SILENT_SECONDS = 300
# Of a query.
_MOST_NAMES = 500
# Rows of a transaction, beside those of its last host: they take SQLite a second, in which no other
# writes.
_MOST_WRITTEN = 15_000


class Needs(enum.Enum):
    """What a host has told of its needs."""

    NAMED = 'named'
    # Its report cannot be read: it may need any image.
    UNREADABLE = 'unreadable'
    # It named more than are remembered: it may need any image, and each that it named is kept.
    TOO_MANY = 'too_many'


@dataclasses.dataclass(frozen=True)
class _Row:
    """A host's row, and those of its images.

    :ivar images: ids, of ``NAMED`` ones.
    """

    needs: Needs
    images: frozenset[str] = frozenset()


_NONE = _Row(Needs.NAMED)


@dataclasses.dataclass
class _Host:
    """A host, as it was heard of last.

    :ivar seen: monotonic seconds.
    """

    seen: float
    row: _Row


class ReportedNeeds:
    """What all hosts need that have reported; read once, and kept in memory, by host and by image.

    :param clock: monotonic seconds.
    :raises DatabaseAway: if it cannot be read.
    """

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._lock = threading.Lock()  # guards what is below
        self._hosts: dict[str, _Host] = {}
        self._by_image: dict[str, set[str]] = {}
        # Hosts that may need any image.
        self._need_any: set[str] = set()
        # How many images hosts name.
        self._named = 0
        # Rows as they are in the database. One that was to be written and maybe was is left out.
        self._rows = database.read(_read)
        # Whether other storage nodes write rows, too: what the database has is not known then.
        self._are_several = False
        # Hosts of which the rows are others, the one that waits for longest first.
        self._changed: dict[str, None] = {}
        for name, row in self._rows.items():
            self._hosts[name] = _Host(clock(), _NONE)
            self._set_row(name, row)
        self._changed.clear()

    def note(self, name: str, report: HostReport | None, is_told: bool = False) -> None:
        """Note what a host reports.

        :param report: None if nothing has changed since its last one.
        :param is_told: it was told by the storage node that has heard it, and writes it.
        """
        now = self._clock()
        with self._lock:
            known = self._hosts.get(name)
            if known is not None:
                known.seen = now
            if report is None:
                return
            if known is None:
                if len(self._hosts) >= MOST_HOSTS:
                    self._make_room(now)
                self._hosts[name] = _Host(now, _NONE)
                self._changed[name] = None
            self._set_row(name, _Row(Needs.UNREADABLE) if report.needs is None
                          else _Row(Needs.NAMED, report.needs))
            if is_told:
                self._are_several = True
                self._changed.pop(name, None)
            self._bound()

    def _set_row(self, name: str, row: _Row) -> None:
        """Change what a host needs; under the lock."""
        host = self._hosts[name]
        was, host.row = host.row, row
        if was == row:
            return
        self._changed[name] = None
        for image_id in was.images - row.images:
            hosts = self._by_image[image_id]
            hosts.discard(name)
            if not hosts:
                del self._by_image[image_id]
        for image_id in row.images - was.images:
            self._by_image.setdefault(image_id, set()).add(name)
        self._named += len(row.images) - len(was.images)
        (self._need_any.discard if row.needs is Needs.NAMED else self._need_any.add)(name)

    def _forget(self, name: str) -> None:
        """Forget a host; under the lock."""
        self._set_row(name, _NONE)
        self._changed[name] = None
        del self._hosts[name]

    def _make_room(self, now: float) -> None:
        """Forget a host that is silent for longest: for a day what it needs may be anything.

        Its servers may read, and somebody may have made up the names that take its place.
        """
        oldest = min(self._hosts.keys() - {_OTHERS}, key=lambda name: self._hosts[name].seen)
        host = self._hosts[oldest]
        is_kept = _has_to_be_kept(host.row)
        self._forget(oldest)
        if is_kept or host.seen >= now - _FORGET_SECONDS:
            self._hosts.setdefault(_OTHERS, _Host(now, _NONE)).seen = now
            self._set_row(_OTHERS, _Row(Needs.TOO_MANY))

    def _bound(self) -> None:
        """Of the hosts that name the most remember that they need any; under the lock."""
        while self._named > _MOST_NAMED:
            most = max(self._hosts, key=lambda name: len(self._hosts[name].row.images))
            LOG.warning('host %s says that its servers need %d images, and all hosts name more than'
                        ' %d: it counts as one that needs any', most,
                        len(self._hosts[most].row.images), _MOST_NAMED)
            self._set_row(most, _Row(Needs.TOO_MANY))

    def count(self) -> int:
        """Return how many hosts are known."""
        return len(self._hosts)

    def needed(self, image_id: str) -> bool:
        """Return whether a host needs an image's base, or may do so.

        What a host has named it needs until it says otherwise: the message bus may be away for
        days. One that has named nothing may be made up.
        """
        if self.hosts(image_id):
            return True
        oldest = self._clock() - _FORGET_SECONDS
        with self._lock:
            return any(self._hosts[name].seen >= oldest for name in self._need_any)

    def of(self, name: str, image_ids: Collection[str]) -> tuple[str, ...]:
        """Return those of some images whose bases a host has named."""
        with self._lock:
            host = self._hosts.get(name)
            return () if host is None else tuple(sorted(host.row.images.intersection(image_ids)))

    def hosts(self, image_id: str) -> list[str]:
        """Return the hosts that said so last, by name, and those that name too many to remember.

        Those that tell nothing that can be read are ``needed`` alone, as that can be taken back.
        """
        oldest = self._clock() - _FORGET_SECONDS
        with self._lock:
            named = self._by_image.get(image_id, set())
            return sorted(named | {
                name for name in self._need_any if self._hosts[name].row.needs is Needs.TOO_MANY
                and (name != _OTHERS or self._hosts[name].seen >= oldest)})

    def forget_silent(self) -> None:
        """Forget hosts that were silent for a day, and need nothing that has to be kept."""
        oldest = self._clock() - _FORGET_SECONDS
        with self._lock:
            for name in [name for name, host in self._hosts.items() if host.seen < oldest
                         and (name == _OTHERS or not _has_to_be_kept(host.row))]:
                self._forget(name)

    def forget(self, name: str) -> bool:
        """Forget a host that an operator says is gone for good.

        :returns: False if nothing is known of it.
        :raises RequestRefused: if it may report still.
        """
        with self._lock:
            host = self._hosts.get(name)
            if host is None:
                return False
            if self._clock() - host.seen < _SILENT_SECONDS:
                raise RequestRefused(
                    f'host {name} has reported, or the storage service was started, within'
                    f' {_SILENT_SECONDS} s; stop its nova-compute, and ask again after that time')
            self._forget(name)
        LOG.info('host %s is forgotten: what its servers needed is kept for it no more', name)
        return True

    def forget_gone(self, services: Collection[str]) -> None:
        """Forget hosts that were silent for a day, and of which Nova has no compute service.

        :param services: hosts of all that it has. Where none is of a host that is known here, it
            may be another Nova's, and counts for nothing.
        """
        oldest = self._clock() - _FORGET_SECONDS
        with self._lock:
            gone = [name for name, host in self._hosts.items()
                    if host.seen < oldest and name not in services and name != _OTHERS] \
                if not self._hosts.keys().isdisjoint(services) else []
            for name in gone:
                self._forget(name)
        for name in gone:
            LOG.info('host %s is forgotten: it was silent for a day, and Nova has no compute'
                     ' service there', name)

    def changes(self, at_once: bool) -> RowChanges | None:
        """Return what the writer has to write.

        :param at_once: all of it, however long orders and snapshots wait for it.
        """
        with self._lock:
            if not self._changed:
                return None
            rows: dict[str, _Row | None] = {}
            # Until it is known to be written each of them may be either.
            were: dict[str, _Row | None] = {}
            count = 0
            for name in self._changed:
                if count >= _MOST_WRITTEN and not at_once:
                    break
                rows[name] = row = self._hosts[name].row if name in self._hosts else None
                was = self._rows.pop(name, None)
                were[name] = was = None if self._are_several else was
                count += 1 + len((row or _NONE).images ^ (was or _NONE).images)

        def written() -> None:
            with self._lock:
                for name, row in rows.items():
                    if row is not None:
                        self._rows[name] = row
                    if row == (self._hosts[name].row if name in self._hosts else None):
                        self._changed.pop(name, None)

        return RowChanges(lambda connection: _write(connection, rows, were), written)


def _has_to_be_kept(row: _Row) -> bool:
    return bool(row.images) or row.needs is Needs.TOO_MANY


def _read(connection: sa.Connection) -> dict[str, _Row]:
    images: dict[int, set[str]] = {}
    for host_id, image_id in connection.execute(sa.select(HostImageRow.host_id,
                                                          HostImageRow.image_id)):
        images.setdefault(host_id, set()).add(image_id)
    return {name: _Row(Needs(needs), frozenset(images.get(host_id, ())))
            for host_id, name, needs in connection.execute(
                sa.select(HostRow.id, HostRow.name, HostRow.needs))}


def _write(connection: sa.Connection, rows: dict[str, _Row | None],
           were: dict[str, _Row | None]) -> None:
    """Write what some hosts need: the difference, and all of it where that is not known.

    :param rows: by host; None for one that is forgotten.
    :param were: what the database has; None if that is not known, or nothing.
    """
    delete(connection, HostRow, [{'name': name} for name, row in rows.items() if row is None])
    here = {name: row for name, row in rows.items() if row is not None}
    upsert(connection, HostRow, [{'name': name, 'needs': row.needs.value}
                                 for name, row in here.items()], by=['name'])
    ids: dict[str, int] = {}
    names = list(here)
    for begin in range(0, len(names), _MOST_NAMES):
        ids.update((name, host_id) for host_id, name in connection.execute(
            sa.select(HostRow.id, HostRow.name).where(
                HostRow.name.in_(names[begin:begin + _MOST_NAMES]))))
    delete(connection, HostImageRow, [{'host_id': ids[name]} for name in names
                                      if were[name] is None])
    gone, come = [], []
    for name, row in here.items():
        was = (were[name] or _NONE).images
        gone += _pairs(ids[name], was - row.images)
        come += _pairs(ids[name], row.images - was)
    delete(connection, HostImageRow, gone)
    upsert(connection, HostImageRow, come)


def _pairs(host_id: int, image_ids: Iterable[str]) -> list[dict[str, Any]]:
    return [{'host_id': host_id, 'image_id': image_id} for image_id in image_ids]
