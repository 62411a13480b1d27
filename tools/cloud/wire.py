"""What crossed the wire: Glance's access log and the tap between gateway and exporter."""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

_LINE = re.compile(r"\S+ \S+ connection=(\d+) (\w+) (.*)")
_EXPORT = re.compile(r"export=(\S*)")
_RANGE = re.compile(r"offset=(0x[0-9a-f]+) count=(0x[0-9a-f]+)")
_READS, _WRITES = ("Read", "Cache"), ("Write",)
# A host's watch reads so much of each base that servers read, every three seconds.
_WATCHED_BYTES = 4096


@dataclass(frozen=True)
class Request:
    """A request on the wire.

    :ivar export: the export's name; those of bases begin with ``base-``.
    :ivar offset: bytes.
    :ivar length: bytes.
    """

    export: str
    offset: int
    length: int


@dataclass(frozen=True)
class Position:
    """A point in both logs."""

    tap: int
    access: int


class Wire:
    """Both logs; a window is what was written between two positions.

    :param tap_log: nbdkit's.
    :param access_log: Glance's, JSON lines.
    """

    def __init__(self, tap_log: Path, access_log: Path) -> None:
        self._tap_log = tap_log
        self._access_log = access_log

    def position(self) -> Position:
        """Where both logs end now, with a whole line."""
        return Position(end_of_lines(self._tap_log), end_of_lines(self._access_log))

    def requests(self, begin: Position, end: Position) -> list[Request]:
        """Read requests to the exporter within a window, without those of hosts' watches."""
        return [
            request for request in parse_tap(self._tap_log.read_bytes()[: end.tap], begin.tap)
            if request.length != _WATCHED_BYTES or not request.export.startswith("base-")
        ]  # fmt: skip

    def written(self, begin: Position, end: Position) -> int:
        """Bytes that hosts wrote to the exporter within a window; zeros that are none of them."""
        written = parse_tap(self._tap_log.read_bytes()[: end.tap], begin.tap, _WRITES)
        return sum(request.length for request in written)

    def downloaded(self, begin: Position, end: Position, image_id: str) -> int:
        """Bytes of an image's data that Glance sent within a window, complete answers only."""
        path = f"/v2/images/{image_id}/file"
        text = self._access_log.read_bytes()[begin.access : end.access].decode()
        answers = [json.loads(line) for line in text.splitlines()]
        return sum(
            answer["sent"] for answer in answers
            if answer["method"] == "GET" and answer["path"] == path and answer["status"] == 200
        )  # fmt: skip


def end_of_lines(log: Path) -> int:
    """Where the last whole line of a log ends: more of the next one may be written already."""
    with open(log, "rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        # A line is shorter than that.
        start = max(0, size - 65536)
        stream.seek(start)
        return start + stream.read(size - start).rfind(b"\n") + 1


def parse_tap(log: bytes, begin: int = 0, verbs: tuple[str, ...] = _READS) -> list[Request]:
    """Requests of some kinds in a tap's log from an offset on; which export a connection reads is
    said when it begins, perhaps long before."""
    exports: dict[str, str] = {}
    found = []
    position = 0
    for raw in log.splitlines(keepends=True):
        position += len(raw)
        match = _LINE.match(raw.decode(errors="replace"))
        if not match:
            continue
        connection, verb, rest = match.groups()
        if verb == "Connect" and (export := _EXPORT.search(rest)):
            exports[connection] = export.group(1)
        elif verb in verbs and position > begin and (span := _RANGE.search(rest)):
            offset, length = (int(number, 16) for number in span.groups())
            found.append(Request(exports.get(connection, ""), offset, length))
    return found
