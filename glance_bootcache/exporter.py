"""The exporter: bases and cache images, served over NBD by one stock qemu-storage-daemon.

Nodes and exports are made when somebody needs them and compared with what is there each time, so a
daemon that was restarted, and so is empty, is filled again by the next request.
"""

import threading
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging

from bootcache import conf as bootcache_conf
from bootcache import naming
from bootcache.cacheimage import Base
from bootcache.manifest import Manifest
from bootcache.storagedaemon import StorageDaemon, TcpListener

LOG = logging.getLogger(__name__)


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
        # Guards looking and adding as one step; held for milliseconds.
        self._lock = threading.Lock()

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
            answer['cache_export'] = self._cache_export(manifest)
            answer['cache_image'] = manifest.cache_image.to_dict()
        return answer

    def ensure(self, manifest: Manifest, cache_path: str | None) -> None:
        """Serve an image's base, and the bytes of its cache image if there is one.

        :param cache_path: of the cache image's file.
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
            cache_export = self._cache_export(manifest)
            if cache_export not in exports:
                name = self._cache_node(cache_export)
                self._add(cache_export, Base(cache_path, 'raw', 0).nodes(name))
                self._retire(manifest.image_id, keep={cache_export, base_export})

    def _add(self, export: str, nodes: list[dict[str, object]]) -> None:
        # Nodes without their export are what a crash between the two steps left.
        stale = [node['node-name'] for node in reversed(nodes)
                 if node['node-name'] in self._daemon.nodes()]
        self._daemon.remove_nodes(*(str(name) for name in stale))
        self._daemon.add_nodes(*nodes)
        self._daemon.add_export(export, str(nodes[-1]['node-name']))

    def retire(self, image_id: str, with_base: bool) -> bool:
        """Stop serving an image.

        Its cache image goes at once; its base only if no compute host is connected to it, as
        servers that run may still read from it.

        :param with_base: whether the base may go at all.
        :returns: True if nothing is served any more, False if it has to be asked again later.
        :raises StorageDaemonError: if the daemon does not answer.
        """
        base = naming.export_name(naming.EXPORT_BASE, image_id)
        with self._lock:
            return self._retire(image_id, keep=set() if with_base else {base}) and with_base

    def _retire(self, image_id: str, keep: set[str]) -> bool:
        base_export = naming.export_name(naming.EXPORT_BASE, image_id)
        gone = True
        for export, node in self._daemon.exports().items():
            if image_id not in export or export in keep:
                continue
            if self._daemon.remove_export(export, disconnect=export != base_export):
                self._daemon.remove_nodes(node, f'{node}f')
            else:
                gone = False
        return gone

    @staticmethod
    def _cache_export(manifest: Manifest) -> str:
        assert manifest.cache_image is not None
        # A new cache image gets a new name: who fetches the old one meanwhile gets all of it.
        return (naming.export_name(naming.EXPORT_CACHE, manifest.image_id)
                + f'-{manifest.cache_image.sha256[:16]}')

    @staticmethod
    def _cache_node(cache_export: str) -> str:
        return naming.node_name('c', cache_export)
