"""What a host holds, as the scheduler sees it: levels, and the entry that carries them. Pure.

The entry is a string in the ``stats`` that Nova's resource tracker publishes of a host, below
``STATS_KEY``. It is a JSON object: ``version``, and for each level but COLD, by its lower-case
name, the keys of the images at that level, separated by spaces (doc/source/formats.rst).
"""

import dataclasses
import enum
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

STATS_KEY = 'bootcache'
VERSION = 1
# What an entry may have, in bytes. Nova keeps all of a host's stats, with a counter for each
# project that has a server there, in a column of so many bytes (MySQL's TEXT); they grow until
# Nova asks again, a minute later.
LIMIT = 16 << 10
_COLUMN_BYTES = 65_535
_GROWTH_BYTES = 4 << 10

# 12 hexadecimal digits of 40: the sha1 is the name of stock Nova's base, whose image nobody may
# know any more. Two of a million images share a key once in 560 clouds, and are then taken for one
# another by the weigher, which costs seconds and nothing else.
_KEY_DIGITS = 12


class Level(enum.IntEnum):
    """How warm a host is for an image; the higher the better."""

    COLD = 0
    BASE = 1       # stock Nova's full base is there: servers have settled, or came from stock Nova
    ARRIVING = 2   # the cache image is being fetched
    DISK = 3
    MEMORY = 4


_PUBLISHED = (Level.MEMORY, Level.DISK, Level.ARRIVING, Level.BASE)


@dataclasses.dataclass(frozen=True)
class Holding:
    """What a host has of one image.

    :ivar key: the image's, see :func:`image_key`.
    :ivar level: not COLD.
    :ivar last_use: seconds since the epoch; if not all fit, the longest unused are left out.
    """

    key: str
    level: Level
    last_use: float


@dataclasses.dataclass(frozen=True)
class WarmthEntry:
    """An entry that was read.

    :ivar levels: for each level that has any, the best first, its keys, separated by spaces.
        Looking for a key in such a string is cheaper than a set, in memory by far.
    """

    levels: tuple[tuple[Level, str], ...] = ()

    def level(self, key: str) -> Level:
        """Return how warm the host is for an image.

        :param key: of :func:`image_key`; no part of one, nor two, can be taken for it.
        """
        for level, keys in self.levels:
            if key in keys:
                return level
        return Level.COLD


NOTHING = WarmthEntry()


def image_key(image_id: str) -> str:
    """Return an image's key."""
    return base_key(hashlib.sha1(image_id.encode(), usedforsecurity=False).hexdigest())


def base_key(file_name: str) -> str:
    """Return the key of the image whose stock base or cache image has a file name.

    :param file_name: the sha1 of the image's id, 40 hexadecimal digits.
    """
    return file_name[:_KEY_DIGITS]


def room(stats: Mapping[str, Any]) -> int:
    """Return the bytes that an entry may have beside what Nova keeps of a host.

    :param stats: Nova's of now, with the entry of before.
    """
    others = json.dumps({name: value for name, value in stats.items() if name != STATS_KEY})
    return max(0, min(LIMIT, _COLUMN_BYTES - _GROWTH_BYTES - len(others)))


def encode(holdings: Iterable[Holding], limit: int = LIMIT) -> str:
    """Return a host's entry; an image with several holdings counts with the best.

    :param limit: bytes; the most recently used images are in it.
    """
    best: dict[str, Holding] = {}
    for holding in holdings:
        other = best.get(holding.key)
        if other is None or holding.level > other.level:
            best[holding.key] = holding
    ordered = sorted(best.values(), key=lambda holding: (-holding.last_use, holding.key))
    overhead = len(_document({level: '' for level in _PUBLISHED}))
    kept = ordered[:max(0, (limit - overhead) // (_KEY_DIGITS + 1))]
    return _document({level: ' '.join(holding.key for holding in kept if holding.level is level)
                      for level in _PUBLISHED})


def _document(levels: dict[Level, str]) -> str:
    return json.dumps({'version': VERSION,
                       **{level.name.lower(): keys for level, keys in levels.items()}},
                      separators=(',', ':'))


def decode(text: str) -> WarmthEntry:
    """Read an entry.

    :raises ValueError: if it is damaged, too long, or of another version.
    """
    if not isinstance(text, str) or len(text) > LIMIT:
        raise ValueError('the entry is no text, or too long')
    document = json.loads(text)
    if not isinstance(document, dict) or document.get('version') != VERSION:
        raise ValueError(f'the entry is not of version {VERSION}')
    levels = []
    for level in _PUBLISHED:
        keys = document.get(level.name.lower(), '')
        if not isinstance(keys, str):
            raise ValueError(f'{level.name.lower()} is no text')
        if keys:
            levels.append((level, keys))
    return WarmthEntry(tuple(levels))
