"""Hosts that are warmed."""

import pytest

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
OTHER = '8a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'


def make_ready(house, image=IMAGE, **properties):
    house.images.put(image, **properties)
    house.changed(image)
    house.settle()
    assert house.state(image) == 'ready'


@pytest.fixture
def ready(house):
    """An image that is ready, two aggregates, and nothing to be warmed by policy any more."""
    house.nova.hosts = {'racks': ('one', 'two'), 'edge': ('three',)}
    make_ready(house)
    house.warming.step()
    assert house.nova.asked == []
    return house


def tell(house, host, outcome='cached', reason='', image=IMAGE):
    house.endpoints.report_warm({}, image.upper(), host, outcome, reason)


def step(house, seconds=0.0):
    house.seconds.now += seconds
    house.warming.step()


def done(house, image=IMAGE):
    return [job['done'] for job in house.endpoints.get_warming({}, image)]
