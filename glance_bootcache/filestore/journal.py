"""What snapshots are in hand, in files that outlive the service: doc/source/formats.rst.

An entry is written before there is a file that it names, and goes when there is none any more, or
when Glance has the image.
"""

import contextlib
import dataclasses
import glob
import os
from typing import Any

from oslo_log import log as logging

from bootcache import naming, savefile

LOG = logging.getLogger(__name__)

_VERSION = 1
_SUFFIX = '.json'


@dataclasses.dataclass(frozen=True)
class Entry:
    """A snapshot in hand.

    :ivar image_id: that it becomes.
    :ivar work: path of the file that becomes the image.
    :ivar base: path of the file that it was made from.
    :ivar image_format: of both.
    :ivar store: Glance's name of the store that registers it; empty if it is uploaded.
    :ivar place: path in that store, once it was to be put there; empty before.
    :ivar file: that was put there, as ``placing.named`` has it; empty before.
    :ivar uploaded: whether Glance has it, from an upload; what both have in common is to be shared.
    """

    image_id: str
    work: str
    base: str
    image_format: str
    store: str = ''
    place: str = ''
    file: str = ''
    uploaded: bool = False


def _parse(document: Any) -> Entry:
    for field in dataclasses.fields(Entry):
        if type(document[field.name]) is not field.type:
            raise ValueError(f'{field.name} is of another type')
    naming.canonical_image_id(document['image_id'])
    return Entry(**{field.name: document[field.name] for field in dataclasses.fields(Entry)})


class Journal:
    """The entries, one file each.

    :param directory: made if missing.
    """

    def __init__(self, directory: str):
        self._directory = directory
        os.makedirs(directory, mode=0o700, exist_ok=True)

    def note(self, entry: Entry) -> None:
        """Write an entry, in place of the one that the image has.

        :raises OSError: if it cannot be written.
        """
        savefile.write_json(self._path(entry.image_id),
                            {'version': _VERSION, **dataclasses.asdict(entry)})

    def load(self, image_id: str) -> Entry | None:
        """Return an image's entry; None if it has none, or a damaged one.

        :raises OSError: if it cannot be read.
        """
        try:
            return savefile.read_json(self._path(image_id), _VERSION, _parse)
        except ValueError as error:
            LOG.warning('%s: %s; what it is about has to be removed by hand',
                        self._path(image_id), error)
            return None

    def forget(self, image_id: str) -> None:
        """Remove an image's entry, and what a crash left of writing it.

        :raises OSError: if it cannot be removed.
        """
        for path in glob.glob(f'{glob.escape(self._path(image_id))}*'):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        savefile.fsync_directory(self._directory)

    def images(self) -> list[str]:
        """Return the ids of the images that have an entry, or have a half-written one."""
        found = set()
        for name in os.listdir(self._directory):
            image_id, suffix, _torn = name.partition(_SUFFIX)
            with contextlib.suppress(ValueError):
                if suffix:
                    found.add(naming.canonical_image_id(image_id))
        return sorted(found)

    def _path(self, image_id: str) -> str:
        return os.path.join(self._directory, naming.canonical_image_id(image_id) + _SUFFIX)
