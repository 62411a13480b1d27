"""Types of the fields of RPC messages, and their bounds. Pure.

Every user of the message bus can send any value. A bound reads a value as it came, and the same
text names the bound in errors and in doc/source/formats.rst.
"""

import base64
import dataclasses
import enum
import functools
import ipaddress
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

from bootcache import naming, workingset
from bootcache.quoting import one_line, quoted

# Nova's column for a name has as many characters.
LONGEST_NAME = 255
# A text for people is cut to so many characters; a longer one than the second is refused.
_LONGEST_LINE = 500
_TOO_LONG_TEXT = 65536
_LONGEST_CERTIFICATE = 1024
MOST_BYTES = 1 << 62
# Images in one host's report.
MOST_IMAGES = 10_000
_MOST_HOSTS = 20_000
_MOST_AGGREGATES = 1000
# Hosts that gave parts of a file, in one report of it.
MOST_GIVERS = 64
# Servers, guests or bases that a host's report names; it counts all of them.
MOST_NAMED = 50
_MOST_FIELDS = 100
_MOST_SECONDS = 1e9
# In seconds since the epoch: Python and X.509 have no date after the year 9999.
LATEST = 253402300799.0
_IMAGE_ID = re.compile(r'[0-9A-Fa-f]{8}-?(?:[0-9A-Fa-f]{4}-?){3}[0-9A-Fa-f]{12}')

Declared = TypeVar('Declared')


class OutOfBounds(ValueError):
    """A value is not what its field may be.

    :param why: for people: printable, and at most some 300 characters.
    :param part: dotted name of the part of the field, as declared; empty for all of it.
    """

    def __init__(self, why: str, part: str = ''):
        super().__init__(why)
        self.part = part


@dataclasses.dataclass(frozen=True)
class Bound:
    """What a field's value may be.

    :ivar wanted: for people, as in "... is not a SHA-256".
    :ivar read: returns a value as the service works with it; raises ValueError or TypeError.
    :ivar is_secret: errors do not quote the value.
    """

    wanted: str
    read: Callable[[Any], Any]
    is_secret: bool = False

    def __call__(self, value: Any) -> Any:
        """Read a value.

        :raises OutOfBounds: if it cannot be.
        """
        try:
            return self.read(value)
        except OutOfBounds:
            raise
        except (ValueError, TypeError, OverflowError):
            told = '' if self.is_secret else f'{quoted(value)} '
            raise OutOfBounds(f'{told}is not {self.wanted}') from None


def _must(holds: bool) -> None:
    if not holds:
        raise ValueError


def _matching(pattern: str, wanted: str, is_secret: bool = False) -> Bound:
    known = re.compile(pattern, re.ASCII)

    def read(value: Any) -> str:
        _must(isinstance(value, str) and known.fullmatch(value) is not None)
        return str(value)

    return Bound(wanted, read, is_secret)


def _printable(longest: int, without: str, wanted: str) -> Bound:
    def read(value: Any) -> str:
        _must(isinstance(value, str) and len(value) <= longest and value.isprintable()
              and not set(without) & set(value))
        return str(value)

    return Bound(wanted, read)


def _image_id(value: Any) -> str:
    _must(isinstance(value, str) and _IMAGE_ID.fullmatch(value) is not None)
    return naming.canonical_image_id(value)


def _text(longest: int) -> Bound:
    def read(value: Any) -> str:
        _must(isinstance(value, str) and len(value) <= _TOO_LONG_TEXT)
        return one_line(value)[:longest]

    return Bound(f'a text of at most {_TOO_LONG_TEXT} characters, of which {longest} are kept',
                 read)


def _whole(least: int, most: int) -> Bound:
    def read(value: Any) -> int:
        _must(type(value) is int and least <= value <= most)
        return int(value)

    return Bound(f'a whole number from {least} to {most}', read)


def _number(most: float, wanted: str) -> Bound:
    def read(value: Any) -> float:
        _must(type(value) in (int, float) and 0 <= value <= most and value < math.inf)
        return float(value)

    return Bound(wanted, read)


def one_of(values: Mapping[Any, Any]) -> Bound:
    """Return a bound of a few values; True is not 1.

    :param values: what the service works with, by what is sent.
    """
    def read(value: Any) -> Any:
        _must(type(value) in (str, bool))
        known = next(((sent, meant) for sent, meant in values.items()
                      if type(sent) is type(value) and sent == value), None)
        _must(known is not None)
        return known and known[1]

    return Bound(f'one of {", ".join(map(str, values))}', read)


def sequence(value: Any, most: int) -> list[Any]:
    """Return a list whose entries are read later.

    :raises OutOfBounds: if it is none, or too long.
    """
    if not isinstance(value, list | tuple):
        raise OutOfBounds(f'{quoted(value)} is not a list')
    if len(value) > most:
        raise OutOfBounds(f'{len(value)} entries are more than {most}')
    return list(value)


def mapping(value: Any, most: int = _MOST_FIELDS) -> dict[Any, Any]:
    """Return a mapping whose entries are read later.

    :raises OutOfBounds: if it is none, or too long.
    """
    if not isinstance(value, dict):
        raise OutOfBounds(f'{quoted(value)} is not a mapping')
    if len(value) > most:
        raise OutOfBounds(f'{len(value)} entries are more than {most}')
    return value


def _list_of(bound: Bound, most: int, form: type = list) -> Bound:
    return Bound(f'a list of at most {most} entries, each {bound.wanted}',
                 lambda value: form(map(bound, sequence(value, most))))


def _pair(wanted: str, first: Bound, second: Bound) -> Bound:
    def read(value: Any) -> tuple[Any, Any]:
        one, other = sequence(value, 2)
        return first(one), second(other)

    return Bound(wanted, read)


def _granularity(value: Any) -> int:
    _must(workingset.is_granularity(value))
    return int(value)


def _address(value: Any) -> str:
    return str(ipaddress.ip_address(NAME(value)))


NAME = _printable(LONGEST_NAME, '', f'a name of at most {LONGEST_NAME} printable characters')
HOST_NAME = _matching(rf'[\w.:@%+-]{{1,{LONGEST_NAME}}}',
                      f'a host\'s name: 1 to {LONGEST_NAME} letters, digits and any of'
                      ' . : @ % + _ -')
IMAGE_ID = Bound('an image\'s id', _image_id)
TOKEN = _matching('[0-9a-f]{32}', '32 hexadecimal digits', is_secret=True)
VERSION = _matching(r'[0-9]{1,4}\.[0-9]{1,4}', 'a version')
_ADDRESS = Bound('an IPv4 or IPv6 address', _address)
_SIZE = _whole(0, MOST_BYTES)
_PORT = _whole(1, 65535)
_PLACE = _pair('a host and a port', NAME, _PORT)

# An id becomes part of a path. It is read in its canonical form.
ImageId = Annotated[str, IMAGE_ID]
ImageIds = Annotated[tuple[str, ...], Bound(
    f'a list of at most {MOST_IMAGES} images\' ids',
    lambda value: tuple(map(IMAGE_ID, sequence(value, MOST_IMAGES))))]
# Of a server, project or rack; it may be empty.
Name = Annotated[str, NAME]
# As Nova's option ``host`` has it.
HostName = Annotated[str, HOST_NAME]
HostNames = Annotated[list[str], _list_of(HOST_NAME, _MOST_HOSTS)]
Aggregates = Annotated[list[str], _list_of(NAME, _MOST_AGGREGATES)]
# A rule of QEMU's that is made of the name takes a star for any characters.
CertificateName = Annotated[str, _printable(
    _LONGEST_CERTIFICATE, '*?', f'a distinguished name of at most {_LONGEST_CERTIFICATE} printable'
    ' characters, without * and ?')]
Sha256 = Annotated[str, _matching('[0-9a-f]{64}', 'a SHA-256')]
Token = Annotated[str, TOKEN]
Address = Annotated[str, _ADDRESS]
Port = Annotated[int, _PORT]
# For people: made one line, and cut.
Line = Annotated[str, _text(_LONGEST_LINE)]
ShortLine = Annotated[str, _text(LONGEST_NAME)]
# In bytes.
Size = Annotated[int, _SIZE]
DiskSize = Annotated[int, _whole(512, MOST_BYTES)]
Granularity = Annotated[int, Bound('a power of two from 512 to 2 MiB', _granularity)]
# ``[offset, length, seconds]``: bootcache.workingset reads them when the image's size is known.
Extents = Annotated[list[list[Any]], Bound(
    f'a list of at most {workingset.MAX_EXTENTS} extents',
    lambda value: sequence(value, workingset.MAX_EXTENTS))]
Seconds = Annotated[float, _number(_MOST_SECONDS, f'a number from 0 to {_MOST_SECONDS:g}')]
# In seconds since the epoch; hosts' clocks differ.
PastTime = Annotated[float, _number(math.inf, 'a time in seconds since the epoch')]
Expiry = Annotated[float, _number(LATEST, f'a number from 0 to {LATEST:g}')]
# An address, and how many bytes came from there.
Givers = Annotated[list[tuple[str, int]], _list_of(
    _pair('an address with a number of bytes', _ADDRESS, _SIZE), MOST_GIVERS)]
Version = Annotated[str, VERSION]
# Of answers: where a daemon or an exchange listens; a host may be named.
Place = Annotated[tuple[str, int], _PLACE]
Places = Annotated[tuple[tuple[str, int], ...], _list_of(_PLACE, MOST_GIVERS, tuple)]
# Where exchanges of other hosts are.
Peers = Annotated[tuple[tuple[str, int], ...], _list_of(
    _pair('an address and a port', _ADDRESS, _PORT), MOST_GIVERS, tuple)]
# A location as Glance takes it, with a scheme; empty if there is none.
Url = Annotated[str, _matching(r'([a-z][a-z0-9+.-]*://[!-~]{1,1000})?',
                               'a URL of at most 1000 characters')]
# In base64.
Binary = Annotated[bytes, Bound('a text in base64', lambda value: base64.b64decode(
    value, validate=True))]


@dataclasses.dataclass(frozen=True)
class Entries:
    """Bound of a report's part: an entry that cannot be is left out of it, and the rest counts.

    :ivar entry: bound of an entry; for a mapping, of its value.
    :ivar key: bound of an entry's key; None for a list.
    """

    entry: Bound
    key: Bound | None = None

    @property
    def wanted(self) -> str:
        """The bound for people."""
        of = f', each {self.entry.wanted}' if self.key is None \
            else f': by {self.key.wanted} {self.entry.wanted}'
        return f'{"a list" if self.key is None else "a mapping"} of at most {MOST_IMAGES}' \
            f' entries{of}'

    def read(self, value: Any) -> tuple[Any, list[OutOfBounds]]:
        """Read the part.

        :returns: also why entries are left out, of some of them: a report of lies alone would take
            fifty times its length.
        :raises OutOfBounds: if it is no list or mapping, or too long.
        """
        found: list[Any] = []
        left_out: list[OutOfBounds] = []
        for entry in sequence(value, MOST_IMAGES) if self.key is None \
                else mapping(value, MOST_IMAGES).items():
            try:
                found.append(self.entry(entry) if self.key is None
                             else (self.key(entry[0]), self.entry(entry[1])))
            except OutOfBounds as error:
                if len(left_out) < MOST_NAMED:
                    left_out.append(error)
        return frozenset(found) if self.key is None else dict(found), left_out


def bound_of(annotation: Any) -> Any:
    """Return the bound that an annotation declares: a Bound, or Entries."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return next(bound for bound in arguments[1:] if isinstance(bound, Bound))
    if origin in (typing.Union, types.UnionType):
        some, = (one for one in arguments if one is not type(None))
        bound = bound_of(some)
        return bound if isinstance(bound, Entries) else Bound(
            f'{bound.wanted}, or null', lambda value: None if value is None else bound(value))
    if origin is Mapping:
        return Entries(bound_of(arguments[1]), bound_of(arguments[0]))
    if origin is frozenset:
        return Entries(bound_of(arguments[0]))
    if origin is tuple:
        bound = bound_of(arguments[0])
        return Bound(f'a list of at most {MOST_IMAGES} entries, of which {MOST_NAMED} are kept,'
                     f' each {bound.wanted}', lambda value: tuple(
                         bound(entry) for entry in sequence(value, MOST_IMAGES)[:MOST_NAMED]))
    if annotation is bool:
        return one_of({True: True, False: False})
    if isinstance(annotation, type) and issubclass(annotation, enum.StrEnum):
        return one_of({one.value: one for one in annotation})
    return Bound(f'a mapping with {", ".join(bounds(annotation))}',
                 lambda value: read(annotation, value))


def bounds(declared: Any) -> dict[str, Any]:
    """Return the bounds of a message's fields, or of a part's, by name."""
    return _bounds(declared)


@functools.cache
def _bounds(declared: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(declared, include_extras=True)
    return {field.name: bound_of(hints[field.name])
            for field in dataclasses.fields(declared) if field.metadata.get('is_sent', True)}


def needed(declared: Any) -> list[str]:
    """Return the names of the fields without a default."""
    return [field.name for field in dataclasses.fields(declared)
            if field.default is field.default_factory is dataclasses.MISSING]


def read(declared: type[Declared], value: Any) -> Declared:
    """Read the fields of a message, of an answer, or of a part; unknown ones are ignored.

    :raises OutOfBounds: if one is missing that has no default, or cannot be.
    """
    told = mapping(value)
    for field in needed(declared):
        if field not in told:
            raise OutOfBounds('is missing', field)
    found = {}
    for field, bound in bounds(declared).items():
        if field in told:
            try:
                found[field] = bound(told[field])
            except OutOfBounds as error:
                raise OutOfBounds(str(error), '.'.join(filter(None, (field, error.part)))) from None
    return declared(**found)


def plain(value: Any) -> Any:
    """Return a message, an answer, or a part of it, as JSON has it. Lists are plain already."""
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name))
                for field in dataclasses.fields(value) if field.metadata.get('is_sent', True)}
    if isinstance(value, Mapping):
        return {plain(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.value if isinstance(value, enum.Enum) else value
