"""Which notifications lead to which work, and when none of them arrives."""

import threading

import pytest
from fakes_manager import until

from glance_bootcache.glance import listener
from glance_bootcache.glance.listener import ImageEvents

ONE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'


class Work:
    """What events lead to; it waits at the gate."""

    def __init__(self):
        self.begun, self.done = [], []
        self.gate = threading.Event()
        self.events = ImageEvents(self.consider, self.forget, self.let_go)
        self.threads = []

    def _do(self, what, image_id):
        self.begun.append((what, image_id))
        # Without a limit: work that ends by itself, as a machine is busy, lets others begin.
        self.gate.wait()
        self.done.append((what, image_id))

    def consider(self, image_id):
        self._do('consider', image_id)

    def forget(self, image_id):
        self._do('forget', image_id)

    def let_go(self, image_id):
        self._do('let_go', image_id)

    def tell(self, event, payload):
        """Take an event in a thread of its own, as oslo.messaging does."""
        self.threads.append(threading.Thread(
            target=self.events.info, args=({}, 'image.host', event, payload, {}),
            daemon=True))
        self.threads[-1].start()
        return self.threads[-1]

    def end(self):
        self.gate.set()
        for thread in self.threads:
            thread.join()


@pytest.fixture
def work():
    work = Work()
    yield work
    work.end()


def occupy(work):
    """Let as much be under way as may be at a time."""
    for number in range(listener._AT_ONCE):
        work.tell('image.update', {'id': f'other-{number}'})
    until(lambda: len(work.begun) == listener._AT_ONCE)


def test_events_of_one_image_that_wait_are_one(work):
    occupy(work)
    first = work.tell('image.update', {'id': ONE})
    until(lambda: work.events.waits_for(ONE))
    for _number in range(100):
        # These do not wait: what they ask for is going to be done.
        work.tell('image.update', {'id': ONE}).join()
    assert first.is_alive()
    work.end()
    assert work.done.count(('consider', ONE)) == 1


def test_an_event_that_comes_after_the_look_has_begun_is_followed(work):
    work.tell('image.update', {'id': ONE})
    until(lambda: work.begun == [('consider', ONE)])
    work.tell('image.update', {'id': ONE})
    until(lambda: len(work.begun) == 2)
    work.end()
    assert work.done == [('consider', ONE)] * 2


def test_an_image_that_was_deleted_is_not_looked_at_before(work):
    occupy(work)
    work.tell('image.update', {'id': ONE})
    until(lambda: work.events.waits_for(ONE))
    work.tell('image.delete', {'id': ONE})
    until(lambda: len(work.events._waiting[ONE]) == 2)
    work.end()
    assert ('forget', ONE) in work.done and ('consider', ONE) not in work.done
    assert not work.events._waiting


def test_a_members_end_is_followed_besides(work):
    occupy(work)
    work.tell('image.update', {'id': ONE})
    work.tell('image.member.delete', {'image_id': ONE, 'member_id': 'project'})
    until(lambda: len(work.events._waiting.get(ONE, ())) == 2)
    work.end()
    assert {('consider', ONE), ('let_go', ONE)} <= set(work.done)
