"""What a storage node need not have any more: what has moved, was deleted, or has no row."""

import os
import uuid

import pytest
from fakes_clock import Clock
from fakes_manager import FakeExporter, FakeTiers
from fakes_nodes import IMAGE, MANY, OTHER, RULES, SNAPSHOT, glance_file

from bootcache import savefile
from bootcache.exception import StorageDaemonError
from bootcache.manifest import Goal, Standing
from glance_bootcache.ceph import basenode
from glance_bootcache.images import policy
from glance_bootcache.nodes.leftovers import Leftovers
from glance_bootcache.snapshots.records import Record, Records

FIRST = min(MANY)


class Here:
    """What one node has.

    :ivar needed: images that servers need.
    :ivar asked: images of which that was asked.
    """

    def __init__(self, cloud, number):
        self.needed, self.asked = {IMAGE}, []
        self.exporter, self.clock = FakeExporter(), Clock()
        self.tiers = FakeTiers(self.exporter, cloud.stores[number])
        self.records = Records(cloud.database, number)
        self.leftovers = Leftovers(cloud.stores[number], cloud.homes[number], self.exporter,
                                   self.tiers, self.records, self.why_needed, self.clock)

    def why_needed(self, image_id):
        self.asked.append(image_id)
        return 'servers' * (image_id in self.needed)


@pytest.fixture
def here(cloud, numbers):
    return Here(cloud, numbers[0])


@pytest.fixture
def moved(cloud, numbers, here):
    """An image of which the first node has a base, which it serves, and the second one is home."""
    one, two, _three = numbers
    path = cloud.with_base(one)
    here.exporter.serving[IMAGE] = path, None
    cloud.claim(two, one)
    cloud.refresh()
    return here


def has_all(cloud, here):
    number = cloud.numbers[0]
    return set(here.exporter.serving) == {IMAGE} and len(cloud.on_disk(number)) == 1 \
        and here.tiers.forgotten == []


def has_nothing(cloud, here):
    number = cloud.numbers[0]
    return not (here.exporter.serving or cloud.on_disk(number)) \
        and here.tiers.forgotten == [IMAGE]


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


def test_what_is_glance_s_own_is_only_served_no_more(cloud, numbers, here):
    one, two, _three = numbers
    theirs = glance_file(cloud, one)
    cloud.put(two, base_path=theirs, look_rules=RULES, base_file=savefile.signature(theirs))
    cloud.refresh()
    here.exporter.serving[IMAGE] = theirs, None
    here.leftovers.remove()
    assert here.exporter.serving == {} and os.path.exists(theirs)
    assert here.tiers.forgotten == []


def test_a_link_stays_where_the_new_home_reads_glance_s_file_in_place(cloud, numbers, moved):
    """That goes when Glance deletes the image."""
    theirs = glance_file(cloud, numbers[0])
    cloud.change_image(numbers[1], lambda known: known.making(
        base_path=theirs, base_file=savefile.signature(theirs)).standing_at(Standing.DONE))
    assert is_given_up_when_nothing_needs_it(cloud, moved)


def test_nothing_is_written_of_images_whose_files_are_all_named(cloud, numbers, here,
                                                                monkeypatch):
    """There may be thousands, and they are looked at again and again."""
    cloud.with_base(numbers[0])
    monkeypatch.setattr(cloud.database, 'write', lambda change: pytest.fail('it is written'))
    here.leftovers.remove()
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
    again = Here(cloud, numbers[0])
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


def start(cloud, number):
    cloud.restart(number)
    cloud.stores[number].retire_left()
    cloud.refresh()


def lose_base(cloud, number):
    path = cloud.stores[number].load(IMAGE).made.base_path
    os.rename(path, f'{path}.away')
    start(cloud, number)
    return path


def test_a_base_that_comes_back_is_relied_on_again_and_another_one_is_hashed(cloud, numbers, moved):
    two = numbers[1]
    cloud.get_base(two)
    path = lose_base(cloud, two)
    os.rename(f'{path}.away', path)
    assert not basenode.is_changed(cloud.stores[two].load(IMAGE)), 'its disk was mounted late'
    with open(f'{path}.new', 'w') as stream:
        stream.write('evil')
    os.rename(path, f'{path}.away')
    os.rename(f'{path}.new', path)
    assert basenode.is_changed(cloud.stores[two].load(IMAGE))
    os.rename(f'{path}.away', path)
    assert not cloud.homes[numbers[0]].other_has_base(IMAGE)
    start(cloud, two)
    assert cloud.homes[numbers[0]].other_has_base(IMAGE)


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


def test_what_is_made_meanwhile_stays(cloud, numbers, here, monkeypatch):
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
    here.leftovers.remove()
    store.remove_retired()
    assert os.path.exists(store.load(IMAGE).made.base_path)
    here.leftovers.remove()
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


def test_what_is_its_own_or_needed_stays(cloud, numbers, here):
    one = numbers[0]
    path = cloud.with_base(one)
    for image in IMAGE, OTHER:
        here.exporter.serving[image] = path, None
    here.needed.add(OTHER)
    stray = cloud.file(one, image=SNAPSHOT)
    here.leftovers.remove()
    assert set(here.exporter.serving) == {IMAGE, OTHER}
    assert len(cloud.on_disk(one)) == 1 and cloud.on_disk(one, SNAPSHOT) == [stray]
