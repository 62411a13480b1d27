"""Glance's notifications: every way an image comes, changes or goes is covered by them."""

from collections.abc import Callable
from typing import Any

import oslo_messaging as messaging
from oslo_config import cfg
from oslo_log import log as logging

from bootcache import conf as bootcache_conf

LOG = logging.getLogger(__name__)


class ImageEvents:
    """Endpoint for ``image.activate``, ``image.update``, ``image.delete`` and
    ``image.member.delete``.

    Deactivation and a change of visibility are updates.

    :param consider: called with the id of an image that came or changed.
    :param forget: called with the id of an image that was deleted.
    :param let_go: called with the id of an image that one project less may see.
    """

    filter_rule = messaging.NotificationFilter(
        event_type=r'^image\.(activate|update|delete|member\.delete)$')

    def __init__(self, consider: Callable[[str], Any], forget: Callable[[str], Any],
                 let_go: Callable[[str], Any]):
        self._events = {'image.delete': ('id', forget),
                        'image.member.delete': ('image_id', let_go)}
        self._others = ('id', consider)

    def info(self, ctxt: Any, publisher_id: str, event_type: str, payload: Any,
             metadata: Any) -> None:
        """Take one notification; a failure is logged, as there is nobody to tell."""
        entry, follow = self._events.get(event_type, self._others)
        image_id = payload.get(entry) if isinstance(payload, dict) else None
        if not isinstance(image_id, str):
            return
        try:
            follow(image_id)
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
