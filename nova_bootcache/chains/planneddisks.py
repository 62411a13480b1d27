"""Root disks, made as a plan says: step by step, down to the overlay."""

import contextlib
import dataclasses
import os
from collections.abc import Callable

import oslo_messaging as messaging
from oslo_log import log as logging

from bootcache import exception, naming, qemuimg, steps
from bootcache.tier import Medium
from nova_bootcache.asking import placement
from nova_bootcache.asking.offer import Offered
from nova_bootcache.asking.placement import PlanStep
from nova_bootcache.chains.chainstores import ChainStores
from nova_bootcache.chains.parts import Parts
from nova_bootcache.gateway.sharedstore import SharedStore
from nova_bootcache.storagenode import Remote

LOG = logging.getLogger(__name__)

# With 4 KiB subclusters a guest's small write fetches nothing from below (doc/source/overview.rst).
_OVERLAY_CLUSTER = 128 << 10


@dataclasses.dataclass(frozen=True)
class PlannedDisk:
    """A root disk that is to be made.

    :ivar server_id: whose it is.
    :ivar path: of the overlay.
    :ivar size: of the disk, in bytes.
    :ivar console: gives the end of the server's console.
    """

    server_id: str
    path: str
    size: int
    console: Callable[[], str]


class PlannedDisks:
    """Makes them.

    :param parts: of the host.
    :param stores: the growing stores that chains share.
    """

    def __init__(self, parts: Parts, stores: ChainStores):
        self._parts = parts
        self._stores = stores
        self._cache = parts.cache
        self._gateway = parts.gateway
        self._needs = parts.needs

    def make_profile(self, disk: PlannedDisk, remote: Remote, virtual_bytes: int, offered: Offered,
                     token: str) -> None:
        """Make the disk of a profile boot, and watch that.

        :param virtual_bytes: size of the base.
        :param token: the profile boot's.
        :raises ProfileBootFailed: if it cannot be recorded.
        """
        if offered.watch is None:
            raise exception.ProfileBootFailed(
                'the storage service does not say when it is over')
        try:
            profile = self._parts.recordings.start(disk.server_id, remote, virtual_bytes, token)
            self._create(disk.path, disk.size, naming.nbd_unix_uri(
                self._gateway.socket_path, profile.recording.export), 'raw')
            self._parts.boots.watch_profile(disk.server_id, self._parts.storage.hostname, profile,
                                            remote, offered, disk.console)
        except (exception.BootcacheError, OSError, RuntimeError, ValueError) as error:
            raise exception.ProfileBootFailed(f'it cannot be recorded: {error}') from error

    def make(self, plan: placement.Plan, disk: PlannedDisk, remote: Remote, virtual_bytes: int,
             offered: Offered) -> None:
        """Do a plan's steps, each as it says.

        :param virtual_bytes: size of the base.
        :raises Exception: if one of them fails; its server is to go the stock way.
        """
        image_id, store = remote.image_id, None
        if PlanStep.SERVE_BASE in plan:
            # Nothing is fetched for a boot that goes the stock way in the end.
            self._gateway.start()
        with contextlib.ExitStack() as until_watched:
            for step in plan:
                if step is PlanStep.PROMOTE:
                    # The boot does not depend on it.
                    with contextlib.suppress(messaging.MessagingException):
                        self._parts.storage.api.promote_image(image_id)
                elif step in placement.FETCH:
                    self._fetch(offered, placement.FETCH[step])
                elif step in placement.ARRIVE:
                    if not self._parts.arrivals.begin(offered, placement.ARRIVE[step],
                                                      PlanStep.AWAIT in plan):
                        self._fetch(offered, placement.ARRIVE[step])
                elif step is PlanStep.AWAIT:
                    self._parts.arrivals.awaited.wait(image_id)
                elif step is PlanStep.USE_LOCAL:
                    self._use_local(image_id, offered)
                elif step is PlanStep.MAKE_EMPTY:
                    # Where another server has one arrive, to look would wait for that.
                    if not self._needs.is_arriving(image_id):
                        self._parts.fetches.make_empty(remote, virtual_bytes)
                elif step is PlanStep.SERVE_BASE:
                    self._gateway.ensure_base(remote)
                elif step is PlanStep.GROW:
                    store = self._stores.get(image_id, virtual_bytes, PlanStep.WATCH in plan,
                                             until_watched)
                elif step is PlanStep.CHAIN:
                    self._cache.touch(image_id)
                    self._create(disk.path, disk.size, self._cache.path(image_id), 'qcow2')
                elif step is PlanStep.WATCH and store is not None and not store.spoilt:
                    self._watch(disk, store, remote, offered)

    def _watch(self, disk: PlannedDisk, store: SharedStore, remote: Remote,
               offered: Offered) -> None:
        try:
            self._parts.boots.watch(disk.server_id, self._parts.storage.hostname, store, remote,
                                    offered, disk.console)
        except Exception:
            # The disk is made, and its boot does not depend on it.
            store.spoilt = True
            LOG.exception('bootcache: the boot of server %s is not watched', disk.server_id)

    def _use_local(self, image_id: str, offered: Offered) -> None:
        """Note where the base is now of a cache image that is here."""
        entry = self._cache.known(image_id)
        if entry is not None and offered.remote is not None \
                and not self._needs.is_arriving(image_id):
            self._cache.update(entry, offered.remote, offered.pinned, offered.generation)

    def _fetch(self, offered: Offered, medium: Medium) -> None:
        remote = offered.remote
        assert remote is not None
        try:
            self._parts.fetches.fetch_offered(offered, medium)
        except (exception.BootcacheError, OSError) as error:
            LOG.warning('image %s: its cache image cannot be fetched: %s', remote.image_id, error)
            # An older one is as right; so is an empty one, as all is in the base.
            self._parts.fetches.make_empty(remote, offered.virtual_bytes)
            self._use_local(remote.image_id, offered)

    @staticmethod
    def _create(path: str, size: int, backing: str, backing_format: str) -> None:
        partial = f'{path}.partial'
        try:
            qemuimg.create_overlay(partial, size, backing, backing_format,
                                   cluster_bytes=_OVERLAY_CLUSTER, subclusters=True)
            steps.reached('chain: made')
            os.rename(partial, path)
        finally:
            if os.path.exists(partial):
                os.unlink(partial)
