"""Snapshots under way, as they are on disk: what a crash leaves is found by them.

A record is written before there is anything of its snapshot, and goes when nothing is left of it,
or Glance has it. doc/source/formats.rst has the file.
"""

import dataclasses
import enum
import threading
from typing import Any

from bootcache import naming, savefile

VERSION = 1


class Stage(enum.Enum):
    """How far a snapshot is."""

    BEGUN = 'begun'
    # Glance can have it, and Nova was told where it is.
    FINISHED = 'finished'
    # It is being given to Glance.
    UPLOADING = 'uploading'
    # To be removed: nobody was told where it is.
    DOOMED = 'doomed'
    # To be removed unless Glance has it: Nova was told where it is.
    WITHDRAWN = 'withdrawn'


@dataclasses.dataclass(frozen=True)
class Record:
    """A snapshot under way.

    :ivar snapshot_id: the image that it becomes.
    :ivar store: name of the store that makes it.
    :ivar host: that sends it.
    :ivar export: its name at exporters; cannot be guessed.
    :ivar stage: how far it is.
    :ivar since: when it came there, in seconds since the epoch.
    """

    snapshot_id: str
    store: str
    host: str
    export: str
    stage: Stage
    since: float


def _parse(document: Any) -> dict[str, Record]:
    found = [Record(naming.canonical_image_id(snapshot_id), str(one['store']), str(one['host']),
                    str(one['export']), Stage(one['stage']), float(one['since']))
             for snapshot_id, one in document['snapshots'].items()]
    return {record.snapshot_id: record for record in found}


class Records:
    """The records of this storage service.

    :param path: of the file. A damaged one counts as empty: what is under way is found in the
        stores as well, by its name there.
    """

    def __init__(self, path: str):
        self._path = path
        self._lock = threading.Lock()  # guards the dictionary, and the file
        self._records = savefile.read_table(
            path, VERSION, _parse, 'snapshots that were under way are looked for in their stores')

    def all(self) -> list[Record]:
        """Return all of them."""
        with self._lock:
            return list(self._records.values())

    def get(self, snapshot_id: str) -> Record | None:
        """Return a snapshot's record, if it has one."""
        with self._lock:
            return self._records.get(snapshot_id)

    def put(self, record: Record) -> None:
        """Write a record, in place of an earlier one of the same snapshot.

        :raises OSError: if it cannot be written; nothing has changed then.
        """
        with self._lock:
            self._write({**self._records, record.snapshot_id: record})

    def drop(self, snapshot_id: str) -> None:
        """Remove a record; there need not be one.

        :raises OSError: as of ``put``.
        """
        with self._lock:
            if snapshot_id in self._records:
                self._write({key: record for key, record in self._records.items()
                             if key != snapshot_id})

    def _write(self, records: dict[str, Record]) -> None:
        savefile.write_json(self._path, {'version': VERSION, 'snapshots': {
            key: {'store': record.store, 'host': record.host, 'export': record.export,
                  'stage': record.stage.value, 'since': record.since}
            for key, record in records.items()}})
        self._records = records
