"""The weigher, run by Nova's own handler on Nova's own host states."""

import logging
import threading

import pytest
from nova import objects
from nova.image import glance
from nova.scheduler import host_manager, weights
from nova.scheduler.weights.ram import RAMWeigher
from scheduler_fakes import IMAGE, OTHER, Glance, host, published, request

from nova_bootcache.published import warmth
from nova_bootcache.published.warmth import Level
from nova_bootcache.scheduler import hostwarmth, imagefacts
from nova_bootcache.scheduler.hostwarmth import HostWarmth
from nova_bootcache.scheduler.imagefacts import ImageLookup
from nova_bootcache.scheduler.weights import CONF, NEARLY_WARM, WEIGHTS, BootCacheWeigher


@pytest.fixture(autouse=True)
def memory(monkeypatch):
    """A scheduler's memory of this test alone, with its clock."""
    now = [1000.0]
    memory = HostWarmth(lambda: now[0])
    memory.now = now
    monkeypatch.setattr(hostwarmth, 'HOSTS', memory)
    # What follows choices is put into Nova's class once for a process: undone with the test.
    monkeypatch.setattr(host_manager.HostState, 'consume_from_request',
                        host_manager.HostState.consume_from_request)
    hostwarmth.follow_choices(memory)
    return memory


@pytest.fixture(autouse=True)
def images(monkeypatch):
    images = Glance()
    monkeypatch.setattr(glance, 'API', images)
    monkeypatch.setattr(imagefacts, 'IMAGES', ImageLookup())
    return images


def weigh(states, spec=None, weighers=None):
    """Return the hosts' names and weights, the best first."""
    found = weights.HostWeightHandler().get_weighed_objects(
        weighers or [BootCacheWeigher()], states, spec or request())
    return [(weighed.obj.host, round(weighed.weight, 6)) for weighed in found]


def test_hosts_come_by_their_warmth():
    states = [host(level.name, published(level)) for level in sorted(Level)]
    assert [name for name, _weight in weigh(states)] == ['MEMORY', 'DISK', 'ARRIVING', 'BASE',
                                                         'COLD']
    assert list(WEIGHTS.values()) == sorted(WEIGHTS.values(), reverse=True)
    assert (max(WEIGHTS.values()), min(WEIGHTS.values())) == (1.0, 0.0)


def test_equal_hosts_stay_equal_and_small_differences_small():
    """Nova would make 0 and 1 of any two different weights."""
    assert weigh([host('a', published(Level.DISK)), host('b', published(Level.DISK))]) \
        == [('a', WEIGHTS[Level.DISK]), ('b', WEIGHTS[Level.DISK])]
    assert dict(weigh([host('a', published(Level.DISK)), host('b', published(Level.MEMORY))])) \
        == {'a': WEIGHTS[Level.DISK], 'b': WEIGHTS[Level.MEMORY]}


@pytest.mark.parametrize('spec', [request(None), request(OTHER),
                                  objects.RequestSpec(image=objects.ImageMeta())])
def test_nothing_is_done_without_an_image_or_where_nobody_has_it(spec):
    states = [host('warm', published(Level.MEMORY)), host('cold', published()), host('stock')]
    assert [weight for _name, weight in weigh(states, spec)] == [0, 0, 0]


def test_a_request_without_an_image_reads_nothing(monkeypatch):
    monkeypatch.setattr(warmth, 'decode', lambda text: pytest.fail('an entry is read'))
    assert weigh([host('a', published(Level.DISK)), host('b')], request(None)) \
        == [('a', 0), ('b', 0)]


@pytest.mark.parametrize('text', ['', 'damaged', '{"version":9}', '[' * 100_000, None])
def test_a_damaged_entry_breaks_no_request(text, caplog):
    states = [host('odd', {warmth.STATS_KEY: text}), host('warm', published(Level.DISK))]
    assert weigh(states) == [('warm', WEIGHTS[Level.DISK]), ('odd', 0)]
    weigh(states)
    told = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(told) == (0 if text is None else 1), 'once for each entry, not for each request'


def test_an_entry_is_read_once(monkeypatch):
    read = []
    decode = warmth.decode
    monkeypatch.setattr(warmth, 'decode', lambda text: read.append(text) or decode(text))
    for _request in range(5):
        # Nova makes new host states, and new stats, for each request.
        weigh([host('a', published(Level.DISK)), host('b', published())])
    assert len(read) == 2
    weigh([host('a', published(Level.MEMORY)), host('b', published())])
    assert len(read) == 3


def test_the_multiplier(monkeypatch):
    states = [host('a', published(Level.MEMORY)), host('b', published())]
    CONF.set_override('bootcache_weight_multiplier', 2.5, 'filter_scheduler')
    try:
        assert weigh(states) == [('a', 2.5), ('b', 0)]
        CONF.set_override('bootcache_weight_multiplier', -1.0, 'filter_scheduler')
        assert weigh(states) == [('b', 0), ('a', -1)]
    finally:
        CONF.clear_override('bootcache_weight_multiplier', 'filter_scheduler')


def test_an_aggregate_has_precedence():
    states = [host('a', published(Level.MEMORY), [{'bootcache_weight_multiplier': '0'}]),
              host('b', published(Level.DISK), [{'bootcache_weight_multiplier': '3'}]),
              host('c', published(Level.DISK), [{'bootcache_weight_multiplier': 'much'}])]
    assert weigh(states) == [('b', round(3 * WEIGHTS[Level.DISK], 6)), ('c', WEIGHTS[Level.DISK]),
                             ('a', 0)]


def test_warmth_is_weighed_against_memory():
    warm, free = host('warm', published(Level.DISK)), host('free', published())
    warm.free_ram_mb, free.free_ram_mb = 100, 4000
    assert weigh([warm, free], None, [RAMWeigher(), BootCacheWeigher()])[0][0] == 'free'
    CONF.set_override('bootcache_weight_multiplier', 2.0, 'filter_scheduler')
    try:
        assert weigh([warm, free], None, [RAMWeigher(), BootCacheWeigher()])[0][0] == 'warm'
    finally:
        CONF.clear_override('bootcache_weight_multiplier', 'filter_scheduler')


# What the scheduler chose itself.

def test_a_host_that_was_chosen_counts_until_it_publishes(memory):
    cold = [host('a', published()), host('b', published())]
    assert [weight for _name, weight in weigh(cold)] == [0, 0]
    cold[1].consume_from_request(request())
    assert (cold[1].num_instances, cold[1].free_ram_mb) == (1, -64), 'Nova\'s own work is done'
    # The next request has other host states.
    states = [host('a', published()), host('b', published())]
    assert weigh(states) == [('b', WEIGHTS[Level.ARRIVING]), ('a', 0)]
    assert weigh(states, request(OTHER)) == [('a', 0), ('b', 0)]
    memory.now[0] += hostwarmth.CHOSEN_SECONDS + 1
    assert weigh(states) == [('a', 0), ('b', 0)]


def test_what_a_chosen_host_has_counts_if_it_is_more(memory):
    state = host('a', published(Level.MEMORY))
    state.consume_from_request(request())
    assert weigh([state, host('b', published())])[0] == ('a', WEIGHTS[Level.MEMORY])


@pytest.mark.parametrize('state, spec', [(host('a'), request()),
                                         (host('a', published()), request(None)),
                                         (host('a', published()),
                                          request(bootcache_profile='yes'))],
                         ids=['stock driver', 'volume', 'profile boot'])
def test_what_is_no_concern_is_not_remembered(memory, state, spec):
    state.consume_from_request(spec)
    assert memory.chosen(warmth.image_key(IMAGE)) == frozenset() and not memory._chosen


def test_the_memory_of_choices_does_not_grow(memory):
    for number in range(1000):
        memory.choose(host('a'), f'{number:012x}')
        memory.now[0] += 1
    assert len(memory._chosen) <= hostwarmth.CHOSEN_SECONDS + 1


def test_choices_are_followed_once(memory):
    followed = host_manager.HostState.consume_from_request
    BootCacheWeigher()
    assert host_manager.HostState.consume_from_request is followed


def test_a_nova_that_does_not_tell_of_choices(monkeypatch, caplog):
    monkeypatch.delattr(host_manager.HostState, 'consume_from_request')
    hostwarmth.follow_choices()
    assert 'does not tell of the scheduler' in caplog.text
    assert weigh([host('a', published(Level.DISK)), host('b')])[0] == ('a', WEIGHTS[Level.DISK])


def test_single_hosts():
    assert BootCacheWeigher()._weigh_object(host('a', published(Level.BASE)), request()) \
        == WEIGHTS[Level.BASE]


# Snapshots.

SNAPSHOT = {'image_type': 'snapshot', 'base_image_ref': OTHER}


def test_who_is_warm_for_the_parent_is_nearly_warm_for_a_snapshot(images):
    images.properties = SNAPSHOT
    states = [host('cold', published()), host('stock'), host('warm', published(Level.DISK)),
              *[host(f'parent {level.name}', published(level, OTHER)) for level in Level]]
    assert dict(weigh(states)) == {
        'warm': WEIGHTS[Level.DISK], 'parent MEMORY': NEARLY_WARM, 'parent DISK': NEARLY_WARM,
        **dict.fromkeys(['cold', 'stock', 'parent ARRIVING', 'parent BASE', 'parent COLD'], 0)}
    assert 0.5 < NEARLY_WARM < WEIGHTS[Level.BASE]


def test_glance_is_asked_once_and_not_without_need(images):
    images.properties = SNAPSHOT
    states = [host('a', published(Level.DISK, OTHER)), host('b', published())]
    for _request in range(5):
        assert weigh(states)[0] == ('a', NEARLY_WARM)
    assert images.asked == [IMAGE]
    weigh([host('a', published(Level.DISK)), host('b', published(Level.MEMORY))])
    weigh([host('a'), host('b')], request(OTHER))
    weigh(states, request(None))
    assert images.asked == [IMAGE]


@pytest.mark.parametrize('properties', [
    {}, {'image_type': 'snapshot'}, {'base_image_ref': OTHER}, {**SNAPSHOT, 'base_image_ref': '/'},
    {**SNAPSHOT, 'base_image_ref': IMAGE}, {**SNAPSHOT, 'base_image_ref': None}])
def test_what_has_no_parent_weighs_as_ever(images, properties):
    images.properties = properties
    assert weigh([host('a', published(Level.DISK, OTHER)), host('b', published())]) \
        == [('a', 0), ('b', 0)]


def test_a_glance_that_does_not_answer_costs_one_question(images):
    images.properties, images.broken = SNAPSHOT, True
    for _request in range(3):
        assert weigh([host('a', published(Level.DISK, OTHER)), host('b', published())]) \
            == [('a', 0), ('b', 0)]
    assert images.asked == [IMAGE]


def test_a_glance_that_hangs_holds_up_nobody_for_long(images, monkeypatch):
    """Nova's own patience with it has no end as a rule."""
    monkeypatch.setattr(imagefacts, '_PATIENCE_SECONDS', 0.05)
    goes_on = threading.Event()
    monkeypatch.setattr(images, 'get', lambda context, image_id: goes_on.wait(60))
    states = [host('cold', published(Level.COLD)), host('parent', published(Level.DISK, OTHER))]
    assert dict(weigh(states)) == {'cold': 0, 'parent': 0}
    # Nobody asks for other images meanwhile.
    assert imagefacts.IMAGES.of(OTHER, request()) is None
    assert len(imagefacts.IMAGES._asked) == 1
    goes_on.set()
