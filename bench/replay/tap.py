"""What crosses the storage node's wire, request by request: the log of a stock nbdkit in between.

It stands between the hosts and the exporter (log filter over the nbd plugin), and notes each
request with its export. Read piece by piece, as connections outlive what is measured.
"""

import collections
import dataclasses
import re
from collections.abc import Container, Iterable
from pathlib import Path

_LINE = re.compile(rb'\S+ \S+ connection=(\d+) (Connect|Read|Cache|Disconnect)\b(.*)')
_EXPORT = re.compile(rb'export=(\S*)')
_RANGE = re.compile(rb'offset=0x([0-9a-f]+) count=0x([0-9a-f]+)')


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """A read request on the wire: the export's name; bytes."""

    export: str
    offset: int
    length: int


@dataclasses.dataclass
class Traffic:
    """What was read of one kind of export.

    :ivar requests: how many.
    :ivar bytes: their lengths' sum.
    """

    requests: int = 0
    bytes: int = 0


class Tap:
    """Follows the log.

    :param path: nbdkit's log.
    """

    def __init__(self, path: Path):
        self._path = path
        self._position = 0
        self._exports: dict[bytes, str] = {}

    def read(self) -> list[Seen]:
        """Return the read requests since the last call."""
        with open(self._path, 'rb') as stream:
            stream.seek(self._position)
            data = stream.read()
        # A line that is being written is for the next call.
        data = data[:data.rfind(b'\n') + 1]
        self._position += len(data)
        return self.parse(data)

    def parse(self, data: bytes) -> list[Seen]:
        """Return the read requests of whole lines; connections of earlier lines are known."""
        found = []
        for line in data.splitlines():
            match = _LINE.match(line)
            if match is None:
                continue
            connection, verb, rest = match.groups()
            if verb == b'Connect' and (export := _EXPORT.search(rest)):
                self._exports[connection] = export.group(1).strip(b'"').decode()
            elif verb in (b'Read', b'Cache') and (span := _RANGE.search(rest)):
                found.append(Seen(self._exports.get(connection, ''),
                                  *(int(number, 16) for number in span.groups())))
        return found


def traffic(seen: Iterable[Seen], watched: Container[Seen] = ()) -> dict[str, Traffic]:
    """Return what was read by kind of export: ``base``, ``cache`` and others. Pure.

    :param watched: what hosts have read to know that a base has an answer; it is left out.
    """
    kinds: dict[str, Traffic] = collections.defaultdict(Traffic)
    for one in seen:
        if one in watched:
            continue
        kind = kinds[one.export.partition('-')[0]]
        kind.requests += 1
        kind.bytes += one.length
    return dict(kinds)
