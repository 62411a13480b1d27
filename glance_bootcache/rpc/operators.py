"""What operators ask of the storage service: to see images and hosts, to pin, and to evict."""

import dataclasses
import itertools
from typing import Any

from oslo_log import log as logging

from bootcache import ending, exception
from bootcache.manifest import IN_HAND, ImageState, Manifest
from bootcache.rpc.messages import PAGE_ENTRIES
from glance_bootcache.exchange.offers import Given
from glance_bootcache.hosts.holdings import Hosts
from glance_bootcache.images.controller import Controller
from glance_bootcache.images.retiring import Retiring
from glance_bootcache.images.running import Running
from glance_bootcache.storage.store import ImageStore
from glance_bootcache.storage.tiers import StorageTiers

LOG = logging.getLogger(__name__)


class Operators:
    """Answers the command ``bootcache``; bootcache.rpc.messages has the meaning of the answers.

    :param controller: does what takes more than a change of a record.
    :param retiring: knows why bases are kept.
    :param hosts: what compute hosts hold.
    :param given: what they told of files that came from other hosts.
    """

    def __init__(self, store: ImageStore, tiers: StorageTiers, controller: Controller,
                 running: Running, retiring: Retiring, hosts: Hosts, given: Given, node: str):
        self._store = store
        self._tiers = tiers
        self._controller = controller
        self._running = running
        self._retiring = retiring
        self._hosts = hosts
        self._given = given
        self._node = node

    # Images.

    def _describe(self, manifest: Manifest) -> dict[str, Any]:
        """Return a manifest with the progress of what is in hand, as plain values."""
        job = self._running.of(manifest.image_id)
        state = self._running.state(manifest)
        reason = manifest.reason or self._running.waits_for(manifest.image_id)
        if not reason and state is ImageState.READY and manifest.made.working_set is not None:
            reason = ending.doubt(manifest.made.working_set.ended_by)
        return {**dataclasses.asdict(manifest.wished), **dataclasses.asdict(manifest.made),
                'image_id': manifest.image_id, 'state': state, 'reason': reason,
                'image_hash': manifest.image_hash, 'updated_at': manifest.updated_at,
                'progress': None if job is None else {'host': job.host,
                                                      'recorded_bytes': job.recorded_bytes},
                # What an operator has just asked for is as well, whatever state it is in still.
                'in_hand': state in IN_HAND or (not manifest.is_missing and (
                    manifest.wished.requested
                    or (bool(manifest.goal) and state is not ImageState.FAILED))),
                'medium': self._medium(manifest)}

    def _medium(self, manifest: Manifest) -> str | None:
        return self._tiers.medium(manifest.image_id).value if manifest.made.cache_image else None

    def list_images(self, marker: str | None = None) -> list[dict[str, Any]]:
        """Return a page of the images: see ListImages."""
        after = (manifest for manifest in self._store.everywhere()
                 if marker is None or manifest.image_id > marker)
        return [self._describe(manifest) for manifest in itertools.islice(after, PAGE_ENTRIES)]

    def get_image(self, image_id: str) -> dict[str, Any] | None:
        """Return an image, or None if it is not known."""
        manifest = self._store.load(image_id)
        return None if manifest is None else {
            **self._describe(manifest), 'kept_for': self._retiring.kept_for(image_id),
            'node': self._node}

    def get_working_set(self, image_id: str) -> dict[str, Any] | None:
        """Return an image's working set document, or None."""
        manifest = self._store.load(image_id)
        working_set = manifest and self._store.load_working_set(manifest)
        return working_set.to_json() if working_set else None

    def pin(self, image_id: str, pinned: bool) -> bool:
        """Keep an image's cache image in every tier, or no longer.

        :returns: False if the image is not known.
        """
        return self._store.change(
            image_id, lambda known: known.wishing(pinned=pinned)) is not None

    # Hosts.

    def image_hosts(self, image_id: str) -> dict[str, Any] | None:
        """Return where an image's cache image is.

        :returns: None if the image is not known, and no host holds it.
        """
        manifest, hosts = self._store.load(image_id), self._hosts.holders(image_id)
        if manifest is None and not hosts:
            return None
        cache = manifest.made.cache_image if manifest else None
        return {'storage': manifest and self._medium(manifest),
                'storage_bytes': cache.bytes if cache else None, 'hosts': hosts,
                'exchanged': self._given.describe(image_id)}

    def evict(self, image_id: str, hosts: list[str] | None) -> list[str]:
        """Have hosts let go of an image's cache image as soon as no server of theirs needs it.

        :param hosts: None for all of them, and the storage node's memory tier.
        :returns: names of the hosts that hold it.
        :raises RequestRefused: if the image or a host is not known, or the image is pinned.
        :raises StorageDaemonError: if it cannot leave the memory tier; hosts are told all the same.
        """
        manifest = self._store.load(image_id)
        if manifest is None:
            raise exception.RequestRefused(
                f'image {image_id} is not known to the storage service; "bootcache image list"'
                ' shows those that are')
        if manifest.wished.pinned:
            raise exception.RequestRefused(
                f'image {image_id} is pinned; "bootcache unpin {image_id}" first')
        if hosts is not None:
            return self._hosts.order_eviction(image_id, hosts)
        self._controller.let_go(image_id)
        LOG.info('image %s: all hosts let go of its cache image, as an operator says', image_id)
        self._tiers.demote(image_id)
        return [entry['host'] for entry in self._hosts.holders(image_id)]
