"""Which notifications lead to which work, and what of those that cannot be written."""

import threading

import pytest
from fakes_manager import until
from oslo_messaging import NotificationResult

from bootcache import exception
from bootcache.util.workqueue import WorkQueue
from glance_bootcache.glance import listener
from glance_bootcache.glance.listener import ImageEvents

ONE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'


class Work:
    """What events lead to; looks wait at the gate."""

    def __init__(self):
        self.begun, self.told = [], []
        self.gate = threading.Event()
        self.error = None
        self.queue = WorkQueue(self._look, 2, 'looks', lambda key, error: None)
        self.queue.start()
        self.events = ImageEvents(self.queue.add, self._tell('deleted'),
                                  self._tell('member removed'))

    def _look(self, image_id):
        self.begun.append(image_id)
        # Without a limit: work that ends by itself, as a machine is busy, lets others begin.
        self.gate.wait()

    def _tell(self, what):
        def told(image_id):
            if self.error is not None:
                raise self.error
            self.told.append((what, image_id))
        return told

    def info(self, event, payload):
        return self.events.info({}, 'image.host', event, payload, {})

    def end(self):
        self.gate.set()
        until(self.queue.is_idle, 'the last look')
        self.queue.stop()


@pytest.fixture
def work():
    work = Work()
    yield work
    work.end()


def test_events_of_one_image_that_wait_are_one(work):
    for number in range(2):
        work.info('image.update', {'id': f'other-{number}'})
    until(lambda: len(work.begun) == 2, 'as many looks as there are threads')
    for _number in range(100):
        assert work.info('image.update', {'id': ONE}) is NotificationResult.HANDLED
    work.end()
    assert work.begun.count(ONE) == 1


def test_an_event_that_comes_after_the_look_has_begun_is_followed(work):
    for _number in range(100):
        work.info('image.update', {'id': ONE})
        until(lambda: work.begun, 'the first look')
    work.end()
    assert work.begun == [ONE] * 2


def test_what_an_event_says_beyond_that_is_told(work):
    work.gate.set()
    work.info('image.delete', {'id': ONE})
    work.info('image.member.delete', {'image_id': ONE, 'member_id': 'project'})
    assert work.told == [('deleted', ONE), ('member removed', ONE)]


def test_what_is_said_of_an_id_in_capital_letters_is_of_no_other_image(work):
    assert work.info('image.delete', {'id': ONE.upper()}) is NotificationResult.HANDLED
    assert work.info('image.delete', {'id': ONE}) is NotificationResult.HANDLED
    assert work.told == [('deleted', ONE)]


@pytest.mark.parametrize('event', ['image.delete', 'image.member.delete'])
def test_one_that_cannot_be_written_waits_on_the_bus(work, monkeypatch, caplog, event):
    monkeypatch.setattr(listener, '_AGAIN_SECONDS', 0)
    work.error = exception.DatabaseAway('the database does not answer')
    payload = {'id': ONE, 'image_id': ONE}
    assert {work.info(event, payload) for _again in range(5)} == {NotificationResult.REQUEUE}
    # It is told once.
    (line,) = caplog.messages
    assert f'image {ONE}: {event} cannot be written' in line and str(work.error) in line
    work.error = None
    assert work.info(event, payload) is NotificationResult.HANDLED and len(work.told) == 1


def test_one_that_waits_does_not_keep_the_service_from_ending(work, monkeypatch):
    monkeypatch.setattr(listener, '_AGAIN_SECONDS', 3600)
    work.error = exception.DatabaseAway('the database does not answer')
    answers = []
    threading.Thread(target=lambda: answers.append(work.info('image.delete', {'id': ONE})),
                     daemon=True).start()
    work.events.stop()
    until(lambda: answers == [NotificationResult.REQUEUE], 'the answer')


def test_one_that_can_never_be_followed_is_not_given_again(work, caplog):
    work.error = ValueError('no image has such an id')
    assert work.info('image.delete', {'id': 'x'}) is NotificationResult.HANDLED
    assert 'image x: image.delete could not be followed' in caplog.text
