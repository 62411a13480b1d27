"""Warming a host before a server asks for an image: what Nova's precache API comes down to."""

import contextlib
from collections.abc import Callable

import oslo_messaging as messaging
from oslo_log import log as logging

from bootcache import exception
from bootcache.rpc.messages import PromoteImage, ReportWarm, WarmOutcome
from bootcache.tier import Medium
from nova_bootcache.asking import client, placement
from nova_bootcache.asking.client import Offered
from nova_bootcache.asking.placement import Offer, PlanStep, Trust
from nova_bootcache.chains.computehost import ComputeHost

LOG = logging.getLogger(__name__)


class HostWarmer:
    """Fetches cache images for servers that are to come, and tells the storage service.

    :param host: the host.
    :param rate: bytes a second at which one cache image is fetched at most; 0 for no limit.
    """

    def __init__(self, host: ComputeHost, rate: int):
        self._host = host
        self._rate = rate

    def cache_image(self, image_id: str, goes_stock: bool,
                    stock: Callable[[], bool]) -> bool:
        """Have an image ready for servers, as Nova's ``cache_image`` means it.

        :param goes_stock: whether servers of the image boot from Nova's own base on this host: it
            is there, or this host has no other way.
        :param stock: Nova's own way, for images that are none of bootcache's: the whole image.
        :returns: True if it was fetched, False if it was there.
        :raises Exception: if it cannot be had; Nova logs it, and answers ``error``.
        """
        try:
            fetched = self._cache_image(image_id, goes_stock, stock)
        except NotImplementedError:
            self._tell(image_id, WarmOutcome.UNSUPPORTED, 'the driver cannot cache images')
            raise
        except Exception as error:
            self._tell(image_id, WarmOutcome.ERROR, str(error))
            raise
        self._tell(image_id, WarmOutcome.CACHED if fetched else WarmOutcome.EXISTING, '')
        return fetched

    def _cache_image(self, image_id: str, goes_stock: bool, stock: Callable[[], bool]) -> bool:
        # A host with the full base is warm; stock Nova's way only renews its time.
        if goes_stock or not self._host.serving.is_on:
            return stock()
        offered = client.parse(image_id, self._host.storage.ask(image_id, ''))
        entry = self._host.cache.entry(image_id)
        facts = self._host.chains.facts(image_id, entry, offered)
        plan = placement.plan_warming(facts, offered.storage)
        LOG.debug('bootcache: image %s is to be warmed: %s', image_id,
                  ', '.join(step.name for step in plan))
        if plan == (PlanStep.STOCK,):
            LOG.info('bootcache: image %s is cached the stock way: %s', image_id,
                     offered.reason or placement.CAME_WRONG)
            return stock()
        if plan == (PlanStep.USE_LOCAL,):
            if entry is not None and offered.remote is not None:
                self._host.cache.update(entry, offered.remote, offered.pinned, offered.generation)
            self._host.cache.touch(image_id)
            return False
        if not plan:
            raise exception.BootcacheError(_why_not(image_id, offered, facts.trust))
        for step in plan:
            if step is PlanStep.PROMOTE:
                # The fetch does not depend on it.
                with contextlib.suppress(messaging.MessagingException):
                    self._host.storage.send(PromoteImage(image_id))
            else:
                self._fetch(offered, placement.FETCH[step])
        return True

    def _fetch(self, offered: Offered, medium: Medium) -> None:
        try:
            self._host.fetches.fetch_offered(offered, medium, self._rate)
        except exception.Cancelled as error:
            LOG.info('bootcache: warming goes on at full speed: %s', error)
            self._host.fetches.fetch_offered(offered, medium)

    def _tell(self, image_id: str, outcome: WarmOutcome, reason: str) -> None:
        try:
            storage = self._host.storage
            storage.send(ReportWarm(image_id, storage.hostname, outcome, reason))
        except (exception.BootcacheError, messaging.MessagingException) as error:
            LOG.warning('bootcache: image %s: the storage service is not told that warming ended'
                        ' with %s: %s', image_id, outcome, error)


def _why_not(image_id: str, offered: Offered, trust: Trust) -> str:
    kind = offered.storage.offer
    if kind is Offer.CACHE and trust is Trust.PAUSED:
        return (f'image {image_id}: its cache image came wrong from the storage node a while ago;'
                ' nova-compute\'s log says when it is fetched again')
    if kind is Offer.CACHE and trust is Trust.UNREADABLE:
        return (f'image {image_id}: this host\'s QEMU cannot read its cache image, which is'
                ' compressed; nova-compute\'s log says what to install')
    if kind is Offer.CACHE and offered.cache_image is not None:
        return (f'image {image_id}: no tier of this host has room for its cache image of'
                f' {offered.cache_image.bytes} bytes; raise [bootcache]compute_disk_quota')
    if kind is Offer.AWAY:
        return f'image {image_id}: {offered.reason}'
    return (f'image {image_id} has no cache image yet; "bootcache image show {image_id} --wait"'
            ' waits for it')
