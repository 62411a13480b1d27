"""Settling: what a crash left half done."""

import dataclasses
import json
import os

import pytest
from fakes_settling import DELAY, IMAGE, OTHER, Domain, settled
from fakes_settling import house as house  # the fixture
from fakes_settling import settler as settler  # the fixture

from bootcache import naming
from nova_bootcache.settling import pivot, serversbases
from nova_bootcache.settling import settler as settler_module
from nova_bootcache.settling.pivotstate import PivotConflict
from nova_bootcache.settling.settler import Settler

# After a crash.

@pytest.fixture
def left(house, monkeypatch):
    """Notes which directories are mended, with which domain; a marker is an empty file."""
    mended = []
    monkeypatch.setattr(settler_module.pivot, 'recover',
                        lambda directory, domain: mended.append((directory, domain)))

    def leave(name):
        directory = os.path.join(os.path.dirname(house.base_directory), name)
        os.makedirs(directory, exist_ok=True)
        open(os.path.join(directory, pivot.MARKER), 'w').close()
        return directory

    leave.mended = mended
    return leave


def test_what_a_crash_left_half_done_is_ended(house, settler, left):
    house.boots('untouched')
    house.boots('running')
    places = left('gone'), left('resized_resize'), left('running')
    house.domains['resized'] = Domain(False)
    settler.recover()
    assert left.mended == list(zip(places, [None, house.domains['resized'],
                                            house.domains['running']], strict=True))


def test_what_could_not_be_ended_is_ended_later_and_not_while_nova_is_at_work(house, settler,
                                                                              left, monkeypatch):
    """Whatever Nova's database says of a server, or whether it says anything: a guest may wait."""
    house.boots('one', age=0)
    house.boots('error', settles=False)
    house.boots('held', age=0)
    places = left('error'), left('one')
    monkeypatch.setattr(house, 'servers', lambda: 1 / 0)
    with settler.held('held'):
        left('held')
        with pytest.raises(ZeroDivisionError):
            settler.once()
    assert left.mended == [(place, house.domains[os.path.basename(place)]) for place in places]
    assert house.done('lock') == ['error', 'one'] and house.locked == []


def test_a_move_that_is_under_way_is_not_taken_for_one_that_was_left(house, settler, left):
    house.boots('one')
    house.then['wait'] = lambda: (left('one'), settler.once())
    settler.once()
    assert left.mended == []


def test_one_that_cannot_be_ended_hides_no_other(house, settler, left, monkeypatch, caplog):
    places = left('one'), left('two')

    def recover(directory, domain):
        left.mended.append(directory)
        raise PivotConflict('which one is valid cannot be told')

    monkeypatch.setattr(settler_module.pivot, 'recover', recover)
    settler.recover()
    assert left.mended == list(places) and caplog.text.count('cannot be ended') == 2
    for _round in range(360):
        settler.look()
        house.clock.now += 10
    assert 2 * 6 < len(left.mended) < 2 * 20, 'an operator has to see to it'


def test_one_whose_lock_nova_has_hides_no_other(house, settler, left):
    """Nova may have it for as long as libvirt hangs."""
    for server in 'one', 'two':
        house.boots(server)
    places = left('one'), left('two')
    house.nova_has.add('one')
    settler.look()
    assert set(left.mended) == {(places[1], house.domains['two'])} and settled(house) == ['two']
    house.nova_has.clear()
    settler.look()
    assert (places[0], house.domains['one']) in left.mended and 'one' in settled(house)


def test_half_made_bases_are_removed(house, settler):
    for name in ('a.bootcache', 'a.bootcache.raw', naming.cache_file_name(IMAGE)):
        open(os.path.join(house.base_directory, name), 'w').close()
    settler.recover()
    assert os.listdir(house.base_directory) == [naming.cache_file_name(IMAGE)]


@pytest.fixture
def half_copied(house):
    """Leaves a part of a base of an image, as an interrupted copy does; tells whether it stays."""
    def make(image_id=IMAGE):
        path = f'{house.base(image_id)}.bootcache'
        with open(path, 'wb') as stream:
            stream.write(bytes(512))
        with open(f'{path}.json', 'w') as stream:
            json.dump({'version': 1, 'image_hash': 'sha512:ab', 'total_bytes': 5000,
                       'done_bytes': 512}, stream)
        return lambda: os.path.exists(path) and os.path.exists(f'{path}.json')

    return make


def test_what_was_copied_of_a_base_stays_until_it_is_known_who_needs_it(house, settler,
                                                                        half_copied):
    wanted, unwanted = half_copied(), half_copied(OTHER)
    settler.recover()
    assert wanted() and unwanted()
    # It is not old enough to be settled yet.
    house.boots('one', age=0)
    settler.once()
    assert wanted() and not unwanted()
    house.known.pop('one')
    settler.once()
    assert not wanted()


def test_what_was_copied_goes_if_the_image_is_not_to_be_settled(house, settler, half_copied,
                                                                monkeypatch):
    stays = half_copied()
    serve_stored = house.serve_stored
    monkeypatch.setattr(house, 'serve_stored',
                        lambda image_id: dataclasses.replace(serve_stored(image_id),
                                                             settle=False))
    house.boots('one')
    settler.once()
    assert stays(), 'until the storage service was asked'
    settler.once()
    assert not stays()


def test_where_nothing_is_settled_nothing_copied_stays(house, half_copied):
    stays = half_copied()
    house.boots('one')
    Settler(house, house, 0, DELAY).once()
    assert not stays()


def test_what_was_copied_goes_where_space_is_short(house, settler, half_copied):
    stays = half_copied()
    house.boots('one', age=0)
    house.keep_free = 1 << 60
    settler.once()
    assert not stays()


def test_what_cannot_be_removed_ends_nothing(house, settler, half_copied, monkeypatch, caplog):
    half_copied(OTHER)

    def unlink(path):
        raise PermissionError(path)

    house.boots('one')
    with monkeypatch.context() as patch:
        patch.setattr(serversbases.fullbase.os, 'unlink', unlink)
        settler.once()
    assert 'cannot be removed' in caplog.text and settled(house) == ['one']


def test_nothing_was_left(house, settler, left):
    house.boots('one')
    os.rmdir(house.base_directory)
    settler.recover()
    assert left.mended == [] and house.backing('one') == house.path(IMAGE)
