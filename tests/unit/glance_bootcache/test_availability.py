"""What of an image is still served in each of its states: the table, and that it is so."""

import collections

import pytest
from fakes_hosts import holding

from bootcache.manifest import Availability
from bootcache.rpc.messages import (
    ExchangeBase,
    ExchangeOffer,
    PlanBoot,
    ReportBoot,
    ServeStored,
    StoredExport,
)
from glance_bootcache import availability
from glance_bootcache.availability import Served
from glance_bootcache.images import policy

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
OTHER = '8a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
A = Availability
Row = collections.namedtuple(
    'Row', 'recording build cache_image base_running base_to_settle hosts_keep')
TABLE = {
    A.ACTIVE: Row(True, True, True, True, True, True),
    A.HIDDEN: Row(True, True, True, True, True, True),
    A.MEMBER_REMOVED: Row(True, True, True, True, True, False),
    A.DEACTIVATED: Row(False, False, False, True, False, False),
    A.OFF: Row(False, False, False, True, False, False),
    A.MISSING: Row(False, False, False, True, True, True),
    A.DELETION_NOTIFIED: Row(False, False, False, True, True, True),
    A.DELETED: Row(False, False, False, True, True, False),
}


@pytest.mark.parametrize('state', Availability)
def test_the_table(state):
    row = TABLE[state]
    assert availability.served(state) == Served(row.cache_image, row.base_to_settle, row.hosts_keep)


def bring(house, state):
    """Bring the image into a state, as Glance tells of it."""
    if state is A.HIDDEN:
        house.images.put(IMAGE)
        house.images.images[IMAGE][1].properties['os_hidden'] = True
    elif state is A.MEMBER_REMOVED:
        house.controller.let_go(IMAGE)
    elif state is A.DEACTIVATED:
        house.images.put(IMAGE, status='deactivated')
    elif state is A.OFF:
        house.images.put(IMAGE, mode='Off ')
    elif state is not A.ACTIVE:
        del house.images.images[IMAGE]
    if state is A.DELETION_NOTIFIED:
        house.deletions._delay = 300
    if state in (A.DELETION_NOTIFIED, A.DELETED):
        house.deleted(IMAGE)
    else:
        house.changed(IMAGE)
    house.settle()


def recorded(house):
    """Whether the report of a server's boot is taken."""
    manifest = house.store.load(IMAGE)
    return not house.hosts.report_boot(ReportBoot(IMAGE, manifest.made.base_hash, 'one', 4096, [[0,
        4096]], 'marker', 1.0))


@pytest.mark.parametrize('state', Availability)
def test_it_is_so(house, state):
    """With a server that runs from the base, and is not settled."""
    house.images.put(IMAGE)
    house.changed(IMAGE)
    house.settle()
    house.boots.servers = {IMAGE}
    house.exporter.readers = {IMAGE}
    assert house.hosts.serve_stored(ServeStored(IMAGE, 'host')).export in house.exporter.stored
    house.table.report('one', holding(IMAGE))
    # So that the report of a boot can be asked for.
    house.store.change(IMAGE, lambda manifest: manifest.making(working_set=None))
    bring(house, state)
    row = TABLE[state]
    if state is not A.MEMBER_REMOVED:
        assert house.store.load(IMAGE).wished.availability is state
    answer = house.hosts.plan_boot(PlanBoot(IMAGE, 'one', 'server'))
    assert (answer['action'] != 'stock') is row.cache_image
    assert ('cache_image' in answer) is row.cache_image
    assert (house.exporter.serving[IMAGE][1] is not None) is row.cache_image
    # The base is named to a host whose server has lost its cache image, and is served.
    assert ('base_export' in answer) is row.base_running
    assert (house.exporter.serving[IMAGE][0] is not None) is row.base_running
    assert (house.exporter.stored != set()) is row.base_to_settle, 'who copies it is cut off'
    assert (house.hosts.serve_stored(ServeStored(IMAGE, 'host')) is not None) is row.base_to_settle
    assert (house.table.report('one', holding(IMAGE)).drop == ()) is row.hosts_keep
    assert recorded(house) is row.recording
    builds = len(house.qemu.builds)
    house.settle()
    house.controller.rebuild(IMAGE)
    house.settle()
    assert (len(house.qemu.builds) > builds) is row.build


@pytest.mark.parametrize('state', [A.DEACTIVATED, A.OFF])
def test_nor_is_it_given_by_exchange(house, state, monkeypatch):
    house.images.put(IMAGE)
    house.changed(IMAGE)
    house.settle()
    house.boots.servers = {IMAGE}
    monkeypatch.setattr(house.offers, '_is_on', True)
    monkeypatch.setattr(house.offers._health, 'may_ask', lambda: True)
    monkeypatch.setattr(house.offers, '_must_wait', lambda key: True)
    asked = ExchangeBase(IMAGE, 'one', house.store.load(IMAGE).made.base_hash, '192.0.2.1', 1, '')
    assert house.offers.offer_base(asked, 'one') == ExchangeOffer()
    bring(house, state)
    assert house.offers.offer_base(asked, 'one') is None


def test_what_a_deactivated_image_says_when_it_is_active_again(house):
    house.images.put(IMAGE)
    house.changed(IMAGE)
    house.settle()
    house.boots.servers = {IMAGE}
    bring(house, A.DEACTIVATED)
    assert house.hosts.serve_stored(ServeStored(IMAGE, 'host')) is None
    house.images.put(IMAGE)
    house.changed(IMAGE)
    house.settle()
    assert house.hosts.serve_stored(ServeStored(IMAGE, 'host')).settle is True


@pytest.mark.parametrize('status, properties, state', [
    ('active', {}, A.ACTIVE), ('active', {'os_hidden': True}, A.HIDDEN),
    ('active', {'os_hidden': False}, A.ACTIVE), ('deactivated', {}, A.DEACTIVATED),
    ('deactivated', {'bootcache_mode': 'off'}, A.DEACTIVATED),
    ('active', {'bootcache_mode': ' OFF'}, A.OFF), ('importing', {}, A.ACTIVE)])
def test_how_glance_tells(status, properties, state):
    assert policy.availability(policy.ImageFacts(
        IMAGE, status, 'raw', 'bare', 1, '', 0, 0, properties)) is state


def test_an_image_that_is_not_to_be_settled_says_so_while_it_is_deactivated(house):
    house.images.put(IMAGE, settle='no')
    house.changed(IMAGE)
    house.settle()
    house.boots.servers = {IMAGE}
    house.images.put(IMAGE, status='deactivated', settle='no')
    house.changed(IMAGE)
    assert house.hosts.serve_stored(ServeStored(IMAGE, 'host')) == StoredExport(settle=False)
    # Its owner may have another wish meanwhile.
    house.images.put(IMAGE, status='deactivated')
    house.changed(IMAGE)
    assert house.hosts.serve_stored(ServeStored(IMAGE, 'host')) is None
