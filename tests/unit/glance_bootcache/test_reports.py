"""Which reports of servers' boots are looked at. The neighbours are stand-ins, see test_manager.py.

A compute host that lies can make a cache image useless, never wrong; but each new version of a
working set is built here and fetched by every host, so none comes of a report that nobody wanted.
"""

import pytest

from glance_bootcache import boots

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
OTHER = '8a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'


class Clock:
    """Stands for the module ``time``."""

    def __init__(self):
        self.now = 5000.0

    def monotonic(self):
        return self.now

    def time(self):
        return 1e9


@pytest.fixture
def cold(house, monkeypatch):
    """Two images with a base and nothing else; time stands still."""
    house.clock = Clock()
    for image in (IMAGE, OTHER):
        house.images.put(image)
        house.hosts.plan_boot(image, 'host', 'server', None)
        house.settle()
    monkeypatch.setattr(boots, 'time', house.clock)
    return house


def ask(house, host='host', image=IMAGE, server='server'):
    return house.hosts.plan_boot(image, host, server, None)


def report(house, extents, host='host', image=IMAGE):
    """A host reports; the version of the image's working set afterwards."""
    house.endpoints.report_boot(
        {}, image, house.store.load(image).image_hash, host, 65536, extents, 'marker', 1.0)
    house.settle()
    working_set = house.store.load(image).working_set
    return working_set and working_set.version


def test_a_report_that_nobody_asked_for_is_not_looked_at(cold, caplog):
    # The host asked while the base was not there: it was told to wait, and nothing else.
    assert report(cold, [[0, 65536]]) is None
    assert cold.state(IMAGE) == 'served' and cold.qemu.builds == []
    with caplog.at_level('INFO'):
        report(cold, [[0, 65536]])
    assert f'image {IMAGE}: a boot on host is not looked at: no report was asked for' in caplog.text


def test_it_is_not_even_read(cold):
    """Reading one of a million extents takes its time."""
    assert report(cold, 'no extents') is None


def test_a_report_that_was_asked_for_counts_once(cold):
    assert ask(cold)['watch']
    assert report(cold, [[0, 65536]]) == 1
    assert report(cold, [[0, 65536], [131072, 65536]]) == 1
    assert ask(cold)['watch']
    assert report(cold, [[0, 65536], [131072, 65536]]) == 2
    assert len(cold.qemu.builds) == 2


@pytest.mark.parametrize('host, image', [('elsewhere', IMAGE), ('host', OTHER), ('', IMAGE)])
def test_it_counts_for_the_host_and_the_image_that_were_asked_for(cold, host, image):
    ask(cold)
    assert report(cold, [[0, 65536]], host, image) is None
    assert report(cold, [[0, 65536]]) == 1


def test_servers_that_start_together_report_each(cold):
    for server in ('one', 'two'):
        assert ask(cold, server=server)['watch']
    assert report(cold, [[0, 65536]]) == 1
    assert report(cold, [[0, 65536], [131072, 65536]]) == 2
    assert report(cold, [[0, 65536], [262144, 65536]]) == 2


def test_asking_for_no_server_asks_for_no_report(cold):
    """As hosts do for their upkeep."""
    assert 'watch' not in ask(cold, server='')
    assert report(cold, [[0, 65536]]) is None


def test_a_report_is_expected_as_long_as_a_boot_may_take(cold):
    ask(cold)
    cold.clock.now += cold.conf.bootcache.profile_timeout + boots._LATE_SECONDS - 1
    assert report(cold, [[0, 65536]]) == 1
    ask(cold)
    cold.clock.now += cold.conf.bootcache.profile_timeout + boots._LATE_SECONDS
    assert report(cold, [[0, 65536], [131072, 65536]]) == 1


def test_what_is_expected_in_vain_is_forgotten(cold):
    for number in range(100):
        ask(cold, f'host-{number}')
    cold.clock.now += 10_000
    ask(cold)
    assert list(cold.hosts._expected) == [(IMAGE, 'host')]


def test_a_new_service_expects_nothing(cold):
    """The next boot is asked for."""
    ask(cold)
    cold.restart()
    assert report(cold, [[0, 65536]]) is None
    ask(cold)
    assert report(cold, [[0, 65536]]) == 1


def test_a_host_that_lies_ends_with_the_last_version(cold):
    """It may ask for servers that there are not."""
    for number in range(16):
        ask(cold, server=f'made-up-{number}')
        report(cold, [[number * 65536, 65536]])
    assert cold.store.load(IMAGE).working_set.version == cold.conf.bootcache.refine_boots + 1
    assert 'watch' not in ask(cold)
