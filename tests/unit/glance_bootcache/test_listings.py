"""Listings of images and hosts come by pages, each of which fits a message."""

import dataclasses
import json
import uuid

from fakes_hosts import IMAGE, ready

from bootcache.manifest import Manifest
from bootcache.rpc.client import all_entries
from bootcache.rpc.fields import MOST_NAMED
from bootcache.rpc.messages import PAGE_ENTRIES, ListHosts, ListImages
from bootcache.rpc.report import (
    HostReport,
    PausedGuest,
    PausedGuests,
    UnsettledServer,
    UnsettledServers,
)
from tools import storedimages

# RabbitMQ 4 takes no longer message.
LONGEST_MESSAGE = 16 << 20


def body(answer):
    """A message as oslo.messaging writes it."""
    return json.dumps({'oslo.version': '2.0', 'oslo.message': json.dumps(
        {'result': answer, '_msg_id': 'x' * 32})})


def sender(house, pages):
    """What a client sends by; notes the pages that come."""
    def send(listing):
        pages.append(house.endpoints.say(listing.method, **dataclasses.asdict(listing)))
        return pages[-1]
    return send


def test_many_images_come_by_pages(house):
    images = sorted(str(uuid.UUID(int=number, version=4)) for number in range(2 * PAGE_ENTRIES + 1))
    for image in reversed(images):
        storedimages.put(house.store, Manifest(image))
    pages = []
    assert [image['image_id'] for image in all_entries(sender(house, pages), ListImages())] \
        == images
    assert [len(page) for page in pages] == [PAGE_ENTRIES, PAGE_ENTRIES, 1, 0]


def test_a_page_of_images_with_all_that_is_known_of_one_fits_a_message(house, monkeypatch):
    ready(house)
    known = house.store.load(IMAGE)
    monkeypatch.setattr(house.store, 'everywhere', lambda: [known] * 20_000)
    answer = house.endpoints.say('list_images')
    assert len(answer) == PAGE_ENTRIES and len(body(answer)) <= LONGEST_MESSAGE


def test_a_page_of_hosts_that_name_all_that_they_can_fits_a_message(house):
    line = '\\' * 255
    report = HostReport(
        unsettled=UnsettledServers(99, (UnsettledServer(line, line),) * MOST_NAMED),
        paused=PausedGuests(99, (PausedGuest(line, line, 1.5),) * MOST_NAMED))
    hosts = sorted(f'host-{number}' for number in range(PAGE_ENTRIES + 1))
    for host in reversed(hosts):
        house.table.report(host, report)
    pages = []
    listed = all_entries(sender(house, pages), ListHosts())
    assert [host['host'] for host in listed] == hosts
    assert all(len(body(page)) <= LONGEST_MESSAGE for page in pages)
