"""Images that are no longer given out: how long a round of looking at them takes."""

import os
import time

import pytest
from fakes_clock import Clock

from bootcache.manifest import Availability, Made, Manifest, Standing, Wished
from bootcache.reasons import Cause, Reason
from bootcache.rpc.report import HostReport
from glance_bootcache.images import retiring as module
from glance_bootcache.images.retiring import Retiring
from tools import storedimages

IMAGES = [f'{number}a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f' for number in range(1, 6)]


class HangingNova:
    """Stands for a Nova that answers nothing until the client gives up."""

    def __init__(self, clock):
        self.clock = clock
        self.hangs = True
        self.asked = []

    def has_servers(self, image_id, created_before=None):
        """As NovaProfileBoots.has_servers."""
        self.asked.append(image_id)
        if self.hangs:
            self.clock.now += 60
            raise TimeoutError('no answer')
        return False


@pytest.fixture
def retiring(house):
    for image_id in IMAGES:
        storedimages.put(house.store, Manifest(image_id, Standing.SKIPPED, Cause(Reason.DELETED),
                                 made=Made('/base'),
                                 wished=Wished(availability=Availability.DELETED)))
    clock = Clock()
    nova = HangingNova(clock)
    made = Retiring(house.store, house.exporter, house.tiers, nova, house.needs,
                    house.table, clock)
    for image_id in IMAGES:
        made.later(image_id)
    return made, nova


def test_a_nova_that_hangs_does_not_hold_the_round_up_for_each_image(retiring, house):
    """The exporter, quotas and Glance are looked after in the same thread."""
    made, nova = retiring
    made.retry()
    assert nova.asked == IMAGES[:1]
    # The others have their turn in the next rounds, none before all had.
    for _round in IMAGES:
        made.retry()
    assert nova.asked == [*IMAGES, IMAGES[0]]
    nova.hangs = False
    made.retry()
    assert made.waiting() == [] and house.store.manifests() == []


def test_what_keeps_a_base_is_told(house):
    """So that an operator knows where to look."""
    image = IMAGES[0]
    house.images.put(image)
    house.manager.consider(image)
    house.settle()

    def told():
        house.manager.retiring.retry()
        return house.operators.get_image(image)['kept_for']

    assert told() == []
    for host in ('two', 'one'):
        house.endpoints.report_holdings({}, host, {'images': {}, 'needs': [image], 'quotas': {}})
    assert told() == ['host one', 'host two'], 'of an image that is there as well'
    del house.images.images[image]
    house.boots.servers = {image}
    house.exporter.readers = {image}
    house.manager.forget(image)
    assert told() == ['host one', 'host two']
    for host in ('two', 'one'):
        house.endpoints.report_holdings({}, host, {'images': {}, 'needs': [], 'quotas': {}})
    assert told() == [module.SERVERS.format(image)]
    house.boots.away = True
    assert told() == [module.NOT_KNOWN]
    house.boots.away, house.boots.servers = False, set()
    assert told() == [module.CONNECTED]
    house.exporter.readers = set()
    house.manager.retiring.retry()
    assert house.operators.get_image(image) is None


def test_many_hosts_are_not_all_named(house, monkeypatch):
    monkeypatch.setattr(module, '_MOST_SHOWN', 2)
    storedimages.put(house.store, Manifest(IMAGES[0], Standing.DONE))
    for host in 'cab':
        house.needs.note(host, HostReport(needs=frozenset([IMAGES[0]])))
    assert house.operators.get_image(IMAGES[0])['kept_for'] == ['host a', 'host b', '1 more']


def test_the_base_of_a_cell_that_is_down_stays(house, monkeypatch):
    """Its hosts are silent, and GET /servers?image= leaves out what such a cell has."""
    image, shift = IMAGES[0], [0.0]
    monkeypatch.setattr(house.needs, '_clock', lambda: time.monotonic() + shift[0])
    house.images.put(image)
    house.manager.consider(image)
    house.settle()
    base = house.store.load(image).made.base_path
    house.endpoints.report_holdings({}, 'one', {'images': {}, 'needs': [image], 'quotas': {}})
    del house.images.images[image]
    house.manager.forget(image)
    for _day in range(3):
        shift[0] += 86401
        house.upkeep.once()
        assert os.path.exists(base)
    assert house.operators.get_image(image)['kept_for'] == ['host one']
    house.endpoints.report_holdings({}, 'one', {'images': {}, 'needs': [], 'quotas': {}})
    house.upkeep.once()
    assert not os.path.exists(base)
