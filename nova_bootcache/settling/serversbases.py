"""The full bases of a host's servers: whether they are to have one, and one of their content.

It is completed from the storage node, once an image, unless somebody else has made one there: that
is compared with what the servers stand on. And the bases in the gateway that no server needs any
more, as of images whose full base is here.
"""

import os
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from oslo_log import log as logging

from bootcache import exception, naming, properties, tier
from bootcache.rpc.messages import StoredExport
from bootcache.util.backoff import Backoff
from nova_bootcache import storagenode
from nova_bootcache.asking import client
from nova_bootcache.chains.computehost import ComputeHost
from nova_bootcache.settling import fullbase, pivot
from nova_bootcache.settling.fullbase import ExchangedBase, StorageSlot
from nova_bootcache.settling.localservers import LocalServer, Nova
from nova_bootcache.settling.unsettled import Unsettled

LOG = logging.getLogger(__name__)

_AGAIN_SECONDS = 60
# A host asks at its slowest for a slot, whatever it is told.
_LONGEST_SECONDS = 3600


class _Unwanted(threading.Event):
    """Is set when settling stops, or the last server that wanted a base is gone."""

    def __init__(self, stopped: threading.Event, is_wanted: Callable[[], bool]):
        super().__init__()
        self._stopped = stopped
        self._is_wanted = is_wanted

    def is_set(self) -> bool:
        """Look: another thread sees what servers there are."""
        return self._stopped.is_set() or not self._is_wanted()


class ServersBases:
    """The full bases at Nova's own paths, onto which a host's servers are to be moved.

    :param host: the host.
    :param nova: what is needed of Nova.
    :param bandwidth: bytes a second.
    :param stopped: set when settling stops.
    :param unsettled: told of images that say that their servers are not to be settled.
    """

    def __init__(self, host: ComputeHost, nova: Nova, bandwidth: int, stopped: threading.Event,
                 unsettled: Unsettled):
        self._host = host
        self._nova = nova
        self._bandwidth = bandwidth
        self._stopped = stopped
        self._unsettled = unsettled
        # Images whose servers are not to be settled.
        self._unwanted = Backoff(_AGAIN_SECONDS, clock=lambda: time.monotonic())
        # Images whose base is others' turn: the storage service says for how long.
        self._queued = Backoff(_AGAIN_SECONDS, clock=lambda: time.monotonic())
        self._slot = StorageSlot(host.storage)

    def path(self, image_id: str) -> str:
        """Return where an image's base is, or would be."""
        return os.path.join(self._nova.base_directory, naming.cache_file_name(image_id))

    def is_unwanted(self, image_id: str) -> bool:
        """Tell whether an image's servers are not to be settled, as it says."""
        return image_id in self._unwanted

    def asks_at(self, image_id: str) -> float:
        """Return when it is asked again whether an image's servers are to be settled, or can be.

        In monotonic seconds; 0 for one of which nobody has said that they are not, or not yet.
        """
        return max(self._unwanted.due_at(image_id), self._queued.due_at(image_id))

    def forget_all_but(self, image_ids: Collection[str]) -> None:
        """Forget what images say that have no server here that is to be settled."""
        self._unwanted.keep_only(image_ids)
        for image_id in self._queued.known().difference(image_ids):
            self._is_turn(image_id)
        self._unsettled.unwanted.intersection_update(image_ids)

    def sweep(self, image_ids: Iterable[str]) -> None:
        """Remove what was copied of bases that no server of this host needs any more."""
        wanted = {naming.cache_file_name(image_id) for image_id in image_ids
                  if self._bandwidth and not self.is_unwanted(image_id)}
        try:
            fullbase.sweep(self._nova.base_directory, wanted, self._nova.keep_free)
        except OSError as error:
            LOG.warning('bootcache: what is left of full bases cannot be removed: %s', error)

    # In the gateway.

    def idle_images(self) -> set[str]:
        """Return images that are not to be kept ready for the next server, if none stands on them.

        Those whose base is here: new servers do not need the gateway for them. Those whose cache
        image is empty: what served the last server is of no use to the next one, and that one may
        never have been seen here, as its domain did not start. And those whose cache image is open:
        the gateway reads it for servers that began while it came, and would keep it for good from
        being evicted where these came and went between two looks.
        """
        return {entry.remote.image_id for entry in self._host.cache.entries()
                if entry.cache_image is None
                or os.path.exists(self.path(entry.remote.image_id))
                or self._is_open(entry.remote.image_id)}

    def _is_open(self, image_id: str) -> bool:
        try:
            return tier.is_open(self._host.cache.path(image_id))
        except OSError:
            return False

    def let_go(self, image_id: str) -> bool:
        """Take what nobody uses any more out of the gateway; False if that is not possible now."""
        try:
            if self._host.needs.is_booting(image_id):
                return False
            if not self._host.gateway.serves(image_id):
                return True
            if not self._host.below.stop_serving(image_id):
                return False
        except exception.BootcacheError as error:
            LOG.warning('image %s: its base stays in the gateway for now: %s', image_id, error)
            return False
        LOG.info('image %s: no server of this host needs the gateway for it any more', image_id)
        return True

    # Completing and comparing one.

    def _is_to_settle(self, image_id: str, wanted: bool) -> bool:
        """Note what an image's property asks for: no failure, and it may ask for another thing."""
        if not wanted:
            if image_id not in self._unwanted:
                LOG.info('image %s: its servers are not settled, as it says %s=no', image_id,
                         properties.SETTLE)
            self._unwanted.postpone(image_id)
        elif self._unwanted.forget(image_id):
            LOG.info('image %s: its servers are settled from now on, as it says %s=yes', image_id,
                     properties.SETTLE)
        return wanted

    def complete(self, image_id: str, servers: list[LocalServer]) -> tuple[int, int] | None:
        """Return the identity of a full base of the servers' content.

        None if they do not settle, or others get theirs from the storage node now: it is asked for
        again, see ``asks_at``.

        :param servers: that are to be moved.
        :raises Cancelled: if settling stops, or nobody needs it any more.
        :raises BootcacheError: if there is none.
        :raises OSError: if it cannot be written.
        :raises MessagingException: if the storage service cannot be asked.
        """
        try:
            found = self._complete(image_id, servers)
        except exception.NoSlot as error:
            if image_id not in self._queued:
                LOG.info('image %s: its servers are settled when it is this host\'s turn: %s',
                         image_id, error)
            # Not all that wait at one moment at another one.
            self._queued.postpone(image_id, random.uniform(0.8, 1.2) * min(
                error.seconds, _LONGEST_SECONDS))
            self._unsettled.queued.add(image_id)
            return None
        self._is_turn(image_id)
        return found

    def _is_turn(self, image_id: str) -> None:
        """Note that an image's base does not wait for a slot, or no longer."""
        was_queued = self._queued.forget(image_id)
        self._unsettled.queued.discard(image_id)
        if was_queued and not self._queued.known():
            # It may have come from others, or nobody needs it: another one is next.
            self._host.storage.hold_slot(False)

    def _complete(self, image_id: str, servers: list[LocalServer]) -> tuple[int, int] | None:
        target = self.path(image_id)
        stored = self._host.storage.ask_for_stored(image_id)
        self._unsettled.unwanted.discard(image_id)
        if stored is not None and not self._is_to_settle(image_id, stored.settle):
            self._unsettled.unwanted.add(image_id)
            return None
        needs_stock = not os.path.exists(target) \
            and any(self._nova.needs_stock_base(server.server_id) for server in servers)
        if needs_stock and not (stored and stored.signature):
            raise exception.BootcacheError(
                'the image\'s signature has to be checked, and the storage service has not'
                ' verified it; stock Nova makes the full base when the next server of the image'
                ' starts')
        if stored is None or stored.server is None:
            if not os.path.exists(target):
                raise exception.BootcacheError(
                    'the storage service does not serve the image to settle, as it is not known'
                    ' there, deactivated or opted out')
            return self._check_base(image_id, '')
        if not stored.image_hash:
            raise exception.BootcacheError('the storage service does not know the image\'s hash')
        # Servers are put onto a base of the content that they stand on.
        self._host.cache.check_stored(image_id, stored.image_hash, stored.base_export)
        if not os.path.exists(target):
            # Nova makes it with its own first base.
            os.makedirs(self._nova.base_directory, exist_ok=True)
            if self._make(image_id, stored):
                return fullbase.identity(target)
        return self._check_base(image_id, stored.image_hash)

    def _make(self, image_id: str, stored: StoredExport) -> bool:
        """Complete a base: from Ceph where this host reads it there, else from the exporter.

        :param stored: what the storage service says of the image file.
        :returns: False if somebody else has completed it meanwhile.
        """
        entry = self._host.cache.known(image_id)
        if entry is not None and entry.remote.rbd is not None \
                and entry.remote.image_hash == stored.image_hash \
                and stored.image_format == 'raw':
            # A process apart reads it, that can be ended where Ceph does not answer.
            way = self._host.clones.way(entry.remote)
            try:
                if way is not None:
                    return self._copy(image_id, stored, way.node, 'from Ceph')
            except (exception.Cancelled, exception.ImageRefused):
                raise
            except exception.BootcacheError as error:
                LOG.warning('image %s: its full base is completed from the storage node, as that'
                            ' did not come off from Ceph: %s', image_id, error)
        assert stored.server is not None
        return self._copy(image_id, stored, storagenode.nbd_node(
            *stored.server, stored.export, self._host.encryption.credentials(stored.tls)),
            'from the storage node', ExchangedBase(
                self._host.exchange_asking, image_id, stored.image_hash,
                stored.stored_bytes), self._slot)

    def _copy(self, image_id: str, stored: StoredExport, source: Mapping[str, Any],
              origin: str, others: ExchangedBase | None = None,
              slot: StorageSlot | None = None) -> bool:
        target = self.path(image_id)
        if image_id not in self._queued:
            LOG.info('image %s: its full base is completed %s, at %d bytes a second', image_id,
                     origin, self._bandwidth)
        return fullbase.complete(
            source, stored.stored_bytes, stored.image_hash,
            stored.image_format, target, raw=self._nova.force_raw,
            rate=self._bandwidth, keep_free=self._nova.keep_free,
            cancelled=_Unwanted(self._stopped, lambda: self._host.needs.needs_base(image_id)),
            lock=self._nova.base_lock(os.path.basename(target)), others=others, slot=slot)

    def _check_base(self, image_id: str, stored_hash: str) -> tuple[int, int]:
        """Check that a base that somebody else may have made is of the servers' content.

        :param stored_hash: of the content that the storage service has; empty if it has none.
        """
        target = self.path(image_id)
        entry = self._host.cache.known(image_id)
        known = entry.remote if entry is not None else None
        content = (known and known.image_hash) or stored_hash or (known and known.export)
        if not content:
            raise exception.BootcacheError(
                f'base {target} was not made here, and the storage service does not have the image')
        unwanted = _Unwanted(self._stopped, lambda: self._host.needs.needs_base(image_id))

        def is_over() -> None:
            if unwanted.is_set():
                raise exception.Cancelled(f'base {target} is not compared now')
            self._slot.keep()

        def source() -> dict[str, Any]:
            self._slot.take()
            # Asked, the storage service serves the base.
            offered = client.parse(
                image_id, self._host.storage.ask(image_id, '') if stored_hash else None)
            if offered.remote is not None:
                self._host.cache.check_content(offered.remote, offered.virtual_bytes)
            remote = offered.remote or known
            if remote is None:
                raise exception.BootcacheError(f'base {target} cannot be compared with the storage'
                                               f' node\'s: {offered.reason}')
            return storagenode.nbd_node(remote.host, remote.port, remote.export,
                                        self._host.encryption.credentials(remote.tls))

        try:
            return fullbase.check(target, pivot.base_format(target), content, source,
                                     self._bandwidth, is_over)
        finally:
            self._slot.give_back()
