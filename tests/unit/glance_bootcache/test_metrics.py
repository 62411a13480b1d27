"""The storage service's metrics: what was counted, and what is read, as Prometheus reads them."""

import types

import oslo_messaging as messaging
import pytest
from fakes_clock import Clock
from fakes_manager import until
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from bootcache.exception import BootcacheError, DatabaseAway, MessageRefused, RequestRefused
from bootcache.rpc import messages
from bootcache.rpc.messages import ExchangeWay, NodeWish, ReportExchange
from bootcache.rpc.report import HostReport, PausedGuests, UnsettledServers
from bootcache.tier import Medium
from glance_bootcache import monitoring
from glance_bootcache.health import HealthChecks
from glance_bootcache.hosts.holdings import SILENT_SECONDS
from glance_bootcache.metrics import ImageStep
from glance_bootcache.nodes.membership import AWAY_SECONDS, Membership, NodeRecord

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
OTHER = IMAGE.replace('7', '8', 1)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def membership(clock):
    return Membership(1, clock)


@pytest.fixture
def scrape(house, database, storage_conf, membership):
    """Read all metrics: by name, and by their labels' values in the order of their names."""
    def ill():
        raise BootcacheError('it does not answer')

    monitoring.sample(
        house.metrics, storage_conf, store=house.store, running=house.running,
        tiers=types.SimpleNamespace(
            used=lambda manifests: {Medium.DISK: sum(1 for _manifest in manifests)},
            quotas=lambda: {Medium.DISK: 7}),
        hosts=house.table, given=house.offers.given, rejected=house.rejected,
        snapshots=types.SimpleNamespace(counts=lambda: {'ready': 2}), database=database,
        health_checks=HealthChecks({'bus': lambda: None, 'database': ill}), membership=membership,
        homes=types.SimpleNamespace(taken_over=3), standbys=types.SimpleNamespace(missing=2))

    def read():
        text = generate_latest(house.metrics.registry).decode()
        return {(sample.name, *(value for _name, value in sorted(sample.labels.items()))):
                sample.value for family in text_string_to_metric_families(text)
                for sample in family.samples}

    return read


def plan(house, image=IMAGE, server='server'):
    return house.endpoints.plan_boot({}, image, 'host', server)


def test_images_and_their_steps(house, scrape):
    found = scrape()
    assert found['bootcache_images', 'ready'] == found['bootcache_images', 'failed'] == 0
    house.images.put(IMAGE)
    house.changed(IMAGE)
    house.settle()
    house.images.put(OTHER, mode='off')
    house.changed(OTHER)
    house.settle()
    found = scrape()
    assert found['bootcache_images', 'ready'] == found['bootcache_images', 'skipped'] == 1
    for step in ImageStep:
        assert found['bootcache_image_step_seconds_count', 'done', step] == 1
    assert found['bootcache_tier_used_bytes', 'storage_disk'] == 2
    assert found['bootcache_tier_quota_bytes', 'storage_disk'] == 7
    assert found['bootcache_snapshots', 'ready'] == 2
    assert found['bootcache_backend_up', 'bus'] == 1
    assert found['bootcache_backend_up', 'database'] == 0


def test_boots_by_way_and_reason(house, scrape):
    house.images.put(OTHER, mode='off')
    plan(house, OTHER)
    house.settle()
    plan(house, OTHER)
    house.images.put(IMAGE)
    house.changed(IMAGE)
    house.settle()
    plan(house)
    plan(house)
    plan(house, server='')
    found = scrape()
    # Labels in the order of their names: reason, way.
    assert found['bootcache_boots_planned_total', 'base-not-ready', 'wait'] == 1
    assert found['bootcache_boots_planned_total', 'mode-off', 'stock'] == 1
    assert found['bootcache_boots_planned_total', '', 'cache'] == 2, 'nobody boots without a server'
    assert found['bootcache_cache_image_hits_total', 'storage_disk'] == 2
    assert found['bootcache_rpc_seconds_count', 'plan_boot', 'answered'] == 5


@pytest.mark.parametrize(('error', 'outcome'), [
    (RequestRefused('no'), 'refused'), (MessageRefused('host', 'no'), 'rejected'),
    (BootcacheError('no'), 'failed'), (ValueError('no'), 'failed')], ids=repr)
def test_calls_by_outcome(house, scrape, monkeypatch, error, outcome):
    def fail(*_arguments):
        raise error

    monkeypatch.setattr(house.operators, 'get_image', fail)
    with pytest.raises(type(error)):
        house.endpoints.get_image({}, image_id=IMAGE)
    with pytest.raises(messaging.NoSuchMethod):
        house.endpoints.send({'method': 'x' * 1000, 'args': {}, 'version': messages.VERSION})
    found = scrape()
    assert found['bootcache_rpc_seconds_count', 'get_image', outcome] == 1
    assert found['bootcache_rpc_seconds_count', 'unknown', 'rejected'] == 1
    assert found['bootcache_rejected_messages_total', 'method', ''] == 1
    assert (('bootcache_rejected_messages_total', 'host', 'get_image') in found) \
        == (outcome == 'rejected')


def test_what_hosts_report(house, scrape):
    now = 2_000_000_000.0
    for name, unsettled, paused, end in ('one', 3, 0, now), ('two', 4, 2, None):
        house.table.report(name, HostReport(
            unsettled=UnsettledServers(unsettled, ()), paused=PausedGuests(paused, ()),
            certificates_end=end))
    found = scrape()
    assert found['bootcache_hosts', 'reporting'] == 2 and found['bootcache_hosts', 'silent'] == 0
    assert found['bootcache_reported_servers_unsettled',] == 7
    assert found['bootcache_reported_guests_paused',] == 2
    assert found['bootcache_reported_certificate_end_timestamp_seconds',] == now
    house.seconds.now += SILENT_SECONDS + 1
    house.table.report('one', HostReport(unsettled=UnsettledServers(1, ())))
    found = scrape()
    assert found['bootcache_hosts', 'reporting'] == found['bootcache_hosts', 'silent'] == 1
    assert found['bootcache_reported_servers_unsettled',] == 1
    assert found['bootcache_reported_guests_paused',] == 0
    assert ('bootcache_reported_certificate_end_timestamp_seconds',) not in found


def test_storage_nodes_are_counted_where_there_are_several(scrape, membership, clock):
    def observe(*others):
        membership.observe([NodeRecord(1, 'own', int(clock.now)), *others])

    observe()
    found = scrape()
    assert not {'bootcache_storage_nodes', 'bootcache_images_without_standby'} & {
        name for name, *_labels in found}
    assert found['bootcache_images_taken_over_total',] == 3
    rows = [NodeRecord(2, 'b', 1), NodeRecord(3, 'c', 1, wish=NodeWish.DRAINED)]
    for _look in range(3):
        observe(*rows)
        clock.now += AWAY_SECONDS / 2
    found = scrape()
    assert found['bootcache_images_without_standby',] == 2
    assert {state: found['bootcache_storage_nodes', state]
            for state in ('up', 'away', 'out', 'drained')} \
        == {'up': 1, 'away': 1, 'out': 0, 'drained': 1}


def test_exchanged_files(house, scrape):
    house.offers.given.note(
        ReportExchange('image', 'two', 'file', ExchangeWay.STALLED, [('a', 40), ('s', 35)], 25,
                       gives=False), 'cache image', 100, {'a': 'one', 's': ''})
    found = scrape()
    assert found['bootcache_exchange_files_total', 'stalled'] == 1
    assert found['bootcache_exchange_files_total', 'exchanged'] == 0
    for giver, count in ('hosts', 40), ('storage_node', 35), ('exporter', 25):
        assert found['bootcache_exchange_bytes_total', giver] == count


def test_errors_of_the_database(scrape, database):
    assert scrape()['bootcache_database_errors_total',] == 0

    def fail(connection):
        connection.exec_driver_sql('SELECT * FROM nothing')

    with pytest.raises(DatabaseAway):
        database.read(fail)
    assert scrape()['bootcache_database_errors_total',] == 1
    assert scrape()['bootcache_database_retries_total',] == 0


def test_images_that_wait_for_their_turn(house, scrape):
    assert scrape()['bootcache_queue_oldest_seconds', 'record'] == 0
    house.boots.gate.clear()
    for number in range(4):
        image = IMAGE.replace('7a', f'{number}a', 1)
        house.images.put(image)
        house.changed(image)
    until(lambda: scrape()['bootcache_queue_images', 'record'] == 2, 'those that wait')
    assert scrape()['bootcache_queue_oldest_seconds', 'record'] > 0
    house.boots.gate.set()
    house.settle()
    assert scrape()['bootcache_queue_images', 'record'] == 0


def test_nothing_names_an_image_or_a_host(house, scrape):
    house.images.put(IMAGE)
    house.changed(IMAGE)
    house.settle()
    house.endpoints.plan_boot({}, IMAGE, 'host-7', 'server-7')
    told = {value for key in scrape() for value in key[1:]}
    assert not any(IMAGE in value or '-7' in value for value in told)
