"""A tenant's file, read in pieces of bounded size."""

import array
import os
import sys
from collections.abc import Iterator

from bootcache.exception import ImageRefused

# The largest cluster that a qcow2 can have.
PIECE_BYTES = 2 << 20


class Reader:
    """Reads an open file at places that the file itself names.

    :param descriptor: of the file; it is not closed.
    :param length: of the file, in bytes.
    """

    def __init__(self, descriptor: int, length: int):
        self._descriptor = descriptor
        self.length = length

    def read(self, offset: int, count: int, what: str) -> bytes:
        """Return bytes of the file.

        :param count: at most ``PIECE_BYTES``.
        :param what: lies there, for the error.
        :raises ImageRefused: if the file does not have all of them.
        :raises OSError: if it cannot be read.
        """
        if count > PIECE_BYTES:
            raise ValueError(f'{count} bytes are more than a piece')
        if offset + count > self.length:
            raise ImageRefused(f'{what}, at {offset}, is not within the file')
        pieces = []
        while count:
            # A part of them only comes where a signal does, or the end.
            if not (piece := os.pread(self._descriptor, count, offset)):
                raise ImageRefused(f'{what}, at {offset}, is not within the file')
            pieces.append(piece)
            offset, count = offset + len(piece), count - len(piece)
        return b''.join(pieces)

    def words(self, offset: int, count: int, what: str) -> Iterator["array.array[int]"]:
        """Yield a table's entries of 64 bits, a piece at a time; raises as ``read``."""
        while count:
            some = min(count, PIECE_BYTES // 8)
            entries = array.array('Q', self.read(offset, 8 * some, what))
            if sys.byteorder == 'little':
                entries.byteswap()
            yield entries
            offset, count = offset + 8 * some, count - some
