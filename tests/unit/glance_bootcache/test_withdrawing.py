"""What Glance withdraws is not given out from the moment at which its notification arrives.

The notifications are those of Glance's own code; tests/functional has them through RabbitMQ.
"""

import contextlib
import threading
import types

import pytest
from fakes_hosts import holding
from fakes_manager import until
from glance import notifier as glance_notifier

from bootcache.manifest import ImageState, Manifest, Standing
from bootcache.rpc.messages import PlanBoot
from glance_bootcache.glance.listener import ImageEvents
from glance_bootcache.images import controller as controller_module
from tools import storedimages

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'


@pytest.fixture
def ready(house):
    """An image that is ready, and Glance's notifications."""
    house.hear = lambda event, payload: house.events.info({}, 'image.host', event, payload, {})
    house.notify = lambda event, payload: (house.hear(event, payload), house.looked())
    house.images.put(IMAGE)
    house.changed(IMAGE)
    house.settle()
    assert plan(house)['action'] == 'cache' and house.exporter.serving[IMAGE][1]
    assert house.table.report('one', holding(IMAGE)).drop == ()
    return house


def plan(house):
    return house.hosts.plan_boot(PlanBoot(IMAGE, 'host', 'server'))


def given_out(house):
    """Whether anything of the cache image is: in an answer, by the exporter, or on a host."""
    # First of all: asking for a boot serves the base again.
    served = house.exporter.serving.get(IMAGE, (None, None))[1] is not None
    assert house.table.report('one', holding(IMAGE)).drop == (IMAGE,)
    answer = plan(house)
    return served or answer['action'] not in ('stock', 'wait') or 'cache_image' in answer


@pytest.mark.parametrize('nova', ['answers', 'has servers', 'is away'])
def test_a_deleted_image(ready, nova):
    ready.boots.servers, ready.boots.away = {'has servers': {IMAGE}}.get(nova, set()), \
        nova == 'is away'
    del ready.images.images[IMAGE]
    ready.notify('image.delete', {'id': IMAGE})
    assert not given_out(ready)


@pytest.mark.parametrize('nova', ['answers', 'has servers', 'is away'])
def test_a_deactivated_image(ready, nova):
    ready.boots.servers, ready.boots.away = {'has servers': {IMAGE}}.get(nova, set()), \
        nova == 'is away'
    ready.images.put(IMAGE, status='deactivated')
    ready.notify('image.update', {'id': IMAGE})
    assert not given_out(ready)
    assert ready.store.load(IMAGE).reason == 'the image is deactivated'
    # And active again: it is recorded anew.
    ready.images.put(IMAGE)
    ready.notify('image.update', {'id': IMAGE})
    ready.settle()
    assert plan(ready)['action'] == 'cache'


@pytest.mark.parametrize('nova', ['answers', 'has servers', 'is away'])
@pytest.mark.parametrize('restart', [False, True])
def test_an_image_that_is_active_again_while_a_server_reads_its_base(ready, nova, restart):
    """The content is what it was: its base is the same one, in the same place."""
    ready.exporter.readers.add(IMAGE)
    base = ready.store.load(IMAGE).made.base_path
    ready.boots.servers = {IMAGE}
    ready.images.put(IMAGE, status='deactivated')
    ready.notify('image.update', {'id': IMAGE})
    assert not given_out(ready) and ready.store.load(IMAGE).made.base_path == base
    if restart:
        ready.restart()
    ready.boots.servers, ready.boots.away = {'has servers': {IMAGE}}.get(nova, set()), \
        nova == 'is away'
    ready.images.put(IMAGE)
    ready.changed(IMAGE)
    ready.settle()
    assert plan(ready)['action'] == 'cache'
    manifest = ready.store.load(IMAGE)
    assert (manifest.state, manifest.reason, manifest.made.base_path) == (ImageState.READY, '',
        base)
    assert manifest.image_hash == manifest.made.base_hash


def test_another_content_does_not_take_the_place_of_one_that_is_read(ready):
    ready.exporter.readers.add(IMAGE)
    ready.boots.servers = {IMAGE}
    ready.images.put(IMAGE, status='deactivated')
    ready.notify('image.update', {'id': IMAGE})
    ready.images.put(IMAGE, content=b'\1' * (1 << 20))
    ready.notify('image.update', {'id': IMAGE})
    ready.settle()
    assert ready.state(IMAGE) == 'failed'
    assert 'older content' in ready.store.load(IMAGE).reason


def test_a_cache_image_of_another_content_is_not_served(ready):
    ready.boots.gate.clear()
    ready.images.put(IMAGE, content=b'\1' * (1 << 20))
    ready.changed(IMAGE)
    until(lambda: len(ready.boots.jobs) == 2, 'the second profile boot')
    answer = ready.hosts.plan_boot(PlanBoot(IMAGE, 'host', 'server'))
    assert answer['action'] == 'cold'


def test_it_is_withdrawn_before_nova_is_asked(ready):
    """Nova may take its time."""
    def has_servers(image_id, created_before=None):
        seen.append(given_out(ready))
        return False

    seen, ready.boots.has_servers = [], has_servers
    ready.images.put(IMAGE, status='deactivated')
    ready.notify('image.update', {'id': IMAGE})
    assert seen == [False]


@pytest.mark.parametrize('status', ['deactivated', None])
def test_while_glance_does_not_answer_it_is_looked_at_again(ready, status, caplog):
    if status:
        ready.images.put(IMAGE, status=status)
    else:
        del ready.images.images[IMAGE]
    ready.images.away = True
    ready.notify('image.update', {'id': IMAGE})
    assert 'is looked at again: Glance is away' in caplog.text and plan(ready)['action'] == 'cache'
    ready.later(60)
    assert plan(ready)['action'] == 'cache'
    ready.images.away = False
    ready.later(60)
    assert plan(ready)['action'] == 'stock' and not ready.exporter.serving.get(IMAGE, (0, 0))[1]


@contextlib.contextmanager
def overtaken(ready, event):
    """The image is looked at for an event, and Glance's answer comes late, after the block."""
    asked, go = threading.Event(), threading.Event()
    get = ready.images.get

    def slow(image_id):
        answer = get(image_id)
        asked.set()
        assert go.wait(20)
        return answer

    ready.images.get = slow
    event(IMAGE)
    assert asked.wait(20)
    ready.images.get = get
    yield
    go.set()
    ready.looked()


def test_an_earlier_answer_of_glance_does_not_undo_a_later_one(ready):
    """Glance says that the image is active, slowly; it is deactivated meanwhile."""
    with overtaken(ready, ready.controller.image_changed):
        ready.images.put(IMAGE, status='deactivated')
        ready.hear('image.update', {'id': IMAGE})
    ready.settle()
    assert ready.state(IMAGE) is ImageState.SKIPPED and len(ready.boots.jobs) == 1
    assert not given_out(ready)


def test_what_an_operator_wants_is_done_all_the_same(ready):
    with overtaken(ready, ready.controller.image_changed):
        ready.controller.build(IMAGE)
        ready.hear('image.update', {'id': IMAGE})
    ready.settle()
    assert len(ready.boots.jobs) == 2, 'it is recorded anew'


def test_nor_does_it_bring_a_deleted_image_back(ready):
    with overtaken(ready, ready.controller.build):
        del ready.images.images[IMAGE]
        ready.hear('image.delete', {'id': IMAGE})
    until(lambda: ready.store.load(IMAGE) is None, 'the end of the image')
    assert len(ready.boots.jobs) == 1


# One project less may see a shared image.

def test_a_member_less(ready):
    ready.notify('image.member.delete', {'image_id': IMAGE, 'member_id': 'project'})
    generation = ready.store.load(IMAGE).wished.generation
    assert generation > 0
    assert ready.table.report('one', holding(IMAGE)).drop == (IMAGE,)
    answer = plan(ready)
    assert (answer['action'], answer['generation']) == ('cache', generation)


@pytest.mark.parametrize('payload', [{}, {'id': IMAGE}, {'image_id': None}, {'image_id': 'x'}, None,
                                     {'image_id': IMAGE.replace('7', '8', 1)}])
def test_members_that_say_nothing(ready, payload):
    ready.notify('image.member.delete', payload)
    assert ready.store.load(IMAGE).wished.generation == 0


@pytest.mark.parametrize('event, taken', [
    ('image.activate', True), ('image.update', True), ('image.delete', True),
    ('image.member.delete', True), ('image.member.create', False), ('image.member.update', False),
    ('image.create', False), ('image.deletes', False), ('image.member', False)])
def test_what_is_listened_to(event, taken):
    rule = ImageEvents.filter_rule
    assert rule.match({}, 'image.host', event, {}, {}) is taken


def test_glance_names_and_fills_its_notifications_so(monkeypatch):
    """A fence around Glance's internals."""
    sent = []

    class Notifier:
        @staticmethod
        def info(event, payload):
            sent.append((event, payload))

    class Member:
        image_id, member_id, status, created_at, updated_at = IMAGE, 'project', 'accepted', \
            None, None

    class Repo:
        @staticmethod
        def remove(member):
            pass

    monkeypatch.setattr(glance_notifier.timeutils, 'isotime', lambda at=None: 'now')
    monkeypatch.setattr(glance_notifier, '_is_notification_enabled', lambda name: True)
    monkeypatch.setattr(glance_notifier.domain_proxy.MemberRepo, 'remove',
                        lambda self, member: None)
    repo = glance_notifier.ImageMemberRepoProxy(Repo(), None, None, Notifier())
    repo.remove(Member())
    (event, payload), = sent
    assert event == 'image.member.delete' and payload['image_id'] == IMAGE
    assert 'id' not in payload


def test_a_lost_row_does_not_begin_again_below_what_hosts_hold(ready, monkeypatch):
    monkeypatch.setattr(controller_module, 'time', types.SimpleNamespace(time=lambda: 1e9))
    for expected in (10 ** 9, 10 ** 9 + 1):
        assert ready.controller.let_go(IMAGE).wished.generation == expected
    ready.store.remove(IMAGE)
    storedimages.put(ready.store, Manifest(IMAGE, Standing.DONE))
    monkeypatch.setattr(controller_module, 'time', types.SimpleNamespace(time=lambda: 2e9))
    assert ready.controller.let_go(IMAGE).wished.generation == 2 * 10 ** 9
    held = holding(IMAGE, generation=10 ** 9 + 1)
    assert ready.table.report('one', held).drop == (IMAGE,)
