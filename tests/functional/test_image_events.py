"""What notifications of Glance lead to, through a real RabbitMQ."""

import queue

import oslo_messaging as messaging
import pytest
from oslo_messaging import conffixture

from bootcache import conf as bootcache_conf
from glance_bootcache.glance.listener import ImageEvents, get_listener

PATIENCE = 30


@pytest.fixture
def conf(storage_conf, rabbit):
    """The storage service's configuration."""
    storage_conf.set_override('transport_url', rabbit, bootcache_conf.GROUP)
    # oslo.messaging registers some of its options with the global configuration only.
    conffixture.ConfFixture(storage_conf)
    return storage_conf


@pytest.fixture
def events(conf):
    """What Glance's notifications lead to: (consider, forget or let_go, image id)."""
    conf.set_override('notification_topic', 'images_of_a_test', bootcache_conf.GROUP)
    events = queue.Queue()

    def consider(image_id):
        if image_id == 'faulty':
            raise RuntimeError('a fault')
        events.put(('consider', image_id))

    listener = get_listener(conf, ImageEvents(
        consider, lambda image_id: events.put(('forget', image_id)),
        lambda image_id: events.put(('let_go', image_id))))
    listener.start()
    yield events
    listener.stop()
    listener.wait()


@pytest.fixture
def glance(conf, rabbit):
    """Notifies as glance-api does, in its exchange."""
    conf.set_override('control_exchange', 'glance')
    transport = messaging.get_notification_transport(conf, url=rabbit)
    notifier = messaging.Notifier(transport, publisher_id='image.localhost', driver='messagingv2',
                                  topics=['images_of_a_test'])
    return notifier


def test_notifications_lead_to_events(glance, events):
    glance.info({}, 'image.activate', {'id': '1'})
    glance.info({}, 'image.update', {'id': '2'})
    glance.info({}, 'image.delete', {'id': '3'})
    glance.info({}, 'image.member.delete', {'image_id': '4', 'member_id': 'project'})
    got = sorted(events.get(timeout=PATIENCE) for _ in range(4))
    assert got == [('consider', '1'), ('consider', '2'), ('forget', '3'), ('let_go', '4')]


def test_what_does_not_concern_us_is_passed_over(glance, events):
    for event in ('image.create', 'image.upload', 'image.send', 'image.prepare', 'image.activated',
                  'compute.image.activate', 'image.member.create', 'image.member.update'):
        glance.info({}, event, {'id': 'other'})
    for payload in ({}, {'id': None}, {'id': 5}, [], 'text', None, {'id': 'faulty'}):
        glance.info({}, 'image.activate', payload)
    glance.error({}, 'image.activate', {'id': 'error'})
    glance.info({}, 'image.delete', {'id': 'last'})
    assert events.get(timeout=PATIENCE) == ('forget', 'last')
    assert events.empty()
