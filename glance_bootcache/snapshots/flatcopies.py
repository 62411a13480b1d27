"""Copies in Ceph that stand on nothing, of snapshots that too many others are below.

A snapshot of a server whose image is such a one is made of its copy: so chains end, and all servers
of that image share one copy. The image itself is left as it is: clients of Ceph that have it open
below another would not learn that its parent is gone, and read what is none of its any more.

A copy has a row among the node's files before it is made, and its name has RBD's own ids of what it
is a copy of: it is needed as long as the storage service has a clone of that image, as its base.
"""

import dataclasses
import secrets
import subprocess
import tempfile
from typing import IO

from oslo_log import log as logging

from bootcache.ceph import places, snapshotcommands
from bootcache.ceph.places import SNAPSHOT, RbdClone, RbdOrigin, RbdSnapshot
from bootcache.ceph.rbd import RbdAbsent, RbdInUse
from bootcache.ceph.snapshotcommands import SnapshotCommands
from bootcache.util.backoff import Backoff
from glance_bootcache.db.models import FileState
from glance_bootcache.storage.nodefiles import FileKind, NodeFiles, tell_unnamed

LOG = logging.getLogger(__name__)

_PREFIX = 'flat-'
_ROUND_SECONDS = 60
_PAUSE_SECONDS = 600
# Bases that are looked at in a round; each takes some commands, once.
_LOOKS = 32
_SAID_BYTES = 500


@dataclasses.dataclass(frozen=True)
class _Flattening:
    """A command of Ceph's that fills a copy.

    :ivar image_id: of the image that is copied.
    :ivar copy: as its row has it.
    """

    image_id: str
    copy: str
    process: subprocess.Popen[bytes]
    said: IO[bytes]


class FlatCopies:
    """The copies in a pool, and the one that is being made.

    :param rbd: Ceph's commands.
    :param pool: of snapshots and copies.
    :param files: has the rows of copies, and of bases.
    :param depth: so many may be below a snapshot of which another one is made.
    """

    def __init__(self, rbd: SnapshotCommands, pool: str, files: NodeFiles, depth: int):
        self._rbd = rbd
        self._pool = pool
        self._files = files
        self._depth = depth
        self._running: _Flattening | None = None
        self._rounds = Backoff(_ROUND_SECONDS)
        # When a copy is tried again that could not be made, by its key.
        self._tries = Backoff(_PAUSE_SECONDS)
        # Of bases, by their clones: nothing gets below an image later.
        self._known: dict[str, RbdOrigin | None] = {}
        self._is_told = False

    def parent(self, origin: RbdOrigin) -> RbdSnapshot | None:
        """Return of what a snapshot is made: a base's own snapshot, or the one of its copy.

        :returns: None if it is to be a copy, and there is none yet.
        :raises DatabaseAway: if the database does not answer; others as of ``Rbd.clone``.
        """
        if self._rbd.depth(origin, self._depth) < self._depth:
            return origin.parent
        return next((RbdSnapshot(self._pool, places.clone_of(copy).name, SNAPSHOT)
                     for copy in self._ready() if _key_of(copy) == _key(origin)), None)

    def _ready(self) -> dict[str, str]:
        """Return the copies that are complete, with the images of which they are."""
        return self._files.named(FileKind.COPY, FileState.READY)

    def is_due(self) -> bool:
        """Tell whether there may be something to be done."""
        return self._rounds.is_due() or self._has_ended()

    def _has_ended(self) -> bool:
        return self._running is not None and self._running.process.poll() is not None

    def go_on(self) -> None:
        """Remove copies that are not needed any more, and make one that is, in the background.

        :raises DatabaseAway: if the database does not answer; others as of ``Rbd.clone``.
        """
        self._rounds.postpone()
        self._tell_unnamed()
        wanted = self._wanted()
        if wanted is None:
            # Not all bases were looked at.
            self._rounds.forget()
            return
        if self._running is not None:
            if _key_of(self._running.copy) not in wanted:
                self._give_up(self._running)
            elif self._has_ended():
                self._finish(self._running)
        self._tries.keep_only(wanted)
        ready = self._ready()
        for copy, image_id in ready.items():
            if _key_of(copy) not in wanted:
                self._files.change(image_id, retiring=[copy])
        self._files.remove_retired_of(FileKind.COPY, self._remove)
        for key in wanted.keys() - set(map(_key_of, ready)):
            if self._running is None and self._tries.is_due(key):
                self._begin(key, *wanted[key])

    def _tell_unnamed(self) -> None:
        if not self._is_told:
            there = {clone.path for clone in self._rbd.clones(self._pool, '')
                     if clone.name.startswith(_PREFIX)}
            tell_unnamed('copies of snapshots in Ceph',
                         there - self._files.known(FileKind.COPY),
                         'if no other storage service made them, "rbd trash mv" removes them')
            self._is_told = True

    def _wanted(self) -> dict[str, tuple[str, RbdOrigin]] | None:
        """Return what there is to be a copy of, with its image; None if not all bases were looked
        at."""
        bases = self._files.named(FileKind.CLONE, FileState.MAKING, FileState.READY)
        self._known = {path: origin for path, origin in self._known.items() if path in bases}
        new = [path for path in bases if path not in self._known]
        for path in new[:_LOOKS]:
            try:
                origin = self._rbd.origin(places.clone_of(path))
            except RbdAbsent:
                continue
            is_deep = origin is not None and origin.pool == self._pool \
                and origin.snapshot_id and self._rbd.depth(origin, self._depth) >= self._depth
            self._known[path] = origin if is_deep else None
        if len(new) > _LOOKS:
            return None
        return {_key(origin): (bases[path], origin) for path, origin in self._known.items()
                if origin is not None}

    def _begin(self, key: str, image_id: str, origin: RbdOrigin) -> None:
        """Begin a copy, unless Glance has deleted the image."""
        clone = RbdClone(self._pool, '', f'{_PREFIX}{key}-{secrets.token_hex(4)}')
        self._files.begin(image_id, FileKind.COPY, clone.path)
        try:
            self._rbd.clone_into(origin.parent, clone, snapshotcommands.LARGE)
            found = self._rbd.origin(clone)
            if found is None or _key(found) != key:
                raise RbdAbsent(f'{origin.parent} is another image by now')
            LOG.info('%s has %d others below it: a copy of it is made that stands on none',
                     origin.parent, self._depth)
            said = tempfile.TemporaryFile()  # noqa: SIM115
            self._running = _Flattening(image_id, clone.path, self._rbd.flattening(clone, said),
                                        said)
        except RbdAbsent as error:
            LOG.debug('%s is not copied: %s', origin.parent, error)
            self._tries.postpone(key)
        finally:
            if self._running is None:
                self._files.abandon(image_id, clone.path)

    def _finish(self, running: _Flattening) -> None:
        """Have snapshots stand on a copy whose command has ended; or remove it, if that failed."""
        clone = places.clone_of(running.copy)
        if running.process.returncode:
            running.said.seek(0)
            detail = running.said.read()[-_SAID_BYTES:].decode(errors='replace').strip()
            LOG.warning('a copy of a snapshot cannot be made; the next try is in %d s, and'
                        ' snapshots that would stand on it go stock Nova\'s way until then:'
                        ' rbd flatten %s/%s (exit %d): %s',
                        self._tries.postpone(_key_of(running.copy)), self._pool, clone.name,
                        running.process.returncode, detail)
            self._give_up(running)
            return
        self._rbd.freeze(clone)
        self._files.change(running.image_id, ready=[running.copy])
        self._running = None
        running.said.close()
        LOG.info('%s is a copy on which snapshots of image %s stand from now on', running.copy,
                 running.image_id)

    def _give_up(self, running: _Flattening) -> None:
        self._running = None
        running.process.kill()
        running.process.wait()
        running.said.close()
        self._files.abandon(running.image_id, running.copy)

    def _remove(self, _image_id: str, copy: str) -> bool:
        clone = places.clone_of(copy)
        try:
            self._rbd.thaw(clone)
            # With snapshots that stand on it it stays there until the last of them goes.
            self._rbd.trash(clone)
        except RbdInUse:
            return False
        except RbdAbsent:
            pass
        return True


def _key(origin: RbdOrigin) -> str:
    return f'{origin.id}-{origin.snapshot_id}'


def _key_of(copy: str) -> str:
    """Return the key of what a copy was made of. Pure."""
    return places.clone_of(copy).name.removeprefix(_PREFIX).rpartition('-')[0]
