"""Changes of images while the database, or Glance, is away: followed when that is over.

The neighbours are stand-ins, see test_controller.py; tools/faults.sh fills a file system.
"""

import logging
import os
import threading

import pytest
from fakes_database import Rows
from oslo_messaging import NotificationResult

from bootcache.exception import DatabaseAway
from bootcache.manifest import Manifest, Standing
from bootcache.rpc.messages import PlanBoot
from glance_bootcache.glance import listener
from glance_bootcache.images import controller
from tools import storedimages

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
OTHER = '8a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
IMAGES = [f'{number:08x}{IMAGE[8:]}' for number in range(20)]


@pytest.fixture
def rows(house, monkeypatch):
    """The images'; ``house.again`` has the bus give again what it has, and time pass."""
    waiting = []
    monkeypatch.setattr(listener, '_AGAIN_SECONDS', 0)

    def notify(event, payload):
        if house.events.info({}, 'image.host', event, payload, {}) is NotificationResult.REQUEUE:
            waiting.append((event, payload))
        house.looked()

    def again():
        given = waiting[:]
        waiting.clear()
        for event, payload in given:
            notify(event, payload)
        house.later(600)
        house.settle()

    house.notify, house.again, house.on_the_bus = notify, again, waiting
    return Rows(house.store, monkeypatch)


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno > logging.INFO]


def test_an_image_whose_first_row_cannot_be_written_is_not_forgotten(house, rows, caplog):
    rows.is_away = True
    house.images.put(IMAGE)
    house.notify('image.activate', {'id': IMAGE})
    assert house.store.load(IMAGE) is None
    for _again in range(5):
        house.again()
    assert house.store.load(IMAGE) is None
    # It is told once.
    assert warnings(caplog) == [
        f'image {IMAGE}: cannot be looked at, and is looked at again: the database cannot be'
        ' written']
    rows.is_away = False
    house.again()
    assert house.state(IMAGE) == 'ready' and len(warnings(caplog)) == 1


@pytest.mark.parametrize('change', ['deleted', 'deactivated', 'opted out'])
def test_an_image_that_is_not_given_out_any_more(house, rows, change):
    house.images.put(IMAGE)
    house.notify('image.activate', {'id': IMAGE})
    house.settle()
    rows.is_away = True
    if change == 'deleted':
        del house.images.images[IMAGE]
        house.notify('image.delete', {'id': IMAGE})
    else:
        house.images.put(IMAGE, **({'status': 'deactivated'} if change == 'deactivated'
                                   else {'mode': 'off'}))
        house.notify('image.update', {'id': IMAGE})
    assert house.store.load(IMAGE).standing is Standing.DONE
    house.again()
    rows.is_away = False
    house.again()
    manifest = house.store.load(IMAGE)
    assert manifest is None if change == 'deleted' else manifest.standing is Standing.SKIPPED
    assert house.hosts.plan_boot(PlanBoot(IMAGE, 'host', 'server'))['action'] in ('stock', 'wait')


def test_an_image_that_fewer_people_see(house, rows):
    """Nothing in Glance's image tells of it later."""
    house.images.put(IMAGE)
    house.changed(IMAGE)
    house.settle()
    rows.is_away = True
    house.notify('image.member.delete', {'image_id': IMAGE})
    house.notify('image.update', {'id': IMAGE})
    house.again()
    assert house.store.load(IMAGE).wished.generation == 0 and len(house.on_the_bus) == 1
    rows.is_away = False
    house.again()
    assert house.store.load(IMAGE).wished.generation == 1
    house.again()
    assert house.store.load(IMAGE).wished.generation == 1


def test_an_operator_is_told(house, rows):
    house.images.put(IMAGE)
    before = storedimages.put(house.store, Manifest(IMAGE, Standing.FAILED))
    rows.is_away = True
    for ask in (lambda: house.endpoints.build_image({}, IMAGE),
                lambda: house.endpoints.delete_image({}, IMAGE),
                lambda: house.endpoints.evict_image({}, IMAGE, None)):
        with pytest.raises(DatabaseAway):
            ask()
    assert house.store.load(IMAGE) == before


def test_a_server_that_boots_goes_on_waiting_for_its_base(house, rows):
    rows.is_away = True
    house.images.put(IMAGE)
    assert house.hosts.plan_boot(PlanBoot(IMAGE, 'host', 'server'))['action'] == 'wait'
    house.settle()
    rows.is_away = False
    house.again()
    assert house.hosts.plan_boot(PlanBoot(IMAGE, 'host', 'server'))['action'] == 'cold'


def test_a_server_whose_cache_image_was_evicted_boots_from_the_base(house, rows):
    house.images.put(IMAGE)
    house.changed(IMAGE)
    house.settle()
    house.store.change(IMAGE, lambda known: known.making(cache_image=None, difference=None))
    rows.is_away = True
    assert house.hosts.plan_boot(PlanBoot(IMAGE, 'host', 'server'))['action'] == 'cold'
    house.settle()
    rows.is_away = False
    assert house.hosts.plan_boot(PlanBoot(IMAGE, 'host', 'server'))['action'] == 'cold'
    house.settle()
    assert house.hosts.plan_boot(PlanBoot(IMAGE, 'host', 'server'))['action'] == 'cache'


def test_while_the_database_is_away_writing_is_tried_once_a_minute(house, rows):
    rows.is_away = True
    for image in IMAGES:
        house.images.put(image)
        house.changed(image)
    for _hour in range(2):
        rows.tries = 0
        for _minute in range(60):
            house.later(60)
    assert rows.tries <= 60 * len(IMAGES)
    rows.is_away = False
    house.again()
    assert {house.state(image) for image in IMAGES} == {'ready'}


def test_an_image_that_can_never_be_written_holds_up_no_other(house, rows):
    rows.is_away = True
    for image in IMAGES:
        house.images.put(image)
        house.changed(image)
    rows.is_away, rows.spoilt = False, IMAGES[7]
    house.again()
    assert [house.state(image) for image in IMAGES].count('ready') == 19
    assert house.state(IMAGES[7]) is None
    rows.spoilt = ''
    house.again()
    assert house.state(IMAGES[7]) == 'ready'


def test_how_many_wait_is_bounded_and_told(house, rows, monkeypatch, caplog):
    monkeypatch.setattr(controller, '_MOST_ANNOUNCED', 1)
    rows.is_away = True
    for image in (IMAGE, OTHER):
        house.images.put(image)
        house.changed(image)
    assert f'"bootcache image build {OTHER}" takes it up' in caplog.text
    rows.is_away = False
    house.again()
    assert house.state(IMAGE) == 'ready'


def test_glance_may_be_away_as_well(house, rows):
    rows.is_away = house.images.away = True
    house.images.put(IMAGE)
    house.notify('image.activate', {'id': IMAGE})
    rows.is_away = False
    house.again()
    assert house.store.load(IMAGE) is None
    house.images.away = False
    house.again()
    assert house.state(IMAGE) == 'ready'


def test_ids_that_glance_never_knew_leave_nothing(house):
    """Whoever is on the bus can make up any number of them, also while Glance is away."""
    house.images.away = True
    for image in IMAGES:
        house.endpoints.image_registered({}, image)
    house.looked()
    assert os.listdir(house.store.images_directory) == []
    house.images.away = False
    house.later(600)
    assert os.listdir(house.store.images_directory) == []
    # Nobody asks for them any more.
    house.images.get = lambda image_id: pytest.fail('asked')
    for _hour in range(24):
        house.later(3600)


def test_a_wish_whose_answer_was_lost_is_decided_about_with_the_next_event(
        house, database, monkeypatch):
    """Its row is there, and memory does not know it."""
    def lost(change):
        monkeypatch.setattr(database, 'write', write)
        write(change)
        raise DatabaseAway('no answer')

    write = database.write
    monkeypatch.setattr(database, 'write', lost)
    house.images.put(IMAGE, mode='off')
    with pytest.raises(DatabaseAway):
        house.build(IMAGE)
    house.changed(IMAGE)
    assert house.state(IMAGE) == 'skipped'


# Answers that overtake each other.

@pytest.fixture
def asked(house):
    """Glance is asked for an image that is ready; the answer is what it was then, and is late.

    ``house.answer`` lets it come.
    """
    house.images.put(IMAGE)
    house.changed(IMAGE)
    house.settle()
    begun, gate, get, questions = threading.Event(), threading.Event(), house.images.get, []

    def slow(image_id):
        answer = get(image_id)
        questions.append(image_id)
        begun.set()
        gate.wait()
        return answer

    house.images.get, house.questions = slow, questions
    house.controller.image_changed(IMAGE)
    assert begun.wait(20)

    def answer():
        gate.set()
        house.looked()

    house.answer = answer
    yield house
    gate.set()


def test_many_messages_of_one_image_are_two_questions(asked):
    for _message in range(10):
        asked.controller.image_changed(IMAGE)
    asked.answer()
    assert len(asked.questions) == 2


def test_an_answer_of_before_a_change_does_not_count(asked):
    asked.images.put(IMAGE, mode='off')
    asked.controller.image_changed(IMAGE)
    asked.answer()
    assert asked.state(IMAGE) == 'skipped'


def test_a_deletion_that_is_notified_while_glance_is_asked_has_it_asked_again(asked):
    del asked.images.images[IMAGE]
    asked.controller.image_deleted(IMAGE)
    asked.answer()
    assert asked.state(IMAGE) in (None, 'skipped')
