"""Glance's notifications as the installation page has them sent, through a real RabbitMQ."""

import configparser
import contextlib
import os
import pathlib
import shlex
import sqlite3
import subprocess
import threading

import kombu
import oslo_messaging as messaging
import pytest
from functional_tools import until
from oslo_messaging import conffixture

from bootcache import conf as bootcache_conf
from bootcache.manifest import Manifest
from bootcache.util.workqueue import WorkQueue
from glance_bootcache.glance.listener import ImageEvents, get_listener
from glance_bootcache.images.controller import Controller
from tools import storedimages

INSTALL = pathlib.Path(__file__).resolve().parents[2] / 'doc' / 'source' / 'install.rst'
SECURITY = INSTALL.with_name('security.rst')
IMAGES = [f'7a5c0d3e-1f2b-4c3d-8e9f-{number:012x}' for number in range(5)]
LAST = '00000000-1f2b-4c3d-8e9f-0a1b2c3d4e5f'


def settings_of_the_page():
    """The group [oslo_messaging_notifications] that the installation page gives to Glance."""
    text = INSTALL.read_text().split('``glance-api.conf``')[1]
    lines = [line.strip() for line in text.split('[oslo_messaging_notifications]')[1].splitlines()]
    parser = configparser.ConfigParser()
    parser.read_string('\n'.join(['[here]', *lines[1:lines.index('', 1)]]))
    return parser['here']


@pytest.fixture
def conf(storage_conf, rabbit):
    """The storage service's configuration, with its defaults."""
    storage_conf.set_override('transport_url', rabbit, bootcache_conf.GROUP)
    # oslo.messaging registers some of its options with the global configuration only.
    conffixture.ConfFixture(storage_conf)
    return storage_conf


@pytest.fixture
def glance(conf, rabbit):
    """Notifies as glance-api does, in its exchange."""
    conf.set_override('control_exchange', 'glance')
    transport = messaging.get_notification_transport(conf, url=rabbit)
    settings = settings_of_the_page()
    yield messaging.Notifier(transport, publisher_id='image.localhost', driver=settings['driver'],
                             topics=settings['topics'].split(','))
    transport.cleanup()


class Service:
    """Stands for the controller: notes what it is told; a look takes a while where a test says so.
    """

    def __init__(self):
        self.done = []
        self.gate = threading.Event()
        self.gate.set()
        self.lock = threading.Lock()
        self.queue = WorkQueue(self._look, 4, 'looks', lambda key, error: None)
        self.queue.start()

    def _look(self, image_id):
        self.gate.wait()
        self.note('looked at')(image_id)

    def note(self, what):
        def follow(image_id):
            with self.lock:
                self.done.append((what, image_id))
        return follow


@pytest.fixture
def service():
    service = Service()
    yield service
    service.gate.set()
    service.queue.stop()


@pytest.fixture
def listen(conf, service):
    """Starts the service's listener, which ends with the test."""
    started = []

    def listen(member_removed=None):
        events = ImageEvents(service.queue.add, service.note('deleted'),
                             member_removed or service.note('member removed'))
        listener = get_listener(conf, events)
        listener.start()
        started.append((events, listener))

    yield listen
    for events, listener in started:
        events.stop()
        listener.stop()
        listener.wait()
        listener.transport.cleanup()


def queues(rabbitmqctl):
    """The messages that each queue holds, those that nobody has acknowledged included."""
    lines = rabbitmqctl('-q', 'list_queues', '--no-table-headers', 'name', 'messages').splitlines()
    return {name: int(messages) for name, messages in map(str.split, lines)}


def test_nothing_stays_on_the_bus(glance, listen, service, rabbitmqctl):
    """Whatever Glance sends by the page's settings is taken from where it is sent to."""
    # Other tests may have used the same ones.
    before = {name for name in queues(rabbitmqctl) if not name.startswith('bootcache_images')}
    listen()
    for number in range(50):
        glance.info({}, 'image.update', {'id': IMAGES[number % 5]})
        glance.info({}, 'image.send', {'id': IMAGES[0], 'bytes_sent': 1})
        glance.error({}, 'image.upload', 'Error in store configuration')
        glance.warn({}, 'image.upload', 'a word of warning')
    until(lambda: {('looked at', image) for image in IMAGES} <= set(service.done), 'the last event')
    made = set(queues(rabbitmqctl)) - before
    assert made
    until(lambda: not any(queues(rabbitmqctl)[name] for name in made), 'empty queues')
    assert all(name.startswith('bootcache_images') for name in made), made


def test_what_waited_costs_a_look_an_image(glance, listen, service, rabbitmqctl):
    for _number in range(60):
        for image in IMAGES:
            glance.info({}, 'image.update', {'id': image})
    glance.info({}, 'image.delete', {'id': IMAGES[0]})
    service.gate.clear()
    listen()
    until(lambda: service.done == [('deleted', IMAGES[0])], 'the deletion')
    until(lambda: not queues(rabbitmqctl)['bootcache_images.info'], 'an empty queue')
    glance.info({}, 'image.update', {'id': LAST})
    until(lambda: not queues(rabbitmqctl)['bootcache_images.info'], 'an empty queue')
    service.gate.set()
    until(lambda: ('looked at', LAST) in service.done, 'the last event')
    looks = [image for what, image in service.done if what == 'looked at']
    # A look that was begun before the other events came, and a second one for those.
    assert set(IMAGES) <= set(looks)
    assert all(looks.count(image) <= 2 for image in IMAGES), looks


@pytest.fixture
def full(directory):
    """A file system of 4 MiB, what fills it, and what makes room in it."""
    path, filler = f'{directory}/full', f'{directory}/full/filler'
    os.mkdir(path)
    subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=4M', 'tmpfs', path], check=True)

    def fill():
        with sqlite3.connect(f'{path}/bootcache.sqlite') as database:
            # Its log has room otherwise for what is written next.
            database.execute('PRAGMA wal_checkpoint(TRUNCATE)')
        database.close()
        with open(filler, 'wb', buffering=0) as stream, contextlib.suppress(OSError):
            while True:
                stream.write(bytes(4096))

    yield path, fill, lambda: os.unlink(filler)
    subprocess.run(['umount', '-l', path], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason='it mounts a file system')
def test_an_event_that_cannot_be_written_waits_on_the_bus(
        conf, glance, listen, service, rabbitmqctl, full, caplog):
    """Nothing in Glance tells later that a project less may see an image."""
    path, fill, make_room = full
    conf.set_override('state_dir', path, bootcache_conf.GROUP)
    store = storedimages.opened(conf)
    storedimages.put(store, Manifest(IMAGES[0]))
    # A member's end is written into the record, and touches none of the neighbours.
    controller = Controller(conf, store, *[None] * 6)
    fill()
    listen(controller.let_go)
    glance.info({}, 'image.member.delete', {'image_id': IMAGES[0], 'member_id': 'project'})
    until(lambda: 'cannot be written, and waits on the message bus' in caplog.text, 'the full disk')
    # Others are followed meanwhile.
    glance.info({}, 'image.update', {'id': LAST})
    until(lambda: ('looked at', LAST) in service.done, 'the other event')
    assert store.load(IMAGES[0]).wished.generation == 0
    assert queues(rabbitmqctl)['bootcache_images.info'] == 1
    make_room()
    until(lambda: store.load(IMAGES[0]).wished.generation, 'the event')
    generation = store.load(IMAGES[0]).wished.generation
    until(lambda: not queues(rabbitmqctl)['bootcache_images.info'], 'an empty queue')
    assert store.load(IMAGES[0]).wished.generation == generation, 'it is followed once'


def policy(page):
    """The arguments of rabbitmqctl with which a page sets a policy."""
    command = next(line for line in page.read_text().replace('\\\n', ' ').splitlines()
                   if line.strip().startswith('rabbitmqctl set_policy'))
    return shlex.split(command)[1:]


def test_the_pages_policies_stand_beside_each_other(rabbit, rabbitmqctl):
    """Queues of questions follow that of the page of threats, those of events the other."""
    for page in INSTALL, SECURITY:
        rabbitmqctl(*policy(page))
    try:
        with kombu.Connection(rabbit.replace('rabbit:', 'amqp:')) as bus:
            # Named as the services' own are, and no other test's.
            for queue in 'bootcache.of-a-test', 'bootcache_images.of-a-test':
                bus.default_channel.queue_declare(queue, exclusive=True)

            def follow():
                lines = rabbitmqctl('-q', 'list_queues', '--no-table-headers', 'name', 'policy')
                found = dict(line.split('\t') for line in lines.splitlines())
                return found.get('bootcache.of-a-test'), found.get('bootcache_images.of-a-test')

            until(lambda: follow() == ('bootcache-rpc', 'bootcache'), 'each queue\'s policy')
    finally:
        for page in INSTALL, SECURITY:
            rabbitmqctl('clear_policy', policy(page)[-3])


def test_the_pages_policy_bounds_the_queue(glance, rabbitmqctl):
    # As in the page, with a bound that is soon reached.
    *others, definition = policy(INSTALL)
    assert '"max-length": 10000' in definition
    rabbitmqctl(*others, definition.replace('10000', '20'))
    try:
        for _number in range(30):
            glance.info({}, 'image.update', {'id': IMAGES[0]})
        until(lambda: queues(rabbitmqctl)['bootcache_images.info'] == 20, 'the bound')
    finally:
        rabbitmqctl('clear_policy', 'bootcache')
        rabbitmqctl('purge_queue', 'bootcache_images.info')


def test_the_topic_of_before_has_its_pool(conf, glance, rabbit, listen, service):
    """Upgraded before Glance's configuration is: others that listen lose nothing to it."""
    conf.set_override('notification_topic', 'notifications', bootcache_conf.GROUP)
    listen()
    others = []

    class Other:
        @staticmethod
        def info(ctxt, publisher_id, event_type, payload, metadata):
            others.append(payload['id'])

    transport = messaging.get_notification_transport(conf, url=rabbit)
    other = messaging.get_notification_listener(
        transport, [messaging.Target(exchange='glance', topic='notifications')], [Other()],
        executor='threading')
    other.start()
    notifier = messaging.Notifier(transport, publisher_id='image.localhost', driver='messagingv2',
                                  topics=['notifications'])
    try:
        for image in IMAGES:
            notifier.info({}, 'image.update', {'id': image})
        until(lambda: len(others) == len(service.done) == len(IMAGES), 'both')
    finally:
        other.stop()
        other.wait()
        transport.cleanup()
