"""Recording a boot in a growing store of its own, which is exported for one overlay."""

import contextlib
from collections.abc import Callable, Collection, Sequence
from typing import Any

from bootcache import growingstore, naming
from bootcache.growingstore import GrowingStore, Mark
from bootcache.storagedaemon import StorageDaemon

# Small, as the set should be exact: whoever builds from it rounds up.
GRANULARITY = 4096
# Kind of the base's node: no image's node has it, it is there first and goes last. So it tells of
# what is left of a recording.
BASE = 'rb'


def discard_leftovers(daemon: StorageDaemon, under_way: Collection[str] = ()) -> None:
    """Remove exports and nodes of recordings that nobody finishes, as of an earlier process.

    :param under_way: names of recordings that somebody finishes; looked into after it was seen
        what there is, so that one which begins meanwhile can be in it.
    :raises StorageDaemonError: if the daemon does not answer or refuses.
    """
    nodes, exports = daemon.nodes(), daemon.exports()
    known = tuple(under_way)
    for export in exports:
        kind, _, name = export.partition('-')
        if kind == naming.EXPORT_RECORDING and name not in known:
            daemon.remove_export(export, disconnect=True)
    length = len(naming.node_name(BASE, ''))
    bases = {node[:length] for node in nodes if node.startswith(f'{BASE}-')}
    for base in bases - {naming.node_name(BASE, name) for name in known}:
        digest = base.removeprefix(f'{BASE}-')
        present = sorted(daemon.nodes())
        daemon.remove_nodes(*(node for kind in (*growingstore.KINDS, BASE) for node in present
                              if node.startswith(f'{kind}-{digest}')))
        growingstore.remove_throttle(daemon, f'{growingstore.THROTTLE}-{digest}')


class Recording(GrowingStore):
    """A growing store on top of a base in a storage daemon, exported read-only for one overlay.

    :ivar name: of the nodes and the export, for instance the server's id; two recordings of one
        image may overlap, as one server goes while the next one starts.
    :ivar export: that the overlay stands on.

    :param daemon: where the nodes live.
    :param base_nodes: block nodes of the base, lowest first; the last one is the base itself.
    :param virtual_bytes: size of the base.
    :param path: of the growing store; made new, removed at the end.
    :param check: as of ``GrowingStore``.
    """

    def __init__(self, daemon: StorageDaemon, name: str, base_nodes: Sequence[dict[str, Any]],
                 virtual_bytes: int, path: str, check: Callable[[], None] | None = None):
        super().__init__(daemon, name, str(base_nodes[-1]['node-name']), virtual_bytes, path,
                         GRANULARITY, check)
        self.export = naming.export_name(naming.EXPORT_RECORDING, name)
        self._base_nodes = list(base_nodes)

    def open(self) -> Mark:
        """Set up the nodes and the export; from then on somebody has to look at it.

        :returns: the place at which it begins.
        :raises BootcacheError: if the daemon or qemu-img refuses; nothing is left then.
        """
        self.discard()
        try:
            self.create()
            self._daemon.add_nodes(*self._base_nodes)
            self.add_nodes()
            begin = self.mark()
            self._daemon.add_export(self.export, self.node(growingstore.FILTER))
        except Exception:
            self.discard()
            raise
        self.grows = True
        return begin

    def discard(self) -> None:
        """Remove what is there of it, also of one of an earlier process."""
        self.grows = False
        with contextlib.suppress(Exception):
            if self.export in self._daemon.exports():
                self._daemon.remove_export(self.export, disconnect=True)
        with contextlib.suppress(Exception):
            self.remove()
        with contextlib.suppress(Exception):
            present = self._daemon.nodes()
            self._daemon.remove_nodes(*(
                str(node['node-name']) for node in reversed(self._base_nodes)
                if node['node-name'] in present))
