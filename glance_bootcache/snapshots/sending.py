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
from glance_bootcache.snapshots.records import Record
from glance_bootcache.snapshots.stores import SnapshotStore, SnapshotUnfit
from glance_bootcache.snapshots.writing import SnapshotDaemon
from glance_bootcache.storage import inspection
from glance_bootcache.storage.exporters import Exporters


class Sending:
    """The steps; whoever takes them keeps the records.

    :param conf: configuration of the storage service.
    :param stores: where snapshots can be made, the one that is preferred first.
    :param directory: for what is looked at.
    :ivar stores: the same, by name.
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

    def choose(self, base: Manifest) -> str:
        """Return the name of the store in which a base's snapshots are made.

        :raises SnapshotUnfit: if there is none, with what each says.
        """
        refusals = {name: store.refusal(base) for name, store in self.stores.items()}
        for name, refusal in refusals.items():
            if not refusal:
                return name
        raise SnapshotUnfit('; '.join(refusals.values()))

    def begin(self, record: Record, base: Manifest, virtual_bytes: int, certificate: str
              ) -> tuple[Record, SnapshotProgress]:
        """Make a snapshot, and serve it to one host, to be written.

        :param certificate: as ``Exporters.know`` names the host's exporter.
        :returns: the record, with what has become known, and what the host is told.
        :raises BootcacheError: if that cannot be done; ``give_up`` removes what there is.
        :raises OSError: likewise.
        """
        record, node = self.stores[record.store].begin(record, base, virtual_bytes)
        place = self._exporters.lend(record.export, self._daemon.open(record.export, node),
                                     certificate)
        return record, SnapshotProgress(
            server=tuple(place['server']), tls=place['tls'], export=record.export,
            disk_format=record.disk_format, image_hash=base.made.base_hash,
            base_export=base.made.base_export)

    def finish(self, record: Record, virtual_bytes: int, check: Callable[[], None],
               put: Callable[[Record], None]) -> str:
        """Take a snapshot back from its host, and make it an image that Glance can have.

        :param check: called several times a second; raises to give it up.
        :param put: as of ``SnapshotStore.finish``, as is what this returns.
        :raises ImageRefused: if it is not to be opened as what it has to be.
        :raises BootcacheError: as of ``begin``.
        :raises OSError: likewise.
        """
        store = self.stores[record.store]
        self._exporters.cut_off(record.export)
        self._daemon.close(record.export)
        with store.looked_at(record, self._directory, check) as path:
            found = inspection.inspect(path, record.disk_format, self._max_virtual_bytes)
        if found.virtual_bytes != virtual_bytes:
            raise exception.ImageRefused(
                f'the snapshot has {found.virtual_bytes} bytes, not {virtual_bytes}')
        return store.finish(record, put)

    def give_up(self, record: Record) -> bool:
        """Remove a snapshot wherever it is, and whoever writes it.

        :returns: False if it has to be asked again.
        :raises BootcacheError: likewise, if something does not answer.
        :raises OSError: likewise.
        """
        try:
            self.end(record.export)
        finally:
            gone = self.stores[record.store].discard(record)
        return gone

    def end(self, export: str) -> None:
        """Have nobody write a snapshot any more.

        :param export: empty of one that has none.
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


def new_export() -> str:
    """Return a name that cannot be guessed.

    Not an image's id: what is said of an image does not hold for what is being made.
    """
    return f'snapshot-{secrets.token_hex(16)}'
