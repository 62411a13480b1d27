"""Expanding a compressed cache image: the same clusters in the same order, as they are in the base.

Whoever reads a compressed cluster unpacks it, each time and every reader for itself. What is
expanded is read as it lies there; the order is still that of the first reads (YOLO's boot image).
QEMU moves the data: its copy-on-read filter, below which the compressed one is the backing file.
"""

import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bootcache import cachelayout, exception, qemuimg, watched, workingset
from bootcache.clusterplaces import ClusterPlaces
from bootcache.workingset import Extent

# What is read at once.
_REQUEST_BYTES = 2 << 20
# QEMU compresses some clusters at the same time, and stores first what is done first. So many bytes
# of the base from its place one may lie, on a machine with other work.
_OUT_OF_ORDER_BYTES = 2 << 20
# Nobody waits for it, and it may have to wait for all others.
_GRACE_SECONDS = 60
_SLOWEST = 256 << 10
# Where servers wait for it, and there is another way.
_SLOWEST_AWAITED = 8 << 20
_PROMPT = 'qemu-io> '


@dataclasses.dataclass(frozen=True)
class Layout:
    """What a cache image holds.

    :ivar data: in the order in which it lies in the file.
    :ivar zeros: what is marked as zeros, ascending.
    :ivar compressed: how many clusters are compressed.
    :ivar virtual_bytes: size of the base.
    :ivar cluster_bytes: cluster size.
    """

    data: tuple[Extent, ...]
    zeros: tuple[Extent, ...]
    compressed: int
    virtual_bytes: int
    cluster_bytes: int

    @property
    def expanded_bytes(self) -> int:
        """How large the file becomes when nothing is compressed, in bytes; an upper bound."""
        # The end of the base may lie within a cluster.
        return workingset.total_bytes(self.data) + self.cluster_bytes + cachelayout.metadata_bytes(
            self.data, self.cluster_bytes, self.virtual_bytes) if self.data else self.cluster_bytes


def in_order(areas: Iterable[Extent], places: Mapping[int, int],
             cluster_bytes: int) -> tuple[Extent, ...]:
    """Put areas of a cache image into the order in which their clusters lie in its file. Pure.

    :param areas: with data; each begins at a cluster's begin.
    :param places: of clusters in the file, by their offset in the base; one without is last.
    """
    lengths = {offset: min(cluster_bytes, area.end - offset) for area in areas
               for offset in range(area.offset, area.end, cluster_bytes)}
    order = sorted(lengths, key=lambda offset: (places.get(offset, sys.maxsize), offset))
    rank = {offset: number for number, offset in enumerate(order)}
    far = _OUT_OF_ORDER_BYTES // cluster_bytes
    found: list[Extent] = []
    for offset in order:
        if offset not in lengths:
            continue
        # What is beside it in the base, and lies nearby in the file, was read together with it.
        begin, last = offset, rank[offset]
        while begin - cluster_bytes in lengths and rank[begin - cluster_bytes] - last <= far:
            begin -= cluster_bytes
        end = begin
        while end in lengths and (end <= offset or rank[end] - last <= far):
            last = max(last, rank[end])
            end += lengths.pop(end)
        found.append(Extent(begin, end - begin))
    return tuple(found)


def commands(layout: Layout) -> str:
    """Return what qemu-io is told to do, to have all of a layout copied on read. Pure."""
    told = []
    told += [f'read -q {offset} {length}'
             for offset, length in workingset.pieces(layout.data, _REQUEST_BYTES)]
    told += [f'write -q -z {zero.offset} {zero.length}' for zero in layout.zeros]
    return '\n'.join([*told, 'flush', 'quit', ''])


def present(entries: Iterable[Mapping[str, Any]]) -> tuple[tuple[int, int], ...]:
    """Return what a file has of its own, from begin to end each, by qemu-img map. Pure."""
    return tuple(workingset.joined((entry['start'], entry['start'] + entry['length'])
                                   for entry in entries if entry['present']))


def layout(path: str) -> Layout:
    """Return what a cache image holds.

    :param path: of its file.
    :raises BootcacheError: if it is none.
    :raises OSError: if it cannot be read.
    """
    there = ClusterPlaces(path)
    entries = [entry for entry in qemuimg.allocation_map(path) if entry['present']]

    def areas(is_data: bool) -> list[Extent]:
        return [Extent(entry['start'], entry['length']) for entry in entries
                if entry['data'] is is_data]

    return Layout(in_order(areas(True), there.places, there.cluster_bytes), tuple(areas(False)),
                  there.compressed, there.virtual_bytes, there.cluster_bytes)


def fill(path: str, target: str, wanted: Layout, check: Callable[[], None]) -> None:
    """Make an expanded file of a compressed cache image, with the same backing pointer.

    :param path: of the compressed one, which servers may read from.
    :param target: the new file; written over if it is there.
    :param wanted: the layout of the compressed one.
    :param check: called several times a second; what it raises gives it up.
    :raises BootcacheError: if it cannot be made.
    """
    copy(alone(path), target, wanted, check, is_awaited=False)
    about = qemuimg.info(path, 'qcow2')
    if 'backing-filename' in about:
        qemuimg.set_backing_pointer(target, about['backing-filename'],
                                    about.get('backing-filename-format', 'raw'))


def copy(source: Mapping[str, Any], target: str, wanted: Layout, check: Callable[[], None],
         is_awaited: bool) -> None:
    """Copy what a layout has from a node into a new file, in the layout's order.

    :param source: the node, read-only.
    :param target: the new file, without a backing pointer; written over if it is there.
    :param check: called several times a second; what it raises gives it up.
    :param is_awaited: whether somebody waits for it; otherwise it lets all others go first.
    :raises BootcacheError: if it cannot be made.
    """
    qemuimg.create_standalone(target, wanted.virtual_bytes, wanted.cluster_bytes)
    node = {'driver': 'copy-on-read', 'file': {
        'driver': 'qcow2', 'file': {'driver': 'file', 'filename': target}, 'backing': source}}
    command = ['qemu-io', 'json:' + json.dumps(node)]
    code, said = watched.run(
        command if is_awaited else watched.behind_all(command),
        _GRACE_SECONDS + wanted.expanded_bytes / _SLOWEST_AWAITED if is_awaited
        else _seconds(wanted), check, commands(wanted))
    if code:
        lines: Sequence[str] = said.replace(_PROMPT, '').split('\n')
        raise exception.BootcacheError(f'qemu-io failed (exit {code}): {lines[-1].strip()}')


def compare(path: str, target: str, wanted: Layout, check: Callable[[], None]) -> None:
    """Check that an expanded file and the compressed one are the same to whoever reads them.

    They read the same, and have the same clusters: what one does not have comes from the base.

    :param wanted: the layout of the compressed one.
    :param check: called several times a second; what it raises gives it up.
    :raises BootcacheError: if they are not, or it cannot be told.
    """
    qemuimg.check(target)
    code, said = watched.run(
        watched.behind_all(['qemu-img', 'compare', '-q', 'json:' + json.dumps(alone(path)),
                            'json:' + json.dumps(alone(target))]), _seconds(wanted), check)
    if code not in (0, 1):
        raise exception.BootcacheError(f'qemu-img compare failed (exit {code}): {said}')
    if code or present(qemuimg.allocation_map(path)) != present(qemuimg.allocation_map(target)) \
            or ClusterPlaces(target).compressed:
        raise exception.BootcacheError(
            'the expanded file is another one than the compressed; look at this host\'s disk and'
            ' memory')


def alone(path: str) -> dict[str, Any]:
    """Return the read-only node of a qcow2 without its backing file."""
    return {'driver': 'qcow2', 'read-only': True, 'backing': None,
            'file': {'driver': 'file', 'filename': path}}


def _seconds(wanted: Layout) -> float:
    return _GRACE_SECONDS + wanted.expanded_bytes / _SLOWEST
