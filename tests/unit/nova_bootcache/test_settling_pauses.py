"""Settling: servers that cannot be settled cost nobody else anything."""

import pytest
from fakes_settling import Move, fullbase, settled
from fakes_settling import house as house  # the fixture
from fakes_settling import settler as settler  # the fixture

from nova_bootcache.settling.pivotstate import PivotRefused

HOUR = 3600


@pytest.mark.parametrize('state', ['suspended', 'rescued', 'error', 'resized'])
def test_nova_is_seldom_asked_for_a_server_that_waits_for_somebody(house, settler, monkeypatch,
                                                                   state):
    """Its conductor has others to answer: it was asked each 10 s, for good."""
    house.boots('one', settles=False, state=state)
    servers, asked = house.servers, []
    monkeypatch.setattr(house, 'servers', lambda: asked.append(1) or servers())
    for _round in range(HOUR // 10):
        settler.look()
        house.clock.now += 10
    assert len(asked) <= HOUR // 60


def test_one_that_can_never_be_moved_delays_no_other_of_its_image(house, settler, monkeypatch):
    """Somebody else's block job, for instance. Others waited for up to six hours."""
    begin = Move.begin

    def refuse(move):
        if move._server_id == 'bad':
            raise PivotRefused('another block job runs')
        begin(move)

    monkeypatch.setattr(Move, 'begin', refuse)
    open(house.base(), 'w').close()
    fullbase.note(house.base(), 'sha512:ab')
    house.boots('bad')
    for _round in range(24 * HOUR // 10):
        settler.look()
        house.clock.now += 10
    house.boots('other')
    for _round in range(3):
        settler.look()
        house.clock.now += 10
    assert settled(house) == ['other']
