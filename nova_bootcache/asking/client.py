"""What a host asks the storage service for when a server boots."""

import dataclasses
import random
import time
from typing import Any

import oslo_messaging as messaging
from oslo_config import cfg
from oslo_log import log as logging

from bootcache import conf as bootcache_conf
from bootcache import exception, rpcapi
from nova_bootcache.asking import offer
from nova_bootcache.asking.offer import Offered
from nova_bootcache.asking.placement import Offer, Storage
from nova_bootcache.storagenode import PLAIN, Encryption

LOG = logging.getLogger(__name__)

_ASK_AGAIN_SECONDS = 1.0
# For which a service is asked again that has too much to answer: many hosts ask at one moment, and
# each gets its answer in a fraction of that. Not longer: the host may have all that it takes.
_REFUSED_SECONDS = 20.0


class HostsClient:
    """The storage service, as one host reaches it.

    :ivar hostname: the host's name for it; empty before the driver is started.

    :param conf: Nova's configuration, with the driver's options registered.
    :param encryption: how this host connects to storage nodes.
    """

    def __init__(self, conf: cfg.ConfigOpts, encryption: Encryption = PLAIN):
        self._conf = conf
        self._encryption = encryption
        self._api: rpcapi.StorageAPI | None = None
        self.hostname = ''

    def start(self, hostname: str) -> None:
        """Connect to the message bus.

        :param hostname: the host's name for the storage service.
        """
        self.hostname = hostname
        self._api = rpcapi.StorageAPI(self._conf)

    @property
    def api(self) -> rpcapi.StorageAPI:
        """The storage service's client.

        :raises BootcacheError: if the driver is not started.
        """
        if self._api is None:
            raise exception.BootcacheError('the driver is not started')
        return self._api

    def ask(self, image_id: str, server_id: str, profile_token: str | None = None,
            owner: str = '', refused_until: float = 0.0) -> dict[str, Any] | None:
        """Ask the storage service for an image; None if it does not answer.

        :param owner: the server's project, empty if it is not known.
        :param refused_until: to which it is asked again if it has too much to answer, in monotonic
            seconds.
        :raises BootcacheError: if the driver is not started.
        """
        while True:
            try:
                return self.api.plan_boot(image_id, self.hostname, server_id, profile_token, owner,
                                          self._encryption.name())
            except (messaging.MessagingTimeout, messaging.MessageDeliveryFailure) as error:
                LOG.warning('bootcache: the storage service does not answer: %s', error)
                return None
            except messaging.RemoteError as error:
                if error.exc_type != exception.TooManyMessages.__name__:
                    raise
                if time.monotonic() >= refused_until:
                    LOG.warning('bootcache: the storage service has too much to answer: %s',
                                error.value)
                    return None
            # Not all that were refused at one moment at another one.
            time.sleep(random.uniform(0.5, 1.5) * _ASK_AGAIN_SECONDS)

    def ask_for_stored(self, image_id: str) -> dict[str, Any] | None:
        """Ask for an image's stored bytes; None if the image has no base there.

        :raises BootcacheError: if the driver is not started.
        :raises MessagingException: if the storage service does not answer, or with an error.
        """
        return self.api.serve_stored(image_id, self.hostname, self._encryption.name())

    def take_slot(self) -> None:
        """Get leave to get full bases from the storage node.

        :raises NoSlot: if it is others' turn.
        :raises BootcacheError: if the driver is not started.
        :raises MessagingException: if the storage service does not answer, or with an error.
        """
        again = self.api.take_slot(self.hostname)
        if again:
            raise exception.NoSlot(again)

    def hold_slot(self, holds: bool) -> None:
        """Tell that this host uses its slot, or needs it no longer; it need not be heard.

        :param holds: False for the latter.
        """
        try:
            self.api.hold_slot(self.hostname, holds)
        except (exception.BootcacheError, messaging.MessagingException) as error:
            LOG.info('bootcache: the storage service does not hear of its slot: %s', error)

    def ask_patiently(self, image_id: str, server_id: str = '',
                      profile_token: str | None = None, owner: str = '') -> Offered:
        """Ask the storage service, again while it prepares the image's base."""
        cold_wait = self._conf[bootcache_conf.GROUP].cold_wait
        deadline = time.monotonic() + cold_wait
        refused_until = min(deadline, time.monotonic() + _REFUSED_SECONDS)
        while True:
            offered = offer.parse(image_id, self.ask(image_id, server_id, profile_token, owner,
                                                     refused_until))
            if offered.remote is not None and (
                    reason := self._encryption.refusal(offered.remote.tls)):
                return Offered(Storage(Offer.STOCK), reason)
            left = deadline - time.monotonic()
            if offered.storage.offer is not Offer.WAIT or left <= 0:
                return offered.when_patience_ends()
            if offered.comes_too_late(left):
                return dataclasses.replace(offered, reason=(
                    f'{offered.reason}, which takes {offered.ready_in:.0f} s more; a server waits'
                    f' for [bootcache]cold_wait, {cold_wait} s'))
            time.sleep(_ASK_AGAIN_SECONDS)
