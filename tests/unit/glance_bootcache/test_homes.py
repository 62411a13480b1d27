"""Homes of images: several storage nodes on one database, each with a directory of its own."""

import dataclasses
import os
import shutil

import cachetools
import pytest
import sqlalchemy as sa
from fakes_clock import Clock
from fakes_nodes import (
    CACHE,
    CLONE,
    COPY,
    DIFFERENCE,
    IMAGE,
    MANY,
    OTHER,
    RULES,
    SERVER,
    SET,
    SNAPSHOT,
    glance_file,
)

from bootcache import savefile
from bootcache.exception import DatabaseAway
from bootcache.manifest import (
    Goal,
    Made,
    Manifest,
    Standing,
)
from bootcache.reasons import Cause, Reason
from bootcache.rpc.messages import NO_IMAGE, NodeWish
from glance_bootcache.db.models import ImageRow
from glance_bootcache.images import policy
from glance_bootcache.nodes.homes import Homes, NodeAway
from glance_bootcache.nodes.membership import Membership
from glance_bootcache.storage import store
from glance_bootcache.storage.nodefiles import FileKind
from glance_bootcache.storage.store import ImageStore

# Rows of one database in several nodes' memories.

def test_a_node_works_on_its_own_images_and_knows_all(cloud, numbers):
    one, two, _three = numbers
    own, others = cloud.put(one), cloud.put(two, OTHER)
    cloud.refresh()
    for number, mine, elsewhere in ((one, own, others), (two, others, own)):
        known = cloud.stores[number]
        assert known.manifests() == [mine] and known.load(mine.image_id) == mine
        assert known.known(elsewhere.image_id) is None is known.load(elsewhere.image_id)
        assert known.anywhere(elsewhere.image_id) == elsewhere
        assert known.everywhere() == [own, others]
        assert known.homes() == {IMAGE: one, OTHER: two}
        assert (known.home(IMAGE), known.home(OTHER), known.home(SNAPSHOT)) == (one, two, None)
        assert known.anywhere(SNAPSHOT) is None
    # As the process that starts next reads them.
    again = ImageStore(str(cloud.path / 'a'), cloud.database, one)
    assert again.manifests() == [own] and again.everywhere() == [own, others]


def test_what_another_node_writes_is_seen_by_a_refresh(cloud, numbers):
    one, two, _three = numbers
    cloud.put(one)
    assert cloud.stores[two].refresh() == [IMAGE] and cloud.stores[two].refresh() == []
    changed = cloud.stores[one].change(IMAGE, lambda known: known.wishing(pinned=True))
    assert cloud.stores[two].refresh() == [IMAGE]
    assert cloud.stores[two].anywhere(IMAGE) == changed
    assert cloud.stores[one].refresh() == [], 'it knows what it has written'
    taken = cloud.claim(two, one)
    assert cloud.stores[one].load(IMAGE) is not None, 'it has not heard of it'
    assert cloud.stores[one].refresh() == [IMAGE]
    assert cloud.stores[one].load(IMAGE) is None
    assert cloud.stores[one].anywhere(IMAGE) == taken == cloud.stores[two].load(IMAGE)


def test_an_image_is_added_for_another_node(cloud, numbers):
    one, two, _three = numbers
    added = cloud.stores[one].add(Manifest(IMAGE), two)
    assert cloud.stores[one].load(IMAGE) is None
    assert cloud.stores[one].anywhere(IMAGE) == added
    assert cloud.stores[two].refresh() == [IMAGE] and cloud.stores[two].load(IMAGE) == added
    assert cloud.stores[two].moved() == frozenset(), 'it had no home before'


def test_who_adds_later_hears_of_the_other_home(cloud, numbers):
    one, two, _three = numbers
    cloud.put(one)
    assert cloud.stores[two].add(Manifest(IMAGE)) is None
    assert cloud.stores[two].home(IMAGE) == one and cloud.stores[two].load(IMAGE) is None


def test_a_row_that_another_node_has_just_added_is_found(cloud, numbers, monkeypatch):
    one, two, _three = numbers
    cloud.put(one)
    assert cloud.stores[two].home(IMAGE) is None
    assert cloud.stores[two].find(IMAGE.upper()) == one == cloud.stores[two].home(IMAGE)
    assert cloud.stores[two].find(OTHER) is None

    def away(work):
        raise DatabaseAway('it does not answer')

    monkeypatch.setattr(cloud.database, 'read', away)
    assert cloud.stores[two].find(IMAGE) == one, 'it is not read again'
    with pytest.raises(DatabaseAway):
        cloud.stores[two].find(OTHER)


def test_a_row_that_another_node_deleted_is_dropped(cloud, numbers, caplog):
    one, two, _three = numbers
    cloud.put(one)
    cloud.refresh()
    cloud.stores[one].remove(IMAGE)
    assert cloud.stores[two].refresh() == [IMAGE]
    assert cloud.stores[two].everywhere() == [] and cloud.stores[two].home(IMAGE) is None
    assert caplog.records == []


def test_what_was_taken_over_and_deleted_unseen_is_dropped(cloud, numbers):
    one, two, _three = numbers
    for image in IMAGE, OTHER:
        cloud.put(one, image)
    cloud.refresh()
    cloud.claim(two, one)
    cloud.stores[two].remove(IMAGE)
    cloud.stores[two].change(OTHER, lambda known: known.wishing(pinned=True), anywhere=True)
    assert sorted(cloud.stores[one].refresh()) == sorted([IMAGE, OTHER])
    assert cloud.stores[one].load(OTHER).wished.pinned
    assert cloud.stores[one].load(IMAGE) is None


def test_a_row_that_was_added_again_is_not_taken_for_the_one_before(cloud, numbers):
    one, two, three = numbers
    cloud.put(one)
    cloud.refresh()
    cloud.claim(two, one)
    cloud.stores[two].remove(IMAGE)
    # It has not seen the removal, nor the row before.
    fresh = ImageStore(str(cloud.path / 'c'), cloud.database, three)
    fresh.add(Manifest(IMAGE))
    old = cloud.stores[one]._held[IMAGE]
    while fresh._held[IMAGE].version < old.version:
        fresh.change(IMAGE, lambda known: known.wishing(pinned=not known.wished.pinned))
    assert fresh._held[IMAGE].version == old.version
    written = fresh.load(IMAGE)
    assert cloud.stores[one].change(IMAGE, lambda known: known.wishing(name='x')) is None
    assert cloud.stores[one].home(IMAGE) == three and fresh.refresh() == []
    assert ImageStore(str(cloud.path / 'c'), cloud.database, three).load(IMAGE) == written


def test_what_was_read_again_as_another_one_was_faster_is_told_by_the_next_refresh(cloud, numbers):
    one, two, _three = numbers
    cloud.put(one)
    cloud.refresh()
    cloud.stores[two].change(IMAGE, lambda known: known.wishing(pinned=True), anywhere=True)
    cloud.stores[one].change(IMAGE, lambda known: known.wishing(name='x'))
    told = []
    cloud.stores[one].refresh(told.append)
    assert told == [IMAGE] and cloud.stores[one].refresh() == []


# Claims.

def test_of_two_nodes_that_claim_an_image_one_gets_it(cloud, numbers):
    one, two, three = numbers
    before = cloud.put(one)
    cloud.refresh()
    taken = cloud.claim(two, one)
    assert taken == cloud.stores[two].load(IMAGE)
    assert dataclasses.replace(taken, updated_at='') == dataclasses.replace(before, updated_at='')
    assert cloud.claim(three, one) is None
    assert cloud.stores[three].load(IMAGE) is None and cloud.stores[three].home(IMAGE) == two
    assert cloud.claim(three, one) is None, 'by then it knows'
    cloud.stores[one].refresh()
    assert cloud.stores[one].home(IMAGE) == two
    row, = cloud.database.read(
        lambda connection: connection.execute(sa.select(ImageRow.node_id, ImageRow.term)).all())
    assert tuple(row) == (two, 2)


def test_a_claim_on_what_the_home_has_changed_meanwhile_is_in_vain(cloud, numbers):
    """It works, and only its beat was not seen: what it has written is read first."""
    one, two, _three = numbers
    cloud.put(one)
    cloud.refresh()
    cloud.stores[one].change(IMAGE, lambda known: known.wishing(quota=5))
    assert cloud.claim(two, one) is None
    assert cloud.stores[one].refresh() == [] and cloud.stores[one].load(IMAGE) is not None
    taken = cloud.claim(two, one)
    assert taken.wished.quota == 5 and cloud.stores[two].load(IMAGE) == taken


@pytest.mark.parametrize('is_removed', [False, True])
def test_nothing_is_claimed_of_what_is_not_known(cloud, numbers, is_removed):
    one, two, three = numbers
    cloud.put(one)
    if is_removed:
        cloud.refresh()
        cloud.stores[one].remove(IMAGE)
    assert cloud.claim(two, one) is None and cloud.stores[two].home(IMAGE) is None
    assert cloud.claim(two, three) is None


def test_a_claim_whose_answer_was_lost_is_one(cloud, numbers, monkeypatch):
    one, two, _three = numbers
    cloud.put(one)
    cloud.refresh()
    write = cloud.database.write

    def lost(work):
        write(work)
        raise DatabaseAway('the connection was lost')

    with monkeypatch.context() as patch, pytest.raises(DatabaseAway):
        patch.setattr(cloud.database, 'write', lost)
        cloud.claim(two, one)
    assert cloud.stores[two].load(IMAGE) is not None


def test_the_home_of_before_changes_nothing_any_more(cloud, numbers):
    one, two, _three = numbers
    path = cloud.with_base(one)
    taken = cloud.claim(two, one)
    # It has not seen it, and as it writes it does.
    assert cloud.stores[one].load(IMAGE).made.base_path == path
    assert cloud.stores[one].change(IMAGE, lambda known: known.wishing(pinned=True)) is None
    assert cloud.stores[one].load(IMAGE) is None
    assert cloud.stores[one].change(IMAGE, lambda known: known.wishing(pinned=True)) is None
    cloud.stores[one].remove(IMAGE)
    cloud.refresh()
    assert cloud.stores[two].load(IMAGE) == taken
    cloud.stores[one].remove_retired()
    assert cloud.on_disk(one) == [os.path.basename(path)], 'hosts read from it'


def test_a_removal_that_the_home_of_before_decides_is_in_vain(cloud, numbers):
    one, two, _three = numbers
    cloud.with_base(one)
    taken = cloud.claim(two, one)
    cloud.stores[one].remove(IMAGE)
    assert cloud.stores[one].load(IMAGE) is None
    cloud.stores[two].refresh()
    assert cloud.stores[two].load(IMAGE) == taken and len(cloud.on_disk(one)) == 1


def test_what_is_in_ceph_is_the_new_home_s_and_profile_boots_are_over(cloud, numbers):
    one, two, _three = numbers
    base, cache = cloud.file(one), cloud.file(one, FileKind.CACHE_IMAGE)
    making = cloud.file(one)
    files = cloud.stores[one].files
    for kind, name in ((FileKind.CLONE, CLONE), (FileKind.COPY, COPY), (FileKind.SERVER, SERVER),
                       (FileKind.TRIAL, SNAPSHOT)):
        files.begin(IMAGE, kind, name)
    files.begin(OTHER, FileKind.SERVER, 'another image\'s')
    files.change(IMAGE, ready=[base, cache, COPY])
    cloud.put(one, base_path=CLONE)
    cloud.refresh()
    assert cloud.claim(two, one, base_path=CLONE).made.base_path == CLONE
    assert cloud.files() == {
        base: (one, 'ready'), cache: (one, 'ready'), making: (one, 'making'),
        CLONE: (two, 'ready'), COPY: (two, 'ready'), SERVER: (two, 'retiring'),
        SNAPSHOT: (two, 'retiring')}
    assert cloud.files(OTHER) == {'another image\'s': (one, 'making')}
    removed = []
    cloud.stores[two].files.remove_retired_of(
        FileKind.SERVER, lambda image, name: removed.append((image, name)))
    assert removed == [(IMAGE, SERVER)]


def test_what_goes_with_an_image_goes_from_all_nodes(cloud, numbers):
    one, two, three = numbers
    cloud.with_base(one)
    cloud.claim(two, one)
    cloud.get_base(two)
    cloud.claim(three, two)
    cloud.refresh()
    cloud.stores[three].remove(IMAGE)
    assert {state for _number, state in cloud.files().values()} == {'retiring'}
    for number in one, two:
        assert len(cloud.on_disk(number)) == 1, 'each node removes its own'
        cloud.stores[number].refresh()
        cloud.stores[number].remove_retired()
        assert not os.path.exists(cloud.stores[number].directory(IMAGE))
    assert cloud.files() == {}


def test_what_a_node_has_of_an_image_that_comes_back_is_named_or_goes(cloud, numbers):
    """Both were away in turn: the first one's base is still there when it takes the image back."""
    one, two, _three = numbers
    cloud.with_base(one)
    cloud.claim(two, one)
    cloud.refresh()
    cloud.claim(one, two)
    cloud.get_base(one)
    assert len(cloud.on_disk(one)) == 2
    cloud.stores[one].give_up(IMAGE, cloud.stores[one].files.by_image()[IMAGE],
                              cloud.stores[one].anywhere(IMAGE))
    assert cloud.on_disk(one) == [os.path.basename(cloud.stores[one].load(IMAGE).made.base_path)]


# What one node writes for another.

def test_what_people_wish_is_changed_wherever_they_say_it(cloud, numbers):
    one, two, _three = numbers
    path = cloud.with_base(one)
    files = cloud.files()
    assert cloud.stores[two].change(IMAGE, lambda known: known.wishing(pinned=True)) is None
    changed = cloud.stores[two].change(IMAGE, lambda known: known.wishing(pinned=True),
                                       anywhere=True)
    assert changed.wished.pinned and changed.made.base_path == path
    assert cloud.stores[two].anywhere(IMAGE) == changed and cloud.stores[two].load(IMAGE) is None
    assert cloud.stores[one].refresh() == [IMAGE]
    assert cloud.stores[one].load(IMAGE) == changed
    assert cloud.files() == files and len(cloud.on_disk(one)) == 1
    assert cloud.stores[two].moved() == frozenset()


def test_a_wish_comes_to_the_home_that_there_is_by_then(cloud, numbers):
    one, two, three = numbers
    cloud.put(one)
    cloud.refresh()
    cloud.claim(two, one)
    changed = cloud.stores[three].change(IMAGE, lambda known: known.wishing(pinned=True),
                                         anywhere=True)
    cloud.refresh()
    assert cloud.stores[two].load(IMAGE) == changed and changed.wished.pinned


def test_a_node_has_the_home_look_at_an_image(cloud, numbers):
    one, two, _three = numbers
    known = cloud.put(one)
    cloud.refresh()
    cloud.stores[two].touch(IMAGE.upper())
    assert cloud.stores[one].refresh() == [IMAGE] and cloud.stores[one].load(IMAGE) == known
    assert cloud.stores[one].change(IMAGE, lambda known: known.wishing(pinned=True)) is not None
    cloud.stores[two].touch(OTHER)
    assert cloud.stores[one].refresh() == []


def test_what_has_moved_is_told_for_ten_minutes(cloud, numbers):
    one, two, three = numbers
    clock = Clock()
    for each in cloud.stores.values():
        each._moved = cachetools.TTLCache(10, store.MOVED_SECONDS, clock)
    cloud.put(one)
    cloud.put(one, OTHER)
    cloud.refresh()
    cloud.claim(two, one)
    for number in numbers:
        cloud.stores[number].refresh()
        assert cloud.stores[number].moved() == {IMAGE}, number
    clock.now += 599
    cloud.claim(three, one, OTHER)
    assert cloud.homes[three].moved() == {IMAGE, OTHER}
    clock.now += 2
    assert cloud.homes[three].moved() == {OTHER}
    clock.now += 600
    assert cloud.homes[three].moved() == frozenset()


# What becomes of an image that is taken over.

def info(**more):
    return Made(base_path='/glance/x', base_hash='sha512:00', base_export='base-x',
                image_format='raw', stored_bytes=5, virtual_bytes=8192, look_rules=RULES,
                base_file=(1, 2, 3), **more)


def with_all():
    return info(cache_image=CACHE, working_set=SET, built_from=SET.sha256, difference=DIFFERENCE)


@pytest.mark.parametrize('path', ['', '/nfs/x'])
@pytest.mark.parametrize('standing', [Standing.FAILED, Standing.SKIPPED, Standing.WANTED])
@pytest.mark.parametrize('goal', Goal)
def test_what_is_not_done_is_begun_again_or_stays_as_it_was_decided(path, standing, goal):
    cause = Cause(Reason.FAILED, 'why not')
    before = Manifest(IMAGE, made=with_all(), image_hash='sha512:00').standing_at(
        standing, cause, goal).wishing(pinned=True)
    taken = policy.taken_over(before, path, before.made.base_file if path else None)
    assert (taken.standing, taken.cause, taken.goal) == (standing, cause, goal)
    assert taken == before.making(
        cache_image=None, difference=None, built_from='', base_path=path,
        base_file=(1, 2, 3) if path else None)


@pytest.mark.parametrize('made, path, standing, goal', [
    # Its cache image is built again, from the working set that the database has.
    (with_all(), '', Standing.WANTED, Goal.BUILD),
    (with_all(), '/nfs/x', Standing.WANTED, Goal.BUILD),
    (info(), '', Standing.WANTED, Goal.SERVE),
    # The base is all that it had.
    (info(), '/nfs/x', Standing.DONE, Goal.NONE),
    # It had none: it was given up, and is got when somebody asks.
    (Made(), '', Standing.DONE, Goal.NONE)])
def test_what_is_done_is_made_again_as_far_as_it_is_on_the_other_node(made, path, standing, goal):
    before = Manifest(IMAGE, Standing.DONE, made=made, image_hash='sha512:00',
                      taken_up_at=5.0).wishing(generation=7, quota=5)
    taken = policy.taken_over(before, path, before.made.base_file if path else None)
    assert (taken.standing, taken.goal) == (standing, goal)
    assert (taken.made.base_path, taken.made.cache_image, taken.made.difference) == (path, None,
                                                                                     None)
    # Hosts keep what they hold, and disks what they stand on.
    assert (taken.wished, taken.image_hash, taken.taken_up_at) == (before.wished, 'sha512:00', 5.0)
    assert (taken.made.working_set, taken.made.base_hash, taken.made.base_export) \
        == (made.working_set, made.base_hash, made.base_export)
    assert taken.made.base_file == (made.base_file if path else None)


@pytest.mark.parametrize('standing', Standing)
@pytest.mark.parametrize('base_path, rules, may', [
    ('/glance/x', RULES, True), ('/glance/x', RULES - 1, True), ('/glance/x', RULES + 1, False),
    # Nothing of it was accepted that this node would serve.
    ('', RULES + 1, True)])
def test_what_later_rules_have_accepted_is_left(standing, base_path, rules, may):
    record = Manifest(IMAGE, standing, made=Made(base_path=base_path, look_rules=rules))
    assert policy.can_be_taken_over(record) is may


# Who answers.

def test_messages_go_to_an_image_s_home(cloud, numbers):
    one, two, three = numbers
    cloud.put(two)
    cloud.stores[one].refresh()
    assert cloud.homes[one].route(IMAGE) == 'b'
    assert cloud.homes[two].route(IMAGE) is None
    assert cloud.homes[three].route(IMAGE) == 'b', 'it has not read it yet'
    for number in numbers:
        assert cloud.homes[number].route(OTHER) is None, 'nothing is known of it'


def test_who_is_alone_asks_nobody(cloud, numbers):
    one, two, three = numbers
    cloud.put(two)
    for number in two, three:
        del cloud.rows[number]
    cloud.look()
    assert cloud.homes[one].route(IMAGE) is None
    assert cloud.stores[one].home(IMAGE) is None, 'not even the database'


def test_for_no_image_nothing_is_asked(cloud, numbers, monkeypatch):
    def asked(image_id):
        pytest.fail(f'{image_id} was looked for')

    monkeypatch.setattr(cloud.stores[numbers[0]], 'find', asked)
    assert cloud.homes[numbers[0]].route(NO_IMAGE) is None


def test_what_a_node_that_is_away_works_on_is_taken_over(cloud, numbers, caplog):
    one, two, _three = numbers
    cloud.with_base(two)
    cloud.pass_by(15, two)
    assert cloud.homes[one].route(IMAGE) == 'b', 'it is not away yet'
    cloud.pass_by(5, two)
    assert cloud.homes[one].route(IMAGE) is None
    taken = cloud.stores[one].load(IMAGE)
    assert (taken.standing, taken.goal, taken.made.base_path) == (Standing.WANTED, Goal.SERVE, '')
    assert cloud.homes[one].taken_over == 1
    assert f'image {IMAGE}: taken over from the storage node b' in caplog.text
    # Back again it hears of it.
    cloud.pass_by(5)
    assert cloud.homes[two].route(IMAGE) is None, 'it has not heard of it'
    cloud.stores[two].refresh()
    assert cloud.homes[two].route(IMAGE) == 'a'
    assert cloud.homes[one].route(IMAGE) is None and cloud.homes[one].taken_over == 1


def test_what_is_asked_for_is_taken_over_also_while_most_are_away(cloud, numbers):
    one, two, three = numbers
    cloud.put(two)
    cloud.pass_by(700, two, three)
    assert cloud.members[one].are_most_away and cloud.homes[one].due() == []
    assert cloud.homes[one].route(IMAGE) is None and cloud.stores[one].load(IMAGE) is not None


@pytest.mark.parametrize('standing', Standing)
def test_whatever_it_is_at(cloud, numbers, standing):
    one, two, _three = numbers
    cloud.put(two)
    cloud.stores[two].change(IMAGE, lambda known: known.standing_at(standing))
    cloud.pass_by(20, two)
    assert cloud.homes[one].route(IMAGE) is None
    assert cloud.stores[one].load(IMAGE).standing is standing


def test_a_node_that_is_forgotten_answers_for_nothing(cloud, numbers):
    one, two, _three = numbers
    cloud.put(two)
    cloud.change(two, wish=NodeWish.FORGOTTEN)
    assert cloud.homes[one].route(IMAGE) is None
    assert cloud.stores[one].load(IMAGE) is not None


def test_a_node_that_is_drained_answers_until_others_have_its_images(cloud, numbers):
    one, two, _three = numbers
    cloud.put(two)
    cloud.change(two, wish=NodeWish.DRAINED)
    assert cloud.homes[one].route(IMAGE) == 'b' and cloud.homes[two].route(IMAGE) is None


def test_an_image_of_a_node_that_has_just_come_is_not_taken_over(cloud, numbers):
    """This one has not seen its row yet."""
    one, two, _three = numbers
    cloud.put(two)
    cloud.members[one].observe([row for number, row in cloud.rows.items() if number != two])
    with pytest.raises(NodeAway, match='just come'):
        cloud.homes[one].route(IMAGE)
    assert not cloud.homes[one].take_over(IMAGE, two)
    assert cloud.stores[two].load(IMAGE) is not None


def test_who_cannot_judge_asks_the_home(cloud, numbers):
    """It is rather this node that was cut off: that one may answer."""
    one, two, _three = numbers
    cloud.put(two)
    cloud.pass_by(700, two)
    cloud.members[one].forget_clocks()
    assert cloud.homes[one].route(IMAGE) == 'b'
    assert cloud.stores[two].load(IMAGE) is not None and cloud.homes[one].taken_over == 0


def draining(cloud, one, _two):
    cloud.change(one, wish=NodeWish.DRAINED)


def newer_rules(cloud, _one, two):
    cloud.stores[two].change(IMAGE, lambda known: known.making(
        base_path='/glance/x', look_rules=RULES + 1))


@pytest.mark.parametrize('hinders', [draining, newer_rules])
def test_where_this_node_may_not_take_it_over_nobody_answers_now(cloud, numbers, hinders):
    one, two, _three = numbers
    cloud.put(two)
    cloud.pass_by(20, two)
    hinders(cloud, one, two)
    with pytest.raises(NodeAway, match='is away'):
        cloud.homes[one].route(IMAGE)
    assert cloud.homes[one].taken_over == 0
    cloud.refresh()
    assert cloud.stores[two].load(IMAGE) is not None


def test_who_is_overtaken_by_another_node_knows_its_name_the_next_time(cloud, numbers):
    one, two, three = numbers
    cloud.put(two)
    cloud.refresh()
    cloud.pass_by(20, two)
    assert cloud.homes[three].route(IMAGE) is None
    with pytest.raises(NodeAway):
        cloud.homes[one].route(IMAGE)
    assert cloud.homes[one].route(IMAGE) == 'c'


def test_what_was_deleted_before_it_is_taken_over_is_not_known(cloud, numbers):
    one, two, _three = numbers
    cloud.put(two)
    cloud.refresh()
    cloud.pass_by(20, two)
    cloud.stores[two].remove(IMAGE)
    assert cloud.homes[one].route(IMAGE) is None
    assert cloud.stores[one].anywhere(IMAGE) is None and cloud.homes[one].taken_over == 0


def test_what_cannot_be_written_is_not_taken_over(cloud, numbers, monkeypatch):
    one, two, _three = numbers
    cloud.put(two)
    cloud.refresh()
    cloud.pass_by(20, two)

    def away(work):
        raise DatabaseAway('it does not answer')

    with monkeypatch.context() as patch, pytest.raises(DatabaseAway):
        patch.setattr(cloud.database, 'write', away)
        cloud.homes[one].route(IMAGE)
    assert cloud.homes[one].taken_over == 0
    cloud.refresh()
    assert cloud.stores[two].load(IMAGE) is not None


# Where the base is.

def taken_base(cloud, made, number=0):
    """Where a node reads a base that another one has looked at, after it has taken that over."""
    one, two, _three = cloud.numbers
    if made.get('base_path', '').startswith('rbd:'):
        cloud.stores[two].files.begin(IMAGE, FileKind.CLONE, made['base_path'])
    cloud.put(two, look_rules=RULES, **made)
    cloud.refresh()
    assert cloud.homes[one].take_over(IMAGE, two)
    return cloud.stores[one].load(IMAGE).made


def test_a_clone_is_the_same_for_all(cloud, numbers):
    one = numbers[0]
    assert taken_base(cloud, {'base_path': CLONE}).base_path == CLONE
    assert cloud.files() == {CLONE: (one, 'ready')}


def test_a_file_on_a_file_system_of_all_is_read_where_this_node_has_it(cloud, numbers):
    one, two, _three = numbers
    theirs = glance_file(cloud, two)
    ours = str(cloud.path / 'a' / 'glance' / IMAGE)
    os.link(theirs, ours)
    known = savefile.signature(theirs)
    made = taken_base(cloud, {'base_path': theirs, 'base_file': known})
    assert (made.base_path, made.base_file) == (ours, known)
    assert cloud.stores[one].load(IMAGE).standing is Standing.DONE
    assert cloud.files() == {}


def copied(theirs, ours):
    """Another inode."""
    shutil.copy2(theirs, ours)


def touched(theirs, ours):
    """The same file, and it was written since it was looked at."""
    os.link(theirs, ours)
    os.utime(ours, (1, 1))


def longer(theirs, ours):
    os.link(theirs, ours)
    status = os.stat(theirs)
    with open(ours, 'a') as stream:
        stream.write('more')
    os.utime(ours, ns=(status.st_atime_ns, status.st_mtime_ns))


def missing(theirs, ours):
    """As it is with a store on the other node's own disk."""


@pytest.mark.parametrize('becomes', [copied, touched, longer, missing])
def test_any_other_file_is_not_the_base(cloud, numbers, becomes):
    theirs = glance_file(cloud, numbers[1])
    known = savefile.signature(theirs)
    becomes(theirs, str(cloud.path / 'a' / 'glance' / IMAGE))
    made = taken_base(cloud, {'base_path': theirs, 'base_file': known})
    assert (made.base_path, made.base_file) == ('', None)
    assert cloud.stores[numbers[0]].load(IMAGE).goal is Goal.SERVE


def test_a_file_that_was_not_looked_at_is_not_the_base(cloud, numbers):
    theirs = glance_file(cloud, numbers[1])
    os.link(theirs, str(cloud.path / 'a' / 'glance' / IMAGE))
    assert taken_base(cloud, {'base_path': theirs}).base_path == ''


def test_what_is_in_the_other_node_s_own_directory_is_not_read(cloud, numbers):
    """That node removes it, as soon as this one has a base."""
    two = numbers[1]
    path = cloud.stores[two].path(IMAGE, cloud.file(two))
    made = taken_base(cloud, {'base_path': path, 'base_file': savefile.signature(path)})
    assert made.base_path == ''
    assert cloud.files() == {os.path.basename(path): (two, 'ready')}


# Which node works on a new image.

def test_a_new_image_is_of_the_node_with_fewest_whoever_hears_of_it(cloud, numbers):
    one, two, three = numbers
    for image, home in zip(MANY, (one, three, three, two, two), strict=False):
        cloud.put(home, image)
    cloud.refresh()
    for number in numbers:
        assert cloud.homes[number].home_for(None) == one
        assert cloud.homes[number].home_for(OTHER) == one, 'of an image that nobody knows'
    cloud.pass_by(20, one)
    cloud.change(three, free_bytes=5)
    assert cloud.homes[two].home_for(None) == three, 'of two that one with most room'


def test_who_cannot_judge_keeps_a_new_image(cloud, numbers):
    cloud.put(numbers[0])
    cloud.members[numbers[0]].forget_clocks()
    assert cloud.homes[numbers[0]].home_for(None) == numbers[0]


def test_a_snapshot_is_of_its_parent_s_home(cloud, numbers):
    one, two, _three = numbers
    cloud.put(two)
    cloud.refresh()
    assert cloud.homes[one].home_for(IMAGE) == two == cloud.homes[two].home_for(IMAGE)
    cloud.pass_by(20, two)
    assert cloud.homes[one].home_for(IMAGE) == one, 'as that one is away'
    cloud.pass_by(5)
    assert cloud.homes[one].home_for(IMAGE) == two, 'though it has most'
    cloud.change(two, wish=NodeWish.DRAINED)
    assert cloud.homes[one].home_for(IMAGE) == one, 'as that one gets no images'


def test_a_node_that_is_drained_gives_new_images_to_the_one_with_most_room(cloud, numbers):
    one, two, three = numbers
    cloud.change(one, wish=NodeWish.DRAINED, free_bytes=1 << 50)
    cloud.change(two, free_bytes=5)
    cloud.change(three, free_bytes=7)
    assert cloud.homes[one].home_for(None) == three
    cloud.pass_by(20, three)
    assert cloud.homes[one].home_for(None) == two
    cloud.pass_by(20, two, three)
    assert cloud.homes[one].home_for(None) == one, 'there is nobody else'


def test_who_has_seen_nobody_yet_keeps_it(cloud, numbers):
    alone = Homes(cloud.stores[numbers[0]], Membership(numbers[0]), [])
    assert alone.home_for(None) == numbers[0]
