"""One snapshot from its beginning until Glance can have it: made, served, closed, looked at."""

import contextlib
import glob
import os
import secrets
from collections.abc import Callable, Sequence

from oslo_config import cfg

from bootcache import conf as bootcache_conf
from bootcache import exception, properties
from bootcache.ceph.rbd import HEAD
from bootcache.manifest import Manifest
from bootcache.rpc.messages import SnapshotProgress
from glance_bootcache.snapshots.stores import SnapshotStore, SnapshotUnfit, Stored
from glance_bootcache.snapshots.writing import SnapshotDaemon
from glance_bootcache.storage import inspection
from glance_bootcache.storage.exporters import Exporters

# Not an image's id: what is said of an image does not hold for what is being made.
_EXPORT = 'snapshot'


def new_export() -> str:
    """Return a name that cannot be guessed."""
    return f'{_EXPORT}-{secrets.token_hex(16)}'


class Sending:
    """The steps; whoever takes them keeps what is to be known of each snapshot.

    :param conf: configuration of the storage service.
    :param stores: where snapshots can be made, the one that is preferred first.
    :param directory: for what is looked at.
    """

    def __init__(self, conf: cfg.ConfigOpts, stores: Sequence[SnapshotStore],
                 exporters: Exporters, directory: str):
        group = conf[bootcache_conf.GROUP]
        self._exporters = exporters
        self._directory = directory
        self._max_virtual_bytes = properties.parse_size(group.max_virtual_size)
        self._daemon = SnapshotDaemon(group.run_dir)
        self.stores = {store.name: store for store in stores}

    def sweep(self) -> None:
        """Remove what an earlier process was looking at when it ended.

        :raises OSError: if it cannot be removed.
        """
        for path in glob.glob(os.path.join(glob.escape(self._directory), f'{HEAD}*')):
            os.unlink(path)

    def choose(self, base: Manifest) -> SnapshotStore:
        """Return the store in which a base's snapshots are made.

        :raises SnapshotUnfit: if there is none, with what each says.
        """
        reasons = []
        for store in self.stores.values():
            reason = store.refusal(base)
            if not reason:
                return store
            reasons.append(reason)
        raise SnapshotUnfit('; '.join(reasons) or 'no store is configured for snapshots')

    def begin(self, store: SnapshotStore, base: Manifest, snapshot_id: str, export: str,
              virtual_bytes: int, certificate: str) -> SnapshotProgress:
        """Make a snapshot, and serve it to one host, to be written.

        :param certificate: as ``Exporters.know`` names the host's exporter.
        :returns: what the host is told.
        :raises BootcacheError: if that cannot be done; ``give_up`` removes what there is.
        """
        writable = store.begin(base, snapshot_id, virtual_bytes)
        node = self._daemon.open(export, writable.node)
        place = self._exporters.lend(export, node, certificate)
        return SnapshotProgress(
            server=tuple(place['server']), tls=place['tls'], export=export,
            disk_format=writable.disk_format, image_hash=base.made.base_hash,
            base_export=base.made.base_export)

    def finish(self, store: SnapshotStore, snapshot_id: str, export: str, virtual_bytes: int,
               check: Callable[[], None]) -> Stored:
        """Take a snapshot back from its host, and make it one that Glance can have.

        :param check: called several times a second; raises to give it up.
        :raises ImageRefused: if it is not to be opened as what it has to be.
        :raises BootcacheError: as of ``begin``.
        """
        self._exporters.cut_off(export)
        self._daemon.close(export)
        with store.looked_at(snapshot_id, self._directory, check) as look:
            found = inspection.inspect(look.path, look.disk_format, self._max_virtual_bytes)
        if found.virtual_bytes != virtual_bytes:
            raise exception.ImageRefused(
                f'the snapshot has {found.virtual_bytes} bytes, not {virtual_bytes}')
        return store.finish(snapshot_id)

    def give_up(self, store: SnapshotStore, snapshot_id: str, export: str) -> bool:
        """Remove a snapshot wherever it is, and whoever writes it.

        :param export: empty of one that is finished for long.
        :returns: False if it has to be asked again.
        :raises BootcacheError: likewise, if something does not answer.
        """
        try:
            self.end(export)
        finally:
            gone = store.discard(snapshot_id)
        return gone

    def end(self, export: str) -> None:
        """Have nobody write a snapshot any more.

        :param export: as of ``give_up``.
        :raises StorageDaemonError: if an exporter does not answer; there is nothing behind that
            export any more then.
        """
        if not export:
            return
        hanging = None
        try:
            self._exporters.cut_off(export)
        except exception.StorageDaemonError as error:
            hanging = error
        with contextlib.suppress(exception.StorageDaemonError):
            # One that does not close it is ended.
            if self._daemon.runs:
                self._daemon.close(export)
        if hanging is not None and self._exporters.runs:
            raise hanging

    def rest(self, is_idle: Callable[[], bool]) -> None:
        """End the daemon if nothing is under way, as ``SnapshotDaemon.rest`` has it."""
        self._daemon.rest(is_idle)
