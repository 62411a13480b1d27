"""Changes of images while the database, or Glance, is away: followed when that is over.

The neighbours are stand-ins, see test_manager.py.
"""

import logging
import os
import threading

import pytest
from fakes_database import Rows
from fakes_manager import until

from bootcache.exception import DatabaseAway
from bootcache.manifest import Availability, Manifest, Standing
from bootcache.rpc.messages import PlanBoot
from glance_bootcache.images import retriedlooks
from glance_bootcache.images.retriedlooks import RetriedLooks
from tools import storedimages

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
OTHER = '8a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
IMAGES = [f'{number:08x}{IMAGE[8:]}' for number in range(20)]


@pytest.fixture
def rows(house, monkeypatch):
    """The images'; ``house.again`` is upkeep's step."""
    house.notify = lambda event, payload: house.events.info({}, 'image.host', event, payload, {})

    def again():
        house.upkeep.follow_again()
        house.settle()

    house.again = again
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
    # It is told once, with the cure.
    assert warnings(caplog) == [
        f'image {IMAGE}: its change cannot be written: the database cannot be written. It is tried'
        ' again by itself']
    rows.is_away = False
    house.again()
    assert house.state(IMAGE) == 'ready' and len(warnings(caplog)) == 1
    assert house.manager.retried.images() == []


def test_upkeep_does_it(house, rows):
    rows.is_away = True
    house.images.put(IMAGE)
    house.manager.consider(IMAGE)
    rows.is_away = False
    house.upkeep.once()
    house.settle()
    assert house.state(IMAGE) == 'ready'


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
    rows.is_away = False
    house.again()
    manifest = house.store.load(IMAGE)
    assert manifest is None if change == 'deleted' else manifest.standing is Standing.SKIPPED
    assert house.hosts.plan_boot(PlanBoot(IMAGE, 'host', 'server'))['action'] in ('stock', 'wait')


def test_an_image_that_fewer_people_see(house, rows):
    """Nothing in Glance's image tells of it later."""
    house.images.put(IMAGE)
    house.manager.consider(IMAGE)
    house.settle()
    rows.is_away = True
    house.notify('image.member.delete', {'image_id': IMAGE})
    house.notify('image.update', {'id': IMAGE})
    house.again()
    assert house.store.load(IMAGE).wished.generation == 0
    rows.is_away = False
    house.again()
    assert house.store.load(IMAGE).wished.generation == 1
    house.again()
    assert house.store.load(IMAGE).wished.generation == 1


def test_an_operator_is_told(house, rows):
    house.images.put(IMAGE)
    storedimages.put(house.store, Manifest(IMAGE, Standing.FAILED))
    rows.is_away = True
    for ask in (lambda: house.endpoints.build_image({}, IMAGE),
                lambda: house.endpoints.delete_image({}, IMAGE),
                lambda: house.endpoints.evict_image({}, IMAGE, None)):
        with pytest.raises(DatabaseAway):
            ask()
    assert house.manager.retried.images() == []


def test_a_server_that_boots_goes_on_waiting_for_its_base(house, rows):
    rows.is_away = True
    house.images.put(IMAGE)
    assert house.hosts.plan_boot(PlanBoot(IMAGE, 'host', 'server'))['action'] == 'wait'
    house.settle()
    rows.is_away = False
    house.again()
    assert house.state(IMAGE) == 'ready'


def test_while_the_database_is_away_a_few_are_tried_in_each_round(house, rows):
    rows.is_away = True
    for image in IMAGES:
        house.images.put(image)
        house.manager.consider(image)
    for _round in range(5):
        rows.tries = 0
        house.again()
        assert rows.tries == 3
    rows.is_away = False
    house.again()
    assert {house.state(image) for image in IMAGES} == {'ready'}


def test_an_image_that_can_never_be_written_holds_up_no_other(house, rows):
    rows.is_away = True
    for image in IMAGES:
        house.images.put(image)
        house.manager.consider(image)
    rows.is_away, rows.spoilt = False, IMAGES[7]
    house.again()
    assert [house.state(image) for image in IMAGES].count('ready') == 19
    assert house.state(IMAGES[7]) is None
    rows.spoilt = ''
    house.again()
    assert house.state(IMAGES[7]) == 'ready'


def test_how_many_are_noted_is_bounded_and_told(house, rows, monkeypatch, caplog):
    monkeypatch.setattr(retriedlooks, '_MOST_IMAGES', 1)
    rows.is_away = True
    for image in (IMAGE, OTHER):
        house.images.put(image)
        house.manager.consider(image)
    assert house.manager.retried.images() == [IMAGE]
    assert f'"bootcache image build {OTHER}" takes it up' in caplog.text


def test_a_change_that_comes_while_one_is_followed_is_followed_too():
    retried, followed = RetriedLooks(), []
    error = DatabaseAway('away')
    retried.add(IMAGE, error)
    for _round in range(3):
        for image in retried.images():
            with retried.follow(image) as heard:
                followed.append(Availability.MEMBER_REMOVED in heard)
                if len(followed) == 1:
                    retried.add(image, error, Availability.MEMBER_REMOVED)
    assert followed == [False, True]


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
        with pytest.raises(RuntimeError):
            house.endpoints.image_registered({}, image)
    assert os.listdir(house.store._images) == []
    house.images.away = False
    house.upkeep.once()
    assert os.listdir(house.store._images) == [] and house.manager.retried.images() == []


# Answers that overtake each other.

class Questions:
    """Glance whose answers are held back: each is what it was when it was asked for."""

    def __init__(self, house):
        self.asked, self._get = [], house.images.get
        house.images.get = self.get

    def get(self, image_id):
        """As Images.get."""
        answered = threading.Event()
        answer = self._get(image_id)
        self.asked.append(answered)
        assert answered.wait(60)
        return answer


@pytest.fixture
def hears(house):
    """Begins to follow a message, and returns when Glance has been asked."""
    house.images.put(IMAGE)
    house.manager.consider(IMAGE)
    house.settle()
    house.questions, threads = Questions(house), []

    def hears():
        before = len(house.questions.asked)
        threads.append(threading.Thread(target=house.manager.consider, args=[IMAGE]))
        threads[-1].start()
        until(lambda: len(house.questions.asked) > before, 'the question')
        return threads[-1]

    yield hears
    for thread in threads:
        thread.join(60)


def test_many_messages_of_one_image_are_no_more_than_twice_as_many_questions(house, hears):
    """Each answer that another had overtaken was asked for again, by all of them each time."""
    waiting, asked = [hears() for _message in range(10)], house.questions.asked

    def follow():
        return sum(thread.is_alive() for thread in waiting)

    def unanswered():
        return [question for question in asked if not question.is_set()]

    while follow():
        until(lambda: unanswered() or not follow(), 'a question')
        # One at a time, so that it overtakes as many as it can.
        for question in unanswered()[:1]:
            question.set()
            until(lambda: follow() <= len(unanswered()), 'what follows from the answer')
    assert len(asked) <= 20


@pytest.mark.parametrize('last', [True, False])
def test_the_answer_that_was_asked_for_last_counts(house, hears, last):
    """It comes first, or the older one does; then it may be of before, and is asked for again."""
    older = hears()
    house.images.put(IMAGE, mode='off')
    newer = hears()
    first, second = house.questions.asked
    (second if last else first).set()
    (newer if last else older).join(60)
    (first if last else second).set()
    if not last:
        until(lambda: len(house.questions.asked) == 3, 'the question that is asked again')
        house.questions.asked[2].set()
    older.join(60)
    newer.join(60)
    assert house.state(IMAGE) == 'skipped' and len(house.questions.asked) == (2 if last else 3)


def test_a_deletion_that_is_notified_while_glance_is_asked_has_it_asked_again(house, hears):
    """Nobody has asked Glance after it: what it said before may be of before."""
    one = hears()
    house.images.get = house.questions._get
    del house.images.images[IMAGE]
    house.manager.forget(IMAGE)
    house.questions.asked[0].set()
    one.join(60)
    assert house.state(IMAGE) in (None, 'skipped')
