"""A compute host's report: its parts, and how the storage service reads them. Pure."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from bootcache.exception import MessageRefused
from bootcache.rpc import fields
from bootcache.rpc.fields import (
    Entries,
    Expiry,
    ImageId,
    OutOfBounds,
    PastTime,
    ShortLine,
    Size,
)
from bootcache.tier import Medium


@dataclasses.dataclass(frozen=True, slots=True)
class HeldImage:
    """A cache image on one host.

    :ivar last_use: seconds since the epoch.
    :ivar medium: the tier that it is in.
    :ivar generation: that ``plan_boot`` told the host when it placed the file, or used it last.
    :ivar bytes: the file's size.
    """

    last_use: PastTime
    medium: Medium
    generation: Size
    bytes: Size


@dataclasses.dataclass(frozen=True)
class UnsettledServer:
    """A server that depends on bootcache.

    :ivar server: its id.
    :ivar why: why it depends on it, for operators.
    """

    server: ShortLine
    why: ShortLine


@dataclasses.dataclass(frozen=True)
class UnsettledServers:
    """The servers of a host that depend on bootcache.

    :ivar servers: how many.
    :ivar named: some of them.
    """

    servers: Size
    named: tuple[UnsettledServer, ...]


@dataclasses.dataclass(frozen=True)
class PausedGuest:
    """A server whose guest is paused by an I/O error.

    :ivar server: its id.
    :ivar waits_for: the disk or base, for operators.
    :ivar since: seconds since the epoch.
    """

    server: ShortLine
    waits_for: ShortLine
    since: PastTime


@dataclasses.dataclass(frozen=True)
class PausedGuests:
    """The servers of a host whose guests are paused by an I/O error.

    :ivar servers: how many.
    :ivar named: some of them.
    """

    servers: Size
    named: tuple[PausedGuest, ...]


@dataclasses.dataclass(frozen=True)
class BaseRead:
    """How a host reads one base.

    :ivar image_id: of the base.
    :ivar way: the storage node's address, or the place in Ceph; empty if no way works.
    :ivar connector: through which it is read; empty if no way works.
    :ivar since: when the host began to read by that way, in seconds since the epoch.
    :ivar answered: None while the base's reads are answered, else when the last read was, in
        seconds since the epoch; 0 if none was.
    """

    image_id: ImageId
    way: ShortLine
    connector: ShortLine
    since: PastTime
    answered: PastTime | None


@dataclasses.dataclass(frozen=True)
class BasesRead:
    """The bases that a host reads.

    :ivar bases: how many.
    :ivar named: some of them.
    """

    bases: Size
    named: tuple[BaseRead, ...]


@dataclasses.dataclass(frozen=True)
class HostReport:
    """What a host holds, and what its servers need.

    Entries of ``images``, ``quotas`` and ``needs`` that cannot be are left out, and so are the
    other parts; the rest counts. A report with more entries than the bound is refused.

    :ivar images: cache images by image id.
    :ivar quotas: bytes by tier.
    :ivar needs: images whose base the host's servers may read; None if the host cannot tell, and
        may need any.
    :ivar unsettled: servers that depend on bootcache; None while the host does not know.
    :ivar paused: servers whose guests are paused; None if the host does not tell.
    :ivar bases: how the host reads bases; None if it does not tell.
    :ivar rpc: version of the RPC API that the host speaks; None if it does not tell.
    :ivar certificates_end: when the first of the host's certificates ends, in seconds since the
        epoch; None if it has none.
    :ivar left_out: some of what cannot be of each field; not sent.
    """

    images: Mapping[ImageId, HeldImage] = dataclasses.field(default_factory=dict)
    quotas: Mapping[Medium, Size] = dataclasses.field(default_factory=dict)
    needs: frozenset[ImageId] | None = None
    unsettled: UnsettledServers | None = None
    paused: PausedGuests | None = None
    bases: BasesRead | None = None
    rpc: fields.Version | None = None
    certificates_end: Expiry | None = None
    left_out: tuple[MessageRefused, ...] = dataclasses.field(
        default=(), compare=False, metadata={'is_sent': False})

    @classmethod
    def read(cls, value: Any) -> Self:
        """Read a report as it came; unknown parts are ignored.

        :raises OutOfBounds: if it is no mapping, or has too many entries.
        """
        told, found = fields.mapping(value), {}
        left_out: list[MessageRefused] = []
        for field, bound in fields.bounds(cls).items():
            if told.get(field) is None:
                continue
            try:
                found[field], refused = bound.read(told[field]) if isinstance(bound, Entries) \
                    else (bound(told[field]), [])
            except OutOfBounds as error:
                if isinstance(bound, Entries):
                    raise OutOfBounds(str(error), field) from None
                refused = [error]
            left_out += [MessageRefused(
                f'report.{field}', f'{error.part}: {error}' if error.part else str(error))
                for error in refused]
        return cls(**found, left_out=tuple(left_out))
