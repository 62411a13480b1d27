"""The cache images that are on their way to one host while its servers boot from them.

The first host that asks for one has it read by the job of gateway/arrivingimage.py. Others get it
from hosts that asked before, into a file apart: libtorrent writes what nobody has verified yet, so
it never writes to what servers read. What came apart takes the name of what they read, and both
ways end in the same way. Servers wait for that, see fetches.py, and nothing is read from the
storage node. Those that do not, or no longer, read from there meanwhile, and only what they ask
for.
"""

import contextlib
import dataclasses
import os
import threading
import time

from oslo_log import log as logging

from bootcache import exception, steps
from bootcache.exchange.client import Exchanged
from bootcache.manifest import CacheInfo
from bootcache.tier import Medium
from nova_bootcache.asking.client import Offered
from nova_bootcache.cache.cachefiles import CacheEntry, CacheFiles
from nova_bootcache.gateway import arrivingimage
from nova_bootcache.gateway.below import Below
from nova_bootcache.gateway.daemon import Gateway
from nova_bootcache.gateway.hostneeds import HostNeeds
from nova_bootcache.metrics import BytesFrom, HostMetrics
from nova_bootcache.storagenode import Remote
from nova_bootcache.tiers import fetches as fetching
from nova_bootcache.tiers.fetches import Awaited, Fetches
from nova_bootcache.tiers.room import Room

LOG = logging.getLogger(__name__)


@dataclasses.dataclass
class _Coming:
    """A cache image on its way.

    :ivar is_read: whether servers read from it; the thread that brings it has them do so.
    """

    offered: Offered
    medium: Medium
    is_read: bool = False

    @property
    def remote(self) -> Remote:
        """Where its base is."""
        assert self.offered.remote is not None
        return self.offered.remote

    @property
    def info(self) -> CacheInfo:
        """What is told of it."""
        assert self.offered.cache_image is not None
        return self.offered.cache_image


def _holder(image_id: str) -> str:
    """Return the name by which an arrival holds the way to its source."""
    return f'arrival-{image_id}'


class Arrivals:
    """Fetches cache images without a server having to wait for them: gateway/arrivingimage.py.

    :ivar awaited: those that servers wait for all the same, as others give them.

    :param files: the host's cache images.
    :param fetches: verifies and places what has come.
    :param room: of the tiers.
    :param below: the gateway's nodes.
    :param gateway: the host's.
    :param needs: told what is on its way.
    :param metrics: count the bytes that come.
    """

    def __init__(self, files: CacheFiles, fetches: Fetches, room: Room, below: Below,
                 gateway: Gateway, needs: HostNeeds, metrics: HostMetrics):
        self._files = files
        self._fetches = fetches
        self._room = room
        self._below = below
        self._gateway = gateway
        self._needs = needs
        self._metrics = metrics
        self.awaited = Awaited()

    def is_worth_it(self, offered: Offered, medium: Medium) -> bool:
        """Tell whether servers may read from a cache image on its way, instead of waiting for it.

        :param medium: the tier that it is to come into.
        """
        info = offered.cache_image
        assert info is not None and offered.remote is not None
        return arrivingimage.is_worth_it(info.bytes) and self._room.has_room(
            medium, offered.remote.image_id, arrivingimage.room(info.bytes))

    def begin(self, offered: Offered, medium: Medium, is_awaited: bool = False) -> bool:
        """Have servers of an image read from its cache image, which comes in the background.

        The image has a cache image on this host, as a rule an empty one, that what comes replaces;
        and the gateway serves its base.

        :param is_awaited: whether servers wait while other hosts give it.
        :returns: False if that is not possible, or a growing store has its place by now; True also
            if it is here by now.
        """
        info, remote = offered.cache_image, offered.remote
        assert info is not None and remote is not None
        # Who opens a growing store looks there as well.
        with self._needs.deciding.of(remote.image_id):
            if not self._needs.begin_arrival(remote.image_id):
                return True
            is_here = self._is_here(remote.image_id, info.sha256)
            if is_here or self._below.stores.get(remote.image_id) is not None:
                # Since the server's plan was made.
                self._needs.end_arrival(remote.image_id)
                return is_here
            if is_awaited:
                self.awaited.begin(remote.image_id)
        with contextlib.ExitStack() as undone:
            undone.callback(self._end, remote.image_id)
            try:
                # What has to go for it goes before its file takes the room.
                kept = contextlib.ExitStack()
                kept.enter_context(self._room.for_arrival(remote.image_id, medium,
                                                          arrivingimage.room(info.bytes)))
                undone.push(kept)
                coming = _Coming(offered, medium)
                if not is_awaited:
                    self._have_read(coming)
                self._start(coming, kept)
            except (exception.BootcacheError, OSError) as error:
                LOG.warning('image %s: its cache image is fetched before a server boots: %s',
                            remote.image_id, error)
                return False
            undone.pop_all()
        return True

    def _end(self, image_id: str) -> None:
        self.awaited.end(image_id)
        self._gateway.connections.let_go(_holder(image_id))
        self._needs.end_arrival(image_id)

    def _is_here(self, image_id: str, sha256: str) -> bool:
        known = self._files.known(image_id)
        return known is not None and known.cache_image is not None \
            and known.cache_image.sha256 == sha256 and os.path.exists(self._files.path(image_id))

    def _have_read(self, coming: _Coming) -> None:
        """Have servers read from it from now on, unless they do.

        :raises BootcacheError: if that is not possible; they read the base.
        :raises OSError: if the file system has no room for it.
        """
        image_id = coming.remote.image_id
        try:
            if coming.is_read:
                return
            export = coming.offered.cache_export
            self._gateway.connections.hold(
                _holder(image_id), dataclasses.replace(coming.remote, export=export, rbd=None))
            self._below.begin_arrival(image_id, coming.info.bytes,
                                      self._files.coming_path(image_id, coming.medium),
                                      self._gateway.linked_node('', export))
            coming.is_read = True
            steps.reached('arrive: begun')
        finally:
            self.awaited.end(image_id)

    def _look(self, coming: _Coming) -> None:
        """Have servers read that have waited for long enough; what others give goes on to come."""
        image_id = coming.remote.image_id
        if self.awaited.is_overdue(image_id):
            try:
                self._have_read(coming)
            except (exception.BootcacheError, OSError) as error:
                LOG.warning('image %s: its base is read while its cache image comes: %s', image_id,
                            error)

    def _start(self, coming: _Coming, room: contextlib.ExitStack) -> None:
        try:
            threading.Thread(target=self._run, args=(coming, room), daemon=True,
                             name='bootcache-arrival').start()
        except RuntimeError as error:
            self._clear_up(coming.remote.image_id, coming.medium)
            raise exception.BootcacheError(f'nothing can bring it: {error}') from error

    def _run(self, coming: _Coming, room: contextlib.ExitStack) -> None:
        image_id = coming.remote.image_id
        try:
            with contextlib.ExitStack() as apart:
                others = self._ask_others(coming, apart)
                is_told = self._receive(coming, others, apart)
            steps.reached('arrive: landing')
            arrivingimage.land(self._gateway, image_id, self._files.path(image_id))
            self.awaited.end(image_id)
            if others is not None:
                # Until this is over nobody expands it.
                self._fetches.give(others, image_id, is_told)
        except (exception.BootcacheError, OSError) as error:
            LOG.warning('image %s: its cache image did not arrive, and is read from the base: %s',
                        image_id, error)
        except Exception:
            LOG.exception('bootcache: unexpected error')
        finally:
            try:
                self._clear_up(image_id, coming.medium)
            finally:
                room.close()
                self._end(image_id)

    def _clear_up(self, image_id: str, medium: Medium) -> None:
        try:
            self._below.end_arrival(image_id)
        except exception.BootcacheError as error:
            # Upkeep sees it there, and that nobody waits for it.
            LOG.warning('image %s: the gateway keeps what arrived, for now: %s', image_id, error)
        try:
            arrivingimage.clean(self._files.coming_path(image_id, medium))
        except OSError as error:
            LOG.warning('image %s: what is left of its arrival stays: %s', image_id, error)

    def _ask_others(self, coming: _Coming, apart: contextlib.ExitStack) -> Exchanged | None:
        """Return from which hosts it can be had; None if all of it comes from the storage node.

        :param apart: keeps the room of what comes from them.
        """
        info, image_id = coming.info, coming.remote.image_id
        if not self._fetches.asks_others(info):
            return None
        try:
            apart.enter_context(self._room.for_exchange(image_id, coming.medium, info.bytes))
        except exception.BootcacheError as error:
            # Before others are told of this host.
            LOG.info('image %s: its cache image comes from the storage node alone: %s',
                     image_id, error)
            return None
        others = self._fetches.ask_others(image_id, info)
        if others is None or others.is_first:
            apart.close()
        return others

    def _receive(self, coming: _Coming, others: Exchanged | None,
                 apart: contextlib.ExitStack) -> bool:
        """Have it come; tell whether other hosts gave it, as far as they did."""
        info, offered = coming.info, coming.offered
        path = self._files.coming_path(coming.remote.image_id, coming.medium)
        came: list[bool] = []
        self._fetches.receive(
            CacheEntry(coming.remote, info, info.sha256, info.virtual_bytes, offered.pinned,
                       offered.generation), coming.medium, path,
            lambda seconds: came.append(self._bring(coming, others, apart, seconds)),
            has_room=True)
        return any(came)

    def _bring(self, coming: _Coming, others: Exchanged | None, apart: contextlib.ExitStack,
               seconds: float) -> bool:
        image_id = coming.remote.image_id
        path = self._files.coming_path(image_id, coming.medium)
        if others is not None and not others.is_first \
                and self._exchange(coming, others, path, seconds):
            return True
        apart.close()
        self._have_read(coming)
        arrivingimage.bring(self._gateway, image_id, coming.info.bytes, path, seconds,
                            fetching.GRACE_SECONDS)
        self._metrics.count_bytes(BytesFrom.STORAGE_NODE, coming.info.bytes)
        return False

    def _exchange(self, coming: _Coming, others: Exchanged, path: str,
                  seconds: float) -> bool:
        remote = coming.remote
        come = self._files.exchanged_path(remote.image_id, coming.medium)
        try:
            steps.reached('arrive: apart')
            if not self._fetches.exchange(
                    others, remote, coming.info, coming.offered.cache_export, come, seconds,
                    time.monotonic(), check=lambda: self._look(coming)):
                return False
            steps.reached('arrive: exchanged')
            # The gateway goes on with the file that it may have open, until it gets this one.
            os.replace(come, path)
        except (exception.BootcacheError, OSError) as error:
            LOG.warning('image %s: other hosts do not give its cache image, which comes from the'
                        ' storage node: %s', remote.image_id, error)
            return False
        finally:
            with contextlib.suppress(OSError):
                os.unlink(come)
        return True

    def wait(self, image_id: str, seconds: float) -> bool:
        """Wait until an image's cache image has arrived, or did not; False if it is on its way.

        :param seconds: at most.
        """
        deadline = time.monotonic() + seconds
        while self._needs.is_arriving(image_id) and time.monotonic() < deadline:
            time.sleep(0.02)
        return not self._needs.is_arriving(image_id)
