"""Who gave how much of which file to whom, as hosts tell: bounded, in memory, for operators."""

import dataclasses
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import cachetools

from bootcache import rpcexchange

# Of each the latest are kept.
_MOST_FILES = 500
_MOST_HOSTS = 200


@dataclasses.dataclass(frozen=True)
class Came:
    """How a file came to a host.

    :ivar way: one of rpcexchange.WAYS.
    :ivar got: bytes by the hosts that gave them, an empty name for the storage node's exchange.
    :ivar copied: bytes that the storage node's exporter gave.
    """

    way: str
    got: Mapping[str, int]
    copied: int


class Given:
    """What hosts told of files that they got."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards what was told, for steps in memory
        self._files: cachetools.LRUCache[
            tuple[str, str, int], cachetools.LRUCache[str, Came]] = cachetools.LRUCache(_MOST_FILES)
        self._totals = {f'{way}_files': 0 for way in rpcexchange.WAYS} | {
            'exchanged_bytes': 0, 'storage_bytes': 0, 'copied_bytes': 0}

    def note(self, image_id: str, kind: str, size: int, host: str, way: str,
             got: Sequence[tuple[str, int]], copied: int, names: Mapping[str, str]) -> None:
        """Note how a file came to a host; what it told of before is replaced.

        :param kind: what it is to people.
        :param size: of the file, in bytes; no host got more of it than twice that.
        :param got: addresses, and bytes from each.
        :param names: of hosts by address; the storage node's has an empty one. Others are left out.
        """
        most = 2 * size
        came = Came(way, {names[address]: min(count, most) for address, count in got
                          if address in names}, min(copied, most))
        with self._lock:
            self._files.setdefault((image_id, kind, size),
                                   cachetools.LRUCache(_MOST_HOSTS))[host] = came
            self._totals[f'{way}_files'] += 1
            self._totals['copied_bytes'] += came.copied
            for giver, count in came.got.items():
                self._totals['exchanged_bytes' if giver else 'storage_bytes'] += count

    def describe(self, image_id: str) -> list[dict[str, Any]]:
        """Return who gave of an image's files to whom; see ``image_hosts`` in rpcapi."""
        with self._lock:
            found = [(kind, size, dict(hosts)) for (known, kind, size), hosts in self._files.items()
                     if known == image_id]
        return [{'file': kind, 'size': size, 'to': host, 'way': came.way, 'copied': came.copied,
                 'got': [[giver, count] for giver, count in sorted(came.got.items())]}
                for kind, size, hosts in found for host, came in hosts.items()]

    def totals(self) -> dict[str, int]:
        """Return the counts since the service's start."""
        with self._lock:
            return dict(self._totals)
