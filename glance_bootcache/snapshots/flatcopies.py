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
import time
from collections.abc import Collection
from typing import IO

from oslo_log import log as logging

from bootcache.ceph import snapshotcommands
from bootcache.ceph.places import RbdClone, RbdOrigin, RbdSnapshot
from bootcache.ceph.rbd import RbdAbsent, RbdInUse
from bootcache.ceph.snapshotcommands import SnapshotCommands

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
        self._round_at = self._make_at = time.monotonic()
        # Of bases, by their clones' names: nothing gets below an image later.
        self._known: dict[str, RbdOrigin | None] = {}

    def parent(self, origin: RbdOrigin) -> RbdSnapshot:
        """Return of what a snapshot is made: a base's own snapshot, or the one of its copy.

        The copy need not be there.
        """
        return origin.parent if self._rbd.depth(origin, self._depth) < self._depth else \
            RbdSnapshot(self._pool, _FLAT + _key(origin), snapshotcommands.SNAPSHOT)

    def is_due(self) -> bool:
        """Tell whether there may be something to be done."""
        return time.monotonic() >= self._round_at or self._has_ended()

    def _has_ended(self) -> bool:
        return self._running is not None and self._running.process.poll() is not None

    def go_on(self) -> None:
        """Remove copies that are not needed any more, and make one that is, in the background.

        What this process has begun may outlive it: it comes to its end by itself.

        The errors are those of ``Rbd.clone``.
        """
        self._round_at = time.monotonic() + _ROUND_SECONDS
        ended = self._has_ended()
        there = {clone.name for clone in self._rbd.clones(self._pool, '')}
        wanted = self._wanted(there)
        if ended or (self._running is not None and wanted is not None
                     and self._running.key not in wanted):
            self._end()
        if wanted is None:
            # Not all bases were looked at.
            self._round_at = time.monotonic()
            return
        for name in there:
            kind = next((kind for kind in (_FLAT, _BEGUN) if name.startswith(kind)), '')
            if kind and name.removeprefix(kind) not in wanted:
                self._remove(name)
        if self._running is None and time.monotonic() >= self._make_at:
            for key, origin in wanted.items():
                if _FLAT + key not in there and self._make(key, origin, there):
                    return

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

    def _make(self, key: str, origin: RbdOrigin, there: Collection[str]) -> bool:
        """Begin a copy, or go on with one; False if there is nothing to go on with."""
        begun, flat = (RbdClone(self._pool, '', kind + key) for kind in (_BEGUN, _FLAT))
        if begun.name not in there:
            try:
                self._rbd.clone_into(origin.parent, begun, snapshotcommands.LARGE)
            except RbdAbsent:
                return False
        found = self._rbd.origin(begun)
        if found is None:
            self._rbd.freeze(begun)
            self._rbd.rename(begun, flat)
            LOG.info('%s is a copy of %s, on which snapshots stand from now on', flat.path,
                     origin.parent)
            return False
        if (found.id, found.snapshot_id) != (origin.id, origin.snapshot_id):
            # Another image has that name by now.
            self._rbd.remove(begun)
            return False
        LOG.info('%s has %d others below it: a copy of it is made that stands on none',
                 origin.parent, self._depth)
        said = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self._running = _Flattening(key, self._rbd.flattening(begun, said), said)
        except BaseException:
            said.close()
            raise
        return True

    def _end(self) -> None:
        """Take notice of a command that has ended, or end it."""
        running, self._running = self._running, None
        assert running is not None
        with running.said as said:
            status = running.process.poll()
            if status is None:
                running.process.kill()
                running.process.wait()
            elif status:
                self._make_at = time.monotonic() + _PAUSE_SECONDS
                said.seek(0)
                LOG.warning('a copy of a snapshot cannot be made; the next try is in %d s, and'
                            ' snapshots that would stand on it go stock Nova\'s way until then:'
                            ' rbd flatten %s/%s (exit %d): %s', _PAUSE_SECONDS, self._pool,
                            _BEGUN + running.key, status,
                            said.read()[-_SAID_BYTES:].decode(errors='replace').strip())

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
