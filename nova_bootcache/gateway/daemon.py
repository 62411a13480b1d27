"""The gateway: one stock qemu-storage-daemon a host, through which servers reach what is remote.

libvirt drops NBD's reconnect settings, so no server's own QEMU speaks to a storage node: each
reaches its base by an export of the gateway on a unix socket.
"""

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Iterator
from typing import Any

import tenacity
from oslo_log import log as logging

from bootcache import daemonjobs, exception, growingstore, naming, qemuimg, steps
from bootcache.connectors import probe
from bootcache.connectors.probe import Answer
from bootcache.locks import KeyedLocks
from bootcache.storagedaemon import StorageDaemon, UnixListener
from bootcache.util import threads
from nova_bootcache.gateway import graph
from nova_bootcache.gateway.connections import BaseConnections
from nova_bootcache.gateway.graph import GraphAction, Present, Store, Wanted
from nova_bootcache.locks import Rank
from nova_bootcache.storagenode import Remote

LOG = logging.getLogger(__name__)

# A boot waits for the gateway for so long, and goes the stock way then.
_ANSWER_SECONDS = 5
# Within this a base is read that servers are to go on with.
_LOOK_SECONDS = 1
# Servers of many images that start at once on a slow disk each want it several times.
_QUEUE_SECONDS = 60
# For which reads wait of a base that can be read by no way. They may have waited for 15 s before
# the watch knows that, and guests give a SCSI request up after 30 s.
_RECONNECT_SECONDS = 8
_READ_SECONDS = 15 + _RECONNECT_SECONDS


class Gateway:
    """The gateway of this host.

    :ivar connections: by which it reads bases.

    :param run_dir: of its monitor socket.
    :param socket_path: where servers connect.
    :param connections: of this host.
    :param autostart: whether one is started where none answers.
    :param group: that may connect to one that is started.
    """

    def __init__(self, run_dir: str, socket_path: str, connections: BaseConnections,
                 autostart: bool = True, group: str | None = None):
        self.socket_path = socket_path
        self.connections = connections
        self.daemon = StorageDaemon('gateway', run_dir, UnixListener(socket_path),
                                    autostart=autostart, group=group, patience=_ANSWER_SECONDS,
                                    # Changing a chain waits for reads that wait.
                                    command_seconds=_ANSWER_SECONDS + _RECONNECT_SECONDS,
                                    queue_seconds=_QUEUE_SECONDS)
        self.daemon.monitor.before_change = lambda: connections.check_changes(_READ_SECONDS)
        # Make looking, adding and removing one step.
        self._locks = KeyedLocks(Rank.GATEWAY, 'the gateway\'s lock of image')

    def start(self) -> None:
        """Adopt the gateway that runs, or start one.

        :raises StorageDaemonError: if it does not come up, or serves elsewhere than servers look.
        """
        self.daemon.ensure_running()
        if not os.path.exists(self.socket_path):
            raise exception.StorageDaemonError(
                f'gateway: it answers on {self.daemon.monitor_path}, but there is no socket'
                f' {self.socket_path}, as [bootcache]gateway_socket has it; name the socket that it'
                ' was started with (its unit has /run/bootcache/gateway.sock)')

    def linked_node(self, name: str, export: str) -> dict[str, Any]:
        """Return the block node of what is read by a link: see ``BaseConnections``.

        :param name: of the node.
        :param export: the storage node's name for it.
        """
        return {'driver': 'nbd', 'node-name': name, 'read-only': True, 'export': export,
                'server': {'type': 'unix', 'path': self.connections.socket(export)},
                'reconnect-delay': _RECONNECT_SECONDS,
                # It may be parked just now, where nobody answers.
                **qemuimg.open_timeout()}

    def ensure_base(self, remote: Remote) -> str:
        """Serve a base to this host's servers.

        :returns: the export's name.
        :raises StorageNodeAway: if it cannot be reached.
        :raises StorageDaemonError: if the daemon refuses.
        """
        self.daemon.ensure_running()
        # Not under the lock: bases of other storage nodes do not wait for this one.
        self.connections.connect(remote)
        return self._export(remote)

    def serve_absent(self, remote: Remote, virtual_bytes: int) -> None:
        """Serve a base that cannot be reached: reads of it give errors until it can.

        Nothing happens if it is served.

        :param virtual_bytes: size of the base.
        :raises StorageDaemonError: if the daemon does not answer, or refuses.
        """
        self.daemon.ensure_running()
        with self.connections.absent(remote, virtual_bytes,
                                     lambda: self._present(remote.image_id).is_exported):
            self._export(remote)

    def _export(self, remote: Remote) -> str:
        image_id = remote.image_id
        export = naming.export_name(naming.EXPORT_BASE, image_id)
        if not self._present(image_id).is_exported:
            self._await_changes()
            # Of an arrival below a base that is not served: nobody reads from it.
            self.end_arrival_job(image_id)
        with self._alone(image_id):
            there = self._present(image_id)
            if there.is_exported:
                if there.content == remote.export:
                    return export
                if not self.daemon.remove_export(export, disconnect=False):
                    raise exception.StorageDaemonError(
                        f'gateway: servers that run read another content of {image_id} than'
                        f' {remote.export}')
            self._serve(image_id, there, remote.export)
        return export

    def _await_changes(self) -> None:
        # A boot by the stock way would take longer than reads wait, on QEMU 10.
        tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(exception.StorageDaemonBusy),
            stop=tenacity.stop_after_attempt(_READ_SECONDS + 1), wait=tenacity.wait_fixed(1),
            retry_error_callback=lambda _state: None)(
                self.connections.check_changes, _READ_SECONDS)

    def _serve(self, image_id: str, there: Present, content: str) -> None:
        """Export a base that is read by its link."""
        top = graph.top_node(image_id, graph.REMOTE)
        # A server waits: to connect once for all of it spares milliseconds.
        with self.daemon.session():
            # What is not exported, or not any more, goes, all of it.
            self._reconcile(image_id, Wanted(Store.GOES),
                            dataclasses.replace(there, is_exported=False))
            self._ensure_unlimited()
            self.daemon.add_nodes(
                self.linked_node(naming.node_name(graph.REMOTE, image_id), content), top)
            steps.reached('gateway: nodes')
            self.daemon.add_export(naming.export_name(naming.EXPORT_BASE, image_id),
                                   str(top['node-name']))

    def serves(self, image_id: str) -> bool:
        """Tell whether a base is served to this host's servers."""
        return self.daemon.answers() and naming.export_name(
            naming.EXPORT_BASE, image_id) in self.daemon.exports()

    def reads(self, image_id: str) -> bool:
        """Tell whether a base can be read where servers do: connecting takes the gateway a second
        from when there is a way.
        """
        export = naming.export_name(naming.EXPORT_BASE, image_id)
        return threads.run_native(lambda: probe.read({export: self.socket_path}, _LOOK_SECONDS))[
            export] is Answer.READ

    def served(self) -> set[str]:
        """Return the images whose bases are served to this host's servers.

        :raises StorageDaemonError: if the daemon does not answer.
        """
        kind = naming.export_name(naming.EXPORT_BASE, '')
        return {export.removeprefix(kind) for export in self.daemon.exports()
                if export.startswith(kind)}

    def remove_base(self, image_id: str) -> bool:
        """Stop serving a base.

        :returns: False if a server is connected to it, or its cache image is on its way.
        :raises StorageDaemonError: if the daemon refuses.
        """
        export = naming.export_name(naming.EXPORT_BASE, image_id)
        with self._alone(image_id):
            if not self.daemon.runs and not self.daemon.answers():
                return True
            if graph.ARRIVING in self._present(image_id).kinds:
                return False
            if export in self.daemon.exports() \
                    and not self.daemon.remove_export(export, disconnect=False):
                return False
            self._reconcile(image_id, Wanted(Store.GOES), self._present(image_id))
        return True

    # What is between an export and its base: nova_bootcache/gateway/graph.py.

    def _ensure_unlimited(self) -> None:
        """Make what ``graph.top_node`` needs, if it is not there."""
        with self.daemon.session() as session:
            if graph.UNLIMITED not in self.daemon.objects():
                session.execute('object-add', **{'qom-type': 'throttle-group',
                                                 'id': graph.UNLIMITED})

    def present(self, image_ids: Iterable[str]) -> dict[str, Present]:
        """Return what there is of images, by id; those of which there is nothing are not in it.

        :raises StorageDaemonError: if the daemon does not answer.
        """
        return graph.present(image_ids, self.daemon.node_files(), self.daemon.exports())

    def _present(self, image_id: str) -> Present:
        with self.daemon.session():
            return self.present([image_id]).get(image_id, Present())

    @contextlib.contextmanager
    def _alone(self, image_id: str) -> Iterator[None]:
        lock, seconds = self._locks.of(image_id), self.daemon.monitor.command_seconds
        # Who has it may stand in the monitor's queue.
        if not lock.acquire(seconds + _QUEUE_SECONDS):
            raise exception.StorageDaemonBusy(
                f'gateway: what it has of image {image_id} is being changed, for more than'
                f' {seconds + _QUEUE_SECONDS:g} s')
        try:
            yield
        finally:
            lock.release()

    def end_arrival_job(self, image_id: str, seconds: float | None = None) -> None:
        """End the job by which an image's cache image comes, if there is one.

        To be called under no lock but the image's own of arrivals: a job that waits for a storage
        node takes seconds, or does not end.

        :param seconds: for which to wait until it has ended; None for ten.
        :raises StorageDaemonError: if it does not end.
        """
        daemonjobs.end(self.daemon, graph.arrival_job(image_id), seconds)

    def check_base(self, image_id: str) -> None:
        """Check that a base can be read now: who changes what is above it waits for its reads, and
        everybody else for him. To be called in the session in which that is done.

        :raises StorageNodeAway: if it cannot.
        :raises StorageDaemonError: if the daemon does not answer.
        """
        self.connections.check(self._present(image_id).content)

    def read_from(self, image_id: str, kind: str) -> None:
        """Have servers read from a node of an image; they do not notice. See ``check_base``.

        :raises StorageDaemonError: if the daemon does not answer, or refuses.
        """
        with self.daemon.session() as session:
            session.execute('blockdev-reopen', options=[graph.top_node(image_id, kind)])

    def change(self, image_id: str, **wishes: Any) -> None:
        """Change what is between an image's export and its base; servers do not notice.

        :param wishes: fields of ``graph.Wanted``; what they do not name stays as it is.
        :raises StorageNodeAway: if servers are to read from another node, and the base cannot be
            read now.
        :raises StorageDaemonBusy: if a cache image is not to arrive any more, and its job has not
            ended: see ``end_arrival_job``.
        :raises StorageDaemonError: if the daemon does not answer, or refuses.
        """
        with self._alone(image_id):
            there = self._present(image_id)
            self._reconcile(image_id, dataclasses.replace(graph.as_it_is(there), **wishes), there)

    def _reconcile(self, image_id: str, wanted: Wanted, there: Present) -> None:
        for action, kind in graph.reconcile(wanted, there):
            if action is GraphAction.CHECK_JOB:
                if daemonjobs.is_there(self.daemon, graph.arrival_job(image_id)):
                    raise exception.StorageDaemonBusy(
                        f'gateway: the cache image of {image_id} still comes: its job has not'
                        ' ended, and may wait for the storage node')
                continue
            with self.daemon.session() as session:
                if action is GraphAction.READ:
                    self.connections.check(there.content)
                    self.read_from(image_id, kind)
                else:
                    name = naming.node_name(kind, image_id)
                    try:
                        session.execute('blockdev-del', node_name=name)
                    except exception.StorageDaemonError:
                        # A process that ends may clear up behind itself at this moment.
                        if name in self.daemon.nodes():
                            raise
        if wanted.store is Store.GOES:
            # Left by a crash between making it and its node, or in use no more.
            growingstore.remove_throttle(self.daemon,
                                         naming.node_name(growingstore.THROTTLE, image_id))
