"""The exporter: bases and cache images, served over NBD by one stock qemu-storage-daemon.

Nodes and exports are made when somebody needs them, and bases go again when nobody does. What the
daemon serves is remembered, as hosts ask hundreds of times a second; a daemon that was restarted is
known by its process, and upkeep looks what is really there.

A cache image moves between disk and memory under its readers: see switching.py.
"""

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging

from bootcache import conf as bootcache_conf
from bootcache import exception, naming, steps
from bootcache.breaker import Breaker
from bootcache.cacheimage import Base
from bootcache.manifest import Manifest
from bootcache.storagedaemon import StorageDaemon, TcpListener
from glance_bootcache.storage import admission, switching

LOG = logging.getLogger(__name__)

# Tells in the log which export a client asks for: see readerrors.py.
_TRACE = 'nbd_negotiate_handle_export_name_request'
# For which to wait for the monitor, or for who has it; after that nobody asks for so many seconds.
_PATIENCE_SECONDS = 10
_SILENCE_SECONDS = 10


class Exporter:
    """The exporter of this storage node.

    :param conf: configuration of the storage service.
    """

    def __init__(self, conf: cfg.ConfigOpts):
        group = conf[bootcache_conf.GROUP]
        admitted = admission.configured(conf)
        self._speaks_tls = admitted is not None
        self._daemon = StorageDaemon('exporter', group.run_dir,
                                     TcpListener(group.export_host, group.export_port),
                                     patience=_PATIENCE_SECONDS,
                                     breaker=Breaker(1, _SILENCE_SECONDS), trace=_TRACE,
                                     admission=admitted)
        self._admission = admission.KeptAdmission(self._daemon, admitted)
        self._address = [group.advertise_host or group.export_host,
                         group.advertise_port or group.export_port]
        # What the daemon of this process id serves: exports, with their nodes. Changed by who has
        # the monitor alone, which makes looking and adding one step, and read by anybody.
        self._served: dict[str, str] = {}
        self._served_by: int | None = None
        # When exports were asked for last, in monotonic seconds; written before _served is read.
        self._asked_at: dict[str, float] = {}
        # Images whose base is served no more, as it cannot be read in a place. Each step is atomic.
        self._suspended: set[str] = set()
        # Exports of cache images whose files go just now, with what is set when that is over.
        # Entered by who has the monitor alone.
        self._leaving: dict[str, threading.Event] = {}

    def _alone(self) -> contextlib.AbstractContextManager[None]:
        """Have the daemon for this thread.

        :raises StorageDaemonBusy: if another one has it for longer than this one waits.
        """
        return self._daemon.monitor.alone()

    def start(self) -> bool:
        """Adopt or start the daemon, and look what it serves.

        One that lets in others than it is to, as with certificates before they were renewed, is
        ended, and started.

        :returns: True if it was started, and so serves nothing yet.
        :raises StorageDaemonError: if it does not come up.
        """
        with self._alone():
            self._admission.keep()
            started = self._daemon.ensure_running()
            self._look()
        return started

    def _look(self) -> dict[str, str]:
        """Ask the daemon what it serves; by who has it alone."""
        self._served_by = None
        pid = self._daemon.pid()
        self._served = self._daemon.exports()
        self._served_by = pid
        return self._served

    def _is_served(self, *exports: str) -> bool:
        """Tell whether the daemon that runs serves these, without asking it."""
        now = time.monotonic()
        for export in exports:
            self._asked_at[export] = now
        pid = self._daemon.pid()
        return pid is not None and pid == self._served_by \
            and all(export in self._served for export in exports)

    def _exports(self) -> dict[str, str]:
        """Return what the daemon serves; by who has it alone."""
        pid = self._daemon.pid()
        if pid is not None and pid == self._served_by:
            return self._served
        self._daemon.ensure_running()
        return self._look()

    def stop(self) -> None:
        """End the daemon: whoever reads from it waits and then fails."""
        self._daemon.stop()

    def describe(self, manifest: Manifest) -> dict[str, Any]:
        """Return what a compute host needs to reach an image: see ``plan_boot`` in rpcapi."""
        answer: dict[str, Any] = {
            'server': self._address, 'tls': self._speaks_tls,
            'virtual_bytes': manifest.made.virtual_bytes,
            'base_export': self.base_export(manifest)}
        if manifest.made.cache_image is not None:
            answer['cache_export'] = self.cache_export(manifest)
            answer['cache_image'] = manifest.made.cache_image.to_dict()
        return answer

    def ensure(self, manifest: Manifest, cache_path: str | None) -> None:
        """Serve an image's base, and the bytes of its cache image if there is one.

        :param cache_path: of the cache image's file, see ``StorageTiers.path``; one that is served
            already stays where it is.
        :raises StorageDaemonError: if the daemon refuses, for instance as a file is gone.
        """
        base_export = self.base_export(manifest)
        has_cache = cache_path is not None and manifest.made.cache_image is not None
        wanted = (base_export, self.cache_export(manifest)) if has_cache else (base_export,)
        if self._is_served(*wanted):
            return
        while True:
            with self._alone():
                leaving = self._leaving.get(self.cache_export(manifest)) if has_cache else None
                if leaving is None:
                    self._ensure(manifest, cache_path)
                    return
            # Its file is being removed, or is not after all: that takes milliseconds.
            if not leaving.wait(_PATIENCE_SECONDS):
                raise exception.StorageDaemonBusy(
                    f'exporter: the cache image of {manifest.image_id} is being removed')

    def _ensure(self, manifest: Manifest, cache_path: str | None) -> None:
        base_export = self.base_export(manifest)
        if manifest.image_id in self._suspended:
            raise exception.StorageDaemonError(
                f'exporter: the base of {manifest.image_id} cannot be read in a place; all of it is'
                ' being read to know more')
        exports = self._exports()
        if base_export not in exports:
            name = naming.node_name('b', manifest.image_id)
            self._add(base_export, Base(manifest.made.base_path, manifest.made.image_format,
                                        manifest.made.virtual_bytes).nodes(name))
        if cache_path is None or manifest.made.cache_image is None:
            return
        cache_export = self.cache_export(manifest)
        if cache_export not in exports:
            self._add(cache_export, Base(cache_path, 'raw', 0).nodes(
                self._cache_node(cache_export)))
            self._retire(manifest.image_id, keep=cache_export, keep_bases=True)

    def ensure_stored(self, manifest: Manifest) -> str:
        """Serve the bytes of an image's stored file, whatever its format.

        An NBD export ends with a whole sector of 512 bytes: zeros follow ``stored_bytes``.

        :returns: the export's name.
        :raises StorageDaemonError: if the daemon refuses, or the file is gone.
        """
        export = naming.export_name(naming.EXPORT_STORED, manifest.image_id)
        if not manifest.made.base_path:
            raise exception.StorageDaemonError(
                f'exporter: image {manifest.image_id} has no stored file here; build it again')
        if self._is_served(export):
            return export
        with self._alone():
            if export not in self._exports():
                name = naming.node_name('s', manifest.image_id)
                self._add(export, Base(manifest.made.base_path, 'raw', 0).nodes(name))
        return export

    def switch_cache(self, manifest: Manifest, path: str) -> None:
        """Serve a cache image from another file of the same bytes from now on.

        Who reads it does not notice; where it is not served at present, nothing is to be done. When
        this returns, the daemon has closed the file that it served before.

        :param path: of the file; its content is the caller's to verify.
        :raises StorageDaemonError: if the daemon refuses; it then serves the file that it did.
        """
        export = self.cache_export(manifest)
        with self._alone():
            top = self._daemon.exports().get(export) if self._runs() else None
            if top is not None:
                with self._daemon.session() as session:
                    switching.switch(session, top, path)

    def cache_places(self) -> dict[str, str]:
        """Return the files from which the daemon serves cache images now, by their exports.

        :raises StorageDaemonError: if the daemon does not answer.
        """
        with self._daemon.session() as session:
            return switching.places(session)

    @contextlib.contextmanager
    def withdrawn(self, manifest: Manifest) -> Iterator[bool]:
        """Stop serving a cache image, and do not serve it anew before the end of the block.

        Its file is removed there, and no export of a file that was removed comes to be: whoever has
        it served meanwhile waits, though no lock is held. QEMU tells of clients only by refusing
        this; there is no query for them.

        :returns: False if a compute host is fetching it, so that it goes on being served, or if
            somebody else withdraws it just now.
        :raises StorageDaemonError: if the daemon does not answer.
        """
        export = self.cache_export(manifest)
        with self._alone():
            gone = export not in self._leaving and self._withdraw(export)
            if gone:
                self._leaving[export] = threading.Event()
        try:
            yield gone
        finally:
            if gone:
                self._leaving.pop(export).set()

    def _withdraw(self, export: str) -> bool:
        if self._runs():
            node = self._look().get(export)
            if node is not None:
                if not self._remove(export, disconnect=False):
                    return False
                self._remove_tree(node)
        self._asked_at.pop(export, None)
        return True

    def _runs(self) -> bool:
        """Tell whether there is a daemon. One that does not answer goes on serving."""
        return self._daemon.pid() is not None or self._daemon.answers()

    def withdraw_idle(self, image_id: str, idle: float) -> None:
        """Serve an image's base and stored file no more, if nobody has asked for them in a while.

        Not while a host is connected: QEMU refuses that. The cache image stays: its node is of our
        own making and takes some kilobytes, while that of a tenant's qcow2 keeps its tables.

        :param idle: seconds.
        :raises StorageDaemonError: if the daemon does not answer.
        """
        for export in sorted(export for export in list(self._served)
                             if image_id in export and self._is_base(export)):
            before = time.monotonic() - idle
            if export not in self._served \
                    or self._asked_at.setdefault(export, time.monotonic()) > before:
                continue
            with self._alone():
                if (node := self._exports().get(export)) is None:
                    continue
                if self._remove(export, disconnect=False, unless_asked_since=before):
                    self._remove_tree(node)
                    self._asked_at.pop(export, None)
                    LOG.info('image %s: its %s is not served until it is asked for', image_id,
                             export.partition('-')[0])

    def _remove(self, export: str, disconnect: bool,
                unless_asked_since: float | None = None) -> bool:
        node = self._served.pop(export, None)
        gone = False
        try:
            # Who asks from now on does not find it, and waits for the monitor.
            gone = (unless_asked_since is None
                    or self._asked_at.get(export, 0.0) <= unless_asked_since) \
                and self._daemon.remove_export(export, disconnect=disconnect)
        except exception.StorageDaemonError:
            self._served_by = None
            raise
        if not gone and node is not None:
            self._served[export] = node
        return gone

    def _add(self, export: str, nodes: list[dict[str, object]]) -> None:
        top = str(nodes[-1]['node-name'])
        try:
            # Nodes without their export are what a crash between the two steps left.
            self._remove_tree(top)
            self._daemon.add_nodes(*nodes)
            steps.reached('serve: nodes')
            self._daemon.add_export(export, top)
        except exception.StorageDaemonError:
            # It may be another daemon than the one that is remembered.
            self._served_by = None
            raise
        self._served[export] = top

    @property
    def log_path(self) -> str:
        """The path of the daemon's log."""
        return self._daemon.log_path

    def suspend(self, image_id: str) -> bool:
        """Have ``ensure`` refuse an image until ``resume``; False if it does already."""
        if image_id in self._suspended:
            return False
        self._suspended.add(image_id)
        return True

    def resume(self, image_id: str) -> None:
        """Let an image be served again."""
        self._suspended.discard(image_id)

    def cut_off(self, export: str) -> None:
        """Stop serving an export whose clients cannot read it, whoever is connected.

        :raises StorageDaemonError: if the daemon refuses.
        """
        with self._alone():
            node = self._look().get(export)
            if node is not None:
                self._remove(export, disconnect=True)
                self._remove_tree(node)

    def _remove_tree(self, top: str) -> None:
        present = self._daemon.nodes()
        names = (top, *(f'{top}{kind}' for kind in switching.FILE_NODES))
        self._daemon.remove_nodes(*(name for name in names if name in present))

    def retire(self, image_id: str, with_base: bool) -> bool:
        """Stop serving an image.

        Its cache image goes at once; its base and its stored file only if no compute host is
        connected to them, as servers that run may still read from the base, and settle.

        :param with_base: whether these two may go at all.
        :returns: True if nothing is served any more, False if it has to be asked again later.
        :raises StorageDaemonError: if the daemon does not answer.
        """
        with self._alone():
            return self._retire(image_id, keep_bases=not with_base) and with_base

    @staticmethod
    def _is_base(export: str) -> bool:
        """Tell whether an export is of a base or a stored file: its clients are never cut off."""
        return export.startswith((f'{naming.EXPORT_BASE}-', f'{naming.EXPORT_STORED}-'))

    def _retire(self, image_id: str, keep: str = '', keep_bases: bool = False) -> bool:
        gone = True
        for export, node in list(self._look().items()):
            if image_id not in export or export == keep \
                    or (keep_bases and self._is_base(export)):
                continue
            if self._remove(export, disconnect=not self._is_base(export)):
                self._remove_tree(node)
                self._asked_at.pop(export, None)
            else:
                gone = False
        return gone

    @staticmethod
    def base_export(manifest: Manifest) -> str:
        """Return the name of the export of an image's base."""
        return manifest.made.base_export \
            or naming.export_name(naming.EXPORT_BASE, manifest.image_id)

    @staticmethod
    def cache_export(manifest: Manifest) -> str:
        """Return the name of the export of an image's cache image, which it must have."""
        assert manifest.made.cache_image is not None
        # A new cache image gets a new name: who fetches the old one meanwhile gets all of it.
        return (naming.export_name(naming.EXPORT_CACHE, manifest.image_id)
                + f'-{manifest.made.cache_image.sha256[:16]}')

    @staticmethod
    def _cache_node(cache_export: str) -> str:
        return naming.node_name('c', cache_export)
