"""The filter, run by Nova's handler on Nova's own host states; Glance's client is a stand-in."""

import pytest
from nova.image import glance
from nova.scheduler import filters as nova_filters
from scheduler_fakes import IMAGE, OTHER, host, published, request

from nova_bootcache.scheduler.filters import BootCacheFilter
from nova_bootcache.warmth import Level


class Glance:
    """Stands for Nova's client of Glance."""

    def __init__(self):
        self.properties, self.asked, self.broken = {}, [], False

    def __call__(self):
        return self

    def get(self, context, image_id):
        assert context.user_id == 'user', 'it is asked as the user'
        self.asked.append(image_id)
        if self.broken:
            raise RuntimeError('503')
        return {'id': image_id, 'properties': self.properties}


@pytest.fixture
def images(monkeypatch):
    images = Glance()
    monkeypatch.setattr(glance, 'API', images)
    return images


def passing(states, spec=None, filter_=None, index=0):
    """Return the names of the hosts that pass."""
    handler = nova_filters.HostFilterHandler()
    found = handler.get_filtered_objects([filter_ or BootCacheFilter()], states,
                                         spec or request(), index)
    return [state.host for state in found or ()]


STATES = [host('stock'), host('cold', published()), host('arriving', published(Level.ARRIVING)),
          host('base', published(Level.BASE)), host('disk', published(Level.DISK)),
          host('memory', published(Level.MEMORY)), host('other', published(Level.DISK, OTHER)),
          host('damaged', {'bootcache': 'x'})]
ALL = [state.host for state in STATES]


@pytest.mark.parametrize('value, expected', [
    (None, ALL), ('', ALL), ('nonsense', ALL),
    ('driver', ['cold', 'arriving', 'base', 'disk', 'memory', 'other', 'damaged']),
    (' Driver ', ['cold', 'arriving', 'base', 'disk', 'memory', 'other', 'damaged']),
    ('warm', ['base', 'disk', 'memory'])])
def test_hosts_pass_as_the_image_asks(images, value, expected):
    images.properties = {} if value is None else {'bootcache_require': value}
    assert passing(STATES) == expected


def test_a_reason_is_in_the_log(images, caplog):
    caplog.set_level('INFO')
    images.properties = {'bootcache_require': 'warm'}
    passing(STATES[:2])
    assert f'host stock: does not run bootcache\'s driver, which image {IMAGE} asks for' \
        in caplog.text
    assert f'host cold: is not warm for image {IMAGE}' in caplog.text


def test_a_server_without_an_image(images):
    assert passing(STATES, request(None)) == ALL and images.asked == []


def test_all_pass_while_glance_does_not_answer(images, caplog):
    images.broken, images.properties = True, {'bootcache_require': 'warm'}
    filter_ = BootCacheFilter()
    assert passing(STATES, filter_=filter_) == ALL and 'cannot be asked' in caplog.text
    images.broken = False
    assert passing(STATES, filter_=filter_) == ['base', 'disk', 'memory'], 'it is asked again'


def test_an_image_is_looked_up_once_a_minute(images):
    filter_ = BootCacheFilter()
    for _request in range(3):
        passing(STATES, filter_=filter_)
    assert images.asked == [IMAGE]
    passing(STATES, request(OTHER), filter_)
    assert images.asked == [IMAGE, OTHER]


def test_a_request_of_many_servers_is_filtered_once(images):
    images.properties = {'bootcache_require': 'warm'}
    assert passing(STATES, index=1) == ALL


@pytest.mark.parametrize('value', [None, 'warm', 'driver'])
def test_a_profile_boot_needs_the_driver_and_finds_no_warm_host(images, value):
    images.properties = {'bootcache_require': value} if value else {}
    assert passing(STATES, request(bootcache_profile='yes')) \
        == ['cold', 'arriving', 'base', 'disk', 'memory', 'other', 'damaged']


def test_a_single_host(images):
    images.properties = {'bootcache_require': 'driver'}
    assert [BootCacheFilter().host_passes(state, request()) for state in STATES[:2]] \
        == [False, True]
