"""The exporter's name of a base names its content."""

import dataclasses
import os

import pytest

from bootcache import naming

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'


def ready(house, content):
    house.images.put(IMAGE, content)
    house.manager.consider(IMAGE)
    house.settle()
    manifest = house.store.load(IMAGE)
    assert manifest.state == 'ready', manifest.reason
    return manifest


def test_another_content_gets_another_name(house):
    one = ready(house, b'1' * 4096)
    assert one.base_export == naming.content_export_name(IMAGE, one.image_hash)
    two = ready(house, b'2' * 4096)
    assert two.base_export == naming.content_export_name(IMAGE, two.image_hash)
    assert two.base_export != one.base_export


def test_a_base_that_an_earlier_version_got_keeps_its_name(house):
    """Gateways of hosts are connected to it."""
    one = ready(house, b'1' * 4096)
    house.store.put(dataclasses.replace(one, base_export=''))
    house.manager.consider(IMAGE, forced=True)
    house.settle()
    assert house.store.load(IMAGE).base_export == ''
    two = ready(house, b'2' * 4096)
    assert two.base_export == naming.content_export_name(IMAGE, two.image_hash)


def test_older_content_is_given_to_no_new_server_and_never_taken_for_the_new_one(house):
    """Hosts read the older base, so that the new content cannot be had yet."""
    one = ready(house, b'1' * 4096)
    house.exporter.readers.add(IMAGE)
    house.images.put(IMAGE, b'2' * 4096)
    house.manager.consider(IMAGE)
    house.settle()
    answer = house.hosts.plan_boot(IMAGE, 'host', 'server', None)
    assert answer['action'] == 'stock' and 'cache_export' not in answer
    assert answer['base_export'] and answer['image_hash'] == one.image_hash
    house.exporter.readers.clear()
    house.manager.consider(IMAGE, forced=True)
    house.settle()
    manifest = house.store.load(IMAGE)
    assert manifest.state == 'ready' and manifest.base_hash != one.base_hash
    with open(manifest.base_path, 'rb') as stream:
        assert stream.read() == b'2' * 4096
    assert house.hosts.plan_boot(IMAGE, 'host', 'server', None)['action'] == 'cache'


@pytest.mark.parametrize('who', ['a host', 'Nova'])
def test_older_content_stays_while_a_server_that_is_off_needs_it(house, who):
    """Nobody is connected, and an operator asks again and again for the new content."""
    one = ready(house, b'1' * 4096)
    house.needs.note('one', {'needs': [IMAGE] if who == 'a host' else []})
    house.boots.servers = {IMAGE} if who == 'Nova' else set()
    house.images.put(IMAGE, b'2' * 4096)
    for _try in range(2):
        house.manager.consider(IMAGE, forced=True)
        house.settle()
        manifest = house.store.load(IMAGE)
        assert manifest.base_path == one.base_path and 'older content' in manifest.reason
        with open(one.base_path, 'rb') as stream:
            assert stream.read() == b'1' * 4096
    house.needs.note('one', {'needs': []})
    house.boots.servers = set()
    house.manager.consider(IMAGE, forced=True)
    house.settle()
    assert house.store.load(IMAGE).reason == '' and not os.path.exists(one.base_path)
