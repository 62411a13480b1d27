"""Snapshots of many servers: the order of what is asked, and what a run leaves that ends midway."""

import copy
import types

import pytest
from fakes_deployment import FakeCloud, refused, server

from glance_bootcache.deployment import choice, snapshotting
from glance_bootcache.deployment.checkpoint import Checkpoint, Status
from glance_bootcache.deployment.cloud import DeploymentLimits
from glance_bootcache.deployment.snapshotting import Snapshotting

IDS = ('a', 'b', 'c')


class Ended(BaseException):
    """The process is killed here."""


@pytest.fixture
def house(monkeypatch):
    """A checkpoint of three servers; ``files`` are its files, one after the other."""
    house = types.SimpleNamespace(cloud=FakeCloud(*IDS), files=[], lines=[], now=0.0)

    def sleep(seconds):
        house.now += seconds
    monkeypatch.setattr(snapshotting, 'time', types.SimpleNamespace(
        sleep=sleep, monotonic=lambda: house.now))
    house.made = Checkpoint('1' * 32, 'then', True, [
        choice.keep(server(one, one), (), '1' * 32) for one in IDS])
    progress = types.SimpleNamespace(show=lambda *_all: None, bar=lambda *_all: None,
                                     line=lambda text, **_all: house.lines.append(text))

    def taking():
        return Snapshotting(house.cloud, house.made,
                            lambda: house.files.append(copy.deepcopy(house.made)), progress,
                            DeploymentLimits(4, 3, 3600))
    house.taking = taking
    house.calls = lambda name: [one for what, one in house.cloud.calls if what == name]
    house.states = lambda: [saved.status for saved in house.made.servers]
    return house


def test_all_stand_still_before_the_first_snapshot_and_go_on_after_it(house):
    house.taking().run()
    kinds = [what for what, _server in house.cloud.calls]
    assert kinds == ['pause'] * 3 + ['snapshot'] * 3 + ['unpause'] * 3
    assert house.states() == [Status.SAVED] * 3
    assert set(house.cloud.status.values()) == {'ACTIVE'}
    assert not any(saved.paused for saved in house.files[-1].servers)


def test_without_pause_all_are_asked_for_at_once(house):
    house.made.pause = False
    house.taking().run()
    assert [what for what, _server in house.cloud.calls] == ['snapshot'] * 3
    assert house.states() == [Status.SAVED] * 3


def test_servers_that_stand_anyway_are_left_as_they_are(house):
    house.cloud.status.update(a='SHUTOFF', b='PAUSED')
    house.taking().run()
    assert house.calls('pause') == house.calls('unpause') == ['c']
    assert house.cloud.status == {'a': 'SHUTOFF', 'b': 'PAUSED', 'c': 'ACTIVE'}


@pytest.mark.parametrize('ask, told', [
    ('pause', lambda saved: saved.paused), ('snapshot', lambda saved: saved.status == 'asked')])
def test_the_file_says_it_before_nova_is_asked(house, ask, told):
    seen = []
    plain = getattr(house.cloud, ask)

    def asked(server, *more):
        seen.append(all(told(saved) for saved in house.files[-1].servers))
        return plain(server, *more)
    setattr(house.cloud, ask, asked)
    house.taking().run()
    assert seen == [True] * 3


def test_whoever_goes_on_after_a_kill_asks_for_no_second_snapshot_and_unpauses(house, monkeypatch):
    taking = house.taking()
    # Killed when Nova has taken all three, and no answer is in the file.
    monkeypatch.setattr(taking, '_asked', lambda *_all: (_ for _ in ()).throw(Ended()))
    monkeypatch.setattr(taking, 'release', lambda: None)
    with pytest.raises(Ended):
        taking.run()
    house.made = copy.deepcopy(house.files[-1])
    assert all(saved.paused and not saved.image_id for saved in house.made.servers)
    house.taking().run()
    assert sorted(house.calls('snapshot')) == list(IDS)
    assert len({saved.image_id for saved in house.made.servers}) == 3
    assert house.states() == [Status.SAVED] * 3
    assert set(house.cloud.status.values()) == {'ACTIVE'}


@pytest.mark.parametrize('at', range(1, 12))
def test_whenever_it_is_interrupted_all_go_on(house, at):
    count = iter(range(1, 1000))

    def looked(_server):
        if next(count) == at:
            raise KeyboardInterrupt
    house.cloud.looked = looked
    with pytest.raises(KeyboardInterrupt):
        house.taking().run()
    assert not house.taking().paused()
    assert set(house.cloud.status.values()) == {'ACTIVE'}


def test_a_snapshot_that_comes_to_nothing_is_taken_again_while_it_stands(house):
    house.cloud.broken['b'] = 1
    house.taking().run()
    assert house.states() == [Status.SAVED] * 3 and house.calls('snapshot').count('b') == 2
    assert house.calls('pause').count('b') == 1
    assert any('attempt 1' in line and 'nova-compute on compute1' in line for line in house.lines)


def test_one_that_never_comes_fails_and_the_others_do_not(house):
    house.cloud.broken['b'] = 99
    house.taking().run()
    assert house.states() == [Status.SAVED, Status.FAILED, Status.SAVED]
    assert house.calls('snapshot').count('b') == 3
    assert house.cloud.status['b'] == 'ACTIVE'


def test_what_nova_refuses_for_good_is_not_asked_again(house):
    house.cloud.refuses['snapshot', 'a'] = [refused(413, passes=False)]
    house.cloud.refuses['snapshot', 'b'] = [refused()]
    house.taking().run()
    assert house.states() == [Status.FAILED, Status.SAVED, Status.SAVED]
    assert house.calls('snapshot').count('a') == 1 and house.calls('snapshot').count('b') == 2


def test_a_server_that_is_deleted_meanwhile_fails(house):
    del house.cloud.status['c']
    house.taking().run()
    assert house.states() == [Status.SAVED, Status.SAVED, Status.FAILED]
    assert house.made.servers[2].reason == 'the server is deleted'


def test_when_time_is_out_servers_go_on_and_the_file_can_be_gone_on_with(house, monkeypatch):
    plain = house.cloud.see

    def see(server, image):
        seen = plain(server, image)
        return type(seen)(seen.status, seen.task, 'saving') if image and server == 'a' else seen
    monkeypatch.setattr(house.cloud, 'see', see)
    house.taking().run()
    assert house.states() == [Status.ASKED, Status.SAVED, Status.SAVED]
    assert '--continue' in house.made.servers[0].reason
    assert set(house.cloud.status.values()) == {'ACTIVE'}
