"""Glance's notifications: every way an image comes, changes or goes is covered by them."""

from collections.abc import Callable
from typing import Any

import oslo_messaging as messaging
from oslo_config import cfg
from oslo_log import log as logging

from bootcache import conf as bootcache_conf

LOG = logging.getLogger(__name__)


class ImageEvents:
    """Endpoint for ``image.activate``, ``image.update`` and ``image.delete``.

    :param consider: called with the id of an image that came or changed.
    :param forget: called with the id of an image that was deleted.
    """

    filter_rule = messaging.NotificationFilter(event_type=r'^image\.(activate|update|delete)$')

    def __init__(self, consider: Callable[[str], Any], forget: Callable[[str], Any]):
        self._consider = consider
        self._forget = forget

    def info(self, ctxt: Any, publisher_id: str, event_type: str, payload: Any,
             metadata: Any) -> None:
        """Take one notification; a failure is logged, as there is nobody to tell."""
        image_id = payload.get('id') if isinstance(payload, dict) else None
        if not isinstance(image_id, str):
            return
        try:
            if event_type == 'image.delete':
                self._forget(image_id)
            else:
                self._consider(image_id)
        except Exception:
            LOG.exception('image %s: %s could not be followed', image_id, event_type)


def get_listener(conf: cfg.ConfigOpts, endpoint: ImageEvents) -> Any:
    """Return a listener that is to be started; it has a pool of its own beside other listeners."""
    group = conf[bootcache_conf.GROUP]
    transport = messaging.get_notification_transport(conf, url=group.transport_url)
    targets = [messaging.Target(exchange='glance', topic=group.notification_topic)]
    return messaging.get_notification_listener(transport, targets, [endpoint],
                                               executor='threading',
                                               pool=group.notification_pool)
