"""What a compute host does by itself, now and then: in one thread, beside Nova's own.

The gateway is kept alive and filled, empty cache images are replaced by whole ones, and the storage
service is told what is here.
"""

import dataclasses
import os
import threading
import time
from collections.abc import Callable
from importlib import metadata

import oslo_messaging as messaging
from oslo_log import log as logging

from bootcache import exception
from bootcache.rpc import messages
from bootcache.util.backoff import Backoff
from bootcache.util.logthrottle import LogThrottle
from nova_bootcache.asking import client
from nova_bootcache.asking.placement import Offer
from nova_bootcache.cache.cachefiles import CacheEntry
from nova_bootcache.chains.computehost import ComputeHost
from nova_bootcache.published.holdings import PublishedHoldings
from nova_bootcache.settling import settler

LOG = logging.getLogger(__name__)

PERIOD_SECONDS = 10
_LONGEST_PAUSE = 600
_SERVICE, _GATEWAY = 'service', 'the gateway is not ready'
_CERTIFICATES = 'QEMU has not taken this host\'s certificates'


class HostUpkeep:
    """Looks after one host's gateway and cache images.

    :param host: the host.
    :param holdings: tells others what the host holds.
    """

    def __init__(self, host: ComputeHost, holdings: PublishedHoldings):
        self._host = host
        self._holdings = holdings
        self._throttle = LogThrottle(LOG)
        self._has_gateway = self._has_connectors = False
        self._stopped = threading.Event()
        # What could not be done, as ``serve:`` and an image's id.
        self._backoff = Backoff(PERIOD_SECONDS, _LONGEST_PAUSE, lambda: time.monotonic())
        self._exchanges = Backoff(host.report_interval, clock=lambda: time.monotonic())

    def start(self) -> None:
        """Look after them from now on, at once for the first time.

        Nova's start does not wait for it: storage nodes are asked.
        """
        threading.Thread(target=self._run, name='bootcache-upkeep', daemon=True).start()

    def stop(self) -> None:
        """Stop looking; the gateway goes on serving this host's servers."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self.once()
            self._stopped.wait(PERIOD_SECONDS)

    def once(self) -> None:
        """Do all of it once; each step fails by itself, and is logged."""
        host = self._host
        steps: list[tuple[str, Callable[[], None]]] = [
            (_GATEWAY, self._keep_gateway),
            ('what nobody needs stays in the gateway', host.reconcile),
            ('bases are not served', self.serve_bases),
            ('bases are not read as they could be', self.connect_bases),
            (_CERTIFICATES, host.certificates.look),
            ('certificates that end are not told of', host.expiry.look)]
        if not host.serving.refusal:
            # What lies on shared storage is not this host's alone.
            steps += [
                ('empty cache images are not replaced', self.replace_empty),
                ('what nobody needs is not forgotten', self.forget_gone),
                ('growing stores that are of no more use stay', host.drop_useless_stores),
                ('space that growing stores do not need is not given back',
                 host.below.give_back_space),
                ('compressed cache images are not expanded', host.expansions.look),
                ('what boots read is not told', host.boots.reports.send_again),
                ('the storage service is not told what is here', self.exchange_holdings)]
        for failure, step in steps:
            self._try(failure, step)

    def _try(self, failure: str, step: Callable[[], None]) -> None:
        try:
            step()
            self._throttle.recovered(failure, 'bootcache: no longer so: %s', failure)
        except (exception.BootcacheError, OSError) as error:
            if failure != _GATEWAY and not self._has_gateway and _is_of_daemon(error):
                # What its own line says is the cause of this as well.
                LOG.debug('bootcache: %s, for now: %s', failure, error)
            else:
                # The same, each time.
                self._throttle.warning(failure, 'bootcache: %s, for now: %s', failure, error)
        except Exception:
            LOG.exception('bootcache: %s: unexpected error', failure)

    def _keep_gateway(self) -> None:
        self._has_gateway = False
        self._host.gateway.start()
        self._has_gateway = True
        self._throttle.recovered(_GATEWAY, 'bootcache: the gateway answers again')
        # Whoever restarted it, or mended the socket's mode.
        self._host.serving.socket.check()

    def serve_bases(self) -> None:
        """Give a gateway that was restarted its bases again.

        :raises BootcacheError: if the gateway does not answer.
        """
        served = self._host.gateway.served()
        for entry in self._host.cache.entries():
            image_id = entry.remote.image_id
            key = f'serve:{image_id}'
            if image_id in served:
                self._backoff.forget(key)
            # Each try costs the gateway time, and the image may be gone for good.
            elif self._host.needs.needs_base(image_id) and self._backoff.acquire(key):
                try:
                    self._host.chains.keep_chain(image_id, guest_waits=True)
                    LOG.info('image %s: the gateway serves its base', image_id)
                except (exception.BootcacheError, messaging.MessagingException,
                        OSError) as error:
                    LOG.warning('image %s: the gateway cannot serve its base: %s', image_id, error)

    def connect_bases(self) -> None:
        """Have each base that the gateway serves be read by its best way, and nothing else but what
        it still reads of arrivals that are over: reads of it wait as those of a base do.

        :raises BootcacheError: if the gateway, a connector or Ceph does not answer.
        """
        self._has_connectors = False
        remotes = {entry.remote.image_id: entry.remote for entry in self._host.cache.entries()}
        present = self._host.gateway.present(remotes)
        self._host.connections.reconcile({
            **{there.source: dataclasses.replace(remotes[image_id], export=there.source, rbd=None)
               for image_id, there in present.items() if there.source},
            **{there.content: remotes[image_id] for image_id, there in present.items()
               if there.is_exported and there.content == remotes[image_id].export}})
        self._has_connectors = True

    def replace_empty(self) -> None:
        """Replace empty cache images by whole ones, where the storage service has built them."""
        for entry in self._host.cache.entries():
            image_id = entry.remote.image_id
            key = f'empty:{image_id}'
            if entry.cache_image is not None or self._host.needs.is_booting(image_id) \
                    or self._host.needs.is_arriving(image_id) \
                    or not os.path.exists(self._host.cache.path(image_id)):
                self._backoff.forget(key)
            elif self._backoff.acquire(key):
                try:
                    self._replace(entry)
                except (exception.BootcacheError, messaging.MessagingException,
                        OSError) as error:
                    LOG.warning('image %s: its empty cache image stays, for now: %s', image_id,
                                error)

    def _replace(self, entry: CacheEntry) -> None:
        image_id = entry.remote.image_id
        offered = client.parse(image_id, self._host.storage.ask(image_id, ''))
        if offered.storage.offer is Offer.STOCK:
            # Of an image that was deleted, for instance; a server that needs it keeps it.
            if self._host.room.let_go(image_id):
                LOG.info('image %s: its empty cache image is removed: %s', image_id,
                         offered.reason)
        elif offered.storage.offer is Offer.CACHE and offered.remote is not None \
                and offered.cache_image is not None:
            medium = self._host.room.room_for(image_id, offered.cache_image.bytes)
            if medium is None:
                return
            # Where somebody brings it just now, the rest of upkeep does not wait for that.
            with self._host.cache.placing_if_free(image_id) as is_alone:
                if not is_alone:
                    return
                self._host.fetches.fetch_offered(offered, medium)
                LOG.info('image %s: a whole cache image takes the empty one\'s place', image_id)

    def forget_gone(self) -> None:
        """Forget cache images whose files are gone, once no server's disk stands on their content.

        :raises BootcacheError: if the gateway refuses.
        :raises OSError: if an entry cannot be removed.
        """
        self._host.cache.use_until_now()
        # By then settling has looked at a server that was made, or came here, meanwhile.
        for image_id in self._host.cache.gone(settler.LONGEST_SECONDS):
            self._host.room.forget_gone(image_id, settler.LONGEST_SECONDS)

    def exchange_holdings(self) -> None:
        """Tell the storage service what is here, and let go of what is not to be."""
        if self._exchanges.acquire():
            away = self._holdings.exchange()
            if away:
                self._throttle.warning(
                    _SERVICE, 'bootcache: the storage service is not reached (%s): servers boot'
                    ' from what is on this host, or the stock way', away)
            elif self._has_gateway and self._has_connectors \
                    and self._host.certificates.are_right:
                self._throttle.ready(_SERVICE, 'bootcache %s, which speaks RPC %s, is ready: %s',
                                     _version(), messages.VERSION, _described(self._host))


def _is_of_daemon(error: Exception) -> bool:
    return isinstance(error, exception.StorageDaemonError) \
        and not isinstance(error, exception.StorageNodeAway)


def _version() -> str:
    try:
        return metadata.version('bootcache')
    except metadata.PackageNotFoundError:
        return '(of a source tree)'


def _described(host: ComputeHost) -> str:
    tiers = ', '.join(f'{limits.quota} bytes of compute {medium.value}'
                      for medium, limits in host.room.limits.items())
    return (f'the gateway answers on {host.gateway.socket_path}, the storage service on the message'
            f' bus; exporters are read {host.encryption}; cache images may take {tiers}, in'
            f' {host.cache.directory}')
