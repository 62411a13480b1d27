"""How large cache images become, and what goes into them. Pure.

With compressed clusters all of this is an upper bound: a cluster that does not become smaller is
stored as it is, and one that does takes a part of one. How large the file is, is known when it is
there.
"""

import dataclasses
import enum
from collections.abc import Sequence

from bootcache import workingset
from bootcache.workingset import Extent

_HEADER_CLUSTERS = 8
_SUFFIX = '.qcow2'


class Compression(enum.StrEnum):
    """How a cache image's clusters are stored; the values are the option's."""

    NONE = 'none'
    ZSTD = 'zstd'


# Of a cache image's clusters, in bytes: what may be chosen, and what is chosen by default.
CLUSTER_SIZES = (4096, 16384, 32768, 65536)
DEFAULT_CLUSTER_BYTES = 65536
DEFAULT_COMPRESSION = Compression.ZSTD


def file_suffix(compression: Compression) -> str:
    """Return how the name of a cache image's file ends: ``.qcow2`` or ``.zstd.qcow2``. Pure.

    Versions that know nothing of compression copy and open such a file as any other, and would
    refuse a manifest or an answer with an entry more: so the name says it.
    """
    return _SUFFIX if compression is Compression.NONE else f'.{compression.value}{_SUFFIX}'


def compression_of(file: str) -> Compression:
    """Return how the clusters of a cache image's file are stored, by its name. Pure."""
    return Compression.ZSTD if file.endswith(file_suffix(Compression.ZSTD)) else Compression.NONE


def reaches(extents: Sequence[Extent], reach: int) -> list[int]:
    """Return the L2 tables that extents need, as multiples of a table's reach, ascending. Pure.

    :param reach: bytes of the base that a table tells of.
    """
    return sorted({index for extent in extents
                   for index in range(extent.offset // reach, (extent.end - 1) // reach + 1)})


def metadata_bytes(extents: Sequence[Extent], cluster_bytes: int, virtual_bytes: int) -> int:
    """Return an upper bound of what qcow2 tables take for these extents, in bytes. Pure.

    One L2 table of a cluster for each ``cluster_bytes² / 8`` bytes of the base that are touched,
    the L1 table, refcounts (16 bits a cluster) and the header.
    """
    reach = cluster_bytes * (cluster_bytes // 8)
    tables = len(reaches(extents, reach))
    l1 = -(-(-(-virtual_bytes // reach) * 8) // cluster_bytes)
    data = -(-workingset.total_bytes(extents) // cluster_bytes)
    refcounts = -(-(data + tables + l1) * 2 // cluster_bytes) + 1
    return (tables + l1 + refcounts + _HEADER_CLUSTERS) * cluster_bytes


def zero_areas(status: Sequence[Extent], extents: Sequence[Extent], cluster_bytes: int,
               virtual_bytes: int) -> list[Extent]:
    """Return the base's zero areas that cost nothing to mark: whole clusters below tables in use.

    Pure.

    :param status: areas of the base that read as zeros, ascending.
    :param extents: what the cache image holds.
    """
    reach = cluster_bytes * (cluster_bytes // 8)
    touched = set(reaches(extents, reach))
    areas: list[Extent] = []
    for area in status:
        start = -(-area.offset // cluster_bytes) * cluster_bytes
        # The last cluster of the base may be short and still is a whole one.
        end = area.end if area.end == virtual_bytes else area.end // cluster_bytes * cluster_bytes
        while start < end:
            stop = min(end, (start // reach + 1) * reach)
            if start // reach in touched:
                areas.append(Extent(start, stop - start))
            start = stop
    return areas


def fit(extents: Sequence[Extent], quota: int, cluster_bytes: int,
        virtual_bytes: int) -> list[Extent]:
    """Return the first extents whose cache image fits a quota, file and tables together. Pure.

    :param extents: aligned to ``cluster_bytes``, in first-read order.
    :param quota: bytes.
    """
    def first(clusters: int) -> list[Extent]:
        # The base's end may lie within a cluster, whose place in the order may be any.
        whole = [dataclasses.replace(extent, length=-(-extent.length // cluster_bytes)
                                     * cluster_bytes) for extent in extents]
        return [dataclasses.replace(extent, length=min(extent.length,
                                                       virtual_bytes - extent.offset))
                for extent in workingset.clip(whole, clusters * cluster_bytes)]

    def size(clusters: int) -> int:
        return clusters * cluster_bytes + metadata_bytes(first(clusters), cluster_bytes,
                                                         virtual_bytes)

    # The size grows with the number of clusters: the largest number that fits is looked for.
    fits = 0
    most = min(quota // cluster_bytes,
               sum(-(-extent.length // cluster_bytes) for extent in extents))
    while fits < most:
        middle = (fits + most + 1) // 2
        fits, most = (middle, most) if size(middle) <= quota else (fits, middle - 1)
    return first(fits)
