"""What operators see of compute hosts, and order."""

import time
import types

import pytest
from fakes_database import locked
from fakes_hosts import IMAGE, NOW, OTHER, holding, ready

from bootcache import exception
from bootcache.manifest import Manifest, Standing
from bootcache.rpc.fields import plain
from bootcache.rpc.messages import HoldingsAnswer
from bootcache.rpc.report import (
    BaseRead,
    BasesRead,
    HeldImage,
    HostReport,
    PausedGuest,
    PausedGuests,
    UnsettledServer,
    UnsettledServers,
)
from bootcache.tier import Medium
from glance_bootcache.db.writer import Writer
from glance_bootcache.hosts import holdings, orders
from glance_bootcache.hosts.orders import Orders
from tools import storedimages

# Operators.

def test_operators_see_hosts(house):
    ready(house)
    house.table.report('two', HostReport())
    house.seconds.now += 40
    house.table.report('one', HostReport(
        {IMAGE: HeldImage(1000.0, Medium.DISK, 0, 7), OTHER: HeldImage(NOW, Medium.MEMORY, 0, 5)},
        {Medium.DISK: 100, Medium.MEMORY: 50}, rpc='2.0', certificates_end=2e9))
    house.seconds.now += 2
    one, two = house.endpoints.list_hosts({})
    assert one == {'host': 'one', 'seen': 2.0, 'images': 2, 'bytes': {'disk': 7, 'memory': 5},
                   'quotas': {'disk': 100, 'memory': 50}, 'unsettled': None, 'paused': None,
                   'rpc': '2.0', 'certificates_end': 2e9}
    assert two == {'host': 'two', 'seen': 42.0, 'images': 0, 'bytes': {}, 'quotas': {},
                   'unsettled': None, 'paused': None, 'rpc': None, 'certificates_end': None}


def test_how_a_host_reads_bases(house, monkeypatch):
    monkeypatch.setattr('time.time', lambda: NOW)
    assert house.endpoints.host_bases({}, 'one') is None
    house.table.report('one', HostReport(bases=BasesRead(99, (
        BaseRead(IMAGE, '10.0.0.5:10810', 'a-0', 900.0, None),
        # Clocks differ.
        BaseRead(OTHER, '', '', 1e12, 1e12)))))
    house.seconds.now += 2
    assert house.endpoints.host_bases({}, 'one') == {'seen': 2.0, 'bases': {'bases': 99, 'named': [
        {'image_id': IMAGE, 'way': '10.0.0.5:10810', 'connector': 'a-0', 'since': 900.0,
         'answered': None},
        {'image_id': OTHER, 'way': '', 'connector': '', 'since': NOW, 'answered': NOW}]}}
    house.table.report('one', HostReport())
    assert house.endpoints.host_bases({}, 'one')['bases'] is None


@pytest.mark.parametrize('speaks_tls', [True, False])
def test_a_host_without_certificates_is_told_of_as_it_begins(house, caplog, speaks_tls):
    table = holdings.Hosts(house.store, house.tiers,
                           house.orders, house.seconds,
                           speaks_tls=speaks_tls)
    none, some = HostReport(), HostReport(certificates_end=2e9)
    for host, report in [
            ('bare', none), ('bare', none), ('bare', None), ('right', some),
            # It has lost them, and has them again.
            ('right', none), ('right', some)]:
        table.report(host, report)
    assert [record.getMessage().partition(' has no certificate')[0] for record in caplog.records
            if record.levelname == 'WARNING'] == ['host bare', 'host right'] * speaks_tls


def test_operators_see_where_an_image_is(house):
    assert house.endpoints.image_hosts({}, IMAGE) is None
    ready(house)
    assert house.endpoints.image_hosts({}, IMAGE.upper()) \
        == {'storage': 'disk', 'storage_bytes': len(b'cache image'), 'hosts': [],
            'exchanged': []}
    house.table.report('one', holding(IMAGE))
    house.table.report('two', holding(OTHER))
    house.seconds.now += 3
    entry = {'host': 'one', 'medium': 'disk', 'bytes': 7, 'last_use': 1000.0, 'seen': 3.0}
    assert house.endpoints.image_hosts({}, IMAGE)['hosts'] == [{**entry, 'leaving': False}]
    del house.images.images[IMAGE]
    house.deleted(IMAGE)
    # It is deleted, and one can see whether it has left the hosts.
    assert house.endpoints.image_hosts({}, IMAGE) \
        == {'storage': None, 'storage_bytes': None, 'hosts': [{**entry, 'leaving': True}],
            'exchanged': []}
    house.table.report('one', holding())
    assert house.endpoints.image_hosts({}, IMAGE) is None


def test_a_host_is_forgotten_after_a_day(house):
    ready(house)
    house.table.report('one', holding(IMAGE))
    house.seconds.now += 86400
    assert [host['seen'] for host in house.table.describe()] == [86400.0]
    house.seconds.now += 1
    assert house.table.describe() == [] and house.table.holders(IMAGE) == []
    house.table.report('two', HostReport())
    assert house.table.report('one', None).resend is True


def test_there_is_an_end_to_hosts(house, monkeypatch):
    monkeypatch.setattr(holdings, 'MOST_HOSTS', 3)
    for number in range(3):
        house.table.report(f'host-{number}', holding(IMAGE))
    with pytest.raises(exception.MessageRefused, match='host: 3 others report'):
        house.table.report('made-up', holding(IMAGE, OTHER))
    house.seconds.now += holdings.SILENT_SECONDS
    house.table.report('host-0', None)
    house.seconds.now += 1
    house.table.report('host-2', None)
    # Who is silent for long gives its place.
    house.table.report('new', holding(IMAGE, OTHER))
    assert [host['host'] for host in house.table.describe()] == ['host-0', 'host-2', 'new']
    assert house.table._held == 4
    assert house.table.report('host-1', None).resend is True
    with pytest.raises(exception.MessageRefused):
        house.table.report('host-1', HostReport())


def test_there_is_an_end_to_what_they_hold(house, monkeypatch):
    monkeypatch.setattr(holdings, '_MOST_HELD', 25)
    refused = []
    house.table.report('honest', holding(IMAGE))
    for number in range(10):
        house.table.report(f'host-{number}', holding(*(
            f'{number:04x}{image:04x}-1f2b-4c3d-8e9f-0a1b2c3d4e5f' for image in range(20))),
            refused.append)
    held = [len(host.holdings.images) for host in house.table._hosts.values()]
    assert sum(held) == house.table._held <= 25 and len(refused) == 9
    assert [host['host'] for host in house.table.holders(IMAGE)] == ['honest']


def test_evicting_from_all_hosts(house):
    ready(house)
    for host in ('two', 'one'):
        house.table.report(host, holding(IMAGE))
    house.table.report('three', holding())
    assert house.endpoints.evict_image({}, IMAGE.upper(), None) == ['one', 'two']
    assert house.tiers.demoted == [IMAGE]
    for host in ('one', 'two'):
        assert house.table.report(host, None).drop == (IMAGE,)
    assert [entry['leaving'] for entry in house.table.holders(IMAGE)] == [True, True]
    # A host that did not answer just then is told when it does, also by a restarted service.
    house.restart()
    assert house.table.report('away', holding(IMAGE)).drop == (IMAGE,)
    assert house.table.report('away', holding(IMAGE, generation=1)).drop == ()


def test_evicting_from_one_host(house):
    ready(house)
    for host in ('one', 'two'):
        house.table.report(host, holding(IMAGE))
    house.table.report('three', holding())
    assert house.endpoints.evict_image({}, IMAGE, ['three', 'one']) == ['one']
    assert house.tiers.demoted == [] and house.store.load(IMAGE).wished.generation == 0
    assert house.table.report('two', None).drop == ()
    # Until it has done so; a server may need it for long.
    for _minute in range(2):
        assert house.table.report('one', None).drop == (IMAGE,)
        assert house.table.report('one', holding(IMAGE)).drop == (IMAGE,)
    assert house.table.report('one', holding()).drop == ()
    # It may fetch it again.
    assert house.table.report('one', holding(IMAGE)).drop == ()


@pytest.mark.parametrize('names', [None, ['one']])
def test_a_pinned_image_is_not_evicted(house, names):
    ready(house)
    house.table.report('one', holding(IMAGE))
    house.operators.pin(IMAGE, True)
    with pytest.raises(exception.RequestRefused, match=f'bootcache unpin {IMAGE}'):
        house.operators.evict(IMAGE, names)
    assert house.table.report('one', None).drop == ()
    house.operators.pin(IMAGE, False)
    assert house.endpoints.evict_image({}, IMAGE, names) == ['one']


@pytest.mark.parametrize('names', [None, ['one'], []])
def test_an_unknown_image_is_named(house, names):
    with pytest.raises(exception.RequestRefused, match=IMAGE):
        house.operators.evict(IMAGE, names)


def test_an_unknown_host_is_named_and_nothing_is_done(house):
    ready(house)
    house.table.report('one', holding(IMAGE))
    with pytest.raises(exception.RequestRefused, match='elsewhere, nowhere') as caught:
        house.operators.evict(IMAGE, ['one', 'nowhere', 'elsewhere'])
    assert 'bootcache host list' in str(caught.value)
    assert house.table.report('one', None).drop == ()


# What comes in.

def test_reports_feed_the_record_of_uses(house):
    storedimages.put(house.store, Manifest(IMAGE, Standing.SKIPPED))
    held = plain(HeldImage(2e12, Medium.DISK, 0, 7))
    assert house.endpoints.report_holdings({}, 'one', {
        'images': {IMAGE.upper(): held, OTHER: {**held, 'last_use': 'x'}}})['drop'] == [IMAGE]
    (image, when), = house.tiers.noted
    assert image == IMAGE and when <= time.time()
    house.endpoints.report_holdings({}, 'one', None)
    assert len(house.tiers.noted) == 1


def test_reports_are_answered_without_the_database(house, database, monkeypatch):
    """A thousand hosts ask each minute."""
    ready(house)
    house.table.report('one', holding(IMAGE))
    with monkeypatch.context() as patch:
        patch.setattr(database, 'read', lambda query: pytest.fail('it is read'))
        for _report in range(3):
            assert house.table.report('one', None).drop == ()
    house.controller.let_go(IMAGE)
    assert house.table.report('one', None).drop == (IMAGE,)


def test_pinning(house):
    ready(house)
    for pinned in (True, False):
        assert house.operators.pin(IMAGE, pinned) is True
        assert house.store.load(IMAGE).wished.pinned is pinned
    assert house.operators.pin(OTHER, True) is False
    # Who says what is pinned is the manifest: nothing is copied for it.
    assert house.tiers.promoted == []


# Orders to single hosts.

def test_a_restart_does_not_lose_an_order(house):
    ready(house)
    house.table.report('one', holding(IMAGE))
    assert house.endpoints.evict_image({}, IMAGE, ['one']) == ['one']
    # The answer that tells the host is lost, and the service is started anew.
    house.restart()
    assert house.table.report('one', None) == HoldingsAnswer(resend=True)
    for _minute in range(2):
        assert house.table.report('one', holding(IMAGE)).drop == (IMAGE,)
        assert [entry['leaving'] for entry in house.table.holders(IMAGE)] == [True]
    house.table.report('one', holding())
    assert house.table.report('one', holding(IMAGE)).drop == ()
    house.writer.write()
    house.restart()
    assert house.table.report('one', holding(IMAGE)).drop == ()


def test_orders_have_an_end(database, monkeypatch):
    known = Orders(database)
    monkeypatch.setattr(orders, 'time', types.SimpleNamespace(time=lambda: 1e9))
    known.add(IMAGE, ['gone', 'one'])
    monkeypatch.setattr(orders, 'time', types.SimpleNamespace(time=lambda: 1e9 + 91 * 86400))
    known.add(IMAGE, ['one'])
    Writer(database, [known.changes]).write()
    again = Orders(database)
    assert again.of('gone') == frozenset() and again.of('one') == {IMAGE}
    monkeypatch.setattr(orders, '_MOST_ORDERS', 2)
    known.add(OTHER, ['one'])
    with pytest.raises(exception.RequestRefused, match='2 orders'):
        known.add(OTHER, ['two'])
    again = Orders(database)
    assert again.of('two') == frozenset() and again.of('one') == {IMAGE, OTHER}


def test_of_orders_to_all_hosts_the_latest_are_kept(database, monkeypatch):
    known = Orders(database)
    monkeypatch.setattr(orders, '_MOST_FOR_ALL', 2)
    images = [f'{number}a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f' for number in range(3)]
    for when, image in enumerate(images):
        monkeypatch.setattr(orders, 'time', types.SimpleNamespace(time=lambda when=when: when))
        known.add_for_all(image)
    Writer(database, [known.changes]).write()
    assert [Orders(database).is_for_all(image) for image in images] == [False, True, True]


def test_an_order_that_is_given_anew_stays_when_the_followed_one_goes(database):
    known = Orders(database)
    known.add(IMAGE, ['one'])
    known.settle('one', [])
    changes = known.changes(True)
    known.add(IMAGE, ['one'])
    database.write(changes.write)
    assert Orders(database).of('one') == {IMAGE}


def test_an_order_that_cannot_be_written_is_refused(house):
    ready(house)
    house.table.report('one', holding(IMAGE))
    with locked(house.orders._database):
        with pytest.raises(exception.DatabaseAway, match=r'bootcache\.sqlite.*locked'):
            house.table.order_eviction(IMAGE, ['one'])
        assert house.orders.of('one') == frozenset()
    house.table.order_eviction(IMAGE, ['one'])
    assert house.orders.of('one') == {IMAGE}


# Servers that depend on bootcache.

def test_operators_see_the_servers(house):
    house.table.report('one', HostReport(
        unsettled=UnsettledServers(1, (UnsettledServer('a', 'why'),))))
    house.table.report('two', HostReport())
    assert [(entry['host'], entry['unsettled']) for entry in house.endpoints.list_hosts({})] == [
        ('one', {'servers': 1, 'named': [{'server': 'a', 'why': 'why'}]}), ('two', None)]


def test_operators_see_who_waits(house, monkeypatch):
    monkeypatch.setattr('time.time', lambda: NOW)
    house.table.report('one', HostReport(paused=PausedGuests(2, (
        PausedGuest('a', 'the storage node is away', 900.0), PausedGuest('b', 'x', 1e12)))))
    house.table.report('two', HostReport())
    assert [entry['paused'] for entry in house.endpoints.list_hosts({})] == [
        {'servers': 2, 'named': [
            {'server': 'a', 'waits_for': 'the storage node is away', 'since': 900.0},
            {'server': 'b', 'waits_for': 'x', 'since': NOW}]}, None]
