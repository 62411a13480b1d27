"""Standby copies of bases: which node has one, when it is made, used, and removed."""

import dataclasses
import hashlib
import os
import types
from pathlib import Path

import pytest
from fakes_nodes import CLONE, IMAGE, OTHER, RULES, glance_file

from bootcache import savefile
from bootcache.exception import DatabaseAway
from bootcache.manifest import Availability, Standing
from bootcache.rpc.messages import NodeWish
from glance_bootcache.imagefacts import ImageFacts
from glance_bootcache.nodes.homes import keeper
from glance_bootcache.nodes.membership import OUT_SECONDS, Node, NodeRecord, NodeState
from glance_bootcache.nodes.standbys import Standbys, chosen
from glance_bootcache.storage.nodefiles import FileKind, Standby, standby_suffix

CONTENT = b'base' * 1000
HASH = f'sha512:{hashlib.sha512(CONTENT).hexdigest()}'
NEEDED, DAY, AGAIN = 600.0, 86400.0, 300.0


class Glance:
    """As glance.images.Images; an image that is not in ``contents`` is missing."""

    def __init__(self):
        self.contents, self.downloads = {IMAGE: CONTENT}, 0

    def get(self, image_id):
        content = self.contents.get(image_id)
        return None if content is None else ImageFacts(
            image_id, 'active', 'raw', 'bare', len(content),
            f'sha512:{hashlib.sha512(content).hexdigest()}', 0, 0, {})

    def download(self, image_id):
        self.downloads += 1
        yield self.contents[image_id]


@pytest.fixture
def world(cloud, numbers):
    """An image of the first node that a host needs, and each node's standby copies; the third node
    has most room."""
    made = types.SimpleNamespace(cloud=cloud, glance=Glance(), needed={IMAGE}, now=2e9)
    needs = types.SimpleNamespace(
        hosts=lambda image_id: ['host'] if image_id in made.needed else [])
    for number in numbers:
        cloud.change(number, free_bytes=1_000_000 * number)
    made.one, made.two, made.three = numbers
    made.each = {number: Standbys(cloud.stores[number], made.glance, cloud.homes[number],
                                  cloud.members[number], needs, cloud.clock, lambda: made.now)
                 for number in numbers}
    for number in numbers:
        cloud.stores[number].files._clock = lambda: made.now

    def look(seconds=0.0, *silent):
        made.now += seconds
        cloud.pass_by(seconds, *silent)
        cloud.refresh()
        for number in numbers:
            if number not in silent:
                made.each[number].once()

    def copies():
        return {node.node_id: node for node in
                cloud.stores[made.two].files.standbys().get(IMAGE, [])}

    made.look, made.copies = look, copies
    name = cloud.stores[made.one].begin_file(IMAGE, FileKind.BASE, '.img')
    made.path = cloud.stores[made.one].path(IMAGE, name)
    with open(made.path, 'wb') as stream:
        stream.write(CONTENT)
    cloud.put(made.one, base_path=made.path, base_hash=HASH, look_rules=RULES,
              stored_bytes=len(CONTENT), base_file=savefile.signature(made.path))
    cloud.refresh()
    return made


def node(number, free=100, state=NodeState.UP, wish=None):
    return Node(NodeRecord(number, str(number), 1, free_bytes=free, wish=wish), state, 0.0)


@pytest.mark.parametrize(('nodes', 'number'), [
    ([node(1), node(2), node(3, 200)], 3), ([node(1, 900), node(2), node(3)], 2),
    ([node(1), node(2, 99)], None), ([node(1)], None), ([], None),
    ([node(1), node(2), node(3, 200, NodeState.AWAY)], 2),
    ([node(1), node(2), node(3, 200, wish=NodeWish.DRAINED)], 2)], ids=str)
def test_the_node_with_most_room_has_it(nodes, number):
    assert chosen(nodes, 1, 50) == number


@pytest.mark.parametrize(('nodes', 'number'), [
    ([node(2), node(3)], 2), ([node(2, state=NodeState.AWAY), node(3)], 3), ([node(4)], None),
    ([node(2, wish=NodeWish.FORGOTTEN)], None)], ids=str)
def test_of_two_copies_the_first_node_s_counts_that_works(world, nodes, number):
    record = world.cloud.stores[world.one].load(IMAGE)
    name = f'standby-x{standby_suffix(HASH)}'
    copies = [Standby(2, name, 0.0), Standby(3, name, 0.0),
              Standby(4, f'standby-x{standby_suffix("sha512:00")}', 0.0)]
    assert keeper(copies, record, nodes) == number


def test_a_base_that_is_needed_for_long_is_copied_by_one_node(world):
    world.look()
    world.look(NEEDED - 10)
    assert world.copies() == {} and world.each[world.one].missing == 1
    world.look(10)
    copy, = world.copies().values()
    assert copy.node_id == world.three
    path = world.cloud.stores[world.three].path(IMAGE, copy.name)
    assert Path(path).read_bytes() == CONTENT and world.glance.downloads == 1
    world.look(NEEDED)
    assert [number for number in world.each if world.each[number].missing] == []
    assert world.glance.downloads == 1 and os.path.exists(path)
    # No row names it, and it is given up by nobody else.
    world.cloud.stores[world.three].files.retire(IMAGE)
    world.cloud.stores[world.three].retire_left()
    world.look()
    assert os.path.exists(path)


def test_what_all_nodes_read_is_not_copied(world):
    store = world.cloud.stores[world.one]
    store.files.begin(IMAGE, FileKind.CLONE, CLONE)
    store.change(IMAGE, lambda known: known.making(base_path=CLONE))
    world.look()
    world.look(NEEDED)
    assert world.copies() == {} and world.each[world.one].missing == 0
    shared = glance_file(world.cloud, world.three)
    store.change(IMAGE, lambda known: known.making(
        base_path=shared, base_file=savefile.signature(shared)))
    world.look()
    world.look(NEEDED)
    assert world.copies() == {}


@pytest.mark.parametrize('change', [
    lambda world: world.needed.clear(),
    lambda world: world.glance.contents.clear(),
    lambda world: world.glance.contents.update({IMAGE: b'another one'}),
    lambda world: world.cloud.stores[world.one].change(
        IMAGE, lambda known: known.wishing(availability=Availability.DEACTIVATED)),
    lambda world: [world.cloud.change(number, free_bytes=len(CONTENT)) for number in world.each],
    lambda world: world.cloud.members[world.three].forget_clocks()],
    ids=['nobody needs it', 'it is gone', 'it is another one', 'it is not given out', 'no room',
         'this node judges nobody'])
def test_what_cannot_or_need_not_be_copied_is_not(world, change):
    world.look()
    world.cloud.pass_by(NEEDED)
    change(world)
    world.cloud.refresh()
    for number in world.each:
        world.each[number].once()
    assert world.copies() == {} and world.cloud.on_disk(world.three) == []
    assert not any(name.startswith('standby') for name in world.cloud.files())


def test_a_download_that_fails_is_tried_again_after_a_pause(world, caplog):
    world.look()
    world.glance.contents[IMAGE], right = CONTENT + b'x', CONTENT
    facts = world.glance.get
    world.glance.get = lambda image_id: dataclasses.replace(
        facts(image_id), image_hash=HASH, stored_bytes=len(CONTENT))
    world.look(NEEDED)
    assert world.copies() == {} and world.glance.downloads == 1
    assert world.cloud.on_disk(world.three) == []
    world.glance.contents[IMAGE] = right
    world.look(AGAIN - 10)
    assert world.glance.downloads == 1
    world.look(10)
    assert list(world.copies()) == [world.three]


def test_when_the_service_ends_nothing_is_left_of_a_copy(world):
    world.look()

    def download(image_id):
        yield CONTENT[:10]
        world.each[world.three]._stopping.set()
        yield CONTENT[10:]

    world.glance.download = download
    world.look(NEEDED)
    assert world.copies() == {} and world.cloud.on_disk(world.three) == []


@pytest.fixture
def copied(world):
    world.look()
    world.look(NEEDED)
    world.copy = world.copies()[world.three]
    world.copy_path = world.cloud.stores[world.three].path(IMAGE, world.copy.name)
    return world


def test_the_node_with_the_copy_takes_the_image_over(copied):
    cloud, three = copied.cloud, copied.three
    copied.look(25, copied.one)
    # Whoever is asked has that one do it.
    assert cloud.homes[copied.two].route(IMAGE) == 'c'
    assert cloud.stores[three].home(IMAGE) == copied.one
    assert cloud.homes[three].route(IMAGE) is None
    taken = cloud.stores[three].load(IMAGE)
    assert taken.made.base_path == copied.copy_path
    assert taken.made.base_file == savefile.signature(copied.copy_path)
    assert taken.standing is Standing.DONE
    assert copied.copies() == {}
    copied.look(NEEDED, copied.one)
    assert cloud.files()[copied.copy.name] == (three, 'ready')
    assert os.path.exists(copied.copy_path)
    # As its start, and as what an image that came back does.
    cloud.stores[three].retire_unnamed(IMAGE, cloud.stores[three].files.by_image()[IMAGE])
    cloud.stores[three].retire_left()
    assert os.path.exists(copied.copy_path)


def test_while_that_node_is_away_as_well_another_one_does(copied):
    copied.look(25, copied.one, copied.three)
    assert copied.cloud.homes[copied.two].route(IMAGE) is None
    assert copied.cloud.stores[copied.two].load(IMAGE).made.base_path == ''


def test_another_copy_is_made_when_its_node_is_out(copied):
    copied.look(25, copied.three)
    assert list(copied.copies()) == [copied.three] and copied.each[copied.one].missing == 0
    copied.look(OUT_SECONDS, copied.three)
    assert sorted(copied.copies()) == [copied.two, copied.three]


def test_images_that_nobody_asks_for_go_to_the_nodes_with_copies(copied):
    cloud = copied.cloud
    cloud.with_base(copied.one, OTHER)
    cloud.change(copied.one, wish=NodeWish.DRAINED)
    copied.look()
    assert cloud.homes[copied.three].due()[0] == (IMAGE, copied.one)
    due = [image for number in copied.each for image, _home in cloud.homes[number].due()]
    assert sorted(due) == [IMAGE, OTHER]


@pytest.mark.parametrize('change', [
    lambda copied: copied.cloud.stores[copied.one].change(
        IMAGE, lambda known: known.making(base_hash='sha512:00')),
    lambda copied: copied.cloud.change(copied.three, wish=NodeWish.DRAINED),
    lambda copied: copied.cloud.stores[copied.one].remove(IMAGE)],
    ids=['another content', 'drained', 'deleted'])
def test_a_copy_that_is_of_no_use_is_removed(copied, change):
    change(copied)
    copied.glance.contents.clear()
    copied.look()
    assert copied.copies() == {} and not os.path.exists(copied.copy_path)


def test_a_copy_stays_for_a_day_when_no_host_needs_it(copied):
    copied.needed.clear()
    copied.look(DAY - 2 * NEEDED)
    assert os.path.exists(copied.copy_path)
    copied.look(2 * NEEDED)
    assert copied.copies() == {} and not os.path.exists(copied.copy_path)


def test_of_two_copies_the_second_is_removed(copied):
    store = copied.cloud.stores[copied.two]
    name = store.begin_file(IMAGE, FileKind.STANDBY, standby_suffix(HASH))
    store.files.change(IMAGE, ready=[name])
    copied.look()
    assert list(copied.copies()) == [copied.two] and not os.path.exists(copied.copy_path)


def test_while_the_database_is_away_nothing_is_done(copied, monkeypatch):
    def away(work):
        raise DatabaseAway('it does not answer')

    monkeypatch.setattr(copied.cloud.database, 'read', away)
    with pytest.raises(DatabaseAway):
        copied.each[copied.three].once()
    assert os.path.exists(copied.copy_path)


def test_a_copy_whose_file_is_lost_is_no_base(copied):
    os.unlink(copied.copy_path)
    copied.look(OUT_SECONDS, copied.one)
    assert copied.cloud.homes[copied.three].route(IMAGE) is None
    assert copied.cloud.stores[copied.three].load(IMAGE).made.base_path == ''
