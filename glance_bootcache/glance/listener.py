"""Glance's notifications: every way an image comes, changes or goes is covered by them."""

import threading
from collections.abc import Callable
from typing import Any

import oslo_messaging as messaging
from oslo_config import cfg
from oslo_log import log as logging

from bootcache import conf as bootcache_conf
from bootcache.exception import BootcacheError
from bootcache.util.logthrottle import LogThrottle

LOG = logging.getLogger(__name__)

# After which the bus gives an event again that could not be written.
_AGAIN_SECONDS = 5
# The topic that others listen to, and the pool in which this service did so once.
_SHARED_TOPIC = 'notifications'
_SHARED_POOL = 'bootcache-images'


class ImageEvents:
    """Endpoint for ``image.activate``, ``image.update``, ``image.delete`` and
    ``image.member.delete``.

    Deactivation and a change of visibility are updates. An event only has its image looked at; what
    it says beyond that is written, or the event stays on the bus.

    :param changed: called with the id of an image that came or changed.
    :param deleted: called with the id of an image that was deleted.
    :param member_removed: called with the id of an image that one project less may see.
    :param has_looked: tells of an image that came or changed whether it is known, or was looked at:
        else the event would be lost with this process.
    """

    filter_rule = messaging.NotificationFilter(
        event_type=r'^image\.(activate|update|delete|member\.delete)$')

    def __init__(self, changed: Callable[[str], Any], deleted: Callable[[str], Any],
                 member_removed: Callable[[str], Any],
                 has_looked: Callable[[str], bool] = lambda image_id: True):
        self._events = {'image.delete': ('id', deleted),
                        'image.member.delete': ('image_id', member_removed)}
        self._others = ('id', changed)
        self._has_looked = has_looked
        self._throttle = LogThrottle(LOG)
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Keep no event waiting."""
        self._stopping.set()

    def info(self, ctxt: Any, publisher_id: str, event_type: str, payload: Any,
             metadata: Any) -> messaging.NotificationResult:
        """Take one notification."""
        entry, follow = self._events.get(event_type, self._others)
        image_id = payload.get(entry) if isinstance(payload, dict) else None
        # Of an id in capital letters Glance's database may have another image in small ones.
        if not isinstance(image_id, str) or image_id != image_id.lower():
            return messaging.NotificationResult.HANDLED
        try:
            follow(image_id)
            if (entry, follow) == self._others and not self._has_looked(image_id):
                return messaging.NotificationResult.REQUEUE
        except BootcacheError as error:
            self._throttle.warning(event_type, 'image %s: %s cannot be written, and waits on the'
                                   ' message bus: %s', image_id, event_type, error)
            self._stopping.wait(_AGAIN_SECONDS)
            return messaging.NotificationResult.REQUEUE
        except Exception:
            LOG.exception('image %s: %s could not be followed', image_id, event_type)
        return messaging.NotificationResult.HANDLED

    def error(self, ctxt: Any, publisher_id: str, event_type: str, payload: Any,
              metadata: Any) -> messaging.NotificationResult:
        """Pass over what failed in Glance.

        It comes with a priority, and so through a queue, of its own: what nobody takes out of that
        stays there.
        """
        return messaging.NotificationResult.HANDLED

    warn = error


def get_listener(conf: cfg.ConfigOpts, endpoint: ImageEvents) -> Any:
    """Return a listener that is to be started."""
    group = conf[bootcache_conf.GROUP]
    topic, pool = group.notification_topic, group.notification_pool
    if topic == _SHARED_TOPIC and not pool:
        # As before this service had a topic of its own; without a pool it would take from others.
        pool = _SHARED_POOL
    transport = messaging.get_notification_transport(conf, url=group.transport_url)
    targets = [messaging.Target(exchange='glance', topic=topic)]
    return messaging.get_notification_listener(transport, targets, [endpoint],
                                               executor='threading', allow_requeue=True, pool=pool)
