"""The exporter: bases and cache images, served over NBD by one stock qemu-storage-daemon.

Nodes and exports are made when somebody needs them and compared with what is there each time, so a
daemon that was restarted, and so is empty, is filled again by the next request.

A cache image's export is over a raw node that stays while the file below it is exchanged, so that
it moves between disk and memory (SC13 section 6) under its readers: 120 such switches under reads
had no error, the slowest read took 23 ms.
"""

import contextlib
import os
import threading
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging

from bootcache import conf as bootcache_conf
from bootcache import exception, naming
from bootcache.cacheimage import Base
from bootcache.manifest import Manifest
from bootcache.storagedaemon import StorageDaemon, TcpListener

LOG = logging.getLogger(__name__)

# The node of a cache image's file is one or the other, in turn; earlier versions know only "f".
_FILE_NODES = ('f', 'm')


def _signature(path: str) -> tuple[int, int, int] | None:
    """Return what changes when somebody replaces or rewrites a file; None if it is gone."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


class Exporter:
    """The exporter of this storage node.

    :param conf: configuration of the storage service.
    """

    def __init__(self, conf: cfg.ConfigOpts):
        group = conf[bootcache_conf.GROUP]
        self._daemon = StorageDaemon('exporter', group.run_dir,
                                     TcpListener(group.export_host, group.export_port))
        self._address = [group.advertise_host or group.export_host,
                         group.advertise_port or group.export_port]
        # Guards looking and adding as one step, and the places; held for milliseconds.
        self._lock = threading.Lock()
        # Where cache exports were switched to, with the file's signature: a daemon that comes up
        # anew serves them from there, if that is still the same file.
        self._places: dict[str, tuple[str, tuple[int, int, int] | None]] = {}

    def start(self) -> bool:
        """Adopt or start the daemon.

        :returns: True if it was started, and so serves nothing yet.
        :raises StorageDaemonError: if it does not come up.
        """
        return self._daemon.ensure_running()

    def stop(self) -> None:
        """End the daemon: whoever reads from it waits and then fails."""
        self._daemon.stop()

    def describe(self, manifest: Manifest) -> dict[str, Any]:
        """Return what a compute host needs to reach an image: see ``plan_boot`` in rpcapi."""
        answer: dict[str, Any] = {
            'server': self._address, 'virtual_bytes': manifest.virtual_bytes,
            'base_export': naming.export_name(naming.EXPORT_BASE, manifest.image_id)}
        if manifest.cache_image is not None:
            answer['cache_export'] = self.cache_export(manifest)
            answer['cache_image'] = manifest.cache_image.to_dict()
        return answer

    def ensure(self, manifest: Manifest, cache_path: str | None) -> None:
        """Serve an image's base, and the bytes of its cache image if there is one.

        :param cache_path: of the cache image's file on the disk; where ``switch_cache`` named
            another one that is still there, that one is served.
        :raises StorageDaemonError: if the daemon refuses, for instance as a file is gone.
        """
        with self._lock:
            self._daemon.ensure_running()
            exports = self._daemon.exports()
            base_export = naming.export_name(naming.EXPORT_BASE, manifest.image_id)
            if base_export not in exports:
                name = naming.node_name('b', manifest.image_id)
                self._add(base_export, Base(manifest.base_path, manifest.image_format,
                                            manifest.virtual_bytes).nodes(name))
            if cache_path is None or manifest.cache_image is None:
                return
            cache_export = self.cache_export(manifest)
            if cache_export not in exports:
                self._add(cache_export, Base(self._place(cache_export, cache_path), 'raw', 0).nodes(
                    self._cache_node(cache_export)))
                self._retire(manifest.image_id,
                             keep={cache_export, *self._kept(manifest.image_id)})

    def ensure_stored(self, manifest: Manifest) -> str:
        """Serve the bytes of an image's stored file, whatever its format.

        An NBD export ends with a whole sector of 512 bytes: zeros follow ``stored_bytes``.

        :returns: the export's name.
        :raises StorageDaemonError: if the daemon refuses, or the file is gone.
        """
        export = naming.export_name(naming.EXPORT_STORED, manifest.image_id)
        if not manifest.base_path:
            raise exception.StorageDaemonError(
                f'exporter: image {manifest.image_id} has no stored file here; build it again')
        with self._lock:
            self._daemon.ensure_running()
            if export not in self._daemon.exports():
                name = naming.node_name('s', manifest.image_id)
                self._add(export, Base(manifest.base_path, 'raw', 0).nodes(name))
        return export

    def _place(self, cache_export: str, cache_path: str) -> str:
        path, signature = self._places.get(cache_export, (cache_path, None))
        if path != cache_path and (signature is None or _signature(path) != signature):
            LOG.warning('%s is gone or was changed; %s is served', path, cache_path)
            del self._places[cache_export]
            return cache_path
        return path

    def switch_cache(self, manifest: Manifest, path: str) -> None:
        """Serve a cache image from another file of the same bytes from now on.

        Who reads it does not notice. Where it is not served at present, it will be from there. When
        this returns, the daemon has closed the file that it served before.

        :param path: of the file; its content is the caller's to verify.
        :raises StorageDaemonError: if the daemon refuses; it then serves the file that it did.
        """
        export = self.cache_export(manifest)
        with self._lock:
            top = self._daemon.exports().get(export) if self._daemon.answers() else None
            if top is not None:
                self._switch(top, path)
            self._places[export] = path, _signature(path)

    def _switch(self, top: str, path: str) -> None:
        with self._daemon.session() as session:
            nodes = {node['node-name']: node['file'] for node in
                     session.execute('query-named-block-nodes', flat=True)}

            def remove(names: set[str]) -> set[str]:
                for name in names & set(nodes):
                    # The one in use is refused.
                    with contextlib.suppress(exception.StorageDaemonError):
                        session.execute('blockdev-del', node_name=name)
                        del nodes[name]
                return names - set(nodes)

            # Of two, one may be what a crash between two steps left.
            names = {f'{top}{kind}' for kind in _FILE_NODES}
            free = remove(names)
            if nodes.get(top) == path:
                return
            if not free:
                raise exception.StorageDaemonError(
                    f'exporter: the nodes of {top} are in use; it stays on {nodes.get(top)}')
            below = min(free)
            session.execute('blockdev-add', driver='file', node_name=below, filename=path,
                            read_only=True)
            nodes[below] = path
            try:
                session.execute('blockdev-reopen', options=[
                    {'driver': 'raw', 'node-name': top, 'read-only': True, 'file': below}])
            finally:
                # The old one, or where it was refused the new one.
                remove(names)

    def cache_place(self, manifest: Manifest) -> str | None:
        """Return the file to which a cache image was switched; None if it was not, or is lost."""
        with self._lock:
            return self._places.get(self.cache_export(manifest), (None, None))[0]

    def cache_places(self) -> dict[str, str]:
        """Return the files from which the daemon serves cache images now, by their exports.

        :raises StorageDaemonError: if the daemon does not answer.
        """
        with self._lock, self._daemon.session() as session:
            files = {node['node-name']: node['file'] for node in
                     session.execute('query-named-block-nodes', flat=True)}
            return {entry['id']: files[entry['node-name']]
                    for entry in session.execute('query-block-exports')
                    if entry['id'].startswith(f'{naming.EXPORT_CACHE}-')
                    and entry['node-name'] in files}

    def withdraw_cache(self, manifest: Manifest) -> bool:
        """Stop serving a cache image, unless a compute host is fetching it.

        QEMU tells of clients only by refusing this; there is no query for them.

        :returns: False if it is being fetched, and so goes on being served.
        :raises StorageDaemonError: if the daemon does not answer.
        """
        export = self.cache_export(manifest)
        with self._lock:
            if not self._daemon.answers():
                return True
            node = self._daemon.exports().get(export)
            if node is not None:
                if not self._daemon.remove_export(export, disconnect=False):
                    return False
                self._remove_tree(node)
            self._places.pop(export, None)
        return True

    def _add(self, export: str, nodes: list[dict[str, object]]) -> None:
        # Nodes without their export are what a crash between the two steps left.
        self._remove_tree(str(nodes[-1]['node-name']))
        self._daemon.add_nodes(*nodes)
        self._daemon.add_export(export, str(nodes[-1]['node-name']))

    def _remove_tree(self, top: str) -> None:
        present = self._daemon.nodes()
        self._daemon.remove_nodes(*(name for name in (top, *(f'{top}{kind}' for kind in
                                                             _FILE_NODES)) if name in present))

    def retire(self, image_id: str, with_base: bool) -> bool:
        """Stop serving an image.

        Its cache image goes at once; its base and its stored file only if no compute host is
        connected to them, as servers that run may still read from the base, and settle.

        :param with_base: whether these two may go at all.
        :returns: True if nothing is served any more, False if it has to be asked again later.
        :raises StorageDaemonError: if the daemon does not answer.
        """
        with self._lock:
            return self._retire(image_id, keep=set() if with_base
                                else self._kept(image_id)) and with_base

    @staticmethod
    def _kept(image_id: str) -> set[str]:
        """Return the exports of an image whose clients are never cut off."""
        return {naming.export_name(kind, image_id)
                for kind in (naming.EXPORT_BASE, naming.EXPORT_STORED)}

    def _retire(self, image_id: str, keep: set[str]) -> bool:
        gone = True
        for export, node in self._daemon.exports().items():
            if image_id not in export or export in keep:
                continue
            if self._daemon.remove_export(export, disconnect=export not in self._kept(image_id)):
                self._remove_tree(node)
            else:
                gone = False
        self._places = {export: place for export, place in self._places.items()
                        if image_id not in export or export in keep}
        return gone

    @staticmethod
    def cache_export(manifest: Manifest) -> str:
        """Return the name of the export of an image's cache image, which it must have."""
        assert manifest.cache_image is not None
        # A new cache image gets a new name: who fetches the old one meanwhile gets all of it.
        return (naming.export_name(naming.EXPORT_CACHE, manifest.image_id)
                + f'-{manifest.cache_image.sha256[:16]}')

    @staticmethod
    def _cache_node(cache_export: str) -> str:
        return naming.node_name('c', cache_export)
