"""The entry by which a host tells the scheduler what it holds."""

import json
import random
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nova import objects
from nova.compute import stats as compute_stats

from nova_bootcache.published import warmth
from nova_bootcache.published.warmth import Holding, Level

objects.register_all()

KEYS = st.integers(0, (1 << 48) - 1).map(lambda number: f'{number:012x}')
LEVELS = st.sampled_from([level for level in Level if level is not Level.COLD])
HOLDINGS = st.lists(st.builds(Holding, KEYS, LEVELS, st.floats(0, 2e9)), max_size=40)


@given(HOLDINGS)
def test_what_is_encoded_is_read_back(holdings):
    entry = warmth.decode(warmth.encode(holdings))
    for key in {holding.key for holding in holdings}:
        assert entry.level(key) is max(holding.level for holding in holdings
                                       if holding.key == key)


@given(HOLDINGS, KEYS)
def test_another_image_is_cold(holdings, key):
    if key not in {holding.key for holding in holdings}:
        assert warmth.decode(warmth.encode(holdings)).level(key) is Level.COLD


def test_no_key_is_found_across_two_others():
    entry = warmth.decode(warmth.encode([Holding('a' * 11 + 'b', Level.DISK, 2),
                                         Holding('c' * 12, Level.DISK, 1)]))
    assert entry.levels == ((Level.DISK, 'aaaaaaaaaaab cccccccccccc'),)
    for start in range(1, 14):
        part = 'aaaaaaaaaaab cccccccccccc'[start:start + 12]
        assert entry.level(part.replace(' ', '')[:12].ljust(12, 'd')) in (Level.COLD, Level.DISK)
    assert entry.level('baaaaaaaaaac') is Level.COLD


def test_a_thousand_images_fit():
    holdings = [Holding(warmth.image_key(str(uuid.UUID(int=number))), Level.DISK, number)
                for number in range(1000)]
    text = warmth.encode(holdings)
    assert len(text.encode()) <= warmth.LIMIT == 16 << 10
    entry = warmth.decode(text)
    assert all(entry.level(holding.key) is Level.DISK for holding in holdings)


@pytest.mark.parametrize('limit', [warmth.LIMIT, 1000, 200])
def test_of_more_the_most_recently_used_are_in_it(limit):
    holdings = [Holding(warmth.image_key(str(number)), random.Random(number).choice(
        [Level.DISK, Level.MEMORY, Level.BASE]), number) for number in range(5000)]
    random.Random(1).shuffle(holdings)
    text = warmth.encode(holdings, limit)
    assert len(text.encode()) <= limit
    entry = warmth.decode(text)
    kept = [holding.last_use for holding in holdings if entry.level(holding.key) is not Level.COLD]
    assert kept and min(kept) == 5000 - len(kept)
    # Not a key less than there is room for.
    assert len(text) > limit - 2 * 13


@pytest.mark.parametrize('projects, limit', [
    (0, 16 << 10), (700, 16 << 10), (900, 16 << 10), (1100, None), (1400, 0)])
def test_what_nova_keeps_of_a_host_leaves_less_room(projects, limit):
    """A column of MySQL's has 65,535 bytes, and what is longer takes all of the record with it."""
    stats = compute_stats.Stats()
    for number in range(projects):
        stats.update_stats_for_instance({
            'uuid': str(number), 'project_id': uuid.UUID(int=number << 64).hex, 'os_type': None,
            'vm_state': 'active', 'task_state': None})
    stats[warmth.STATS_KEY] = 'x' * 30_000
    room = warmth.room(stats)
    assert (0 < room < 16 << 10) if limit is None else room == limit
    holdings = [Holding(warmth.image_key(str(number)), Level.DISK, number)
                for number in range(9000)]
    stats.digest_stats({warmth.STATS_KEY: warmth.encode(holdings, room)})
    updates = {'stats': stats}
    objects.ComputeNode._convert_stats_to_db_format(updates)
    assert len(updates['stats']) < 65_535 - 2048 or not room


def test_a_limit_without_room():
    assert warmth.decode(warmth.encode([Holding('a' * 12, Level.DISK, 1)], 10)) == warmth.NOTHING


def test_a_host_without_anything():
    assert warmth.decode(warmth.encode([])) == warmth.NOTHING


@pytest.mark.parametrize('text', [
    '', 'x', '[]', '{}', 'null', '{"version":2,"disk":""}', '{"version":1,"disk":["a"]}',
    '{"version":1,"memory":7}', '{"version":1',
    json.dumps({'version': 1, 'disk': 'a' * (16 << 10)}), None, 7])
def test_damaged_entries(text):
    with pytest.raises(ValueError):
        warmth.decode(text)


def test_levels_that_a_later_version_adds_are_no_concern():
    entry = warmth.decode('{"version":1,"disk":"aaaaaaaaaaaa","peer":"bbbbbbbbbbbb"}')
    assert (entry.level('aaaaaaaaaaaa'), entry.level('bbbbbbbbbbbb')) == (Level.DISK, Level.COLD)


def test_a_base_has_its_images_key():
    image = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
    assert warmth.base_key('0123456789abcdef0123456789abcdef01234567') == '0123456789ab'
    assert len(warmth.image_key(image)) == 12
