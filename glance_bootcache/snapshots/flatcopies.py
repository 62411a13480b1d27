"""Copies in Ceph that stand on nothing, of snapshots that too many others are below.

A snapshot of a server whose image is such a one is made of its copy: so chains end, and all servers
of that image share one copy. The image itself is left as it is: clients of Ceph that have it open
below another would not learn that its parent is gone, and read what is none of its any more.

A copy is named by RBD's own ids of what it is a copy of, and there is no other record of it: it is
needed as long as the storage service has a clone of that image, as its base.
"""

import dataclasses
import subprocess
import tempfile
from collections.abc import Collection
from typing import IO

from oslo_log import log as logging

from bootcache.ceph import snapshotcommands
from bootcache.ceph.places import SNAPSHOT, RbdClone, RbdOrigin, RbdSnapshot
from bootcache.ceph.rbd import RbdAbsent, RbdInUse
from bootcache.ceph.snapshotcommands import SnapshotCommands
from bootcache.util.backoff import Backoff

LOG = logging.getLogger(__name__)

_FLAT, _BEGUN = 'flat-', 'flattening-'
_ROUND_SECONDS = 60
_PAUSE_SECONDS = 600
# Bases that are looked at in a round; each takes some commands, once.
_LOOKS = 32
_SAID_BYTES = 500


@dataclasses.dataclass(frozen=True)
class _Flattening:
    """A command of Ceph's that fills a copy."""

    key: str
    process: subprocess.Popen[bytes]
    said: IO[bytes]


class FlatCopies:
    """The copies in a pool, and the one that is being made.

    :param rbd: Ceph's commands.
    :param pool: of snapshots and copies.
    :param bases: pool and namespace of the storage service's clones.
    :param depth: so many may be below a snapshot of which another one is made.
    """

    def __init__(self, rbd: SnapshotCommands, pool: str, bases: tuple[str, str], depth: int):
        self._rbd = rbd
        self._pool = pool
        self._bases = bases
        self._depth = depth
        self._running: _Flattening | None = None
        self._rounds = Backoff(_ROUND_SECONDS)
        # When a copy is tried again that could not be made, by its key.
        self._tries = Backoff(_PAUSE_SECONDS)
        # Of bases, by their clones' names: nothing gets below an image later.
        self._known: dict[str, RbdOrigin | None] = {}

    def parent(self, origin: RbdOrigin) -> RbdSnapshot:
        """Return of what a snapshot is made: a base's own snapshot, or the one of its copy.

        The copy need not be there.
        """
        return origin.parent if self._rbd.depth(origin, self._depth) < self._depth else \
            RbdSnapshot(self._pool, _FLAT + _key(origin), SNAPSHOT)

    def is_due(self) -> bool:
        """Tell whether there may be something to be done."""
        return self._rounds.is_due() or self._has_ended()

    def _has_ended(self) -> bool:
        return self._running is not None and self._running.process.poll() is not None

    def go_on(self) -> None:
        """Remove copies that are not needed any more, and make one that is, in the background.

        What this process has begun may outlive it: it comes to its end by itself.

        The errors are those of ``Rbd.clone``.
        """
        self._rounds.postpone()
        ended = self._has_ended()
        there = {clone.name for clone in self._rbd.clones(self._pool, '')}
        wanted = self._wanted(there)
        if wanted is None:
            # Not all bases were looked at.
            self._rounds.forget()
            return
        failed = {}
        if self._running is not None and (ended or self._running.key not in wanted):
            failed = {self._running.key: self._end()}
        self._tries.keep_only(wanted)
        for name in there:
            kind = next((kind for kind in (_FLAT, _BEGUN) if name.startswith(kind)), '')
            if kind and name.removeprefix(kind) not in wanted:
                self._remove(name)
        for key, origin in wanted.items():
            if self._running is None and _FLAT + key not in there:
                self._make(key, origin, there, failed.get(key, ''))

    def _wanted(self, there: Collection[str]) -> dict[str, RbdOrigin] | None:
        """Return what there is to be a copy of; None if not all bases were looked at."""
        # Of what Glance has deleted no snapshot is made.
        bases = {clone.name: clone for clone in self._rbd.clones(*self._bases)
                 if clone.image_id in there}
        self._known = {name: origin for name, origin in self._known.items() if name in bases}
        new = [name for name in bases if name not in self._known]
        for name in new[:_LOOKS]:
            try:
                origin = self._rbd.origin(bases[name])
            except RbdAbsent:
                continue
            is_deep = origin is not None and origin.pool == self._pool \
                and origin.snapshot_id and self._rbd.depth(origin, self._depth) >= self._depth
            self._known[name] = origin if is_deep else None
        if len(new) > _LOOKS:
            return None
        return {_key(origin): origin for origin in self._known.values() if origin is not None}

    def _make(self, key: str, origin: RbdOrigin, there: Collection[str], failure: str) -> None:
        """Begin a copy, go on with one, or name one that is complete.

        :param failure: of the command that filled it last. The copy may be complete all the same:
            a command of a process that was killed fills it as well, and the later one to end fails.
        """
        begun, flat = (RbdClone(self._pool, '', kind + key) for kind in (_BEGUN, _FLAT))
        if begun.name not in there:
            if not self._tries.is_due(key):
                return
            try:
                self._rbd.clone_into(origin.parent, begun, snapshotcommands.LARGE)
            except RbdAbsent:
                return
        found = self._rbd.origin(begun)
        if found is None:
            self._rbd.freeze(begun)
            self._rbd.rename(begun, flat)
            LOG.info('%s is a copy of %s, on which snapshots stand from now on', flat.path,
                     origin.parent)
            return
        if (found.id, found.snapshot_id) != (origin.id, origin.snapshot_id):
            # Another image has that name by now.
            self._rbd.remove(begun)
            return
        if failure:
            LOG.warning('a copy of a snapshot cannot be made; the next try is in %d s, and'
                        ' snapshots that would stand on it go stock Nova\'s way until then:'
                        ' rbd flatten %s/%s %s', self._tries.postpone(key), self._pool,
                        begun.name, failure)
        if not self._tries.is_due(key):
            return
        LOG.info('%s has %d others below it: a copy of it is made that stands on none',
                 origin.parent, self._depth)
        said = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self._running = _Flattening(key, self._rbd.flattening(begun, said), said)
        except BaseException:
            said.close()
            raise

    def _end(self) -> str:
        """Take notice of a command that has ended, or end it; return how it has failed."""
        running, self._running = self._running, None
        assert running is not None
        with running.said as said:
            status = running.process.poll()
            if status is None:
                running.process.kill()
                running.process.wait()
            if not status:
                return ''
            said.seek(0)
            detail = said.read()[-_SAID_BYTES:].decode(errors='replace').strip()
            return f'(exit {status}): {detail}'

    def _remove(self, name: str) -> None:
        clone = RbdClone(self._pool, '', name)
        try:
            self._rbd.thaw(clone)
            # With snapshots that stand on it it stays there until the last of them goes.
            self._rbd.trash(clone)
        except (RbdAbsent, RbdInUse) as error:
            LOG.debug('%s is removed later: %s', clone.path, error)
        else:
            LOG.info('%s is not needed any more, and goes with what stands on it', clone.path)


def _key(origin: RbdOrigin) -> str:
    return f'{origin.id}-{origin.snapshot_id}'
