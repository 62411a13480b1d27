"""In which pieces a file is exchanged: their size follows from the file's."""

_LEAST_PIECE = 64 << 10
_MOST_PIECE = 16 << 20
# So a torrent has 64 KiB of hashes at most, for files up to 32 GiB.
_PIECES = 2048


def piece_bytes(size: int) -> int:
    """Return the size of a file's pieces, a power of two. Pure.

    :param size: of the file, in bytes.
    """
    wanted = _LEAST_PIECE
    while wanted < _MOST_PIECE and wanted * _PIECES < size:
        wanted *= 2
    return wanted
