"""Recording a working set: a growing store below the overlay, filled by copy-on-read.

The store is a qcow2 whose clusters are allocated in the order of their first reads, so its own map,
sorted by place in the file, is the working set (SC13 section 3.2, figure 5; no patched QEMU). The
size of the file over time tells when each cluster came.
"""

import bisect
import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Container, Sequence
from typing import Any

from oslo_log import log as logging

from bootcache import naming, qemuimg, workingset
from bootcache.storagedaemon import StorageDaemon
from bootcache.workingset import Extent

LOG = logging.getLogger(__name__)

# Small, as the set should be exact: whoever builds from it rounds up.
GRANULARITY = 4096


@dataclasses.dataclass(frozen=True)
class Sample:
    """How large the growing store was at a time.

    :ivar seconds: since the recording was opened.
    :ivar file_bytes: size of the store's file.
    """

    seconds: float
    file_bytes: int


def extents_from_map(entries: Sequence[dict[str, Any]], samples: Sequence[Sample]) -> list[Extent]:
    """Turn a growing store's map into extents in first-read order. Pure.

    Data clusters are sorted by their place in the file. Clusters that read as zeros have no place;
    they come last, without a time (most are never asked for: see bootcache/cacheimage.py).

    :param entries: of :func:`bootcache.qemuimg.allocation_map`.
    :param samples: sizes over time, ascending; the first growth counts as second 0.
    """
    placed = sorted((entry for entry in entries if entry['data'] and 'offset' in entry),
                    key=lambda entry: entry['offset'])
    zeros = [entry for entry in entries if entry.get('present') and entry['zero']]
    start = samples[0].file_bytes if samples else 0
    grown = next((sample.seconds for sample in samples if sample.file_bytes > start), 0.0)
    sizes = [sample.file_bytes for sample in samples]

    def seconds_of(file_offset: int) -> float | None:
        index = bisect.bisect_right(sizes, file_offset)
        if index == len(sizes):
            return None
        return round(max(0.0, samples[index].seconds - grown), 3)

    extents: list[Extent] = []
    for entry in placed:
        # One entry may have grown over several samples: split it where the file grew.
        position, file_offset, left = entry['start'], entry['offset'], entry['length']
        while left:
            index = bisect.bisect_right(sizes, file_offset)
            length = left if index == len(sizes) else min(left, sizes[index] - file_offset)
            extents.append(Extent(position, length, seconds_of(file_offset)))
            position, file_offset, left = position + length, file_offset + length, left - length
    extents.extend(Extent(entry['start'], entry['length']) for entry in zeros)
    return extents


# Kinds of nodes; of one length, so that they differ in nothing else.
_FILTER, _STORE, BASE = 'rf', 'rs', 'rb'


def discard_leftovers(daemon: StorageDaemon, under_way: Container[str] = ()) -> None:
    """Remove exports and nodes of recordings that nobody finishes, as of an earlier process.

    :param under_way: names of recordings that somebody finishes; looked into after it was seen
        which exports there are, so that one which begins meanwhile can be in it.
    :raises StorageDaemonError: if the daemon does not answer or refuses.
    """
    for export, node in daemon.exports().items():
        if not export.startswith(f'{naming.EXPORT_RECORDING}-'):
            continue
        if export.removeprefix(f'{naming.EXPORT_RECORDING}-') in under_way:
            continue
        daemon.remove_export(export, disconnect=True)
        names = [node.replace(f'{_FILTER}-', f'{kind}-', 1) for kind in (_FILTER, _STORE, BASE)]
        present = daemon.nodes()
        daemon.remove_nodes(*(name for name in names if name in present))


class Recording:
    """A growing store on top of a base in a storage daemon, exported read-only for one overlay.

    :param daemon: where the nodes live.
    :param name: of the nodes and the export, for instance the server's id; two recordings of one
        image may overlap, as one server goes while the next one starts.
    :param base_nodes: block nodes of the base, lowest first; the last one is the base itself.
    :param virtual_bytes: size of the base.
    :param store_path: the growing store; made new, removed at the end.
    """

    def __init__(self, daemon: StorageDaemon, name: str, base_nodes: Sequence[dict[str, Any]],
                 virtual_bytes: int, store_path: str):
        self._daemon = daemon
        self._base_nodes = list(base_nodes)
        self._virtual_bytes = virtual_bytes
        self.store_path = store_path
        self.export = naming.export_name(naming.EXPORT_RECORDING, name)
        self._store_node = naming.node_name(_STORE, name)
        self._filter_node = naming.node_name(_FILTER, name)
        self._samples: list[Sample] = []
        self._stopped = threading.Event()
        self._sampler: threading.Thread | None = None

    def open(self, listener: Callable[[int, float], None] | None = None,
             interval: float = 0.1) -> None:
        """Set up the nodes and the export, and begin to watch the store grow.

        :param listener: called about once a second with the bytes recorded so far and the seconds
            since the last growth; it must not block for long.
        :param interval: seconds between two looks at the store's size.
        :raises BootcacheError: if the daemon or qemu-img refuses.
        """
        self.discard()
        qemuimg.create_standalone(self.store_path, self._virtual_bytes, GRANULARITY)
        base = self._base_nodes[-1]['node-name']
        self._daemon.add_nodes(
            *self._base_nodes,
            {'driver': 'qcow2', 'node-name': self._store_node, 'read-only': False, 'backing': base,
             'file': {'driver': 'file', 'filename': self.store_path},
             # All tables stay in memory: thousands of small clusters, all over the base.
             'l2-cache-size': 32 << 20},
            {'driver': 'copy-on-read', 'node-name': self._filter_node, 'file': self._store_node})
        self._daemon.add_export(self.export, self._filter_node)
        self._sampler = threading.Thread(target=self._watch, args=(listener, interval),
                                         name='bootcache-recording', daemon=True)
        self._sampler.start()

    def _watch(self, listener: Callable[[int, float], None] | None, interval: float) -> None:
        began = grown = told = time.monotonic()
        first = last = -1
        while not self._stopped.is_set():
            try:
                size = os.stat(self.store_path).st_size
            except OSError:
                return
            now = time.monotonic()
            if size != last:
                self._samples.append(Sample(now - began, size))
                grown, last = now, size
                first = size if first < 0 else first
            if listener is not None and now - told >= 1:
                told = now
                try:
                    listener(last - first, now - grown)
                except Exception:
                    LOG.exception('a recording\'s progress could not be told')
            self._stopped.wait(interval)

    def finish(self) -> list[Extent]:
        """Close the store, and return the extents in first-read order, aligned to GRANULARITY.

        To be called when the overlay's server does not run any more. The store is removed.

        :raises BootcacheError: if the store cannot be read.
        """
        self._stop_watching()
        try:
            # Closing the node writes its tables out; before that the map would lack most of it.
            self._remove_nodes()
            entries = qemuimg.allocation_map(self.store_path)
            extents = extents_from_map(entries, self._samples)
            return workingset.align(extents, GRANULARITY, self._virtual_bytes)
        finally:
            self.discard()

    def discard(self) -> None:
        """Remove what is there of the recording, also of one of an earlier process."""
        self._stop_watching()
        with contextlib.suppress(Exception):
            self._remove_nodes()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.store_path)

    def _stop_watching(self) -> None:
        self._stopped.set()
        if self._sampler is not None:
            self._sampler.join()
            self._sampler = None
        self._stopped.clear()

    def _remove_nodes(self) -> None:
        if self.export in self._daemon.exports():
            self._daemon.remove_export(self.export, disconnect=True)
        present = self._daemon.nodes()
        names = [self._filter_node, self._store_node,
                 *(node['node-name'] for node in reversed(self._base_nodes))]
        self._daemon.remove_nodes(*(name for name in names if name in present))
