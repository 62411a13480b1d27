"""Images that Glance says it does not have: given out no more at once, and what of them when.

An ingress that has lost its backends, another region, a role that was lost: one answer of 404 says
nothing. glanceclient is the real one, before a small web server.
"""

import contextlib
import json
import os
import threading

# Not the module, which eventlet puts another in the place of: there nobody would answer.
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import glanceclient
import pytest
from fakes_hosts import holding
from keystoneauth1 import noauth
from keystoneauth1 import session as ks_session

from bootcache.manifest import Availability
from bootcache.rpc.messages import PlanBoot
from glance_bootcache import availability
from glance_bootcache.glance.images import Images
from tools import storedimages

IMAGES = [f'{number:08x}-1f2b-4c3d-8e9f-0a1b2c3d4e5f' for number in range(20)]
OTHERS = [f'{number:08x}-2f2b-4c3d-8e9f-0a1b2c3d4e5f' for number in range(20)]
DELAY = 300


class Web(BaseHTTPRequestHandler):
    """Glance's address: its images, or nothing but a page of an ingress."""

    def do_GET(self):
        known = self.server.known
        image = self.path.rpartition('/')[2]
        if known is not None and self.path.startswith('/v2/images?'):
            answer = {'images': [] if 'os_hidden=True' in self.path else list(known.values())}
        elif known is not None and image in known:
            answer = known[image]
        else:
            answer = None
        body = b'default backend - 404' if answer is None else json.dumps(answer).encode()
        self.send_response(404 if answer is None else 200)
        self.send_header('Content-Type', 'text/plain' if answer is None else 'application/json')
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments):
        pass


@contextlib.contextmanager
def asked_at(house, known):
    """The service asks such a Glance in the block.

    :param known: ids of its images; None where no Glance answers.
    """
    web = ThreadingHTTPServer(('127.0.0.1', 0), Web)
    web.known = known if known is None else {image: {
        'id': image, 'status': 'active', 'disk_format': 'raw', 'container_format': 'bare'}
        for image in known}
    thread = threading.Thread(target=web.serve_forever, daemon=True)
    thread.start()
    address = f'http://127.0.0.1:{web.server_port}'
    images = Images.__new__(Images)
    images._client = glanceclient.Client('2', endpoint_override=address, session=ks_session.Session(
        noauth.NoAuth(address)))
    before, house.images = house.images, images
    house.restart()
    yield
    house.images = before
    web.shutdown()
    web.server_close()
    thread.join()


@pytest.fixture
def cloud(house):
    """Registers images, which are ready, pinned and held by a host."""
    house.conf.set_override('deletion_delay', DELAY, 'bootcache')
    house.restart()

    def register(count):
        for image in IMAGES[:count]:
            house.images.put(image)
            house.changed(image)
        house.settle()
        for image in IMAGES[:count]:
            house.operators.pin(image, True)
            assert house.hosts.plan_boot(PlanBoot(image, 'one', 'server'))['action'] == 'cache'

    house.register = register
    house.rounds = lambda seconds: (house.once(), house.seconds.sleep(seconds),
                                    house.once())

    def notify(image):
        house.events.info({}, 'image.host', 'image.delete', {'id': image}, {})
        house.looked()

    house.notify = notify
    return house


def is_whole(house, image):
    """Nothing that was made of it is lost."""
    manifest = house.store.load(image)
    made = manifest.made
    return manifest.wished.pinned and os.path.exists(house.store.cache_path(manifest)) \
        and os.path.exists(made.base_path) \
        and house.store.load_working_set(manifest) is not None


def action(house, image=IMAGES[0]):
    return house.hosts.plan_boot(PlanBoot(image, 'one', 'server'))['action']


@pytest.mark.parametrize('count', [1, 3, 20])
@pytest.mark.parametrize('elsewhere', [None, [], OTHERS])
def test_an_address_without_our_glance_forgets_nothing(cloud, count, elsewhere):
    """A start against it, and days of it; then Glance is there again."""
    cloud.register(count)
    known = IMAGES[:count]
    with asked_at(cloud, elsewhere):
        for _day in range(3):
            cloud.rounds(86400)
            assert cloud.table.report('one', holding(*known)).drop == ()
        assert cloud.upkeep.recovered
        # Where Glance says that there is no such image nobody gets it.
        assert {action(cloud, image) for image in known} == {'stock'}
        assert cloud.operators.get_image(known[0])['state'] == 'skipped'
        assert 'does not have the image' in cloud.operators.get_image(known[0])['reason']
        assert cloud.exporter.serving[known[0]][1] is None
    cloud.restart()
    cloud.once()
    cloud.settle()
    assert all(is_whole(cloud, image) for image in known)
    assert {action(cloud, image) for image in known} == {'cache'}
    assert len(cloud.boots.jobs) == count and len(cloud.qemu.builds) == count


def test_without_a_restart_as_well(cloud):
    cloud.register(3)
    images = dict(cloud.images.images)
    cloud.images.images.clear()
    for image in IMAGES[:3]:
        cloud.changed(image)
    cloud.rounds(DELAY)
    assert {action(cloud, image) for image in IMAGES[:3]} == {'stock'}
    cloud.images.images.update(images)
    cloud.later(DELAY)
    assert {action(cloud, image) for image in IMAGES[:3]} == {'cache'}
    assert all(is_whole(cloud, image) for image in IMAGES[:3])


@pytest.mark.parametrize('count', [1, 3])
def test_a_deletion_that_glance_notified(cloud, count):
    cloud.register(count)
    cloud.table.report('one', holding(*IMAGES[:count]))
    del cloud.images.images[IMAGES[0]]
    cloud.notify(IMAGES[0])
    assert action(cloud) == 'stock' and is_whole(cloud, IMAGES[0])
    cloud.rounds(DELAY - 1)
    assert is_whole(cloud, IMAGES[0])
    assert cloud.table.report('one', holding(*IMAGES[:count])).drop == ()
    cloud.rounds(1)
    assert cloud.store.load(IMAGES[0]) is None
    assert cloud.table.report('one', holding(*IMAGES[:count])).drop == (IMAGES[0],)


def test_a_deletion_that_glance_notified_before_a_restart(cloud):
    cloud.register(1)
    del cloud.images.images[IMAGES[0]]
    cloud.notify(IMAGES[0])
    cloud.restart()
    cloud.rounds(DELAY)
    assert cloud.store.load(IMAGES[0]) is None


@pytest.mark.parametrize('glance', ['has it', 'is away'])
def test_a_notification_alone_removes_nothing(cloud, glance):
    cloud.register(1)
    cloud.images.away = glance == 'is away'
    cloud.notify(IMAGES[0])
    assert action(cloud) == ('cache' if glance == 'has it' else 'stock')
    cloud.rounds(DELAY)
    cloud.images.away = False
    cloud.later(DELAY)
    assert is_whole(cloud, IMAGES[0]) and action(cloud) == 'cache'


@pytest.mark.parametrize('count', [2, 3])
def test_a_deletion_that_nobody_told_of(cloud, count):
    """Its notification was lost; the sweep finds it."""
    cloud.register(count)
    cloud.rounds(3599)
    del cloud.images.images[IMAGES[0]]
    cloud.once()
    assert action(cloud) == 'cache'
    cloud.rounds(1)
    assert action(cloud) == 'stock' and is_whole(cloud, IMAGES[0])
    cloud.rounds(DELAY)
    assert cloud.store.load(IMAGES[0]) is None
    assert all(is_whole(cloud, image) for image in IMAGES[1:count])


@pytest.mark.parametrize('elsewhere', ['a lost role', 'another region'])
@pytest.mark.parametrize('visibility', ['private', 'shared'])
def test_what_all_may_see_says_nothing_of_what_few_may(cloud, elsewhere, visibility, caplog):
    """As many images of all are listed as ever; others' own are answered with 404."""
    cloud.register(13)
    for number, image in enumerate(IMAGES[:13]):
        cloud.images.put(image, visibility='public' if number < 7 else visibility)
        cloud.changed(image)
    cloud.settle()
    assert [cloud.store.load(image).wished.visibility for image in (IMAGES[0], IMAGES[7])] \
        == ['public', visibility]
    before = dict(cloud.images.images)
    if elsewhere == 'another region':
        # One of those that all may see is not replicated.
        del cloud.images.images[IMAGES[0]]
        cloud.images.put(OTHERS[0], visibility=visibility)
    for image in IMAGES[7:13]:
        del cloud.images.images[image]
    for _day in range(3):
        cloud.rounds(86400)
    assert cloud.store.load(IMAGES[7]).wished.availability is Availability.MISSING
    assert 'nor does it list the other known images' in caplog.text
    cloud.images.images = before
    cloud.once()
    cloud.settle()
    assert all(is_whole(cloud, image) for image in IMAGES[:13])
    # With the role again, or in the right region, one that was deleted is believed to be.
    for image in (IMAGES[0], IMAGES[7]):
        del cloud.images.images[image]
        cloud.changed(image)
    cloud.rounds(DELAY)
    assert [cloud.store.load(image) for image in (IMAGES[0], IMAGES[7])] == [None, None]


def test_what_all_may_see_is_compared_with_its_like_where_there_is_nothing_else(cloud):
    cloud.register(3)
    for image in IMAGES[:3]:
        cloud.images.put(image, visibility='public')
        cloud.changed(image)
    del cloud.images.images[IMAGES[0]]
    cloud.changed(IMAGES[0])
    cloud.rounds(DELAY)
    assert cloud.store.load(IMAGES[0]) is None and is_whole(cloud, IMAGES[1])


def test_an_only_image_is_removed_by_an_operator(cloud, caplog):
    cloud.register(1)
    del cloud.images.images[IMAGES[0]]
    cloud.changed(IMAGES[0])
    cloud.rounds(DELAY)
    cloud.rounds(DELAY)
    assert is_whole(cloud, IMAGES[0])
    assert caplog.text.count(f'"bootcache image delete {IMAGES[0]}" removes it') == 1
    assert cloud.endpoints.delete_image({}, IMAGES[0]) is True
    cloud.looked()
    assert cloud.store.load(IMAGES[0]) is None


def test_at_most_five_in_a_day_that_nobody_told_of(cloud):
    cloud.register(20)
    for image in IMAGES[:8]:
        del cloud.images.images[image]
        cloud.changed(image)

    def left():
        return sum(cloud.store.load(image) is not None for image in IMAGES[:8])

    for _round in range(4):
        cloud.rounds(DELAY)
    assert left() == 3
    # All of Glance's images take minutes in a large cloud.
    listed, list_all = [], cloud.images.all
    cloud.images.all = lambda: listed.append(True) or list_all()
    for _round in range(5):
        cloud.rounds(DELAY)
    assert left() == 3 and len(listed) <= 1, 'the sweep alone lists them'
    cloud.seconds.sleep(86400)
    cloud.once()
    assert left() == 0
    assert all(is_whole(cloud, image) for image in IMAGES[8:])


def test_many_that_are_missing_do_not_hold_up_one_whose_deletion_was_notified(cloud):
    cloud.register(20)
    asked, get = [], cloud.images.get
    cloud.images.get = lambda image_id: asked.append(image_id) or get(image_id)
    for image in IMAGES:
        del cloud.images.images[image]
        cloud.changed(image)
    cloud.notify(IMAGES[7])
    cloud.later(DELAY)
    assert cloud.store.load(IMAGES[7]) is None
    asked.clear()
    for _minute in range(60):
        cloud.later(60)
    assert 1 <= asked.count(IMAGES[0]) <= 14, 'Glance is asked for the others every five minutes'


def test_one_answer_of_404_is_asked_for_again_soon(cloud):
    """An ingress that was reloaded: servers go the stock way for no longer than needs be."""
    cloud.register(1)
    image = cloud.images.images.pop(IMAGES[0])
    cloud.changed(IMAGES[0])
    assert action(cloud) == 'stock'
    cloud.images.images[IMAGES[0]] = image
    cloud.later(30)
    assert action(cloud) == 'cache'


@pytest.mark.parametrize('glance', ['answers', 'is away'])
def test_a_cache_image_is_withdrawn_when_the_deletion_is_notified(cloud, glance):
    cloud.register(1)
    del cloud.images.images[IMAGES[0]]
    cloud.images.away = glance == 'is away'
    cloud.notify(IMAGES[0])
    assert cloud.exporter.serving[IMAGES[0]][1] is None and is_whole(cloud, IMAGES[0])


def test_what_is_in_hand_is_given_up_and_begun_again(cloud):
    cloud.boots.gate.clear()
    cloud.images.put(IMAGES[0])
    cloud.changed(IMAGES[0])
    image = cloud.images.images.pop(IMAGES[0])
    cloud.changed(IMAGES[0])
    cloud.settle()
    cloud.boots.gate.set()
    assert cloud.state(IMAGES[0]) == 'skipped'
    cloud.images.images[IMAGES[0]] = image
    cloud.later(DELAY)
    cloud.settle()
    assert cloud.state(IMAGES[0]) == 'ready'


@pytest.mark.parametrize('listed, others, sound', [
    (0, 0, False), (0, 1, False), (1, 1, True), (1, 2, True), (1, 3, False), (2, 3, True)])
def test_what_a_listing_has_to_show(listed, others, sound):
    assert availability.shows_others(listed, others) is sound


@pytest.mark.parametrize('images, most', [(0, 5), (59, 5), (60, 6), (1000, 100)])
def test_how_many_are_believed_in_a_day(images, most):
    assert availability.budget(images) == most


def test_it_is_in_the_image_s_row(cloud, storage_conf, database):
    cloud.register(1)
    del cloud.images.images[IMAGES[0]]
    cloud.changed(IMAGES[0])
    again = storedimages.opened(storage_conf, database)
    assert again.load(IMAGES[0]).wished.availability is Availability.MISSING
