"""The exporter: bases and cache images, served over NBD by one stock qemu-storage-daemon.

Nodes and exports are made when somebody needs them, and bases go again when nobody does. What the
daemon serves is remembered, as hosts ask hundreds of times a second; a daemon that was restarted is
known by its process, and upkeep looks what is really there.

A cache image moves between disk and memory under its readers: the file below its export is
exchanged.

The export is over a raw node that stays, while the node of the file below it is another one (SC13
section 6: from disk to memory, and back): 120 such switches under reads had no error, the slowest
read took 23 ms.
"""

import contextlib
import dataclasses
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging

from bootcache import conf as bootcache_conf
from bootcache import errorlog, exception, naming, steps
from bootcache.cacheimage import Base
from bootcache.manifest import CacheDifference, Manifest
from bootcache.monitor import Session
from bootcache.storagedaemon import StorageDaemon, TcpListener
from bootcache.util.backoff import CircuitBreaker
from bootcache.util.logthrottle import LogThrottle
from glance_bootcache.ceph.opening import OpenClones
from glance_bootcache.storage import admission
from glance_bootcache.storage.clients import Client

LOG = logging.getLogger(__name__)


def of_base(manifest: Manifest) -> dict[str, str]:
    """Return the exports that are read from an image's base file, or its clone, with their nodes.

    A base that is got again has other nodes: an export that a host is connected to stays on the
    file or clone of before.
    """
    file = f'{manifest.image_id} {manifest.made.base_path}'
    return {manifest.made.base_export: naming.node_name('b', file),
            naming.export_name(naming.EXPORT_STORED, manifest.image_id):
                naming.node_name('s', file)}


def cache_export_name(manifest: Manifest) -> str:
    """Return the name of the export of an image's cache image, which it must have."""
    assert manifest.made.cache_image is not None
    # A new cache image gets a new name: who fetches the old one meanwhile gets all of it.
    return (naming.export_name(naming.EXPORT_CACHE, manifest.image_id)
            + f'-{manifest.made.cache_image.sha256[:16]}')


def difference_export(manifest: Manifest, difference: CacheDifference) -> str:
    """Return the name of the export of the difference of an image's cache image."""
    return (naming.export_name(naming.EXPORT_DIFFERENCE, manifest.image_id)
            + f'-{difference.sha256[:16]}')


def is_difference(export: str, image_id: str = '') -> bool:
    """Tell whether an export is of a difference, or of one of an image's."""
    return export.startswith(f'{naming.EXPORT_DIFFERENCE}-{image_id}')


def is_base(export: str) -> bool:
    """Tell whether an export is of a base or a stored file: its clients are never cut off."""
    return export.startswith((f'{naming.EXPORT_BASE}-', f'{naming.EXPORT_STORED}-'))


# The node of a cache image's file is one or the other, in turn.
_FILE_NODES = ('f', 'm')
# For which to wait for the monitor, or for who has it; after that nobody asks for so many seconds:
# upkeep asks for each image, and a file system of the network may hang.
_PATIENCE_SECONDS, _SILENCE_SECONDS = 10, 10


class Exporter:
    """An exporter of this storage node: that of all hosts, or that of one.

    :ivar certificate: the name in that of the one client that is let in; empty for all.
    :ivar adopted_at: when ``adopt`` began last, in monotonic seconds, whatever came of it; 0 if it
        never did.

    :param conf: configuration of the storage service.
    :param clones: opens bases in Ceph for it; one for all exporters, and not closed by any.
    :param suspended: ids of images that are not to be served now; it is the caller's.
    :param only: the one client that is let in; None for all that the options let in.
    """

    def __init__(self, conf: cfg.ConfigOpts, clones: OpenClones, suspended: Collection[str] = (),
                 only: Client | None = None):
        group = conf[bootcache_conf.GROUP]
        admitted = admission.configured(conf, only)
        name, port = (only.daemon, only.port) if only else ('exporter', group.export_port)
        self._daemon = StorageDaemon(
            name, group.run_dir, TcpListener(group.export_host, port), admission=admitted,
            breaker=CircuitBreaker(1, _SILENCE_SECONDS), patience=_PATIENCE_SECONDS,
            trace=errorlog.traced_apart(group.run_dir, name))
        self._daemon.monitor.before_change = clones.check_changes
        # Has the daemon for a thread; StorageDaemonBusy if another one has it for too long.
        self._alone = self._daemon.monitor.alone
        self._admitted = admitted
        self._throttle = LogThrottle(LOG)
        self._reached: dict[str, Any] = {'tls': admitted is not None, 'server': [
            group.advertise_host or group.export_host,
            port if only else group.advertise_port or port]}
        # What the daemon of this process id serves: exports, with their nodes. Changed by who has
        # the monitor alone: looking and adding are one step.
        self._served: dict[str, str] = {}
        self._served_by: int | None = None
        # Looked at last: while it does not answer it may serve what is in _served, and no more.
        self._looked_at: int | None = None
        # When exports were asked for last, in monotonic seconds; written before _served is read.
        self._asked_at: dict[str, float] = {}
        self._suspended = suspended
        self.certificate = only.certificate if only else ''
        self.adopted_at = 0.0
        self._clones = clones
        # Exports of cache images whose files go just now, with what is set when that is over.
        # Entered by who has the monitor alone.
        self._leaving: dict[str, threading.Event] = {}

    def start(self) -> bool:
        """Adopt or start the daemon, and look what it serves.

        One that lets in others than it is to, as with certificates before they were renewed, or
        listens elsewhere, is ended, and started.

        :returns: True if it was started, and so serves nothing yet.
        :raises StorageDaemonError: if it does not come up.
        """
        with self._alone():
            self._end_other()
            started = self._daemon.ensure_running()
            self._look()
        return started

    def adopt(self) -> Collection[str]:
        """Look what the daemon serves, if it runs; one is started when something is to be served.

        :returns: what is to be served again, as the daemon that served it was ended here.
        :raises StorageDaemonError: if it runs and does not answer.
        """
        self.adopted_at = time.monotonic()
        with self._alone():
            if not self._runs():
                return ()
            with self._daemon.session():
                served = tuple(self._look())
                return served if self._end_other() else ()

    def _end_other(self) -> bool:
        return admission.end_other(self._daemon, self._admitted, bool(self.certificate),
                                   self._throttle)

    @property
    def runs(self) -> bool:
        """Whether there is a daemon now."""
        return self._daemon.runs

    @property
    def has_told(self) -> bool:
        """Whether the daemon has told what it serves, or there is none."""
        return not self.runs or self._looked_at == self._daemon.pid()

    @property
    def is_known(self) -> bool:
        """Whether it is known what the daemon serves now, or there is none."""
        return not self.runs or self._served_by == self._daemon.pid()

    @property
    def served(self) -> dict[str, str]:
        """The exports that the daemon serves, with their nodes, as far as it has told."""
        return dict(self._served) if self.runs else {}

    def may_serve(self, image_id: str) -> bool:
        """Tell whether an image, or an export, may be served if the daemon runs.

        Nobody but this process starts it, and what it serves then is in ``_served``: so it is
        neither asked, nor looked at whether it runs.
        """
        return self._looked_at is None or any(image_id in export for export in list(self._served))

    def end_unused(self, idle: float) -> None:
        """End a daemon that serves nothing, and was not asked for anything in a while.

        :param idle: seconds.
        :raises StorageDaemonError: if it does not answer.
        """
        before = time.monotonic() - idle

        def is_used() -> bool:
            return bool(self._served) or max(self._asked_at.values(), default=0) > before

        # Of one of which it is not known ``adopt`` finds out.
        if not self.is_known or (self.runs and is_used()):
            return
        with self._alone():
            ran = self.runs
            if ran and (self._look() or is_used()):
                return
            self._daemon.stop()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._daemon.pid_path)  # Of one that crashed: nobody starts it anew.
        if ran:
            LOG.info('exporter: nobody reads by that of %s any more, and its port is closed',
                     f'{self.certificate} at {self._reached["server"][1]}' if self.certificate
                     else 'all hosts')

    def _look(self) -> dict[str, str]:
        """Ask the daemon what it serves; by who has it alone."""
        self._served_by = None
        pid = self._daemon.pid()
        self._served = self._daemon.exports()
        self._served_by = self._looked_at = pid
        return self._served

    def _is_served(self, export: str) -> bool:
        """Tell whether the daemon that runs serves an export, without asking it."""
        self._asked_at[export] = time.monotonic()
        pid = self._daemon.pid()
        return pid is not None and pid == self._served_by and export in self._served

    def _exports(self) -> dict[str, str]:
        """Return what the daemon serves; by who has it alone."""
        pid = self._daemon.pid()
        if pid is not None and pid == self._served_by:
            return self._served
        self._daemon.ensure_running()
        return self._look()

    def check(self) -> None:
        """Check that the daemon answers, without waiting for who has it alone.

        :raises StorageDaemonError: if it does not.
        """
        self._daemon.exports()

    def stop(self) -> None:
        """End the daemon: whoever reads from it waits and then fails."""
        self._daemon.stop()

    def describe(self, manifest: Manifest) -> dict[str, Any]:
        """Return what a compute host needs to reach an image: see PlanBoot."""
        told = {**self._reached, 'virtual_bytes': manifest.made.virtual_bytes,
                'base_export': manifest.made.base_export}
        if manifest.made.cache_image is not None:
            told.update(cache_export=cache_export_name(manifest),
                        cache_image=dataclasses.asdict(manifest.made.cache_image))
        return told

    def ensure(self, manifest: Manifest, cache_path: str | None) -> bool:
        """Serve an image's base, and the bytes of its cache image if there is one.

        :param cache_path: of the cache image's file, see ``StorageTiers.path``; one that is served
            already stays where it is.
        :returns: whether the base is read from where the manifest has it.
        :raises StorageDaemonError: if the daemon refuses, for instance as a file is gone.
        """
        base = manifest.made.base_export
        node = of_base(manifest)[base]
        self.ensure_file(base, lambda: self._clones.base(manifest), node)
        if cache_path is not None and manifest.made.cache_image is not None:
            cache, export = Base(cache_path, 'raw', 0), cache_export_name(manifest)
            self.ensure_file(export, lambda: cache, naming.node_name('c', export))
        return self._served.get(base) == node

    def ensure_file(self, export: str, file: Callable[[], Base], node: str) -> None:
        """Serve a file under a name; ``file`` tells which, if it is not served, ``node`` its node.

        :raises StorageDaemonError: if the daemon refuses, or the file is gone.
        """
        if self._is_served(export):
            return
        image_id, served = naming.image_of(export), None
        while True:
            if served is None and export not in self._served:
                served = file()  # Nobody waits where Ceph may be asked.
            with self._alone():
                leaving = self._leaving.get(export)
                if leaving is None:
                    if image_id in self._suspended:
                        raise exception.StorageDaemonError(
                            f'exporter: the base of {image_id} cannot be read in a place; all of it'
                            ' is being read to know more')
                    if export in self._exports():
                        return
                    if served is not None:
                        self._add(export, served.nodes(node))
                        if export.startswith(f'{naming.EXPORT_CACHE}-'):
                            self._retire(image_id, self._served, keep=export, keep_bases=True)
                        return
                    continue  # The daemon is a new one.
            # Its file is being removed, or is not after all: that takes milliseconds.
            if not leaving.wait(_PATIENCE_SECONDS):
                raise exception.StorageDaemonBusy(f'exporter: {export} is being removed')

    def switch_cache(self, manifest: Manifest, path: str) -> None:
        """Serve a cache image from another file of the same bytes from now on, if it is served.

        Who reads it does not notice. When this returns, the daemon has closed the file of before.

        :param path: of the file; its content is the caller's to verify.
        :raises StorageDaemonError: if the daemon refuses; it then serves the file that it did.
        """
        export = cache_export_name(manifest)
        with self._alone():
            if self._runs():
                with self._daemon.session() as session:
                    top = self._daemon.exports().get(export)
                    if top is not None:
                        self._switch(session, top, path)

    def _switch(self, session: Session, top: str, path: str) -> None:
        # Of two, one may be what a crash between two steps left.
        self._remove_unused(top)
        files = self._daemon.node_files()
        if files[top] == path:
            return
        free = {f'{top}{kind}' for kind in _FILE_NODES} - set(files)
        if not free:
            raise exception.StorageDaemonError(
                f'exporter: the nodes of {top} are in use; it stays on {files[top]}')
        below = min(free)
        self._daemon.add_nodes({'driver': 'file', 'node-name': below, 'filename': path,
                                'read-only': True})
        try:
            session.execute('blockdev-reopen', options=[
                {'driver': 'raw', 'node-name': top, 'read-only': True, 'file': below}])
        finally:
            # The old one, or where it was refused the new one.
            self._remove_unused(top)

    def _remove_unused(self, top: str) -> None:
        """Remove the nodes of files below an export's node; the one in use is refused."""
        for name in {f'{top}{kind}' for kind in _FILE_NODES} & self._daemon.nodes():
            with contextlib.suppress(exception.StorageDaemonError):
                self._daemon.remove_nodes(name)

    def cache_places(self) -> dict[str, str]:
        """Return the files from which the daemon serves cache images now, by their exports.

        :raises StorageDaemonError: if the daemon does not answer.
        """
        with self._daemon.session() as session:
            files = self._daemon.node_files()
            return {entry['id']: files[entry['node-name']]
                    for entry in session.execute('query-block-exports')
                    if entry['id'].startswith(f'{naming.EXPORT_CACHE}-')
                    and entry['node-name'] in files}

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
        export = cache_export_name(manifest)
        with self._alone():
            gone = export not in self._leaving and self._withdraw(export)
            if gone:
                self._leaving[export] = threading.Event()
                # Whoever is getting it gets all of the next one, or the base.
                for name in sorted(name for name in list(self._served)
                                   if is_difference(name, manifest.image_id)):
                    self._withdraw(name, disconnect=True)
        try:
            yield gone
        finally:
            if gone:
                self._leaving.pop(export).set()

    def _withdraw(self, export: str, disconnect: bool = False) -> bool:
        if self.may_serve(export) and self._runs() and export in self._look():
            return self._remove(export, disconnect=disconnect)
        self._asked_at.pop(export, None)
        return True

    def _runs(self) -> bool:  # One that does not answer goes on serving.
        return self._daemon.runs or self._daemon.answers()

    def withdraw_idle(self, is_unneeded: Callable[[str], bool], idle: float,
                      with_cache: bool = False) -> None:
        """Serve bases and stored files no more for which nobody has asked in a while.

        Not while a host is connected: QEMU refuses that.

        :param is_unneeded: tells of an image's id whether its exports may go.
        :param idle: seconds.
        :param with_cache: cache images as well. Their nodes are of our own making and take some
            kilobytes, while that of a tenant's qcow2 keeps its tables.
        :raises StorageDaemonError: if the daemon does not answer.
        """
        before = time.monotonic() - idle
        for export in sorted(export for export in list(self._served)
                             if (with_cache or is_base(export) or is_difference(export))
                             and is_unneeded(naming.image_of(export))):
            if export not in self._served \
                    or self._asked_at.setdefault(export, time.monotonic()) > before:
                continue
            with self._alone():
                if export in self._exports() \
                        and self._remove(export, disconnect=False, unless_asked_since=before):
                    LOG.info('image %s: its %s is not served until it is asked for',
                             naming.image_of(export), export.partition('-')[0])

    def _remove(self, export: str, disconnect: bool, unless_asked_since: float = math.inf) -> bool:
        """Serve an export no more that is served; return whether it and its nodes are gone."""
        node, gone = self._served.pop(export), False
        try:
            # Who asks from now on does not find it, and waits for the monitor.
            gone = self._asked_at.get(export, 0.0) <= unless_asked_since \
                and self._daemon.remove_export(export, disconnect=disconnect)
        except exception.StorageDaemonError:
            self._served_by = None
            raise
        finally:
            if not gone:
                self._served[export] = node
        if gone:
            self._remove_tree(node)
            self._asked_at.pop(export, None)
        return gone

    def lend(self, export: str, node: dict[str, object]) -> dict[str, Any]:
        """Serve a node to be written, until ``cut_off``; return ``describe``'s ``server``, ``tls``.

        :raises StorageDaemonError: if the daemon refuses.
        """
        with self._alone():
            self._exports()
            self._add(export, [{**node, 'node-name': naming.node_name('w', export)}], True)
        return dict(self._reached)

    def _add(self, export: str, nodes: list[dict[str, object]], writable: bool = False) -> None:
        top = str(nodes[-1]['node-name'])
        try:
            try:
                self._daemon.add_nodes(*nodes)
            except exception.StorageDaemonError:
                # Nodes without their export are what a crash between the two steps left. They are
                # listed here alone: with a thousand images that takes a tenth of a second.
                if not self._remove_tree(top):
                    raise
                self._daemon.add_nodes(*nodes)
            steps.reached('serve: nodes')
            self._daemon.add_export(export, top, writable)
        except exception.StorageDaemonError:
            # It may be another daemon than the one that is remembered, or come to it yet.
            self._served_by = None
            raise
        finally:
            self._served[export] = top

    @property
    def log_path(self) -> str:
        """The path of the daemon's log."""
        return self._daemon.log_path

    def cut_off(self, export: str) -> None:
        """Stop serving an export whose clients cannot read it, whoever is connected.

        :raises StorageDaemonError: if the daemon refuses.
        """
        with self._alone():
            if export in self._look():
                self._remove(export, disconnect=True)

    def _remove_tree(self, top: str) -> bool:
        """Remove an export's nodes; return whether there were any."""
        present = self._daemon.nodes()
        names = [name for name in (top, *(f'{top}{kind}' for kind in _FILE_NODES))
                 if name in present]
        self._daemon.remove_nodes(*names)
        return bool(names)

    def retire(self, image_id: str, with_base: bool) -> bool:
        """Stop serving an image: its cache image at once, its base and stored file only if no host
        is connected to them, as servers that run may still read from the base, and settle.

        :param with_base: whether these two may go at all.
        :returns: True if nothing is served any more, False if it has to be asked again later.
        :raises StorageDaemonError: if the daemon does not answer.
        """
        with self._alone():
            return self._retire(image_id, self._look(), keep_bases=not with_base) and with_base

    def _retire(self, image_id: str, served: Iterable[str], keep: str = '',
                keep_bases: bool = False) -> bool:
        gone = True
        for export in list(served):
            if image_id in export and export != keep and not (keep_bases and is_base(export)):
                gone = self._remove(export, disconnect=not is_base(export)) and gone
        return gone
