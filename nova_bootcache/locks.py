"""The locks of a compute host, and their order."""

import enum


class Rank(enum.IntEnum):
    """Threads take locks of lower ranks first: see bootcache/locks.py."""

    PLACING = 10
    ARRIVAL = 20
    GATEWAY = 50
