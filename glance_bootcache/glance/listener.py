"""Glance's notifications: every way an image comes, changes or goes is covered by them."""

import threading
from collections.abc import Callable
from typing import Any

import oslo_messaging as messaging
from oslo_config import cfg
from oslo_log import log as logging

from bootcache import conf as bootcache_conf

LOG = logging.getLogger(__name__)

# What asks Glance is done for so many images at a time, however many events wait.
_AT_ONCE = 4
# The topic that others listen to, and the pool in which this service did so once.
_SHARED_TOPIC = 'notifications'
_SHARED_POOL = 'bootcache-images'


class ImageEvents:
    """Endpoint for ``image.activate``, ``image.update``, ``image.delete`` and
    ``image.member.delete``.

    Deactivation and a change of visibility are updates.

    What waited on the bus while this service was away costs no more than what is new: an event is
    passed over if the same is going to be done for its image anyway. No event is told by its time
    to be old, as the clocks of Glance's hosts and of this one may differ.

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
        self._forget = forget
        self._turns = threading.BoundedSemaphore(_AT_ONCE)
        self._lock = threading.Lock()  # guards what follows; held for dictionary steps only
        # What is going to be done, by image; it has not been begun.
        self._waiting: dict[str, set[Callable[[str], Any]]] = {}

    def waits_for(self, image_id: str) -> bool:
        """Tell whether something is to be done for an image that has not been begun."""
        with self._lock:
            return image_id in self._waiting

    def info(self, ctxt: Any, publisher_id: str, event_type: str, payload: Any,
             metadata: Any) -> None:
        """Take one notification; a failure is logged, as there is nobody to tell."""
        entry, follow = self._events.get(event_type, self._others)
        image_id = payload.get(entry) if isinstance(payload, dict) else None
        if not isinstance(image_id, str):
            return
        if not self._join(image_id, follow):
            return
        with self._turns:
            if not self._leave(image_id, follow):
                return
            try:
                follow(image_id)
            except Exception:
                LOG.exception('image %s: %s could not be followed', image_id, event_type)

    def error(self, ctxt: Any, publisher_id: str, event_type: str, payload: Any,
              metadata: Any) -> None:
        """Pass over what failed in Glance.

        It comes with a priority, and so through a queue, of its own: what nobody takes out of that
        stays there.
        """

    warn = error

    def _join(self, image_id: str, follow: Callable[[str], Any]) -> bool:
        """Note that something is to be done for an image; False if that waits already."""
        with self._lock:
            waiting = self._waiting.setdefault(image_id, set())
            if follow in waiting:
                return False
            waiting.add(follow)
            return True

    def _leave(self, image_id: str, follow: Callable[[str], Any]) -> bool:
        """Begin with it: from now on it may change again. False if it is needless, as the image
        was deleted."""
        with self._lock:
            waiting = self._waiting.get(image_id, set())
            wanted = follow in waiting and (follow == self._forget or self._forget not in waiting)
            waiting.discard(follow)
            if wanted and follow == self._forget:
                waiting.clear()
            if not waiting:
                self._waiting.pop(image_id, None)
            return wanted


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
                                               executor='threading', pool=pool)
