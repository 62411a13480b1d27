"""What the storage service knows of an image, as a file: the commit point of its directory.

The directory's other files have names that are never used twice, so renaming a new manifest into
place changes everything at once; files that no manifest names are left-overs of a crash. The format
is described in doc/source/formats.rst.
"""

import dataclasses
import enum
import json
from typing import Any

from bootcache import exception, savefile

VERSION = 1


class ImageState(enum.StrEnum):
    """An image's state, as ``bootcache_state`` shows it."""

    PENDING = 'pending'
    RECORDING = 'recording'
    BUILDING = 'building'
    SERVED = 'served'
    READY = 'ready'
    FAILED = 'failed'
    SKIPPED = 'skipped'


# What is in hand; after a restart of the service such an image starts again.
IN_HAND = frozenset({ImageState.PENDING, ImageState.RECORDING, ImageState.BUILDING})


def _from_dict(cls: Any, document: Any) -> Any:
    names = {field.name for field in dataclasses.fields(cls)}
    if not isinstance(document, dict) or set(document) - names:
        raise exception.InvalidManifest(f'{cls.__name__}: unknown or missing entries')
    try:
        return cls(**document)
    except TypeError as error:
        raise exception.InvalidManifest(f'{cls.__name__}: {error}') from error


@dataclasses.dataclass(frozen=True)
class CacheInfo:
    """A cache image, as manifests and RPC messages carry it.

    :ivar file: its name within the image's directory.
    :ivar bytes: the file's size.
    :ivar data_bytes: bytes of the base that it holds, at its cluster size.
    :ivar extents: how many extents that is.
    :ivar sha256: of the file.
    :ivar virtual_bytes: size of the base.
    :ivar cluster_bytes: cluster size.
    :ivar quota: bytes that it was allowed.
    :ivar backing_uri: the base's place in its header.
    :ivar build_seconds: how long the building took, verification included.
    :ivar verify_rules: version of the rules under which it was verified.
    """

    file: str
    bytes: int
    data_bytes: int
    extents: int
    sha256: str
    virtual_bytes: int
    cluster_bytes: int
    quota: int
    backing_uri: str
    build_seconds: float
    verify_rules: int

    def to_dict(self) -> dict[str, Any]:
        """Return a plain dictionary."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, document: Any) -> 'CacheInfo':
        """Read it back.

        :raises InvalidManifest: if entries are missing or unknown.
        """
        info: CacheInfo = _from_dict(cls, document)
        return info


@dataclasses.dataclass(frozen=True)
class WorkingSetInfo:
    """A working set's place and size.

    :ivar file: its name within the image's directory.
    :ivar bytes: sum of its extents' lengths.
    :ivar extents: how many extents.
    :ivar granularity: bytes to which the recorder rounded.
    :ivar recorded_by: ``nova`` or ``direct``, of profile boots, or ``server``.
    :ivar ended_by: ``marker``, ``silence``, ``quota``, ``timeout`` or ``shutdown``: what ended the
        boot.
    :ivar boot_seconds: from the server's start to the boot's end.
    :ivar boot_marker: the marker in force.
    :ivar version: 1, and one more with each refinement by a later boot.
    """

    file: str
    bytes: int
    extents: int
    granularity: int
    recorded_by: str
    ended_by: str
    boot_seconds: float
    boot_marker: str
    version: int = 1


@dataclasses.dataclass(frozen=True)
class Manifest:
    """An image's state and files.

    :ivar image_id: the Glance image's id.
    :ivar state: see :class:`State`.
    :ivar reason: why it is skipped or failed; empty otherwise.
    :ivar image_hash: ``algorithm:hexadecimal`` of the stored bytes, empty while not known.
    :ivar image_format: qcow2 or raw, empty while not known.
    :ivar stored_bytes: size of the image file.
    :ivar virtual_bytes: size of the base.
    :ivar base_path: the image file that is served as the base, empty if none.
    :ivar held: an operator deleted the cache image; only an operator makes a new one.
    :ivar pinned: an operator wants the cache image to stay in every tier.
    :ivar quota: bytes that its cache image may have.
    :ivar boot_marker: the marker in force.
    :ivar settle: whether its servers are to be settled.
    :ivar base_hash: ``algorithm:hexadecimal`` of the file at ``base_path``; unlike ``image_hash``
        it stays while an image is skipped.
    :ivar generation: grows each time that hosts are to let go of what they hold: after an
        operator's eviction, or when fewer people may see the image. At least that time, in seconds
        since the epoch.
    :ivar visibility: Glance's, as last seen; empty while not known.
    :ivar warm_due: hosts are still to be warmed, as it was registered.
    :ivar name: the Glance image's, as last seen: a tenant's text, for people.
    :ivar updated_at: ISO 8601, UTC.
    :ivar base_export: the exporter's name for the base, which is of this content alone; empty of
        one that an earlier version got: it keeps the name that hosts know.
    :ivar owner: the project that the image belongs to, as last seen; empty while not known.
    """

    image_id: str
    state: ImageState = ImageState.PENDING
    reason: str = ''
    image_hash: str = ''
    image_format: str = ''
    stored_bytes: int = 0
    virtual_bytes: int = 0
    base_path: str = ''
    held: bool = False
    working_set: WorkingSetInfo | None = None
    cache_image: CacheInfo | None = None
    updated_at: str = ''
    pinned: bool = False
    quota: int = 0
    boot_marker: str = ''
    settle: bool = True
    base_hash: str = ''
    generation: int = 0
    visibility: str = ''
    warm_due: bool = False
    name: str = ''
    base_export: str = ''
    owner: str = ''

    def without_base(self, state: ImageState, reason: str) -> 'Manifest':
        """Return what it is when its base is given up, and its cache image with it."""
        return dataclasses.replace(self, state=state, reason=reason, base_path='', cache_image=None)

    def to_json(self) -> dict[str, Any]:
        """Return the document as it is stored."""
        return {'version': VERSION, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, document: Any) -> 'Manifest':
        """Read a document.

        :raises InvalidManifest: if it is damaged or of another version.
        """
        if not isinstance(document, dict) or document.get('version') != VERSION:
            raise exception.InvalidManifest(f'not a manifest of version {VERSION}')
        entries = {key: value for key, value in document.items() if key != 'version'}
        manifest: Manifest = _from_dict(cls, entries)
        try:
            state = ImageState(manifest.state)
        except ValueError as error:
            raise exception.InvalidManifest(str(error)) from error
        return dataclasses.replace(
            manifest, state=state,
            working_set=_from_dict(WorkingSetInfo, manifest.working_set)
            if manifest.working_set is not None else None,
            cache_image=CacheInfo.from_dict(manifest.cache_image)
            if manifest.cache_image is not None else None)

    @classmethod
    def load(cls, path: str) -> 'Manifest':
        """Read a manifest file.

        :raises InvalidManifest: if it cannot be read, is damaged or of another version.
        """
        try:
            with open(path) as stream:
                return cls.from_json(json.load(stream))
        except (OSError, ValueError) as error:
            raise exception.InvalidManifest(f'{path}: {error}') from error

    def save(self, path: str) -> None:
        """Replace the manifest file atomically.

        :raises OSError: if it cannot be written.
        """
        savefile.write_json(path, self.to_json())
