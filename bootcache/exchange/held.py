"""What a session knows of one file."""

import dataclasses
from typing import Any

from bootcache.exchange.links import Link
from bootcache.exchange.torrent import Torrent


@dataclasses.dataclass
class Held:
    """One file.

    :ivar link: by which libtorrent opens it.
    :ivar until: after that it is dropped, in monotonic seconds.
    :ivar is_fetched: whether it is still on its way.
    :ivar came: whether it is, or was.
    :ivar rate: bytes a second at which it comes at most; 0 for no limit.
    :ivar given_before: bytes that were given before it was started over, as got_before.
    """

    torrent: Torrent
    handle: Any
    link: Link
    until: float
    is_fetched: bool
    came: bool
    rate: int = 0
    given_before: int = 0
    got_before: int = 0
