"""What happens on a compute host when a server's root disk is made, and when its server goes."""

import os
import threading
import time
from collections.abc import Iterable
from typing import Any

import oslo_messaging as messaging
from oslo_config import cfg
from oslo_log import log as logging

from bootcache import conf as bootcache_conf
from bootcache import exception, naming, qemuimg, recorder, rpcapi, workingset
from bootcache.recorder import Recording
from nova_bootcache import placement
from nova_bootcache.gateway import Gateway, Remote
from nova_bootcache.hostcache import HostCache
from nova_bootcache.placement import Chain, Server

LOG = logging.getLogger(__name__)

# With 4 KiB subclusters a guest's small write fetches nothing from below (doc/source/overview.rst).
_OVERLAY_CLUSTER = 128 << 10
_WATCH_SECONDS = 10
_LONGEST_PAUSE = 600


class ComputeHost:
    """Cache images, gateway and recordings of one compute host.

    :param conf: Nova's configuration, with the driver's options registered.
    :param cache_directory: of the host's cache images.
    """

    def __init__(self, conf: cfg.ConfigOpts, cache_directory: str):
        self._conf = conf[bootcache_conf.GROUP]
        self._all_conf = conf
        self.cache = HostCache(cache_directory, self._conf.gateway_socket)
        self.gateway = Gateway(self._conf.gateway_run_dir, self._conf.gateway_socket,
                               self._conf.reconnect_delay, self._conf.gateway_autostart,
                               self._conf.gateway_group)
        self._api: rpcapi.StorageAPI | None = None
        self._hostname = ''
        # Recordings by server id, with their tokens. Guarded by the lock, which is held for
        # dictionary steps only.
        self._recordings: dict[str, tuple[Recording, str, str]] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        # Bases that could not be served again: the next pause, and when to try. One thread's own.
        self._patience: dict[str, tuple[float, float]] = {}

    def start(self, hostname: str) -> None:
        """Bring up the gateway and serve the bases of all cache images that are here.

        A gateway that does not come up is logged: new servers then boot the stock way.
        """
        self._hostname = hostname
        self._api = rpcapi.StorageAPI(self._all_conf)
        try:
            self.cache.prepare()
            self.gateway.start()
            # Whoever recorded is gone; the storage service notices and tries again.
            recorder.discard_leftovers(self.gateway.daemon)
            self._reconcile()
        except (exception.BootcacheError, OSError) as error:
            LOG.error('bootcache: the gateway is not ready, servers that need it boot the'
                      ' stock way: %s', error)
        threading.Thread(target=self._watch_gateway, name='bootcache-gateway', daemon=True).start()

    def stop(self) -> None:
        """Stop looking after the gateway, which goes on serving this host's servers."""
        self._stopped.set()

    def _watch_gateway(self) -> None:
        while not self._stopped.wait(_WATCH_SECONDS):
            try:
                self.gateway.start()
                self._reconcile()
            except Exception as error:
                LOG.warning('bootcache: the gateway is not ready: %s', error)

    def _reconcile(self) -> None:
        """Give a gateway that was restarted, and so is empty, its bases again."""
        served = self.gateway.daemon.exports()
        for entry in self.cache.entries():
            image_id = entry.remote.image_id
            if naming.export_name(naming.EXPORT_BASE, image_id) in served:
                self._patience.pop(image_id, None)
                continue
            pause, not_before = self._patience.get(image_id, (_WATCH_SECONDS, 0.0))
            if time.monotonic() < not_before:
                continue
            try:
                self.gateway.ensure_base(entry.remote)
                LOG.info('image %s: the gateway serves its base', image_id)
            except exception.BootcacheError as error:
                # Each try costs the gateway time, and the image may be gone for good.
                self._patience[image_id] = (min(2 * pause, _LONGEST_PAUSE),
                                            time.monotonic() + pause)
                LOG.warning('image %s: the gateway cannot serve its base: %s', image_id, error)

    # Root disks.

    def make_overlay(self, server: Server, server_id: str, profile_token: str | None, path: str,
                     root_bytes: int | None, has_stock_base: bool) -> bool:
        """Make a server's root disk as an overlay on a cache image or a recording.

        :param profile_token: from the server's metadata, None for servers of people.
        :param path: of the overlay.
        :param root_bytes: size of the disk; None for the base's own.
        :param has_stock_base: whether Nova's own base of the image is on this host.
        :returns: False if the server is to go the stock way; the reason is logged.
        :raises ProfileBootFailed: if the storage service knows the server as its profile boot, and
            it cannot be recorded: nobody has a use for it then.
        """
        # A profile boot is recorded all the same: its server is for nothing else.
        reason = placement.stock_reason(server, self._conf.enabled,
                                        has_stock_base and profile_token is None)
        if not reason:
            assert server.image_id is not None
            try:
                reason = self._make(server.image_id, server_id, profile_token, path, root_bytes)
            except exception.ProfileBootFailed:
                self._discard_recording(server_id)
                raise
            except (exception.BootcacheError, messaging.MessagingException, OSError,
                    ValueError, KeyError) as error:
                reason = f'{type(error).__name__}: {error}'
            except Exception as error:
                # Whatever it is: the server boots.
                LOG.exception('bootcache: unexpected error')
                reason = f'unexpected {type(error).__name__}: {error}'
        if reason:
            LOG.info('bootcache: server %s goes the stock way: %s', server_id, reason)
        return not reason

    def _make(self, image_id: str, server_id: str, profile_token: str | None, path: str,
              root_bytes: int | None) -> str:
        answer = self._ask(image_id, server_id, profile_token)
        entry = self.cache.entry(image_id)
        plan = placement.plan(answer, entry.cache_image if entry else None)
        if plan.chain is Chain.STOCK:
            return plan.reason
        if answer is None:
            assert entry is not None
            LOG.info('bootcache: the storage service does not answer; server %s boots from the'
                     ' cache image that is here', server_id)
            remote, virtual_bytes = entry.remote, entry.cache_image.virtual_bytes
        else:
            remote, virtual_bytes = Remote.from_answer(image_id, answer), answer['virtual_bytes']
            if entry is not None and entry.remote != remote:
                entry = self.cache.move(entry, remote)
        if root_bytes is not None and root_bytes < virtual_bytes:
            return 'the flavor\'s disk is smaller than the image'
        size = root_bytes or virtual_bytes
        if plan.chain is Chain.RECORDING:
            assert profile_token is not None
            try:
                export = self._start_recording(server_id, remote, virtual_bytes, profile_token)
                self._create(path, size, naming.nbd_unix_uri(self.gateway.socket_path, export),
                             'raw')
            except (exception.BootcacheError, OSError) as error:
                raise exception.ProfileBootFailed(f'it cannot be recorded: {error}') from error
            return ''
        if plan.fetch:
            assert answer is not None and plan.cache_image is not None
            self.cache.fetch(remote, plan.cache_image, answer['cache_export'])
        self.gateway.ensure_base(remote)
        self.cache.touch(image_id)
        self._create(path, size, self.cache.path(image_id), 'qcow2')
        LOG.info('bootcache: server %s boots from the cache image of %s', server_id, image_id)
        return ''

    def _ask(self, image_id: str, server_id: str,
             profile_token: str | None) -> dict[str, Any] | None:
        """Ask the storage service; None if it does not answer."""
        if self._api is None:
            raise exception.BootcacheError('the driver is not started')
        try:
            return self._api.plan_boot(image_id, self._hostname, server_id, profile_token)
        except (messaging.MessagingTimeout, messaging.MessageDeliveryFailure) as error:
            LOG.warning('bootcache: the storage service does not answer: %s', error)
            return None

    @staticmethod
    def _create(path: str, size: int, backing: str, backing_format: str) -> None:
        partial = f'{path}.partial'
        try:
            qemuimg.create_overlay(partial, size, backing, backing_format,
                                   cluster_bytes=_OVERLAY_CLUSTER, subclusters=True)
            os.rename(partial, path)
        finally:
            if os.path.exists(partial):
                os.unlink(partial)

    def keep_chain(self, image_id: str) -> None:
        """See to it that a server's existing chain can be opened: cache image and gateway.

        :raises Exception: if the cache image is gone and cannot be fetched, or the base cannot be
            reached; the server cannot start until it can.
        """
        entry = self.cache.entry(image_id)
        if entry is None:
            answer = self._ask(image_id, '', None)
            plan = placement.plan(answer, None)
            if answer is None or plan.cache_image is None:
                raise exception.BootcacheError(
                    f'the cache image of {image_id} is gone from this host and cannot be fetched:'
                    f' {plan.reason}')
            entry = self.cache.fetch(Remote.from_answer(image_id, answer), plan.cache_image,
                                     answer['cache_export'])
        self.gateway.ensure_base(entry.remote)
        self.cache.touch(image_id)

    # Recordings.

    def _start_recording(self, server_id: str, remote: Remote, virtual_bytes: int,
                         token: str) -> str:
        self.gateway.start()
        store = os.path.join(self.cache.directory, f'{server_id}.partial')
        base = self.gateway.remote_node(naming.node_name(recorder.BASE, server_id), remote)
        recording = Recording(self.gateway.daemon, server_id, [base], virtual_bytes, store)
        api = self._api
        assert api is not None

        def tell(recorded_bytes: int, idle_seconds: float) -> None:
            api.recording_progress(remote.image_id, token, recorded_bytes, idle_seconds)

        with self._lock:
            self._recordings[server_id] = recording, remote.image_id, token
        recording.open(tell)
        LOG.info('bootcache: server %s is a profile boot of %s', server_id, remote.image_id)
        return recording.export

    def finish_recording(self, server_id: str) -> None:
        """Report what a profile boot read, if this server was one; its domain is gone already.

        A failure is logged; the storage service waits for the report and gives up in the end.
        """
        with self._lock:
            found = self._recordings.pop(server_id, None)
        if found is None:
            return
        recording, image_id, token = found
        try:
            extents = recording.finish()
            assert self._api is not None
            self._api.report_working_set(image_id, token, recorder.GRANULARITY,
                                         workingset.to_wire(extents))
            LOG.info('bootcache: image %s: reported %d extents', image_id, len(extents))
        except Exception:
            LOG.exception('bootcache: image %s: the profile boot\'s record is lost', image_id)

    def _discard_recording(self, server_id: str) -> None:
        with self._lock:
            found = self._recordings.pop(server_id, None)
        if found is not None:
            found[0].discard()

    # Cleaning.

    def remove_unused(self, used_image_ids: Iterable[str], minimum_age: float) -> None:
        """Remove cache images that no server on this host uses, and what the gateway serves them.

        :param used_image_ids: images of this host's servers.
        :param minimum_age: seconds since the last use.
        """
        used = set(used_image_ids)
        for entry in self.cache.entries():
            image_id = entry.remote.image_id
            if image_id in used or self.cache.age(image_id) < minimum_age:
                continue
            try:
                if self.gateway.remove_base(image_id):
                    self.cache.remove(image_id)
            except (exception.BootcacheError, OSError) as error:
                LOG.warning('image %s: its cache image cannot be removed: %s', image_id, error)
