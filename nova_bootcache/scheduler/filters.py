"""The filter: servers of images that ask for it go only to hosts that run the driver, or are warm.

``[filter_scheduler]enabled_filters = ...,BootCacheFilter`` with ``available_filters`` naming
``nova_bootcache.scheduler.filters.BootCacheFilter`` beside Nova's own.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from nova.scheduler import filters
from oslo_log import log as logging

from bootcache import properties
from nova_bootcache.published import warmth
from nova_bootcache.published.warmth import Level
from nova_bootcache.scheduler import hostwarmth, imagefacts

LOG = logging.getLogger(__name__)


class BootCacheFilter(filters.BaseHostFilter):  # type: ignore[misc]
    """Keeps hosts without the driver, or cold ones, from servers whose image says so.

    Nova's scheduler is not given properties that Nova does not know: Glance is asked for them, as
    the user who asks for the server, once a minute for an image. Where Glance does not answer
    within a second all hosts pass.
    """

    # What a host publishes does not change during a request.
    run_filter_once_per_request = True

    def filter_all(self, filter_obj_list: Iterable[Any], spec_obj: Any) -> Iterator[Any]:
        """Yield the hosts that pass; the image is looked up once."""
        if hostwarmth.is_rebuild(spec_obj):
            # Such a server stays where it is. Nova's RUN_ON_REBUILD is for single hosts only.
            yield from filter_obj_list
            return
        image_id = hostwarmth.requested_image(spec_obj)
        required = self._requirement(image_id, spec_obj) if image_id else None
        if hostwarmth.is_profile_boot(spec_obj):
            # Only such a host can record it, and no host is warm before there is a record.
            required = properties.REQUIRE_DRIVER
        for host_state in filter_obj_list:
            if required is None or self._passes(host_state, image_id, required):
                yield host_state

    def host_passes(self, host_state: Any, filter_properties: Any) -> bool:
        """Tell whether one host passes."""
        return bool(list(self.filter_all([host_state], filter_properties)))

    @staticmethod
    def _passes(host_state: Any, image_id: str | None, required: str) -> bool:
        assert image_id is not None
        if warmth.STATS_KEY not in (getattr(host_state, 'stats', None) or {}):
            LOG.info('host %s: does not run bootcache\'s driver, which image %s asks for by %s=%s,'
                     ' as profile boots do', host_state.host, image_id, properties.REQUIRE,
                     required)
            return False
        if required == properties.REQUIRE_WARM:
            level = hostwarmth.HOSTS.entry(host_state).level(warmth.image_key(image_id))
            if level in (Level.COLD, Level.ARRIVING):
                LOG.info('host %s: is not warm for image %s, which asks for it by %s=%s;'
                         ' "bootcache warm" warms the hosts of an aggregate', host_state.host,
                         image_id, properties.REQUIRE, required)
                return False
        return True

    @staticmethod
    def _requirement(image_id: str, request_spec: Any) -> str | None:
        """Return what an image asks for: driver, warm, or None."""
        facts = imagefacts.IMAGES.of(image_id, request_spec, is_needed=True)
        if facts is None:
            LOG.warning('image %s: Glance cannot be asked what it requires of hosts; all hosts'
                        ' pass', image_id)
            return None
        return facts.required
