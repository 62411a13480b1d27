"""How far and how fast a growing store may grow. Pure.

Within a second a look at its size comes, also on a busy host; what it may take must last so long.
"""

from bootcache.storekeeper import LOOK_SECONDS

_MOST_RESERVE = 32 << 20
_LEAST_RESERVE = 384 << 10
# Space that a store that grows has for itself beyond what is in it. In memory it is taken from
# everybody, and cleared: there it is what two seconds need, at the pace of the last look.
AHEAD = 256 << 20
_LEAST_AHEAD_IN_MEMORY, _SECONDS_AHEAD_IN_MEMORY = 64 << 20, 2


def reserve(limit: int) -> int:
    """Return the bytes before a limit at which a store stops to grow."""
    return min(_MOST_RESERVE, max(_LEAST_RESERVE, limit // 8))


def spare(limit: int) -> int:
    """Return the bytes of its medium that a store leaves to others: below it stops to grow.

    :param limit: of the store, in bytes.
    """
    return reserve(limit) // 4


def ahead(grown: int, is_in_memory: bool) -> int:
    """Return the bytes beyond what is in it that a store is to have for itself.

    :param grown: bytes by which it has grown since the look before.
    :param is_in_memory: whether it lies on a tmpfs.
    """
    if not is_in_memory:
        return AHEAD
    return min(AHEAD, max(_LEAST_AHEAD_IN_MEMORY,
                          round(grown / LOOK_SECONDS) * _SECONDS_AHEAD_IN_MEMORY))


def horizon(limit: int, size: int, held: int, free: int, beyond: int = AHEAD) -> int:
    """Return how large a store may become until the next look, in bytes of its file.

    :param size: of the store now.
    :param held: size up to which the medium's space is the store's already.
    :param free: bytes of the medium that are nobody's.
    :param beyond: bytes beyond its size that it is to have, see :func:`ahead`.
    """
    own = max(size, held)
    return min(limit, max(own, min(size + beyond, own + free - spare(limit))))


def write_rate(limit: int, size: int) -> int:
    """Return the bytes a second with which a store may grow: the rest lasts a look's time.

    :param limit: size that the store may have until the next look, see :func:`horizon`.
    :param size: of the store, in bytes.
    """
    rest = max(limit - size, 0)
    # Powers of two, so that it changes a few times only.
    return max(1 << 16, 1 << max(rest - 1, 1).bit_length() - 1)
