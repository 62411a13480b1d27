"""Standby copies of bases: which node has one, when it is made, used, and removed."""

import dataclasses
import hashlib
import os
import types
from pathlib import Path

import pytest
from fakes_nodes import CLONE, IMAGE, MANY, OTHER, RULES, glance_file

from bootcache import savefile
from bootcache.exception import DatabaseAway
from bootcache.manifest import Availability, Made, Manifest, Standing
from bootcache.reasons import Cause, Reason
from bootcache.rpc.messages import NodeWish
from glance_bootcache.imagefacts import ImageFacts
from glance_bootcache.images import policy
from glance_bootcache.nodes.homes import NodeAway, keeper
from glance_bootcache.nodes.membership import OUT_SECONDS, Node, NodeRecord, NodeState
from glance_bootcache.nodes.standbys import Standbys, chosen, is_missing
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
        cloud.change(number, free_bytes=1_000_000 * number, look_rules=RULES)
    made.disk = 100, 90
    made.one, made.two, made.three = numbers
    made.each = {number: Standbys(cloud.stores[number], made.glance, cloud.homes[number],
                                  cloud.members[number], needs, cloud.clock, lambda: made.now,
                                  lambda: tuple(part * 1_000_000 for part in made.disk))
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
                cloud.stores[made.two].files.standbys().get(IMAGE, []) if node.is_whole}

    made.look, made.copies = look, copies
    name = cloud.stores[made.one].begin_file(IMAGE, FileKind.BASE, '.img')
    made.path = cloud.stores[made.one].path(IMAGE, name)
    with open(made.path, 'wb') as stream:
        stream.write(CONTENT)
    cloud.put(made.one, base_path=made.path, base_hash=HASH, look_rules=RULES,
              stored_bytes=len(CONTENT), base_file=savefile.signature(made.path))
    cloud.refresh()
    return made


def node(number, free=100, state=NodeState.UP, wish=None, rules=RULES):
    return Node(NodeRecord(number, str(number), 1, free_bytes=free, wish=wish, look_rules=rules),
                state, 0.0)


LARGE = Manifest(IMAGE, made=Made(base_path='x', base_hash=HASH, stored_bytes=50,
                                  look_rules=RULES))


@pytest.mark.parametrize(('nodes', 'number'), [
    ([node(1), node(2), node(3, 200)], 3), ([node(1, 900), node(2), node(3)], 2),
    ([node(1), node(2, 49)], None), ([node(1)], None), ([], None),
    ([node(1), node(2), node(3, 200, NodeState.AWAY)], 2),
    ([node(1), node(2), node(3, 200, wish=NodeWish.DRAINED)], 2),
    ([node(1), node(2), node(3, 200, rules=RULES - 1)], 2)], ids=str)
def test_the_node_with_most_room_has_it(nodes, number):
    assert chosen(nodes, 1, LARGE) == number


@pytest.mark.parametrize(('nodes', 'number'), [
    ([node(2), node(3)], 2), ([node(2, state=NodeState.AWAY), node(3)], 3), ([node(4)], None),
    ([node(2, wish=NodeWish.FORGOTTEN)], None), ([node(2, rules=RULES - 1), node(3)], 3),
    ([node(1), node(5)], None)], ids=str)
def test_of_two_copies_the_first_node_s_counts_that_works(nodes, number):
    name = f'standby-x{standby_suffix(HASH)}'
    copies = [Standby(1, name, 0.0), Standby(2, name, 0.0), Standby(3, name, 0.0),
              Standby(4, f'standby-x{standby_suffix("sha512:00")}', 0.0),
              Standby(5, name, 0.0, is_whole=False)]
    assert keeper(copies, LARGE, 1, nodes) == number


@pytest.mark.parametrize(('nodes', 'missing'), [
    ([node(2)], False), ([node(2, state=NodeState.AWAY)], False),
    ([node(2, state=NodeState.OUT)], True), ([node(2, wish=NodeWish.DRAINED)], True),
    ([node(1), node(4)], True), ([node(5)], False)], ids=str)
def test_a_copy_that_comes_back_or_is_being_made_is_not_missing(nodes, missing):
    name = f'standby-x{standby_suffix(HASH)}'
    copies = [Standby(1, name, 0.0), Standby(2, name, 0.0),
              Standby(4, f'standby-x{standby_suffix("sha512:00")}', 0.0),
              Standby(5, name, 0.0, is_whole=False)]
    assert is_missing(copies, LARGE, 1, nodes) is missing


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
    assert world.cloud.stores[world.three].files.by_image() == {}
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
    lambda world: [world.cloud.change(number, free_bytes=len(CONTENT) - 1)
                   for number in world.each],
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
    cloud.stores[three].give_up(IMAGE, cloud.stores[three].files.by_image()[IMAGE],
                                cloud.stores[three].anywhere(IMAGE))
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
    # As each node's upkeep does.
    copied.cloud.stores[copied.three].remove_retired()
    assert copied.copies() == {} and not os.path.exists(copied.copy_path)


def test_the_copy_of_a_drained_node_stays_while_the_home_is_away(copied):
    copied.cloud.change(copied.three, wish=NodeWish.DRAINED)
    copied.glance.contents.clear()
    copied.cloud.pass_by(25, copied.one)
    copied.each[copied.three].once()
    assert os.path.exists(copied.copy_path)
    copied.look(5)
    assert not os.path.exists(copied.copy_path)


def test_a_copy_stays_for_a_day_when_no_host_needs_it(copied):
    copied.needed.clear()
    copied.look(DAY - 2 * NEEDED)
    assert os.path.exists(copied.copy_path)
    copied.look(2 * NEEDED)
    assert copied.copies() == {} and not os.path.exists(copied.copy_path)


def another_copy(copied, number, content=CONTENT):
    store = copied.cloud.stores[number]
    name = store.begin_file(IMAGE, FileKind.STANDBY, standby_suffix(HASH))
    Path(store.path(IMAGE, name)).write_bytes(content)
    store.files.change(IMAGE, ready=[name])
    return name


def test_of_two_copies_the_second_is_removed_when_that_was_seen_twice(copied):
    another_copy(copied, copied.two)
    copied.look()
    assert sorted(copied.copies()) == [copied.two, copied.three]
    copied.look()
    assert list(copied.copies()) == [copied.two] and not os.path.exists(copied.copy_path)


def test_the_copy_of_a_node_that_seems_to_work_makes_no_other_one_needless(copied):
    another_copy(copied, copied.two)
    for _minute in range(11):
        copied.look(60, copied.two)
    assert os.path.exists(copied.copy_path)
    copied.cloud.members[copied.three].forget_clocks()
    copied.each[copied.three].once()
    copied.cloud.look()
    copied.each[copied.three].once()
    copied.look(60, copied.two)
    assert os.path.exists(copied.copy_path)


def test_a_copy_that_the_home_has_left_makes_no_other_one_needless(copied):
    name = another_copy(copied, copied.one)
    for _look in range(3):
        copied.look()
    assert list(copied.copies()) == [copied.three] and copied.each[copied.one].missing == 0
    assert name not in copied.cloud.files()


def test_a_copy_that_is_being_made_is_not_made_again(world):
    other = world.each[world.two]
    get = world.glance.download

    def download(image_id):
        # By now this node has less room than the other one.
        world.cloud.change(world.three, free_bytes=world.cloud.rows[world.two].free_bytes - 1)
        other.once()
        yield from get(image_id)

    world.look()
    world.glance.download = download
    world.look(NEEDED)
    assert list(world.copies()) == [world.three] and world.glance.downloads == 1


def test_copies_leave_room_on_the_disk(world):
    for image in MANY:
        name = world.cloud.stores[world.one].begin_file(image, FileKind.BASE, '.img')
        path = world.cloud.stores[world.one].path(image, name)
        Path(path).write_bytes(CONTENT)
        world.cloud.put(world.one, image, base_path=path, base_hash=HASH, look_rules=RULES,
                        stored_bytes=len(CONTENT), base_file=savefile.signature(path))
        world.glance.contents[image] = CONTENT
    world.needed |= set(MANY)
    get = world.glance.download
    for number in world.one, world.two:
        world.cloud.change(number, free_bytes=0)

    def download(image_id):
        yield from get(image_id)
        world.cloud.change(world.three, free_bytes=(7 - world.glance.downloads) * len(CONTENT))

    world.glance.download = download
    world.look()
    world.look(NEEDED)
    assert world.glance.downloads == 7
    world.disk = 100, 12
    for left in range(6, 3, -1):
        world.look()
        assert len(world.cloud.stores[world.two].files.standbys()) == left


def test_a_full_disk_takes_no_copy_whose_home_is_away(copied):
    copied.disk = 100, 12
    copied.look(25, copied.one)
    assert os.path.exists(copied.copy_path)
    copied.look(25)
    assert not os.path.exists(copied.copy_path)


def test_a_copy_serves_when_the_home_has_got_no_base_and_is_drained(copied):
    """The base's home, and the node with the copy, were away; Glance gives it out no more."""
    cloud, two, three = copied.cloud, copied.two, copied.three
    copied.glance.contents.clear()
    copied.look(25, copied.one, three)
    assert cloud.homes[two].route(IMAGE) is None
    cloud.change_image(two, lambda known: policy.skipped(
        known, Cause(Reason.GLANCE_STATUS, 'deactivated')))
    copied.look(5, copied.one)
    cloud.change(two, wish=NodeWish.DRAINED)
    copied.look(5, copied.one)
    for image, home in cloud.homes[three].due():
        cloud.homes[three].take_over(image, home)
    assert cloud.stores[three].load(IMAGE).made.base_path == copied.copy_path


def test_a_copy_that_was_taken_for_the_base_is_not_given_up_before_that_is_known(copied,
                                                                              monkeypatch):
    cloud, one, three = copied.cloud, copied.one, copied.three
    cloud.change(one, wish=NodeWish.DRAINED)
    store, held = cloud.stores[three], cloud.stores[three]._held
    for image, home in cloud.homes[three].due():
        cloud.homes[three].take_over(image, home)
    # As if the answer had been lost.
    store._held = held
    names = store.files.by_image()[IMAGE]
    store.give_up(IMAGE, names, store.anywhere(IMAGE))
    store.refresh()
    assert store.load(IMAGE).made.base_path == copied.copy_path
    assert os.path.exists(copied.copy_path)


def test_a_copy_that_cannot_be_noted_is_removed(world, monkeypatch):
    files = world.cloud.stores[world.three].files

    def away(*_arguments, **_named):
        raise DatabaseAway('it does not answer')

    world.look()
    world.now += NEEDED
    world.cloud.pass_by(NEEDED)
    with monkeypatch.context() as patch:
        patch.setattr(files, 'change', away)
        with pytest.raises(DatabaseAway):
            world.each[world.three].once()
    assert world.cloud.on_disk(world.three) == []
    assert not any(name.startswith('standby') for name in world.cloud.files())
    world.look(AGAIN)
    assert list(world.copies()) == [world.three]


# While another thread of the node, or another node, does something.

def test_a_copy_that_was_claimed_meanwhile_is_not_given_up(copied, monkeypatch):
    cloud, three = copied.cloud, copied.three
    copied.look(25, copied.one)
    standbys = cloud.stores[three].files.standbys

    def claimed(*arguments):
        found = standbys(*arguments)
        if not arguments:
            assert cloud.homes[three].route(IMAGE) is None, 'a host asks'
        return found

    monkeypatch.setattr(cloud.stores[three].files, 'standbys', claimed)
    copied.each[three].once()
    assert cloud.stores[three].load(IMAGE).made.base_path == copied.copy_path
    assert os.path.exists(copied.copy_path) and cloud.files()[copied.copy.name] == (three, 'ready')


def test_a_copy_is_no_base_of_a_content_that_came_meanwhile(copied, monkeypatch):
    cloud, three = copied.cloud, copied.three
    copied.look(25, copied.one)
    store = cloud.stores[three]
    standbys = store.files.standbys

    def changed(*arguments):
        found = standbys(*arguments)
        cloud.stores[copied.one].change(
            IMAGE, lambda known: known.making(base_hash='sha512:ffff'))
        store.refresh()
        return found

    monkeypatch.setattr(store.files, 'standbys', changed)
    assert cloud.homes[three].take_over(IMAGE, copied.one)
    made = store.load(IMAGE).made
    assert (made.base_hash, made.base_path, made.base_file) == ('sha512:ffff', '', None)


def test_a_copy_that_was_given_up_meanwhile_is_no_base(copied, monkeypatch):
    cloud, three = copied.cloud, copied.three
    copied.look(25, copied.one)
    store = cloud.stores[three]
    claim = store.claim

    def late(*arguments):
        store.give_up(IMAGE, [copied.copy.name], store.anywhere(IMAGE))
        return claim(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(store, 'claim', late)
        with pytest.raises(NodeAway):
            cloud.homes[three].route(IMAGE)
    store.refresh()
    assert store.home(IMAGE) == copied.one
    assert cloud.homes[three].route(IMAGE) is None
    assert store.load(IMAGE).made.base_path == ''


@pytest.mark.parametrize('left', [b'evil', None])
def test_a_copy_that_is_not_whole_any_more_is_no_base_and_made_again(copied, left):
    path = Path(copied.copy_path)
    path.unlink() if left is None else path.write_bytes(left)
    for _look in range(2):
        copied.look(5)
    assert list(copied.copies()) == [copied.three], 'another one'
    assert not path.exists()
    again = Path(copied.cloud.stores[copied.three].path(
        IMAGE, copied.copies()[copied.three].name))
    assert again.read_bytes() == CONTENT
    again.write_bytes(b'evil')
    copied.look(25, copied.one, copied.three)
    assert copied.cloud.homes[copied.three].take_over(IMAGE, copied.one)
    assert copied.cloud.stores[copied.three].load(IMAGE).made.base_path == ''


def test_a_node_with_older_rules_takes_nothing_over_and_keeps_nobody_from_that(copied):
    cloud = copied.cloud
    cloud.stores[copied.one].change(IMAGE, lambda known: known.making(look_rules=RULES + 1))
    cloud.change(copied.two, look_rules=RULES + 1)
    copied.look(25, copied.one)
    with pytest.raises(NodeAway):
        cloud.homes[copied.two].route(IMAGE)  # Whose code here has older rules, too.
    assert cloud.homes[copied.two]._keeper(IMAGE, copied.one) == 0


def test_the_last_copy_stays_while_hosts_need_it(copied):
    cloud = copied.cloud
    copied.look(25, copied.one, copied.three)
    copied.glance.contents.clear()
    assert cloud.homes[copied.two].route(IMAGE) is None
    cloud.stores[copied.two].change(IMAGE, policy.deleted)
    copied.now += DAY
    copied.look(5, copied.one)
    assert os.path.exists(copied.copy_path)
    copied.needed.clear()
    copied.look()
    assert not os.path.exists(copied.copy_path)


def test_a_copy_becomes_the_base_where_the_home_has_lost_it(copied):
    cloud = copied.cloud
    copied.look(25, copied.one, copied.three)
    assert cloud.homes[copied.two].route(IMAGE) is None
    assert cloud.stores[copied.two].load(IMAGE).standing is Standing.WANTED
    copied.look(5, copied.one)
    assert os.path.exists(copied.copy_path)
    copied.look(25, copied.one, copied.two)
    assert cloud.homes[copied.three].route(IMAGE) is None
    assert cloud.stores[copied.three].load(IMAGE).made.base_path == copied.copy_path


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


@pytest.mark.parametrize('is_drained', [True, False])
def test_the_last_copy_stays_while_the_node_that_works_on_the_image_has_no_base(copied, is_drained):
    """The home died, another node took over that had to get it again, and Glance has it no more."""
    cloud, two, three = copied.cloud, copied.two, copied.three
    copied.glance.contents.clear()
    if is_drained:
        cloud.change(three, wish=NodeWish.DRAINED)
        copied.look(25, copied.one)
    else:
        copied.look(25, copied.one, three)
    assert cloud.homes[two].route(IMAGE) is None
    copied.look(5, copied.one)
    assert cloud.stores[two].load(IMAGE).made.base_path == ''
    copied.disk = 100, 12
    copied.look(25, copied.one)
    assert os.path.exists(copied.copy_path)
