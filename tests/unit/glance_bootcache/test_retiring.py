"""Images that are no longer given out: what keeps their bases, and until when."""

import itertools
import os
import threading
import time

from fakes_manager import until

from bootcache.manifest import Availability, Made, Manifest, Standing, Wished
from bootcache.reasons import Cause, Reason
from bootcache.rpc.report import HostReport
from glance_bootcache.images import retiring as module
from tools import storedimages

IMAGES = [f'{number}a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f' for number in range(1, 6)]
OTHER = '9a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'


def test_a_nova_that_hangs_holds_up_no_other_work(house, monkeypatch):
    """It is asked whether servers need what is skipped; images of others are got and recorded."""
    hangs, answers = threading.Event(), threading.Event()

    def has_servers(image_id, created_before=None):
        hangs.set()
        assert answers.wait(60)
        return False

    monkeypatch.setattr(house.boots, 'has_servers', has_servers)
    for image_id in IMAGES:
        storedimages.put(house.store, Manifest(image_id, Standing.SKIPPED, Cause(Reason.DELETED),
                                 made=Made('/base'),
                                 wished=Wished(availability=Availability.DELETED)))
        house.controller.image_changed(image_id)
    assert hangs.wait(20)
    house.images.put(OTHER)
    house.controller.image_changed(OTHER)
    try:
        until(lambda: house.state(OTHER) == 'ready', 'the work on another image')
    finally:
        answers.set()
    house.settle()
    assert [record.image_id for record in house.store.manifests()] == [OTHER]


def test_nova_is_asked_less_and_less_often_what_keeps_a_base(house):
    house.boots.servers, asked = {IMAGES[0]}, []
    has_servers = house.boots.has_servers
    house.boots.has_servers = lambda image_id, before=None: asked.append(
        house.seconds.now) or has_servers(image_id, before)
    storedimages.put(house.store, Manifest(
        IMAGES[0], Standing.SKIPPED, Cause(Reason.DELETED), made=Made('/base'),
        wished=Wished(availability=Availability.DELETED)))
    house.changed(IMAGES[0])
    for _half_a_minute in range(120):
        house.later(30)
    pauses = [later - sooner for sooner, later in itertools.pairwise(asked)]
    assert pauses[:4] == [30, 60, 120, 240] and set(pauses[4:]) == {300}
    # A base that nobody needs any more is given up within five minutes.
    house.boots.servers = set()
    house.later(300)
    assert house.store.manifests() == []


def test_what_is_withdrawn_is_written_before_its_row_goes(house):
    """A service that is killed in between serves by the file, and nobody withdraws it again."""
    image, written = IMAGES[0], []
    house.images.put(image)
    house.changed(image)
    house.settle()
    assert image in house.exporter.serving
    house.exporter.save_served = lambda: written.append(
        (house.store.load(image) is not None, image in house.exporter.serving))
    del house.images.images[image]
    house.deleted(image)
    house.later(600)
    assert house.store.load(image) is None and written[-1] == (True, False)


def test_what_keeps_a_base_is_told(house):
    """So that an operator knows where to look."""
    image = IMAGES[0]
    house.images.put(image)
    house.changed(image)
    house.settle()

    def told():
        house.later(300)
        return house.operators.get_image(image)['kept_for']

    assert told() == []
    for host in ('two', 'one'):
        house.endpoints.report_holdings({}, host, {'images': {}, 'needs': [image], 'quotas': {}})
    assert told() == ['host one', 'host two'], 'of an image that is there as well'
    del house.images.images[image]
    house.boots.servers = {image}
    house.exporter.readers = {image}
    house.deleted(image)
    assert told() == ['host one', 'host two']
    for host in ('two', 'one'):
        house.endpoints.report_holdings({}, host, {'images': {}, 'needs': [], 'quotas': {}})
    assert told() == [module.SERVERS.format(image)]
    house.boots.away = True
    assert told() == [module.NOT_KNOWN]
    house.boots.away, house.boots.servers = False, set()
    assert told() == [module.CONNECTED]
    house.exporter.readers = set()
    house.later(300)
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
    house.changed(image)
    house.settle()
    base = house.store.load(image).made.base_path
    house.endpoints.report_holdings({}, 'one', {'images': {}, 'needs': [image], 'quotas': {}})
    del house.images.images[image]
    house.deleted(image)
    for _day in range(3):
        shift[0] += 86401
        house.once()
        house.later(300)
        assert os.path.exists(base)
    assert house.operators.get_image(image)['kept_for'] == ['host one']
    house.endpoints.report_holdings({}, 'one', {'images': {}, 'needs': [], 'quotas': {}})
    house.later(300)
    assert not os.path.exists(base)
