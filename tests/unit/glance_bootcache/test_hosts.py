"""What hosts tell of their holdings, what they are told to drop, and what operators see of it."""

import itertools
import math

import pytest
from fakes_hosts import IMAGE, NOW, OTHER, holding, ready

from bootcache.exception import MessageRefused
from bootcache.manifest import Manifest, Standing, Wished
from bootcache.rpc.messages import HoldingsAnswer, PlanBoot
from glance_bootcache import availability
from glance_bootcache.hosts import holdings
from glance_bootcache.hosts.orders import Orders
from glance_bootcache.images import policy
from glance_bootcache.nodes.node import StorageNode
from glance_bootcache.storage.store import ImageStore
from tools import storedimages


@pytest.mark.parametrize('told, counts', [(NOW + 1, NOW), (NOW, NOW), (5.0, 5.0)])
def test_nothing_is_used_in_the_future(told, counts):
    read = holdings.clamp_times(holding(IMAGE, used=told), NOW, pytest.fail)
    assert read.images[IMAGE].last_use == counts


# What a host is to let go of: every case.

@pytest.mark.parametrize('standing, generation, held, ordered', [
    case for case in itertools.product((None, *Standing), (0, 1, 2), (0, 1, 2), (False, True))])
def test_what_is_to_go(standing, generation, held, ordered):
    manifest = None if standing is None \
        else Manifest(IMAGE, standing, wished=Wished(generation=generation))
    wanted = ordered or (standing is not None
                         and (standing is Standing.SKIPPED or held < generation))
    assert availability.is_to_go(held, manifest, ordered=ordered) is wanted


def test_a_host_keeps_what_it_may_hold(house):
    ready(house)
    assert house.table.report('one', holding(IMAGE)) == HoldingsAnswer()


@pytest.mark.parametrize('standing', [Standing.DONE, Standing.FAILED, Standing.WANTED])
def test_also_while_there_is_none_on_the_storage_node(house, standing):
    storedimages.put(house.store, Manifest(IMAGE, standing))
    assert house.table.report('one', holding(IMAGE)).drop == ()


@pytest.mark.parametrize('known_to_glance', [True, False])
def test_a_service_that_has_lost_its_state_leaves_the_hosts_warm(house, known_to_glance):
    """``state_dir`` is not mounted: all of the cloud would be cold at once."""
    ready(house)
    house.store.remove(IMAGE)
    if not known_to_glance:
        del house.images.images[IMAGE]
    for _minute in range(3):
        assert house.table.report('one', holding(IMAGE)).drop == ()
        house.once()


def test_what_was_deleted_is_to_go_whenever_a_host_holds_it(house):
    ready(house)
    house.table.report('one', holding(IMAGE))
    house.table.report('two', holding(OTHER))
    del house.images.images[IMAGE]
    house.deleted(IMAGE)
    assert house.store.load(IMAGE) is None
    # Nothing is known of it any more, and a restart changes nothing.
    house.restart()
    assert house.table.report('two', holding(OTHER)).drop == ()
    assert house.table.report('one', holding(IMAGE)).drop == (IMAGE,)
    assert house.table.report('one', holding()).drop == ()
    # It came to the host only now.
    assert house.table.report('one', holding(IMAGE)).drop == (IMAGE,)


def test_uses_of_what_is_not_known_are_not_remembered(house):
    house.table.report('one', holding(IMAGE))
    assert house.tiers.noted == []


def test_a_report_that_says_no_news_drops_as_well(house):
    ready(house)
    house.table.report('one', holding(IMAGE))
    assert house.table.report('one', None) == HoldingsAnswer()
    house.evict(IMAGE)
    assert house.table.report('one', None) == HoldingsAnswer((IMAGE,))
    assert house.table.report('one', holding()) == HoldingsAnswer()


def test_a_service_that_was_restarted_asks_for_the_holdings(house):
    ready(house)
    house.table.report('one', holding(IMAGE))
    house.restart()
    assert house.table.report('one', None) == HoldingsAnswer(resend=True)
    assert house.table.describe() == []
    assert house.table.report('one', holding(IMAGE)) == HoldingsAnswer()
    assert house.table.report('one', None) == HoldingsAnswer()


# Several storage nodes: each hears of a host's report, some of them by another one.

def test_nothing_new_is_said_of_the_last_report(house):
    """One that has come to another node alone is to be told here."""
    table, sender = house.table, 'process x'
    assert table.report('one', holding(IMAGE), sender=sender, number=1) == HoldingsAnswer()
    assert table.report('one', None, sender=sender, number=1) == HoldingsAnswer()
    for number in 0, 2:
        assert table.report('one', None, sender=sender, number=number).resend
    assert table.report('one', None, sender=sender, number=1) == HoldingsAnswer()
    assert table.report('one', None, sender='process y', number=1).resend
    table.report('one', holding(OTHER), sender=sender, number=2)
    assert table.report('one', None, sender=sender, number=1).resend
    assert table.report('one', None, sender=sender, number=2) == HoldingsAnswer()
    assert generations(house) == {} and generations(house, OTHER) == {'one': 0}
    # It numbers anew after its restart, and is another process then.
    table.report('one', holding(IMAGE), sender='process y', number=1)
    assert table.report('one', None, sender=sender, number=2).resend
    assert table.report('one', None, sender='process y', number=1) == HoldingsAnswer()


def test_a_report_that_is_not_known_says_nothing_of_the_host(house):
    house.table.report('one', holding(IMAGE), number=1)
    house.seconds.now += 60
    seen = house.table.seen()
    assert house.table.report('one', None, number=2).resend and house.table.seen() == seen


@pytest.fixture
def elsewhere(house, database, tmp_path):
    """The images of another storage node, by the same database."""
    node = StorageNode(database, str(tmp_path / 'other.json'), 'storage-2', lambda seconds: None)
    (tmp_path / 'other').mkdir()
    return ImageStore(str(tmp_path / 'other'), database, node.id)


def test_of_another_node_s_image_the_same_is_to_go(house, elsewhere):
    elsewhere.add(Manifest(IMAGE))
    house.store.refresh()
    assert house.store.load(IMAGE) is None
    assert house.table.report('one', holding(IMAGE)).drop == ()
    elsewhere.change(IMAGE, lambda known: known.wishing(generation=1))
    house.store.refresh()
    assert house.table.report('one', holding(IMAGE)).drop == (IMAGE,)
    assert house.table.report('one', holding(IMAGE, generation=1)).drop == ()
    elsewhere.change(IMAGE, lambda known: known.standing_at(Standing.SKIPPED))
    house.store.refresh()
    assert house.table.report('one', holding(IMAGE, generation=1)).drop == (IMAGE,)


def test_what_was_deleted_and_is_another_node_s_since_stays(house, elsewhere):
    house.orders.add_for_all(IMAGE)
    assert house.table.report('one', holding(IMAGE)).drop == (IMAGE,)
    elsewhere.add(Manifest(IMAGE))
    house.store.refresh()
    assert house.table.report('one', holding(IMAGE)).drop == ()


def test_what_another_node_orders_to_go_goes(house, database):
    other = Orders(database)
    house.table.report('one', holding(IMAGE, OTHER))
    other.add(IMAGE, ['one'])
    other.add_for_all(OTHER)
    assert house.table.report('one', None).drop == ()
    house.orders.refresh()
    assert set(house.table.report('one', None).drop) == {IMAGE, OTHER}
    # What the host has followed stays so, also before its row is gone.
    house.table.report('one', holding())
    house.orders.refresh()
    assert house.orders.of('one') == frozenset()
    house.writer.write()
    other.refresh()
    assert other.of('one') == frozenset() and other.is_for_all(OTHER)


# Generations.

@pytest.mark.parametrize('before, after', itertools.product(
    ('', *policy.VISIBILITIES, 'odd'), repeat=2))
def test_generations_and_visibility(before, after):
    order = {'public': 4, 'community': 3, 'shared': 2, 'private': 1}
    seen = policy.seen(Manifest(IMAGE, wished=Wished(visibility=before, generation=5)), after)
    fewer = before in order and after in order and order[after] < order[before]
    assert (seen.wished.visibility, seen.wished.generation) == (after or before, 5 + fewer)


def generations(house, image=IMAGE):
    return house.table.held_since(image, -math.inf)


def test_which_hosts_hold_an_image_follows_their_reports(house, monkeypatch):
    table = house.table
    for name in 'one', 'two':
        table.report(name, holding(IMAGE, OTHER, generation=3))
    assert generations(house) == {'one': 3, 'two': 3}
    table.report('one', holding(IMAGE, generation=4))
    table.report('two', None)
    assert generations(house) == {'one': 4, 'two': 3} and generations(house, OTHER) == {'two': 3}
    assert [entry['host'] for entry in table.holders(IMAGE)] == ['one', 'two']
    assert table.order_eviction(OTHER, ['one', 'two']) == ['two']
    # One that names too much is as one that holds nothing.
    monkeypatch.setattr(holdings, '_MOST_HELD', 2)
    table.report('two', holding(OTHER, IMAGE))
    assert generations(house) == {'one': 4} and generations(house, OTHER) == {}
    # One that is silent for a day is forgotten when another one comes.
    house.seconds.now += 86400 - 1
    table.report('two', holding(OTHER))
    house.seconds.now += 2
    assert table.holders(IMAGE) == [] and table.bases('one') is None
    table.report('three', holding())
    assert generations(house) == {} and generations(house, OTHER) == {'two': 0}
    assert table.seen().keys() == {'two', 'three'} and table._held == 1


def test_of_hosts_without_a_place_the_one_that_is_silent_for_longest_is_forgotten(
        house, monkeypatch):
    monkeypatch.setattr(holdings, 'MOST_HOSTS', 2)
    for name in 'one', 'two':
        house.table.report(name, holding(IMAGE))
        house.seconds.now += 1
    house.table.report('one', None, sender='')
    house.seconds.now += holdings.SILENT_SECONDS - 2
    with pytest.raises(MessageRefused, match='2 others report'):
        house.table.report('three', holding())
    house.seconds.now += 2
    house.table.report('three', holding())
    assert generations(house) == {'one': 0}


def test_an_image_that_fewer_people_may_see_leaves_the_hosts(house):
    house.images.put(IMAGE, visibility='public')
    house.changed(IMAGE)
    house.settle()
    plan = house.hosts.plan_boot(PlanBoot(IMAGE, 'one', 'server'))
    assert (plan['action'], plan['generation']) == ('cache', 0)
    house.images.put(IMAGE, visibility='private')
    house.changed(IMAGE)
    assert house.table.report('one', holding(IMAGE)).drop == (IMAGE,)
    # Whoever may see it boots from its cache image as before.
    plan = house.hosts.plan_boot(PlanBoot(IMAGE, 'one', 'server'))
    assert (plan['action'], plan['generation']) == ('cache', 1)
    assert house.table.report('one', holding(IMAGE, generation=1)).drop == ()
    assert len(house.boots.jobs) == 1 and house.state(IMAGE) == 'ready'


def test_more_people_may_see_it(house):
    ready(house)
    house.images.put(IMAGE, visibility='public')
    house.changed(IMAGE)
    assert house.store.load(IMAGE).wished.visibility == 'public'
    assert house.table.report('one', holding(IMAGE)).drop == ()


def test_a_change_while_the_service_was_down_is_seen_by_its_start(house):
    house.images.put(IMAGE, visibility='public')
    house.changed(IMAGE)
    house.settle()
    house.images.put(IMAGE, visibility='shared')
    house.restart()
    house.recover()
    assert house.table.report('one', holding(IMAGE)).drop == (IMAGE,)


def test_an_image_of_an_earlier_version_has_no_visibility_yet(house):
    ready(house)
    storedimages.put(house.store, house.store.load(IMAGE).wishing(visibility=''))
    house.images.put(IMAGE, visibility='private')
    house.changed(IMAGE)
    manifest = house.store.load(IMAGE)
    assert (manifest.wished.visibility, manifest.wished.generation) == ('private', 0)


@pytest.mark.parametrize('status', ['importing', 'active', 'deactivated'])
def test_visibility_is_noted_whatever_becomes_of_the_image(house, status):
    house.images.put(IMAGE, status=status, visibility='public')
    house.changed(IMAGE)
    house.settle()
    assert house.store.load(IMAGE).wished.visibility == 'public'
    house.images.put(IMAGE, status=status, visibility='private')
    house.changed(IMAGE)
    manifest = house.store.load(IMAGE)
    assert (manifest.wished.visibility, manifest.wished.generation) == ('private', 1)


def test_what_changes_while_it_is_recorded_is_not_lost(house):
    house.boots.gate.clear()
    house.images.put(IMAGE, visibility='public')
    house.changed(IMAGE)
    house.images.put(IMAGE, visibility='private')
    house.changed(IMAGE)
    house.controller.let_go(IMAGE)
    house.boots.gate.set()
    house.settle()
    manifest = house.store.load(IMAGE)
    assert (manifest.state, manifest.wished.visibility, manifest.wished.generation) == ('ready',
        'private', 2)
