"""What storage nodes take over without being asked for it, and what they give up."""

import itertools
import logging
import types

import pytest
import sqlalchemy as sa
from fakes_nodes import CLONE, IMAGE, MANY, OTHER, RULES, SERVER, SNAPSHOT

from bootcache.exception import DatabaseAway
from bootcache.manifest import Manifest
from bootcache.rpc.messages import NodeWish
from glance_bootcache.db.models import FileState, ImageRow, StorageNodeRow
from glance_bootcache.hosts.orders import Orders
from glance_bootcache.nodes import node
from glance_bootcache.nodes.homes import HomeUpkeep
from glance_bootcache.snapshots.records import Record, Records
from glance_bootcache.storage.nodefiles import FileKind

# It comes before IMAGE.
FIRST = min(MANY)

# What is taken over without being asked for.

def fill(cloud, number, images=tuple(MANY), **made):
    for image in images:
        cloud.put(number, image, **made)
    cloud.refresh()


def drained(cloud, number):
    cloud.change(number, wish=NodeWish.DRAINED)


def forgotten(cloud, number):
    cloud.pass_by(20, number)
    cloud.change(number, wish=NodeWish.FORGOTTEN)


def out(cloud, number):
    cloud.pass_by(600, number)


def gone_and_out(cloud, number):
    """An operator drained it, and it was stopped."""
    cloud.change(number, wish=NodeWish.DRAINED)
    cloud.pass_by(600, number)


@pytest.mark.parametrize('leave', [drained, forgotten, out, gone_and_out])
def test_the_images_of_a_node_that_leaves_are_taken_over_by_all_others(cloud, numbers, leave):
    one, two, three = numbers
    fill(cloud, three)
    cloud.put(one, IMAGE)
    cloud.refresh()
    assert cloud.homes[one].due() == [] == cloud.homes[two].due()
    leave(cloud, three)
    ours, theirs = cloud.homes[one].due(), cloud.homes[two].due()
    assert 1 <= len(ours) <= 4 and 1 <= len(theirs) <= 4
    assert not set(ours) & set(theirs), 'each has its share'
    assert {home for _image, home in ours + theirs} == {three}
    assert cloud.homes[three].due() == [], 'nor does it take anything'


def drain_all(cloud, *takers):
    """Take over what is due until nothing is; how many rounds that took."""
    for rounds in itertools.count(1):
        due = {number: cloud.homes[number].due() for number in takers}
        if not any(due.values()):
            return rounds
        assert rounds < 100
        for number, images in due.items():
            for image, home in images:
                assert cloud.homes[number].take_over(image, home)
                cloud.get_base(number, image)
        cloud.refresh()


def test_all_of_them_are_taken_over_in_the_end(cloud, numbers):
    one, two, three = numbers
    fill(cloud, three, base_path='/glance/x', look_rules=RULES)
    cloud.change(three, wish=NodeWish.DRAINED)
    drain_all(cloud, one, two)
    homes = cloud.stores[one].homes()
    assert set(homes.values()) == {one, two} and len(homes) == len(MANY)
    # About the half each.
    assert abs(2 * list(homes.values()).count(one) - len(MANY)) <= 4


def test_while_bases_are_got_no_more_are_taken_over(cloud, numbers):
    one, _two, three = numbers
    fill(cloud, three, base_path='/glance/x', look_rules=RULES)
    cloud.change(three, wish=NodeWish.DRAINED)
    taken = [image for image, home in cloud.homes[one].due() if cloud.homes[one].take_over(
        image, home)]
    assert len(taken) == 4 and cloud.homes[one].due() == []
    cloud.get_base(one, taken[0])
    assert len(cloud.homes[one].due()) == 1
    # What is asked for is not left for that.
    cloud.pass_by(20, three)
    asked = next(image for image in MANY if image not in taken)
    assert cloud.homes[one].route(asked) is None and cloud.stores[one].load(asked) is not None


def test_images_of_its_own_of_which_nothing_comes_keep_none_from_being_taken_over(cloud, numbers):
    """As those that their owners leave without data."""
    one, _two, three = numbers
    fill(cloud, three, base_path='/glance/x', look_rules=RULES)
    for number in range(4):
        cloud.stores[one].add(Manifest(f'{number:08x}-0000-4c3d-8e9f-0a1b2c3d4e5f'))
    cloud.change(three, wish=NodeWish.DRAINED)
    assert len(cloud.homes[one].due()) == 4


def test_a_node_that_is_only_away_may_be_back_in_a_moment(cloud, numbers):
    one, _two, three = numbers
    fill(cloud, three)
    cloud.pass_by(599, three)
    assert cloud.homes[one].due() == []
    cloud.pass_by(1, three)
    assert cloud.homes[one].due() != []


def test_where_most_are_out_it_is_rather_this_node(cloud, numbers):
    one, two, three = numbers
    fill(cloud, three)
    cloud.pass_by(600, two, three)
    assert cloud.homes[one].due() == []
    # An operator knows.
    cloud.change(three, wish=NodeWish.FORGOTTEN)
    assert cloud.homes[one].due() != []


def test_who_cannot_judge_or_leaves_itself_takes_nothing(cloud, numbers):
    one, two, three = numbers
    fill(cloud, three)
    cloud.change(three, wish=NodeWish.DRAINED)
    cloud.members[one].forget_clocks()
    assert cloud.homes[one].due() == []
    cloud.change(two, wish=NodeWish.DRAINED)
    assert cloud.homes[two].due() == []
    assert [image for image, _home in cloud.homes[one].due()] == MANY[:4], 'it is alone'


def test_images_that_it_may_not_take_over_keep_it_from_no_others(cloud, numbers):
    """As an older release beside newer ones."""
    one, two, three = numbers
    for image in MANY[:8]:
        cloud.put(three, image, base_path='/glance/x', look_rules=RULES + 1)
    fill(cloud, three, MANY[8:12])
    cloud.change(three, wish=NodeWish.DRAINED)
    cloud.change(two, wish=NodeWish.DRAINED)
    for image, home in cloud.homes[one].due():
        cloud.homes[one].take_over(image, home)
    assert len(cloud.stores[one].manifests()) == 4


# Upkeep.

class Upkeep:
    """One node's upkeep, and what it did.

    :ivar queued: images that were looked at.
    :ivar forgotten: nodes whose rows were to be removed.
    """

    def __init__(self, cloud, number):
        self.queued, self.forgotten = [], []
        self.orders, self.records = Orders(cloud.database), Records(cloud.database, number)
        self.house = HomeUpkeep(
            cloud.stores[number], cloud.homes[number], cloud.members[number],
            types.SimpleNamespace(queue=types.SimpleNamespace(add=self.queued.append)),
            self.orders, self.records, self.forgotten.append)

    def once(self):
        self.queued.clear()
        self.house.once()
        return self.queued


@pytest.fixture
def upkeep(cloud, numbers):
    return Upkeep(cloud, numbers[0])


def test_what_others_write_is_looked_at(cloud, numbers, upkeep):
    _one, two, _three = numbers
    assert upkeep.once() == []
    cloud.put(two)
    Orders(cloud.database).add(OTHER, ['host'])
    assert upkeep.once() == [IMAGE] and upkeep.once() == []
    assert upkeep.orders.of('host') == {OTHER}
    cloud.stores[two].change(IMAGE, lambda known: known.wishing(pinned=True))
    assert upkeep.once() == [IMAGE]


def test_what_was_asked_for_and_so_taken_over_is_looked_at(cloud, numbers, upkeep):
    """Nobody else has it be built: its row is in memory already."""
    one, _two, three = numbers
    fill(cloud, three, MANY[:1])
    cloud.pass_by(20, three)
    assert cloud.homes[one].route(MANY[0]) is None
    assert MANY[0] in upkeep.once()


def test_what_is_due_is_taken_over_and_looked_at(cloud, numbers, upkeep):
    one, two, three = numbers
    fill(cloud, three)
    cloud.change(three, wish=NodeWish.DRAINED)
    cloud.change(two, wish=NodeWish.DRAINED)
    assert upkeep.once() == MANY[:4]
    assert [known.image_id for known in cloud.stores[one].manifests()] == MANY[:4]


def snapshot_of(cloud, number):
    Records(cloud.database, number).put(Record(SNAPSHOT))


@pytest.mark.parametrize('leave, is_taken', [
    (out, True), (forgotten, True), (gone_and_out, True), (drained, False)])
def test_snapshots_of_a_node_that_is_gone_are_ended(cloud, numbers, upkeep, leave, is_taken):
    """One that is drained goes on with what it makes."""
    one, _two, three = numbers
    snapshot_of(cloud, three)
    upkeep.once()
    assert upkeep.records.all() == [] and upkeep.records.node_of(SNAPSHOT) == three
    leave(cloud, three)
    upkeep.once()
    assert [record.snapshot_id for record in upkeep.records.all()] == [SNAPSHOT] * is_taken
    assert upkeep.records.node_of(SNAPSHOT) == (one if is_taken else three)
    assert len(Records(cloud.database, three).all()) == (not is_taken)


def test_who_leaves_itself_or_cannot_judge_ends_no_snapshots(cloud, numbers, upkeep):
    one, _two, three = numbers
    snapshot_of(cloud, three)
    out(cloud, three)
    cloud.change(one, wish=NodeWish.DRAINED)
    upkeep.once()
    cloud.change(one, wish=None)
    cloud.members[one].forget_clocks()
    upkeep.once()
    assert upkeep.records.all() == []
    cloud.look()
    assert upkeep.records.all() == []


def test_a_node_is_forgotten_when_no_image_names_it(cloud, numbers, upkeep):
    one, two, three = numbers
    fill(cloud, three, MANY[:6], base_path='/glance/x', look_rules=RULES)
    forgotten(cloud, three)
    cloud.change(two, wish=NodeWish.DRAINED)
    upkeep.once()
    assert upkeep.forgotten == []
    for image in MANY[:4]:
        cloud.get_base(one, image)
    upkeep.once()
    assert set(upkeep.forgotten) == {three}
    assert set(cloud.stores[one].homes().values()) == {one}


@pytest.mark.parametrize('leave', [out, drained, gone_and_out])
def test_no_other_is(cloud, numbers, upkeep, leave):
    leave(cloud, numbers[2])
    upkeep.once()
    assert upkeep.forgotten == []


def test_one_that_is_back_is_not_forgotten(cloud, numbers, upkeep):
    cloud.change(numbers[2], wish=NodeWish.FORGOTTEN)
    upkeep.once()
    assert upkeep.forgotten == [], 'it beats'


def named_nodes(cloud):
    return set(cloud.database.read(lambda connection: connection.execute(
        sa.select(StorageNodeRow.id)).scalars().all()))


def test_the_row_of_a_node_stays_while_anything_names_it(cloud, numbers):
    one, two, three = numbers
    cloud.with_base(three)
    snapshot_of(cloud, three)
    node.forget(cloud.database, three, numbers[0])
    cloud.claim(one, three)
    node.forget(cloud.database, three, numbers[0])
    assert named_nodes(cloud) == {one, two, three} and len(cloud.files()) == 1
    Records(cloud.database, one).adopt(three)
    node.forget(cloud.database, three, numbers[0])
    assert named_nodes(cloud) == {one, two} and cloud.files() == {}
    assert cloud.on_disk(three), 'what is on its disk is nobody\'s any more, and stays'
    node.forget(cloud.database, three, numbers[0])


def test_that_a_node_is_forgotten_is_told_when_it_is(cloud, numbers, caplog):
    """Its snapshot is nobody's to take over while this node is drained."""
    one, _two, three = numbers
    caplog.set_level(logging.INFO)
    upkeep = Upkeep(cloud, one)
    upkeep.house._forget = lambda number: node.forget(cloud.database, number, numbers[0])
    snapshot_of(cloud, three)
    forgotten(cloud, three)
    cloud.change(one, wish=NodeWish.DRAINED)
    for _round in range(3):
        upkeep.once()
    assert three in named_nodes(cloud)
    assert 'the storage node c is forgotten' not in caplog.text


def test_what_a_node_was_to_remove_in_ceph_and_nova_is_not_forgotten_with_it(cloud, numbers):
    """It was killed after an image's removal, and before that of its clone."""
    three = numbers[2]
    for kind, name in ((FileKind.CLONE, CLONE), (FileKind.SERVER, SERVER)):
        cloud.stores[three].files.begin(IMAGE, kind, name)
    cloud.stores[three].files.change(IMAGE, ready=[CLONE, SERVER])
    cloud.stores[three].files.change(IMAGE, retiring=[CLONE, SERVER])
    node.forget(cloud.database, three, numbers[0])
    assert {name: state for name, (_number, state) in cloud.files().items()} \
        == {CLONE: FileState.RETIRING, SERVER: FileState.RETIRING}


def test_what_fails_keeps_nothing_else_from_being_done(cloud, numbers, upkeep, monkeypatch, caplog):
    one, two, three = numbers
    fill(cloud, three, MANY[:2])
    cloud.change(three, wish=NodeWish.DRAINED)
    cloud.change(two, wish=NodeWish.DRAINED)

    def away(_changed):
        raise DatabaseAway('it does not answer')

    with monkeypatch.context() as patch:
        patch.setattr(cloud.stores[one], 'refresh', away)
        upkeep.once()
        upkeep.once()
    assert len(cloud.stores[one].manifests()) == 2
    told = 'what other storage nodes write cannot be read'
    assert caplog.text.count(f'{told}: it does not answer') == 1


def test_a_row_that_is_gone_keeps_no_other_from_being_looked_at(cloud, numbers, upkeep):
    one, two, _three = numbers
    for image in IMAGE, OTHER:
        cloud.put(one, image)
    cloud.refresh()
    cloud.database.write(lambda connection: connection.execute(
        sa.delete(ImageRow).where(ImageRow.image_id == IMAGE)))
    cloud.stores[two].touch(OTHER)
    assert OTHER in upkeep.once()


def test_who_is_away_is_told_once_and_when_it_is_back(cloud, numbers, caplog):
    one, two, three = numbers
    caplog.set_level(logging.INFO)
    upkeep = Upkeep(cloud, one)
    cloud.change(three, wish=NodeWish.DRAINED)
    for _look in range(3):
        cloud.pass_by(20, two, three)
        upkeep.once()
    assert caplog.text.count('the storage node b is away') == 1
    assert 'the storage node c' not in caplog.text, 'an operator wants that'
    cloud.pass_by(5)
    upkeep.once()
    assert 'the storage node b works again' in caplog.text
