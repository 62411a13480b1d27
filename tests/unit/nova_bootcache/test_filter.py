"""The filter, run by Nova's handler on Nova's own host states; Glance's client is a stand-in."""

import threading
import types

import cachetools
import pytest
from nova.image import glance
from nova.scheduler import filters as nova_filters
from nova.scheduler import utils
from scheduler_fakes import IMAGE, OTHER, Glance, host, published, request

from nova_bootcache.published.warmth import Level
from nova_bootcache.scheduler import imagefacts
from nova_bootcache.scheduler.filters import BootCacheFilter
from nova_bootcache.scheduler.imagefacts import ImageLookup


@pytest.fixture
def images(monkeypatch):
    images = Glance()
    monkeypatch.setattr(glance, 'API', images)
    monkeypatch.setattr(imagefacts, 'IMAGES', ImageLookup())
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


def test_a_glance_that_hangs_holds_up_nobody_for_long(images, monkeypatch, caplog):
    """Nova's own patience with it has no end as a rule ([glance]timeout)."""
    monkeypatch.setattr(imagefacts, '_PATIENCE_SECONDS', 0.05)
    goes_on, properties = threading.Event(), {'bootcache_require': 'warm'}

    def hang(context, image_id):
        images.asked.append(image_id)
        assert goes_on.wait(60)
        return {'properties': properties}

    monkeypatch.setattr(images, 'get', hang)
    assert passing(STATES) == ALL and 'all hosts pass' in caplog.text
    # Nobody asks for this one or others meanwhile; it has answered when it goes on.
    assert passing(STATES) == passing(STATES, request(OTHER)) == ALL and images.asked == [IMAGE]
    [asked] = imagefacts.IMAGES._asked
    goes_on.set()
    assert asked.result(60).required == 'warm'
    assert passing(STATES) == ['base', 'disk', 'memory'] and images.asked == [IMAGE]


def test_one_whom_glance_refuses_decides_for_nobody_else(images):
    images.broken, images.properties = True, {'bootcache_require': 'warm'}
    assert passing(STATES) == ALL
    images.broken = False
    assert passing(STATES) == ['base', 'disk', 'memory']


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


def test_a_server_that_is_rebuilt_stays_where_it_is(images):
    images.properties = {'bootcache_require': 'warm'}
    spec = request(_nova_check_type='rebuild')
    assert utils.request_is_rebuild(spec)
    assert passing(STATES, spec) == ALL and images.asked == []


@pytest.mark.parametrize('hints', [None, {}])
def test_a_request_without_hints(images, hints):
    images.properties = {'bootcache_require': 'warm'}
    spec = request()
    spec.scheduler_hints = hints
    assert passing(STATES, spec) == ['base', 'disk', 'memory']


def test_a_request_that_knows_no_hints(images):
    spec = request()
    del spec._obj_scheduler_hints
    assert passing(STATES, spec) == ALL


def test_what_a_snapshot_has_from_its_servers_image_keeps_no_shelved_server_away(images):
    images.properties = {'bootcache_require': 'warm', 'image_type': 'snapshot'}
    assert passing(STATES) == ['cold', 'arriving', 'base', 'disk', 'memory', 'other', 'damaged']


def test_an_image_that_is_forgotten_just_now_is_looked_up(images, monkeypatch):
    ticks = iter(range(0, 10000, 40))  # each look at the clock takes 40 seconds
    monkeypatch.setattr(imagefacts, 'cachetools', types.SimpleNamespace(
        TTLCache=lambda size, seconds: cachetools.TTLCache(size, seconds,
                                                           timer=lambda: next(ticks))))
    monkeypatch.setattr(imagefacts, 'IMAGES', ImageLookup())
    filter_ = BootCacheFilter()
    for _request in range(5):
        assert passing(STATES, filter_=filter_) == ALL
