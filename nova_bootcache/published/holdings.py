"""What a host holds, told to the scheduler and to the storage service."""

import contextlib
import os
import re
from collections.abc import Callable, Iterator

import oslo_messaging as messaging
from oslo_log import log as logging

from bootcache import exception
from bootcache.rpc import messages
from bootcache.rpc.fields import MOST_NAMED
from bootcache.rpc.messages import ReportHoldings
from bootcache.rpc.report import BasesRead, HeldImage, HostReport, PausedGuests, UnsettledServers
from bootcache.tier import Medium
from nova_bootcache.cache.cachefiles import CacheEntry
from nova_bootcache.chains.computehost import ComputeHost
from nova_bootcache.published import warmth
from nova_bootcache.published.warmth import Holding, Level

LOG = logging.getLogger(__name__)

_BASE = re.compile('[0-9a-f]{40}')
_LEVELS = {Medium.DISK: Level.DISK, Medium.MEMORY: Level.MEMORY}


class PublishedHoldings:
    """One host's cache images and bases, as others are told of them.

    :param host: the host.
    :param base_directory: Nova's own directory of bases.
    :param unsettled: which servers depend on bootcache; None while that is not known.
    :param paused: which servers' guests are paused.
    """

    def __init__(self, host: ComputeHost, base_directory: str,
                 unsettled: Callable[[], UnsettledServers | None] = lambda: None,
                 paused: Callable[[], PausedGuests] = lambda: PausedGuests(0, ())):
        self._unsettled_servers = unsettled
        self._paused_guests = paused
        self._host = host
        self._base_directory = base_directory
        # What the storage service was told last. The upkeep thread's own.
        self._told: HostReport | None = None
        # Of the report, as ReportHoldings has it.
        self._number = 0

    def _whole(self) -> list[tuple[CacheEntry, os.stat_result, float]]:
        """Return the cache images with data: entry, the file's status, and the last use."""
        found = []
        for entry in self._host.cache.entries():
            path = self._host.cache.path(entry.remote.image_id)
            if entry.cache_image is None:
                continue
            try:
                found.append((entry, os.stat(path), os.stat(f'{path}.json').st_mtime))
            except FileNotFoundError:
                # Removed meanwhile, or of a memory tier that was lost with a reboot.
                continue
        return found

    def published(self, limit: int = warmth.LIMIT) -> str:
        """Return the entry that the scheduler reads (nova_bootcache/published/warmth.py).

        :param limit: bytes that it may have.
        """
        holdings = []
        for entry, _status, used in self._whole():
            image_id = entry.remote.image_id
            holdings.append(Holding(warmth.image_key(image_id),
                                    _LEVELS[self._host.cache.medium(image_id)], used))
        # What arrives is used next.
        holdings.extend(Holding(warmth.image_key(image_id), Level.ARRIVING, float('inf'))
                        for image_id in self._host.room.arriving())
        holdings.extend(self._bases())
        return warmth.encode(holdings, limit)

    def _bases(self) -> Iterator[Holding]:
        try:
            names = os.listdir(self._base_directory)
        except FileNotFoundError:
            # Nova makes it with the first base.
            return
        for name in filter(_BASE.fullmatch, names):
            with contextlib.suppress(FileNotFoundError):
                yield Holding(warmth.base_key(name), Level.BASE,
                              os.stat(os.path.join(self._base_directory, name)).st_mtime)

    def _report(self) -> HostReport:
        images = {}
        for entry, status, used in self._whole():
            image_id = entry.remote.image_id
            images[image_id] = HeldImage(used, self._host.cache.medium(image_id), entry.generation,
                                         status.st_size)
        return HostReport(images, {medium: limits.quota
                                   for medium, limits in self._host.room.limits.items()},
                          self._needs(), self._unsettled_servers(), self._paused_guests(),
                          self._bases_read(), messages.VERSION, self._host.expiry.earliest())

    def _bases_read(self) -> BasesRead:
        """Return how bases are read; those that are not answered come first.

        While one is answered its last answer is no part of it: nothing has changed then.
        """
        found = sorted(self._host.connections.list_bases(),
                       key=lambda base: (base.answered is None, base.image_id))
        return BasesRead(len(found), tuple(found[:MOST_NAMED]))

    def _needs(self) -> frozenset[str]:
        """Return the images whose base servers of this host may read, also after a while."""
        needed = {entry.remote.image_id for entry in self._host.cache.entries()
                  if self._host.needs.needs_base(entry.remote.image_id)}
        # One that does not answer now serves what those entries name.
        with contextlib.suppress(exception.BootcacheError):
            needed.update(self._host.gateway.served())
        return frozenset(needed)

    def exchange(self) -> str:
        """Tell the storage service what this host holds, and let go of what it says.

        :returns: why it cannot be told; empty if it answers.
        """
        report = self._report()
        storage = self._host.storage
        self._number += report != self._told
        try:
            answer = storage.send(ReportHoldings(
                storage.hostname, None if report == self._told else report, self._number))
            if answer.resend:
                answer = storage.send(ReportHoldings(storage.hostname, report, self._number))
        except (messaging.MessagingException, exception.AnswerInvalid) as error:
            LOG.debug('bootcache: the storage service is not told what is here: %s', error)
            self._told = None
            return str(error)
        self._told = report
        for image_id in answer.moved:
            # Before guests notice: it is read there from the next round on.
            try:
                self._host.chains.find_base(image_id)
            except (exception.BootcacheError, messaging.MessagingException) as error:
                LOG.info('image %s: where its base is now is not known yet: %s', image_id, error)
        for image_id in answer.drop:
            try:
                self._let_go(image_id)
            except (exception.BootcacheError, OSError) as error:
                LOG.warning('image %s: its cache image cannot be removed: %s', image_id, error)
        return ''

    def _let_go(self, image_id: str) -> None:
        if self._host.room.let_go(image_id):
            LOG.info('image %s: its cache image is removed, as the storage service says', image_id)
        else:
            LOG.debug('image %s: its cache image goes when no server needs it', image_id)
