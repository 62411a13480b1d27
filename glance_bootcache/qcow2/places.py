"""Which clusters of a qcow2 hold its tables: none holds two, and no data lies on one."""

import functools
import operator
from collections.abc import Iterable

from bootcache.exception import ImageRefused

# Bits 9 to 55 of an entry.
OFFSET = 0x00fffffffffffe00


class Places:
    """The clusters of one file that are taken.

    Memory: some 100 bytes for each; whoever adds bounds how many.

    :param cluster_bits: logarithm of a cluster's bytes.
    :param file_bytes: length of the file.
    """

    def __init__(self, cluster_bits: int, file_bytes: int):
        self._bits = cluster_bits
        self._file_bytes = file_bytes
        # A file may end within its last cluster of data.
        self._clusters = -(-file_bytes >> cluster_bits)
        self._taken: set[int] = set()

    def take(self, offset: int, length: int, what: str) -> None:
        """Note where a table is.

        :param length: in bytes; nothing is noted for 0.
        :raises ImageRefused: if it is not at a cluster's begin, not within the file, or lies on
            another table.
        """
        if not length:
            return
        if offset & ((1 << self._bits) - 1):
            raise ImageRefused(f'{what}, at {offset}, does not begin with a cluster')
        if offset + length > self._file_bytes:
            raise ImageRefused(f'{what}, at {offset}, is not within the file')
        clusters = range(offset >> self._bits, -(-(offset + length) >> self._bits))
        if not self._taken.isdisjoint(clusters):
            raise ImageRefused(f'{what}, at {offset}, lies on the header or another table')
        self._taken.update(clusters)

    def take_entry(self, entry: int, reserved: int, what: str) -> None:
        """Note the cluster that a table's entry leads to, if it does.

        :param reserved: the bits that have to be 0.
        :raises ImageRefused: as ``take``, and if one of them is not 0.
        """
        if entry & reserved:
            raise ImageRefused(f'an entry for {what} has bits that are reserved')
        if entry & OFFSET:
            self.take(entry & OFFSET, 1 << self._bits, what)

    def check_offsets(self, entries: Iterable[int], what: str) -> None:
        """Check that entries lead to clusters of their own, whatever is in these.

        :raises ImageRefused: if one leads into a cluster, beyond the file, or onto a table.
        """
        offsets = {entry & OFFSET for entry in entries}
        if functools.reduce(operator.or_, offsets, 0) & ((1 << self._bits) - 1):
            raise ImageRefused(f'{what} is not at the begin of a cluster')
        # What is not allocated leads to 0.
        offsets.discard(0)
        self.check_clusters({offset >> self._bits for offset in offsets}, what)

    def check_clusters(self, clusters: set[int], what: str) -> None:
        """Check that clusters are within the file, and hold no table; raises ImageRefused."""
        if clusters and max(clusters) >= self._clusters:
            raise ImageRefused(f'{what} is not within the file')
        if not self._taken.isdisjoint(clusters):
            raise ImageRefused(f'{what} lies on the header or a table')
