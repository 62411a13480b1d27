"""A base that no server wants any more is not completed; the house is fakes_settling.py's."""

import contextlib

import pytest
from fakes_settling import BANDWIDTH, DELAY, IMAGE, OTHER, settled
from fakes_settling import house as house  # the fixture

from bootcache import exception
from nova_bootcache.settling import serversbases
from nova_bootcache.settling import settler as settler_module
from nova_bootcache.settling.settler import Settler


@pytest.fixture
def settler(house):
    return Settler(house, house, BANDWIDTH, DELAY)


@pytest.fixture
def copying(house, settler, monkeypatch):
    """Makes the completion of a base take a minute; things happen at given seconds of it.

    Meanwhile the settler's other thread looks, as it does. Gives the seconds at which the work was
    given up.
    """
    given_up, asked = [], []
    servers = house.servers
    monkeypatch.setattr(house, 'servers', lambda: (asked.append(1), servers())[1])

    def make(events):
        def complete(source, *_arguments, cancelled, **_how):
            asked.clear()
            settler._copies = True
            for second in range(60):
                events.get(second, lambda: None)()
                if second % settler_module._PERIOD_SECONDS == 0:
                    with contextlib.suppress(RuntimeError):
                        settler.look(lambda: None)
                if cancelled.is_set():
                    given_up.append((source['export'], second))
                    raise exception.Cancelled('told so')
                house.clock.now += 1
            house.happens('complete', source['export'])
            open(house.base(source['export'].removeprefix('stored-')), 'w').close()
            return True

        monkeypatch.setattr(serversbases.fullbase, 'complete', complete)
        return given_up

    make.asked = asked
    return make


def goes(house, settler, server_id='one'):
    """A server is deleted."""
    with settler.held(server_id):
        house.known.pop(server_id, None)


def is_rebuilt(house, settler):
    with settler.held('one'):
        house.boots('one', OTHER, age=0)


@pytest.mark.parametrize('leave', [goes, is_rebuilt])
def test_the_last_server_of_an_image_is_gone(house, settler, copying, leave):
    house.boots('one')
    given_up = copying({5: lambda: leave(house, settler)})
    settler.once()
    (export, second), = given_up
    assert export == f'stored-{IMAGE}' and 5 < second <= 5 + settler_module._PERIOD_SECONDS
    assert house.done('complete') == [] and house.done('begin') == []


def test_another_server_still_wants_it(house, settler, copying):
    house.boots('one')
    house.boots('two', age=0)
    given_up = copying({5: lambda: goes(house, settler)})
    settler.once()
    assert given_up == [] and house.done('complete') == [f'stored-{IMAGE}']
    house.boots('two')
    settler.once()
    assert settled(house) == ['two']


def test_nova_is_not_asked_while_nothing_changes(house, settler, copying):
    house.boots('one')
    copying({})
    settler.once()
    assert len(copying.asked) <= 1, 'by the first look, whenever that is'
    assert settled(house) == ['one']


def test_that_nova_does_not_answer_ends_nothing(house, settler, copying, monkeypatch):
    house.boots('one')
    servers = house.servers

    def away():
        raise RuntimeError('no conductor')

    def goes_away():
        monkeypatch.setattr(house, 'servers', away)
        with settler.held('one'):
            pass

    given_up = copying({5: goes_away,
                        50: lambda: monkeypatch.setattr(house, 'servers', servers)})
    settler.once()
    assert given_up == [] and settled(house) == ['one']


def test_a_base_that_is_wanted_again_is_begun_at_once(house, settler, copying, caplog):
    house.boots('one')
    copying({5: lambda: goes(house, settler)})
    settler.once()
    assert 'not settled' not in caplog.text, 'nothing is wrong with it'
    copying({})
    house.boots('two')
    settler.once()
    assert settled(house) == ['two']


def test_other_images_go_on(house, settler, copying):
    house.boots('one')
    house.boots('two', OTHER)
    first, second = sorted([(IMAGE, 'one'), (OTHER, 'two')])

    given_up = copying({5: lambda: goes(house, settler, first[1])})
    settler.once()
    assert [export for export, _second in given_up] == [f'stored-{first[0]}']
    assert house.done('complete') == [f'stored-{second[0]}'] and settled(house) == [second[1]]


def test_stopping_is_seen_at_once(house, settler, copying):
    house.boots('one')
    given_up = copying({5: settler.stop})
    settler.once()
    assert given_up == [(f'stored-{IMAGE}', 5)]
