"""What the storage service knows of an image. It is one row of the database: see ImageStore.

It has two parts: what people wish, and what jobs made. Who writes the one leaves the other as it
is.
"""

import dataclasses
import enum
from typing import Any

from bootcache import cachelayout
from bootcache.cachelayout import Compression
from bootcache.reasons import NO_CAUSE, Cause, Reason
from bootcache.rpc.fields import ImageId, Name, Size


class ImageState(enum.StrEnum):
    """An image's state, as ``bootcache_state`` shows it."""

    PENDING = 'pending'
    RECORDING = 'recording'
    BUILDING = 'building'
    SERVED = 'served'
    READY = 'ready'
    FAILED = 'failed'
    SKIPPED = 'skipped'


class Standing(enum.Enum):
    """How far an image is, as its row says: the rest of its state is derived."""

    WANTED = 'wanted'     # something is to be done; after a restart of the service it begins again
    DONE = 'done'         # nothing is
    FAILED = 'failed'
    SKIPPED = 'skipped'


class Goal(enum.StrEnum):
    """What is to be made of an image, and before it what that is made of."""

    NONE = ''
    SERVE = 'serve'      # the base: the next server's boot is recorded
    RECORD = 'record'    # a profile boot, and a cache image of what it reads
    BUILD = 'build'      # a cache image of the working set that there is


class Availability(enum.StrEnum):
    """Whether Glance gives an image out: glance_bootcache/availability.py has what follows."""

    ACTIVE = 'active'
    HIDDEN = 'hidden'
    MEMBER_REMOVED = 'member-removed'  # an event: noted as another generation
    DEACTIVATED = 'deactivated'
    OFF = 'off'
    MISSING = 'missing'                # Glance answers that it does not have it
    DELETION_NOTIFIED = 'deletion-notified'
    DELETED = 'deleted'                # and that is believed


# What is in hand; after a restart of the service such an image starts again.
IN_HAND = frozenset({ImageState.PENDING, ImageState.RECORDING, ImageState.BUILDING})


@dataclasses.dataclass(frozen=True)
class CacheInfo:
    """A cache image, as RPC messages carry it.

    :ivar file: its name within the image's directory, which tells how its clusters are stored.
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

    @property
    def compression(self) -> Compression:
        """How its clusters are stored."""
        return cachelayout.compression_of(self.file)

    def has_data_of(self, other: 'CacheInfo') -> bool:
        """Tell whether another cache image of the same content has the same data, and is only
        stored in another way."""
        return self.compression is not other.compression \
            and (self.data_bytes, self.extents, self.virtual_bytes, self.cluster_bytes) \
            == (other.data_bytes, other.extents, other.virtual_bytes, other.cluster_bytes)


@dataclasses.dataclass(frozen=True)
class CacheDifference:
    """What a snapshot's cache image has that its parent's has not, as RPC messages carry it.

    :ivar parent: id of the image whose cache image it is to be put together with.
    :ivar parent_hash: of that image's content, ``algorithm:hexadecimal``.
    :ivar bytes: the file's size.
    :ivar sha256: of the file.
    :ivar layout_at: where in it the layout begins.
    :ivar data_bytes: of the blocks that differ.
    :ivar content: sha256 of the cache image that is made of it: bootcache/difference.py.
    """

    parent: ImageId
    parent_hash: Name
    bytes: Size
    sha256: Name
    layout_at: Size
    data_bytes: Size
    content: Name


@dataclasses.dataclass(frozen=True)
class WorkingSetInfo:
    """What an image's row says of its working set.

    :ivar sha256: of its text, by which it is found.
    :ivar bytes: sum of its extents' lengths.
    :ivar extents: how many extents.
    :ivar granularity: bytes to which the recorder rounded.
    :ivar recorded_by: ``nova`` or ``direct``, of profile boots, ``server``, or ``parent`` of a
        snapshot's that is its server's image's.
    :ivar ended_by: ``marker``, ``silence``, ``quota``, ``timeout`` or ``shutdown``: what ended the
        boot.
    :ivar boot_seconds: from the server's start to the boot's end.
    :ivar boot_marker: the marker in force.
    :ivar version: 1, and one more with each refinement by a later boot.
    """

    sha256: str
    bytes: int
    extents: int
    granularity: int
    recorded_by: str
    ended_by: str
    boot_seconds: float
    boot_marker: str
    version: int = 1


@dataclasses.dataclass(frozen=True)
class Wished:
    """What people wish: the operator, and the image's owner as Glance tells it.

    :ivar held: an operator deleted the cache image; only an operator makes a new one.
    :ivar requested: an operator wants a new recording, and there was none since.
    :ivar pinned: an operator wants the cache image to stay in every tier.
    :ivar quota: bytes that its cache image may have.
    :ivar boot_marker: the marker in force.
    :ivar settle: whether its servers are to be settled.
    :ivar generation: grows each time that hosts are to let go of what they hold: after an
        operator's eviction, or when fewer people may see the image. At least that time, in seconds
        since the epoch.
    :ivar visibility: Glance's, as last seen; empty while not known.
    :ivar warm_due: hosts are still to be warmed, as it was registered.
    :ivar name: the Glance image's, as last seen: a tenant's text, for people.
    :ivar owner: the project that the image belongs to, as last seen; empty while not known.
    :ivar availability: whether Glance gives the image out, as last heard.
    """

    held: bool = False
    requested: bool = False
    pinned: bool = False
    quota: int = 0
    boot_marker: str = ''
    settle: bool = True
    generation: int = 0
    visibility: str = ''
    warm_due: bool = False
    name: str = ''
    owner: str = ''
    availability: Availability = Availability.ACTIVE


@dataclasses.dataclass(frozen=True)
class Made:
    """What jobs made: the files, and what is known of them.

    :ivar base_path: the image file that is served as the base, empty if none.
    :ivar base_hash: ``algorithm:hexadecimal`` of that file; it stays when the base is given up.
    :ivar base_export: the exporter's name for the base, which is of this content alone.
    :ivar image_format: of that file: qcow2 or raw, empty while not known.
    :ivar stored_bytes: its size.
    :ivar virtual_bytes: size of the base.
    :ivar working_set: of this content; None if there is none.
    :ivar cache_image: of this content; None if there is none.
    :ivar built_from: sha256 of the working set that the cache image was built from; empty if there
        is none.
    :ivar look_rules: version of the rules by which the base was looked at, and accepted.
    :ivar signed_as: which signature Glance had for the content, where that is verified; empty if
        none: :func:`bootcache.signatures.digest`.
    :ivar signature: by what the base was verified; empty if it was not:
        :func:`bootcache.signatures.fingerprint`.
    :ivar base_file: what the file was that has ``base_hash``: inode, time of its last change in
        nanoseconds, size in bytes, negative if it was not there when its node's service started;
        None of a base in Ceph.
    :ivar difference: of a snapshot's cache image from its parent's; None if there is none.
    """

    base_path: str = ''
    base_hash: str = ''
    base_export: str = ''
    image_format: str = ''
    stored_bytes: int = 0
    virtual_bytes: int = 0
    working_set: WorkingSetInfo | None = None
    cache_image: CacheInfo | None = None
    built_from: str = ''
    look_rules: int = 1
    signed_as: str = ''
    signature: str = ''
    base_file: tuple[int, int, int] | None = None
    difference: CacheDifference | None = None

    @property
    def is_behind(self) -> bool:
        """Whether the cache image was built from another working set than there is."""
        return self.working_set is not None and self.cache_image is not None \
            and self.built_from != self.working_set.sha256

    @property
    def is_base_lost(self) -> bool:
        """Whether the base's file was not there when its node's service started."""
        return self.base_file is not None and self.base_file[2] < 0

    @property
    def verified_file(self) -> tuple[int, int, int] | None:
        """What the file was that was verified, whether it is there or not."""
        return self.base_file and (*self.base_file[:2], abs(self.base_file[2]))


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What is known of an image.

    :ivar image_id: the Glance image's id.
    :ivar standing: how far it is.
    :ivar cause: why it is skipped, has failed or waits, or why an older cache image serves.
    :ivar image_hash: ``algorithm:hexadecimal`` of the content that was taken up last: the standing
        is about it. Empty if none was, and while the image is skipped for what it is.
    :ivar wished: what people wish.
    :ivar made: what jobs made.
    :ivar updated_at: ISO 8601, UTC.
    :ivar taken_up_at: when the content of ``image_hash`` was taken up, in seconds since the epoch,
        or later; 0 while not known. Servers that were created since do not stand on an older one.
    :ivar goal: what is to be made of it.
    """

    image_id: str
    standing: Standing = Standing.WANTED
    cause: Cause = NO_CAUSE
    image_hash: str = ''
    wished: Wished = Wished()
    made: Made = Made()
    updated_at: str = ''
    taken_up_at: float = 0.0
    goal: Goal = Goal.NONE

    @property
    def state(self) -> ImageState:
        """Its state while no job is in hand for it."""
        if self.is_missing:
            return ImageState.SKIPPED
        if self.standing is Standing.DONE:
            if self.has_older_base:
                # Servers go the stock way, until the content that was taken up is here.
                return ImageState.FAILED
            return ImageState.READY if self.made.cache_image is not None else ImageState.SERVED
        return _STATES[self.standing]

    @property
    def reason(self) -> str:
        """What operators are shown of its cause; empty if there is none."""
        if self.is_missing:
            return str(Cause(Reason.MISSING))
        if self.cause and self.standing is Standing.DONE:
            return f'the older cache image serves, as {self.cause}'
        return str(self.cause)

    @property
    def is_missing(self) -> bool:
        """Whether Glance says that it does not have the image, which may not be believed yet."""
        return self.wished.availability in (Availability.MISSING, Availability.DELETION_NOTIFIED)

    @property
    def has_older_base(self) -> bool:
        """Whether the base is not of the content that was taken up, as that is not here yet."""
        return bool(self.made.base_path and self.image_hash) \
            and self.image_hash != self.made.base_hash

    def wishing(self, **changes: Any) -> 'Manifest':
        """Return it with other wishes."""
        return dataclasses.replace(self, wished=dataclasses.replace(self.wished, **changes))

    def making(self, **changes: Any) -> 'Manifest':
        """Return it with other things made."""
        return dataclasses.replace(self, made=dataclasses.replace(self.made, **changes))

    def standing_at(self, standing: Standing, cause: Cause = NO_CAUSE,
                    goal: Goal = Goal.NONE) -> 'Manifest':
        """Return it with another standing."""
        return dataclasses.replace(self, standing=standing, cause=cause, goal=goal)


_STATES = {Standing.WANTED: ImageState.PENDING, Standing.FAILED: ImageState.FAILED,
           Standing.SKIPPED: ImageState.SKIPPED}
