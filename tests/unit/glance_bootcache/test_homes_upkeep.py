"""What storage nodes take over without being asked for it, and what they give up."""

import itertools
import logging
import os
import types
import uuid

import pytest
import sqlalchemy as sa
from fakes_clock import Clock
from fakes_manager import FakeExporter, FakeTiers
from fakes_nodes import CLONE, IMAGE, MANY, OTHER, RULES, SERVER, SNAPSHOT, glance_file

from bootcache import savefile
from bootcache.exception import DatabaseAway, StorageDaemonError
from bootcache.manifest import Goal, Manifest, Standing
from bootcache.rpc.messages import NodeWish
from glance_bootcache.db.models import FileState, ImageRow, StorageNodeRow
from glance_bootcache.hosts.orders import Orders
from glance_bootcache.images import policy
from glance_bootcache.nodes import node
from glance_bootcache.nodes.homes import HomeUpkeep
from glance_bootcache.nodes.leftovers import Leftovers
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
    :ivar needed: images that servers need.
    :ivar asked: images of which that was asked.
    """

    def __init__(self, cloud, number):
        self.queued, self.forgotten = [], []
        self.needed, self.asked = {IMAGE}, []
        self.exporter, self.clock = FakeExporter(), Clock()
        self.tiers = FakeTiers(self.exporter, cloud.stores[number])
        self.orders, self.records = Orders(cloud.database), Records(cloud.database, number)
        self.house = HomeUpkeep(
            cloud.stores[number], cloud.homes[number], cloud.members[number],
            types.SimpleNamespace(queue=types.SimpleNamespace(add=self.queued.append)),
            self.orders, self.records, self.forgotten.append)
        self.leftovers = Leftovers(cloud.stores[number], cloud.homes[number], self.exporter,
                                   self.tiers, self.records, self.why_needed, self.clock)

    def why_needed(self, image_id):
        self.asked.append(image_id)
        return 'servers' * (image_id in self.needed)

    def once(self):
        self.queued.clear()
        self.house.once()
        return self.queued


@pytest.fixture
def upkeep(cloud, numbers):
    return Upkeep(cloud, numbers[0])


@pytest.fixture
def moved(cloud, numbers, upkeep):
    """An image of which the first node has a base, which it serves, and the second one is home."""
    one, two, _three = numbers
    path = cloud.with_base(one)
    upkeep.exporter.serving[IMAGE] = path, None
    cloud.claim(two, one)
    cloud.refresh()
    return upkeep


def has_all(cloud, upkeep):
    number = cloud.numbers[0]
    return set(upkeep.exporter.serving) == {IMAGE} and len(cloud.on_disk(number)) == 1 \
        and upkeep.tiers.forgotten == []


def has_nothing(cloud, upkeep):
    number = cloud.numbers[0]
    return not (upkeep.exporter.serving or cloud.on_disk(number)) \
        and upkeep.tiers.forgotten == [IMAGE]


def test_what_has_moved_goes_when_the_new_home_has_the_base(cloud, numbers, moved):
    two = numbers[1]
    for _round in range(2):
        moved.leftovers.remove()
        assert has_all(cloud, moved), 'nobody else has it'
    cloud.get_base(two)
    moved.leftovers.remove()
    assert has_nothing(cloud, moved)
    assert {number for number, _state in cloud.files().values()} == {two}
    moved.leftovers.remove()
    assert moved.tiers.forgotten == [IMAGE]


def test_not_while_the_database_may_be_an_older_state(cloud, numbers, moved):
    cloud.get_base(numbers[1])
    cloud.stores[numbers[0]].files.may_remove = lambda: False
    moved.leftovers.remove()
    assert has_all(cloud, moved)


def test_not_while_the_new_home_is_away(cloud, numbers, moved):
    two = numbers[1]
    cloud.get_base(two)
    cloud.pass_by(20, two)
    moved.leftovers.remove()
    assert has_all(cloud, moved)
    cloud.pass_by(5)
    cloud.members[numbers[0]].forget_clocks()
    moved.leftovers.remove()
    assert has_all(cloud, moved), 'nobody is judged'
    cloud.look()
    moved.leftovers.remove()
    assert has_nothing(cloud, moved)


def test_nor_while_a_host_is_connected(cloud, numbers, moved):
    cloud.get_base(numbers[1])
    moved.exporter.readers.add(IMAGE)
    moved.leftovers.remove()
    assert has_all(cloud, moved)
    moved.exporter.readers.clear()
    moved.leftovers.remove()
    assert has_nothing(cloud, moved)


def test_nor_what_an_exporter_may_serve_that_does_not_answer(cloud, numbers, moved, monkeypatch):
    def away(image_id, with_base):
        raise StorageDaemonError('it does not answer')

    cloud.get_base(numbers[1])
    monkeypatch.setattr(moved.exporter, 'retire', away)
    with pytest.raises(StorageDaemonError):
        moved.leftovers.remove()
    assert has_all(cloud, moved)


def test_what_is_not_served_any_more_goes_as_well(cloud, numbers, moved):
    moved.exporter.serving.clear()
    cloud.get_base(numbers[1])
    moved.leftovers.remove()
    assert has_nothing(cloud, moved)


def test_what_is_glance_s_own_is_only_served_no_more(cloud, numbers, upkeep):
    one, two, _three = numbers
    theirs = glance_file(cloud, one)
    cloud.put(two, base_path=theirs, look_rules=RULES, base_file=savefile.signature(theirs))
    cloud.refresh()
    upkeep.exporter.serving[IMAGE] = theirs, None
    upkeep.leftovers.remove()
    assert upkeep.exporter.serving == {} and os.path.exists(theirs)
    assert upkeep.tiers.forgotten == []


def test_nothing_is_written_of_images_whose_files_are_all_named(cloud, numbers, upkeep,
                                                                monkeypatch):
    """There may be thousands, and they are looked at again and again."""
    cloud.with_base(numbers[0])
    monkeypatch.setattr(cloud.database, 'write', lambda change: pytest.fail('it is written'))
    upkeep.leftovers.remove()
    assert len(cloud.on_disk(numbers[0])) == 1


def is_given_up_when_nothing_needs_it(cloud, moved):
    for _round in range(3):
        moved.leftovers.remove()
        assert has_all(cloud, moved), 'servers need it'
    moved.needed.clear()
    moved.leftovers.remove()
    assert has_all(cloud, moved) and moved.asked == [IMAGE], 'Nova is not asked each time'
    moved.clock.now += 10
    moved.exporter.readers.add(IMAGE)
    moved.leftovers.remove()
    assert has_all(cloud, moved), 'a host is connected'
    moved.exporter.readers.clear()
    moved.clock.now += 20
    moved.leftovers.remove()
    assert has_nothing(cloud, moved)
    return True


def test_what_the_new_home_does_not_want_goes_when_nothing_needs_it(cloud, numbers, moved):
    cloud.change_image(numbers[1], lambda known: policy.deleted(known, held=True))
    assert is_given_up_when_nothing_needs_it(cloud, moved)
    assert cloud.files() == {}


def test_also_where_this_node_is_its_home_again(cloud, numbers, moved):
    one, two, _three = numbers
    cloud.change_image(two, lambda known: policy.deleted(known, held=True))
    cloud.claim(one, two)
    cloud.refresh()
    assert is_given_up_when_nothing_needs_it(cloud, moved)


def test_what_was_made_while_nova_was_asked_stays(cloud, numbers, moved, monkeypatch):
    one, two, _three = numbers
    cloud.change_image(two, lambda known: policy.deleted(known, held=True))

    def asked(image_id):
        cloud.claim(one, two)
        cloud.change_image(one, lambda known: known.standing_at(Standing.WANTED, goal=Goal.SERVE))
        return ''

    monkeypatch.setattr(moved.leftovers, '_why_needed', asked)
    moved.leftovers.remove()
    assert has_all(cloud, moved)


def test_what_was_deleted_is_served_no_more(cloud, numbers, moved):
    cloud.stores[numbers[1]].remove(IMAGE)
    moved.leftovers.remove()
    assert has_all(cloud, moved), 'it does not know'
    cloud.refresh()
    for _round in range(2):
        moved.leftovers.remove()
    assert set(moved.exporter.serving) == {IMAGE}, 'servers need it'
    moved.needed.clear()
    moved.clock.now += 10
    moved.leftovers.remove()
    assert moved.exporter.serving == {}
    cloud.stores[numbers[0]].remove_retired()
    assert cloud.on_disk(numbers[0]) == [] and cloud.files() == {}


def test_what_was_deleted_while_this_node_was_down_is_served_no_more(cloud, numbers, moved):
    cloud.stores[numbers[1]].remove(IMAGE)
    cloud.restart(numbers[0])
    again = Upkeep(cloud, numbers[0])
    again.exporter.serving = moved.exporter.serving
    cloud.stores[numbers[0]].files.may_remove = lambda: False
    again.leftovers.remove()
    assert set(again.exporter.serving) == {IMAGE} and again.asked == [], 'it may be an older state'
    cloud.stores[numbers[0]].files.may_remove = lambda: True
    again.leftovers.remove()
    assert set(again.exporter.serving) == {IMAGE}, 'servers need it'
    again.needed.clear()
    again.clock.now += 10
    again.leftovers.remove()
    assert again.exporter.serving == {}


def lose_base(cloud, number):
    os.unlink(cloud.stores[number].load(IMAGE).made.base_path)
    cloud.restart(number)
    cloud.stores[number].retire_left()
    cloud.refresh()


def test_a_home_that_has_lost_its_base_is_relied_on_by_nobody(cloud, numbers, moved):
    """As of a database that was restored: its row is of before the file was given up."""
    cloud.get_base(numbers[1])
    lose_base(cloud, numbers[1])
    assert cloud.stores[numbers[1]].load(IMAGE).made.base_path, 'its disk may come back'
    assert is_given_up_when_nothing_needs_it(cloud, moved)


def test_what_is_claimed_while_an_exporter_is_asked_stays(cloud, numbers, moved, monkeypatch):
    one, two, three = numbers
    cloud.get_base(two)
    real = moved.exporter.retire

    def retire(image_id, with_base):
        cloud.claim(three, two)
        cloud.refresh()
        return real(image_id, with_base)

    monkeypatch.setattr(moved.exporter, 'retire', retire)
    moved.leftovers.remove()
    assert len(cloud.on_disk(one)) == 1, 'nobody else has it'


def test_a_snapshot_that_is_begun_meanwhile_has_its_base(cloud, numbers, moved, monkeypatch):
    begun = Record(SNAPSHOT, 'file', 'host', base=cloud.stores[numbers[0]].path(IMAGE, 'base'))

    def asked(image_id):
        monkeypatch.setattr(moved.records, 'all', lambda: [begun])
        return ''

    cloud.change_image(numbers[1], lambda known: policy.deleted(known, held=True))
    monkeypatch.setattr(moved.leftovers, '_why_needed', asked)
    moved.leftovers.remove()
    assert has_all(cloud, moved)


def test_a_nova_that_hangs_does_not_hold_up_a_round(cloud, numbers, moved, monkeypatch):
    images = [str(uuid.UUID(int=number)) for number in range(20)]
    moved.exporter.serving.update(dict.fromkeys(images, ('/glance/x', None)))

    def hangs(image_id):
        moved.asked.append(image_id)
        moved.clock.now += 60
        return 'servers, maybe'

    monkeypatch.setattr(moved.leftovers, '_why_needed', hangs)
    for rounds in range(200):
        moved.leftovers.remove()
        assert len(moved.asked) == rounds + 1
    assert set(moved.asked) == {IMAGE, *images}, 'each has its turn'


@pytest.mark.parametrize('standing', [Standing.FAILED, Standing.WANTED])
def test_what_the_new_home_does_not_get_goes_when_nothing_needs_it(cloud, numbers, moved,
                                                                   standing):
    cloud.change_image(numbers[1], lambda known: known.standing_at(standing))
    assert is_given_up_when_nothing_needs_it(cloud, moved)


def test_what_is_made_meanwhile_stays(cloud, numbers, upkeep, monkeypatch):
    """A step writes its base just before what the row of before did not name is given up."""
    one = numbers[0]
    store = cloud.stores[one]
    cloud.with_base(one)
    store.change(IMAGE, lambda known: known.making(base_path='/elsewhere/base'))
    new, real = cloud.file(one), store._database.write
    store.files.change(IMAGE, ready=[new])

    def late(change):
        monkeypatch.setattr(store._database, 'write', real)
        store.change(IMAGE, lambda known: known.making(base_path=store.path(IMAGE, new)))
        return real(change)

    monkeypatch.setattr(store._database, 'write', late)
    upkeep.leftovers.remove()
    store.remove_retired()
    assert os.path.exists(store.load(IMAGE).made.base_path)
    upkeep.leftovers.remove()
    assert os.path.exists(store.load(IMAGE).made.base_path)


def test_an_exporter_that_does_not_answer_keeps_no_other_image(cloud, numbers, moved, monkeypatch):
    cloud.get_base(numbers[1])
    moved.exporter.serving[FIRST] = '/glance/x', None
    cloud.put(numbers[1], FIRST, base_path='/glance/x', look_rules=RULES)
    cloud.refresh()
    real = moved.exporter.retire

    def retire(image_id, with_base):
        if image_id == FIRST:
            raise StorageDaemonError('it does not answer')
        return real(image_id, with_base)

    monkeypatch.setattr(moved.exporter, 'retire', retire)
    with pytest.raises(StorageDaemonError):
        moved.leftovers.remove()
    assert set(moved.exporter.serving) == {FIRST} and cloud.on_disk(numbers[0]) == []


def test_what_a_snapshot_is_made_of_stays(cloud, numbers, moved):
    cloud.get_base(numbers[1])
    path = moved.exporter.serving[IMAGE][0]
    record = Record(SNAPSHOT, 'file', 'host', base=path)
    moved.records.put(record)
    moved.leftovers.remove()
    assert has_all(cloud, moved)
    moved.records.drop(record)
    moved.leftovers.remove()
    assert has_nothing(cloud, moved)


def test_what_is_its_own_or_needed_stays(cloud, numbers, upkeep):
    one = numbers[0]
    path = cloud.with_base(one)
    for image in IMAGE, OTHER:
        upkeep.exporter.serving[image] = path, None
    upkeep.needed.add(OTHER)
    stray = cloud.file(one, image=SNAPSHOT)
    upkeep.leftovers.remove()
    assert set(upkeep.exporter.serving) == {IMAGE, OTHER}
    assert len(cloud.on_disk(one)) == 1 and cloud.on_disk(one, SNAPSHOT) == [stray]


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
