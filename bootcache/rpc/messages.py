"""The messages that compute hosts, the Glance hook and operators send to the storage service.

Each message is a frozen dataclass: client, server, validation and doc/source/formats.rst read its
fields, their bounds, its answer and its version from here.
"""

import dataclasses
import enum
import re
import typing
from typing import Annotated, Any, ClassVar, Generic, Self, TypeVar

from bootcache import ending
from bootcache.exception import AnswerInvalid, MessageRefused
from bootcache.quoting import quoted
from bootcache.rpc import fields
from bootcache.rpc.fields import (
    Address,
    Aggregates,
    Binary,
    Bound,
    CertificateName,
    DiskSize,
    Extents,
    Givers,
    Granularity,
    HostName,
    HostNames,
    ImageId,
    ImageIds,
    Line,
    Name,
    OutOfBounds,
    Place,
    Places,
    Port,
    Seconds,
    Sha256,
    Size,
    Token,
    Url,
)
from bootcache.rpc.report import HostReport

# Of all messages; a message that is added, or gets a field, is of the next minor version.
VERSION = '2.1'
# Key of a message's context: 32 hexadecimal digits that its process has made, and tells nobody
# else. The storage service tells processes apart by them.
SENDER = 'sender'
# No image has this id.
NO_IMAGE = '00000000-0000-0000-0000-000000000000'
# Key of a server's metadata whose value proves it to be a profile boot: PlanBoot.profile_token.
PROFILE_METADATA = 'bootcache_profile'
# By this hint nova-scheduler knows a profile boot; it proves nothing.
PROFILE_HINT = 'bootcache_profile'
# Entries of a page of a listing, at most; fewer where these are long. An empty page is the end.
PAGE_ENTRIES = 250
# A server that boots does not wait for longer for an answer, whatever rpc_timeout is.
_BOOT_SECONDS = 5
# A host copies a file after so many seconds without an answer.
_EXCHANGE_SECONDS = 4

Answer = TypeVar('Answer')


class BootAction(enum.StrEnum):
    """How a server is to boot."""

    CACHE = 'cache'
    COLD = 'cold'
    RECORD = 'record'
    WAIT = 'wait'
    STOCK = 'stock'


class PlanCause(enum.StrEnum):
    """Why a server waits or goes the stock way, where it is not for the image's own reason."""

    BASE = 'base-not-ready'
    CACHE_IMAGE = 'cache-image-not-ready'
    NO_PROFILE_BOOT = 'no-profile-boot'
    NODE_AWAY = 'storage-node-away'


class WarmOutcome(enum.StrEnum):
    """What became of warming a host; all but waiting and error are Nova's own words."""

    WAITING = 'waiting'
    CACHED = 'cached'
    EXISTING = 'existing'
    UNSUPPORTED = 'unsupported'
    ERROR = 'error'


class NodeWish(enum.StrEnum):
    """What an operator wants of a storage node: it gets no images any more, or is gone for good."""

    DRAINED = 'drained'
    FORGOTTEN = 'forgotten'


class ExchangeWay(enum.StrEnum):
    """How a file came that a host asked for by exchange: all of it by exchange, in part, or not."""

    EXCHANGED = 'exchanged'
    STALLED = 'stalled'
    COPIED = 'copied'


@dataclasses.dataclass(frozen=True)
class Message(Generic[Answer]):
    """A call, or a cast that has no answer.

    :cvar method: the name of the RPC method.
    :cvar is_cast: nobody waits for it.
    :cvar seconds: for which a call is waited for, at most; None for ``rpc_timeout``.
    :cvar counts_as_silence: a call that is not answered tells that the service does not answer.
    :cvar entry_key: of a listing's entries, by which they are sorted; empty of no listing.
    :cvar since: the first version that has the message with all of its fields.
    """

    method: ClassVar[str]
    is_cast: ClassVar[bool] = False
    seconds: ClassVar[float | None] = None
    counts_as_silence: ClassVar[bool] = True
    entry_key: ClassVar[str] = ''
    since: ClassVar[str] = '2.0'

    def __init_subclass__(cls) -> None:
        cls.method = re.sub('(?<!^)(?=[A-Z])', '_', cls.__name__).lower()
        MESSAGES[cls.method] = cls

    @classmethod
    def parse(cls, arguments: Any) -> Self:
        """Read a call's arguments as they came.

        :raises MessageRefused: if one is missing, unknown, or out of bounds; it names the field.
        """
        try:
            told = fields.mapping({} if arguments is None else arguments)
            if strange := set(told) - set(fields.bounds(cls)):
                raise OutOfBounds(f'{quoted(strange.pop())} is not known')
            return fields.read(cls, told)
        except OutOfBounds as error:
            raise MessageRefused(error.part or 'arguments', str(error)) from None

    @classmethod
    def read_answer(cls, value: Any) -> Any:
        """Read the answer as it came, where it is declared; unknown fields are ignored.

        :raises AnswerInvalid: if it cannot be.
        """
        answer, = typing.get_args(cls.__orig_bases__[0])  # type: ignore[attr-defined]
        declared: Any = next((one for one in (answer, *typing.get_args(answer))
                              if dataclasses.is_dataclass(one)), None)
        if declared is None or (value is None and declared is not answer):
            return value
        try:
            return fields.read(declared, value)
        except OutOfBounds as error:
            raise AnswerInvalid(f'{cls.method}: {error.part}: {error}') from None


# By method.
MESSAGES: dict[str, type[Message[Any]]] = {}


# Of the Glance hook.

@dataclasses.dataclass(frozen=True)
class ImageRegistered(Message[None]):
    """Tell that an image is being imported; the service waits until it is active."""

    is_cast = True
    image_id: ImageId


# Of compute hosts.

@dataclasses.dataclass(frozen=True)
class PlanBoot(Message[dict[str, Any]]):
    """Ask how a server is to boot from an image.

    :ivar host: the compute host's name.
    :ivar server_id: the server.
    :ivar profile_token: from the server's metadata, to prove that it is a profile boot.
    :ivar owner: the server's project; empty if it is not known.
    :ivar certificate: the distinguished name in the host's certificate, empty if it has none; the
        exporter serves what the answer names to nobody else, where the service has certificates.

    The answer: ``action`` (a BootAction), and the entries that doc/source/formats.rst lists.
    """

    seconds = _BOOT_SECONDS
    image_id: ImageId
    host: HostName
    server_id: Name
    profile_token: Name | None = None
    owner: Name = ''
    certificate: CertificateName = ''


@dataclasses.dataclass(frozen=True)
class ReportProgress(Message[None]):
    """Tell how far a profile boot is.

    :ivar recorded_bytes: size of the growing store.
    """

    is_cast = True
    image_id: ImageId
    profile_token: Name
    recorded_bytes: Size


@dataclasses.dataclass(frozen=True)
class ReportBoot(Message[None]):
    """Report what a server's boot read from the base for the first time on its host.

    A report that was taken already counts no more: a host sends it again if the answer was lost.

    :ivar image_hash: of the content that the boot read, as ``plan_boot`` told it.
    :ivar granularity: bytes to which the record is rounded.
    :ivar extents: ``[offset, length, seconds]``, in first-read order; never data.
    :ivar ended_by: marker, silence, quota, timeout or shutdown; of a profile boot also stuck (its
        console says that it does not come up) and nothing (it read next to nothing).
    :ivar boot_seconds: from the overlay's making to the boot's end.
    :ivar profile_token: of a profile boot, None for servers of people.
    :ivar line: of the console, where that tells that the guest is stuck.
    :ivar server_id: the server, as ``plan_boot`` was told it.
    """

    image_id: ImageId
    image_hash: Name
    host: HostName
    granularity: Granularity
    extents: Extents
    ended_by: Annotated[str, fields.one_of({end: end for end in ending.ENDS})]
    boot_seconds: Seconds
    profile_token: Name | None = None
    line: Line = ''
    server_id: Name = ''


@dataclasses.dataclass(frozen=True)
class HoldingsAnswer:
    """What a host is to do after its report.

    :ivar drop: images whose cache image is to go as soon as no server of the host needs it.
    :ivar resend: the service does not know this process' last report.
    :ivar moved: images that the host needs, whose base another storage node has by now.
    """

    drop: ImageIds = ()
    resend: bool = False
    moved: ImageIds = ()


@dataclasses.dataclass(frozen=True)
class ReportHoldings(Message[HoldingsAnswer]):
    """Tell what a host holds, and hear what it is to let go of.

    The last uses are for the cloud-level eviction (SC13 section 3.4).

    :ivar report: None if nothing has changed since the last report.
    :ivar number: of the report, which counts up with each that has changed.
    """

    since = '2.1'
    host: HostName
    report: Annotated[HostReport, Bound('a host\'s report', HostReport.read)] | None
    number: Size = 0


@dataclasses.dataclass(frozen=True)
class ReportWarm(Message[None]):
    """Tell what came of Nova's request to warm a host.

    :ivar outcome: any but waiting.
    :ivar reason: of an error.
    """

    is_cast = True
    image_id: ImageId
    host: HostName
    outcome: Annotated[WarmOutcome, fields.one_of({
        outcome.value: outcome for outcome in WarmOutcome if outcome is not WarmOutcome.WAITING})]
    reason: Line


@dataclasses.dataclass(frozen=True)
class PromoteImage(Message[None]):
    """Ask the storage node to copy an image's cache image to its memory tier."""

    is_cast = True
    image_id: ImageId


@dataclasses.dataclass(frozen=True)
class StoredExport:
    """An image's stored bytes, as an exporter serves them.

    :ivar settle: whether the image's servers are to be settled; if not, the others may be missing.
    :ivar server: host and port of the exporter.
    :ivar tls: whether the exporter speaks TLS, and nothing else.
    :ivar export: the exporter's name for the bytes.
    :ivar base_export: the exporter's name for the base, which tells its content.
    :ivar stored_bytes: how many.
    :ivar image_hash: of them, ``algorithm:hexadecimal``.
    :ivar image_format: qcow2 or raw.
    :ivar signature: as of ``plan_boot``.
    """

    settle: bool
    server: Place | None = None
    tls: bool = False
    export: Name = ''
    base_export: Name = ''
    stored_bytes: Size = 0
    image_hash: Name = ''
    image_format: Name = ''
    signature: Name = ''


@dataclasses.dataclass(frozen=True)
class ServeStored(Message[StoredExport | None]):
    """Have an image's stored bytes served, to complete a local base from.

    :ivar certificate: as of ``plan_boot``.

    The answer: None if the image has no base here, or it is not served; if its servers are not to
    be settled even so, that alone.
    """

    image_id: ImageId
    host: HostName
    certificate: CertificateName = ''


# Of the exchange, which is another process of the storage node: its silence is none of the service.

@dataclasses.dataclass(frozen=True)
class ExchangeOffer:
    """From whom a file can be had by exchange.

    :ivar torrent: of the file; empty if the host is to ask again.
    :ivar peers: host and port of each exchange that has pieces, or is about to.
    :ivar reserve: likewise, for when the peers do not go on.
    :ivar has_slot: whether the storage node is among the peers, and the host has a slot for that,
        as by ``take_slot``.
    :ivar again: nobody else has the file yet, and others have all slots: the host is to ask again
        in so many seconds; 0 while the storage node reads the file.
    """

    torrent: Binary = b''
    peers: Places = ()
    reserve: Places = ()
    has_slot: bool = False
    again: Seconds = 0.0


@dataclasses.dataclass(frozen=True)
class ExchangeCache(Message[ExchangeOffer | None]):
    """Ask from whom a cache image can be had that ``plan_boot`` offers; others are told of us.

    :ivar sha256: of the file.
    :ivar address: of this host's exchange, as is the port.
    :ivar rack: that the host is in; empty if it does not know.

    The answer: None if the file is to be copied.
    """

    seconds = _EXCHANGE_SECONDS
    counts_as_silence = False
    image_id: ImageId
    host: HostName
    sha256: Sha256
    address: Address
    port: Port
    rack: Name


@dataclasses.dataclass(frozen=True)
class ExchangeBase(Message[ExchangeOffer | None]):
    """Ask from whom an image's stored file can be had, as ``exchange_cache`` does.

    :ivar image_hash: of the file, as ``serve_stored`` tells it.

    The answer: None if the file is to be copied.
    """

    seconds = _EXCHANGE_SECONDS
    counts_as_silence = False
    image_id: ImageId
    host: HostName
    image_hash: Name
    address: Address
    port: Port
    rack: Name


@dataclasses.dataclass(frozen=True)
class TakeSlot(Message[float]):
    """Ask for leave to get full bases from the storage node.

    The answer: 0 if the host has a slot. If others have all of them: the seconds in which to ask
    again; the host keeps its place among those that wait if it does.
    """

    host: HostName


@dataclasses.dataclass(frozen=True)
class HoldSlot(Message[None]):
    """Tell that a host uses its slot, or (``holds`` False) that it needs none any more."""

    is_cast = True
    host: HostName
    holds: bool


@dataclasses.dataclass(frozen=True)
class ReportExchange(Message[None]):
    """Tell how a file came that a host asked for by exchange; all of the file is there.

    :ivar file: the SHA-256 of a cache image, or the hash of a stored file.
    :ivar got: ``[address, bytes]`` of those that gave most.
    :ivar copied: bytes that the storage node's exporter gave.
    :ivar gives: whether the host gives the file to others.
    """

    is_cast = True
    image_id: ImageId
    host: HostName
    file: Name
    way: ExchangeWay
    got: Givers
    copied: Size
    gives: bool


# Of snapshots.

@dataclasses.dataclass(frozen=True)
class SnapshotProgress:
    """How far a snapshot is; with nothing set the host is to ask again.

    :ivar refused: why it goes stock Nova's way, in one line.
    :ivar server: host and port of the exporter that has it to be written.
    :ivar tls: whether the exporter speaks TLS, and nothing else.
    :ivar export: the exporter's name for it.
    :ivar disk_format: of the image that it becomes.
    :ivar image_hash: of the base's content.
    :ivar base_export: the exporter's name for the base, which tells its content.
    :ivar url: by which Glance can have it.
    :ivar upload: no store of Glance registers it: see ``upload_snapshot``.
    :ivar uploaded: Glance has it.
    """

    refused: Line = ''
    server: Place | None = None
    tls: bool = False
    export: Name = ''
    disk_format: Name = ''
    image_hash: Name = ''
    base_export: Name = ''
    url: Url = ''
    upload: bool = False
    uploaded: bool = False


@dataclasses.dataclass(frozen=True)
class BeginSnapshot(Message[SnapshotProgress]):
    """Have a snapshot be made that shares with its base, or ask how far that is.

    A host asks again and again, also while it sends: a silent host's snapshot is given up.

    :ivar image_id: of which the server was made.
    :ivar snapshot_id: the image that the snapshot becomes; it waits for its data.
    :ivar certificate: as of ``plan_boot``.
    :ivar token: a secret of the host's own, by which it is known to be the same.
    :ivar virtual_bytes: size of the server's disk.

    The answer: once it can be written, where and what it is to be.
    """

    image_id: ImageId
    snapshot_id: ImageId
    host: HostName
    certificate: CertificateName
    token: Token
    virtual_bytes: DiskSize


@dataclasses.dataclass(frozen=True)
class FinishSnapshot(Message[SnapshotProgress]):
    """Tell that all of a snapshot was sent, or ask how far it is.

    :ivar token: as of ``begin_snapshot``.

    The answer: once Glance can have it, ``url`` or ``upload``.
    """

    snapshot_id: ImageId
    token: Token


@dataclasses.dataclass(frozen=True)
class UploadSnapshot(Message[SnapshotProgress]):
    """Have a finished snapshot be uploaded, or ask how far that is.

    The image waits for its data, and has its formats: Nova has told Glance of it. It gets no
    location.

    :ivar token: as of ``begin_snapshot``.

    The answer: once Glance has it, ``uploaded``.
    """

    snapshot_id: ImageId
    token: Token


@dataclasses.dataclass(frozen=True)
class AbandonSnapshot(Message[bool]):
    """Have a snapshot be removed that Glance is not, or was not, told of.

    :ivar token: as of ``begin_snapshot``.

    The answer: whether nothing is left of it by now.
    """

    snapshot_id: ImageId
    token: Token


# Of operators.

@dataclasses.dataclass(frozen=True)
class ListHosts(Message[list[dict[str, Any]]]):
    """Return a page of the hosts that have reported, by name; an empty page is the end.

    :ivar marker: the last host of the page before; None for the first page.

    The answer: of each ``host``, ``seen`` (seconds ago), ``images``, ``bytes`` and ``quotas`` (both
    by tier), ``unsettled``, ``paused``, ``rpc`` and ``certificates_end`` as of its report.
    """

    entry_key = 'host'
    marker: HostName | None = None


@dataclasses.dataclass(frozen=True)
class HostBases(Message[dict[str, Any] | None]):
    """Return how a host reads bases, or None if the host has not reported.

    The answer: ``seen`` (seconds since the report), and ``bases``, as of the report.
    """

    host: HostName


@dataclasses.dataclass(frozen=True)
class ForgetHost(Message[bool]):
    """Forget which images' bases a host needs, as it is gone for good.

    Refused of one that has reported within five minutes. The answer: False if nothing is known of
    the host.
    """

    host: HostName


@dataclasses.dataclass(frozen=True)
class ListNodes(Message[list[dict[str, Any]]]):
    """Return the storage nodes, by name.

    The answer: of each ``name``, ``state`` (``up``, ``away``, ``out``), ``wish`` (``drained``,
    ``forgotten`` or None), ``restored`` (it removes no file), ``silent`` (seconds since its beat
    was seen to change), ``images`` (on which it works), ``free_bytes``, ``rpc`` and ``answers`` (it
    has given this answer).
    """

    since = '2.1'


@dataclasses.dataclass(frozen=True)
class SetNodeWish(Message[bool]):
    """Have other storage nodes take over a node's images, or no more.

    :ivar name: of the node.
    :ivar wish: drained: it gets no images any more; forgotten: it is gone for good, refused while
        it works; None: it works as all others.

    The answer: False if there is no node of that name.
    """

    since = '2.1'
    name: HostName
    wish: NodeWish | None


@dataclasses.dataclass(frozen=True)
class ImageHosts(Message[dict[str, Any] | None]):
    """Return where an image's cache image is, or None if the image is not known.

    The answer: ``storage`` (disk, memory or None), ``storage_bytes`` (of the storage node's file),
    ``hosts``: a list of ``host``, ``medium``, ``bytes``, ``last_use`` (seconds since the epoch),
    ``seen`` (seconds since the host's report) and ``leaving`` (it is to let go of it);
    ``exchanged``, of hosts that asked for a file by exchange, as they tell: ``file`` (cache image,
    full base), ``size``, ``to``, ``way`` (an ExchangeWay), ``copied`` (bytes from the storage
    node's exporter) and ``got`` (``[host, bytes]``, the host empty for the storage node's
    exchange).
    """

    image_id: ImageId


@dataclasses.dataclass(frozen=True)
class EvictImage(Message[list[str]]):
    """Have hosts let go of an image's cache image, as soon as no server of theirs needs it.

    :ivar hosts: names of hosts; None for all of them, and the storage node's memory tier.

    The answer: names of the hosts that hold it.
    """

    image_id: ImageId
    hosts: HostNames | None


@dataclasses.dataclass(frozen=True)
class WarmImage(Message[list[dict[str, Any]]]):
    """Have Nova precache an image on the hosts of aggregates.

    :ivar aggregates: names.

    The answer: as of ``get_warming``.
    """

    image_id: ImageId
    aggregates: Aggregates


@dataclasses.dataclass(frozen=True)
class GetWarming(Message[list[dict[str, Any]]]):
    """Return how far the warming of an image is, for each aggregate asked for.

    The answer: of each ``aggregate``, ``done``, ``reason`` (why Nova cannot be asked, or why it
    ended without hosts; else empty), and ``hosts``: by name ``outcome`` (a WarmOutcome),
    ``reason`` and ``attempts``.
    """

    image_id: ImageId


@dataclasses.dataclass(frozen=True)
class ListImages(Message[list[dict[str, Any]]]):
    """Return a page of the images' manifests, by id, with the progress of their jobs.

    An empty page is the end.

    :ivar marker: the last image of the page before; None for the first page.
    """

    entry_key = 'image_id'
    marker: ImageId | None = None


@dataclasses.dataclass(frozen=True)
class GetImage(Message[dict[str, Any] | None]):
    """Return an image's manifest, with its progress, or None if it is not known.

    ``kept_for`` is a list of what may need its base: hosts, and, while a base is to go and cannot,
    what else was found. ``node`` is the name of the storage node that works on the image.
    """

    image_id: ImageId


@dataclasses.dataclass(frozen=True)
class GetWorkingSet(Message[dict[str, Any] | None]):
    """Return an image's working set document, or None if it has none."""

    image_id: ImageId


@dataclasses.dataclass(frozen=True)
class BuildImage(Message[None]):
    """Record and build an image anew, also if it failed or is ready."""

    image_id: ImageId


@dataclasses.dataclass(frozen=True)
class DeleteImage(Message[bool]):
    """Forget an image's cache image and working set; Glance's image is not touched.

    The answer: False if nothing was known of it.
    """

    image_id: ImageId


@dataclasses.dataclass(frozen=True)
class PinImage(Message[bool]):
    """Keep an image's cache image in every tier that it is in, or no longer.

    The answer: False if the image is not known.
    """

    image_id: ImageId
    pinned: bool
