"""The chains of one host's servers: made when a root disk is, and kept while it is there."""

import contextlib
import dataclasses
import os
from collections.abc import Callable

import oslo_messaging as messaging
from oslo_config import cfg
from oslo_log import log as logging

from bootcache import exception, naming, qemuimg, steps
from bootcache.rpc.messages import PromoteImage
from bootcache.tier import Medium
from nova_bootcache.asking import client, placement
from nova_bootcache.asking.client import AsUser, Offered
from nova_bootcache.asking.placement import HeldHere, Host, Offer, PlanStep, Server, TierRoom, Trust
from nova_bootcache.cache.cachefiles import CacheEntry
from nova_bootcache.chains import chainstores
from nova_bootcache.chains.chainstores import ChainStores, Parts
from nova_bootcache.chains.serving import Serving
from nova_bootcache.gateway import connections
from nova_bootcache.gateway.sharedstore import SharedStore
from nova_bootcache.metrics import BootPhase, BootWay, BytesFrom
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
        self._metrics = parts.metrics

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
                with self._metrics.phase(step.name.lower()):
                    if step is PlanStep.PROMOTE:
                        # The boot does not depend on it.
                        with contextlib.suppress(messaging.MessagingException):
                            self._parts.storage.send(PromoteImage(image_id))
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


def _held(entry: CacheEntry | None, offered: Offered, is_arriving: bool) -> HeldHere:
    info = offered.cache_image
    if is_arriving:
        return HeldHere.ARRIVING
    if entry is None:
        return HeldHere.NOTHING
    if entry.cache_image is None:
        return HeldHere.EMPTY
    if info is None or entry.cache_image.sha256 == info.sha256 \
            or entry.cache_image.has_data_of(info):
        return HeldHere.CURRENT
    return HeldHere.OLDER


_NOBODY = AsUser()
_WAYS = {BootWay.ARRIVING: 'the cache image, on its way here,',
         BootWay.CACHE_IMAGE: 'the cache image', BootWay.EMPTY: 'an empty cache image'}


class Chains:
    """Makes and keeps them: asks the storage service, plans, and has the plan carried out.

    :param conf: the driver's options.
    :param parts: of the host.
    :param serving: whether new servers are served.
    :param store_limit: bytes that a growing store may have.
    """

    def __init__(self, conf: cfg.ConfigOpts, parts: Parts, serving: Serving, store_limit: int):
        self._conf = conf
        self._parts = parts
        self._cache = parts.cache
        self._gateway = parts.gateway
        self._needs = parts.needs
        self._room = parts.room
        self._serving = serving
        self._store_limit = store_limit
        self._stores = ChainStores(parts, store_limit)
        self._disks = PlannedDisks(parts, self._stores)

    # Root disks.

    def make_overlay(self, server: Server, server_id: str, profile_token: str | None, path: str,
                     root_bytes: int | None, has_stock_base: bool,
                     console: Callable[[], str] = str, is_moving: bool = False,
                     as_user: AsUser = _NOBODY) -> bool:
        """Make a server's root disk as an overlay on a cache image or a recording.

        :param profile_token: from the server's metadata, None for servers of people.
        :param path: of the overlay.
        :param root_bytes: size of the disk; None for the base's own.
        :param has_stock_base: whether Nova's own base of the image is on this host.
        :param console: gives the end of the server's console.
        :param is_moving: whether the server comes from another host: it has booted there.
        :param as_user: what Nova can ask for as the server's user.
        :returns: False if the server is to go the stock way; the reason is logged.
        :raises ProfileBootFailed: if the storage service knows the server as its profile boot, and
            it cannot be recorded: nobody has a use for it then.
        :raises FlavorTooSmall: if the disk is smaller than the image: stock Nova would refuse it
            as well, after it had got all of the image.
        """
        # A profile boot is recorded all the same: its server is for nothing else.
        reason = self._serving.reason_for(server_id) or placement.stock_reason(
            server, self._conf.enabled, has_stock_base and profile_token is None)
        if not reason:
            try:
                reason = self._make(server, server_id, profile_token, path, root_bytes,
                                    console, is_moving, as_user)
            except exception.ProfileBootFailed:
                self._parts.boots.discard(server_id, 'it cannot be recorded')
                self._parts.recordings.finish(server_id)
                raise
            except exception.FlavorTooSmall:
                raise
            except (exception.BootcacheError, messaging.MessagingException, OSError,
                    ValueError, KeyError) as error:
                reason = f'{type(error).__name__}: {error}'
            except Exception as error:
                # Whatever it is: the server boots.
                LOG.exception('bootcache: unexpected error')
                reason = f'unexpected {type(error).__name__}: {error}'
        if reason:
            if server.disk_name == placement.ROOT_DISK:
                self._parts.metrics.count_boot(BootWay.STOCK)
            LOG.info('bootcache: server %s goes the stock way: %s', server_id, reason)
        elif profile_token is None:
            self._serving.note_made(server_id, path)
        return not reason

    def _make(self, server: Server, server_id: str, profile_token: str | None, path: str,
              root_bytes: int | None, console: Callable[[], str], is_moving: bool,
              as_user: AsUser) -> str:
        image_id, ask = str(server.image_id), self._parts.storage.ask_patiently
        with self._parts.metrics.phase(BootPhase.ASK):
            offered = ask(image_id, server_id, profile_token, server.owner)
        if is_moving:
            offered = offered.for_a_move()
        if offered.storage.offer not in (Offer.STOCK, Offer.WAIT):
            refused = placement.unverified_reason(server, offered.signature, as_user.verifies_by)
            if refused and offered.storage.offer is Offer.PROFILE:
                raise exception.ProfileBootFailed(refused)
            if not refused and not is_moving and self._conf.require_download_policy:
                refused = as_user.download_refusal()
            if refused:
                return refused
        if not self._is_content(image_id, offered) and not self._room.let_go(image_id):
            return ('the image has another content than the one on which disks of this host\'s'
                    ' servers stand')
        try:
            # What is here now is what is decided by: it stays from now on.
            with self._needs.making(image_id, path):
                return self._decide_and_make(offered, image_id, server_id, profile_token, path,
                                             root_bytes, console)
        except Exception:
            # What was made until now is for no other server.
            self._room.forget_empty(image_id)
            raise

    def _is_content(self, image_id: str, offered: Offered) -> bool:
        """Tell whether what is here of an image is of the content that is offered."""
        known = self._cache.known(image_id)
        return known is None or offered.remote is None \
            or offered.storage.offer not in (Offer.COLD, Offer.CACHE) \
            or known.is_of(offered.remote, offered.virtual_bytes, offered.cache_image)

    def facts(self, image_id: str, entry: CacheEntry | None, offered: Offered,
              is_arriving: bool = False) -> Host:
        """Return what there is of an image, and what there is room for.

        :param entry: of the cache image that is here, None if there is none.
        :param is_arriving: whether one is on its way, which servers read from.
        """
        parts, info = self._parts, offered.cache_image
        has_store = parts.below.stores.get(image_id) is not None
        rooms = {Medium.MEMORY: TierRoom.NONE, Medium.DISK: TierRoom.NONE}
        # What is made here comes by itself: nothing arrives, and servers wait for seconds.
        here = parts.fetches.room_here(offered)
        local = [medium for medium in rooms
                 if here is not None and parts.room.has_room(medium, image_id, here)]
        for medium in local:
            rooms[medium] = TierRoom.FILE
        for medium in () if local else rooms:
            if info is not None and parts.room.has_room(medium, image_id, info.bytes):
                # A store that servers read through is in the same place.
                rooms[medium] = TierRoom.ARRIVAL if not has_store and offered.is_verified \
                    and parts.arrivals.is_worth_it(offered, medium) else TierRoom.FILE
        held = _held(entry, offered, is_arriving)
        if held is HeldHere.OLDER and info is not None and set(rooms.values()) == {TierRoom.NONE}:
            LOG.info('image %s: its newer cache image of %d bytes has no room beside the older one,'
                     ' which is used; raise [bootcache]compute_disk_quota', image_id, info.bytes)
        return Host(
            held, rooms[Medium.MEMORY], rooms[Medium.DISK],
            has_store or parts.room.room_for_store(image_id, self._store_limit) is not None,
            Trust.FULL if info is None else parts.fetches.trust(image_id, info),
            info is not None and parts.fetches.asks_others(info))

    def _decide_and_make(self, offered: Offered, image_id: str, server_id: str,
                         profile_token: str | None, path: str, root_bytes: int | None,
                         console: Callable[[], str]) -> str:
        # Asked first: what has arrived by then is found.
        is_arriving = self._needs.is_arriving(image_id)
        entry = self._cache.entry(image_id)
        plan = placement.plan(self.facts(image_id, entry, offered, is_arriving),
                              offered.storage)
        LOG.debug('bootcache: server %s: %s', server_id, ', '.join(step.name for step in plan))
        if plan == (PlanStep.STOCK,):
            return offered.reason or placement.CAME_WRONG
        remote = offered.remote or (entry.remote if entry else None)
        virtual_bytes = offered.virtual_bytes or (entry.virtual_bytes if entry else 0)
        if remote is None:
            # What arrives takes its place just now: for a moment the image has no entry.
            return offered.reason or 'it is not known where the image\'s base is'
        if root_bytes is not None and root_bytes < virtual_bytes:
            raise exception.FlavorTooSmall(root_bytes, virtual_bytes)
        disk = PlannedDisk(server_id, path, root_bytes or virtual_bytes, console)
        if plan == (PlanStep.PROFILE,):
            self._disks.make_profile(disk, remote, virtual_bytes, offered, profile_token or '')
            self._parts.metrics.count_boot(BootWay.PROFILE)
            return ''
        if offered.storage.offer is Offer.AWAY:
            LOG.info('bootcache: the storage service does not answer; server %s boots from the'
                     ' cache image that is here', server_id)
        self._disks.make(plan, disk, remote, virtual_bytes, offered)
        if PlanStep.USE_LOCAL in plan and entry is not None and entry.cache_image is not None:
            self._parts.metrics.count_bytes(BytesFrom.LOCAL, entry.cache_image.bytes)
        entry = self._cache.known(image_id)
        way = BootWay.ARRIVING if self._needs.is_arriving(image_id) else \
            BootWay.CACHE_IMAGE if entry and entry.cache_image else BootWay.EMPTY
        self._parts.metrics.count_boot(way)
        LOG.info('bootcache: server %s boots from %s of %s', server_id, _WAYS[way], image_id)
        return ''

    def keep_chain(self, image_id: str, path: str = '', patience: float = 0.0,
                   guest_waits: bool = False) -> None:
        """See to it that a server's existing chain can be opened: cache image and gateway.

        A cache image that is gone is fetched again; where there is none any more an empty one
        takes its place, as the base has all the data.

        :param path: of the overlay that is about to be opened; empty if none is.
        :param patience: seconds for which it is tried again, while the gateway is busy or the
            storage node is away.
        :param guest_waits: whether a guest is to be started that is paused at what cannot be
            read: it need not wait for the storage node before.
        :raises Exception: if the base cannot be reached; the server cannot start until it can.
        """
        def keep() -> None:
            entry = self._cache.entry(image_id) or self._find_lost(image_id)
            try:
                away = self._gateway.connections.failure(entry.remote)
                if guest_waits and away is not None:
                    # The watch looks for a way, each second.
                    raise away
                self.serve_base(entry)
            except Exception as error:
                if not guest_waits or not chainstores.passes(error):
                    raise
                self._gateway.serve_absent(entry.remote, entry.virtual_bytes)
                LOG.warning('bootcache: %s is opened, though the base of image %s cannot be read'
                            ' now: a guest that needs it is paused, and resumes by itself: %s',
                            path, image_id, error)
            self._cache.touch(image_id)

        with self._needs.making(image_id, path) if path else contextlib.nullcontext():
            # It may be deleted meanwhile.
            chainstores.patiently(keep, patience, path or f'image {image_id}',
                              lambda: not path or os.path.exists(path))

    def _find_lost(self, image_id: str) -> CacheEntry:
        offered = self._parts.storage.ask_patiently(image_id, '', None)
        known = self._cache.known(image_id)
        if offered.remote is not None:
            self._cache.check_content(offered.remote, offered.virtual_bytes, offered.cache_image)
            return self._replace_lost(image_id, offered, offered.remote)
        if known is not None:
            # Its file is gone, as a memory tier's is when the host reboots; the base is not.
            return self._parts.fetches.make_empty(known.remote, known.virtual_bytes)
        comes = offered.storage.offer in (Offer.AWAY, Offer.WAIT)
        raise (exception.StorageServiceAway if comes else exception.BootcacheError)(
            f'the cache image of {image_id} is gone from this host and cannot be fetched:'
            f' {offered.reason}')

    def serve_base(self, entry: CacheEntry) -> None:
        """Serve a base to this host's servers, wherever it is now.

        :raises Exception: if it cannot be reached.
        """
        try:
            self._gateway.ensure_base(entry.remote)
        except exception.BootcacheError:
            # Who is asked serves it, also if nobody has needed it for a while.
            if (found := self._find_base(entry)[0]) is None:
                raise
            self._gateway.ensure_base(found.remote)

    def is_read(self, image_id: str) -> bool:
        """Tell whether servers that run can read an image's base now."""
        entry = self._cache.known(image_id)
        return entry is not None and self._gateway.connections.is_read(entry.remote.export) \
            and self._gateway.reads(image_id)

    def reach_base(self, image_id: str) -> None:
        """See to it that servers that run are served an image's base.

        :raises Exception: if they are not, or it cannot be read now.
        """
        entry = self._cache.known(image_id)
        if entry is None:
            raise exception.BootcacheError(f'it is not noted where the base of {image_id} is; a'
                                           ' server that is started from the image notes it')
        if not self._gateway.serves(image_id) \
                or not self._gateway.connections.has_link(entry.remote.export):
            self.keep_chain(image_id, guest_waits=True)
        if (error := self._gateway.connections.failure(entry.remote)) is not None:
            raise error
        if not self._gateway.reads(image_id):
            raise connections.away(entry.remote, 'the gateway cannot read it yet')

    def find_base(self, image_id: str) -> None:
        """Have an image's base be read from where it is now, which the storage service is asked.

        :raises Exception: if that does not tell, or does not serve it.
        """
        if (entry := self._cache.known(image_id)) is None:
            return
        found, reason = self._find_base(entry)
        if found is None:
            raise exception.BootcacheError(f'the storage service does not serve it: {reason}')
        self._gateway.connections.know(found.remote)

    def _find_base(self, entry: CacheEntry) -> tuple[CacheEntry | None, str]:
        """Ask where a base is now; None if the storage service does not serve it, and why.

        :raises BootcacheError: if it is of another content.
        """
        image_id = entry.remote.image_id
        offered = client.parse(image_id, self._parts.storage.ask(image_id, ''))
        if offered.remote is None:
            return None, offered.reason or 'no reason is given'
        if offered.remote != entry.remote:
            LOG.info('image %s: its base is at %s:%d now', image_id, offered.remote.host,
                     offered.remote.port)
            entry = self._cache.update(entry, offered.remote, offered.pinned, offered.generation)
        return entry, ''

    def adopt(self, image_id: str, path: str, server_id: str = '',
              guest_waits: bool = False) -> bool:
        """Put an overlay whose base is not on this host onto the host's cache image.

        :param path: of the overlay; not in use.
        :param server_id: whose it is.
        :param guest_waits: as for ``keep_chain``.
        :returns: False if stock Nova has to get the base.
        :raises BootcacheError: if the overlay cannot be changed.
        """
        if not self._serving.is_on or self._serving.reason_for(server_id):
            return False
        try:
            self.keep_chain(image_id, path, guest_waits=guest_waits)
        except (exception.BootcacheError, messaging.MessagingException) as error:
            LOG.info('bootcache: %s gets a stock base: %s', path, error)
            self._room.forget_empty(image_id)
            return False
        with self._needs.making(image_id, path):
            # Its time becomes another by this, and nobody has opened it yet.
            qemuimg.set_backing_pointer(path, self._cache.path(image_id), 'qcow2')
        LOG.info('bootcache: %s stands on the cache image of %s', path, image_id)
        return True

    def _replace_lost(self, image_id: str, offered: Offered, remote: Remote) -> CacheEntry:
        info = offered.cache_image
        medium = self._room.room_for(image_id, info.bytes) if info is not None else None
        if info is not None and medium is not None \
                and self._parts.fetches.trust(image_id, info) is Trust.FULL:
            with contextlib.suppress(exception.BootcacheError):
                return self._parts.fetches.fetch_offered(offered, medium)
        return self._parts.fetches.make_empty(remote, offered.virtual_bytes)
