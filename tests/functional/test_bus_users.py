"""Users of RabbitMQ by the page of threats: each does its work, and none reads another's."""

import contextlib
import pathlib
import re
import shlex
import threading

import amqp
import oslo_messaging as messaging
import pytest
from functional_tools import until
from oslo_config import cfg
from oslo_messaging import conffixture

from bootcache import conf as bootcache_conf
from bootcache.rpc import messages
from bootcache.rpc.client import StorageClient
from bootcache.rpc.transport import get_transport, target
from glance_bootcache import conf as glance_conf
from glance_bootcache.glance.listener import ImageEvents, get_listener
from glance_bootcache.nodes import routing

PAGE = pathlib.Path(__file__).resolve().parents[2] / 'doc' / 'source' / 'security.rst'
IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
STORAGE, HOST, GLANCE = 'bootcache-storage', 'bootcache-host', 'bootcache-glance'
NOVA = 'nova'
QUESTIONS, EVENTS = 'bootcache', 'bootcache_images.info'
REFUSED = amqp.exceptions.AccessRefused, amqp.exceptions.NotAllowed


def commands():
    """The page's commands of rabbitmqctl, in their order."""
    section = PAGE.read_text().split('Users of the message bus\n===')[1].split('\n===')[0]
    lines = section.replace('\\\n', ' ').splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith('  rabbitmqctl ')]


def erlang(command):
    """What a command of rabbitmqctl has RabbitMQ do."""
    name, *rest = command
    if name == 'set_permissions':
        option, vhost, user, *patterns = rest
        assert option == '-p' and len(patterns) == 3
        rest = [user, vhost, *patterns]
    function = {'add_vhost': 'rabbit_vhost:add', 'delete_vhost': 'rabbit_vhost:delete',
                'add_user': 'rabbit_auth_backend_internal:add_user',
                'delete_user': 'rabbit_auth_backend_internal:delete_user',
                'set_permissions': 'rabbit_auth_backend_internal:set_permissions'}[name]
    return f'{function}(' + ', '.join('<<"{}">>'.format(text.replace('\\', '\\\\'))
                                      for text in (*rest, 'tests')) + ')'


@pytest.fixture(scope='module')
def users(rabbitmqctl):
    """Makes them as the page has it, and Nova with a virtual host of its own.

    All at once: each rabbitmqctl is an Erlang machine.
    """
    made = [*commands(), ['add_vhost', NOVA], ['add_user', NOVA, 'PASSWORD'],
            ['set_permissions', '-p', NOVA, NOVA, '.*', '.*', '.*']]
    assert len(made) == 7 + 3
    rabbitmqctl('eval', ', '.join(map(erlang, made)) + '.')
    yield
    rabbitmqctl('eval', ', '.join(erlang([command[0].replace('add', 'delete'), command[1]])
                                  for command in reversed(made)
                                  if command[0] != 'set_permissions') + '.')


@pytest.fixture(scope='module')
def place(rabbit):
    """Where RabbitMQ is: host and port."""
    return re.search(r'@(.+):(\d+)/', rabbit).groups()


@pytest.fixture(scope='module')
def url(users, place):
    return lambda user, vhost='bootcache': \
        f'rabbit://{user}:PASSWORD@{place[0]}:{place[1]}/{vhost}'


@pytest.fixture
def conf(url):
    """Configurations by user."""
    def make(user):
        conf = cfg.ConfigOpts()
        conf([], project='bootcache', default_config_files=[], default_config_dirs=[])
        glance_conf.register_opts(conf)
        conffixture.ConfFixture(conf)
        conf.set_override('transport_url', url(user), bootcache_conf.GROUP)
        conf.set_override('rpc_timeout', 30, bootcache_conf.GROUP)
        return conf
    return make


class Asked:
    """Stands for the storage service: notes what it is asked.

    :ivar done: methods and images.
    """

    target = messaging.Target(version=messages.VERSION)

    def __init__(self):
        self.done = []

    def get_image(self, _context, image_id):
        return None if image_id == messages.NO_IMAGE else {'image_id': image_id}

    def plan_boot(self, _context, image_id, **_said):
        self.done.append(('plan_boot', image_id))
        return {'action': 'stock', 'reason': 'why not'}

    def image_registered(self, _context, image_id):
        self.done.append(('image_registered', image_id))


@pytest.fixture
def service(conf):
    """The storage service's end of the bus: what it is asked, and Glance's events."""
    asked, own = Asked(), conf(STORAGE)
    transport = get_transport(own)
    server = messaging.get_rpc_server(transport, target(server='storage'), [asked],
                                      executor='threading')
    heard = []
    listener = get_listener(own, ImageEvents(
        lambda image_id: heard.append(image_id), lambda image_id: None, lambda image_id: None))
    for each in server, listener:
        each.start()
    asked.heard = heard
    yield asked
    for each in server, listener:
        each.stop()
        each.wait()
    listener.transport.cleanup()
    transport.cleanup()


@pytest.fixture
def client(conf, monkeypatch):
    """The client that a user has of the storage service."""
    opened, real = [], messaging.get_rpc_transport
    monkeypatch.setattr(messaging, 'get_rpc_transport',
                        lambda *some, **named: opened.append(real(*some, **named)) or opened[-1])
    yield lambda user: StorageClient(conf(user))
    for transport in opened:
        transport.cleanup()


@pytest.fixture
def tries(users, place):
    """Do something on a channel as a user; whether RabbitMQ has refused it."""
    def tries(user, what, vhost='bootcache'):
        try:
            with amqp.Connection(':'.join(place), userid=user, password='PASSWORD',
                                 virtual_host=vhost) as connection:
                what(connection.channel())
        except REFUSED:
            return 'refused'
        return 'done'
    return tries


def reads(queue):
    return lambda channel: channel.basic_get(queue)


def binds(exchange):
    """Have a queue of one's own get what is sent to an exchange."""
    def what(channel):
        channel.queue_declare('reply_mine', auto_delete=True)
        channel.queue_bind('reply_mine', exchange, '#')
    return what


def sends(exchange, key):
    def what(channel):
        # RabbitMQ tells of a refusal when it is asked something next.
        channel.basic_publish(amqp.Message('{}'), exchange, key)
        channel.queue_declare('reply_mine', auto_delete=True)
    return what


def test_a_host_asks_and_reads_nothing_of_others(service, client, tries):
    host = client(HOST)
    assert host.send(messages.PlanBoot(IMAGE, 'host-1', 'server'))['reason'] == 'why not'
    host.send(messages.ImageRegistered(IMAGE))
    until(lambda: ('image_registered', IMAGE) in service.done, 'what needs no answer')
    for what in (reads(QUESTIONS), binds(QUESTIONS), reads(EVENTS), binds('glance'),
                 sends('glance', EVENTS), sends('', EVENTS)):
        assert tries(HOST, what) == 'refused'
    # Its own answers, and the same by who may.
    assert tries(STORAGE, binds(QUESTIONS)) == 'done'
    assert tries(HOST, lambda channel: channel.queue_declare('reply_mine')) == 'done'
    assert tries(HOST, reads('reply_mine')) == 'done'


def test_glance_tells_of_images_and_reads_none_of_it(service, client, conf, url, tries):
    client(GLANCE).send(messages.ImageRegistered(IMAGE))
    until(lambda: ('image_registered', IMAGE) in service.done, 'the hook')
    own = conf(GLANCE)
    own.set_override('control_exchange', 'glance')
    transport = messaging.get_notification_transport(own, url=url(GLANCE))
    messaging.Notifier(transport, publisher_id='image.localhost', driver='messagingv2',
                       topics=['bootcache_images']).info({}, 'image.activate', {'id': IMAGE})
    until(lambda: IMAGE in service.heard, 'the notification')
    transport.cleanup()
    for what in (reads(QUESTIONS), binds(QUESTIONS), reads(EVENTS)):
        assert tries(GLANCE, what) == 'refused'


def test_what_storage_nodes_hand_on_is_theirs(conf, tries):
    asked, transport = Asked(), get_transport(conf(STORAGE))
    server = messaging.get_rpc_server(transport, routing.target(server='storage'), [asked],
                                      executor='threading')
    server.start()
    handed_on = messaging.get_rpc_client(transport, routing.target(), timeout=30)
    # As to one node, and as to all.
    assert handed_on.prepare(server='storage').call(
        {}, 'get_image', image_id=IMAGE) == {'image_id': IMAGE}
    handed_on.prepare(fanout=True).cast({}, 'image_registered', image_id=IMAGE)
    until(lambda: ('image_registered', IMAGE) in asked.done, 'what all are told')
    exchange, queue = routing.EXCHANGE, f'{routing.TOPIC}.storage'
    for user in HOST, GLANCE:
        for what in (sends(exchange, queue), sends(f'{exchange}_fanout', ''), sends('', queue),
                     reads(queue), binds(exchange), binds(f'{exchange}_fanout'),
                     lambda channel: channel.queue_delete(queue)):
            assert tries(user, what) == 'refused'
    for what in sends(f'{exchange}_fanout', ''), reads(queue):
        assert tries(STORAGE, what) == 'done'
    server.stop()
    server.wait()
    transport.cleanup()


def test_who_has_another_virtual_host_reaches_nothing(service, tries):
    assert tries(NOVA, lambda channel: None) == 'refused'
    assert tries(NOVA, lambda channel: None, vhost=NOVA) == 'done'
    for user in STORAGE, HOST, GLANCE:
        assert tries(user, lambda channel: None, vhost=NOVA) == 'refused'


def test_a_queue_that_a_host_deletes_is_made_anew(service, client, tries):
    host = client(HOST)
    assert host.send(messages.PlanBoot(IMAGE, 'host-1', 'server'))
    assert tries(HOST, lambda channel: channel.queue_delete(QUESTIONS)) == 'done'
    answered = threading.Event()

    def asks():
        with contextlib.suppress(messaging.MessagingException):
            host._client.prepare(timeout=2).call({}, 'get_image', image_id=IMAGE)
            answered.set()
        return answered.is_set()

    until(asks, 'an answer')
