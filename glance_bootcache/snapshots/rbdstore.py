"""Snapshots in Ceph: clones of what Glance has there, in a pool of their own.

The clone is made of the snapshot that Glance's image has, not of our own clone of it: so its parent
is an image that people know, and ours can go. It has small objects: the first write to an object
copies all of it from the parent. Under way it has another name than afterwards, so that nobody
takes one for an image.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping

from oslo_config import cfg
from oslo_log import log as logging

from bootcache import conf as bootcache_conf
from bootcache import exception, naming
from bootcache.ceph import places, snapshotcommands
from bootcache.ceph.places import RbdClone, RbdSnapshot
from bootcache.ceph.rbd import RbdAbsent, RbdRefused
from bootcache.ceph.snapshotcommands import SnapshotCommands
from bootcache.manifest import Manifest
from bootcache.util.backoff import Backoff
from glance_bootcache.snapshots.flatcopies import FlatCopies
from glance_bootcache.snapshots.records import Record
from glance_bootcache.snapshots.stores import SnapshotUnfit
from glance_bootcache.storage.nodefiles import NodeFiles

LOG = logging.getLogger(__name__)

_BEGUN = 'begun-'
_PURGE_SECONDS = 600


class RbdSnapshots:
    """The snapshots in ``[bootcache]rbd_snapshot_pool``: see ``SnapshotStore``.

    :param conf: configuration of the storage service.
    :param files: has the rows of bases, and of copies of deep ones.
    """

    # What it is called in records.
    name = 'rbd'

    def __init__(self, conf: cfg.ConfigOpts, files: NodeFiles):
        group = conf[bootcache_conf.GROUP]
        self._pool = group.rbd_snapshot_pool or ''
        self._depth = group.snapshot_depth
        self._user, self._conf_path = group.rbd_store_user, group.rbd_store_ceph_conf
        self._rbd = SnapshotCommands(self._conf_path, self._user)
        self._copies = FlatCopies(self._rbd, self._pool, files, self._depth)
        self._purges = Backoff(_PURGE_SECONDS)

    def refusal(self, base: Manifest) -> str:
        """Return why no snapshot of a base is made here; empty if one may be."""
        if not self._pool:
            return '[bootcache]rbd_snapshot_pool is not set'
        if not places.is_clone(base.made.base_path):
            return 'its base is not read in Ceph'
        if base.made.image_format != 'raw':
            return f'its base is {base.made.image_format}, not raw'
        return ''

    def begin(self, record: Record, base: Manifest, virtual_bytes: int
              ) -> tuple[Record, Mapping[str, object]]:
        """Clone a base's own snapshot under a name of what is under way."""
        begun = self._begun(record.snapshot_id)
        with self._asking():
            origin = self._rbd.origin(places.clone_of(base.made.base_path))
            if origin is None:
                raise SnapshotUnfit(f'{base.made.base_path} is no clone any more')
            parent = self._copies.parent(origin)
            if parent is None:
                raise SnapshotUnfit(
                    f'{origin.parent} has {self._depth} others below it, as many as [bootcache]'
                    'snapshot_depth allows, and there is no copy yet that has none')
            self._clone(parent, begun)
            # Another image of the same name would have another content; a copy's is of its own.
            if parent == origin.parent and ((again := self._rbd.origin(begun)) is None or (
                    again.id, again.snapshot_id) != (origin.id, origin.snapshot_id)):
                raise SnapshotUnfit(f'{origin.parent} is another image by now')
            size = self._rbd.size(begun)
            if virtual_bytes < size:
                raise SnapshotUnfit(f'the disk has {virtual_bytes} bytes, fewer than its base\'s'
                                    f' {size}')
            if virtual_bytes > size:
                self._rbd.grow(begun, virtual_bytes)
        return record, {**places.protocol(begun, self._conf_path, self._user), 'discard': 'unmap'}

    def check_room(self, record: Record) -> None:
        """Check nothing: Ceph refuses writes before it is full."""

    def _clone(self, parent: RbdSnapshot, begun: RbdClone) -> None:
        try:
            self._rbd.clone_into(parent, begun, snapshotcommands.SMALL)
        except RbdAbsent as error:
            raise SnapshotUnfit(f'{parent} is gone, as Glance has deleted the image:'
                                f' {error}') from error

    @contextlib.contextmanager
    def looked_at(self, record: Record, directory: str,
                  check: Callable[[], None]) -> Iterator[str]:
        """Give a file with the first bytes, and holes."""
        begun = self._begun(record.snapshot_id)
        with self._asking(), self._rbd.head(begun, directory, check) as path:
            yield path

    def finish(self, record: Record, put: Callable[[Record], None]) -> str:
        """Give it its name, and the snapshot that Glance's store gives to all its images."""
        final = self._final(record.snapshot_id)
        with self._asking():
            self._rbd.rename(self._begun(record.snapshot_id), final)
            self._rbd.freeze(final)
            fsid = self._rbd.fsid()
        return f'rbd://{fsid}/{self._pool}/{final.name}/{places.SNAPSHOT}'

    def settled(self, record: Record, until: float) -> bool:
        """Nothing is left to be done: what is under way has another name."""
        return True

    def discard(self, record: Record) -> bool:
        """Remove what is under either name."""
        with self._asking():
            gone = self._rbd.remove(self._begun(record.snapshot_id))
            final = self._final(record.snapshot_id)
            with contextlib.suppress(RbdAbsent):
                self._rbd.thaw(final)
                gone = self._rbd.remove(final) and gone
        return gone

    def left(self) -> list[str]:
        """Return the ids of those whose name says that they are under way."""
        if not self._pool:
            return []
        with self._asking():
            names = [clone.name for clone in self._rbd.clones(self._pool, '')]
        found = []
        for name in names:
            with contextlib.suppress(ValueError):
                if name.startswith(_BEGUN):
                    found.append(naming.canonical_image_id(name.removeprefix(_BEGUN)))
        return found

    def tidy(self) -> None:
        """Have copies made and removed; purge what Glance deleted while it had children."""
        if not self._pool or not (self._purges.is_due() or self._copies.is_due()):
            return
        if self._purges.acquire():
            try:
                # A large one takes longer than a command may: that is no reason to begin no
                # snapshot.
                SnapshotCommands(self._conf_path, self._user).purge(self._pool)
            except exception.Interrupted as error:
                LOG.info('the trash of pool %s is not empty yet, and is purged further in %d s: %s',
                         self._pool, _PURGE_SECONDS, error)
        with self._asking():
            self._copies.go_on()

    def _begun(self, snapshot_id: str) -> RbdClone:
        return RbdClone(self._pool, '', f'{_BEGUN}{snapshot_id}')

    def _final(self, snapshot_id: str) -> RbdClone:
        return RbdClone(self._pool, '', snapshot_id)

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        """Have Ceph's refusals tell what the user lacks."""
        try:
            yield
        except RbdRefused as error:
            raise exception.BootcacheError(
                f'{error}; client.{self._user} needs "profile rbd pool={self._pool}"') from error
