"""Growing stores below chains: who boots shares the one that is there, or has a new one opened."""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import TypeVar

import oslo_messaging as messaging
import tenacity
from oslo_log import log as logging

from bootcache import exception
from nova_bootcache.asking.client import HostsClient
from nova_bootcache.cache.cachefiles import CacheFiles
from nova_bootcache.gateway.below import Below
from nova_bootcache.gateway.daemon import Gateway
from nova_bootcache.gateway.hostneeds import HostNeeds
from nova_bootcache.gateway.sharedstore import SharedStore
from nova_bootcache.metrics import HostMetrics
from nova_bootcache.recording.bootwatch import WatchedBoots
from nova_bootcache.recording.profilerecordings import ProfileRecordings
from nova_bootcache.tiers.arrivals import Arrivals
from nova_bootcache.tiers.fetches import Fetches
from nova_bootcache.tiers.room import Room

LOG = logging.getLogger(__name__)

@dataclasses.dataclass(frozen=True)
class Parts:
    """The parts that others use.

    :ivar storage: the storage service, as this host reaches it.
    :ivar cache: the files of the cache images.
    :ivar gateway: serves the bases.
    :ivar needs: who needs what is below servers' disks.
    :ivar below: that, in the gateway.
    :ivar room: of the tiers.
    :ivar fetches: brings cache images here.
    :ivar arrivals: cache images that servers read from on their way.
    :ivar boots: those that are watched.
    :ivar recordings: profile boots on this host.
    :ivar metrics: of boots, fetches and tiers.
    """

    storage: HostsClient
    cache: CacheFiles
    gateway: Gateway
    needs: HostNeeds
    below: Below
    room: Room
    fetches: Fetches
    arrivals: Arrivals
    boots: WatchedBoots
    recordings: ProfileRecordings
    metrics: HostMetrics


_AGAIN_SECONDS = 1.0
# For which Nova waits with a server that is there: each has one of nova-compute's threads.
CHAIN_SECONDS = 60
Result = TypeVar('Result')


def passes(error: BaseException | None) -> bool:
    """Tell whether an error is of a kind that passes by itself. Pure.

    A gateway that is busy or starts anew, a storage node or storage service that is away: they
    come back. So do certificates, which are renewed while all runs: of the configuration nothing
    else is looked at so late. An image with another content does not get the older one again by
    itself.
    """
    return isinstance(error, (exception.StorageDaemonError, exception.StorageServiceAway,
                              exception.ConfigurationError, messaging.MessagingException))


def patiently(work: Callable[[], Result], seconds: float, what: str,
              is_wanted: Callable[[], bool]) -> Result:
    """Do what may not be possible just now, again until it is.

    :param seconds: after which it is not tried again.
    :param what: that waits, for the log.
    :param is_wanted: tells before and after each pause whether to go on.
    :raises Exception: the work's, if it does not pass, or not in time.
    """
    failures: list[BaseException] = []

    def before_pause(state: tenacity.RetryCallState) -> None:
        assert state.outcome is not None
        if not failures:
            LOG.warning('bootcache: %s waits, for %.0f s at most: %s', what, seconds,
                        state.outcome.exception())
        failures[:] = filter(None, [state.outcome.exception()])

    def work_if_wanted() -> Result:
        if failures and not is_wanted():
            raise failures[0]
        return work()

    is_late = tenacity.stop_after_delay(seconds)
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(passes), wait=tenacity.wait_fixed(_AGAIN_SECONDS),
        stop=lambda state: is_late(state) or not is_wanted(),
        before_sleep=before_pause, reraise=True)(work_if_wanted)


class ChainStores:
    """Finds or opens the growing store of an image whose server's chain is being made.

    :param parts: of the host.
    :param limit: bytes that a growing store may have.
    """

    def __init__(self, parts: Parts, limit: int):
        self._parts = parts
        self._needs = parts.needs
        self._room = parts.room
        self._limit = limit

    def get(self, image_id: str, virtual_bytes: int, is_watched: bool,
            until_watched: contextlib.ExitStack) -> SharedStore | None:
        """Return a growing store below an image's export; None if it is read without one.

        :param virtual_bytes: size of the base.
        :param is_watched: whether what the boot reads is to be told: what another one has read
            through it, of which nobody is told, would lack.
        :param until_watched: the store stays as long as it is open.
        """
        store = self._get(image_id, virtual_bytes, is_watched, until_watched)
        if store is not None and not is_watched:
            store.spoilt = True
        return store

    def _get(self, image_id: str, virtual_bytes: int, is_watched: bool,
             until_watched: contextlib.ExitStack) -> SharedStore | None:
        with self._needs.deciding.of(image_id):
            store = self._here(image_id, is_watched, until_watched)
        if store is not None or self._needs.is_arriving(image_id):
            return store
        medium = self._room.room_for_store(image_id, self._limit)
        if medium is None:
            return None
        try:
            # What goes for it may have a growing store, with locks of its own.
            with self._room.for_store(image_id, medium, self._limit), \
                    self._needs.deciding.of(image_id):
                # Another server of the image may have been faster.
                store = self._here(image_id, is_watched, until_watched)
                if store is not None or self._needs.is_arriving(image_id):
                    return store
                store = self._parts.below.open_store(image_id, virtual_bytes, medium, self._limit)
                store.spoilt = self._parts.boots.is_copied(image_id)
                until_watched.enter_context(self._needs.booting(image_id))
                return store
        except (exception.BootcacheError, OSError) as error:
            LOG.warning('image %s: it is read without a growing store: %s', image_id, error)
            return None

    def _here(self, image_id: str, is_watched: bool,
              until_watched: contextlib.ExitStack) -> SharedStore | None:
        """Return an image's growing store; one that is of no use any more is forgotten."""
        store = self._parts.below.stores.get(image_id)
        if store is None or self._needs.is_arriving(image_id):
            return None
        if not store.is_there() or self._gives_way(store, is_watched):
            self._parts.below.forget_store(store)
            return None
        until_watched.enter_context(self._needs.booting(image_id))
        return store

    def _gives_way(self, store: SharedStore, is_watched: bool) -> bool:
        """Take out a store that cannot tell of boots any more, so that another one can.

        One that grows is as good as another one for a boot that is not watched.
        """
        image_id = store.name
        if not store.spoilt or (store.grows and not is_watched) \
                or self._parts.boots.is_copied(image_id) or self._needs.is_booting(image_id):
            return False
        try:
            store.close()
        except exception.BootcacheError as error:
            LOG.info('image %s: its growing store stays for now: %s', image_id, error)
            return False
        return True
